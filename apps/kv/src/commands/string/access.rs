//! Functions shared by the commands of strings: a value that must be a string, bounds, ranges.

use crate::commands::context::{Context, Outcome};
use crate::data::value::{StringRef, ValueRef};
use crate::foundation::protocol::Fault;

/// The string in a value.
#[inline]
pub(super) fn string(value: Option<ValueRef<'_>>) -> Result<Option<StringRef<'_>>, Fault> {
    match value {
        None => Ok(None),
        Some(ValueRef::String(string)) => Ok(Some(string)),
        Some(_) => Err(Fault::WRONG_TYPE),
    }
}

/// Refuses a string that would be longer than an argument may be.
pub(super) fn check_length(context: &Context<'_>, length: u64) -> Outcome {
    if length > context.data.longest_string() {
        return Err(Fault::TOO_LONG);
    }
    Ok(())
}

/// The part of `length` bytes that a start and an end (inclusive, negative from the end) name.
pub(super) fn clamp_range(start: i64, end: i64, length: usize) -> std::ops::Range<usize> {
    let length = length as i64;
    let from_end = |at: i64| if at < 0 { (length + at).max(0) } else { at };
    if start < 0 && end < 0 && start > end {
        return 0..0;
    }
    let start = from_end(start);
    let end = from_end(end).min(length - 1);
    if start > end || length == 0 { 0..0 } else { start as usize..end as usize + 1 }
}
