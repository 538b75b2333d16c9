//! A real queue with a bad cable: loses, repeats and reorders frames in both directions, by a seed.
//!
//! 1. The buffer of a lost frame returns to the pool; a repeated frame is copied into a fresh
//!    buffer of the pool.
//! 2. A reordered frame is held back until the next one in its direction has passed. At the latest
//!    it is released at the next call that finds no frame to overtake it. So no frame is held for
//!    ever.

use std::io;

use sietch_nic::{Frame, NicQueue, Offloads, TransmitError, Untrusted};

use crate::Random;

/// The faults of a [`Lossy`], in permille of frames of each direction.
#[derive(Debug, Clone, Copy)]
pub struct Rates {
    /// Frames lost.
    pub loss: u32,
    /// Frames passed on twice.
    pub duplication: u32,
    /// Frames that the next one overtakes.
    pub reordering: u32,
}

/// The counters of a [`Lossy`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Done {
    /// Frames lost.
    pub lost: u64,
    /// Frames passed on twice.
    pub duplicated: u64,
    /// Frames overtaken.
    pub reordered: u64,
}

/// A queue behind a bad cable.
#[derive(Debug)]
pub struct Lossy<Q: NicQueue> {
    inner: Q,
    rates: Rates,
    random: Random,
    arrived: Vec<Frame>,
    held_receive: Option<Frame>,
    held_transmit: Option<Frame>,
    /// The counters so far.
    pub done: Done,
}

impl<Q: NicQueue> Lossy<Q> {
    /// Puts `inner` behind a cable with these rates.
    pub fn new(inner: Q, rates: Rates, random: Random) -> Self {
        let (arrived, done) = (Vec::new(), Done::default());
        Self { inner, rates, random, arrived, held_receive: None, held_transmit: None, done }
    }

    /// The queue itself.
    pub fn inner(&self) -> &Q {
        &self.inner
    }

    /// The queue itself, mutable.
    pub fn inner_mut(&mut self) -> &mut Q {
        &mut self.inner
    }

    fn copy(&mut self, frame: &Frame) -> Option<Frame> {
        let mut copy = self.inner.allocate(frame.len())?;
        let bytes = [self.inner.bytes(frame).to_vec(), self.inner.tail(frame).to_vec()].concat();
        self.inner.bytes_mut(&mut copy).copy_from_slice(&bytes);
        Some(copy)
    }

    fn pass(&mut self, frame: Frame) -> Result<(), TransmitError> {
        self.inner.transmit(frame)
    }
}

impl<Q: NicQueue> NicQueue for Lossy<Q> {
    fn mac(&self) -> [u8; 6] {
        self.inner.mac()
    }

    fn mtu(&self) -> usize {
        self.inner.mtu()
    }

    fn receive(&mut self, out: &mut Vec<Frame>, limit: usize) -> usize {
        let before = out.len();
        let mut arrived = std::mem::take(&mut self.arrived);
        self.inner.receive(&mut arrived, limit);
        for frame in arrived.drain(..) {
            if self.random.chance(self.rates.loss) {
                self.done.lost += 1;
                self.inner.release(frame);
            } else if self.held_receive.is_none() && self.random.chance(self.rates.reordering) {
                self.done.reordered += 1;
                self.held_receive = Some(frame);
            } else {
                if self.random.chance(self.rates.duplication)
                    && let Some(copy) = self.copy(&frame)
                {
                    self.done.duplicated += 1;
                    out.push(copy);
                }
                out.push(frame);
                out.extend(self.held_receive.take());
            }
        }
        if out.len() == before {
            out.extend(self.held_receive.take());
        }
        self.arrived = arrived;
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
        if self.random.chance(self.rates.loss) {
            self.done.lost += 1;
            self.inner.release(frame);
            return Ok(());
        }
        if self.held_transmit.is_none() && self.random.chance(self.rates.reordering) {
            self.done.reordered += 1;
            self.held_transmit = Some(frame);
            return Ok(());
        }
        if self.random.chance(self.rates.duplication)
            && let Some(copy) = self.copy(&frame)
        {
            self.done.duplicated += 1;
            if let Err(full) = self.pass(copy) {
                self.inner.release(full.into_frame());
            }
        }
        self.pass(frame)?;
        if let Some(held) = self.held_transmit.take()
            && let Err(full) = self.pass(held)
        {
            self.inner.release(full.into_frame());
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        if let Some(held) = self.held_transmit.take()
            && let Err(full) = self.pass(held)
        {
            self.inner.release(full.into_frame());
        }
        self.inner.flush()
    }

    fn free_buffers(&self) -> usize {
        self.inner.free_buffers()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sietch_nic::wire::pair;

    #[test]
    fn frames_are_lost_repeated_and_overtaken_and_no_buffer_leaks() {
        let (a, mut b) = pair([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], 1500, 64);
        let rates = Rates { loss: 100, duplication: 100, reordering: 200 };
        let mut a = Lossy::new(a, rates, Random::new(5));
        let free = (a.free_buffers(), b.free_buffers());
        let (mut seen, mut frames) = (Vec::new(), Vec::new());
        for number in 0..1000_u32 {
            let mut frame = a.allocate(4).unwrap();
            a.bytes_mut(&mut frame).copy_from_slice(&number.to_be_bytes());
            a.transmit(frame).unwrap();
            if number % 8 == 7 {
                a.flush().unwrap();
                b.receive(&mut frames, 64);
                for frame in frames.drain(..) {
                    seen.push(u32::from_be_bytes(b.bytes(&frame).try_into().unwrap()));
                    b.release(frame);
                }
                a.receive(&mut frames, 64);
            }
        }
        assert!(a.done.lost > 50 && a.done.duplicated > 50 && a.done.reordered > 100, "{:?}", a.done);
        assert_eq!(seen.len() as u64, 1000 - a.done.lost + a.done.duplicated);
        assert!(!seen.is_sorted());
        assert_eq!((a.free_buffers(), b.free_buffers()), free);
    }
}
