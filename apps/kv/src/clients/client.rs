//! One client: its input, its output, and the state of its session.
//!
//! 1. Input: bytes of a command that is not complete, or of commands that may not run yet (the
//!    client is blocked, or its output is over the soft limit). All other bytes are parsed where
//!    they arrived.
//! 2. Output ([`Output`]): one byte vector in four parts, in this order: sent, releasable, sealed
//!    (waits for the log to be durable up to some sequence), unsealed (produced since the last
//!    seal). Replies leave in order, so one barrier holds back everything behind it.
//! 3. Closing: [`Closing::AfterOutput`] sends all output first (QUIT, protocol errors),
//!    [`Closing::Now`] drops it (limits, CLIENT KILL).

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::SocketAddr;

use super::output::Output;
use super::pending::PendingReplies;
use crate::acl::DEFAULT;
use crate::data::keyspace::{DatabaseKey, Store};
use crate::foundation::client_id::ClientId;
use crate::foundation::client_path::ClientPath;
use crate::foundation::protocol::{Parser, Reply};

/// The reply when the timeout of a blocked client expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimeoutReply {
    /// No array.
    NilArray,
    /// `:0`: no replica has acknowledged what was waited for.
    NoReplicas,
    /// None: the command was postponed by CLIENT PAUSE, and runs now.
    RunAgain,
}

impl TimeoutReply {
    /// Writes it.
    pub(crate) fn write(self, reply: &mut Reply) {
        match self {
            Self::NilArray => reply.nil_array(),
            Self::NoReplicas => reply.integer(0),
            Self::RunAgain => {}
        }
    }
}

/// What a blocked client waits for.
#[derive(Debug)]
pub(crate) struct Blocked {
    pub(crate) keys: Vec<DatabaseKey>,
    /// The type of value that it waits for, as TYPE shows it. Empty if there are no keys.
    pub(crate) type_name: &'static str,
    /// Monotonic nanoseconds.
    pub(crate) deadline: Option<u64>,
    pub(crate) on_timeout: TimeoutReply,
    /// The command, which is run again.
    pub(crate) arguments: Vec<Vec<u8>>,
    /// It waits for keys of other shards, too, so the command is run again in an exclusive section.
    pub(crate) shared: bool,
    /// Which wait of the shard's clients this is.
    pub(crate) number: u64,
}

impl Blocked {
    /// Bytes of its command. They count as those of a command in a transaction do.
    pub(crate) fn bytes(&self) -> usize {
        self.arguments.iter().map(|argument| argument.len() + 32).sum()
    }

    /// Whether the client only waits for the end of a pause.
    pub(crate) fn is_postponed(&self) -> bool {
        self.on_timeout == TimeoutReply::RunAgain
    }
}

/// Commands are postponed, by CLIENT PAUSE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pause {
    /// Monotonic nanoseconds.
    pub(crate) until: u64,
    /// Every command is postponed, not only those that write.
    pub(crate) all: bool,
}

/// What a client's next command waits for, in a store of several shards. The command is still in
/// the client's input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum WaitsFor {
    /// Nothing.
    #[default]
    Nothing,
    /// The replies that other shards owe.
    Replies,
    /// An exclusive section.
    Section,
    /// All forwarded commands of all clients to have run.
    Drained,
}

/// Commands between MULTI and EXEC.
#[derive(Debug, Default)]
pub(crate) struct Transaction {
    pub(crate) queue: Vec<Vec<Vec<u8>>>,
    /// Bytes of the queue.
    pub(crate) bytes: usize,
    /// A command was refused, so EXEC must fail.
    pub(crate) broken: bool,
}

/// Whether and when a client is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Closing {
    /// Not.
    No,
    /// When all output was sent.
    AfterOutput,
    /// At once.
    Now,
}

/// CLIENT REPLY.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplyMode {
    /// Replies are sent.
    On,
    /// None is sent.
    Off,
    /// No reply is sent for the command that set this.
    SkipThis,
    /// No reply is sent for the next command.
    SkipNext,
}

impl ReplyMode {
    /// The mode after a command.
    pub(crate) fn after_command(self) -> Self {
        match self {
            Self::SkipThis => Self::SkipNext,
            Self::SkipNext => Self::On,
            mode => mode,
        }
    }
}

/// A watched key.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) version: u64,
    /// Its time was over already when the watch began.
    pub(crate) overdue: bool,
}

/// One client of a shard.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) id: ClientId,
    /// The number that CLIENT ID shows; counts up from 1.
    pub number: u64,
    /// Its address.
    pub peer: SocketAddr,
    /// The address it reached.
    pub local: SocketAddr,
    /// The way on which it reached it.
    pub path: ClientPath,
    /// The user that it is authenticated as.
    pub user: Vec<u8>,
    /// It is authenticated, or no password is required.
    pub authenticated: bool,
    /// CLIENT SETNAME.
    pub name: Vec<u8>,
    /// CLIENT SETINFO lib-name.
    pub library: Vec<u8>,
    /// CLIENT SETINFO lib-ver.
    pub library_version: Vec<u8>,
    /// Speaks RESP3.
    pub resp3: bool,
    /// Selected database.
    pub database: usize,
    /// Name of the command that ran last.
    pub last_command: &'static str,
    /// The subcommand of that command, if it has subcommands.
    pub last_subcommand: Option<&'static str>,
    /// Monotonic nanoseconds of its arrival.
    pub connected_ns: u64,
    /// Monotonic nanoseconds of its last input.
    pub active_ns: u64,
    /// It receives every command, by MONITOR.
    pub monitor: bool,
    /// CLIENT NO-EVICT.
    pub no_evict: bool,
    /// Bytes of the input that is being run.
    pub(crate) reading: usize,
    pub(crate) input: Vec<u8>,
    pub(crate) parser: Parser,
    pub(crate) output: Output,
    /// The replies that other shards owe it.
    pub(crate) pending: PendingReplies,
    /// What its next command waits for.
    pub(crate) waits_for: WaitsFor,
    pub(crate) closing: Closing,
    pub(crate) reply_mode: ReplyMode,
    pub(crate) transaction: Option<Transaction>,
    pub(crate) watches: HashMap<DatabaseKey, Watch>,
    pub(crate) channels: BTreeSet<Box<[u8]>>,
    pub(crate) patterns: BTreeSet<Box<[u8]>>,
    pub(crate) blocked: Option<Blocked>,
    /// Set by a handler that wants to block; the shard adds the arguments.
    pub(crate) block_request: Option<Blocked>,
    /// In the shard's list of clients whose output is to be sealed.
    pub(crate) unsealed: bool,
    /// In the shard's list of clients that the event loop must serve.
    pub(crate) ready: bool,
    /// In the shard's list of clients whose input should be run.
    pub(crate) resumable: bool,
    /// The peer sends no more.
    pub(crate) input_ended: bool,
    /// Buffer bytes counted in the shard's total.
    pub(crate) charged: usize,
    /// Since when it has had as much output as its soft limit, in monotonic nanoseconds.
    pub(crate) over_soft_since: Option<u64>,
    /// In the shard's list of such clients.
    pub(crate) is_listed: bool,
}

impl Client {
    /// A client that has just connected.
    pub(crate) fn new(id: ClientId, number: u64, peer: SocketAddr, local: SocketAddr, now_ns: u64) -> Self {
        Self {
            id,
            number,
            peer,
            local,
            path: ClientPath::default(),
            user: DEFAULT.to_vec(),
            authenticated: true,
            name: Vec::new(),
            library: Vec::new(),
            library_version: Vec::new(),
            resp3: false,
            database: 0,
            last_command: "NULL",
            last_subcommand: None,
            connected_ns: now_ns,
            active_ns: now_ns,
            monitor: false,
            no_evict: false,
            reading: 0,
            input: Vec::new(),
            parser: Parser::default(),
            output: Output::default(),
            pending: PendingReplies::default(),
            waits_for: WaitsFor::Nothing,
            closing: Closing::No,
            reply_mode: ReplyMode::On,
            transaction: None,
            watches: HashMap::new(),
            channels: BTreeSet::new(),
            patterns: BTreeSet::new(),
            blocked: None,
            block_request: None,
            unsealed: false,
            ready: false,
            resumable: false,
            input_ended: false,
            charged: 0,
            over_soft_since: None,
            is_listed: false,
        }
    }

    /// Its identity in the shard.
    pub(crate) fn id(&self) -> ClientId {
        self.id
    }

    /// Closes the client, after its output, if its user is one of these deleted users.
    pub(crate) fn close_if_user(&mut self, deleted: &BTreeSet<Vec<u8>>) {
        if deleted.contains(&self.user) {
            self.closing = Closing::AfterOutput;
        }
    }

    /// Ends all watches of the client.
    pub(crate) fn unwatch_all(&mut self, store: &mut Store) {
        for (key, _) in self.watches.drain() {
            store.unwatch(&key);
        }
    }

    /// Whether it is subscribed to anything.
    pub(crate) fn is_subscriber(&self) -> bool {
        !self.channels.is_empty() || !self.patterns.is_empty()
    }

    /// Channels and patterns it is subscribed to.
    pub(crate) fn subscriptions(&self) -> usize {
        self.channels.len() + self.patterns.len()
    }

    /// Whether it is between MULTI and EXEC.
    pub(crate) fn in_transaction(&self) -> bool {
        self.transaction.is_some()
    }

    /// Moves the output from `start` on behind the replies that other shards owe.
    pub(crate) fn hold_back(&mut self, start: usize) {
        if !self.pending.is_empty() && self.output.bytes.len() > start {
            self.pending.put_behind(&self.output.bytes[start..]);
            self.output.bytes.truncate(start);
        }
    }

    /// Bytes of its buffers.
    pub(crate) fn memory(&self) -> usize {
        size_of::<Self>()
            + self.input.capacity()
            + self.parser.memory()
            + self.output.bytes.capacity()
            + self.pending.bytes()
            + self.transaction.as_ref().map_or(0, |transaction| transaction.bytes)
    }

    /// Requests that the shard blocks this client after the command; see `Context::block`.
    pub(crate) fn want_block(
        &mut self,
        keys: &[&[u8]],
        database: usize,
        deadline: Option<u64>,
        on_timeout: TimeoutReply,
    ) {
        let mut known = HashSet::with_capacity(keys.len());
        let waited = keys.iter().filter(|&&key| known.insert(key)).map(|&key| (database, key.into()));
        let waited = waited.collect();
        let (arguments, shared, number) = (Vec::new(), false, 0);
        self.block_request =
            Some(Blocked { keys: waited, type_name: "", deadline, on_timeout, arguments, shared, number });
    }
}
