//! Reading fields of a frame, and what both versions of IP check alike.

use std::ops::RangeInclusive;

use crate::xdp::Reason;

pub(super) type Verdict = Result<(), Reason>;

#[inline]
pub(super) fn ensure(holds: bool, reason: Reason) -> Verdict {
    if holds { Ok(()) } else { Err(reason) }
}

#[inline]
pub(super) fn chunk<const SIZE: usize>(
    bytes: &[u8],
    at: usize,
    reason: Reason,
) -> Result<[u8; SIZE], Reason> {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().ok_or(reason)
}

#[inline]
pub(super) fn be16(bytes: &[u8], at: usize, reason: Reason) -> Result<u16, Reason> {
    chunk(bytes, at, reason).map(u16::from_be_bytes)
}

#[inline]
pub(super) fn granted(ranges: &[RangeInclusive<u16>], head: &[u8], at: usize) -> Verdict {
    let port = be16(head, at, Reason::Header)?;
    ensure(ranges.iter().any(|range| range.contains(&port)), Reason::Port)
}
