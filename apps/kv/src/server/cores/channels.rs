//! The queues between the cores of a process: one channel for each ordered pair, and a doorbell for
//! each core.

use std::io;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use sietch_ring::channel::{Receiver, Sender, channel};
use sietch_ring::thread_doorbell::{Event, EventDoorbell};

use super::links::Links;
use super::message::Message;

/// Slots of a channel. A core sends a few messages to each other one in an iteration, because
/// requests and replies are batched; what finds no slot waits with its sender. All channels of 64
/// cores take less than 32 MiB.
const SLOTS: u16 = 64;

/// A core's ends of its channels.
#[derive(Debug)]
pub(in crate::server) struct Channels {
    doorbell: EventDoorbell,
    /// By core; none to itself.
    senders: Vec<Option<Sender<Message, Event>>>,
    receivers: Vec<Option<Receiver<Message, Event>>>,
    /// The core whose messages are asked for next.
    next: usize,
}

impl Channels {
    /// Connects `count` cores with each other. Returns the ends of each, in order.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(in crate::server) fn connect(count: usize) -> io::Result<Vec<Self>> {
        let doorbells = (0..count).map(|_| EventDoorbell::new()).collect::<io::Result<Vec<_>>>()?;
        let none = || std::iter::repeat_with(|| None).take(count);
        let mut cores: Vec<Self> = doorbells
            .iter()
            .map(|doorbell| Self {
                doorbell: doorbell.clone(),
                senders: none().collect(),
                receivers: std::iter::repeat_with(|| None).take(count).collect(),
                next: 0,
            })
            .collect();
        for from in 0..count {
            for to in (0..count).filter(|to| *to != from) {
                let (sender, receiver) = channel(SLOTS, &doorbells[from], &doorbells[to]);
                cores[from].senders[to] = Some(sender);
                cores[to].receivers[from] = Some(receiver);
            }
        }
        Ok(cores)
    }

    /// The doorbell of this core.
    pub(in crate::server) fn doorbell(&self) -> &EventDoorbell {
        &self.doorbell
    }
}

impl Links for Channels {
    fn send(&mut self, to: usize, message: Message) {
        if let Some(Some(sender)) = self.senders.get_mut(to) {
            sender.send(message);
        }
    }

    fn receive(&mut self) -> Option<(usize, Message)> {
        let count = self.receivers.len();
        for from in (self.next..count).chain(0..self.next) {
            let Some(receiver) = &mut self.receivers[from] else { continue };
            if let Some(message) = receiver.receive() {
                self.next = (from + 1) % count;
                return Some((from, message));
            }
        }
        None
    }

    fn flush(&mut self) -> bool {
        let mut all = true;
        for sender in self.senders.iter_mut().flatten() {
            sender.flush();
            all &= sender.waiting() == 0;
        }
        all
    }

    fn arm(&mut self) -> bool {
        self.doorbell.arm();
        let arrived = self.receivers.iter_mut().flatten().any(Receiver::is_ready);
        // Every sender is asked: each notifies for itself.
        let passed: usize = self.senders.iter_mut().flatten().map(Sender::flush).sum();
        let quiet = !arrived && passed == 0;
        if !quiet {
            self.doorbell.disarm();
        }
        quiet
    }

    fn disarm(&mut self) {
        self.doorbell.disarm();
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let limit = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        match poll(&mut [PollFd::new(&self.doorbell, PollFlags::IN)], limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(cause) => return Err(cause.into()),
        }
        // Nothing else does it while only this is polled, and it would end the next sleep.
        self.doorbell.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(message: Option<(usize, Message)>) -> Option<(usize, u64)> {
        match message {
            Some((from, Message::WantSync(number))) => Some((from, number)),
            _ => None,
        }
    }

    #[test]
    fn messages_of_every_core_arrive_in_order_and_each_core_has_its_turn() {
        let mut cores = Channels::connect(3).expect("descriptors");
        for number in 0..200 {
            for from in [1, 2] {
                cores[from].send(0, Message::WantSync(number));
            }
        }
        assert!(!cores[1].flush() && !cores[2].flush(), "more than the channels have slots");
        let mut next = [0; 3];
        let mut last = 0;
        while next[1] + next[2] < 400 {
            let Some((from, got)) = number(cores[0].receive()) else {
                cores[1].flush();
                cores[2].flush();
                continue;
            };
            assert_eq!(got, next[from]);
            assert!(from != last || next[1] == 200 || next[2] == 200, "core {from} twice in a row");
            (next[from], last) = (next[from] + 1, from);
        }
        assert!(cores[1].flush() && cores[2].flush());
        assert!(cores[0].receive().is_none());
    }

    #[test]
    fn a_core_with_a_message_or_room_for_one_that_waits_does_not_sleep() {
        let mut cores = Channels::connect(2).expect("descriptors");
        assert!(cores[0].arm(), "nothing is there");
        cores[0].disarm();
        (0..=u64::from(SLOTS)).for_each(|number| cores[1].send(0, Message::WantSync(number)));
        cores[1].flush();
        assert!(!cores[0].arm());
        assert!(cores[1].arm(), "the last message waits for the receiver");
        while cores[0].receive().is_some() {}
        assert!(!cores[1].arm(), "there is room");
        assert!(number(cores[0].receive()).is_some());
    }
}
