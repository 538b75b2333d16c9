//! Strings as arrays of bits. Bit 0 is the most significant of the first byte.
//!
//! SETBIT, GETBIT, BITCOUNT, BITPOS and BITOP; `bitfield.rs` has BITFIELD. Offsets are limited by
//! `proto-max-bulk-len`, so that no offset makes a longer string than SET could.

use super::access::{check_length, clamp_range, string};
use crate::commands::context::{Context, Outcome};
use crate::data::value::{StringRef, StringValue, Value};
use crate::foundation::command::{integer, is};
use crate::foundation::observation::key_events::class;
use crate::foundation::protocol::Fault;
use crate::foundation::text::number::Digits;

const BAD_OFFSET: Fault = Fault::of("ERR bit offset is not an integer or out of range");

/// A bit offset argument as (byte, mask).
fn position(context: &Context<'_>, argument: &[u8]) -> Result<(usize, u8), Fault> {
    let offset = crate::foundation::text::number::parse_integer(argument)
        .and_then(|offset| u64::try_from(offset).ok())
        .filter(|offset| offset >> 3 < context.data.longest_string())
        .ok_or(BAD_OFFSET)?;
    Ok(((offset >> 3) as usize, 0x80 >> (offset & 7)))
}

pub(super) fn setbit(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let key = arguments[1];
    let (byte, mask) = position(context, arguments[2])?;
    let on = match arguments[3] {
        b"0" => false,
        b"1" => true,
        _ => return Err(Fault::of("ERR bit is not an integer or out of range")),
    };
    let length = string(context.data.read(key))?.map_or(0, StringRef::len);
    check_length(context, byte as u64 + 1)?;
    context.data.admit((byte + 1).saturating_sub(length))?;
    let (grown, before) = context.data.change_string(key, |bytes| {
        let grown = bytes.len() <= byte;
        if grown {
            bytes.resize(byte + 1, 0);
        }
        let before = bytes[byte] & mask != 0;
        if on {
            bytes[byte] |= mask;
        } else {
            bytes[byte] &= !mask;
        }
        (grown, before)
    })?;
    // Setting a bit to its old value is no change for clients that watch the key.
    if grown || before != on {
        context.notify(class::STRING, "setbit", key);
        context.data.changed(key);
        context.data.effect(arguments);
    }
    context.reply.integer(i64::from(before));
    Ok(())
}

pub(super) fn getbit(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let (byte, mask) = position(context, arguments[2])?;
    let mut digits = Digits::default();
    let set = string(context.data.read(arguments[1]))?
        .is_some_and(|string| string.bytes(&mut digits).get(byte).is_some_and(|&b| b & mask != 0));
    context.reply.integer(i64::from(set));
    Ok(())
}

/// Whether a range is counted in bits.
fn in_bits(unit: Option<&&[u8]>) -> Result<bool, Fault> {
    match unit {
        None => Ok(false),
        Some(unit) if is(unit, "byte") => Ok(false),
        Some(unit) if is(unit, "bit") => Ok(true),
        Some(_) => Err(Fault::SYNTAX),
    }
}

fn bit(bytes: &[u8], at: usize) -> bool {
    bytes[at >> 3] & 0x80 >> (at & 7) != 0
}

fn ones(bytes: &[u8]) -> usize {
    let (words, rest) = bytes.as_chunks::<8>();
    let words: usize = words.iter().map(|word| u64::from_ne_bytes(*word).count_ones() as usize).sum();
    words + rest.iter().map(|byte| byte.count_ones() as usize).sum::<usize>()
}

/// Ones among the bits of a range.
fn ones_in(bytes: &[u8], range: std::ops::Range<usize>) -> usize {
    let (first, last) = (range.start.div_ceil(8), range.end / 8);
    if first >= last {
        return range.filter(|&at| bit(bytes, at)).count();
    }
    let head = (range.start..first * 8).filter(|&at| bit(bytes, at)).count();
    let tail = (last * 8..range.end).filter(|&at| bit(bytes, at)).count();
    head + ones(&bytes[first..last]) + tail
}

pub(super) fn bitcount(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    // The key is checked first: if it does not exist, the range is not validated.
    let mut digits = Digits::default();
    let Some(string) = string(context.data.read(arguments[1]))? else {
        context.reply.integer(0);
        return Ok(());
    };
    let range = match arguments.len() {
        2 => None,
        4 | 5 => Some((integer(arguments[2])?, integer(arguments[3])?)),
        _ => return Err(Fault::SYNTAX),
    };
    if range.is_some_and(|(start, end)| start < 0 && end < 0 && start > end) {
        context.reply.integer(0);
        return Ok(());
    }
    let bits = in_bits(arguments.get(4))?;
    let bytes = string.bytes(&mut digits);
    context.reply.count(match range {
        None => ones(bytes),
        Some((start, end)) if bits => ones_in(bytes, clamp_range(start, end, bytes.len() * 8)),
        Some((start, end)) => ones(&bytes[clamp_range(start, end, bytes.len())]),
    });
    Ok(())
}

/// The first bit of this value in a range of bits.
fn find(bytes: &[u8], range: std::ops::Range<usize>, set: bool) -> Option<usize> {
    let skipped = if set { 0x00 } else { 0xff };
    let mut at = range.start;
    while at < range.end {
        if at & 7 == 0 && at + 8 <= range.end && bytes[at >> 3] == skipped {
            at += 8;
        } else if bit(bytes, at) == set {
            return Some(at);
        } else {
            at += 1;
        }
    }
    None
}

pub(super) fn bitpos(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let set = match integer(arguments[2])? {
        0 => false,
        1 => true,
        _ => return Err(Fault::of("ERR The bit argument must be 1 or 0.")),
    };
    let mut digits = Digits::default();
    let Some(string) = string(context.data.read(arguments[1]))? else {
        context.reply.integer(if set { -1 } else { 0 });
        return Ok(());
    };
    if arguments.len() > 6 {
        return Err(Fault::SYNTAX);
    }
    let start = arguments.get(3).map_or(Ok(0), |argument| integer(argument))?;
    let bits = in_bits(arguments.get(5))?;
    let end = arguments.get(4).map_or(Ok(-1), |argument| integer(argument))?;
    let bytes = string.bytes(&mut digits);
    // Unlike other ranges, one that is before the string selects its first byte.
    let clamp = |length: usize| {
        let from_start = |at: i64| if at < 0 { at.saturating_add(length as i64).max(0) } else { at };
        clamp_range(from_start(start), from_start(end), length)
    };
    let range = if bits {
        clamp(bytes.len() * 8)
    } else {
        let range = clamp(bytes.len());
        range.start * 8..range.end * 8
    };
    let empty = range.is_empty();
    let past = range.end;
    let found = match find(bytes, range, set) {
        Some(at) => at as i64,
        // Behind the string all bits are zero, unless an end was given.
        None if !set && !empty && arguments.len() < 5 => past as i64,
        None => -1,
    };
    context.reply.integer(found);
    Ok(())
}

pub(super) fn bitop(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let (operation, target) = (arguments[1], arguments[2]);
    let combine: fn(u8, u8) -> u8 = if is(operation, "and") {
        |a, b| a & b
    } else if is(operation, "or") {
        |a, b| a | b
    } else if is(operation, "xor") {
        |a, b| a ^ b
    } else if is(operation, "not") {
        |a, _| !a
    } else {
        return Err(Fault::SYNTAX);
    };
    if is(operation, "not") && arguments.len() != 4 {
        return Err(Fault::of("ERR BITOP NOT must be called with a single source key."));
    }
    let mut sources: Vec<Vec<u8>> = Vec::with_capacity(arguments.len() - 3);
    for key in &arguments[3..] {
        sources.push(string(context.data.read(key))?.map(StringRef::to_vec).unwrap_or_default());
    }
    let length = sources.iter().map(Vec::len).max().unwrap_or(0);
    let mut result = std::mem::take(&mut sources[0]);
    result.resize(length, 0);
    if is(operation, "not") {
        result.iter_mut().for_each(|byte| *byte = !*byte);
    }
    for source in &sources[1..] {
        for (at, byte) in result.iter_mut().enumerate() {
            *byte = combine(*byte, source.get(at).copied().unwrap_or(0));
        }
    }
    if result.is_empty() {
        if context.data.remove(target).is_some() {
            context.notify(class::GENERIC, "del", target);
            context.data.effect_delete(target);
        }
    } else {
        let value = Value::String(StringValue::Grown(result.clone()));
        context.data.admit_value(target, &value)?;
        context.data.insert(target, value);
        context.notify(class::STRING, "set", target);
        context.data.effect(&[b"SET", target, &result]);
    }
    context.reply.count(length);
    Ok(())
}
