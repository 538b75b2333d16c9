//! Strings as numbers.

use super::access::string;
use crate::commands::context::{Context, Outcome};
use crate::data::value::{StringValue, Value};
use crate::foundation::command::integer;
use crate::foundation::observation::key_events::class;
use crate::foundation::protocol::Fault;
use crate::foundation::text::number::{Digits, Extended};

/// Adds to the integer at a key.
fn add(context: &mut Context<'_>, key: &[u8], delta: i64, arguments: &[&[u8]]) -> Outcome {
    let found = context.data.peek(key).map(|entry| string(Some(entry.value()))).transpose()?.flatten();
    let sum = match found {
        None => {
            context.data.insert(key, Value::String(StringValue::Integer(delta)));
            delta
        }
        Some(string) => {
            let sum =
                string.integer().ok_or(Fault::NOT_INTEGER)?.checked_add(delta).ok_or(Fault::OVERFLOW)?;
            context.data.set_integer(key, sum);
            sum
        }
    };
    context.notify(class::STRING, "incrby", key);
    context.data.effect(arguments);
    context.reply.integer(sum);
    Ok(())
}

pub(super) fn incr(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    add(context, arguments[1], 1, arguments)
}

pub(super) fn decr(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    add(context, arguments[1], -1, arguments)
}

pub(super) fn incrby(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let delta = integer(arguments[2])?;
    add(context, arguments[1], delta, arguments)
}

pub(super) fn decrby(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let delta = integer(arguments[2])?.checked_neg().ok_or(Fault::of("ERR decrement would overflow"))?;
    add(context, arguments[1], delta, arguments)
}

pub(super) fn incrbyfloat(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let key = arguments[1];
    let mut digits = Digits::default();
    let current = match string(context.data.read(key))? {
        Some(string) => string.bytes(&mut digits).to_vec(),
        None => b"0".to_vec(),
    };
    let current = Extended::parse(&current).ok_or(Fault::NOT_FLOAT)?;
    let delta = Extended::parse(arguments[2]).ok_or(Fault::NOT_FLOAT)?;
    let sum = current + delta;
    if !sum.is_finite() {
        return Err(Fault::NOT_A_NUMBER);
    }
    let text = sum.print().into_bytes();
    context.data.insert_keeping_expiry(key, Value::String(StringValue::from_bytes(&text)));
    context.notify(class::STRING, "incrbyfloat", key);
    context.data.effect(&[b"SET", key, &text, b"KEEPTTL"]);
    context.reply.bulk(&text);
    Ok(())
}
