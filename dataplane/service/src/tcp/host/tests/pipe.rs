//! A channel in memory, and the application at its other end.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use rustix::io::Errno;
use sietch_ring::Untrusted;
use sietch_ring::stream::Hangup;
use sietch_ring::stream::waiters::NotifiedSleeps;

use crate::tcp::channel::{Channel, WakeOn};
use crate::tcp::socket_options::SocketOptions;

/// Bytes that fit each way.
const CAPACITY: usize = 16 << 10;

/// What both ends see, and what the application knows.
#[derive(Debug, Default)]
pub(super) struct Pipe {
    pub out: VecDeque<u8>,
    pub out_ended: bool,
    pub into: VecDeque<u8>,
    pub into_ended: bool,
    /// What the service is to be notified of, and whether it was.
    pub service: WakeOn,
    pub service_notified: bool,
    /// The same of the application.
    pub application: WakeOn,
    pub application_notified: bool,
    unreported: WakeOn,
    pub established: bool,
    pub failed: Option<Errno>,
    pub broken: Option<Errno>,
    pub closed: bool,
    /// Bytes that the application has read.
    pub received: u64,
    /// Reports wrong values of all kinds, alternately.
    pub hostile: bool,
    /// What the application has set, until the service has read it.
    pub socket_options: Option<SocketOptions>,
    random: u32,
    caught: bool,
}

impl Pipe {
    pub(super) fn new(hostile: bool) -> Self {
        Self { hostile, random: 1, ..Self::default() }
    }

    /// The application sends, and notifies the service if that is armed.
    pub(super) fn write(&mut self, byte: impl Fn(u64) -> u8, from: u64, count: usize) -> usize {
        let count = count.min(CAPACITY - self.out.len());
        self.out.extend((from..).take(count).map(byte));
        self.touch(count > 0, false);
        count
    }

    pub(super) fn end(&mut self) {
        self.out_ended = true;
        self.touch(true, false);
    }

    pub(super) fn read(&mut self, most: usize) -> Vec<u8> {
        let count = most.min(self.into.len());
        let bytes: Vec<u8> = self.into.drain(..count).collect();
        self.received += count as u64;
        self.touch(false, count > 0);
        bytes
    }

    fn touch(&mut self, data: bool, room: bool) {
        self.service_notified |= (data && self.service.data) || (room && self.service.room);
    }
}

/// The service's end.
#[derive(Debug)]
pub(super) struct ServiceEnd(pub Rc<RefCell<Pipe>>);

impl ServiceEnd {
    /// A random value if the next answer is false.
    fn false_answer(&self) -> Option<u32> {
        let mut pipe = self.0.borrow_mut();
        pipe.random = pipe.random.wrapping_mul(1_103_515_245).wrapping_add(12_345);
        (pipe.hostile && pipe.random & 0x30_0000 == 0).then_some(pipe.random >> 8)
    }
}

impl Channel for ServiceEnd {
    fn drain(&mut self, limit: usize, mut take: impl FnMut(Untrusted<'_>) -> usize) -> usize {
        if let Some(value) = self.false_answer() {
            // Memory that holds anything.
            let nonsense = vec![value as u8; (value as usize % 5000).min(limit)];
            return take(Untrusted::from_slice(&nonsense)).min(nonsense.len());
        }
        let mut pipe = self.0.borrow_mut();
        let (first, second) = pipe.out.as_slices();
        let first = &first[..first.len().min(limit)];
        let second = &second[..second.len().min(limit - first.len())];
        let mut taken = 0;
        for piece in [first, second] {
            if piece.is_empty() {
                continue;
            }
            let now = take(Untrusted::from_slice(piece));
            assert!(now <= piece.len());
            taken += now;
            if now < piece.len() {
                break;
            }
        }
        pipe.out.drain(..taken);
        pipe.unreported.room |= taken > 0;
        taken
    }

    fn has_sent(&self) -> bool {
        self.false_answer().is_some() || !self.0.borrow().out.is_empty()
    }

    fn has_ended(&self) -> bool {
        let pipe = self.0.borrow();
        pipe.out_ended && pipe.out.is_empty()
    }

    fn has_new_socket_options(&self) -> bool {
        self.0.borrow().socket_options.is_some()
    }

    fn take_socket_options(&mut self) -> Option<SocketOptions> {
        self.0.borrow_mut().socket_options.take()
    }

    fn is_broken(&self) -> bool {
        let mut pipe = self.0.borrow_mut();
        pipe.caught |= pipe.hostile && pipe.random & 0xfff_0000 == 0;
        pipe.caught
    }

    fn deliver(&mut self, bytes: &[u8]) -> usize {
        if self.false_answer().is_some() {
            return 0;
        }
        let mut pipe = self.0.borrow_mut();
        assert!(!pipe.into_ended, "bytes after the end");
        let count = bytes.len().min(CAPACITY - pipe.into.len());
        pipe.into.extend(&bytes[..count]);
        pipe.unreported.data |= count > 0;
        count
    }

    fn has_room(&self) -> bool {
        self.0.borrow().into.len() < CAPACITY
    }

    fn finish(&mut self) {
        let mut pipe = self.0.borrow_mut();
        assert!(!pipe.into_ended, "ended twice");
        pipe.into_ended = true;
        pipe.unreported.data = true;
    }

    fn notify(&mut self, _notified: &mut NotifiedSleeps) {
        let mut pipe = self.0.borrow_mut();
        let unreported = std::mem::take(&mut pipe.unreported);
        pipe.application_notified |=
            (unreported.data && pipe.application.data) || (unreported.room && pipe.application.room);
    }

    fn arm(&mut self, wake_on: WakeOn) {
        let mut pipe = self.0.borrow_mut();
        assert_eq!(pipe.service, WakeOn::default(), "armed twice");
        pipe.service = wake_on;
    }

    fn arm_among_many(&mut self, wake_on: WakeOn, _sleep: u64) {
        self.arm(wake_on);
    }

    fn disarm(&mut self, wake_on: WakeOn) {
        let mut pipe = self.0.borrow_mut();
        assert_eq!(pipe.service, wake_on, "disarmed what was not armed");
        pipe.service = WakeOn::default();
    }

    fn clear_notification(&mut self) {
        self.0.borrow_mut().service_notified = false;
    }

    fn hung_up(&mut self) -> Hangup {
        let pipe = self.0.borrow();
        if pipe.into.is_empty() { Hangup::Finished } else { Hangup::Reset }
    }

    fn establish(&mut self) {
        let mut pipe = self.0.borrow_mut();
        pipe.established = true;
        pipe.application_notified = true;
    }

    fn fail(&mut self, error: Errno) {
        let mut pipe = self.0.borrow_mut();
        pipe.failed = Some(error);
        pipe.application_notified = true;
    }

    fn abort_with(&mut self, error: Errno) {
        let mut pipe = self.0.borrow_mut();
        pipe.broken = Some(error);
        pipe.application_notified = true;
    }
}
