//! Ranges of sorted sets: by rank, by score, by name.
//!
//! Every range is converted to a range of ranks first: bounds by score or by name are found in the
//! tree, then an offset and a limit are applied. Ranges by name are defined where all scores are
//! the same.

use super::replies::write_members;
use crate::commands::collection::{read, span};
use crate::commands::context::{Context, Outcome};
use crate::data::keyspace::EffectDetail;
use crate::data::value::{Collection as _, SortedSet, SortedSetRef};
use crate::foundation::command::{integer, is};
use crate::foundation::observation::key_events::class;
use crate::foundation::protocol::Fault;
use crate::foundation::text::number::parse_bound;

/// The kind of the bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Ranks.
    Rank,
    /// Scores.
    Score,
    /// Names.
    Lex,
}

/// The order of the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// Lowest first.
    Forward,
    /// Highest first.
    Reverse,
}

/// A bound by score.
struct Score {
    value: f64,
    exclusive: bool,
}

impl Score {
    fn parse(argument: &[u8]) -> Result<Self, Fault> {
        let (exclusive, number) = match argument {
            [b'(', number @ ..] => (true, number),
            number => (false, number),
        };
        let value = parse_bound(number).ok_or(Fault::of("ERR min or max is not a float"))?;
        Ok(Self { value, exclusive })
    }
}

/// A bound by name.
enum Name<'a> {
    Lowest,
    Highest,
    At { name: &'a [u8], exclusive: bool },
}

impl<'a> Name<'a> {
    fn parse(argument: &'a [u8]) -> Result<Self, Fault> {
        match argument {
            b"-" => Ok(Self::Lowest),
            b"+" => Ok(Self::Highest),
            [b'(', name @ ..] => Ok(Self::At { name, exclusive: true }),
            [b'[', name @ ..] => Ok(Self::At { name, exclusive: false }),
            _ => Err(Fault::of("ERR min or max not valid string range item")),
        }
    }

    /// Whether `other` is below this as lower bound.
    fn above(&self, other: &[u8]) -> bool {
        match self {
            Self::Lowest => false,
            Self::Highest => true,
            Self::At { name, exclusive: true } => other <= *name,
            Self::At { name, exclusive: false } => other < *name,
        }
    }

    /// Whether `other` is not beyond this as upper bound.
    fn allows(&self, other: &[u8]) -> bool {
        match self {
            Self::Lowest => false,
            Self::Highest => true,
            Self::At { name, exclusive: true } => other < *name,
            Self::At { name, exclusive: false } => other <= *name,
        }
    }
}

/// Two bounds of one kind.
enum Bounds<'a> {
    Ranks(i64, i64),
    Scores(Score, Score),
    Names(Name<'a>, Name<'a>),
}

impl<'a> Bounds<'a> {
    fn parse(kind: Kind, from: &'a [u8], to: &'a [u8]) -> Result<Self, Fault> {
        Ok(match kind {
            Kind::Rank => Self::Ranks(integer(from)?, integer(to)?),
            Kind::Score => Self::Scores(Score::parse(from)?, Score::parse(to)?),
            Kind::Lex => Self::Names(Name::parse(from)?, Name::parse(to)?),
        })
    }

    /// The first rank and the number of members, ranks counted in the order of the reply.
    fn ranks(&self, set: SortedSetRef<'_>, direction: Direction) -> (usize, usize) {
        let (first, end) = match self {
            Self::Ranks(start, end) => return span(*start, *end, set.len()),
            Self::Scores(from, to) => (
                set.partition_point(&|score, _| score < from.value || from.exclusive && score <= from.value),
                set.partition_point(&|score, _| score < to.value || !to.exclusive && score <= to.value),
            ),
            Self::Names(from, to) => (
                set.partition_point(&|_, name| from.above(name)),
                set.partition_point(&|_, name| to.allows(name)),
            ),
        };
        let count = end.saturating_sub(first);
        match direction {
            Direction::Forward => (first, count),
            Direction::Reverse => (set.len() - end, count),
        }
    }
}

/// A parsed range command.
struct Request<'a> {
    bounds: Bounds<'a>,
    direction: Direction,
    with_scores: bool,
    offset: i64,
    limit: i64,
}

impl<'a> Request<'a> {
    /// `arguments` start with the two bounds. Kind and direction are options unless the command
    /// implies them.
    fn parse(
        arguments: &[&'a [u8]],
        mut kind: Option<Kind>,
        mut direction: Option<Direction>,
        store: bool,
    ) -> Result<Self, Fault> {
        let (mut with_scores, mut offset, mut limit) = (false, 0, -1);
        let mut rest = &arguments[2..];
        while let [word, tail @ ..] = rest {
            rest = tail;
            match tail {
                _ if !store && is(word, "withscores") => with_scores = true,
                [first, second, after @ ..] if is(word, "limit") => {
                    (offset, limit) = (integer(first)?, integer(second)?);
                    rest = after;
                }
                _ if direction.is_none() && is(word, "rev") => direction = Some(Direction::Reverse),
                _ if kind.is_none() && is(word, "bylex") => kind = Some(Kind::Lex),
                _ if kind.is_none() && is(word, "byscore") => kind = Some(Kind::Score),
                _ => return Err(Fault::SYNTAX),
            }
        }
        let (kind, direction) = (kind.unwrap_or(Kind::Rank), direction.unwrap_or(Direction::Forward));
        if limit != -1 && kind == Kind::Rank {
            return Err(Fault::of(
                "ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX",
            ));
        }
        if with_scores && kind == Kind::Lex {
            return Err(Fault::of("ERR syntax error, WITHSCORES not supported in combination with BYLEX"));
        }
        let swapped = direction == Direction::Reverse && kind != Kind::Rank;
        let (from, to) = if swapped { (arguments[1], arguments[0]) } else { (arguments[0], arguments[1]) };
        let bounds = Bounds::parse(kind, from, to)?;
        Ok(Self { bounds, direction, with_scores, offset, limit })
    }

    /// The first rank and the number of members, in the order of the reply.
    fn ranks(&self, set: SortedSetRef<'_>) -> (usize, usize) {
        let (first, count) = self.bounds.ranks(set, self.direction);
        if matches!(self.bounds, Bounds::Ranks(..)) {
            return (first, count);
        }
        // A negative offset selects nothing; a negative limit is no limit.
        let skip = usize::try_from(self.offset).unwrap_or(usize::MAX).min(count);
        let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
        (first + skip, (count - skip).min(limit))
    }

    fn reverse(&self) -> bool {
        self.direction == Direction::Reverse
    }
}

/// ZRANGE and its variants.
pub(super) fn range(
    context: &mut Context<'_>,
    arguments: &[&[u8]],
    kind: Option<Kind>,
    direction: Option<Direction>,
) -> Outcome {
    let request = Request::parse(&arguments[2..], kind, direction, false)?;
    let Some(set) = read::<SortedSet>(&mut context.data, arguments[1])? else {
        context.reply.array(0);
        return Ok(());
    };
    let (first, count) = request.ranks(set);
    let members = set.range(first, count, request.reverse());
    write_members(&mut context.reply, count, request.with_scores, members);
    Ok(())
}

/// ZRANGESTORE.
pub(super) fn range_store(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let destination = arguments[1];
    let request = Request::parse(&arguments[3..], None, None, true)?;
    let (mut chosen, rules) = (SortedSet::new(), context.data.rules());
    if let Some(set) = read::<SortedSet>(&mut context.data, arguments[2])? {
        let (first, count) = request.ranks(set);
        for (name, score) in set.range(first, count, request.reverse()) {
            chosen.insert(&name, score, &rules);
        }
    }
    store(context, destination, chosen)
}

/// Stores a result at `destination`, and replies with its length.
///
/// # Errors
/// The log's area has no room for it.
pub(super) fn store(context: &mut Context<'_>, destination: &[u8], result: SortedSet) -> Outcome {
    let len = result.view().len();
    if len > 0 {
        let value = result.into_value();
        context.data.admit_value(destination, &value)?;
        context.data.insert(destination, value);
        context.notify(class::SORTED_SET, context.command.spec.name, destination);
        context.data.effect_rebuild(destination);
    } else if context.data.remove(destination).is_some() {
        context.notify(class::GENERIC, "del", destination);
        context.data.effect_delete(destination);
    }
    context.reply.count(len);
    Ok(())
}

/// ZCOUNT and ZLEXCOUNT.
pub(super) fn count(context: &mut Context<'_>, arguments: &[&[u8]], kind: Kind) -> Outcome {
    let bounds = Bounds::parse(kind, arguments[2], arguments[3])?;
    let set = read::<SortedSet>(&mut context.data, arguments[1])?;
    context.reply.count(set.map_or(0, |set| bounds.ranks(set, Direction::Forward).1));
    Ok(())
}

/// ZREMRANGEBYRANK, ZREMRANGEBYSCORE and ZREMRANGEBYLEX.
pub(super) fn remove(context: &mut Context<'_>, arguments: &[&[u8]], kind: Kind) -> Outcome {
    let key = arguments[1];
    let bounds = Bounds::parse(kind, arguments[2], arguments[3])?;
    let (mut removed, mut start) = (Vec::new(), 0);
    if let Some(mut set) = context.data.write::<SortedSet>(key)? {
        let (first, count) = bounds.ranks(set.view(), Direction::Forward);
        (removed, start) = (set.remove_range(first, count), first);
    }
    if !removed.is_empty() {
        context.notify(class::SORTED_SET, context.command.spec.name, key);
        context.data.changed(key);
        let detail = EffectDetail::Members(&removed);
        if kind == Kind::Lex {
            // Where scores differ, names are in no order, and what is between two of them depends
            // on how the set was built. Ranks do not.
            let (first, last) = (start.to_string(), (start + removed.len() - 1).to_string());
            let effect: [&[u8]; 4] = [b"ZREMRANGEBYRANK", key, first.as_bytes(), last.as_bytes()];
            context.data.effect_detail(&effect, &detail);
        } else {
            context.data.effect_detail(arguments, &detail);
        }
    }
    context.reply.count(removed.len());
    Ok(())
}
