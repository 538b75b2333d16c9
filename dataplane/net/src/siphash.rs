//! SipHash (Aumasson and Bernstein, 2012): a keyed hash that a peer cannot aim.
//!
//! 1. The 128-bit key and four constants fill four words of state.
//! 2. Each 64-bit word of the message is mixed in with `C` rounds, the last word carrying the
//!    length.
//! 3. `D` rounds finish it.
//!
//! SipHash-2-4 makes initial sequence numbers (RFC 6528), where a guess costs a connection.
//! SipHash-1-3 places flows in the flow table, where a guess costs only a longer probe.

/// A secret key.
#[derive(Clone, Copy)]
pub(crate) struct Key {
    low: u64,
    high: u64,
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(..)")
    }
}

impl Key {
    /// The key with these 16 secret bytes.
    pub(crate) const fn new(secret: [u8; 16]) -> Self {
        let wide = u128::from_le_bytes(secret);
        Self { low: wide as u64, high: (wide >> 64) as u64 }
    }

    /// SipHash-2-4 of words of eight bytes.
    pub(crate) fn hash_words(&self, words: &[u64]) -> u64 {
        let mut state = State::new(self);
        for &word in words {
            state.absorb::<2>(word);
        }
        state.absorb::<2>((words.len() as u64 * 8) << 56);
        state.finish::<4>()
    }

    /// SipHash-1-3 of three words of eight bytes.
    #[inline]
    pub(crate) fn hash_triple(&self, words: [u64; 3]) -> u64 {
        let mut state = State::new(self);
        for word in words {
            state.absorb::<1>(word);
        }
        state.absorb::<1>(24 << 56);
        state.finish::<3>()
    }

    /// SipHash-1-3 of one word of eight bytes.
    #[inline]
    pub(crate) fn hash_word(&self, word: u64) -> u64 {
        let mut state = State::new(self);
        state.absorb::<1>(word);
        state.absorb::<1>(8 << 56);
        state.finish::<3>()
    }
}

struct State([u64; 4]);

impl State {
    #[inline]
    fn new(key: &Key) -> Self {
        Self([
            key.low ^ 0x736f_6d65_7073_6575,
            key.high ^ 0x646f_7261_6e64_6f6d,
            key.low ^ 0x6c79_6765_6e65_7261,
            key.high ^ 0x7465_6462_7974_6573,
        ])
    }

    #[inline]
    fn round(&mut self) {
        let [a, b, c, d] = &mut self.0;
        *a = a.wrapping_add(*b);
        *c = c.wrapping_add(*d);
        *b = b.rotate_left(13) ^ *a;
        *d = d.rotate_left(16) ^ *c;
        *a = a.rotate_left(32);
        *c = c.wrapping_add(*b);
        *a = a.wrapping_add(*d);
        *b = b.rotate_left(17) ^ *c;
        *d = d.rotate_left(21) ^ *a;
        *c = c.rotate_left(32);
    }

    #[inline]
    fn absorb<const C: usize>(&mut self, word: u64) {
        self.0[3] ^= word;
        for _ in 0..C {
            self.round();
        }
        self.0[0] ^= word;
    }

    #[inline]
    fn finish<const D: usize>(mut self) -> u64 {
        self.0[2] ^= 0xff;
        for _ in 0..D {
            self.round();
        }
        self.0[0] ^ self.0[1] ^ self.0[2] ^ self.0[3]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counting_key() -> Key {
        Key::new([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15])
    }

    #[test]
    fn agrees_with_the_papers_vectors() {
        // Appendix A of the paper hashes fifteen bytes; the authors' vectors have sixteen bytes and
        // none.
        let mut state = State::new(&counting_key());
        state.absorb::<2>(0x0706_0504_0302_0100);
        state.absorb::<2>(0x0f0e_0d0c_0b0a_0908);
        assert_eq!(state.finish::<4>(), 0xa129_ca61_49be_45e5, "the last word carries length 15");
        let mut empty = State::new(&counting_key());
        empty.absorb::<2>(0);
        assert_eq!(empty.finish::<4>(), 0x726f_db47_dd0e_0e31);
    }
}
