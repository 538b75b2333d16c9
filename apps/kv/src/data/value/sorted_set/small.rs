//! A small sorted set: names and scores in turn, in order.
//!
//! A whole score is an integer entry: one to nine bytes, as its value needs. Any other score is a
//! string entry of its eight bytes.

use crate::data::value::counted_tree::compare;
use crate::data::value::packed::{Content, Encoded, Packed, PackedRef, read};
use crate::data::value::size::argument;

/// Whole scores up to here are exact as integers and as doubles.
const WHOLE: f64 = (1u64 << 53) as f64;

/// Characters of the longest score: a sign, 17 digits, a point and an exponent.
const LONGEST_SCORE: usize = 24;

/// Bytes of a score in an effect, at most: whole scores are as long as they are, with a sign.
pub(super) fn score_bytes(score: f64) -> usize {
    let whole = score.trunc() == score && score.abs() < 1e16;
    argument(if whole {
        crate::foundation::text::number::digits(score.abs() as u64) + 1
    } else {
        LONGEST_SCORE
    })
}

/// Bytes of a member in effects, at most.
pub(super) fn member_content(name: &[u8], score: f64) -> usize {
    argument(name.len()) + score_bytes(score)
}

/// A member of a packed set.
pub(super) struct Member<'a> {
    /// Where it is.
    pub at: usize,
    /// Where it ends.
    pub end: usize,
    /// Its name.
    pub name: Content<'a>,
    /// Its score.
    pub score: f64,
}

/// The score that an entry holds.
pub(super) fn score_of(content: Content<'_>) -> f64 {
    match content {
        Content::Integer(score) => score as f64,
        Content::Bytes(bytes) => bytes.first_chunk().map_or(0.0, |bytes| f64::from_le_bytes(*bytes)),
    }
}

/// The member at `at`.
pub(super) fn read_member(bytes: &[u8], at: usize) -> Member<'_> {
    let (name, score_at) = read(bytes, at);
    let (score, end) = read(bytes, score_at);
    Member { at, end, name, score: score_of(score) }
}

/// All members.
pub(super) fn members<'a>(packed: PackedRef<'a>) -> impl Iterator<Item = Member<'a>> {
    let mut at = packed.start();
    std::iter::from_fn(move || {
        (at < packed.end()).then(|| {
            let member = read_member(packed.bytes(), at);
            at = member.end;
            member
        })
    })
}

/// Puts a member in, which must not be there.
pub(super) fn insert(packed: &mut Packed, name: &[u8], score: f64) {
    let raw = score.to_le_bytes();
    let whole = score.trunc() == score && score.abs() <= WHOLE;
    let entry = if whole { Encoded::integer(score as i64) } else { Encoded::string(&raw) };
    let behind = |member: &Member<'_>| {
        member.score > score
            || member.score == score && compare((member.score, &member.name.text()), (score, name)).is_gt()
    };
    let at = members(packed.view()).find(behind).map_or(packed.view().end(), |member| member.at);
    packed.splice(at, 0, &[Encoded::new(name), entry]);
    packed.count(1, member_content(name, score) as isize);
}

/// Takes a member out and returns its score.
pub(super) fn remove(packed: &mut Packed, name: &[u8]) -> Option<f64> {
    let at = packed.view().find(&Encoded::new(name), 2)?;
    let Member { end, score, .. } = read_member(packed.view().bytes(), at);
    packed.resize(at, end - at, 0);
    packed.count(-1, -(member_content(name, score) as isize));
    Some(score)
}
