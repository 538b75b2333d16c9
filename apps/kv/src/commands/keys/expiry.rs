//! EXPIRE, TTL and their variants.
//!
//! The recorded effect always has an absolute time (PEXPIREAT), so that a replay does not prolong
//! the life of a key.

use crate::commands::context::{Context, Outcome};
use crate::data::keyspace::NEVER;
use crate::foundation::command::{integer, is};
use crate::foundation::observation::key_events::class;
use crate::foundation::protocol::Fault;
use crate::foundation::text::number::Digits;

#[derive(Default, Clone, Copy)]
struct Conditions {
    only_none: bool,
    only_some: bool,
    only_later: bool,
    only_sooner: bool,
}

fn conditions(arguments: &[&[u8]]) -> Result<Conditions, Fault> {
    let mut conditions = Conditions::default();
    for word in arguments {
        if is(word, "nx") {
            conditions.only_none = true;
        } else if is(word, "xx") {
            conditions.only_some = true;
        } else if is(word, "gt") {
            conditions.only_later = true;
        } else if is(word, "lt") {
            conditions.only_sooner = true;
        } else {
            let mut text = b"ERR Unsupported option ".to_vec();
            text.extend_from_slice(word);
            return Err(Fault::new(text));
        }
    }
    let Conditions { only_none, only_some, only_later, only_sooner } = conditions;
    if only_none && (only_some || only_later || only_sooner) {
        return Err(Fault::of("ERR NX and XX, GT or LT options at the same time are not compatible"));
    }
    if only_later && only_sooner {
        return Err(Fault::of("ERR GT and LT options at the same time are not compatible"));
    }
    Ok(conditions)
}

fn set(context: &mut Context<'_>, arguments: &[&[u8]], seconds: bool, absolute: bool) -> Outcome {
    let key = arguments[1];
    let invalid = || {
        let name = context.command.spec.name;
        Fault::new(format!("ERR invalid expire time in '{name}' command"))
    };
    let conditions = conditions(&arguments[3..])?;
    let value = integer(arguments[2])?;
    let value = if seconds { value.checked_mul(1000).ok_or_else(invalid)? } else { value };
    let base = if absolute { 0 } else { context.data.now().unix_ms as i64 };
    let deadline = value.checked_add(base).ok_or_else(invalid)?;
    let Some(current) = context.data.expiry(key) else {
        context.reply.integer(0);
        return Ok(());
    };
    let current = if current == NEVER { None } else { Some(current as i64) };
    let refused = conditions.only_none && current.is_some()
        || conditions.only_some && current.is_none()
        || conditions.only_later && current.is_none_or(|current| deadline <= current)
        || conditions.only_sooner && current.is_some_and(|current| deadline >= current);
    if refused {
        context.reply.integer(0);
        return Ok(());
    }
    if deadline <= context.data.now().unix_ms as i64 && !context.data.replaying() {
        context.data.delete(key);
        context.notify(class::GENERIC, "del", key);
    } else {
        context.data.set_expiry(key, u64::try_from(deadline).unwrap_or(0));
        context.notify(class::GENERIC, "expire", key);
        let mut digits = Digits::default();
        context.data.effect(&[b"PEXPIREAT", key, digits.write(deadline)]);
    }
    context.reply.integer(1);
    Ok(())
}

pub(super) fn expire(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    set(context, arguments, true, false)
}

pub(super) fn pexpire(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    set(context, arguments, false, false)
}

pub(super) fn expireat(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    set(context, arguments, true, true)
}

pub(super) fn pexpireat(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    set(context, arguments, false, true)
}

/// Replies with an expiry: -2 without key, -1 without expiry.
fn reply_expiry(context: &mut Context<'_>, key: &[u8], seconds: bool, absolute: bool) -> Outcome {
    let now = context.data.now().unix_ms;
    let value = match context.data.expiry(key) {
        None => -2,
        Some(NEVER) => -1,
        Some(at) => {
            let left = if absolute { at } else { at.saturating_sub(now) } as i64;
            match (seconds, absolute) {
                (false, _) => left,
                // A remaining time is rounded, a point in time is truncated.
                (true, false) => left.saturating_add(500) / 1000,
                (true, true) => left / 1000,
            }
        }
    };
    context.reply.integer(value);
    Ok(())
}

pub(super) fn ttl(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    reply_expiry(context, arguments[1], true, false)
}

pub(super) fn pttl(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    reply_expiry(context, arguments[1], false, false)
}

pub(super) fn expiretime(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    reply_expiry(context, arguments[1], true, true)
}

pub(super) fn pexpiretime(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    reply_expiry(context, arguments[1], false, true)
}

pub(super) fn persist(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let key = arguments[1];
    let had = context.data.expiry(key).is_some_and(|at| at != NEVER);
    if had {
        context.data.set_expiry(key, NEVER);
        context.notify(class::GENERIC, "persist", key);
        context.data.effect(&[b"PERSIST", key]);
    }
    context.reply.integer(i64::from(had));
    Ok(())
}
