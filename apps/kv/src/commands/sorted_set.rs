//! Sorted sets: members and scores. Ranges, pops, and operations on several sets are in
//! `sorted_set/`.

use super::collection::{distinct, gathers, random_count, read, repeated};
use super::context::{Command, Context, Handler, Outcome};
use super::scan::{Options, cursor};
use crate::data::value::{SortedSet, Text};
use crate::foundation::command::{Flags, Keys, flag, integer, is};
use crate::foundation::observation::key_events::class;
use crate::foundation::protocol::{Fault, Reply};
use crate::foundation::text::number::{DoubleText, format_double, parse_float, print_double};

mod combine;
mod pop;
mod range;
mod replies;

use combine::{Operation, combine};
use range::{Direction, Kind};
use replies::write_members;

/// Whole scores up to here are shown by ZSCAN as integers in a small set, because Redis keeps them
/// as such.
const SMALL_WHOLE_SCORE: f64 = (i64::MAX / 2) as f64;

const READ: Flags = flag::READONLY;
const READ_FAST: Flags = flag::READONLY.and(flag::FAST);
const WRITE: Flags = flag::WRITE;
const WRITE_FAST: Flags = flag::WRITE.and(flag::FAST);
const GROW: Flags = flag::WRITE.and(flag::DENY_OOM);
const GROW_FAST: Flags = GROW.and(flag::FAST);
const READ_MOVABLE: Flags = flag::READONLY.and(flag::MOVABLE_KEYS);
const GROW_MOVABLE: Flags = GROW.and(flag::MOVABLE_KEYS);
const WRITE_MOVABLE: Flags = flag::WRITE.and(flag::MOVABLE_KEYS);
const BLOCK: Flags = flag::WRITE.and(flag::NO_SCRIPT).and(flag::BLOCKING).and(flag::FAST);
const ONE: Keys = Keys::Range(1, 1, 1);
const LIST: Keys = Keys::Range(1, -2, 1);

const fn row(name: &'static str, arity: i16, flags: Flags, keys: Keys, handler: Handler) -> Command {
    Command::new(name, arity, flags, keys, "sorted-set", handler)
}

/// The commands of this family.
pub(super) const COMMANDS: &[Command] = &[
    row("zadd", -4, GROW_FAST, ONE, |c, a| zadd(c, a, false)),
    row("zincrby", 4, GROW_FAST, ONE, |c, a| zadd(c, a, true)),
    row("zrem", -3, WRITE_FAST, ONE, zrem),
    row("zscore", 3, READ_FAST, ONE, zscore),
    row("zmscore", -3, READ_FAST, ONE, zmscore),
    row("zcard", 2, READ_FAST, ONE, zcard),
    row("zrank", 3, READ_FAST, ONE, |c, a| zrank(c, a, false)),
    row("zrevrank", 3, READ_FAST, ONE, |c, a| zrank(c, a, true)),
    row("zrandmember", -2, READ, ONE, zrandmember),
    row("zscan", -3, READ, ONE, zscan),
    row("zcount", 4, READ_FAST, ONE, |c, a| range::count(c, a, Kind::Score)),
    row("zlexcount", 4, READ_FAST, ONE, |c, a| range::count(c, a, Kind::Lex)),
    row("zrange", -4, READ, ONE, |c, a| range::range(c, a, None, None)),
    row("zrevrange", -4, READ, ONE, |c, a| range::range(c, a, Some(Kind::Rank), Some(Direction::Reverse))),
    row("zrangebyscore", -4, READ, ONE, |c, a| {
        range::range(c, a, Some(Kind::Score), Some(Direction::Forward))
    }),
    row("zrevrangebyscore", -4, READ, ONE, |c, a| {
        range::range(c, a, Some(Kind::Score), Some(Direction::Reverse))
    }),
    row("zrangebylex", -4, READ, ONE, |c, a| range::range(c, a, Some(Kind::Lex), Some(Direction::Forward))),
    row("zrevrangebylex", -4, READ, ONE, |c, a| {
        range::range(c, a, Some(Kind::Lex), Some(Direction::Reverse))
    }),
    row("zrangestore", -5, GROW, Keys::Range(1, 2, 1), range::range_store),
    row("zremrangebyrank", 4, WRITE, ONE, |c, a| range::remove(c, a, Kind::Rank)),
    row("zremrangebyscore", 4, WRITE, ONE, |c, a| range::remove(c, a, Kind::Score)),
    row("zremrangebylex", 4, WRITE, ONE, |c, a| range::remove(c, a, Kind::Lex)),
    row("zpopmin", -2, WRITE_FAST, ONE, |c, a| pop::pop(c, a, false)),
    row("zpopmax", -2, WRITE_FAST, ONE, |c, a| pop::pop(c, a, true)),
    row("bzpopmin", -3, BLOCK, LIST, |c, a| pop::blocking_pop(c, a, false)),
    row("bzpopmax", -3, BLOCK, LIST, |c, a| pop::blocking_pop(c, a, true)),
    row("zmpop", -4, WRITE_MOVABLE, Keys::Counted(1), |c, a| pop::pop_many(c, a, 1, None)),
    row("bzmpop", -5, WRITE_MOVABLE.and(flag::BLOCKING), Keys::Counted(2), pop::blocking_pop_many),
    row("zunion", -3, READ_MOVABLE, Keys::Counted(1), |c, a| combine(c, a, Operation::Union, false)),
    row("zinter", -3, READ_MOVABLE, Keys::Counted(1), |c, a| combine(c, a, Operation::Intersection, false)),
    row("zdiff", -3, READ_MOVABLE, Keys::Counted(1), |c, a| combine(c, a, Operation::Difference, false)),
    row("zintercard", -3, READ_MOVABLE, Keys::Counted(1), |c, a| {
        combine(c, a, Operation::Intersection, true)
    }),
    row("zunionstore", -4, GROW_MOVABLE, Keys::Destination(2), |c, a| combine::store(c, a, Operation::Union)),
    row("zinterstore", -4, GROW_MOVABLE, Keys::Destination(2), |c, a| {
        combine::store(c, a, Operation::Intersection)
    }),
    row("zdiffstore", -4, GROW_MOVABLE, Keys::Destination(2), |c, a| {
        combine::store(c, a, Operation::Difference)
    }),
];

/// Options of ZADD.
#[derive(Default)]
struct AddOptions {
    only_new: bool,
    only_existing: bool,
    count_changed: bool,
    increment: bool,
    only_greater: bool,
    only_less: bool,
}

impl AddOptions {
    /// The options and how many arguments they take.
    fn parse(arguments: &[&[u8]], increment: bool) -> Result<(Self, usize), Fault> {
        let mut options = Self { increment, ..Self::default() };
        let mut taken = 0;
        for word in arguments {
            match () {
                () if is(word, "nx") => options.only_new = true,
                () if is(word, "xx") => options.only_existing = true,
                () if is(word, "ch") => options.count_changed = true,
                () if is(word, "incr") => options.increment = true,
                () if is(word, "gt") => options.only_greater = true,
                () if is(word, "lt") => options.only_less = true,
                () => break,
            }
            taken += 1;
        }
        let pairs = arguments.len() - taken;
        if pairs == 0 || !pairs.is_multiple_of(2) {
            return Err(Fault::SYNTAX);
        }
        if options.only_new && options.only_existing {
            return Err(Fault::of("ERR XX and NX options at the same time are not compatible"));
        }
        if options.only_greater && options.only_less
            || options.only_new && (options.only_greater || options.only_less)
        {
            return Err(Fault::of("ERR GT, LT, and/or NX options at the same time are not compatible"));
        }
        if options.increment && pairs > 2 {
            return Err(Fault::of("ERR INCR option supports a single increment-element pair"));
        }
        Ok((options, taken))
    }

    /// The new score of a member, given its old one; `None` if it does not change.
    fn apply(&self, old: Option<f64>, score: f64) -> Result<Option<f64>, Fault> {
        let Some(old) = old else {
            return Ok((!self.only_existing).then_some(score));
        };
        if self.only_new {
            return Ok(None);
        }
        let score = if self.increment { old + score } else { score };
        if score.is_nan() {
            return Err(Fault::of("ERR resulting score is not a number (NaN)"));
        }
        let refused = self.only_less && score >= old || self.only_greater && score <= old;
        Ok((!refused).then_some(score))
    }
}

fn zadd(context: &mut Context<'_>, arguments: &[&[u8]], increment: bool) -> Outcome {
    let key = arguments[1];
    let (options, taken) = AddOptions::parse(&arguments[2..], increment)?;
    let mut pairs = Vec::with_capacity((arguments.len() - 2 - taken) / 2);
    for pair in arguments[2 + taken..].chunks_exact(2) {
        pairs.push((parse_float(pair[0]).ok_or(Fault::NOT_FLOAT)?, pair[1]));
    }
    let (rules, replaying) = (context.data.rules(), context.data.replaying());
    let mut set = if options.only_existing {
        context.data.write::<SortedSet>(key)?
    } else {
        Some(context.data.write_or_create::<SortedSet>(key)?)
    };
    let (mut added, mut updated, mut result) = (0, 0, None);
    let mut changes: Vec<(f64, &[u8])> = Vec::new();
    if let Some(set) = &mut set {
        for (score, name) in pairs {
            let old = set.view().score(name);
            let Some(score) = options.apply(old, score)? else {
                continue;
            };
            result = Some(score);
            if old == Some(score) {
                continue;
            }
            if replaying && score == 0.0 && score.is_sign_negative() {
                set.know_negative_zero(&rules);
            }
            set.insert(name, score, &rules);
            changes.push((set.view().stored(score), name));
            added += usize::from(old.is_none());
            updated += usize::from(old.is_some());
        }
    }
    drop(set);
    if !changes.is_empty() {
        context.notify(class::SORTED_SET, if options.increment { "zincr" } else { "zadd" }, key);
        context.data.changed(key);
        if context.data.effects_on() {
            let scores: Vec<DoubleText> = changes.iter().map(|&(score, _)| print_double(score)).collect();
            let mut effect: Vec<&[u8]> = vec![b"ZADD", key];
            effect.extend(scores.iter().zip(&changes).flat_map(|(score, &(_, name))| [&**score, name]));
            context.data.effect(&effect);
        }
    }
    match (options.increment, result) {
        (true, Some(score)) => context.reply.double(score),
        (true, None) => context.reply.nil(),
        (false, _) => context.reply.count(if options.count_changed { added + updated } else { added }),
    }
    Ok(())
}

fn zrem(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let key = arguments[1];
    let mut removed = 0;
    if let Some(mut set) = context.data.write::<SortedSet>(key)? {
        removed = arguments[2..].iter().filter(|name| set.remove(name).is_some()).count();
    }
    if removed > 0 {
        context.notify(class::SORTED_SET, "zrem", key);
        context.data.changed(key);
        context.data.effect(arguments);
    }
    context.reply.count(removed);
    Ok(())
}

/// A score, or nil.
fn write_score(reply: &mut Reply, score: Option<f64>) {
    match score {
        Some(score) => reply.double(score),
        None => reply.nil(),
    }
}

fn zscore(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let set = read::<SortedSet>(&mut context.data, arguments[1])?;
    write_score(&mut context.reply, set.and_then(|set| set.score(arguments[2])));
    Ok(())
}

fn zmscore(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let set = read::<SortedSet>(&mut context.data, arguments[1])?;
    context.reply.array(arguments.len() - 2);
    for name in &arguments[2..] {
        write_score(&mut context.reply, set.and_then(|set| set.score(name)));
    }
    Ok(())
}

fn zcard(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let len = read::<SortedSet>(&mut context.data, arguments[1])?.map_or(0, |set| set.len());
    context.reply.count(len);
    Ok(())
}

fn zrank(context: &mut Context<'_>, arguments: &[&[u8]], reverse: bool) -> Outcome {
    let set = read::<SortedSet>(&mut context.data, arguments[1])?;
    match set.and_then(|set| Some((set.rank(arguments[2])?, set.len()))) {
        Some((rank, len)) => context.reply.count(if reverse { len - 1 - rank } else { rank }),
        None => context.reply.nil(),
    }
    Ok(())
}

fn zrandmember(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let Some(many) = arguments.get(2) else {
        let set = read::<SortedSet>(&mut context.data, arguments[1])?;
        let random = &mut *context.random;
        let member = set.and_then(|set| set.random(&mut || random.word()));
        context.reply.bulk_or_nil(member.as_ref().map(|(name, _)| &**name));
        return Ok(());
    };
    let number = integer(many)?;
    let with_scores = match arguments[3..] {
        [] => false,
        [option] if is(option, "withscores") => true,
        _ => return Err(Fault::SYNTAX),
    };
    if with_scores && number.unsigned_abs() > i64::MAX as u64 / 2 {
        return Err(Fault::of("ERR value is out of range"));
    }
    let (many, unique) = random_count(many)?;
    let Some(set) = read::<SortedSet>(&mut context.data, arguments[1])? else {
        context.reply.array(0);
        return Ok(());
    };
    let random = &mut *context.random;
    let mut next = || random.word();
    let members: Vec<(Text<'_>, f64)> = if !unique && gathers(set.len(), many) {
        let all: Vec<(Text<'_>, f64)> = set.range(0, set.len(), false).collect();
        repeated(&all, many, &mut next).copied().collect()
    } else if !unique {
        (0..many).filter_map(|_| set.random(&mut next)).collect()
    } else if many >= set.len() {
        set.range(0, set.len(), false).collect()
    } else {
        let ranks = distinct(set.len(), many, &mut next);
        ranks.into_iter().filter_map(|rank| set.range(rank, 1, false).next()).collect()
    };
    write_members(&mut context.reply, members.len(), with_scores, members.into_iter());
    Ok(())
}

fn zscan(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let from = cursor(arguments[2])?;
    let Some(set) = read::<SortedSet>(&mut context.data, arguments[1])? else {
        context.reply.array(2);
        context.reply.bulk(b"0");
        context.reply.array(0);
        return Ok(());
    };
    let options = Options::parse(&arguments[3..], false)?;
    let mut found: Vec<(Vec<u8>, f64)> = Vec::new();
    let small = set.encoding() == "listpack";
    let next = set.scan(from, options.count, &mut |name, score| {
        if options.matches(name) {
            found.push((name.to_vec(), score));
        }
    });
    context.reply.array(2);
    context.reply.bulk(next.to_string().as_bytes());
    context.reply.array(2 * found.len());
    for (name, score) in &found {
        context.reply.bulk(name);
        if small && score.trunc() == *score && score.abs() <= SMALL_WHOLE_SCORE {
            context.reply.bulk_integer(*score as i64);
        } else {
            context.reply.bulk(format_double(*score).as_bytes());
        }
    }
    Ok(())
}
