//! Runs of neighbouring chunks, from which frames are sent that no chunk holds.
//!
//! 1. A run is one buffer of a pool of its own, free, the engine's or the kernel's as a whole.
//! 2. It is sent as one descriptor a chunk. The kernel gives each chunk back by itself, in any
//!    order. One bit a chunk says whether it is still in flight; with the last the run is free. A
//!    chunk that is not in flight cannot come back.

use sietch_ring::{BufferPool, MAX_PIECES, Owner};

use super::XskLayout;

const _: () = assert!(MAX_PIECES <= u32::BITS as usize, "a chunk is a bit");

/// The runs of one UMEM.
#[derive(Debug)]
pub(super) struct Runs {
    pool: BufferPool,
    /// For each run, which of its chunks the kernel has.
    away: Box<[u32]>,
    first_chunk: u32,
    chunks: u32,
    chunk_size: u32,
}

impl Runs {
    pub(super) fn new(layout: &XskLayout) -> Self {
        Self {
            pool: BufferPool::new(layout.runs),
            away: vec![0; layout.runs as usize].into_boxed_slice(),
            first_chunk: layout.single_chunks(),
            // Never used to divide by while there are no runs.
            chunks: layout.run_chunks.max(1),
            chunk_size: layout.chunk_size,
        }
    }

    /// Runs without an owner.
    pub(super) fn free(&self) -> usize {
        self.pool.free()
    }

    /// A run to be filled.
    pub(super) fn take(&mut self) -> Option<u32> {
        self.pool.take(Owner::Engine)
    }

    /// Gives a run back unsent. Returns whether it was the engine's.
    #[must_use]
    pub(super) fn put(&mut self, run: u32) -> bool {
        self.pool.put(run, Owner::Engine)
    }

    /// Whether the engine has this run.
    pub(super) fn is_held(&self, run: u32) -> bool {
        self.pool.owner(run) == Some(Owner::Engine)
    }

    /// Bytes in a run.
    pub(super) const fn capacity(&self) -> usize {
        self.chunks as usize * self.chunk_size as usize
    }

    /// Where a run begins in the UMEM.
    pub(super) const fn start(&self, run: u32) -> usize {
        (self.first_chunk as usize + run as usize * self.chunks as usize) * self.chunk_size as usize
    }

    /// Submits the first `chunks` of a run, one at least, to the kernel. Returns whether the run
    /// was the engine's.
    #[must_use]
    pub(super) fn send(&mut self, run: u32, chunks: u32) -> bool {
        if chunks == 0 || chunks > self.chunks || !self.pool.pass(run, Owner::Engine, Owner::Transmit) {
            return false;
        }
        self.away[run as usize] = u32::MAX >> (u32::BITS - chunks);
        true
    }

    /// Takes a chunk back that the kernel has sent. Returns whether it was in flight.
    #[must_use]
    pub(super) fn complete(&mut self, chunk: u32) -> bool {
        let Some(index) = chunk.checked_sub(self.first_chunk) else { return false };
        let (run, bit) = (index / self.chunks, 1 << (index % self.chunks));
        let Some(away) = self.away.get_mut(run as usize).filter(|away| **away & bit != 0) else {
            return false;
        };
        *away &= !bit;
        *away != 0 || self.pool.put(run, Owner::Transmit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs() -> (Runs, XskLayout) {
        let layout = XskLayout::for_mtu(1, 0, 9000).expect("a possible MTU");
        (Runs::new(&layout), layout)
    }

    #[test]
    fn a_run_is_free_when_its_last_chunk_is_back() {
        let (mut runs, layout) = runs();
        let all = runs.free();
        let run = runs.take().expect("a fresh pool");
        let first = layout.single_chunks() + run * layout.run_chunks;
        assert_eq!(runs.start(run), first as usize * 4096);
        assert!(runs.is_held(run) && runs.send(run, 3) && !runs.is_held(run));
        assert!(runs.complete(first + 1) && runs.complete(first));
        assert!(!runs.complete(first), "twice");
        assert_eq!(runs.free(), all - 1);
        assert!(runs.complete(first + 2));
        assert_eq!(runs.free(), all);
        assert!(!runs.complete(first + 2), "it is free");
    }

    #[test]
    fn unsent_chunks_do_not_come_back() {
        let (mut runs, layout) = runs();
        let run = runs.take().expect("a fresh pool");
        assert!(!runs.send(run, 0) && !runs.send(run, 4) && !runs.send(1000, 1));
        assert!(runs.send(run, 1));
        let first = layout.single_chunks() + run * layout.run_chunks;
        for wrong in [0, first - 1, first + 1, first + 2, first + 3, u32::MAX] {
            assert!(!runs.complete(wrong), "{wrong}");
        }
        assert!(!runs.put(run) && runs.complete(first));
    }
}
