//! Pseudo-random numbers from a seed: xoshiro256** (Blackman and Vigna, 2018), seeded by
//! splitmix64.
//!
//! The sequence of a seed never changes: a regression seed stays one.

/// A seeded generator. Not for secrets.
#[derive(Debug, Clone)]
pub struct Random {
    state: [u64; 4],
}

impl Random {
    /// The generator of this seed.
    pub fn new(seed: u64) -> Self {
        let mut word = seed;
        let mut next = || {
            word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ (mixed >> 31)
        };
        Self { state: [next(), next(), next(), next()] }
    }

    /// A generator of its own for one part of a system, so that what another part draws does not
    /// shift it.
    pub fn fork(&mut self) -> Self {
        Self::new(self.word())
    }

    /// 64 random bits.
    pub fn word(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let result = b.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let (c, d) = (c ^ a, d ^ b);
        self.state = [a ^ d, b ^ c, c ^ (b << 17), d.rotate_left(45)];
        result
    }

    /// A number below `bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The high half of the product is uniform but for a bias under 2^-32 for the bounds in use.
        ((u128::from(self.word()) * u128::from(bound)) >> 64) as u64
    }

    /// An index below `bound`; 0 if `bound` is 0.
    pub fn index(&mut self, bound: usize) -> usize {
        self.below(bound as u64) as usize
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low).saturating_add(1))
    }

    /// True in `permille` of 1000 draws.
    pub fn chance(&mut self, permille: u32) -> bool {
        self.below(1000) < u64::from(permille)
    }

    /// Fills `bytes`.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.word().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }

    /// One of `choices`, which is not empty.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.index(choices.len())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_itself_and_another_differs() {
        let draw = |seed| {
            let mut random = Random::new(seed);
            (0..8).map(|_| random.word()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn draws_stay_in_their_bounds_and_reach_them() {
        let mut random = Random::new(1);
        let draws: Vec<u64> = (0..1000).map(|_| random.between(3, 6)).collect();
        for value in 3..=6 {
            assert!(draws.contains(&value));
        }
        assert!(draws.iter().all(|draw| (3..=6).contains(draw)));
        let hits = (0..10_000).filter(|_| random.chance(100)).count();
        assert!((800..1200).contains(&hits), "{hits} of 10000 at 100 permille");
    }
}
