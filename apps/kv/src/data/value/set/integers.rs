//! Sorted integers behind the header of a [`Packed`], all as wide as the widest needs: 2, 4 or 8
//! bytes, as in an intset of Redis.
//!
//! A search takes O(log n). An insertion moves the integers behind it, and the first one that needs
//! more bytes makes all of them wider. The width is in the header's content, which such a set does
//! not need. It never shrinks.

use crate::data::value::packed::{HEADER, Packed, PackedRef};

/// The kind of a [`Packed`] of integers.
pub(super) const KIND: u8 = 1;

/// Bytes of an integer; 0 before the first.
fn width(set: PackedRef<'_>) -> usize {
    set.content()
}

fn width_of(integer: i64) -> usize {
    if i16::try_from(integer).is_ok() {
        2
    } else if i32::try_from(integer).is_ok() {
        4
    } else {
        8
    }
}

/// The integer number `position`, which exists.
pub(super) fn get(set: PackedRef<'_>, position: usize) -> i64 {
    let width = width(set);
    let bytes = &set.bytes()[HEADER + position * width..][..width];
    match *bytes {
        [a, b] => i64::from(i16::from_le_bytes([a, b])),
        [a, b, c, d] => i64::from(i32::from_le_bytes([a, b, c, d])),
        _ => bytes.first_chunk().map_or(0, |bytes| i64::from_le_bytes(*bytes)),
    }
}

fn put(set: &mut Packed, position: usize, integer: i64) {
    let width = width(set.view());
    set.bytes_mut()[HEADER + position * width..][..width].copy_from_slice(&integer.to_le_bytes()[..width]);
}

/// Where an integer is, or where it would be.
pub(super) fn find(set: PackedRef<'_>, integer: i64) -> Result<usize, usize> {
    let (mut low, mut high) = (0, set.len());
    // Integers often arrive in order.
    if high > 0 && get(set, high - 1) < integer {
        return Err(high);
    }
    while low < high {
        let middle = low.midpoint(high);
        match get(set, middle).cmp(&integer) {
            std::cmp::Ordering::Equal => return Ok(middle),
            std::cmp::Ordering::Less => low = middle + 1,
            std::cmp::Ordering::Greater => high = middle,
        }
    }
    Err(low)
}

/// Puts an integer in at the position that [`find`] returned.
pub(super) fn insert(set: &mut Packed, position: usize, integer: i64) {
    if width_of(integer) > width(set.view()) {
        widen(set, width_of(integer));
    }
    let width = width(set.view());
    set.resize(HEADER + position * width, 0, width);
    set.count(1, 0);
    put(set, position, integer);
}

/// Makes all integers wider.
fn widen(set: &mut Packed, width: usize) {
    let all: Vec<i64> = iter(set.view()).collect();
    let old = self::width(set.view());
    set.resize(HEADER, all.len() * old, all.len() * width);
    set.count(0, width as isize - old as isize);
    for (position, integer) in all.into_iter().enumerate() {
        put(set, position, integer);
    }
}

/// Takes the integer at a position out.
pub(super) fn remove(set: &mut Packed, position: usize) {
    let width = width(set.view());
    set.resize(HEADER + position * width, width, 0);
    set.count(-1, 0);
}

/// The least and the greatest, if there are any.
pub(super) fn ends(set: PackedRef<'_>) -> Option<(i64, i64)> {
    let last = set.len().checked_sub(1)?;
    Some((get(set, 0), get(set, last)))
}

/// All integers in order.
pub(super) fn iter(set: PackedRef<'_>) -> impl Iterator<Item = i64> {
    (0..set.len()).map(move |position| get(set, position))
}
