//! A VNIC as an application gets it, with a bad cable in between.

pub(super) mod pair;

use std::io;

use pair::{Filters, Pair, Plan};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sietch_nic::af_xdp;
use sietch_nic::{Frame, NicQueue, TransmitError};
use sietch_sim::lossy::{Done, Rates};
use sietch_sim::{Lossy, Random};

pub(super) struct Veth {
    queue: Lossy<af_xdp::Queue>,
    filters: Filters,
}

impl Veth {
    /// A pair in the calling thread's namespace.
    pub(super) fn new(plan: &Plan, rates: Rates, seed: u64) -> io::Result<Self> {
        let Pair { queue, filters } = Pair::new(plan)?;
        Ok(Self { queue: Lossy::new(queue, rates, Random::new(seed)), filters })
    }

    /// What the cable has done.
    pub(super) fn done(&self) -> Done {
        self.queue.done
    }

    /// What the filter dropped of what was sent, by reason.
    pub(super) fn refused(&self) -> Vec<(&'static str, u64)> {
        self.filters.refused()
    }

    /// Waits for a frame, at most this many milliseconds.
    pub(super) fn wait(&self, milliseconds: i32) {
        let limit = Timespec { tv_sec: 0, tv_nsec: i64::from(milliseconds.clamp(0, 999)) * 1_000_000 };
        let mut entries = [PollFd::new(self.queue.inner(), PollFlags::IN)];
        // A signal ends the wait as well.
        let _ = poll(&mut entries, Some(&limit));
    }
}

impl NicQueue for Veth {
    fn mac(&self) -> [u8; 6] {
        self.queue.mac()
    }

    fn mtu(&self) -> usize {
        self.queue.mtu()
    }

    fn receive(&mut self, out: &mut Vec<Frame>, limit: usize) -> usize {
        self.queue.receive(out, limit)
    }

    fn bytes(&self, frame: &Frame) -> &[u8] {
        self.queue.bytes(frame)
    }

    fn bytes_mut(&mut self, frame: &mut Frame) -> &mut [u8] {
        self.queue.bytes_mut(frame)
    }

    fn allocate(&mut self, length: usize) -> Option<Frame> {
        self.queue.allocate(length)
    }

    fn release(&mut self, frame: Frame) {
        self.queue.release(frame);
    }

    fn transmit(&mut self, frame: Frame) -> Result<(), TransmitError> {
        self.queue.transmit(frame)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.queue.flush()
    }

    fn free_buffers(&self) -> usize {
        self.queue.free_buffers()
    }
}
