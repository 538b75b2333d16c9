//! The generator's random numbers. A seed's programs never change, so a seed that failed once stays
//! a regression test.

use sietch_structures::SplitMix64;

/// Pseudo-random draws from a seed.
#[derive(Clone, Debug)]
pub(super) struct Random(SplitMix64);

impl Random {
    /// Draws that depend on `seed` alone.
    pub(super) fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    /// The next number.
    pub(super) fn number(&mut self) -> u64 {
        self.0.word()
    }

    /// A number below `bound`, which is not 0.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound.max(1)).unwrap_or(1);
        usize::try_from(self.number() % bound).unwrap_or(0)
    }

    /// True in `percent` of 100 cases.
    pub(super) fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// One of a list that is not empty.
    pub(super) fn one<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }
}
