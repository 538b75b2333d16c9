//! The payload of streams.

/// The byte at a position of a stream. The first byte is at 1, because the SYN is at 0.
pub(super) fn byte_at(position: u64) -> u8 {
    (position.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}
