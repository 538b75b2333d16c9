//! The commands, a file or a folder for each family, and their table.
//!
//! 1. Every family has a constant `COMMANDS`; [`table`] joins them.
//! 2. The shard checks arity, subscribe mode, MULTI, memory and a failed log before it calls a
//!    handler, so handlers do not. A handler gets a [`Context`] and the arguments (`arguments[0]`
//!    is the name). It writes exactly one reply into `context.reply`, or returns a
//!    [`Fault`](crate::foundation::protocol::Fault). On a fault its output is cut off and the error
//!    is the reply.
//! 3. `context.data` (the selected database) and `context.reply` are different fields, so that a
//!    value borrowed from one can be written into the other: `let Some(value) =
//!    context.data.read(key) else {..}; context.reply.bulk(..)`.
//! 4. A handler that changes something must
//!    - change the value through `data.write(key)` (then call `data.changed(key)` once, at the
//!      end), or `data.insert(key, value)` / `data.remove(key)`, which need no `changed`. `changed`
//!      signals clients that watch or wait for the key, and removes a collection that has become
//!      empty;
//!    - call `data.effect(&[..])` with deterministic commands of one key each that repeat the
//!      change when replayed (the command itself where that fits, as for RPUSH; SREM for SPOP;
//!      `data.effect_rebuild(key)` for anything complicated: DEL and the commands that build the
//!      value). A command that changed nothing records nothing. Every effect must name its key as
//!      `arguments[1]`. The effect that follows a `changed` which removed the key because it is
//!      empty is recorded as a DEL of it.
//! 5. A handler that changes something also calls `context.notify` with the event that Redis sends
//!    for it (`notify-keyspace-events`), before `data.changed`.
//! 6. A blocking command tries first. If there is nothing, it returns `context.block(keys, timeout,
//!    on_timeout)`. The shard calls the same handler with the same arguments again when one of the
//!    keys has changed, oldest waiter first. Inside MULTI, `block` replies as after the timeout.

mod collection;
mod connection;
mod context;
mod everywhere;
mod hash;
mod keys;
mod list;
mod observed;
mod pubsub;
mod scan;
mod server;
mod set;
mod sorted_set;
mod string;
mod transaction;

pub(crate) use context::{Command, Context, Others, Table, added_bytes};
pub(crate) use observed::monitor_line;
pub(crate) use transaction::runs_inside;

/// All families. A new family is added here and nowhere else.
const FAMILIES: &[&[Command]] = &[
    connection::COMMANDS,
    hash::COMMANDS,
    keys::COMMANDS,
    list::COMMANDS,
    pubsub::COMMANDS,
    scan::COMMANDS,
    server::COMMANDS,
    set::COMMANDS,
    sorted_set::COMMANDS,
    string::COMMANDS,
    transaction::COMMANDS,
];

/// The table of all commands.
pub(crate) fn table() -> Table {
    Table::new(FAMILIES.iter().flat_map(|family| family.iter()).collect())
}

#[cfg(test)]
mod tests;
