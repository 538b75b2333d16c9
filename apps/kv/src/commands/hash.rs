//! Hashes.
//!
//! Every handler reads or writes a [`struct@Hash`] through the functions of `collection.rs`, which
//! check the type. Effects are HSET with values and HDEL: HINCRBY and HINCRBYFLOAT record their
//! result, so that replay does not depend on the former value.

use super::collection::{distinct, gathers, random_count, read, repeated};
use super::context::{Command, Context, Handler, Outcome};
use super::scan::{Options, cursor};
use crate::data::value::{Field, Hash, Text};
use crate::foundation::command::{Flags, Keys, flag, integer, is};
use crate::foundation::observation::key_events::class;
use crate::foundation::protocol::Fault;
use crate::foundation::text::number::{Digits, Extended, parse_integer};

const READ: Flags = flag::READONLY;
const READ_FAST: Flags = flag::READONLY.and(flag::FAST);
const GROW_FAST: Flags = flag::WRITE.and(flag::DENY_OOM).and(flag::FAST);
const ONE: Keys = Keys::Range(1, 1, 1);

const fn row(name: &'static str, arity: i16, flags: Flags, handler: Handler) -> Command {
    Command::new(name, arity, flags, ONE, "hash", handler)
}

/// The commands of this family.
pub(super) const COMMANDS: &[Command] = &[
    row("hset", -4, GROW_FAST, |c, a| hset(c, a, false)),
    row("hmset", -4, GROW_FAST, |c, a| hset(c, a, true)),
    row("hsetnx", 4, GROW_FAST, hsetnx),
    row("hget", 3, READ_FAST, hget),
    row("hmget", -3, READ_FAST, hmget),
    row("hgetall", 2, READ, hgetall),
    row("hkeys", 2, READ, |c, a| one_side(c, a, |field| field.name)),
    row("hvals", 2, READ, |c, a| one_side(c, a, |field| field.value)),
    row("hdel", -3, flag::WRITE.and(flag::FAST), hdel),
    row("hlen", 2, READ_FAST, hlen),
    row("hstrlen", 3, READ_FAST, hstrlen),
    row("hexists", 3, READ_FAST, hexists),
    row("hincrby", 4, GROW_FAST, hincrby),
    row("hincrbyfloat", 4, GROW_FAST, hincrbyfloat),
    row("hrandfield", -2, READ, hrandfield),
    row("hscan", -3, READ, hscan),
];

fn hset(context: &mut Context<'_>, arguments: &[&[u8]], answer_ok: bool) -> Outcome {
    if !arguments.len().is_multiple_of(2) {
        return Err(Fault::arity(context.command.spec.name));
    }
    let key = arguments[1];
    let rules = context.data.rules();
    let mut hash = context.data.write_or_create::<Hash>(key)?;
    let mut created = 0;
    for pair in arguments[2..].chunks_exact(2) {
        created += usize::from(hash.insert(pair[0], pair[1], &rules));
    }
    drop(hash);
    context.notify(class::HASH, "hset", key);
    context.data.changed(key);
    context.data.effect(arguments);
    if answer_ok {
        context.reply.ok();
    } else {
        context.reply.count(created);
    }
    Ok(())
}

fn hsetnx(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let (key, name, value) = (arguments[1], arguments[2], arguments[3]);
    let rules = context.data.rules();
    let mut hash = context.data.write_or_create::<Hash>(key)?;
    let new = !hash.view().contains(name);
    if new {
        hash.insert(name, value, &rules);
    }
    drop(hash);
    if new {
        context.notify(class::HASH, "hset", key);
        context.data.changed(key);
        context.data.effect(&[b"HSET", key, name, value]);
    }
    context.reply.integer(i64::from(new));
    Ok(())
}

fn hget(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let hash = read::<Hash>(&mut context.data, arguments[1])?;
    context.reply.bulk_or_nil(hash.and_then(|hash| hash.get(arguments[2])).as_deref());
    Ok(())
}

fn hmget(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let hash = read::<Hash>(&mut context.data, arguments[1])?;
    context.reply.array(arguments.len() - 2);
    for name in &arguments[2..] {
        context.reply.bulk_or_nil(hash.and_then(|hash| hash.get(name)).as_deref());
    }
    Ok(())
}

fn hgetall(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let hash = read::<Hash>(&mut context.data, arguments[1])?;
    context.reply.map(hash.map_or(0, |hash| hash.len()));
    for field in hash.into_iter().flat_map(|hash| hash.iter()) {
        context.reply.bulk(&field.name);
        context.reply.bulk(&field.value);
    }
    Ok(())
}

fn one_side(context: &mut Context<'_>, arguments: &[&[u8]], side: fn(Field<'_>) -> Text<'_>) -> Outcome {
    let hash = read::<Hash>(&mut context.data, arguments[1])?;
    context.reply.array(hash.map_or(0, |hash| hash.len()));
    for field in hash.into_iter().flat_map(|hash| hash.iter()) {
        context.reply.bulk(&side(field));
    }
    Ok(())
}

fn hdel(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let key = arguments[1];
    let mut removed = 0;
    if let Some(mut hash) = context.data.write::<Hash>(key)? {
        removed = arguments[2..].iter().filter(|name| hash.remove(name)).count();
    }
    if removed > 0 {
        context.notify(class::HASH, "hdel", key);
        context.data.changed(key);
        context.data.effect(arguments);
    }
    context.reply.count(removed);
    Ok(())
}

fn hlen(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let len = read::<Hash>(&mut context.data, arguments[1])?.map_or(0, |hash| hash.len());
    context.reply.count(len);
    Ok(())
}

fn hstrlen(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let hash = read::<Hash>(&mut context.data, arguments[1])?;
    context.reply.count(hash.and_then(|hash| hash.get(arguments[2])).map_or(0, |value| value.len()));
    Ok(())
}

fn hexists(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let hash = read::<Hash>(&mut context.data, arguments[1])?;
    context.reply.integer(i64::from(hash.is_some_and(|hash| hash.contains(arguments[2]))));
    Ok(())
}

/// Replaces the value of a field by the result of `change` (whose argument is `None` if there is no
/// field), and returns the new value.
fn update(
    context: &mut Context<'_>,
    key: &[u8],
    name: &[u8],
    change: impl FnOnce(Option<&[u8]>) -> Result<Vec<u8>, Fault>,
) -> Result<Vec<u8>, Fault> {
    let hash = read::<Hash>(&mut context.data, key)?;
    let value = change(hash.and_then(|hash| hash.get(name)).as_deref())?;
    let rules = context.data.rules();
    context.data.write_or_create::<Hash>(key)?.insert(name, &value, &rules);
    context.notify(class::HASH, context.command.spec.name, key);
    context.data.changed(key);
    context.data.effect(&[b"HSET", key, name, &value]);
    Ok(value)
}

fn hincrby(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let increment = integer(arguments[3])?;
    let value = update(context, arguments[1], arguments[2], |old| {
        let old = match old {
            Some(old) => parse_integer(old).ok_or(Fault::of("ERR hash value is not an integer"))?,
            None => 0,
        };
        let sum = old.checked_add(increment).ok_or(Fault::OVERFLOW)?;
        Ok(Digits::default().write(sum).to_vec())
    })?;
    context.reply.integer(parse_integer(&value).unwrap_or_default());
    Ok(())
}

fn hincrbyfloat(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let increment = Extended::parse(arguments[3]).ok_or(Fault::NOT_FLOAT)?;
    if !increment.is_finite() {
        return Err(Fault::of("ERR value is NaN or Infinity"));
    }
    let value = update(context, arguments[1], arguments[2], |old| {
        let old = match old {
            Some(old) => Extended::parse(old).ok_or(Fault::of("ERR hash value is not a float"))?,
            None => Extended::ZERO,
        };
        let sum = old + increment;
        if sum.is_finite() { Ok(sum.print().into_bytes()) } else { Err(Fault::NOT_A_NUMBER) }
    })?;
    context.reply.bulk(&value);
    Ok(())
}

fn hrandfield(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let Some(many) = arguments.get(2) else {
        let hash = read::<Hash>(&mut context.data, arguments[1])?;
        let random = &mut *context.random;
        let field = hash.and_then(|hash| hash.random(&mut || random.word()));
        context.reply.bulk_or_nil(field.as_ref().map(|field| &*field.name));
        return Ok(());
    };
    let number = integer(many)?;
    let with_values = match arguments[3..] {
        [] => false,
        [option] if is(option, "withvalues") => true,
        _ => return Err(Fault::SYNTAX),
    };
    if with_values && number.unsigned_abs() > i64::MAX as u64 / 2 {
        return Err(Fault::of("ERR value is out of range"));
    }
    let (many, unique) = random_count(many)?;
    let Some(hash) = read::<Hash>(&mut context.data, arguments[1])? else {
        context.reply.array(0);
        return Ok(());
    };
    let random = &mut *context.random;
    let mut next = || random.word();
    let fields: Vec<Field<'_>> = if unique {
        let all: Vec<Field<'_>> = hash.iter().collect();
        if many >= all.len() {
            all
        } else {
            distinct(all.len(), many, &mut next).into_iter().map(|at| all[at]).collect()
        }
    } else if gathers(hash.len(), many) {
        let all: Vec<Field<'_>> = hash.iter().collect();
        repeated(&all, many, &mut next).copied().collect()
    } else {
        (0..many).filter_map(|_| hash.random(&mut next)).collect()
    };
    let nested = with_values && context.reply.resp3;
    context.reply.array(if with_values && !nested { 2 * fields.len() } else { fields.len() });
    for field in fields {
        if nested {
            context.reply.array(2);
        }
        context.reply.bulk(&field.name);
        if with_values {
            context.reply.bulk(&field.value);
        }
    }
    Ok(())
}

fn hscan(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let from = cursor(arguments[2])?;
    let Some(hash) = read::<Hash>(&mut context.data, arguments[1])? else {
        context.reply.array(2);
        context.reply.bulk(b"0");
        context.reply.array(0);
        return Ok(());
    };
    let options = Options::parse(&arguments[3..], false)?;
    let mut found: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    let next = hash.scan(from, options.count, &mut |field| {
        if options.matches(&field.name) {
            found.push((field.name.to_vec(), field.value.to_vec()));
        }
    });
    context.reply.array(2);
    context.reply.bulk(next.to_string().as_bytes());
    context.reply.array(2 * found.len());
    for (name, value) in &found {
        context.reply.bulk(name);
        context.reply.bulk(value);
    }
    Ok(())
}
