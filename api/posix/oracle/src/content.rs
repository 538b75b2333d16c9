//! The bytes that steps send, and the hash that represents received bytes in a result.
//!
//! The bytes depend on the step, or for `fill` on the position in the stream. A lost, duplicated or
//! reordered byte therefore changes the hash.

/// The bytes that step `index` sends.
pub(crate) fn of_step(index: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| u8::try_from((index * 31 + at * 7 + (at >> 8)) % 251).unwrap_or(0)).collect()
}

/// The bytes that `fill` sends at position `at` of the stream.
pub(crate) fn of_stream(at: usize, length: usize) -> Vec<u8> {
    (at..at + length).map(|at| u8::try_from((at * 13 + (at >> 9)) % 253).unwrap_or(0)).collect()
}

/// FNV-1a over all parts, its upper half.
pub(crate) fn hash(parts: &[&[u8]]) -> String {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in parts.iter().flat_map(|part| part.iter()) {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    }
    format!("{:08x}", hash >> 32)
}
