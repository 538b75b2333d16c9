//! MEMORY, MONITOR and DEBUG.

use std::time::Duration;

use crate::commands::context::{Context, Outcome};
use crate::foundation::command::{integer, is};
use crate::foundation::protocol::Fault;
use crate::foundation::text::number::parse_float;

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
            match context.data.memory(arguments[2]) {
                Some(bytes) => context.reply.count(bytes),
                None => context.reply.nil(),
            }
        }
        (b"stats", 2) => {
            let (store, used) = (context.data.store_ref(), context.used_memory());
            let keys = store.keys();
            let rows = [
                ("peak.allocated", context.metrics().peak_memory.max(used)),
                ("total.allocated", used),
                ("clients.normal", context.stores().map(|store| store.client_bytes as u64).sum()),
                ("keys.count", keys as u64),
                ("keys.bytes-per-key", (store.weight().memory / keys.max(1)) as u64),
                ("dataset.bytes", store.weight().memory as u64),
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
        (b"purge", 2) => {
            // As Redis does it: at once, however long it takes.
            sietch_ring::heap::release();
            context.reply.ok();
        }
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

/// Sends every later command of all clients to this one, until RESET.
pub(super) fn monitor(context: &mut Context<'_>, _: &[&[u8]]) -> Outcome {
    if context.must_not_block {
        return Err(Fault::of("ERR MONITOR isn't allowed for DENY BLOCKING client"));
    }
    // As in Redis, a monitor that repeats the command has no reply.
    if context.clients.monitors.insert(context.client.id()) {
        context.client.monitor = true;
        context.data.store().observation.changed = true;
        let (own, period) = context.clients.monitors_become_known();
        for number in 0..context.others.count() {
            context.others.clients_mut(number).monitored_by.insert(own, period);
            context.others.store_mut(number).observation.changed = true;
        }
        context.reply.ok();
    }
    Ok(())
}

/// Subcommands of Redis that look into its own structures, or crash it.
const UNSUPPORTED: &[&str] = &[
    "aof-flush-sleep",
    "assert",
    "change-repl-id",
    "client-eviction",
    "clusterlink",
    "config-rewrite-force-all",
    "crash-and-recover",
    "digest",
    "digest-value",
    "drop-cluster-packet-filter",
    "error",
    "htstats",
    "htstats-key",
    "jmap",
    "leak",
    "listpack",
    "loadaof",
    "log",
    "mallctl",
    "mallctl-str",
    "object",
    "oom",
    "panic",
    "pause-cron",
    "populate",
    "protocol",
    "quicklist",
    "quicklist-packed-threshold",
    "reload",
    "replicate",
    "replybuffer",
    "restart",
    "sdslen",
    "segfault",
    "set-active-expire",
    "set-skip-checksum-validation",
    "stringmatch-test",
    "structsize",
    "ziplist",
];

/// Longest sleep of DEBUG SLEEP, in seconds: nothing else is done meanwhile.
const LONGEST_SLEEP: f64 = 3600.0;

/// As in a Redis with `enable-debug-command local`. It has SLEEP, with which the effect of a slow
/// command can be tried.
pub(super) fn debug(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    if !context.client.peer.ip().to_canonical().is_loopback() {
        return Err(Fault::of(
            "ERR DEBUG command not allowed. If the enable-debug-command option is set to \"local\", you can run it from a local connection, otherwise you need to set this option in the configuration file, and then restart the server.",
        ));
    }
    match arguments[1..] {
        [name, seconds] if is(name, "sleep") => {
            let seconds = parse_float(seconds).ok_or(Fault::NOT_FLOAT)?;
            if !(0.0..=LONGEST_SLEEP).contains(&seconds) {
                return Err(Fault::of("ERR DEBUG SLEEP takes between 0 and 3600 seconds"));
            }
            (context.data.store_ref().observation.time.sleep)(Duration::from_secs_f64(seconds));
            context.reply.ok();
        }
        [name] if is(name, "help") => context
            .reply
            .help("DEBUG", &["SLEEP <seconds>", "    Stop the server for <seconds>. Decimals allowed."]),
        [name, ..] if UNSUPPORTED.iter().any(|known| is(name, known)) => {
            let name = String::from_utf8_lossy(name).to_ascii_uppercase();
            return Err(Fault::new(format!("ERR DEBUG {name} is not supported by Sietch")));
        }
        _ => return Err(Fault::subcommand_syntax("DEBUG", arguments[1])),
    }
    Ok(())
}
