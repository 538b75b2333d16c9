//! The Internet checksum (RFC 1071).
//!
//! 1. The ones' complement sum does not depend on byte order (section 2 B). So words are added in
//!    the machine's own order and the result is stored in it.
//! 2. 32-bit words are added into 64-bit lanes: no carry is lost in a frame of any size, and the
//!    compiler turns the loop into vector instructions.
//! 3. Carries are folded once, at the end.

use super::Address;

/// Adds up `bytes`, padded with a zero byte to an even length. Not folded.
#[inline]
pub fn sum(bytes: &[u8]) -> u64 {
    let mut lanes = [0u64; 4];
    let (chunks, rest) = bytes.as_chunks::<16>();
    for chunk in chunks {
        let (words, _) = chunk.as_chunks::<4>();
        for (lane, word) in lanes.iter_mut().zip(words) {
            *lane += u64::from(u32::from_ne_bytes(*word));
        }
    }
    lanes.iter().sum::<u64>() + sum_rest(rest)
}

/// [`sum`] of a header of five words.
#[inline]
pub fn sum_header(header: &[u8; 20]) -> u64 {
    let (words, _) = header.as_chunks::<4>();
    words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum()
}

#[inline]
fn sum_rest(rest: &[u8]) -> u64 {
    let mut total = 0;
    let (pairs, odd) = rest.as_chunks::<2>();
    for pair in pairs {
        total += u64::from(u16::from_ne_bytes(*pair));
    }
    if let [last] = odd {
        total += u64::from(u16::from_ne_bytes([*last, 0]));
    }
    total
}

/// Copies `from` into `to` (of the same length) and returns [`sum`] of it, touching each byte once.
///
/// # Panics
/// If the lengths differ.
#[inline]
pub(crate) fn copy_and_sum(to: &mut [u8], from: &[u8]) -> u64 {
    assert_eq!(to.len(), from.len());
    let mut lanes = [0u64; 4];
    let (targets, target_rest) = to.as_chunks_mut::<16>();
    let (chunks, rest) = from.as_chunks::<16>();
    for (target, chunk) in targets.iter_mut().zip(chunks) {
        *target = *chunk;
        let (words, _) = chunk.as_chunks::<4>();
        for (lane, word) in lanes.iter_mut().zip(words) {
            *lane += u64::from(u32::from_ne_bytes(*word));
        }
    }
    target_rest.copy_from_slice(rest);
    lanes.iter().sum::<u64>() + sum_rest(rest)
}

/// Folds a sum into sixteen bits.
#[inline]
pub const fn fold(sum: u64) -> u16 {
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    sum as u16
}

/// The sum of two neighbours in a message, of which the first has `first_length` bytes.
#[inline]
pub const fn join(first: u64, first_length: usize, second: u64) -> u64 {
    if first_length.is_multiple_of(2) { first + second } else { first + fold(second).swap_bytes() as u64 }
}

/// The checksum field, in memory order, for a message with this sum.
#[inline]
pub const fn finish(sum: u64) -> [u8; 2] {
    (!fold(sum)).to_ne_bytes()
}

/// Whether a message that includes its checksum field, and has this sum, is whole.
#[inline]
pub const fn is_valid(sum: u64) -> bool {
    fold(sum) == 0xffff
}

/// The pseudo-header's sum (RFC 9293 section 3.1, RFC 768, RFC 8200 section 8.1). The two mapped
/// IPv4 addresses add `0xffff` each, which is nothing in ones' complement.
#[inline]
pub fn pseudo_header(source: &Address, destination: &Address, protocol: u8, length: u32) -> u64 {
    sum_words(source.octets())
        + sum_words(destination.octets())
        + u64::from(u32::from_ne_bytes([0, 0, 0, protocol]))
        + u64::from(u32::from_ne_bytes(length.to_be_bytes()))
}

#[inline]
fn sum_words(bytes: &[u8; 16]) -> u64 {
    let (words, _) = bytes.as_chunks::<4>();
    words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum()
}
