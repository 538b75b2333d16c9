//! Commands about the server.
//!
//! `server/info.rs` has INFO, `server/table.rs` COMMAND, `server/diagnosis.rs` MEMORY, DEBUG,
//! MONITOR, `server/latency.rs` LATENCY, `server/slow_log.rs` SLOWLOG.

use super::context::{Command, Context, Handler, Outcome};
use crate::clients::TimeoutReply;
use crate::data::keyspace::ShutdownMode;
use crate::foundation::command::{Flags, Keys, flag, integer, is};
use crate::foundation::observation::monitor::unix_microseconds;
use crate::foundation::protocol::Fault;
use crate::foundation::settings::{Durability, names_without_effect};
use crate::foundation::text::glob;

mod diagnosis;
mod info;
mod latency;
mod slow_log;
mod table;

const ANY: Flags = flag::LOADING.and(flag::STALE);
const ADMIN: Flags = flag::ADMIN.and(flag::NO_SCRIPT).and(flag::LOADING).and(flag::STALE);
const ADMIN_NOT_QUEUED: Flags = ADMIN.and(flag::NO_MULTI);

const fn server(name: &'static str, arity: i16, flags: Flags, handler: Handler) -> Command {
    Command::new(name, arity, flags, Keys::None, "server", handler)
}

/// The commands of this family.
pub(super) const COMMANDS: &[Command] = &[
    server("bgrewriteaof", 1, flag::ADMIN.and(flag::NO_SCRIPT), bgrewriteaof),
    server("bgsave", -1, flag::ADMIN.and(flag::NO_SCRIPT), bgsave),
    server("command", -1, ANY, table::command),
    server("config", -2, ADMIN, config),
    server("dbsize", 1, flag::READONLY.and(flag::FAST), dbsize),
    server("debug", -2, ADMIN, diagnosis::debug),
    server("flushall", -1, flag::WRITE, flushall),
    server("flushdb", -1, flag::WRITE, flushdb),
    server("info", -1, ANY, info::info),
    server("lastsave", 1, ANY.and(flag::FAST), lastsave),
    server("latency", -2, ADMIN, latency::latency),
    server("lolwut", -1, flag::READONLY.and(flag::FAST), lolwut),
    Command::new("memory", -2, flag::READONLY, Keys::Range(2, 2, 1), "server", diagnosis::memory),
    server("monitor", 1, ADMIN, diagnosis::monitor),
    server("replicaof", 3, ADMIN, replicaof),
    server("role", 1, ANY.and(flag::NO_SCRIPT).and(flag::FAST), role),
    server("save", 1, ADMIN_NOT_QUEUED, save),
    server("shutdown", -1, ADMIN_NOT_QUEUED, shutdown),
    server("slaveof", 3, ADMIN, replicaof),
    server("slowlog", -2, ADMIN, slow_log::slowlog),
    server("swapdb", 3, flag::WRITE.and(flag::FAST), swapdb),
    server("time", 1, ANY.and(flag::FAST), time),
    Command::new("wait", 3, flag::NO_SCRIPT, Keys::None, "generic", wait),
];

fn dbsize(context: &mut Context<'_>, _: &[&[u8]]) -> Outcome {
    let count = context.data.len();
    context.reply.count(count);
    Ok(())
}

/// Checks the optional SYNC or ASYNC: both are freed in slices here.
fn flush_mode(arguments: &[&[u8]]) -> Outcome {
    match arguments[1..] {
        [] => Ok(()),
        [mode] if is(mode, "sync") || is(mode, "async") => Ok(()),
        _ => Err(Fault::SYNTAX),
    }
}

fn flushall(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    flush_mode(arguments)?;
    context.data.store().flush(None);
    context.data.effect(&[b"FLUSHALL"]);
    context.reply.ok();
    Ok(())
}

fn flushdb(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    flush_mode(arguments)?;
    let database = context.data.database();
    context.data.store().flush(Some(database));
    context.data.effect(&[b"FLUSHDB"]);
    context.reply.ok();
    Ok(())
}

fn swapdb(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let count = context.data.store_ref().database_count();
    let number = |argument: &[u8], bad: Fault| {
        let value = integer(argument).map_err(|_| bad)?;
        usize::try_from(value)
            .ok()
            .filter(|&value| value < count)
            .ok_or(Fault::of("ERR DB index is out of range"))
    };
    let first = number(arguments[1], Fault::of("ERR invalid first DB index"))?;
    let second = number(arguments[2], Fault::of("ERR invalid second DB index"))?;
    if first != second {
        context.data.store().swap(first, second);
        context.data.effect(arguments);
    }
    context.reply.ok();
    Ok(())
}

fn time(context: &mut Context<'_>, _: &[&[u8]]) -> Outcome {
    let now = context.data.now();
    context.reply.array(2);
    context.reply.bulk((now.unix_ms / 1000).to_string().as_bytes());
    let micros = unix_microseconds(now.unix_ms, now.monotonic_ns) % 1_000_000;
    context.reply.bulk(micros.to_string().as_bytes());
    Ok(())
}

fn lolwut(context: &mut Context<'_>, _: &[&[u8]]) -> Outcome {
    let text = format!("Sietch ver. {}\n", env!("CARGO_PKG_VERSION"));
    context.reply.verbatim(text.as_bytes());
    Ok(())
}

fn role(context: &mut Context<'_>, _: &[&[u8]]) -> Outcome {
    context.reply.array(3);
    context.reply.bulk(b"master");
    context.reply.integer(0);
    context.reply.array(0);
    Ok(())
}

fn replicaof(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    if is(arguments[1], "no") && is(arguments[2], "one") {
        context.reply.ok();
        return Ok(());
    }
    Err(Fault::of("ERR REPLICAOF is not supported: Sietch does not replicate"))
}

/// There are no replicas, so none has acknowledged anything: the reply is 0, at once. But it means
/// what it can mean here: everything that came before it is durable. With `--durability always`
/// every reply waits for that. With `interval` and `never`, WAIT has the log flushed and waits for
/// it, up to the timeout.
fn wait(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    integer(arguments[1])?;
    let timeout =
        integer(arguments[2]).map_err(|_| Fault::of("ERR timeout is not an integer or out of range"))?;
    let timeout = u64::try_from(timeout).map_err(|_| Fault::TIMEOUT_NEGATIVE)?;
    if let Some(reason) = context.failed {
        return Err(Fault::new(format!("MISCONF Errors writing to the AOF file: {reason}")));
    }
    let flushes = matches!(context.data.settings().durability, Durability::Interval | Durability::Never);
    if !flushes || context.must_not_block {
        context.reply.integer(0);
        return Ok(());
    }
    context.clients.syncing.push((None, context.client.id()));
    context.block(&[], timeout, TimeoutReply::NoReplicas)
}

/// SAVE and BGSAVE: no file would be written. A reply that says so is better than one that a script
/// takes for a backup.
const NO_FILE: Fault = Fault::of(
    "ERR this store writes no RDB file: `sietch kv backup` makes a backup of it while it runs, and BGREWRITEAOF compacts its log",
);

fn save(_: &mut Context<'_>, _: &[&[u8]]) -> Outcome {
    Err(NO_FILE)
}

fn bgsave(_: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    match arguments[1..] {
        [] => Err(NO_FILE),
        [word] if is(word, "schedule") => Err(NO_FILE),
        _ => Err(Fault::SYNTAX),
    }
}

/// Requests a compaction of the log.
fn bgrewriteaof(context: &mut Context<'_>, _: &[&[u8]]) -> Outcome {
    if let Some(reason) = context.failed {
        return Err(Fault::new(format!("MISCONF Errors writing to the AOF file: {reason}")));
    }
    let store = context.coordinator_mut();
    if !store.settings.durability.keeps_log() {
        return Err(Fault::of("ERR nothing is saved: the store runs with --durability none"));
    }
    store.compaction_requested = true;
    context.reply.simple("Background append only file rewriting started");
    Ok(())
}

fn lastsave(context: &mut Context<'_>, _: &[&[u8]]) -> Outcome {
    let at = context.coordinator().last_save;
    context.reply.integer(at as i64);
    Ok(())
}

fn shutdown(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let mut mode = ShutdownMode::Save;
    for word in &arguments[1..] {
        if is(word, "nosave") {
            mode = ShutdownMode::NoSave;
        } else if is(word, "abort") && arguments.len() == 2 {
            return Err(Fault::of("ERR No shutdown in progress."));
        } else if !is(word, "save") && !is(word, "now") && !is(word, "force") {
            return Err(Fault::SYNTAX);
        }
    }
    // No reply: the connection closes when the server ends.
    context.coordinator_mut().shutdown_requested = Some(mode);
    Ok(())
}

fn config(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let subcommand = arguments[1].to_ascii_lowercase();
    match (subcommand.as_slice(), arguments.len()) {
        (b"get", 3..) => {
            let wanted = &arguments[2..];
            let mut found = context.data.settings().list();
            found.retain(|(name, _)| {
                wanted.iter().any(|pattern| glob::matches_ignoring_case(pattern, name.as_bytes()))
            });
            context.reply.map(found.len());
            for (name, value) in &found {
                context.reply.bulk(name.as_bytes());
                context.reply.bulk(value.as_bytes());
            }
        }
        (b"set", 4..) => return config_set(context, &arguments[2..]),
        (b"resetstat", 2) => {
            context.each_store(|store| {
                store.metrics.reset();
                store.observation.histograms.clear();
                store.observation.commits.clear();
            });
            context.reply.ok();
        }
        (b"rewrite", 2) => {
            return Err(Fault::of("ERR The server is running without a config file"));
        }
        (b"help", 2) => {
            let without_effect: Vec<&str> = names_without_effect().collect();
            let without_effect = format!("    Accepted without effect: {}.", without_effect.join(", "));
            context.reply.help(
                "CONFIG",
                &[
                    "GET <pattern>",
                    "    Return parameters matching the glob-like <pattern> and their values.",
                    "SET <directive> <value>",
                    "    Set the configuration <directive> to <value>.",
                    without_effect.as_str(),
                    "RESETSTAT",
                    "    Reset statistics reported by the INFO command.",
                    "REWRITE",
                    "    Rewrite the configuration file.",
                ],
            )
        }
        _ => return Err(context.subcommand_fault(arguments)),
    }
    Ok(())
}

/// Changes all settings that are named, or none.
fn config_set(context: &mut Context<'_>, pairs: &[&[u8]]) -> Outcome {
    if !pairs.len().is_multiple_of(2) {
        return Err(Fault::SYNTAX);
    }
    let mut settings = context.data.settings().clone();
    let mut named: Vec<String> = Vec::new();
    for pair in pairs.chunks_exact(2) {
        let name = String::from_utf8_lossy(pair[0]).to_ascii_lowercase();
        if named.contains(&name) {
            return Err(Fault::new(format!(
                "ERR CONFIG SET failed (possibly related to argument '{name}') - duplicate parameter"
            )));
        }
        settings.set(&name, &String::from_utf8_lossy(pair[1]))?;
        named.push(name);
    }
    let store = context.data.store();
    store.settings = settings;
    store.observation.changed = true;
    if let Some(at) = named.iter().position(|name| name == "requirepass") {
        store.users.require(pairs[2 * at + 1]);
        context.share_users();
        crate::acl::warn_of_restart("CONFIG SET requirepass");
    }
    context.share_settings();
    if named.iter().any(|name| name.starts_with("maxmemory")) {
        context.each_store(|store| store.evicting = true);
    }
    context.reply.ok();
    Ok(())
}
