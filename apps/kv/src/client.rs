//! One client: what it said, what it is to be told, and when.
//!
//! 1. Input: bytes of a command that is not complete, or of commands that may not run yet (the
//!    client is blocked, or its output is over the soft limit). Everything else is parsed where it
//!    arrived.
//! 2. Output ([`Output`]): one byte vector in four parts, in this order: sent, releasable, sealed
//!    (waits for the log to be durable up to some sequence), unsealed (produced since the last
//!    seal). Replies leave in order, so one barrier holds back everything behind it.
//! 3. Closing: [`Closing::AfterOutput`] lets all output leave first (QUIT, protocol errors),
//!    [`Closing::Now`] drops it (limits, CLIENT KILL).

use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;

use crate::acl::DEFAULT;
use crate::keyspace::Place;
use crate::resp::{Parser, Reply};

/// Names a client of a shard. A number is not used again for another client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// Output that is sent keeps its buffer up to this size: enough for ordinary replies, little for
/// ten thousand clients.
const KEPT_OUTPUT: usize = 16 << 10;

/// Bytes on their way to a client; see the module's account.
#[derive(Debug, Default)]
pub struct Output {
    pub(crate) bytes: Vec<u8>,
    /// Bytes at the front that were sent.
    sent: usize,
    /// Bytes from the front that may leave.
    released: usize,
    /// Position in the whole stream of the first byte of `bytes`.
    base: u64,
    /// (sequence, position in the whole stream): what may leave once that sequence is durable.
    barriers: VecDeque<(u64, u64)>,
}

impl Output {
    /// What may leave now.
    pub fn releasable(&self) -> &[u8] {
        &self.bytes[self.sent..self.released]
    }

    /// Bytes that have not been sent, whatever they wait for.
    pub fn pending(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Notes that `count` of the releasable bytes were sent.
    pub fn consumed(&mut self, count: usize) {
        self.sent += count.min(self.released - self.sent);
        if self.sent == self.bytes.len() {
            self.base += self.sent as u64;
            self.bytes.clear();
            self.bytes.shrink_to(KEPT_OUTPUT);
            self.sent = 0;
            self.released = 0;
        } else if self.sent > KEPT_OUTPUT && self.sent > self.bytes.len() / 2 {
            self.bytes.drain(..self.sent);
            self.base += self.sent as u64;
            self.released -= self.sent;
            self.sent = 0;
        }
    }

    /// Puts everything so far behind `sequence`, or releases it when that is `durable` already and
    /// nothing before it waits.
    pub fn seal(&mut self, sequence: u64, durable: u64) {
        if sequence <= durable && self.barriers.is_empty() {
            self.released = self.bytes.len();
            return;
        }
        let end = self.base + self.bytes.len() as u64;
        match self.barriers.back_mut() {
            // A sequence that is not newer waits for what stands before it.
            Some(last) if last.0 >= sequence => last.1 = end,
            _ => self.barriers.push_back((sequence, end)),
        }
    }

    /// Releases what waited for `durable` or less.
    pub fn release(&mut self, durable: u64) {
        while let Some(&(sequence, end)) = self.barriers.front()
            && sequence <= durable
        {
            self.released = (end - self.base) as usize;
            self.barriers.pop_front();
        }
    }

    /// Whether something waits behind a barrier or for a seal.
    pub fn is_held(&self) -> bool {
        self.released < self.bytes.len()
    }

    /// Drops what may not leave.
    pub fn drop_held(&mut self) {
        self.bytes.truncate(self.released);
        self.barriers.clear();
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

/// The reply when a blocked client's time is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeoutReply {
    /// No array.
    NilArray,
    /// No string.
    Nil,
    /// What it waited for was done.
    Done,
}

impl TimeoutReply {
    /// Writes it.
    pub fn write(self, reply: &mut Reply) {
        match self {
            Self::NilArray => reply.nil_array(),
            Self::Nil => reply.nil(),
            Self::Done => reply.ok(),
        }
    }
}

/// What a blocked client waits for.
#[derive(Debug)]
pub struct Blocked {
    pub(crate) keys: Vec<Place>,
    /// Monotonic nanoseconds.
    pub(crate) deadline: Option<u64>,
    pub(crate) on_timeout: TimeoutReply,
    /// The command, to be tried again.
    pub(crate) arguments: Vec<Vec<u8>>,
}

/// Commands between MULTI and EXEC.
#[derive(Debug, Default)]
pub struct Transaction {
    pub(crate) queue: Vec<Vec<Vec<u8>>>,
    /// Bytes of the queue.
    pub(crate) bytes: usize,
    /// A command was refused: EXEC must fail.
    pub(crate) broken: bool,
}

/// Whether and how a client is to be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closing {
    /// Not.
    No,
    /// When all output was sent.
    AfterOutput,
    /// At once.
    Now,
}

/// CLIENT REPLY.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyMode {
    /// Replies are sent.
    On,
    /// None is sent.
    Off,
    /// None is sent for the command that set this.
    SkipThis,
    /// None is sent for the next command.
    SkipNext,
}

/// A watched key.
#[derive(Debug)]
pub struct Watch {
    pub(crate) place: Place,
    pub(crate) version: u64,
    /// It was overdue already when the watch began.
    pub(crate) overdue: bool,
}

/// One client of a shard.
#[derive(Debug)]
pub struct Client {
    pub(crate) id: ClientId,
    /// What CLIENT ID says; counts up from 1.
    pub number: u64,
    /// Its address.
    pub peer: SocketAddr,
    /// The address it reached.
    pub local: SocketAddr,
    /// The user that it is.
    pub user: Vec<u8>,
    /// It has said who it is, or need not.
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
    /// The subcommand of that, if it has some.
    pub last_subcommand: Option<&'static str>,
    /// Monotonic nanoseconds of its arrival.
    pub connected_ns: u64,
    /// Monotonic nanoseconds of its last input.
    pub active_ns: u64,
    /// CLIENT NO-EVICT.
    pub no_evict: bool,
    /// Bytes of the input that is being run.
    pub(crate) reading: usize,
    pub(crate) input: Vec<u8>,
    pub(crate) parser: Parser,
    pub(crate) output: Output,
    pub(crate) closing: Closing,
    pub(crate) reply_mode: ReplyMode,
    pub(crate) transaction: Option<Transaction>,
    pub(crate) watches: Vec<Watch>,
    pub(crate) channels: BTreeSet<Box<[u8]>>,
    pub(crate) patterns: BTreeSet<Box<[u8]>>,
    pub(crate) blocked: Option<Blocked>,
    /// Set by a handler that wants to block; the shard adds the arguments.
    pub(crate) block_request: Option<Blocked>,
    /// In the shard's list of clients whose output is to be sealed.
    pub(crate) unsealed: bool,
    /// In the shard's list of clients that the event loop should look at.
    pub(crate) ready: bool,
    /// In the shard's list of clients whose input should be run.
    pub(crate) resumable: bool,
    /// The peer sends no more.
    pub(crate) input_ended: bool,
    /// Buffer bytes counted in the shard's total.
    pub(crate) charged: usize,
}

impl Client {
    /// A client that has just arrived.
    pub fn new(id: ClientId, number: u64, peer: SocketAddr, local: SocketAddr, now_ns: u64) -> Self {
        Self {
            id,
            number,
            peer,
            local,
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
            no_evict: false,
            reading: 0,
            input: Vec::new(),
            parser: Parser::default(),
            output: Output::default(),
            closing: Closing::No,
            reply_mode: ReplyMode::On,
            transaction: None,
            watches: Vec::new(),
            channels: BTreeSet::new(),
            patterns: BTreeSet::new(),
            blocked: None,
            block_request: None,
            unsealed: false,
            ready: false,
            resumable: false,
            input_ended: false,
            charged: 0,
        }
    }

    /// Its name in the shard.
    pub fn id(&self) -> ClientId {
        self.id
    }

    /// Closes it, after its output, if it is one of these users, who are no more.
    pub(crate) fn close_if_user(&mut self, gone: &BTreeSet<Vec<u8>>) {
        if gone.contains(&self.user) {
            self.closing = Closing::AfterOutput;
        }
    }

    /// Whether it is subscribed to anything.
    pub fn is_subscriber(&self) -> bool {
        !self.channels.is_empty() || !self.patterns.is_empty()
    }

    /// Channels and patterns it is subscribed to.
    pub fn subscriptions(&self) -> usize {
        self.channels.len() + self.patterns.len()
    }

    /// Whether it is between MULTI and EXEC.
    pub fn in_transaction(&self) -> bool {
        self.transaction.is_some()
    }

    /// Bytes of its buffers.
    pub fn memory(&self) -> usize {
        size_of::<Self>()
            + self.input.capacity()
            + self.parser.memory()
            + self.output.bytes.capacity()
            + self.transaction.as_ref().map_or(0, |transaction| transaction.bytes)
    }

    /// Asks the shard to block this client after the command; see `Context::block`.
    pub(crate) fn want_block(
        &mut self,
        keys: &[&[u8]],
        database: usize,
        deadline: Option<u64>,
        on_timeout: TimeoutReply,
    ) {
        let mut places: Vec<Place> = Vec::with_capacity(keys.len());
        for &key in keys {
            if places.iter().all(|place| *place.1 != *key) {
                places.push((database, key.into()));
            }
        }
        self.block_request = Some(Blocked { keys: places, deadline, on_timeout, arguments: Vec::new() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(output: &mut Output, text: &[u8]) {
        output.bytes.extend_from_slice(text);
    }

    #[test]
    fn nothing_leaves_before_its_barrier() {
        let mut output = Output::default();
        written(&mut output, b"one");
        assert!(output.releasable().is_empty());
        output.seal(1, 0);
        written(&mut output, b"two");
        output.seal(2, 0);
        written(&mut output, b"three");
        output.release(1);
        assert_eq!(output.releasable(), b"one");
        output.consumed(2);
        assert_eq!(output.releasable(), b"e");
        output.release(2);
        assert_eq!(output.releasable(), b"etwo");
        output.consumed(4);
        assert!(output.releasable().is_empty());
        output.seal(2, 2);
        assert_eq!(output.releasable(), b"three");
    }

    #[test]
    fn a_durable_seal_does_not_overtake_a_barrier() {
        let mut output = Output::default();
        written(&mut output, b"slow");
        output.seal(5, 4);
        written(&mut output, b"read");
        output.seal(3, 4);
        assert!(output.releasable().is_empty());
        output.release(5);
        assert_eq!(output.releasable(), b"slowread");
    }

    #[test]
    fn positions_survive_compaction() {
        let mut output = Output::default();
        let big = vec![b'x'; 100_000];
        written(&mut output, &big);
        output.seal(1, 1);
        written(&mut output, b"tail");
        output.seal(2, 1);
        output.consumed(99_999);
        assert_eq!(output.releasable(), b"x");
        output.release(2);
        assert_eq!(output.releasable(), b"xtail");
        output.consumed(5);
        assert_eq!(output.pending(), 0);
    }
}
