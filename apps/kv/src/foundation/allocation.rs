//! Bytes that the allocator takes for an allocation.

/// Bytes from which on the allocator maps pages of their own for an allocation.
const MAPPED: usize = 128 << 10;
/// Bytes of a page.
const PAGE: usize = 4096;

/// Bytes that an allocation of `length` bytes takes with glibc's allocator: a header of a word,
/// rounded up to 16 bytes and to 32 at least; pages for a large one.
pub(crate) fn allocation(length: usize) -> usize {
    match length {
        0 => 0,
        1..MAPPED => (length + 8).next_multiple_of(16).max(32),
        _ => length.saturating_add(16).next_multiple_of(PAGE),
    }
}
