//! The command table and what a command handler sees.
//!
//! 1. Every family file has a `pub const COMMANDS: &[Command]`. [`Table`] finds a row by its name.
//! 2. The shard checks arity, subscribe mode, MULTI, memory and a failed log before it calls a
//!    handler, so handlers do not. A handler gets a [`Context`] and the arguments (`arguments[0]`
//!    is the name) and either writes exactly one reply into `context.reply` or returns a [`Fault`];
//!    on a fault whatever it had written is cut off again and the error is the reply.
//! 3. `context.data` (the selected database) and `context.reply` are different fields, so that a
//!    value borrowed from one can be written into the other: `let Some(value) =
//!    context.data.read(key) else {..}; context.reply.bulk(..)`.
//! 4. A handler that changes something must
//!    - change the value through `data.write(key)` (then call `data.changed(key)` once, at the
//!      end), or `data.insert(key, value)` / `data.remove(key)`, which need no `changed`. `changed`
//!      counts memory again, wakes WATCHers and blocked clients, and removes a collection that has
//!      become empty;
//!    - call `data.effect(&[..])` with deterministic commands of one key each that repeat the
//!      change when replayed (the command itself where that fits, as for RPUSH; SREM for SPOP;
//!      `data.effect_rebuild(key)` for anything complicated: DEL plus what builds the value anew).
//!      A command that changed nothing records nothing. Every effect must name its key as
//!      `arguments[1]`. The effect that follows a `changed` which removed the key because it is
//!      empty is recorded as a DEL of it.
//! 5. A blocking command tries first; if there is nothing, it returns `context.block(keys, timeout,
//!    on_timeout)`. The shard calls the same handler with the same arguments again when one of the
//!    keys was changed, oldest waiter first. Inside MULTI, `block` answers as if the time were
//!    over.

use std::borrow::Cow;
use std::net::SocketAddr;

use sietch_structures::XorShift64Star;

use crate::client::{Client, ReplyMode, TimeoutReply};
use crate::keyspace::Data;
use crate::resp::Reply;
use crate::shard::Peers;
use crate::value;

pub mod collection;
pub mod connection;
pub mod hash;
pub mod keys;
pub mod list;
pub mod pubsub;
pub mod scan;
pub mod server;
pub mod set;
pub mod sorted_set;
pub mod string;
mod table;
pub mod transaction;

pub use table::Table;

/// What a handler returns; see the module's account.
pub type Outcome = Result<(), Fault>;

/// Runs one command.
pub type Handler = fn(&mut Context<'_>, &[&[u8]]) -> Outcome;

/// An error reply: its code and text as Redis 7.0 words them, without the leading `-`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault(pub Cow<'static, [u8]>);

impl Fault {
    /// The value at a key is of another type.
    pub const WRONG_TYPE: Self =
        Self::of("WRONGTYPE Operation against a key holding the wrong kind of value");
    /// Options that do not fit together or are unknown.
    pub const SYNTAX: Self = Self::of("ERR syntax error");
    /// Not a 64-bit integer.
    pub const NOT_INTEGER: Self = Self::of("ERR value is not an integer or out of range");
    /// Not a double.
    pub const NOT_FLOAT: Self = Self::of("ERR value is not a valid float");
    /// An integer that must not be negative is.
    pub const NOT_POSITIVE: Self = Self::of("ERR value is out of range, must be positive");
    /// An index that is out of bounds.
    pub const OUT_OF_RANGE: Self = Self::of("ERR index out of range");
    /// The key must exist.
    pub const NO_SUCH_KEY: Self = Self::of("ERR no such key");
    /// A sum left the range of 64 bits.
    pub const OVERFLOW: Self = Self::of("ERR increment or decrement would overflow");
    /// A sum of floats is no number any more.
    pub const NOT_A_NUMBER: Self = Self::of("ERR increment would produce NaN or Infinity");
    /// A string would exceed `proto-max-bulk-len`.
    pub const TOO_LONG: Self = Self::of("ERR string exceeds maximum allowed size (proto-max-bulk-len)");
    /// The memory limit is reached and nothing can be evicted.
    pub const OUT_OF_MEMORY: Self = Self::of("OOM command not allowed when used memory > 'maxmemory'.");
    /// A blocking timeout that is no number.
    pub const TIMEOUT_NOT_FLOAT: Self = Self::of("ERR timeout is not a float or out of range");
    /// A blocking timeout below zero.
    pub const TIMEOUT_NEGATIVE: Self = Self::of("ERR timeout is negative");
    /// A cursor of the SCAN family that is no number.
    pub const BAD_CURSOR: Self = Self::of("ERR invalid cursor");

    /// A constant error.
    pub const fn of(text: &'static str) -> Self {
        Self(Cow::Borrowed(text.as_bytes()))
    }

    /// An error made at run time; line ends in it become blanks when it is written.
    pub fn new(text: impl Into<Vec<u8>>) -> Self {
        Self(Cow::Owned(text.into()))
    }

    /// `ERR wrong number of arguments for 'name' command`.
    pub fn arity(name: &str) -> Self {
        Self::new(format!("ERR wrong number of arguments for '{name}' command"))
    }

    /// `ERR unknown subcommand 'x'. Try NAME HELP.`
    pub fn unknown_subcommand(name: &str, subcommand: &[u8]) -> Self {
        let shown = text_before_zero(subcommand, 128);
        let mut text = b"ERR unknown subcommand '".to_vec();
        text.extend_from_slice(shown);
        text.extend_from_slice(format!("'. Try {name} HELP.").as_bytes());
        Self::new(text)
    }

    /// `ERR unknown subcommand or wrong number of arguments for 'x'. Try NAME HELP.`
    pub fn subcommand_syntax(name: &str, subcommand: &[u8]) -> Self {
        let mut text = b"ERR unknown subcommand or wrong number of arguments for '".to_vec();
        text.extend_from_slice(text_before_zero(subcommand, 128));
        text.extend_from_slice(format!("'. Try {name} HELP.").as_bytes());
        Self::new(text)
    }

    /// The first word, as counted by INFO errorstats.
    pub fn code(&self) -> &[u8] {
        self.0.split(|&byte| byte == b' ').next().unwrap_or_default()
    }
}

/// Properties of a command: a set of the `flag` constants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flags(pub u32);

/// The properties that a command can have.
pub mod flag {
    use super::Flags;

    /// May change the data set.
    pub const WRITE: Flags = Flags(1);
    /// Only reads the data set.
    pub const READONLY: Flags = Flags(1 << 1);
    /// Refused when memory is exhausted.
    pub const DENY_OOM: Flags = Flags(1 << 2);
    /// An administrator's command.
    pub const ADMIN: Flags = Flags(1 << 3);
    /// Concerns publish and subscribe.
    pub const PUBSUB: Flags = Flags(1 << 4);
    /// Takes constant or logarithmic time.
    pub const FAST: Flags = Flags(1 << 5);
    /// May block the client.
    pub const BLOCKING: Flags = Flags(1 << 6);
    /// Where its keys stand depends on the arguments.
    pub const MOVABLE_KEYS: Flags = Flags(1 << 7);
    /// Refused inside MULTI.
    pub const NO_MULTI: Flags = Flags(1 << 8);
    /// Allowed before authentication and in every state.
    pub const NO_AUTH: Flags = Flags(1 << 9);
    /// Not for scripts (shown by COMMAND only).
    pub const NO_SCRIPT: Flags = Flags(1 << 10);
    /// Allowed while loading (shown by COMMAND only).
    pub const LOADING: Flags = Flags(1 << 11);
    /// Allowed on stale replicas (shown by COMMAND only).
    pub const STALE: Flags = Flags(1 << 12);

    /// Names as COMMAND INFO shows them.
    pub const NAMES: &[(Flags, &str)] = &[
        (WRITE, "write"),
        (READONLY, "readonly"),
        (DENY_OOM, "denyoom"),
        (ADMIN, "admin"),
        (PUBSUB, "pubsub"),
        (NO_SCRIPT, "noscript"),
        (BLOCKING, "blocking"),
        (LOADING, "loading"),
        (STALE, "stale"),
        (FAST, "fast"),
        (NO_AUTH, "no_auth"),
        (NO_MULTI, "no_multi"),
        (MOVABLE_KEYS, "movablekeys"),
    ];
}

impl Flags {
    /// No property.
    pub const NONE: Self = Self(0);

    /// Both sets together.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other` are in this set.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Where the keys of a command stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keys {
    /// It has none.
    None,
    /// From the first to the last (negative: counted from the end) in steps.
    Range(i16, i16, i16),
    /// The number of keys stands at this position and the keys follow it.
    Counted(usize),
    /// A destination stands at 1, the number of source keys at this position, and they follow it.
    Destination(usize),
}

/// One row of the command table.
#[derive(Debug, Clone, Copy)]
pub struct Command {
    /// Name in lower case.
    pub name: &'static str,
    /// Number of arguments with the name; negative: at least that many.
    pub arity: i16,
    /// Properties.
    pub flags: Flags,
    /// Where its keys stand.
    pub keys: Keys,
    /// Group as COMMAND DOCS names it.
    pub group: &'static str,
    /// Runs it.
    pub handler: Handler,
}

impl Command {
    /// A row of the table.
    pub const fn new(
        name: &'static str,
        arity: i16,
        flags: Flags,
        keys: Keys,
        group: &'static str,
        handler: Handler,
    ) -> Self {
        Self { name, arity, flags, keys, group, handler }
    }

    /// Whether so many arguments (with the name) are allowed.
    pub fn accepts(&self, count: usize) -> bool {
        if self.arity >= 0 {
            count == self.arity.unsigned_abs() as usize
        } else {
            count >= self.arity.unsigned_abs() as usize
        }
    }

    /// The positions of the keys in these arguments; `None` if the arguments make no sense.
    pub fn key_positions(&self, arguments: &[&[u8]]) -> Option<Vec<usize>> {
        let mut found = self.places(arguments)?;
        if self.name == "sort" {
            found.extend(stored_by_sort(arguments));
        }
        Some(found)
    }

    fn places(&self, arguments: &[&[u8]]) -> Option<Vec<usize>> {
        let counted = |at: usize| -> Option<Vec<usize>> {
            let count = std::str::from_utf8(arguments.get(at)?).ok()?.parse::<usize>().ok()?;
            (count > 0 && count < arguments.len() - at).then(|| (at + 1..=at + count).collect())
        };
        match self.keys {
            Keys::None => Some(Vec::new()),
            Keys::Range(first, last, step) => {
                let length = i64::try_from(arguments.len()).ok()?;
                let last = if last < 0 { length + i64::from(last) } else { i64::from(last) };
                if last >= length {
                    return None;
                }
                let step = usize::try_from(step).ok()?.max(1);
                let first = usize::try_from(first).ok()?;
                Some((first..=usize::try_from(last).ok()?).step_by(step).collect())
            }
            Keys::Counted(at) => counted(at),
            Keys::Destination(at) => {
                let mut all = counted(at)?;
                all.insert(0, 1);
                Some(all)
            }
        }
    }
}

/// Where SORT finds the key that it stores to: behind the last STORE that is an option.
fn stored_by_sort(arguments: &[&[u8]]) -> Option<usize> {
    let (mut at, mut found) = (2, None);
    while at < arguments.len() {
        let word = arguments[at];
        at += if is(word, "limit") {
            3
        } else if is(word, "get") || is(word, "by") {
            2
        } else if is(word, "store") && at + 1 < arguments.len() {
            found = Some(at + 1);
            2
        } else {
            1
        };
    }
    found
}

/// All families. A family that is added stands here and nowhere else.
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

/// Whether what a command brings may stay in the data set.
fn grows(command: &Command) -> bool {
    let shrinks = matches!(
        command.name,
        "del"
            | "unlink"
            | "getdel"
            | "persist"
            | "srem"
            | "hdel"
            | "lrem"
            | "ltrim"
            | "spop"
            | "flushall"
            | "flushdb"
            | "swapdb"
    );
    let takes = command.name.contains("pop") && !command.name.ends_with("push");
    command.flags.has(flag::WRITE) && !shrinks && !takes && !command.name.starts_with("zrem")
}

/// Bytes by which a command makes the data set grow at most by what it brings: as if each argument
/// were a key, or an element, of its own.
pub fn brought(data: &Data<'_>, command: &Command, arguments: &[&[u8]]) -> usize {
    let given: usize =
        arguments[1..].iter().map(|argument| value::argument(argument.len()) + value::EFFECT_HEAD).sum();
    // What a string is set to takes the place of what it was.
    match command.name {
        "set" | "getset" | "setex" | "psetex" => given.saturating_sub(data.dumped(arguments[1])),
        _ => given,
    }
}

/// What a handler sees of the shard while it runs.
pub struct Context<'a> {
    /// The selected database, the journal, the clock reading of this batch.
    pub data: Data<'a>,
    /// Where the reply goes.
    pub reply: Reply,
    /// Source of random words, beside `data` so that it can be used while a value is borrowed.
    pub random: &'a mut XorShift64Star,
    /// The client that asks. It is not among `peers` meanwhile.
    pub client: &'a mut Client,
    /// All other clients, and publish and subscribe.
    pub peers: &'a mut Peers,
    /// The command table.
    pub table: &'a Table,
    /// The row of the command that runs.
    pub command: &'static Command,
    /// Why the log failed, if it has: commands that write are refused.
    pub failed: Option<&'a str>,
    /// Whether what was not acknowledged then can still be read: commands that read are refused,
    /// too.
    pub undone: bool,
    /// What is sent to the client even if its replies are turned off, and they are.
    pub pushed: Vec<u8>,
    /// Whether the command runs inside EXEC (or a replay) and must not block.
    pub must_not_block: bool,
}

impl Context<'_> {
    /// What was written from `start` on tells of subscriptions: it is no reply that could be turned
    /// off.
    pub fn push(&mut self, start: usize) {
        if !matches!(self.client.reply_mode, ReplyMode::On) {
            self.pushed.extend_from_slice(&self.reply.bytes[start..]);
        }
    }

    /// Blocks the client on `keys` for `timeout_ms` (0: for ever); see the module's account.
    ///
    /// # Errors
    /// None; it returns [`Outcome`] so that a handler can end with it.
    pub fn block(&mut self, keys: &[&[u8]], timeout_ms: u64, on_timeout: TimeoutReply) -> Outcome {
        if self.must_not_block {
            on_timeout.write(&mut self.reply);
            return Ok(());
        }
        let now = self.data.now().monotonic_ns;
        let deadline = (timeout_ms > 0).then(|| now.saturating_add(timeout_ms.saturating_mul(1_000_000)));
        self.client.want_block(keys, self.data.database(), deadline, on_timeout);
        Ok(())
    }

    /// The address of the client that asks.
    pub fn peer(&self) -> SocketAddr {
        self.client.peer
    }
}

/// The first bytes of an argument as errors show it: up to a zero byte, and not more than `most`.
pub fn text_before_zero(argument: &[u8], most: usize) -> &[u8] {
    let end = argument.iter().position(|&byte| byte == 0).unwrap_or(argument.len());
    &argument[..end.min(most)]
}

/// Subcommands with the number of their arguments (as [`Command::arity`]), by command.
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
            ("no-touch", 3),
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
pub fn subcommands(command: &Command) -> impl Iterator<Item = &'static str> {
    let known = SUBCOMMANDS.iter().find(|(name, _)| *name == command.name);
    known.into_iter().flat_map(|(_, all)| all.iter().map(|(name, _)| *name))
}

/// The subcommand that these arguments name.
pub fn subcommand(command: &Command, arguments: &[&[u8]]) -> Option<&'static str> {
    let word = arguments.get(1)?;
    subcommands(command).find(|name| is(word, name))
}

/// The name of a command with that of its subcommand, if it has one: `pubsub|numpat`.
pub fn full_name(command: &Command, arguments: &[&[u8]]) -> String {
    subcommand(command, arguments)
        .map_or_else(|| command.name.into(), |name| format!("{}|{name}", command.name))
}

/// Why the subcommand of these arguments cannot be queued in a transaction, if it cannot.
pub fn refuse_subcommand(command: &Command, arguments: &[&[u8]]) -> Option<Fault> {
    let (_, known) = SUBCOMMANDS.iter().find(|(name, _)| *name == command.name)?;
    let word = arguments.get(1)?;
    let Some((name, arity)) = known.iter().find(|(name, _)| is(word, name)) else {
        return Some(Fault::unknown_subcommand(&command.name.to_ascii_uppercase(), word));
    };
    let row = Command { arity: *arity, ..*command };
    (!row.accepts(arguments.len())).then(|| Fault::arity(&format!("{}|{name}", command.name)))
}

/// Why a command's handler knows no such subcommand, or not with so many arguments.
pub fn refused_subcommand(command: &Command, arguments: &[&[u8]]) -> Fault {
    refuse_subcommand(command, arguments)
        .unwrap_or_else(|| Fault::subcommand_syntax(&command.name.to_ascii_uppercase(), arguments[1]))
}

/// Whether two words are the same but for the case of their letters.
pub fn is(argument: &[u8], word: &str) -> bool {
    argument.eq_ignore_ascii_case(word.as_bytes())
}

/// An integer argument.
///
/// # Errors
/// [`Fault::NOT_INTEGER`].
pub fn integer(argument: &[u8]) -> Result<i64, Fault> {
    crate::number::parse_integer(argument).ok_or(Fault::NOT_INTEGER)
}

/// The timeout argument of a blocking command (seconds, may have a fraction) in milliseconds.
///
/// # Errors
/// [`Fault::TIMEOUT_NOT_FLOAT`] and [`Fault::TIMEOUT_NEGATIVE`].
pub fn timeout_milliseconds(argument: &[u8]) -> Result<u64, Fault> {
    let seconds = crate::number::Extended::parse(argument).ok_or(Fault::TIMEOUT_NOT_FLOAT)?;
    let milliseconds = seconds.to_f64() * 1000.0;
    // Redis converts to 64 bits, and what does not fit becomes negative.
    if milliseconds < 0.0 || milliseconds > i64::MAX as f64 {
        return Err(Fault::TIMEOUT_NEGATIVE);
    }
    Ok(milliseconds.ceil() as u64)
}
