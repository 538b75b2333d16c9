//! Sets.
//!
//! Operations on several sets read one key at a time: the first (for an intersection: the smallest)
//! is copied, and the others are applied to the copy.

use std::collections::HashSet;

use super::collection::{at_least, count, distinct, gathers, random_count, read, repeated};
use super::context::{Command, Context, Handler, Outcome};
use super::scan::{Options, cursor};
use crate::data::keyspace::Data;
use crate::data::value::{Collection as _, Set, SetRef};
use crate::foundation::command::{Flags, Keys, flag, is};
use crate::foundation::observation::key_events::class;
use crate::foundation::protocol::Fault;

const READ: Flags = flag::READONLY;
const READ_FAST: Flags = flag::READONLY.and(flag::FAST);
const GROW: Flags = flag::WRITE.and(flag::DENY_OOM);
const ONE: Keys = Keys::Range(1, 1, 1);
const ALL: Keys = Keys::Range(1, -1, 1);

const fn row(name: &'static str, arity: i16, flags: Flags, keys: Keys, handler: Handler) -> Command {
    Command::new(name, arity, flags, keys, "set", handler)
}

/// The commands of this family.
pub(super) const COMMANDS: &[Command] = &[
    row("sadd", -3, GROW.and(flag::FAST), ONE, sadd),
    row("srem", -3, flag::WRITE.and(flag::FAST), ONE, srem),
    row("smove", 4, flag::WRITE.and(flag::FAST), Keys::Range(1, 2, 1), smove),
    row("sismember", 3, READ_FAST, ONE, sismember),
    row("smismember", -3, READ_FAST, ONE, smismember),
    row("smembers", 2, READ, ONE, |c, a| combine(c, &a[1..], Operation::Intersection)),
    row("scard", 2, READ_FAST, ONE, scard),
    row("spop", -2, flag::WRITE.and(flag::FAST), ONE, spop),
    row("srandmember", -2, READ, ONE, srandmember),
    row("sinter", -2, READ, ALL, |c, a| combine(c, &a[1..], Operation::Intersection)),
    row("sunion", -2, READ, ALL, |c, a| combine(c, &a[1..], Operation::Union)),
    row("sdiff", -2, READ, ALL, |c, a| combine(c, &a[1..], Operation::Difference)),
    row("sinterstore", -3, GROW, ALL, |c, a| store(c, a, Operation::Intersection)),
    row("sunionstore", -3, GROW, ALL, |c, a| store(c, a, Operation::Union)),
    row("sdiffstore", -3, GROW, ALL, |c, a| store(c, a, Operation::Difference)),
    row("sintercard", -3, READ.and(flag::MOVABLE_KEYS), Keys::Counted(1), sintercard),
    row("sscan", -3, READ, ONE, sscan),
];

fn sadd(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let key = arguments[1];
    let rules = context.data.rules();
    let mut set = context.data.write_or_create::<Set>(key)?;
    let added = arguments[2..].iter().filter(|member| set.insert(member, &rules)).count();
    drop(set);
    if added > 0 {
        context.notify(class::SET, "sadd", key);
        context.data.changed(key);
        context.data.effect(arguments);
    }
    context.reply.count(added);
    Ok(())
}

fn srem(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let key = arguments[1];
    let mut removed = 0;
    if let Some(mut set) = context.data.write::<Set>(key)? {
        removed = arguments[2..].iter().filter(|member| set.remove(member)).count();
    }
    if removed > 0 {
        context.notify(class::SET, "srem", key);
        context.data.changed(key);
        context.data.effect(arguments);
    }
    context.reply.count(removed);
    Ok(())
}

fn smove(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let (source, destination, member) = (arguments[1], arguments[2], arguments[3]);
    let Some(set) = read::<Set>(&mut context.data, source)? else {
        context.reply.integer(0);
        return Ok(());
    };
    let is_in = set.contains(member);
    read::<Set>(&mut context.data, destination)?;
    if !is_in || source == destination {
        context.reply.integer(i64::from(is_in));
        return Ok(());
    }
    if let Some(mut set) = context.data.write::<Set>(source)? {
        set.remove(member);
    }
    context.notify(class::SET, "srem", source);
    context.data.changed(source);
    context.data.effect(&[b"SREM", source, member]);
    let rules = context.data.rules();
    if context.data.write_or_create::<Set>(destination)?.insert(member, &rules) {
        context.notify(class::SET, "sadd", destination);
        context.data.changed(destination);
        context.data.effect(&[b"SADD", destination, member]);
    }
    context.reply.integer(1);
    Ok(())
}

fn sismember(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let set = read::<Set>(&mut context.data, arguments[1])?;
    let is_in = set.is_some_and(|set| set.contains(arguments[2]));
    context.reply.integer(i64::from(is_in));
    Ok(())
}

fn smismember(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let set = read::<Set>(&mut context.data, arguments[1])?;
    context.reply.array(arguments.len() - 2);
    for member in &arguments[2..] {
        context.reply.integer(i64::from(set.is_some_and(|set| set.contains(member))));
    }
    Ok(())
}

fn scard(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let len = read::<Set>(&mut context.data, arguments[1])?.map_or(0, |set| set.len());
    context.reply.count(len);
    Ok(())
}

fn spop(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let key = arguments[1];
    let many = match arguments {
        [_, _] => None,
        [_, _, many] => Some(count(many)?),
        _ => return Err(Fault::SYNTAX),
    };
    let mut taken = Vec::new();
    if let Some(mut set) = context.data.write::<Set>(key)? {
        let wanted = many.unwrap_or(1);
        if wanted >= set.view().len() {
            taken = set.view().to_vec();
            taken.iter().for_each(|member| {
                set.remove(member);
            });
        } else {
            let random = &mut *context.random;
            while taken.len() < wanted
                && let Some(member) = set.view().random(&mut || random.word())
            {
                set.remove(&member);
                taken.push(member);
            }
        }
    }
    if !taken.is_empty() {
        context.notify(class::SET, "spop", key);
        context.data.changed(key);
        let mut effect: Vec<&[u8]> = vec![b"SREM", key];
        effect.extend(taken.iter().map(Vec::as_slice));
        context.data.effect(&effect);
    }
    if many.is_none() {
        context.reply.bulk_or_nil(taken.first().map(Vec::as_slice));
    } else {
        context.reply.set(taken.len());
        taken.iter().for_each(|member| context.reply.bulk(member));
    }
    Ok(())
}

fn srandmember(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let wanted = match arguments {
        [_, _] => None,
        [_, _, many] => Some(random_count(many)?),
        _ => return Err(Fault::SYNTAX),
    };
    let set = read::<Set>(&mut context.data, arguments[1])?;
    let random = &mut *context.random;
    let mut next = || random.word();
    let Some((many, unique)) = wanted else {
        let member = set.and_then(|set| set.random(&mut next));
        context.reply.bulk_or_nil(member.as_deref());
        return Ok(());
    };
    let Some(set) = set else {
        context.reply.array(0);
        return Ok(());
    };
    if !unique {
        context.reply.array(many);
        if gathers(set.len(), many) {
            let all = set.to_vec();
            repeated(&all, many, &mut next).for_each(|member| context.reply.bulk(member));
            return Ok(());
        }
        for _ in 0..many {
            context.reply.bulk_or_nil(set.random(&mut next).as_deref());
        }
        return Ok(());
    }
    let members = some_members(set, many, &mut next);
    context.reply.array(members.len());
    members.iter().for_each(|member| context.reply.bulk(member));
    Ok(())
}

/// `many` distinct members, or all.
fn some_members(set: SetRef<'_>, many: usize, next: &mut dyn FnMut() -> u64) -> Vec<Vec<u8>> {
    // For few of many members, draw until there are enough. Otherwise copy all and choose
    // positions.
    if many.saturating_mul(3) < set.len() {
        let mut chosen = HashSet::with_capacity(many);
        while chosen.len() < many
            && let Some(member) = set.random(next)
        {
            chosen.insert(member);
        }
        return chosen.into_iter().collect();
    }
    let mut all = set.to_vec();
    if many >= all.len() {
        return all;
    }
    distinct(all.len(), many, next).into_iter().map(|at| std::mem::take(&mut all[at])).collect()
}

#[derive(Clone, Copy, PartialEq)]
enum Operation {
    Intersection,
    Union,
    Difference,
}

/// The members of a combination of several sets.
fn members(data: &mut Data<'_>, keys: &[&[u8]], operation: Operation) -> Result<Vec<Vec<u8>>, Fault> {
    // Every key's type is checked before any work is done, as the first error is the reply.
    let mut lengths = Vec::with_capacity(keys.len());
    for key in keys {
        lengths.push(read::<Set>(data, key)?.map_or(0, |set| set.len()));
    }
    match operation {
        Operation::Union => {
            let mut all = HashSet::new();
            for key in keys {
                if let Some(set) = read::<Set>(data, key)? {
                    set.for_each(&mut |member| {
                        if !all.contains(member) {
                            all.insert(member.to_vec());
                        }
                    });
                }
            }
            Ok(all.into_iter().collect())
        }
        Operation::Intersection => {
            let smallest = (0..keys.len()).min_by_key(|&at| lengths[at]).unwrap_or(0);
            let mut left = match read::<Set>(data, keys[smallest])? {
                Some(set) => set.to_vec(),
                None => return Ok(Vec::new()),
            };
            for (at, key) in keys.iter().enumerate() {
                if at == smallest || left.is_empty() {
                    continue;
                }
                match read::<Set>(data, key)? {
                    Some(set) => left.retain(|member| set.contains(member)),
                    None => left.clear(),
                }
            }
            Ok(left)
        }
        Operation::Difference => {
            let mut left = read::<Set>(data, keys[0])?.map_or(Vec::new(), |set| set.to_vec());
            for key in &keys[1..] {
                if let Some(set) = read::<Set>(data, key)? {
                    left.retain(|member| !set.contains(member));
                }
            }
            Ok(left)
        }
    }
}

fn combine(context: &mut Context<'_>, keys: &[&[u8]], operation: Operation) -> Outcome {
    if let [key] = keys {
        // One set alone needs no copy.
        let set = read::<Set>(&mut context.data, key)?;
        context.reply.set(set.map_or(0, |set| set.len()));
        if let Some(set) = set {
            set.for_each(&mut |member| context.reply.bulk(member));
        }
        return Ok(());
    }
    let members = members(&mut context.data, keys, operation)?;
    context.reply.set(members.len());
    members.iter().for_each(|member| context.reply.bulk(member));
    Ok(())
}

/// The first set, if Redis takes the difference by removing the others from a copy of it and not by
/// looking each member up in them. The encoding of the result then depends on all members that the
/// copy ever held.
fn copied_for_difference(data: &mut Data<'_>, keys: &[&[u8]]) -> Result<Option<Vec<Vec<u8>>>, Fault> {
    let (mut there, mut all) = (0, 0);
    for key in keys {
        if let Some(set) = read::<Set>(data, key)? {
            there += 1;
            all += set.len();
        }
    }
    let Some(first) = read::<Set>(data, keys[0])? else { return Ok(None) };
    let copied = !keys[1..].contains(&keys[0]) && first.len() * there / 2 > all;
    Ok(copied.then(|| first.to_vec()))
}

fn store(context: &mut Context<'_>, arguments: &[&[u8]], operation: Operation) -> Outcome {
    let destination = arguments[1];
    let members = members(&mut context.data, &arguments[2..], operation)?;
    let copied = match operation {
        Operation::Difference => copied_for_difference(&mut context.data, &arguments[2..])?,
        _ => None,
    };
    if members.is_empty() {
        if context.data.remove(destination).is_some() {
            context.notify(class::GENERIC, "del", destination);
            context.data.effect_delete(destination);
        }
    } else {
        let (mut set, rules) = (Set::new(), context.data.rules());
        for member in copied.iter().flatten() {
            set.insert(member, &rules);
        }
        for member in copied.iter().flatten() {
            set.remove(member);
        }
        for member in &members {
            set.insert(member, &rules);
        }
        let value = set.into_value();
        context.data.admit_value(destination, &value)?;
        context.data.insert(destination, value);
        context.notify(class::SET, context.command.spec.name, destination);
        context.data.effect_rebuild(destination);
    }
    context.reply.count(members.len());
    Ok(())
}

fn sintercard(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let many = at_least(arguments[1], 1, "ERR numkeys should be greater than 0")?;
    let keys = arguments
        .get(2..2usize.saturating_add(many))
        .ok_or(Fault::of("ERR Number of keys can't be greater than number of args"))?;
    let mut limit = usize::MAX;
    let mut rest = &arguments[2 + many..];
    while let [name, value, tail @ ..] = rest {
        if !is(name, "limit") {
            return Err(Fault::SYNTAX);
        }
        limit = match at_least(value, 0, "ERR LIMIT can't be negative")? {
            0 => usize::MAX,
            limit => limit,
        };
        rest = tail;
    }
    if !rest.is_empty() {
        return Err(Fault::SYNTAX);
    }
    let found = members(&mut context.data, keys, Operation::Intersection)?.len();
    context.reply.count(found.min(limit));
    Ok(())
}

fn sscan(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let from = cursor(arguments[2])?;
    let Some(set) = read::<Set>(&mut context.data, arguments[1])? else {
        context.reply.array(2);
        context.reply.bulk(b"0");
        context.reply.array(0);
        return Ok(());
    };
    let options = Options::parse(&arguments[3..], false)?;
    let mut found: Vec<Vec<u8>> = Vec::new();
    let next = set.scan(from, options.count, &mut |member| {
        if options.matches(member) {
            found.push(member.to_vec());
        }
    });
    context.reply.array(2);
    context.reply.bulk(next.to_string().as_bytes());
    context.reply.array(found.len());
    found.iter().for_each(|member| context.reply.bulk(member));
    Ok(())
}
