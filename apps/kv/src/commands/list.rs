//! Lists.
//!
//! A command that pops elements and may block checks its keys in order and pops from the first list
//! that is not empty. When a blocked client's command is run again, a key that now holds another
//! type is skipped: the client continues to wait, as in Redis.

use super::collection::{at_least, count, read, span};
use super::context::{Command, Context, Handler, Outcome};
use crate::data::keyspace::EffectDetail;
use crate::data::value::{List, ListRef, Text};
use crate::foundation::command::{Flags, Keys, flag, integer, is, timeout_milliseconds};
use crate::foundation::observation::key_events::class;
use crate::foundation::protocol::Fault;
use crate::foundation::text::number::Digits;

const WRITE: Flags = flag::WRITE;
const GROW: Flags = flag::WRITE.and(flag::DENY_OOM);
const GROW_FAST: Flags = GROW.and(flag::FAST);
const BLOCK: Flags = flag::WRITE.and(flag::NO_SCRIPT).and(flag::BLOCKING);
const ONE: Keys = Keys::Range(1, 1, 1);
const TWO: Keys = Keys::Range(1, 2, 1);

const fn row(name: &'static str, arity: i16, flags: Flags, keys: Keys, handler: Handler) -> Command {
    Command::new(name, arity, flags, keys, "list", handler)
}

/// The commands of this family.
pub(super) const COMMANDS: &[Command] = &[
    row("lpush", -3, GROW_FAST, ONE, |c, a| push(c, a, true, false)),
    row("rpush", -3, GROW_FAST, ONE, |c, a| push(c, a, false, false)),
    row("lpushx", -3, GROW_FAST, ONE, |c, a| push(c, a, true, true)),
    row("rpushx", -3, GROW_FAST, ONE, |c, a| push(c, a, false, true)),
    row("lpop", -2, WRITE.and(flag::FAST), ONE, |c, a| pop(c, a, true)),
    row("rpop", -2, WRITE.and(flag::FAST), ONE, |c, a| pop(c, a, false)),
    row("llen", 2, flag::READONLY.and(flag::FAST), ONE, llen),
    row("lrange", 4, flag::READONLY, ONE, lrange),
    row("lindex", 3, flag::READONLY, ONE, lindex),
    row("lset", 4, GROW, ONE, lset),
    row("lrem", 4, WRITE, ONE, lrem),
    row("ltrim", 4, WRITE, ONE, ltrim),
    row("linsert", 5, GROW, ONE, linsert),
    row("lpos", -3, flag::READONLY, ONE, lpos),
    row("lmove", 5, GROW, TWO, lmove),
    row("rpoplpush", 3, GROW, TWO, |c, a| transfer(c, a[1], a[2], false, true, None)),
    row("lmpop", -4, WRITE, Keys::Counted(1), |c, a| pop_many(c, a, 1, None)),
    row("blpop", -3, BLOCK, Keys::Range(1, -2, 1), |c, a| blocking_pop(c, a, true)),
    row("brpop", -3, BLOCK, Keys::Range(1, -2, 1), |c, a| blocking_pop(c, a, false)),
    row("blmove", 6, BLOCK.and(flag::DENY_OOM), TWO, blmove),
    row("brpoplpush", 4, BLOCK.and(flag::DENY_OOM), TWO, brpoplpush),
    row("blmpop", -5, WRITE.and(flag::BLOCKING), Keys::Counted(2), blmpop),
];

fn push(context: &mut Context<'_>, arguments: &[&[u8]], front: bool, only_existing: bool) -> Outcome {
    let key = arguments[1];
    let rules = context.data.rules();
    let mut list = if only_existing {
        match context.data.write::<List>(key)? {
            Some(list) => list,
            None => {
                context.reply.integer(0);
                return Ok(());
            }
        }
    } else {
        context.data.write_or_create::<List>(key)?
    };
    arguments[2..].iter().for_each(|element| list.push(front, element, &rules));
    let len = list.view().len();
    drop(list);
    context.notify(class::LIST, if front { "lpush" } else { "rpush" }, key);
    context.data.changed(key);
    context.data.effect(arguments);
    context.reply.count(len);
    Ok(())
}

/// Pops up to `many` elements from one end and records it; `None` if there is no list.
fn take(
    context: &mut Context<'_>,
    key: &[u8],
    front: bool,
    many: usize,
) -> Result<Option<Vec<Box<[u8]>>>, Fault> {
    let Some(mut list) = context.data.write::<List>(key)? else { return Ok(None) };
    let many = many.min(list.view().len());
    let mut taken = Vec::with_capacity(many);
    taken.extend((0..many).map_while(|_| list.pop(front)));
    let left = list.view().len();
    drop(list);
    if !taken.is_empty() {
        context.notify(class::LIST, if front { "lpop" } else { "rpop" }, key);
        context.data.changed(key);
        let name: &[u8] = if front { b"LPOP" } else { b"RPOP" };
        let mut digits = Digits::default();
        let detail = EffectDetail::Popped { front, many: taken.len(), left };
        context.data.effect_detail(&[name, key, digits.write(taken.len() as i64)], &detail);
    }
    Ok(Some(taken))
}

fn pop(context: &mut Context<'_>, arguments: &[&[u8]], front: bool) -> Outcome {
    let many = match arguments {
        [_, _] => None,
        [_, _, many] => Some(count(many)?),
        _ => return Err(Fault::arity(context.command.spec.name)),
    };
    let taken = take(context, arguments[1], front, many.unwrap_or(1))?;
    match (taken, many) {
        (None, Some(_)) => context.reply.nil_array(),
        (Some(taken), Some(_)) => {
            context.reply.array(taken.len());
            taken.iter().for_each(|element| context.reply.bulk(element));
        }
        (taken, None) => {
            let element = taken.as_ref().and_then(|taken| taken.first());
            context.reply.bulk_or_nil(element.map(|element| &**element));
        }
    }
    Ok(())
}

fn llen(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let len = read::<List>(&mut context.data, arguments[1])?.map_or(0, |list| list.len());
    context.reply.count(len);
    Ok(())
}

fn lrange(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let (start, end) = (integer(arguments[2])?, integer(arguments[3])?);
    let Some(list) = read::<List>(&mut context.data, arguments[1])? else {
        context.reply.array(0);
        return Ok(());
    };
    let (first, many) = span(start, end, list.len());
    context.reply.array(many);
    list.iter_from(first).take(many).for_each(|element| context.reply.bulk(&element));
    Ok(())
}

/// The position of an index, which may count from the end.
fn position(index: i64, len: usize) -> Option<usize> {
    let index = if index < 0 { index.checked_add(len as i64)? } else { index };
    usize::try_from(index).ok().filter(|&at| at < len)
}

fn lindex(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let Some(list) = read::<List>(&mut context.data, arguments[1])? else {
        context.reply.nil();
        return Ok(());
    };
    let index = integer(arguments[2])?;
    let element = position(index, list.len()).and_then(|at| list.get(at));
    context.reply.bulk_or_nil(element.as_deref());
    Ok(())
}

fn lset(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let key = arguments[1];
    let rules = context.data.rules();
    let mut list = context.data.write::<List>(key)?.ok_or(Fault::NO_SUCH_KEY)?;
    let index = integer(arguments[2])?;
    let at = position(index, list.view().len()).ok_or(Fault::OUT_OF_RANGE)?;
    list.set(at, arguments[3], &rules);
    drop(list);
    context.notify(class::LIST, "lset", key);
    context.data.changed(key);
    context.data.effect_detail(arguments, &EffectDetail::Element(at));
    context.reply.ok();
    Ok(())
}

fn lrem(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let key = arguments[1];
    let limit = integer(arguments[2])?;
    let head = context.data.dumped_elements(key);
    let (mut removed, mut of_head) = (0, 0);
    if let Some(mut list) = context.data.write::<List>(key)? {
        let most = if limit == 0 { usize::MAX } else { limit.unsigned_abs() as usize };
        (removed, of_head) = list.remove_equal(arguments[3], most, limit < 0, head);
    }
    if removed > 0 {
        context.notify(class::LIST, "lrem", key);
        context.data.changed(key);
        context.data.effect_detail(arguments, &EffectDetail::Removed { of_head, from_back: limit < 0 });
    }
    context.reply.count(removed);
    Ok(())
}

fn ltrim(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let key = arguments[1];
    let (start, end) = (integer(arguments[2])?, integer(arguments[3])?);
    let mut kept = None;
    if let Some(mut list) = context.data.write::<List>(key)? {
        let (first, many) = span(start, end, list.view().len());
        list.trim(first, many);
        kept = Some((first, many));
    }
    if let Some((first, many)) = kept {
        context.notify(class::LIST, "ltrim", key);
        context.data.changed(key);
        context.data.effect_detail(arguments, &EffectDetail::Kept { first, many });
    }
    context.reply.ok();
    Ok(())
}

fn linsert(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let after = match arguments[2] {
        word if is(word, "after") => 1,
        word if is(word, "before") => 0,
        _ => return Err(Fault::SYNTAX),
    };
    let key = arguments[1];
    let rules = context.data.rules();
    let Some(mut list) = context.data.write::<List>(key)? else {
        context.reply.integer(0);
        return Ok(());
    };
    let Some(at) = list.view().iter().position(|element| *element == *arguments[3]) else {
        drop(list);
        context.reply.integer(-1);
        return Ok(());
    };
    list.insert(at + after, arguments[4], &rules);
    let len = list.view().len();
    drop(list);
    context.notify(class::LIST, "linsert", key);
    context.data.changed(key);
    context.data.effect_detail(arguments, &EffectDetail::Inserted(at + after));
    context.reply.count(len);
    Ok(())
}

/// Options of LPOS.
struct Positions {
    /// Which match is the first that counts; negative: from the tail.
    rank: i64,
    /// COUNT, if given; 0 for all.
    count: Option<usize>,
    /// Elements to compare; 0 for all.
    most: usize,
}

impl Positions {
    fn parse(options: &[&[u8]]) -> Result<Self, Fault> {
        let mut parsed = Self { rank: 1, count: None, most: 0 };
        let mut rest = options;
        while let [name, value, tail @ ..] = rest {
            if is(name, "rank") {
                parsed.rank = integer(value)?;
                if parsed.rank == 0 {
                    return Err(Fault::of(
                        "ERR RANK can't be zero: use 1 to start from the first match, 2 from the second ... or \
                         use negative to start from the end of the list",
                    ));
                }
            } else if is(name, "count") {
                parsed.count = Some(at_least(value, 0, "ERR COUNT can't be negative")?);
            } else if is(name, "maxlen") {
                parsed.most = at_least(value, 0, "ERR MAXLEN can't be negative")?;
            } else {
                return Err(Fault::SYNTAX);
            }
            rest = tail;
        }
        if rest.is_empty() { Ok(parsed) } else { Err(Fault::SYNTAX) }
    }

    /// The positions of `element`.
    fn find(&self, list: ListRef<'_>, element: &[u8]) -> Vec<usize> {
        let most = if self.most == 0 { list.len() } else { self.most };
        let skip = usize::try_from(self.rank.wrapping_abs() - 1).unwrap_or(0);
        let wanted = match self.count {
            None => 1,
            Some(0) => usize::MAX,
            Some(count) => count,
        };
        let matching = |(at, found): (usize, Text<'_>)| (*found == *element).then_some(at);
        if self.rank > 0 {
            list.iter().enumerate().take(most).filter_map(matching).skip(skip).take(wanted).collect()
        } else {
            let last = list.len().wrapping_sub(1);
            let backward = list.iter().rev().enumerate().take(most).filter_map(matching);
            backward.skip(skip).take(wanted).map(|at| last - at).collect()
        }
    }
}

fn lpos(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let positions = Positions::parse(&arguments[3..])?;
    let list = read::<List>(&mut context.data, arguments[1])?;
    let found = list.map_or(Vec::new(), |list| positions.find(list, arguments[2]));
    if positions.count.is_none() {
        match found.first() {
            Some(&at) => context.reply.count(at),
            None => context.reply.nil(),
        }
    } else {
        context.reply.array(found.len());
        found.iter().for_each(|&at| context.reply.count(at));
    }
    Ok(())
}

/// LEFT (true) or RIGHT.
fn end(word: &[u8]) -> Result<bool, Fault> {
    if is(word, "left") {
        Ok(true)
    } else if is(word, "right") {
        Ok(false)
    } else {
        Err(Fault::SYNTAX)
    }
}

fn lmove(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let (from, to) = (end(arguments[3])?, end(arguments[4])?);
    transfer(context, arguments[1], arguments[2], from, to, None)
}

fn blmove(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let (from, to) = (end(arguments[3])?, end(arguments[4])?);
    let timeout = timeout_milliseconds(arguments[5])?;
    transfer(context, arguments[1], arguments[2], from, to, Some(timeout))
}

fn brpoplpush(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let timeout = timeout_milliseconds(arguments[3])?;
    transfer(context, arguments[1], arguments[2], false, true, Some(timeout))
}

/// Whether this run of a blocking command is a retry for a blocked client.
fn waits(context: &Context<'_>) -> bool {
    context.client.blocked.is_some()
}

/// Moves one element from an end of one list to an end of another; without a `timeout` it does not
/// block.
fn transfer(
    context: &mut Context<'_>,
    source: &[u8],
    destination: &[u8],
    from_front: bool,
    to_front: bool,
    timeout: Option<u64>,
) -> Outcome {
    let waiting = waits(context);
    let there = match read::<List>(&mut context.data, source) {
        Err(_) if waiting => false,
        found => found?.is_some(),
    };
    if !there {
        return match timeout {
            Some(timeout) if !context.must_not_block => context.block_for("list", &[source], timeout),
            _ => {
                context.reply.nil();
                Ok(())
            }
        };
    }
    // Checked before the pop, so that an error leaves both lists unchanged.
    read::<List>(&mut context.data, destination)?;
    if source == destination {
        return rotate(context, source, from_front, to_front);
    }
    let before = context.data.store_ref().observation.events.len();
    let taken = take(context, source, from_front, 1)?.unwrap_or_default();
    let popped = context.data.store_ref().observation.events.len();
    let Some(element) = taken.first() else {
        context.reply.nil();
        return Ok(());
    };
    put(context, destination, to_front, element)?;
    // Redis notes the push first.
    context.data.store().observation.events.move_to_end(before, popped);
    context.reply.bulk(element);
    Ok(())
}

/// Moves an element from one end of a list to an end of the same list. It pushes before it pops, so
/// that a list of one element is never empty and keeps its expiry, also at replay.
fn rotate(context: &mut Context<'_>, key: &[u8], from_front: bool, to_front: bool) -> Outcome {
    let list = read::<List>(&mut context.data, key)?;
    let end = list.and_then(|list| if from_front { list.iter().next() } else { list.iter().next_back() });
    let Some(element) = end.map(|element| Box::<[u8]>::from(&*element)) else {
        context.reply.nil();
        return Ok(());
    };
    put(context, key, to_front, &element)?;
    take(context, key, from_front, 1)?;
    context.reply.bulk(&element);
    Ok(())
}

/// Pushes one element and records it.
fn put(context: &mut Context<'_>, key: &[u8], front: bool, element: &[u8]) -> Outcome {
    let rules = context.data.rules();
    context.data.write_or_create::<List>(key)?.push(front, element, &rules);
    context.notify(class::LIST, if front { "lpush" } else { "rpush" }, key);
    context.data.changed(key);
    let name: &[u8] = if front { b"LPUSH" } else { b"RPUSH" };
    context.data.effect(&[name, key, element]);
    Ok(())
}

/// The first of the keys that holds a list.
fn first_list<'k>(context: &mut Context<'_>, keys: &[&'k [u8]]) -> Result<Option<&'k [u8]>, Fault> {
    let waiting = waits(context);
    for key in keys {
        match read::<List>(&mut context.data, key) {
            Ok(Some(_)) => return Ok(Some(key)),
            Err(fault) if !waiting => return Err(fault),
            _ => {}
        }
    }
    Ok(None)
}

fn blocking_pop(context: &mut Context<'_>, arguments: &[&[u8]], front: bool) -> Outcome {
    let (keys, timeout) = (&arguments[1..arguments.len() - 1], arguments[arguments.len() - 1]);
    let timeout = timeout_milliseconds(timeout)?;
    let Some(key) = first_list(context, keys)? else {
        return context.block_for("list", keys, timeout);
    };
    let taken = take(context, key, front, 1)?.unwrap_or_default();
    context.reply.array(2);
    context.reply.bulk(key);
    context.reply.bulk_or_nil(taken.first().map(|element| &**element));
    Ok(())
}

fn blmpop(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let timeout = timeout_milliseconds(arguments[1])?;
    pop_many(context, arguments, 2, Some(timeout))
}

/// LMPOP and BLMPOP; the number of keys is at `at`.
fn pop_many(context: &mut Context<'_>, arguments: &[&[u8]], at: usize, timeout: Option<u64>) -> Outcome {
    let many_keys = at_least(arguments[at], 1, "ERR numkeys should be greater than 0")?;
    let after = (at + 1).saturating_add(many_keys);
    let keys = arguments.get(at + 1..after).ok_or(Fault::SYNTAX)?;
    let front = end(arguments.get(after).ok_or(Fault::SYNTAX)?)?;
    let many = match &arguments[after + 1..] {
        [] => 1,
        [name, many, rest @ ..] if is(name, "count") => {
            let many = at_least(many, 1, "ERR count should be greater than 0")?;
            if !rest.is_empty() {
                return Err(Fault::SYNTAX);
            }
            many
        }
        _ => return Err(Fault::SYNTAX),
    };
    let Some(key) = first_list(context, keys)? else {
        match timeout {
            Some(timeout) => return context.block_for("list", keys, timeout),
            None => context.reply.nil_array(),
        }
        return Ok(());
    };
    let taken = take(context, key, front, many)?.unwrap_or_default();
    context.reply.array(2);
    context.reply.bulk(key);
    context.reply.array(taken.len());
    taken.iter().for_each(|element| context.reply.bulk(element));
    Ok(())
}
