//! Strings.
//!
//! `string/counters.rs` has INCR and its variants, `string/bits.rs` and `string/bitfield.rs` the
//! bit commands, `string/subsequence.rs` LCS.

use super::context::{Command, Context, Outcome};
use crate::data::keyspace::{NEVER, Now};
use crate::data::value::{StringRef, StringValue, Value, ValueRef};
use crate::foundation::command::{Flags, Keys, flag, integer, is};
use crate::foundation::observation::key_events::class;
use crate::foundation::protocol::Fault;
use crate::foundation::text::number::Digits;

mod access;
mod bitfield;
mod bits;
mod counters;
mod subsequence;

use access::{check_length, clamp_range, string};

const ONE: Keys = Keys::Range(1, 1, 1);
const WRITE: Flags = flag::WRITE.and(flag::DENY_OOM);
const READ: Flags = flag::READONLY.and(flag::FAST);

/// The commands of this family.
pub(super) const COMMANDS: &[Command] = &[
    Command::new("append", 3, WRITE.and(flag::FAST), ONE, "string", append),
    Command::new("bitcount", -2, flag::READONLY, ONE, "bitmap", bits::bitcount),
    Command::new("bitfield", -2, WRITE, ONE, "bitmap", bitfield::bitfield),
    Command::new("bitfield_ro", -2, READ, ONE, "bitmap", bitfield::bitfield_ro),
    Command::new("bitop", -4, WRITE, Keys::Range(2, -1, 1), "bitmap", bits::bitop),
    Command::new("bitpos", -3, flag::READONLY, ONE, "bitmap", bits::bitpos),
    Command::new("decr", 2, WRITE.and(flag::FAST), ONE, "string", counters::decr),
    Command::new("decrby", 3, WRITE.and(flag::FAST), ONE, "string", counters::decrby),
    Command::new("get", 2, READ, ONE, "string", get),
    Command::new("getbit", 3, READ, ONE, "bitmap", bits::getbit),
    Command::new("getdel", 2, flag::WRITE.and(flag::FAST), ONE, "string", getdel),
    Command::new("getex", -2, flag::WRITE.and(flag::FAST), ONE, "string", getex),
    Command::new("getrange", 4, flag::READONLY, ONE, "string", getrange),
    Command::new("getset", 3, WRITE.and(flag::FAST), ONE, "string", getset),
    Command::new("incr", 2, WRITE.and(flag::FAST), ONE, "string", counters::incr),
    Command::new("incrby", 3, WRITE.and(flag::FAST), ONE, "string", counters::incrby),
    Command::new("incrbyfloat", 3, WRITE.and(flag::FAST), ONE, "string", counters::incrbyfloat),
    Command::new("lcs", -3, flag::READONLY, Keys::Range(1, 2, 1), "string", subsequence::lcs),
    Command::new("mget", -2, READ, Keys::Range(1, -1, 1), "string", mget),
    Command::new("mset", -3, WRITE, Keys::Range(1, -1, 2), "string", mset),
    Command::new("msetnx", -3, WRITE, Keys::Range(1, -1, 2), "string", msetnx),
    Command::new("psetex", 4, WRITE, ONE, "string", psetex),
    Command::new("set", -3, WRITE, ONE, "string", set),
    Command::new("setbit", 4, WRITE, ONE, "bitmap", bits::setbit),
    Command::new("setex", 4, WRITE, ONE, "string", setex),
    Command::new("setnx", 3, WRITE.and(flag::FAST), ONE, "string", setnx),
    Command::new("setrange", 4, WRITE, ONE, "string", setrange),
    Command::new("strlen", 2, READ, ONE, "string", strlen),
    Command::new("substr", 4, flag::READONLY, ONE, "string", getrange),
];

/// Replies with the string at a key.
fn reply_string(context: &mut Context<'_>, key: &[u8]) -> Outcome {
    let mut digits = Digits::default();
    match string(context.data.read(key))? {
        Some(string) => context.reply.bulk(string.bytes(&mut digits)),
        None => context.reply.nil(),
    }
    Ok(())
}

fn get(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    reply_string(context, arguments[1])
}

/// Sets a key to a string and records it. `deadline` is [`NEVER`] for none.
fn store(context: &mut Context<'_>, key: &[u8], value: &[u8], deadline: u64) {
    context.data.insert_string(key, value);
    context.notify(class::STRING, "set", key);
    if deadline == NEVER {
        context.data.effect(&[b"SET", key, value]);
        return;
    }
    context.data.set_expiry(key, deadline);
    context.notify(class::GENERIC, "expire", key);
    let mut digits = Digits::default();
    context.data.effect(&[b"SET", key, value, b"PXAT", digits.write(deadline as i64)]);
}

/// An expiry given as EX, PX, EXAT or PXAT, in Unix milliseconds.
fn deadline(argument: &[u8], seconds: bool, absolute: bool, now: Now, command: &str) -> Result<u64, Fault> {
    let invalid = || Fault::new(format!("ERR invalid expire time in '{command}' command"));
    let value = integer(argument)?;
    if value <= 0 {
        return Err(invalid());
    }
    let value = if seconds { value.checked_mul(1000) } else { Some(value) };
    let base = if absolute { 0 } else { now.unix_ms as i64 };
    value
        .and_then(|value| value.checked_add(base))
        .and_then(|value| u64::try_from(value).ok())
        .ok_or_else(invalid)
}

#[derive(Default)]
struct SetOptions {
    only_new: bool,
    only_old: bool,
    keep_expiry: bool,
    get: bool,
    deadline: Option<u64>,
}

/// The unit and the base of an expiry option: (seconds, absolute).
fn expiry_option(word: &[u8]) -> Option<(bool, bool)> {
    [("ex", true, false), ("px", false, false), ("exat", true, true), ("pxat", false, true)]
        .into_iter()
        .find(|(name, ..)| is(word, name))
        .map(|(_, seconds, absolute)| (seconds, absolute))
}

fn set_options(arguments: &[&[u8]], now: Now) -> Result<SetOptions, Fault> {
    let mut options = SetOptions::default();
    let mut expiry = None;
    let mut rest = arguments;
    while let [word, tail @ ..] = rest {
        rest = tail;
        if is(word, "nx") && !options.only_old {
            options.only_new = true;
        } else if is(word, "xx") && !options.only_new {
            options.only_old = true;
        } else if is(word, "get") {
            options.get = true;
        } else if is(word, "keepttl") && expiry.is_none() {
            options.keep_expiry = true;
        } else if let Some(unit) = expiry_option(word)
            && let [value, tail @ ..] = rest
            && expiry.is_none()
            && !options.keep_expiry
        {
            expiry = Some((*value, unit));
            rest = tail;
        } else {
            return Err(Fault::SYNTAX);
        }
    }
    if let Some((value, (seconds, absolute))) = expiry {
        options.deadline = Some(deadline(value, seconds, absolute, now, "set")?);
    }
    Ok(options)
}

fn set(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let (key, value) = (arguments[1], arguments[2]);
    if arguments.len() == 3 {
        store(context, key, value, NEVER);
        context.reply.ok();
        return Ok(());
    }
    let options = set_options(&arguments[3..], context.data.now())?;
    if options.get {
        reply_string(context, key)?;
    }
    let exists = (options.only_new || options.only_old) && context.data.exists(key);
    if options.only_new && exists || options.only_old && !exists {
        if !options.get {
            context.reply.nil();
        }
        return Ok(());
    }
    if options.keep_expiry {
        let new = Value::String(StringValue::new(value));
        context.data.insert_keeping_expiry(key, new);
        context.notify(class::STRING, "set", key);
        context.data.effect(&[b"SET", key, value, b"KEEPTTL"]);
    } else {
        store(context, key, value, options.deadline.unwrap_or(NEVER));
    }
    if !options.get {
        context.reply.ok();
    }
    Ok(())
}

fn setnx(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let new = !context.data.exists(arguments[1]);
    if new {
        store(context, arguments[1], arguments[2], NEVER);
    }
    context.reply.integer(i64::from(new));
    Ok(())
}

fn setex(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let at = deadline(arguments[2], true, false, context.data.now(), "setex")?;
    store(context, arguments[1], arguments[3], at);
    context.reply.ok();
    Ok(())
}

fn psetex(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let at = deadline(arguments[2], false, false, context.data.now(), "psetex")?;
    store(context, arguments[1], arguments[3], at);
    context.reply.ok();
    Ok(())
}

fn getset(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    reply_string(context, arguments[1])?;
    store(context, arguments[1], arguments[2], NEVER);
    Ok(())
}

fn getdel(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let key = arguments[1];
    reply_string(context, key)?;
    if context.data.remove(key).is_some() {
        context.notify(class::GENERIC, "del", key);
        context.data.effect_delete(key);
    }
    Ok(())
}

fn getex(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let key = arguments[1];
    let target = match arguments[2..] {
        [] => None,
        ref words if words.iter().all(|word| is(word, "persist")) => Some(NEVER),
        [word, value] => {
            let (seconds, absolute) = expiry_option(word).ok_or(Fault::SYNTAX)?;
            // The key is checked first: if it does not exist, the time is not validated.
            if string(context.data.read(key))?.is_none() {
                context.reply.nil();
                return Ok(());
            }
            Some(deadline(value, seconds, absolute, context.data.now(), "getex")?)
        }
        _ => return Err(Fault::SYNTAX),
    };
    reply_string(context, key)?;
    let (Some(target), Some(current)) = (target, context.data.expiry(key)) else {
        return Ok(());
    };
    if target == NEVER {
        if current != NEVER {
            context.data.set_expiry(key, NEVER);
            context.notify(class::GENERIC, "persist", key);
            context.data.effect(&[b"PERSIST", key]);
        }
    } else if target <= context.data.now().unix_ms {
        context.data.remove(key);
        context.notify(class::GENERIC, "del", key);
        context.data.effect_delete(key);
    } else {
        context.data.set_expiry(key, target);
        context.notify(class::GENERIC, "expire", key);
        let mut digits = Digits::default();
        context.data.effect(&[b"PEXPIREAT", key, digits.write(target as i64)]);
    }
    Ok(())
}

fn mget(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    context.reply.array(arguments.len() - 1);
    let mut digits = Digits::default();
    for key in &arguments[1..] {
        match context.data.read(key) {
            Some(ValueRef::String(string)) => context.reply.bulk(string.bytes(&mut digits)),
            _ => context.reply.nil(),
        }
    }
    Ok(())
}

fn mset(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    if arguments.len().is_multiple_of(2) {
        return Err(Fault::arity("mset"));
    }
    for pair in arguments[1..].chunks_exact(2) {
        store(context, pair[0], pair[1], NEVER);
    }
    context.reply.ok();
    Ok(())
}

fn msetnx(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    if arguments.len().is_multiple_of(2) {
        return Err(Fault::arity("msetnx"));
    }
    let mut keys = arguments[1..].iter().step_by(2);
    if keys.any(|key| context.data.exists(key)) {
        context.reply.integer(0);
        return Ok(());
    }
    for pair in arguments[1..].chunks_exact(2) {
        store(context, pair[0], pair[1], NEVER);
    }
    context.reply.integer(1);
    Ok(())
}

fn append(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let (key, tail) = (arguments[1], arguments[2]);
    let limit = context.data.longest_string();
    let found = context.data.peek(key).map(|entry| string(Some(entry.value()))).transpose()?.flatten();
    let length = match found {
        None => {
            context.data.insert_string(key, tail);
            tail.len()
        }
        Some(string) => {
            if (string.len() + tail.len()) as u64 > limit {
                return Err(Fault::TOO_LONG);
            }
            let length = context.data.change_string(key, |bytes| {
                bytes.extend_from_slice(tail);
                bytes.len()
            })?;
            context.data.changed(key);
            length
        }
    };
    context.notify(class::STRING, "append", key);
    context.data.effect(arguments);
    context.reply.count(length);
    Ok(())
}

fn strlen(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let length = string(context.data.read(arguments[1]))?.map_or(0, StringRef::len);
    context.reply.count(length);
    Ok(())
}

fn setrange(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let (key, patch) = (arguments[1], arguments[3]);
    let offset = integer(arguments[2])?;
    let offset = u64::try_from(offset).map_err(|_| Fault::of("ERR offset is out of range"))?;
    let length = string(context.data.read(key))?.map_or(0, StringRef::len);
    if patch.is_empty() {
        context.reply.count(length);
        return Ok(());
    }
    let end = offset.saturating_add(patch.len() as u64);
    check_length(context, end)?;
    context.data.admit(usize::try_from(end).unwrap_or(usize::MAX).saturating_sub(length))?;
    let start = usize::try_from(offset).map_err(|_| Fault::TOO_LONG)?;
    let length = context.data.change_string(key, |bytes| {
        let end = start + patch.len();
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[start..end].copy_from_slice(patch);
        bytes.len()
    })?;
    context.notify(class::STRING, "setrange", key);
    context.data.changed(key);
    context.data.effect(arguments);
    context.reply.count(length);
    Ok(())
}

fn getrange(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let start = integer(arguments[2])?;
    let end = integer(arguments[3])?;
    let mut digits = Digits::default();
    match string(context.data.read(arguments[1]))? {
        None => context.reply.bulk(b""),
        Some(string) => {
            let bytes = string.bytes(&mut digits);
            context.reply.bulk(&bytes[clamp_range(start, end, bytes.len())]);
        }
    }
    Ok(())
}
