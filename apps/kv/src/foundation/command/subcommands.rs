//! Subcommands: which commands have some, and with how many arguments each.

use super::arguments::is;
use super::spec::CommandSpec;
use crate::foundation::protocol::Fault;

/// Subcommands with the number of their arguments (as
/// [`CommandSpec::arity`](super::spec::CommandSpec::arity)), by command.
const SUBCOMMANDS: &[(&str, &[(&str, i16)])] = &[
    (
        "client",
        &[
            ("caching", 3),
            ("getname", 2),
            ("getredir", 2),
            ("help", 2),
            ("id", 2),
            ("info", 2),
            ("kill", -3),
            ("list", -2),
            ("no-evict", 3),
            ("pause", -3),
            ("reply", 3),
            ("setinfo", 4),
            ("setname", 3),
            ("tracking", -3),
            ("trackinginfo", 2),
            ("unblock", -3),
            ("unpause", 2),
        ],
    ),
    ("command", &[("count", 2), ("docs", -2), ("getkeys", -4), ("help", 2), ("info", -2), ("list", -2)]),
    (
        "latency",
        &[
            ("doctor", 2),
            ("graph", 3),
            ("help", 2),
            ("histogram", -2),
            ("history", 3),
            ("latest", 2),
            ("reset", -2),
        ],
    ),
    (
        "acl",
        &[
            ("cat", -2),
            ("deluser", -3),
            ("getuser", 3),
            ("help", 2),
            ("list", 2),
            ("setuser", -3),
            ("users", 2),
            ("whoami", 2),
        ],
    ),
    ("slowlog", &[("get", -2), ("help", 2), ("len", 2), ("reset", 2)]),
    ("object", &[("encoding", 3), ("freq", 3), ("idletime", 3), ("refcount", 3), ("help", 2)]),
    ("pubsub", &[("channels", -2), ("numpat", 2), ("numsub", -2), ("help", 2)]),
    ("config", &[("get", -3), ("set", -4), ("rewrite", 2), ("resetstat", 2), ("help", 2)]),
    ("memory", &[("doctor", 2), ("malloc-stats", 2), ("purge", 2), ("stats", 2), ("usage", -3), ("help", 2)]),
];

/// The names of a command's subcommands; none if it has none.
pub(crate) fn subcommands(command: &CommandSpec) -> impl Iterator<Item = &'static str> {
    let known = SUBCOMMANDS.iter().find(|(name, _)| *name == command.name);
    known.into_iter().flat_map(|(_, all)| all.iter().map(|(name, _)| *name))
}

/// The subcommand that these arguments name.
pub(crate) fn subcommand(command: &CommandSpec, arguments: &[&[u8]]) -> Option<&'static str> {
    let word = arguments.get(1)?;
    subcommands(command).find(|name| is(word, name))
}

/// The name of a command with that of its subcommand, if it has one: `pubsub|numpat`.
pub(crate) fn full_name(command: &CommandSpec, arguments: &[&[u8]]) -> String {
    subcommand(command, arguments)
        .map_or_else(|| command.name.into(), |name| format!("{}|{name}", command.name))
}

/// The name of a command with that of a subcommand (empty: it has none).
pub(crate) fn full_name_of(command: &str, subcommand: &str) -> String {
    if subcommand.is_empty() { command.to_owned() } else { format!("{command}|{subcommand}") }
}

/// Why the subcommand of these arguments cannot be queued in a transaction, if it cannot.
pub(crate) fn refuse_subcommand(command: &CommandSpec, arguments: &[&[u8]]) -> Option<Fault> {
    let (_, known) = SUBCOMMANDS.iter().find(|(name, _)| *name == command.name)?;
    let word = arguments.get(1)?;
    let Some((name, arity)) = known.iter().find(|(name, _)| is(word, name)) else {
        return Some(Fault::unknown_subcommand(&command.name.to_ascii_uppercase(), word));
    };
    let row = CommandSpec { arity: *arity, ..*command };
    (!row.accepts(arguments.len())).then(|| Fault::arity(&format!("{}|{name}", command.name)))
}

/// Why a command's handler knows no such subcommand, or not with so many arguments.
pub(crate) fn refused_subcommand(command: &CommandSpec, arguments: &[&[u8]]) -> Fault {
    refuse_subcommand(command, arguments)
        .unwrap_or_else(|| Fault::subcommand_syntax(&command.name.to_ascii_uppercase(), arguments[1]))
}
