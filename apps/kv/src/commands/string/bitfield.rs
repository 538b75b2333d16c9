//! BITFIELD: integers of any width at any bit of a string.
//!
//! 1. All operations are read and checked before the first one runs.
//! 2. A field is read and written bit by bit: at most 64 steps. Bits behind the end of the string
//!    are zero.
//! 3. The effect is the command itself, which is deterministic. If it is longer than the new
//!    string, or has more arguments than an effect may have, the effect is that string (SET with
//!    KEEPTTL). As in Redis, neither a field that is written with its old value nor room for a
//!    field that then did not fit is a change for clients that watch the key.

use super::access::string;
use crate::commands::context::{Context, Outcome};
use crate::data::journal::MOST_ARGUMENTS;
use crate::data::value::StringRef;
use crate::foundation::command::{integer, is};
use crate::foundation::observation::key_events::class;
use crate::foundation::protocol::{Fault, Reply};
use crate::foundation::text::number::Digits;

#[derive(Clone, Copy)]
enum Overflow {
    Wrap,
    Saturate,
    Fail,
}

#[derive(Clone, Copy)]
enum Action {
    Get,
    Set(i64),
    Add(i64),
}

#[derive(Clone, Copy)]
struct Operation {
    signed: bool,
    width: u32,
    offset: u64,
    overflow: Overflow,
    action: Action,
}

const BAD_TYPE: Fault = Fault::of(
    "ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.",
);
const BAD_OFFSET: Fault = Fault::of("ERR bit offset is not an integer or out of range");

fn field_type(argument: &[u8]) -> Result<(bool, u32), Fault> {
    let (signed, digits) = match argument {
        [b'i', digits @ ..] => (true, digits),
        [b'u', digits @ ..] => (false, digits),
        _ => return Err(BAD_TYPE),
    };
    let most = if signed { 64 } else { 63 };
    let width = crate::foundation::text::number::parse_integer(digits)
        .and_then(|width| u32::try_from(width).ok())
        .filter(|width| (1..=most).contains(width))
        .ok_or(BAD_TYPE)?;
    Ok((signed, width))
}

fn field_offset(context: &Context<'_>, argument: &[u8], width: u32) -> Result<u64, Fault> {
    let (factor, digits) = match argument {
        [b'#', digits @ ..] => (u64::from(width), digits),
        digits => (1, digits),
    };
    crate::foundation::text::number::parse_integer(digits)
        .and_then(|offset| u64::try_from(offset).ok())
        .and_then(|offset| offset.checked_mul(factor))
        .filter(|offset| {
            let last = offset.saturating_add(u64::from(width) - 1);
            last >> 3 < context.data.longest_string()
        })
        .ok_or(BAD_OFFSET)
}

fn operations(context: &Context<'_>, arguments: &[&[u8]]) -> Result<Vec<Operation>, Fault> {
    let mut all = Vec::new();
    let mut overflow = Overflow::Wrap;
    let mut rest = arguments;
    loop {
        let (kind, offset, action, tail) = match rest {
            [] => return Ok(all),
            [word, mode, tail @ ..] if is(word, "overflow") => {
                overflow = if is(mode, "wrap") {
                    Overflow::Wrap
                } else if is(mode, "sat") {
                    Overflow::Saturate
                } else if is(mode, "fail") {
                    Overflow::Fail
                } else {
                    return Err(Fault::of("ERR Invalid OVERFLOW type specified"));
                };
                rest = tail;
                continue;
            }
            [word, kind, offset, tail @ ..] if is(word, "get") => (kind, offset, None, tail),
            [word, kind, offset, value, tail @ ..] if is(word, "set") || is(word, "incrby") => {
                (kind, offset, Some((is(word, "set"), value)), tail)
            }
            _ => return Err(Fault::SYNTAX),
        };
        let (signed, width) = field_type(kind)?;
        let offset = field_offset(context, offset, width)?;
        let action = match action {
            None => Action::Get,
            Some((true, value)) => Action::Set(integer(value)?),
            Some((false, value)) => Action::Add(integer(value)?),
        };
        all.push(Operation { signed, width, offset, overflow, action });
        rest = tail;
    }
}

fn read(bytes: &[u8], operation: &Operation) -> i64 {
    let mut value = 0u64;
    for at in operation.offset..operation.offset + u64::from(operation.width) {
        let byte = bytes.get((at >> 3) as usize).copied().unwrap_or(0);
        value = value << 1 | u64::from(byte >> (7 - (at & 7)) & 1);
    }
    if operation.signed {
        let unused = 64 - operation.width;
        (value << unused).cast_signed() >> unused
    } else {
        value.cast_signed()
    }
}

fn write(bytes: &mut [u8], operation: &Operation, value: i64) {
    for step in 0..operation.width {
        let at = operation.offset + u64::from(operation.width - 1 - step);
        let mask = 0x80 >> (at & 7);
        if value >> step & 1 == 1 {
            bytes[(at >> 3) as usize] |= mask;
        } else {
            bytes[(at >> 3) as usize] &= !mask;
        }
    }
}

/// The value that the field stores; `None` if the value does not fit and OVERFLOW FAIL is set.
fn fit(operation: &Operation, value: i128) -> Option<i64> {
    let width = operation.width;
    let (least, most) = if operation.signed {
        (-(1i128 << (width - 1)), (1i128 << (width - 1)) - 1)
    } else {
        (0, (1i128 << width) - 1)
    };
    if (least..=most).contains(&value) {
        return Some(value as i64);
    }
    match operation.overflow {
        Overflow::Fail => None,
        Overflow::Saturate => Some(value.clamp(least, most) as i64),
        Overflow::Wrap => {
            let wrapped = value.rem_euclid(1i128 << width);
            Some(if wrapped > most { wrapped - (1i128 << width) } else { wrapped } as i64)
        }
    }
}

/// Runs the operations on a string that has room for them, and replies to each; whether one of them
/// changed it. One that writes the zeros of a string that was just `grown` did, too.
fn apply(bytes: &mut [u8], operations: &[Operation], grown: bool, reply: &mut Reply) -> bool {
    let mut written = false;
    for operation in operations {
        let before = read(bytes, operation);
        let (new, shows_new) = match operation.action {
            Action::Get => (None, false),
            Action::Set(value) => {
                // An unsigned field takes the bits of a negative number.
                let wide =
                    if operation.signed { i128::from(value) } else { i128::from(value.cast_unsigned()) };
                (fit(operation, wide), false)
            }
            Action::Add(delta) => (fit(operation, i128::from(before) + i128::from(delta)), true),
        };
        match (operation.action, new) {
            (Action::Get, _) => reply.integer(before),
            (_, None) => reply.nil(),
            (_, Some(new)) => {
                write(bytes, operation, new);
                written |= grown || read(bytes, operation) != before;
                reply.integer(if shows_new { new } else { before });
            }
        }
    }
    written
}

fn run(context: &mut Context<'_>, arguments: &[&[u8]], operations: &[Operation]) -> Outcome {
    let key = arguments[1];
    let current = string(context.data.read(key))?;
    let mut digits = Digits::default();
    let end = operations
        .iter()
        .filter(|operation| !matches!(operation.action, Action::Get))
        .map(|operation| operation.offset + u64::from(operation.width))
        .max();
    let Some(end) = end else {
        let bytes = current.map_or(&b""[..], |string| string.bytes(&mut digits));
        context.reply.array(operations.len());
        operations.iter().for_each(|operation| context.reply.integer(read(bytes, operation)));
        return Ok(());
    };
    let (needed, length) = (end.div_ceil(8) as usize, current.map_or(0, StringRef::len));
    context.data.admit(needed.saturating_sub(length))?;
    let given: usize = arguments.iter().map(|argument| argument.len() + 1).sum();
    let reply = &mut context.reply;
    reply.array(operations.len());
    let (grown, written, value) = context.data.change_string(key, |bytes| {
        let grown = bytes.len() < needed;
        if grown {
            bytes.resize(needed, 0);
        }
        let written = apply(bytes, operations, grown, reply);
        let long = arguments.len() > MOST_ARGUMENTS || given > bytes.len();
        (grown, written, (long && (grown || written)).then(|| bytes.clone()))
    })?;
    if written {
        context.notify(class::STRING, "setbit", key);
        context.data.changed(key);
    } else if !grown {
        return Ok(());
    }
    match value {
        Some(value) => context.data.effect(&[b"SET", key, &value, b"KEEPTTL"]),
        None => context.data.effect(arguments),
    }
    Ok(())
}

pub(super) fn bitfield(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let operations = operations(context, &arguments[2..])?;
    run(context, arguments, &operations)
}

pub(super) fn bitfield_ro(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let operations = operations(context, &arguments[2..])?;
    if operations.iter().any(|operation| !matches!(operation.action, Action::Get)) {
        return Err(Fault::of("ERR BITFIELD_RO only supports the GET subcommand"));
    }
    run(context, arguments, &operations)
}
