//! Pseudo-random numbers from a seed.
//!
//! The sequence of a seed never changes, for any of these generators. So a seed that was recorded
//! repeats its failure for ever. The tests hold known values of each. None is fit for secrets.
//!
//! Take [`Random`], unless its four words of state or its ten instructions a number are too much,
//! or a recorded seed belongs to another generator.

/// xoshiro256** (Blackman and Vigna, 2018), seeded by [`SplitMix64`].
#[derive(Clone, Debug)]
pub struct Random {
    state: [u64; 4],
}

impl Random {
    /// The generator of this seed.
    pub fn new(seed: u64) -> Self {
        let mut seeds = SplitMix64::new(seed);
        Self { state: [seeds.word(), seeds.word(), seeds.word(), seeds.word()] }
    }

    /// A generator for one part of a system: what other parts draw does not shift its sequence.
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

    /// One of `choices`.
    ///
    /// # Panics
    /// If `choices` is empty.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.index(choices.len())]
    }
}

/// SplitMix64 (Steele, Lea and Flood, 2014): any seed is a good one, zero included.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// The generator of this seed.
    #[inline]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 64 random bits.
    #[inline]
    pub const fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// xorshift64 (Marsaglia, 2003): the cheapest. The lowest bits of its numbers are weak, and a seed
/// of zero yields zeros only.
#[derive(Clone, Debug)]
pub struct XorShift64(u64);

impl XorShift64 {
    /// The generator of this seed, which must not be zero.
    #[inline]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 64 random bits, never all zero.
    #[inline]
    pub const fn word(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// xorshift64* (Vigna, 2016): two instructions more than [`XorShift64`], and good bits throughout.
#[derive(Clone, Debug)]
pub struct XorShift64Star(u64);

impl XorShift64Star {
    /// The generator of this seed. The lowest bit does not count: it is set, so that the state is
    /// not zero.
    #[inline]
    pub const fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// 64 random bits.
    #[inline]
    pub const fn word(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

#[cfg(test)]
mod tests;
