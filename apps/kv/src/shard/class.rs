//! What decides where a command runs, in a store of several shards.

use crate::foundation::command::{CommandSpec, Keys, flag};

/// What decides the route of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// Its keys.
    Keyed,
    /// Its keys; it is never forwarded, because the client's state changes with it.
    Bound,
    /// The keys that it names, and keys that it finds in the data.
    Sort,
    /// Its subcommand.
    Client,
    /// The commands in the transaction.
    Exec,
    /// Nothing: it concerns the client alone.
    Session,
    /// Nothing: it concerns everything.
    Global,
}

/// Commands without keys that concern their client alone, or what is the same on all shards.
const SESSION: [&str; 20] = [
    "auth",
    "command",
    "discard",
    "echo",
    "hello",
    "lolwut",
    "multi",
    "ping",
    "psubscribe",
    "punsubscribe",
    "quit",
    "replicaof",
    "reset",
    "role",
    "select",
    "slaveof",
    "subscribe",
    "time",
    "unsubscribe",
    "unwatch",
];

impl Class {
    /// The class of a command.
    pub(super) fn of(spec: &CommandSpec) -> Self {
        match spec.name {
            "client" => Self::Client,
            "exec" => Self::Exec,
            "sort" | "sort_ro" => Self::Sort,
            "watch" => Self::Bound,
            name if SESSION.contains(&name) => Self::Session,
            _ if spec.flags.has(flag::BLOCKING) => Self::Bound,
            _ if spec.keys != Keys::None => Self::Keyed,
            _ => Self::Global,
        }
    }
}
