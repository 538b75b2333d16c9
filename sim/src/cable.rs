//! The paths of a [`Link`](crate::Link) around a real queue, in real time: an emulator for tests
//! against other machines, the kernel's TCP above all.
//!
//! 1. A frame that the engine sends is copied into the outgoing [`Lane`], and its buffer returns to
//!    the pool. A frame that the lane lets through goes to the device when it is due: at the next
//!    receive or flush after that time.
//! 2. A frame that the device has received is copied into the incoming lane, and given to the
//!    engine when it is due.
//! 3. A router on the path answers into the other lane, as in [`Link`](crate::Link).
//! 4. Nothing here reads a clock: the creator of the cable passes one. Outages count from that
//!    moment.
//! 5. A loop around it must poll again at [`Cable::next_deadline`], because no doorbell notifies it
//!    then.
//!
//! Without a path it is transparent and copies nothing.

use std::io;

use sietch_nic::{Frame, NicQueue, Offloads, TransmitError, Untrusted};

use crate::Random;
use crate::link::{Lane, LinkConfig, Tally};

/// A queue behind two paths.
#[derive(Debug)]
pub struct Cable<Q: NicQueue> {
    inner: Q,
    /// Out of the queue, and towards it.
    lanes: Option<[Lane; 2]>,
    random: Random,
    clock: fn() -> u64,
    started: u64,
    arrived: Vec<Frame>,
    failure: Option<io::Error>,
}

impl<Q: NicQueue> Cable<Q> {
    /// Puts `inner` behind the paths of `link`: `there` for what it sends, `back` for what it
    /// receives. `clock` returns nanoseconds.
    pub fn new(inner: Q, link: Option<LinkConfig>, random: Random, clock: fn() -> u64) -> Self {
        let lanes = link.map(|link| [Lane::new(link.there), Lane::new(link.back)]);
        Self { inner, lanes, random, clock, started: clock(), arrived: Vec::new(), failure: None }
    }

    /// The queue itself.
    pub fn inner(&self) -> &Q {
        &self.inner
    }

    /// The counters, out of the queue and towards it.
    pub fn tallies(&self) -> [Tally; 2] {
        self.lanes.as_ref().map_or_else(Default::default, |[there, back]| [there.tally(), back.tally()])
    }

    /// Ends all faults; delays stay.
    pub fn heal(&mut self) {
        self.lanes.iter_mut().flatten().for_each(Lane::heal);
    }

    /// When the next frame is due, on the cable's clock.
    pub fn next_deadline(&self) -> Option<u64> {
        let due = self.lanes.iter().flatten().filter_map(Lane::next_deadline).min();
        due.map(|due| due + self.started)
    }

    fn now(&self) -> u64 {
        (self.clock)().saturating_sub(self.started)
    }

    /// Passes due frames to the device. Returns whether there were any.
    fn leave(&mut self) -> bool {
        let now = self.now();
        let Some([there, _]) = &mut self.lanes else { return false };
        let mut any = false;
        while let Some(bytes) = there.arrive(now) {
            let sent = self.inner.allocate(bytes.len()).is_some_and(|mut frame| {
                self.inner.bytes_mut(&mut frame).copy_from_slice(&bytes);
                match self.inner.transmit(frame) {
                    Ok(()) => true,
                    Err(full) => {
                        self.inner.release(full.into_frame());
                        false
                    }
                }
            });
            there.delivered(sent);
            any = true;
        }
        any
    }

    /// All bytes of a frame; its buffer returns to the pool.
    fn unload(&mut self, frame: Frame) -> Vec<u8> {
        let mut bytes = self.inner.bytes(&frame).to_vec();
        if frame.tail_len() > 0 {
            bytes.extend(self.inner.tail(&frame).to_vec());
        }
        self.inner.release(frame);
        bytes
    }

    /// Sends a frame into one of the lanes.
    fn launch(&mut self, lane: usize, frame: Frame) {
        let now = self.now();
        let bytes = self.unload(frame);
        if let Some(lanes) = &mut self.lanes
            && let Some(answer) = lanes[lane].launch(bytes, now, &mut self.random)
        {
            lanes[1 - lane].inject(answer, now);
        }
    }
}

impl<Q: NicQueue> NicQueue for Cable<Q> {
    fn mac(&self) -> [u8; 6] {
        self.inner.mac()
    }

    fn mtu(&self) -> usize {
        self.inner.mtu()
    }

    fn receive(&mut self, out: &mut Vec<Frame>, limit: usize) -> usize {
        if self.lanes.is_none() {
            return self.inner.receive(out, limit);
        }
        let mut arrived = std::mem::take(&mut self.arrived);
        self.inner.receive(&mut arrived, limit);
        for frame in arrived.drain(..) {
            self.launch(1, frame);
        }
        self.arrived = arrived;
        if self.leave() {
            // The next flush reports the error.
            self.failure = self.inner.flush().err();
        }
        let (now, before) = (self.now(), out.len());
        let Some([_, back]) = &mut self.lanes else { return 0 };
        while out.len() - before < limit
            && let Some(bytes) = back.arrive(now)
        {
            let frame = self.inner.allocate(bytes.len());
            back.delivered(frame.is_some());
            if let Some(mut frame) = frame {
                self.inner.bytes_mut(&mut frame).copy_from_slice(&bytes);
                out.push(frame);
            }
        }
        out.len() - before
    }

    fn bytes(&self, frame: &Frame) -> &[u8] {
        self.inner.bytes(frame)
    }

    fn tail(&self, frame: &Frame) -> Untrusted<'_> {
        self.inner.tail(frame)
    }

    fn bytes_mut(&mut self, frame: &mut Frame) -> &mut [u8] {
        self.inner.bytes_mut(frame)
    }

    fn allocate(&mut self, length: usize) -> Option<Frame> {
        self.inner.allocate(length)
    }

    fn offloads(&self) -> Offloads {
        self.inner.offloads()
    }

    fn release(&mut self, frame: Frame) {
        self.inner.release(frame);
    }

    fn transmit(&mut self, frame: Frame) -> Result<(), TransmitError> {
        if self.lanes.is_none() {
            return self.inner.transmit(frame);
        }
        self.launch(0, frame);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        self.leave();
        self.inner.flush()
    }

    fn free_buffers(&self) -> usize {
        self.inner.free_buffers()
    }

    fn must_flush_again(&self) -> bool {
        self.inner.must_flush_again()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::link::Direction;
    use sietch_nic::wire::pair;

    thread_local! { static NOW: Cell<u64> = const { Cell::new(7_000) } }

    fn send(queue: &mut impl NicQueue, bytes: &[u8]) {
        let mut frame = queue.allocate(bytes.len()).expect("there are buffers");
        queue.bytes_mut(&mut frame).copy_from_slice(bytes);
        queue.transmit(frame).expect("there is room");
        queue.flush().expect("the wire stays");
    }

    fn take(queue: &mut impl NicQueue) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        queue.receive(&mut frames, 64);
        let mut all = Vec::new();
        for frame in frames {
            all.push(queue.bytes(&frame).to_vec());
            queue.release(frame);
        }
        all
    }

    #[test]
    fn frames_take_the_delay_of_their_path_and_no_buffer_leaks() {
        let (a, mut b) = pair([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], 1500, 64);
        let path = |delay| Direction { delay, ..Direction::perfect() };
        let link = LinkConfig { there: path(100), back: path(300) };
        let mut a = Cable::new(a, Some(link), Random::new(1), || NOW.get());
        let free = (a.free_buffers(), b.free_buffers());
        send(&mut a, b"there");
        send(&mut b, b"back");
        assert!(take(&mut a).is_empty() && take(&mut b).is_empty());
        assert_eq!(a.next_deadline(), Some(7_100));
        NOW.set(7_100);
        assert!(take(&mut a).is_empty());
        assert_eq!(take(&mut b), [b"there"]);
        assert_eq!(a.next_deadline(), Some(7_300));
        NOW.set(7_300);
        assert_eq!(take(&mut a), [b"back"]);
        assert_eq!((a.free_buffers(), b.free_buffers()), free);
        assert_eq!(a.tallies().map(|tally| tally.delivered), [1, 1]);
    }

    #[test]
    fn an_outage_counts_from_when_the_cable_was_made() {
        let (a, mut b) = pair([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], 1500, 64);
        let dark = Direction { delay: 0, outages: vec![(0, 50)], ..Direction::perfect() };
        let mut a = Cable::new(a, Some(dark.into()), Random::new(1), || NOW.get());
        send(&mut a, b"lost");
        NOW.set(NOW.get() + 50);
        send(&mut a, b"kept");
        assert_eq!(take(&mut b), [b"kept"]);
        assert_eq!(a.tallies()[0].lost, 1);
    }
}
