//! Commands about keys of any type.
//!
//! `keys/expiry.rs` has EXPIRE, TTL and their variants, `keys/sort.rs` SORT, `keys/object.rs`
//! OBJECT, DUMP and RESTORE.

use super::context::{Command, Context, Outcome};
use crate::data::index::Keyed as _;
use crate::data::keyspace::NEVER;
use crate::data::value::Value;
use crate::foundation::command::{Flags, Keys, flag, integer, is};
use crate::foundation::observation::key_events::class;
use crate::foundation::protocol::Fault;
use crate::foundation::text::glob;

mod expiry;
mod object;
mod sort;

const ONE: Keys = Keys::Range(1, 1, 1);
const TWO: Keys = Keys::Range(1, 2, 1);
const ALL: Keys = Keys::Range(1, -1, 1);
const READ: Flags = flag::READONLY.and(flag::FAST);
const WRITE: Flags = flag::WRITE.and(flag::FAST);

/// The commands of this family.
pub(super) const COMMANDS: &[Command] = &[
    Command::new("copy", -3, flag::WRITE.and(flag::DENY_OOM), TWO, "generic", copy),
    Command::new("del", -2, flag::WRITE, ALL, "generic", del),
    Command::new("dump", 2, flag::READONLY, ONE, "generic", object::dump),
    Command::new("exists", -2, READ, ALL, "generic", exists),
    Command::new("expire", -3, WRITE, ONE, "generic", expiry::expire),
    Command::new("expireat", -3, WRITE, ONE, "generic", expiry::expireat),
    Command::new("expiretime", 2, READ, ONE, "generic", expiry::expiretime),
    Command::new("keys", 2, flag::READONLY, Keys::None, "generic", keys),
    Command::new("move", 3, WRITE, ONE, "generic", move_key),
    Command::new("object", -2, flag::READONLY, Keys::Range(2, 2, 1), "generic", object::object),
    Command::new("persist", 2, WRITE, ONE, "generic", expiry::persist),
    Command::new("pexpire", -3, WRITE, ONE, "generic", expiry::pexpire),
    Command::new("pexpireat", -3, WRITE, ONE, "generic", expiry::pexpireat),
    Command::new("pexpiretime", 2, READ, ONE, "generic", expiry::pexpiretime),
    Command::new("pttl", 2, READ, ONE, "generic", expiry::pttl),
    Command::new("randomkey", 1, flag::READONLY, Keys::None, "generic", randomkey),
    Command::new("rename", 3, flag::WRITE, TWO, "generic", rename),
    Command::new("renamenx", 3, WRITE, TWO, "generic", renamenx),
    Command::new("restore", -4, flag::WRITE.and(flag::DENY_OOM), ONE, "generic", object::restore),
    Command::new(
        "sort",
        -2,
        flag::WRITE.and(flag::DENY_OOM).and(flag::MOVABLE_KEYS),
        ONE,
        "generic",
        sort::sort,
    ),
    Command::new("sort_ro", -2, flag::READONLY.and(flag::MOVABLE_KEYS), ONE, "generic", sort::sort_ro),
    Command::new("touch", -2, READ, ALL, "generic", touch),
    Command::new("ttl", 2, READ, ONE, "generic", expiry::ttl),
    Command::new("type", 2, READ, ONE, "generic", type_name),
    Command::new("unlink", -2, WRITE, ALL, "generic", del),
];

fn del(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let mut deleted = 0;
    for key in &arguments[1..] {
        if context.data.delete(key) {
            context.notify(class::GENERIC, "del", key);
            deleted += 1;
        }
    }
    context.reply.count(deleted);
    Ok(())
}

fn exists(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let found = arguments[1..].iter().filter(|key| context.data.contains_counted(key)).count();
    context.reply.count(found);
    Ok(())
}

fn touch(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let found = arguments[1..].iter().filter(|key| context.data.read(key).is_some()).count();
    context.reply.count(found);
    Ok(())
}

fn type_name(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let name = context.data.peek(arguments[1]).map_or("none", |entry| entry.value().type_name());
    context.reply.simple(name);
    Ok(())
}

fn keys(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let pattern = arguments[1];
    let header = context.reply.defer();
    let mut count = 0;
    let Context { data, reply, .. } = context;
    data.for_each(&mut |entry| {
        if pattern == b"*" || glob::matches(pattern, entry.key()) {
            reply.bulk(entry.key());
            count += 1;
        }
    });
    context.reply.fill(header, count);
    Ok(())
}

fn randomkey(context: &mut Context<'_>, _: &[&[u8]]) -> Outcome {
    let key = context.data.random_key();
    context.reply.bulk_or_nil(key.as_deref());
    Ok(())
}

/// Moves a value and its expiry to another key, which is replaced.
fn put(context: &mut Context<'_>, key: &[u8], value: Value, expire_at: u64) {
    // Redis deletes the former key first, so that it is a new one.
    if context.data.exists(key) {
        context.notify(class::NEW, "new", key);
    }
    context.data.insert(key, value);
    if expire_at != NEVER {
        context.data.set_expiry(key, expire_at);
    }
    context.data.effect_rebuild(key);
}

/// Refuses a new name with which a value would exceed the log's area: a snapshot repeats the name.
fn admit_name(context: &mut Context<'_>, from: &[u8], to: &[u8]) -> Outcome {
    let old = context.data.dumped(from);
    let new = context.data.peek(from).map_or(0, |entry| entry.value().dumped(to.len()));
    context.data.admit(new.saturating_sub(old))
}

fn rename(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let (from, to) = (arguments[1], arguments[2]);
    if !context.data.exists(from) {
        return Err(Fault::NO_SUCH_KEY);
    }
    admit_name(context, from, to)?;
    if from != to
        && let Some((value, expire_at)) = context.data.remove_entry(from)
    {
        context.data.effect_delete(from);
        put(context, to, value, expire_at);
        context.notify(class::GENERIC, "rename_from", from);
        context.notify(class::GENERIC, "rename_to", to);
    }
    context.reply.ok();
    Ok(())
}

fn renamenx(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let (from, to) = (arguments[1], arguments[2]);
    if !context.data.exists(from) {
        return Err(Fault::NO_SUCH_KEY);
    }
    if from == to || context.data.exists(to) {
        context.reply.integer(0);
        return Ok(());
    }
    admit_name(context, from, to)?;
    if let Some((value, expire_at)) = context.data.remove_entry(from) {
        context.data.effect_delete(from);
        put(context, to, value, expire_at);
        context.notify(class::GENERIC, "rename_from", from);
        context.notify(class::GENERIC, "rename_to", to);
    }
    context.reply.integer(1);
    Ok(())
}

/// The number of a database other than, or the same as, the selected one.
fn database(context: &Context<'_>, argument: &[u8], out_of_range: &Fault) -> Result<usize, Fault> {
    usize::try_from(integer(argument)?)
        .ok()
        .filter(|&number| number < context.data.store_ref().database_count())
        .ok_or_else(|| out_of_range.clone())
}

fn copy(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let (from, to) = (arguments[1], arguments[2]);
    let here = context.data.database();
    let (mut there, mut replace) = (here, false);
    let mut rest = &arguments[3..];
    loop {
        rest = match rest {
            [] => break,
            [word, tail @ ..] if is(word, "replace") => {
                replace = true;
                tail
            }
            [word, number, tail @ ..] if is(word, "db") => {
                there = database(context, number, &Fault::of("ERR DB index is out of range"))?;
                tail
            }
            _ => return Err(Fault::SYNTAX),
        };
    }
    if from == to && here == there {
        return Err(Fault::of("ERR source and destination objects are the same"));
    }
    let found = context.data.peek(from).map(|entry| (entry.value().to_value(), entry.expire_at()));
    context.data.select(there);
    let copied = match found {
        Some((value, expire_at)) if replace || !context.data.exists(to) => {
            let admitted = context.data.admit_value(to, &value);
            if admitted.is_err() {
                context.data.select(here);
                return admitted;
            }
            put(context, to, value, expire_at);
            context.notify(class::GENERIC, "copy_to", to);
            true
        }
        _ => false,
    };
    context.data.select(here);
    context.reply.integer(i64::from(copied));
    Ok(())
}

fn move_key(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let key = arguments[1];
    let here = context.data.database();
    let there = database(context, arguments[2], &Fault::of("ERR DB index is out of range"))?;
    if here == there {
        return Err(Fault::of("ERR source and destination objects are the same"));
    }
    context.data.select(there);
    let taken = context.data.exists(key);
    context.data.select(here);
    let moved = if taken { None } else { context.data.remove_entry(key) };
    let done = moved.is_some();
    if let Some((value, expire_at)) = moved {
        context.data.effect_delete(key);
        context.data.select(there);
        put(context, key, value, expire_at);
        context.data.select(here);
        context.notify(class::GENERIC, "move_from", key);
        context.data.select(there);
        context.notify(class::GENERIC, "move_to", key);
        context.data.select(here);
    }
    context.reply.integer(i64::from(done));
    Ok(())
}
