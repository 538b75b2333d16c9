//! MEMORY, LATENCY, SLOWLOG, DEBUG.

use crate::commands::context::{Context, Outcome};
use crate::foundation::command::{integer, is};
use crate::foundation::protocol::Fault;

pub(super) fn memory(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let subcommand = arguments[1].to_ascii_lowercase();
    match (subcommand.as_slice(), arguments.len()) {
        (b"usage", 3..) => {
            // SAMPLES has no effect: memory is counted exactly.
            for option in arguments[3..].chunks(2) {
                match option {
                    [word, samples] if is(word, "samples") && integer(samples)? >= 0 => {}
                    _ => return Err(Fault::SYNTAX),
                }
            }
            match context.data.peek(arguments[2]) {
                Some(entry) => context.reply.count(entry.charged()),
                None => context.reply.nil(),
            }
        }
        (b"stats", 2) => {
            let store = context.data.store_ref();
            let keys: usize = store.databases().iter().map(|database| database.index().len()).sum();
            let rows = [
                ("peak.allocated", store.metrics.peak_memory.max(store.used_memory())),
                ("total.allocated", store.used_memory()),
                ("clients.normal", store.client_bytes as u64),
                ("keys.count", keys as u64),
                ("keys.bytes-per-key", (store.weight.memory / keys.max(1)) as u64),
                ("dataset.bytes", store.weight.memory as u64),
            ];
            context.reply.map(rows.len());
            for (name, value) in rows {
                context.reply.bulk(name.as_bytes());
                context.reply.integer(value as i64);
            }
        }
        (b"doctor", 2) => {
            context.reply.verbatim(b"Sam, I can't find any memory issue in your instance.\n");
        }
        (b"purge", 2) => context.reply.ok(),
        (b"malloc-stats", 2) => context.reply.bulk(b"Stats not supported for the current allocator"),
        (b"help", 2) => context.reply.help(
            "MEMORY",
            &[
                "DOCTOR",
                "    Return memory problems reports.",
                "MALLOC-STATS",
                "    Return internal statistics report from the memory allocator.",
                "PURGE",
                "    Attempt to purge dirty pages for reclamation by the allocator.",
                "STATS",
                "    Return information about the memory usage of the server.",
                "USAGE <key> [SAMPLES <count>]",
                "    Return memory in bytes used by <key> and its value.",
            ],
        ),
        _ => return Err(context.subcommand_fault(arguments)),
    }
    Ok(())
}

/// No latency is sampled, because the shard reads no clock while it runs commands. The replies are
/// empty, in Redis' format.
pub(super) fn latency(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let subcommand = arguments[1].to_ascii_lowercase();
    match (subcommand.as_slice(), arguments.len()) {
        (b"latest", 2) | (b"history", 3) => context.reply.array(0),
        (b"histogram", _) => context.reply.map(0),
        (b"reset", _) => context.reply.integer(0),
        (b"doctor", 2) => context
            .reply
            .verbatim(b"Latency is not monitored here; `sietch stat` has histograms of the data path.\n"),
        (b"graph", 3) => {
            let mut text = b"ERR No samples available for event '".to_vec();
            text.extend_from_slice(arguments[2]);
            text.push(b'\'');
            return Err(Fault::new(text));
        }
        (b"help", 2) => context.reply.help(
            "LATENCY",
            &["LATEST", "    Return the latest latency samples for all events: none are taken."],
        ),
        _ => return Err(context.subcommand_fault(arguments)),
    }
    Ok(())
}

/// No command is timed, so none is slow.
pub(super) fn slowlog(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let subcommand = arguments[1].to_ascii_lowercase();
    match (subcommand.as_slice(), arguments.len()) {
        (b"get", 2 | 3) => {
            if let Some(count) = arguments.get(2)
                && integer(count).map_or(true, |count| count < -1)
            {
                return Err(Fault::of("ERR count should be greater than or equal to -1"));
            }
            context.reply.array(0);
        }
        (b"len", 2) => context.reply.integer(0),
        (b"reset", 2) => context.reply.ok(),
        (b"help", 2) => context.reply.help(
            "SLOWLOG",
            &[
                "GET [<count>]",
                "    Return top <count> entries from the slowlog: it is always empty.",
                "LEN",
                "    Return the length of the slowlog.",
                "RESET",
                "    Reset the slowlog.",
            ],
        ),
        _ => return Err(context.subcommand_fault(arguments)),
    }
    Ok(())
}

/// As in a Redis with the default `enable-debug-command no`.
pub(super) fn debug(_: &mut Context<'_>, _: &[&[u8]]) -> Outcome {
    Err(Fault::of(
        "ERR DEBUG command not allowed. If the enable-debug-command option is set to \"local\", you can run it from a local connection, otherwise you need to set this option in the configuration file, and then restart the server.",
    ))
}
