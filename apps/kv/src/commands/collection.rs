//! Functions shared by the commands of lists, sets, hashes and sorted sets: values of an expected
//! type, ranges of ranks, arguments with bounds.

use crate::data::keyspace::Data;
use crate::data::value::Collection;
use crate::foundation::command::integer;
use crate::foundation::protocol::Fault;

/// Most elements that a reply with repetitions (a negative count of SRANDMEMBER and similar
/// commands) may have. The server does nothing else while it writes them.
pub(super) const MOST_REPEATED: u64 = 1 << 24;

/// Longest collection that is gathered for such a reply: no packed one has more elements.
const MOST_GATHERED: usize = 512;

/// The collection at `key`, if there is one, to be read.
///
/// # Errors
/// [`Fault::WRONG_TYPE`].
pub(super) fn read<'a, T: Collection>(
    data: &'a mut Data<'_>,
    key: &[u8],
) -> Result<Option<T::View<'a>>, Fault> {
    match data.read(key) {
        Some(value) => T::of(value).map(Some).ok_or(Fault::WRONG_TYPE),
        None => Ok(None),
    }
}

/// An integer of at least `minimum`; `fault` is for everything else.
///
/// # Errors
/// `fault`.
pub(super) fn at_least(argument: &[u8], minimum: i64, fault: &'static str) -> Result<usize, Fault> {
    match integer(argument) {
        Ok(value) if value >= minimum => Ok(value as usize),
        _ => Err(Fault::of(fault)),
    }
}

/// A count that must not be negative.
///
/// # Errors
/// The argument is no integer, or negative.
pub(super) fn count(argument: &[u8]) -> Result<usize, Fault> {
    at_least(argument, 0, "ERR value is out of range, must be positive")
}

/// The count of a command that picks random elements: how many, and whether they are distinct.
///
/// # Errors
/// The argument is no integer, or asks for more than [`MOST_REPEATED`] repeated elements.
pub(super) fn random_count(argument: &[u8]) -> Result<(usize, bool), Fault> {
    let value = integer(argument)?;
    if value == i64::MIN {
        return Err(Fault::of(
            "ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807",
        ));
    }
    if value < 0 && value.unsigned_abs() > MOST_REPEATED {
        return Err(Fault::of("ERR value is out of range"));
    }
    Ok((value.unsigned_abs() as usize, value >= 0))
}

/// The range from `start` to `end` (inclusive; negative ones count from the end) of `len` elements:
/// first and count.
pub(super) fn span(start: i64, end: i64, len: usize) -> (usize, usize) {
    let len = len as i64;
    let from_end = |at: i64| if at < 0 { at.saturating_add(len) } else { at };
    let (start, end) = (from_end(start).max(0), from_end(end).min(len - 1));
    if start > end || start >= len { (0, 0) } else { (start as usize, (end - start + 1) as usize) }
}

/// Whether to gather all `len` elements before `many` random ones are repeated. In a packed
/// collection each random element is found by walking on average half of it, so that a reply of
/// [`MOST_REPEATED`] elements would take ten seconds.
pub(super) fn gathers(len: usize, many: usize) -> bool {
    len <= many.min(MOST_GATHERED)
}

/// `many` random elements of `all`, with repetitions.
pub(super) fn repeated<'a, T>(
    all: &'a [T],
    many: usize,
    next: &mut dyn FnMut() -> u64,
) -> impl Iterator<Item = &'a T> {
    (0..many).filter_map(move |_| all.get((next() % all.len().max(1) as u64) as usize))
}

/// `many` distinct numbers below `range`, in no particular order; all of them if there are not
/// more.
pub(super) fn distinct(range: usize, many: usize, next: &mut dyn FnMut() -> u64) -> Vec<usize> {
    // Floyd's algorithm: every subset is equally probable, and nothing is tried twice.
    let many = many.min(range);
    let mut chosen = std::collections::HashSet::with_capacity(many);
    let mut order = Vec::with_capacity(many);
    for top in range - many..range {
        let pick = (next() % (top as u64 + 1)) as usize;
        let pick = if chosen.insert(pick) { pick } else { top };
        chosen.insert(pick);
        order.push(pick);
    }
    order
}
