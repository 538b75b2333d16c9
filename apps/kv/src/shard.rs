//! The store of one core: databases, clients, publish and subscribe, and what is to be logged.
//!
//! No sockets, no disk, no clock, no threads. The event loop turns like this:
//! 1. [`Shard::feed`] with what arrived from each client: every complete command runs at once, in
//!    order, and its reply is appended to the client's output (`shard/execute.rs`).
//! 2. [`Shard::journal`]: the effects of the whole batch are one log record. The loop appends it
//!    and calls [`Shard::seal`] with its sequence (or with the last sequence, if there was none).
//! 3. [`Shard::durable`] when the log says so; [`Shard::take_ready`] names the clients that have
//!    releasable output ([`Shard::output`], [`Shard::consumed`]) or are to be closed
//!    ([`Shard::wants_close`]).
//! 4. [`Shard::tick`] when [`Shard::next_deadline`] has come: expiry, timeouts, commands that were
//!    held back.
//!
//! Replies leave only once everything that was recorded before them is durable, reads too: nobody
//! is told of a write that a crash can undo. Recovery and snapshots are in `shard/recovery.rs`.

use std::net::{IpAddr, SocketAddr};

use sietch_structures::XorShift64Star;

use crate::client::{Client, Closing};
use crate::commands::{Fault, Table};
use crate::index::Seeds;
use crate::journal::Journal;
use crate::keyspace::Store;
use crate::metrics::Metrics;
use crate::persistence::Persistence;
use crate::settings::Settings;

pub use crate::client::ClientId;
pub use crate::journal::ReplayError;
pub use crate::keyspace::Now;

mod blocking;
mod execute;
mod peers;
mod recovery;

pub use peers::Peers;
use recovery::{Guards, Snapshot, Suspects};

/// Keys that one tick expires at most, and entries it frees: well below a millisecond.
const TICK_KEYS: usize = 256;
/// Entries of flushed databases that one tick frees.
const TICK_GRAVES: usize = 4096;
/// Bytes of a value, as dumped, from which on a snapshot takes it in several slices: as many as one
/// slice has.
const LARGE_VALUE: usize = 256 << 10;
/// Nanoseconds of a turn that count as a stall: clients on a link wait for a hundredth of it.
pub const LONG_ITERATION_NS: u64 = 1_000_000;
/// Nanoseconds between two looks for idle clients.
const IDLE_CHECK_NS: u64 = 1_000_000_000;

/// What a client from elsewhere is told while anybody would be let in, in Redis' words.
pub const PROTECTED: &[u8] = b"-DENIED Redis is running in protected mode because protected mode is enabled and no password is set for the default user. In this mode connections are only accepted from the loopback interface. If you want to connect from external computers to Redis you may adopt one of the following solutions: 1) Just disable protected mode sending the command 'CONFIG SET protected-mode no' from the loopback interface by connecting to Redis from the same host the server is running, however MAKE SURE Redis is not publicly accessible from internet if you do so. 2) Setup an authentication password for the default user with 'CONFIG SET requirepass'. NOTE: You only need to do one of the above things in order for the server to start accepting connections from the outside.\r\n";

/// A client was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// `maxclients` clients are connected. The loop may send [`Refused::reply`] before it closes.
    #[error("the limit of {0} clients is reached; raise it with CONFIG SET maxclients")]
    TooManyClients(usize),
}

impl Refused {
    /// What the client should be told.
    pub fn reply(self) -> &'static [u8] {
        b"-ERR max number of clients reached\r\n"
    }
}

/// How SHUTDOWN was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShutdownMode {
    /// Everything recorded must become durable first.
    Save,
    /// At once.
    NoSave,
}

/// What SAVE answers when the snapshot was given up.
const SAVE_FAILED: Fault = Fault::of(
    "ERR the data set was not saved: the log has failed, or its area has no room; see INFO persistence",
);

/// The store of one core; see the module's account.
pub struct Shard {
    store: Store,
    peers: Peers,
    table: Table,
    random: XorShift64Star,
    now: Now,
    /// Everything up to here is durable.
    durable: u64,
    /// The log's error, once it has failed.
    failed: Option<String>,
    /// The data set holds what the log does not, and never will.
    undone: bool,
    /// Why commands that need room are refused, while the log's area is full.
    full: Option<String>,
    snapshot: Option<Snapshot>,
    snapshot_aborted: bool,
    guards: Guards,
    suspects: Suspects,
    /// The parts, so far, of a snapshot record that came in parts.
    parts: Vec<u8>,
    /// Bytes of a value, as dumped, from which on it is dumped in several slices.
    large_value: usize,
    /// Bytes that a snapshot record may have.
    largest_record: usize,
    next_idle_check: u64,
    /// Whether the last tick left keys to expire.
    behind: bool,
}

impl Shard {
    /// An empty shard. `seed` decides the order of keys and must be unpredictable to clients.
    pub fn new(settings: Settings, seed: u64) -> Self {
        let table = Table::new();
        let mut seeds = Seeds::new(seed);
        let random = XorShift64Star::new(seeds.next());
        let guards = Guards::new(seeds.next(), seeds.next());
        Self {
            store: Store::new(settings, seeds.next(), table.commands().len()),
            peers: Peers::new(),
            table,
            random,
            now: Now::default(),
            durable: 0,
            failed: None,
            undone: false,
            full: None,
            snapshot: None,
            snapshot_aborted: false,
            guards,
            suspects: Suspects::default(),
            parts: Vec::new(),
            large_value: LARGE_VALUE,
            largest_record: sietch::persist::MAX_RECORD,
            next_idle_check: 0,
            behind: false,
        }
    }

    /// Turns the recording of effects on (there is a log) or off.
    pub fn enable_journal(&mut self, enabled: bool) {
        self.store.journal.enable(enabled);
    }

    /// A client has arrived.
    ///
    /// # Errors
    /// [`Refused`] when there are too many.
    pub fn connect(&mut self, peer: SocketAddr, local: SocketAddr, now: Now) -> Result<ClientId, Refused> {
        self.now = now;
        if self.store.started_ns == 0 {
            self.store.started_ns = now.monotonic_ns;
            // As Redis: before the first save, when it started.
            self.store.last_save = self.store.last_save.max(now.unix_ms / 1000);
        }
        if self.peers.count() >= self.store.settings.maxclients {
            self.store.metrics.refused += 1;
            return Err(Refused::TooManyClients(self.store.settings.maxclients));
        }
        self.store.metrics.connections += 1;
        let id = self.peers.add(peer, local, now.monotonic_ns);
        let admitted = self.store.users.admits_anybody();
        if let Some(client) = self.peers.get_mut(id) {
            client.authenticated = admitted;
        }
        Ok(id)
    }

    /// Whether a client of this address is to be refused, and told [`PROTECTED`]: it is not on this
    /// host, and anybody is let in.
    pub fn refuses(&self, peer: IpAddr) -> bool {
        self.store.settings.is_protected()
            && !self.store.users.is_protected()
            && !peer.to_canonical().is_loopback()
    }

    /// Whether the default user has a password, or cannot be used.
    pub fn is_protected(&self) -> bool {
        self.store.users.is_protected()
    }

    /// Requires this password of the default user; none if it is empty.
    pub fn require_password(&mut self, password: &[u8]) {
        self.store.users.require(password);
        self.store.settings.show("requirepass", &String::from_utf8_lossy(password));
    }

    /// A client has gone, or was closed by the loop.
    pub fn disconnect(&mut self, id: ClientId) {
        let Some(mut client) = self.peers.take(id) else {
            return;
        };
        self.forget(&mut client);
        self.store.client_bytes -= client.charged;
        self.peers.free(id);
    }

    /// Undoes everything that others hold about a client.
    fn forget(&mut self, client: &mut Client) {
        for watch in client.watches.drain(..) {
            self.store.unwatch(&watch.place);
        }
        self.peers.unsubscribe_all(client);
        self.unblock(client);
    }

    /// Bytes from a client: runs every complete command.
    pub fn feed(&mut self, id: ClientId, bytes: &[u8], now: Now) {
        self.now = now;
        let Some(mut client) = self.peers.take(id) else {
            return;
        };
        self.store.metrics.input_bytes += bytes.len() as u64;
        client.active_ns = now.monotonic_ns;
        if client.closing == Closing::No {
            self.receive(&mut client, bytes);
        }
        self.put_back(client);
        self.serve_ready();
    }

    /// A client sends no more; what it asked is answered, then it is closed.
    pub fn end_of_input(&mut self, id: ClientId) {
        if let Some(mut client) = self.peers.take(id) {
            client.input_ended = true;
            // Commands that are held back (because of much output) run first: `receive` closes
            // then.
            let held_back = client.blocked.is_none() && (client.resumable || !self.may_run(&client));
            if client.closing == Closing::No && !held_back {
                client.closing = Closing::AfterOutput;
                self.unblock(&mut client);
            }
            self.put_back(client);
        }
    }

    /// Puts all output since the last seal behind `sequence`.
    pub fn seal(&mut self, sequence: u64) {
        let durable = if self.failed.is_some() { u64::MAX } else { self.durable };
        self.peers.seal(sequence, durable);
    }

    /// Everything up to `sequence` is durable.
    pub fn durable(&mut self, sequence: u64) {
        self.durable = self.durable.max(sequence);
        self.peers.release(self.durable);
    }

    /// The log failed for this reason. Clients that wait for a write to become durable are closed
    /// without an answer, and from now on commands that write are refused. `undone`: the data set
    /// holds writes that were not acknowledged and that a restart will not find. Then commands that
    /// read are refused, too.
    pub fn fail_writes(&mut self, reason: &str, undone: bool) {
        self.failed = Some(reason.replace(['\r', '\n'], " "));
        self.undone = undone;
        self.peers.fail();
        self.end_saves(u64::MAX, Some(&SAVE_FAILED));
        self.store.journal.clear();
    }

    /// Refuses commands that need room for this reason (the log's area is full), or with `None`
    /// lets them in again. Commands that delete go on.
    pub fn refuse_growth(&mut self, reason: Option<&str>) {
        self.full = reason.map(|reason| reason.replace(['\r', '\n'], " "));
    }

    /// How many bytes all entries may take in a snapshot. A command that would make them take more
    /// is refused before it changes anything: what has run must be logged, and in the end by a
    /// snapshot.
    pub fn limit_snapshot(&mut self, bytes: u64) {
        self.store.most_dumped = bytes;
    }

    /// The addresses that CONFIG GET bind shows, and the directory of CONFIG GET dir.
    pub fn show_places(&mut self, bind: String, dir: String) {
        self.store.settings.bind = bind;
        self.store.settings.dir = dir;
    }

    /// The sequence up to which everything is durable, as the loop said last.
    pub fn durable_up_to(&self) -> u64 {
        self.durable
    }

    /// Clients that have releasable output or are to be closed, since the last call.
    pub fn take_ready(&mut self, out: &mut Vec<ClientId>) {
        self.peers.take_ready(out);
    }

    /// Bytes that may be sent to a client now.
    pub fn output(&self, id: ClientId) -> &[u8] {
        self.peers.get(id).map_or(&[], |client| client.output.releasable())
    }

    /// The loop sent `count` of the bytes of [`Shard::output`].
    pub fn consumed(&mut self, id: ClientId, count: usize) {
        if count == 0 {
            // Nothing has changed: to look for commands that were held back would be to look again
            // for ever.
            return;
        }
        self.store.metrics.output_bytes += count as u64;
        let soft = self.store.settings.output_soft_limit;
        let Some(client) = self.peers.get_mut(id) else {
            return;
        };
        client.output.consumed(count);
        let memory = client.memory();
        self.store.client_bytes = self.store.client_bytes + memory - client.charged;
        client.charged = memory;
        let held = client.blocked.is_none() && (!client.input.is_empty() || client.input_ended);
        if held && client.closing == Closing::No && client.output.pending() <= soft {
            self.peers.resume_later(id);
        }
    }

    /// Whether a client is to be closed now: it asked for it or must go, and its output was sent.
    pub fn wants_close(&self, id: ClientId) -> bool {
        self.peers.get(id).is_none_or(|client| match client.closing {
            Closing::No => false,
            Closing::AfterOutput => client.output.pending() == 0,
            Closing::Now => true,
        })
    }

    /// Whether the loop should read from a client: not while much output waits for it, nor while it
    /// is blocked and has sent much already.
    pub fn accepts_input(&self, id: ClientId) -> bool {
        let soft = self.store.settings.output_soft_limit;
        self.peers.get(id).is_some_and(|client| {
            client.closing == Closing::No
                && !client.input_ended
                && client.output.pending() <= soft
                && (client.blocked.is_none() || client.input.len() <= soft)
        })
    }

    /// What is to be logged.
    pub fn journal(&mut self) -> &mut Journal {
        &mut self.store.journal
    }

    /// Expires keys, closes idle clients, ends blocking, runs commands that were held back: a
    /// bounded slice each.
    pub fn tick(&mut self, now: Now) {
        self.now = now;
        if !self.store.replaying {
            self.behind = self.store.expire_due(now, TICK_KEYS);
        }
        self.store.bury(TICK_GRAVES);
        self.time_out_blocked();
        if now.monotonic_ns >= self.next_idle_check {
            self.next_idle_check = now.monotonic_ns.saturating_add(IDLE_CHECK_NS);
            let limit = self.store.settings.timeout.saturating_mul(1_000_000_000);
            if limit > 0 {
                self.store.metrics.idle_closed += self.peers.close_idle(now.monotonic_ns, limit);
            }
        }
        for id in self.peers.take_resumable() {
            if let Some(mut client) = self.peers.take(id) {
                self.receive(&mut client, &[]);
                // Even without new output: the loop may read from it again.
                self.peers.note_ready(&mut client);
                self.put_back(client);
            }
        }
        self.serve_ready();
    }

    /// When [`Shard::tick`] should be called next, in monotonic nanoseconds; `None`: nothing will
    /// be due.
    pub fn next_deadline(&self) -> Option<u64> {
        let at_once = self.behind
            || self.store.has_graves()
            || self.peers.has_resumable()
            || !self.store.ready.is_empty();
        if at_once {
            return Some(self.now.monotonic_ns);
        }
        let expiry = self.store.next_expiry().filter(|_| !self.store.replaying).map(|at| {
            let wait = at.saturating_sub(self.now.unix_ms).saturating_mul(1_000_000);
            self.now.monotonic_ns.saturating_add(wait)
        });
        let idle =
            (self.store.settings.timeout > 0 && self.peers.count() > 0).then_some(self.next_idle_check);
        [expiry, idle, self.peers.next_unblock()].into_iter().flatten().min()
    }

    /// A snapshot was given up, and what was asked for cannot be done now.
    pub fn snapshot_failed(&mut self) {
        self.end_saves(u64::MAX, Some(&SAVE_FAILED));
    }

    /// Answers the clients that wait for the snapshot of this number, or one before it, to be
    /// durable.
    fn end_saves(&mut self, number: u64, error: Option<&Fault>) {
        let waiting = std::mem::take(&mut self.peers.saving);
        let (over, left): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|&(wanted, _)| wanted <= number);
        self.peers.saving = left;
        over.into_iter().for_each(|(_, id)| self.end_block(id, error));
    }

    /// A snapshot is durable and stands for the data set as it was when it was taken.
    pub fn snapshot_finished(&mut self, now: Now) {
        self.end_saves(self.store.persistence.begun, None);
        self.store.metrics.snapshots += 1;
        self.store.last_save = now.unix_ms / 1000;
    }

    /// Whether SHUTDOWN was asked for.
    pub fn shutdown_requested(&self) -> Option<ShutdownMode> {
        self.peers.shutdown
    }

    /// Whether BGREWRITEAOF, BGSAVE or SAVE asked for a compaction of the log; asking resets it.
    pub fn compaction_requested(&mut self) -> bool {
        std::mem::take(&mut self.store.compaction_requested)
    }

    /// What is known of the log, as INFO persistence shows it.
    pub fn persistence(&self) -> &Persistence {
        &self.store.persistence
    }

    /// The same, for the event loop, which keeps it true.
    pub fn persistence_mut(&mut self) -> &mut Persistence {
        &mut self.store.persistence
    }

    /// A turn of the event loop took so many nanoseconds.
    #[inline]
    pub fn note_iteration(&mut self, nanoseconds: u64) {
        let metrics = &mut self.store.metrics;
        metrics.longest_iteration_ns = metrics.longest_iteration_ns.max(nanoseconds);
        metrics.long_iterations += u64::from(nanoseconds >= LONG_ITERATION_NS);
    }

    /// Of the long turns, so many were not because the kernel gave the core to somebody else;
    /// meanwhile it found so many pages.
    pub fn note_latency(&mut self, own: u64, faults: u64) {
        self.store.metrics.own_long_iterations = own;
        self.store.metrics.long_iteration_faults = faults;
    }

    /// The data set.
    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Counters.
    pub fn metrics(&self) -> &Metrics {
        &self.store.metrics
    }

    /// Limits and policies.
    pub fn settings(&self) -> &Settings {
        &self.store.settings
    }

    /// Bytes in use, as `maxmemory` counts them.
    pub fn used_memory(&self) -> u64 {
        self.store.used_memory()
    }

    /// Keys in all databases.
    pub fn keys(&self) -> usize {
        self.store.databases().iter().map(|database| database.index().len()).sum()
    }

    /// Clients connected.
    pub fn clients(&self) -> usize {
        self.peers.count()
    }
}

#[cfg(test)]
mod tests;
