//! CRC32C (Castagnoli, RFC 3720 appendix B.4), the checksum of every format of the project.
//!
//! With `--cfg fuzzing` every checksum is 0, for writers and readers alike. So a fuzzer reaches
//! what is behind a checksum; that checksums are compared is tested elsewhere (`cargo xtask
//! mutations`).

use crc_fast::{CrcAlgorithm, Digest};

/// The checksum of `bytes`.
#[inline]
pub fn crc32c(bytes: &[u8]) -> u32 {
    narrow(crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes))
}

/// The checksum of `bytes` from the state `seed`, which names the place that they are for: the same
/// bytes elsewhere have another.
#[inline]
pub fn crc32c_from(seed: u32, bytes: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(seed));
    digest.update(bytes);
    narrow(digest.finalize())
}

/// The checksum of bytes that come in pieces.
#[derive(Debug)]
pub struct Crc32c(Digest);

impl Default for Crc32c {
    fn default() -> Self {
        Self(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }
}

impl Crc32c {
    /// Adds the next piece.
    #[inline]
    pub fn update(&mut self, piece: &[u8]) {
        self.0.update(piece);
    }

    /// The checksum of all pieces so far.
    #[inline]
    pub fn finish(&self) -> u32 {
        narrow(self.0.finalize())
    }
}

/// A CRC of 32 bits comes as 64.
#[inline]
const fn narrow(sum: u64) -> u32 {
    if cfg!(fuzzing) { 0 } else { sum as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 3720 appendix B.4: 32 bytes of zeros, and of ones; and the usual check of nine digits.
    #[test]
    fn known_values() {
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn pieces_have_the_checksum_of_the_whole_and_another_seed_another_one() {
        let mut pieces = Crc32c::default();
        pieces.update(b"1234");
        pieces.update(b"56789");
        assert_eq!(pieces.finish(), crc32c(b"123456789"));
        assert_ne!(crc32c_from(1, b"123456789"), crc32c_from(2, b"123456789"));
    }
}
