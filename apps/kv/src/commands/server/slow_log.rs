//! SLOWLOG: the commands that took at least `slowlog-log-slower-than` microseconds.

use crate::commands::context::{Context, Outcome};
use crate::foundation::command::integer;
use crate::foundation::observation::slow_log::SlowCommand;
use crate::foundation::protocol::Fault;

/// Entries that SLOWLOG GET shows without a count.
const SHOWN: usize = 10;

const HELP: &[&str] = &[
    "GET [<count>]",
    "    Return top <count> entries from the slowlog (default: 10, -1 mean all).",
    "    Entries are made of:",
    "    id, timestamp, time in microseconds, arguments array, client IP and port,",
    "    client name",
    "LEN",
    "    Return the length of the slowlog.",
    "RESET",
    "    Reset the slowlog.",
];

pub(super) fn slowlog(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let subcommand = arguments[1].to_ascii_lowercase();
    match (subcommand.as_slice(), arguments.len()) {
        (b"get", 2 | 3) => {
            let count = arguments.get(2).map(|count| shown_entries(count)).transpose()?;
            get(context, count.unwrap_or(SHOWN));
        }
        (b"len", 2) => {
            let count: usize = context.stores().map(|store| store.observation.slow_log.entries().len()).sum();
            let count = count.min(most(context));
            context.reply.count(count);
        }
        (b"reset", 2) => {
            context.each_store(|store| store.observation.slow_log.reset());
            context.reply.ok();
        }
        (b"help", 2) => context.reply.help("SLOWLOG", HELP),
        _ => return Err(context.subcommand_fault(arguments)),
    }
    Ok(())
}

/// The count of SLOWLOG GET; -1 are all.
fn shown_entries(argument: &[u8]) -> Result<usize, Fault> {
    match integer(argument) {
        Ok(-1) => Ok(usize::MAX),
        count => count
            .ok()
            .and_then(|count| usize::try_from(count).ok())
            .ok_or(Fault::of("ERR count should be greater than or equal to -1")),
    }
}

fn get(context: &mut Context<'_>, count: usize) {
    let all = context.stores().flat_map(|store| store.observation.slow_log.entries());
    let mut entries: Vec<SlowCommand> = all.cloned().collect();
    // All shards take their numbers from one counter.
    entries.sort_by_key(|entry| std::cmp::Reverse(entry.id));
    entries.truncate(count.min(most(context)));
    context.reply.array(entries.len());
    for entry in entries {
        context.reply.array(6);
        context.reply.integer(entry.id as i64);
        context.reply.integer(entry.unix_seconds as i64);
        context.reply.integer(entry.microseconds as i64);
        context.reply.array(entry.arguments.len());
        entry.arguments.iter().for_each(|argument| context.reply.bulk(argument));
        context.reply.bulk(entry.address.as_bytes());
        context.reply.bulk(&entry.name);
    }
}

/// Most entries of all shards together: each has as many as the setting allows one.
fn most(context: &Context<'_>) -> usize {
    if context.others.count() > 0 { context.data.settings().slowlog_max_len } else { usize::MAX }
}
