//! OBJECT, DUMP and RESTORE.
//!
//! DUMP's payload is Sietch's own: the bytes `SIETCH1`, the effects that build the value under an
//! empty key (see `journal.rs`), and eight bytes of checksum. RESTORE accepts no other payload, in
//! particular none of Redis.

use crate::commands::context::{Context, Outcome};
use crate::data::journal::{self, Reader};
use crate::data::keyspace::NEVER;
use crate::foundation::command::{flag, integer, is};
use crate::foundation::observation::key_events::class;
use crate::foundation::protocol::Fault;
use crate::foundation::text::number::parse_float;

const MAGIC: &[u8] = b"SIETCH1";
/// Kind byte of the record of effects inside a payload.
const PAYLOAD: u8 = 3;

pub(super) fn object(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let subcommand = arguments[1].to_ascii_lowercase();
    match (subcommand.as_slice(), arguments.len()) {
        (b"help", 2) => {
            context.reply.help(
                "OBJECT",
                &[
                    "ENCODING <key>",
                    "    Return the kind of internal representation used in order to store the value",
                    "    associated with a <key>.",
                    "FREQ <key>",
                    "    Return the access frequency index of the <key>. The returned integer is",
                    "    proportional to the logarithm of the recent access frequency of the key.",
                    "IDLETIME <key>",
                    "    Return the idle time of the <key>, that is the approximated number of",
                    "    seconds elapsed since the last access to the key.",
                    "REFCOUNT <key>",
                    "    Return the number of references of the value associated with the specified",
                    "    <key>.",
                ],
            );
            return Ok(());
        }
        (b"encoding" | b"refcount" | b"idletime" | b"freq", 3) => {}
        _ => return Err(context.subcommand_fault(arguments)),
    }
    let now = context.data.now();
    let frequencies = context.data.settings().policy.counts_frequency();
    let Some(entry) = context.data.peek(arguments[2]) else {
        context.reply.nil();
        return Ok(());
    };
    match subcommand.as_slice() {
        b"encoding" => context.reply.bulk(entry.value().encoding().as_bytes()),
        b"refcount" => context.reply.integer(1),
        b"idletime" if frequencies => {
            return Err(Fault::of(
                "ERR An LFU maxmemory policy is selected, idle time not tracked. Please note that when switching between policies at runtime LRU and LFU data will take some time to adjust.",
            ));
        }
        b"idletime" => context.reply.integer((entry.idle_ms(now) / 1000) as i64),
        _ if !frequencies => {
            return Err(Fault::of(
                "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when switching between policies at runtime LRU and LFU data will take some time to adjust.",
            ));
        }
        _ => context.reply.integer(i64::from(entry.frequency(now))),
    }
    Ok(())
}

/// FNV-1a, which detects accidental damage. Against a forged payload only the checks of RESTORE
/// protect.
fn checksum(bytes: &[u8]) -> [u8; 8] {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
        .to_le_bytes()
}

pub(super) fn dump(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let Some(value) = context.data.read(arguments[1]) else {
        context.reply.nil();
        return Ok(());
    };
    let mut payload = MAGIC.to_vec();
    payload.push(PAYLOAD);
    value.commands(b"", &mut |command| journal::encode(&mut payload, 0, command));
    let sum = checksum(&payload);
    payload.extend_from_slice(&sum);
    context.reply.bulk(&payload);
    Ok(())
}

struct RestoreOptions {
    replace: bool,
    absolute: bool,
    idle_seconds: Option<u64>,
    frequency: Option<u8>,
}

fn options(arguments: &[&[u8]]) -> Result<RestoreOptions, Fault> {
    let mut options = RestoreOptions { replace: false, absolute: false, idle_seconds: None, frequency: None };
    let mut rest = arguments;
    loop {
        rest = match rest {
            [] => return Ok(options),
            [word, tail @ ..] if is(word, "replace") => {
                options.replace = true;
                tail
            }
            [word, tail @ ..] if is(word, "absttl") => {
                options.absolute = true;
                tail
            }
            [word, seconds, tail @ ..] if is(word, "idletime") => {
                let seconds = u64::try_from(integer(seconds)?);
                let seconds = seconds.map_err(|_| Fault::of("ERR Invalid IDLETIME value, must be >= 0"))?;
                options.idle_seconds = Some(seconds);
                tail
            }
            [word, frequency, tail @ ..] if is(word, "freq") => {
                let frequency = u8::try_from(integer(frequency)?);
                let bad = Fault::of("ERR Invalid FREQ value, must be >= 0 and <= 255");
                options.frequency = Some(frequency.map_err(|_| bad)?);
                tail
            }
            _ => return Err(Fault::SYNTAX),
        };
    }
}

const BAD_PAYLOAD: Fault = Fault::of("ERR DUMP payload version or checksum are wrong");
const BAD_FORMAT: Fault = Fault::of("ERR Bad data format");

/// The commands in a payload, one after the other.
fn commands(payload: &[u8]) -> Result<Reader<'_>, Fault> {
    let split = payload.len().checked_sub(8).ok_or(BAD_PAYLOAD)?;
    let (body, sum) = payload.split_at(split);
    if checksum(body) != sum {
        return Err(BAD_PAYLOAD);
    }
    let record = body.strip_prefix(MAGIC).ok_or(BAD_PAYLOAD)?;
    Reader::new(record, PAYLOAD, 0).map_err(|_| BAD_PAYLOAD)
}

/// Whether all commands of a payload build one value, without an error: the key that they replace
/// is deleted first.
fn check_commands(mut reader: Reader<'_>) -> Result<(), Fault> {
    let mut arguments = Vec::new();
    let mut name: Option<&[u8]> = None;
    while reader.effect(&mut arguments).map_err(|_| BAD_FORMAT)?.is_some() {
        let builds = [&b"SET"[..], b"RPUSH", b"SADD", b"HSET", b"ZADD"].contains(&arguments[0]);
        let same = name.is_none_or(|name| name == arguments[0] && name != b"SET");
        let fits = match (arguments[0], arguments.get(2..).unwrap_or_default()) {
            (_, []) => false,
            (b"SET", values) => values.len() == 1,
            (b"HSET", pairs) => pairs.len().is_multiple_of(2),
            (b"ZADD", pairs) => {
                pairs.len().is_multiple_of(2)
                    && pairs.iter().step_by(2).all(|score| parse_float(score).is_some())
            }
            _ => true,
        };
        if !builds || !same || !fits {
            return Err(BAD_FORMAT);
        }
        name = Some(arguments[0]);
    }
    name.map(drop).ok_or(BAD_FORMAT)
}

pub(super) fn restore(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let key = arguments[1];
    let options = options(&arguments[4..])?;
    if !options.replace && context.data.exists(key) {
        return Err(Fault::of("BUSYKEY Target key name already exists."));
    }
    let ttl = u64::try_from(integer(arguments[2])?)
        .map_err(|_| Fault::of("ERR Invalid TTL value, must be >= 0"))?;
    check_commands(commands(arguments[3])?)?;
    let commands = commands(arguments[3])?;
    let now = context.data.now().unix_ms;
    let deadline = match ttl {
        0 => NEVER,
        ttl if options.absolute => ttl,
        ttl => now.saturating_add(ttl).min(i64::MAX as u64),
    };
    let replaced = context.data.delete(key);
    let noted = context.data.store_ref().observation.events.len();
    // The effect is the value, not the payload's commands: each of these would repeat the key.
    context.data.store().building = true;
    let built = build(context, key, commands);
    context.data.store().building = false;
    context.data.store().observation.events.truncate(noted);
    if let Err(fault) = built {
        context.data.delete(key);
        return Err(fault);
    }
    if deadline != NEVER && deadline <= now {
        // The key is created already expired: it never exists.
        context.data.remove(key);
        if replaced {
            context.notify(class::GENERIC, "del", key);
        }
    } else {
        context.data.set_expiry(key, deadline);
        context.notify(class::NEW, "new", key);
        context.notify(class::GENERIC, "restore", key);
        context.data.effect_rebuild(key);
        context.data.set_access(key, options.idle_seconds, options.frequency);
    }
    context.reply.ok();
    Ok(())
}

/// Runs the commands of a payload on `key`.
fn build<'a>(context: &mut Context<'_>, key: &'a [u8], mut commands: Reader<'a>) -> Outcome {
    let mark = context.reply.bytes.len();
    let mut command = Vec::new();
    while commands.effect(&mut command).map_err(|_| BAD_FORMAT)?.is_some() {
        command.get_mut(1).map(|place| *place = key).ok_or(BAD_FORMAT)?;
        let row = context
            .table
            .find(command[0])
            .filter(|(_, row)| row.spec.flags.has(flag::WRITE) && row.spec.accepts(command.len()));
        let (_, row) = row.ok_or(BAD_FORMAT)?;
        let outcome = (row.handler)(context, &command);
        context.reply.bytes.truncate(mark);
        outcome.map_err(|_| BAD_FORMAT)?;
    }
    Ok(())
}
