//! The store of one core: databases, clients, publish and subscribe, and what is to be logged.
//!
//! No sockets, no disk, no clock, no threads. The event loop drives a shard in this order:
//! 1. [`Shard::feed`] with what arrived from each client: every complete command runs at once, in
//!    order, and its reply is appended to the client's output (`shard/execute.rs`).
//! 2. [`Shard::journal`]: the effects of the whole batch are one log record. The loop appends it
//!    and calls [`Shard::seal`] with its sequence (or with the last sequence, if there was none).
//! 3. [`Shard::durable`] when the log says so; [`Shard::take_ready`] names the clients that have
//!    releasable output ([`Shard::output`], [`Shard::consumed`]) or are to be closed
//!    ([`Shard::wants_close`]).
//! 4. [`Shard::tick`] when [`Shard::next_deadline`] has come: expiry, eviction, timeouts, commands
//!    that were held back.
//!
//! Replies leave only once everything that was recorded before them is durable. This holds for
//! replies to reads, too: no reply may show a write that a crash can undo. Recovery and snapshots
//! are in `shard/recovery.rs`.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use sietch_structures::XorShift64Star;

use crate::clients::{Client, Clients, Closing, WaitsFor};
use crate::commands::{Table, table};
use crate::data::index::Seeds;
use crate::data::journal::Journal;
use crate::data::keyspace::{ShutdownMode, Store};
use crate::foundation::client_path::ClientPath;
use crate::foundation::metrics::{Metrics, Persistence, Usage};
use crate::foundation::protocol::Fault;
use crate::foundation::settings::Settings;

pub use crate::data::journal::ReplayError;
pub use crate::data::keyspace::Now;
pub use crate::foundation::client_id::ClientId;
pub use crate::foundation::observation::time::TimeSource;
pub use crate::foundation::placement::Placement;
pub use crate::foundation::totals::Totals;
pub use messages::{Announcements, Replies, Requests};
pub use router::{Batch, Router, Share};

mod blocking;
mod class;
mod deferred_faults;
mod exchange;
pub mod exclusive;
mod execute;
mod forward;
mod messages;
mod observe;
mod peers;
mod proxy;
mod recovery;
mod replay;
mod router;
mod routing;
mod serve;
mod snapshot;
mod snapshot_keys;
mod snapshot_parts;

use deferred_faults::DeferredFaults;
use peers::{Halt, Peers};
use proxy::Proxy;
pub(crate) use recovery::{most_replayed, rejected, replay_entries};
pub(crate) use replay::{Gathered, RecordFault};
use snapshot::SnapshotWalk;
pub(crate) use snapshot::stamp;
use snapshot_keys::SnapshotKeys;
use snapshot_parts::SnapshotParts;

/// Entries of flushed databases that one tick frees.
const TICK_GRAVES: usize = 4096;
/// Bytes of a dumped value from which on a snapshot takes several slices for it: the bytes of one
/// slice.
const LARGE_VALUE: usize = 256 << 10;
/// Nanoseconds from which on an iteration counts as long: clients on a link wait a hundredth of
/// that.
pub(crate) const LONG_ITERATION_NS: u64 = 1_000_000;
/// Free bytes from which on memory goes back to the system: the pages cost a few milliseconds, to
/// give them back and to get them again.
const RELEASED_FROM: u64 = 64 << 20;
/// Nanoseconds between two times: a client that alternates between much and little memory must not
/// have the heap searched all the time.
const RELEASE_PAUSE_NS: u64 = 10_000_000_000;
/// Nanoseconds between two checks for idle clients.
const IDLE_CHECK_NS: u64 = 1_000_000_000;

/// The reply to a client of another host while no password is set, in Redis' words.
pub(crate) const PROTECTED: &[u8] = b"-DENIED Redis is running in protected mode because protected mode is enabled and no password is set for the default user. In this mode connections are only accepted from the loopback interface. If you want to connect from external computers to Redis you may adopt one of the following solutions: 1) Just disable protected mode sending the command 'CONFIG SET protected-mode no' from the loopback interface by connecting to Redis from the same host the server is running, however MAKE SURE Redis is not publicly accessible from internet if you do so. 2) Setup an authentication password for the default user with 'CONFIG SET requirepass'. NOTE: You only need to do one of the above things in order for the server to start accepting connections from the outside.\r\n";

/// A client was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// `maxclients` clients are connected. The loop may send [`Refused::reply`] before it closes.
    #[error("the limit of {0} clients is reached; raise it with CONFIG SET maxclients")]
    TooManyClients(usize),
}

impl Refused {
    /// The reply to the refused client.
    pub(crate) fn reply(self) -> &'static [u8] {
        b"-ERR max number of clients reached\r\n"
    }
}

/// The reply of WAIT when the log has failed.
const SYNC_FAILED: Fault =
    Fault::of("MISCONF the log has failed: the last writes are not durable; see INFO persistence");

/// The store of one core; see the module documentation.
pub struct Shard {
    store: Store,
    clients: Clients,
    table: Table,
    random: XorShift64Star,
    now: Now,
    /// The sequence up to which everything is durable.
    durable: u64,
    /// The log's error, once it has failed.
    failed: Option<String>,
    /// The data set holds writes that the log does not have and never will.
    unlogged: bool,
    /// The log has failed or is full, so some commands are refused.
    restricted: bool,
    /// Why commands that need room are refused, while the log's area is full.
    full: Option<String>,
    snapshot: Option<SnapshotWalk>,
    snapshot_aborted: bool,
    snapshot_keys: SnapshotKeys,
    deferred_faults: DeferredFaults,
    /// The parts read so far of a snapshot record that is stored in parts.
    parts: SnapshotParts,
    /// Bytes that the data may take in a snapshot during replay.
    most_replayed: u64,
    /// Bytes of a value, as dumped, from which on it is dumped in several slices.
    large_value: usize,
    /// Bytes that a snapshot record may have.
    largest_record: usize,
    next_idle_check: u64,
    /// When freed memory may go back to the system again, in monotonic nanoseconds.
    next_release: u64,
    release_due: bool,
    /// Whether the last tick left keys whose time is over.
    behind: bool,
    /// By the number of the command: whether it takes the longer way of `shard/observe.rs`.
    observed: Vec<bool>,
    placement: Placement,
    totals: Arc<Totals>,
    peers: Peers,
    /// The other shards, in their order, during an exclusive section.
    guests: Vec<Box<Shard>>,
}

impl Shard {
    /// An empty shard, the only one of its store. `seed` decides the order of keys and must be
    /// unpredictable to clients.
    pub fn new(settings: Settings, seed: u64) -> Self {
        Self::with_placement(settings, seed, Placement::single(), Arc::new(Totals::new(1)))
    }

    /// An empty shard among others; `totals` is that of all.
    pub fn with_placement(settings: Settings, seed: u64, placement: Placement, totals: Arc<Totals>) -> Self {
        let table = table();
        let mut seeds = Seeds::new(seed);
        let random = XorShift64Star::new(seeds.next());
        let snapshot_keys = SnapshotKeys::new(seeds.next(), seeds.next());
        let observed = vec![true; table.commands().len()];
        let peers = Peers::new(placement, &table);
        let mut store = Store::new(settings, seeds.next(), table.commands().len(), placement);
        store.refusals = totals.refusals();
        store.totals = (placement.count() > 1).then(|| Arc::clone(&totals));
        store.observation.slow_log.numbers = totals.slow_numbers.clone();
        let mut clients = Clients::new(placement.own(), placement.count());
        clients.numbers = totals.client_numbers.clone();
        let mut shard = Self {
            store,
            clients,
            table,
            random,
            now: Now::default(),
            durable: 0,
            failed: None,
            unlogged: false,
            restricted: false,
            full: None,
            snapshot: None,
            snapshot_aborted: false,
            snapshot_keys,
            deferred_faults: DeferredFaults::default(),
            parts: SnapshotParts::default(),
            most_replayed: u64::MAX,
            large_value: LARGE_VALUE,
            largest_record: sietch::persist::MAX_RECORD,
            next_idle_check: 0,
            next_release: 0,
            release_due: false,
            behind: false,
            observed,
            placement,
            totals,
            peers,
            guests: Vec::new(),
        };
        shard.observe();
        shard
    }

    /// Measures commands with this clock. Without one no time passes during a command.
    pub fn measure_with(&mut self, time: TimeSource) {
        self.store.observation.time = time;
    }

    /// Turns the recording of effects on (there is a log) or off.
    pub fn enable_journal(&mut self, enabled: bool) {
        self.store.journal.enable(enabled);
    }

    /// Adds a client.
    ///
    /// # Errors
    /// [`Refused`] when `maxclients` are connected.
    pub fn connect(&mut self, peer: SocketAddr, local: SocketAddr, now: Now) -> Result<ClientId, Refused> {
        self.now = now;
        if self.store.started_ns == 0 {
            self.store.started_ns = now.monotonic_ns;
            // As Redis: before the first save, when it started.
            self.store.last_save = self.store.last_save.max(now.unix_ms / 1000);
        }
        if self.totals.clients() >= self.store.settings.maxclients as u64 {
            self.store.metrics.refused += 1;
            return Err(Refused::TooManyClients(self.store.settings.maxclients));
        }
        self.store.metrics.connections += 1;
        self.totals.add_client(self.placement.own());
        let id = self.clients.add(peer, local, now.monotonic_ns);
        let admitted = self.store.users.admits_unauthenticated();
        if let Some(client) = self.clients.get_mut(id) {
            client.authenticated = admitted;
        }
        Ok(id)
    }

    /// Notes the way on which a client has come; without this it is a kernel's socket.
    pub(crate) fn set_path(&mut self, id: ClientId, path: ClientPath) {
        if let Some(client) = self.clients.get_mut(id) {
            client.path = path;
        }
    }

    /// Whether a client of this address is refused with [`PROTECTED`]: it is on another host, and
    /// no password is set.
    pub(crate) fn refuses(&self, peer: IpAddr) -> bool {
        self.store.settings.is_protected()
            && !self.store.users.is_protected()
            && !peer.to_canonical().is_loopback()
    }

    /// Whether the default user has a password, or cannot be used.
    pub(crate) fn is_protected(&self) -> bool {
        self.store.users.is_protected()
    }

    /// Requires this password of the default user; none if it is empty.
    pub(crate) fn require_password(&mut self, password: &[u8]) {
        self.store.users.require(password);
        self.store.settings.show("requirepass", &String::from_utf8_lossy(password));
    }

    /// Removes a client that disconnected or that the event loop closed.
    pub fn disconnect(&mut self, id: ClientId) {
        let Some(mut client) = self.clients.take(id) else {
            return;
        };
        self.forget(&mut client);
        client.pending.take_held().for_each(|owner| self.peers.resume(owner, id, true));
        self.store.client_bytes -= client.charged;
        self.clients.free(id);
        self.totals.remove_client(self.placement.own());
    }

    /// Removes a client from watches, subscriptions and wait queues.
    fn forget(&mut self, client: &mut Client) {
        client.unwatch_all(&mut self.store);
        self.clients.unsubscribe_all(client);
        self.unblock(client);
        if self.clients.monitors.remove(&client.id) {
            self.observe();
        }
    }

    /// Takes bytes from a client and runs every complete command.
    pub fn feed(&mut self, id: ClientId, bytes: &[u8], now: Now) {
        self.now = now;
        let Some(mut client) = self.clients.take(id) else {
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

    /// Notes that a client sends no more. It is closed once its commands are answered.
    pub fn end_of_input(&mut self, id: ClientId) {
        if let Some(mut client) = self.clients.take(id) {
            client.input_ended = true;
            // Commands that are held back because of much output run first; `receive` closes the
            // client then.
            let held_back = client.blocked.is_none() && (client.resumable || !self.may_run(&client));
            if client.closing == Closing::No && !held_back {
                client.closing = Closing::AfterOutput;
                self.unblock(&mut client);
            } else if self.peers.halt != Halt::No {
                self.note_halted(id);
            }
            self.put_back(client);
        }
    }

    /// Puts all output since the last seal behind `sequence`.
    pub fn seal(&mut self, sequence: u64) {
        let durable = if self.failed.is_some() { u64::MAX } else { self.durable };
        self.clients.seal(sequence, durable);
        if self.peers.any {
            for proxy in &mut self.peers.proxies {
                proxy.client.output.seal(sequence, durable);
            }
            self.exchange_totals();
        }
    }

    /// Notes that everything up to `sequence` is durable.
    pub fn durable(&mut self, sequence: u64) {
        self.durable = self.durable.max(sequence);
        self.clients.release(self.durable);
        for proxy in &mut self.peers.proxies {
            proxy.client.output.release(self.durable);
        }
        if !self.clients.syncing.is_empty() {
            self.end_syncs(|wanted| wanted.is_some_and(|wanted| wanted <= sequence), None);
        }
    }

    /// Notes that the clients that wait for their batch to be durable (WAIT) wait for `sequence`.
    /// Returns whether there are new ones, for which the log must be flushed.
    pub(crate) fn begin_syncs(&mut self, sequence: u64) -> bool {
        let new = self.clients.syncing.iter_mut().filter(|(wanted, _)| wanted.is_none());
        new.map(|(wanted, _)| *wanted = Some(sequence)).count() > 0
    }

    /// Whether clients wait until a sequence is durable.
    pub(crate) fn has_syncs(&self) -> bool {
        !self.clients.syncing.is_empty()
    }

    /// Answers the clients that wait for sequences which are `over`.
    fn end_syncs(&mut self, over: impl Fn(Option<u64>) -> bool, error: Option<&Fault>) {
        let waiting = std::mem::take(&mut self.clients.syncing);
        let (ended, left): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|&(wanted, _)| over(wanted));
        self.clients.syncing = left;
        ended.into_iter().for_each(|(_, id)| self.end_block(id, error));
    }

    /// Notes that the log failed for this reason. Clients that wait for a write to become durable
    /// are closed without a reply, and from now on commands that write are refused. If the data set
    /// holds `unlogged` writes, which were not acknowledged and which a restart will not find,
    /// commands that read are refused, too.
    pub fn fail_writes(&mut self, reason: &str, unlogged: bool) {
        self.failed = Some(reason.replace(['\r', '\n'], " "));
        self.unlogged = unlogged;
        self.restricted = true;
        self.clients.fail();
        self.peers.proxies.iter_mut().for_each(Proxy::fail);
        self.end_syncs(|_| true, Some(&SYNC_FAILED));
        self.store.journal.clear();
    }

    /// Refuses commands that need room for this reason (the log's area is full), or with `None`
    /// accepts them again. Commands that delete are always accepted.
    pub(crate) fn refuse_growth(&mut self, reason: Option<&str>) {
        self.full = reason.map(|reason| reason.replace(['\r', '\n'], " "));
        self.restricted = self.failed.is_some() || self.full.is_some();
    }

    /// Sets the bytes that all entries may take in a snapshot. A command that would exceed them is
    /// refused before it changes anything, because everything that has run must fit the log, in the
    /// end as a snapshot.
    pub fn limit_snapshot(&mut self, bytes: u64) {
        self.store.most_dumped = bytes;
    }

    /// Whether a command was refused for which the log's area still has no room.
    pub(crate) fn lacks_room(&self) -> bool {
        self.store.lacks_room()
    }

    /// Commands that were refused because the log's area had no room, by all shards.
    pub(crate) fn refusals(&self) -> u64 {
        self.store.refusals.count()
    }

    /// The addresses that CONFIG GET bind shows, and the directory of CONFIG GET dir.
    pub(crate) fn show_bind_and_dir(&mut self, bind: String, dir: String) {
        self.store.settings.bind = bind;
        self.store.settings.dir = dir;
    }

    /// The sequence up to which everything is durable, as last noted.
    pub(crate) fn durable_up_to(&self) -> u64 {
        self.durable
    }

    /// Clients that have releasable output or are to be closed, since the last call.
    pub fn take_ready(&mut self, out: &mut Vec<ClientId>) {
        self.clients.take_ready(out);
    }

    /// Bytes that may be sent to a client now.
    pub fn output(&self, id: ClientId) -> &[u8] {
        self.clients.get(id).map_or(&[], |client| client.output.releasable())
    }

    /// Notes that `count` of the bytes of [`Shard::output`] were sent.
    pub fn consumed(&mut self, id: ClientId, count: usize) {
        if count == 0 {
            // Nothing has changed. Checking for held-back commands here would repeat for ever.
            return;
        }
        self.store.metrics.output_bytes += count as u64;
        let soft = self.store.settings.output_soft_limit;
        let Some(client) = self.clients.note_sent(id, count) else {
            return;
        };
        if self.peers.any && client.output.pending() <= soft {
            self.peers.resume_owner(client);
        }
        let memory = client.memory();
        self.store.client_bytes = self.store.client_bytes + memory - client.charged;
        client.charged = memory;
        let held = client.blocked.is_none() && (!client.input.is_empty() || client.input_ended);
        if held && client.closing == Closing::No && client.output.pending() <= soft {
            self.clients.resume_later(id);
        }
    }

    /// Whether a client is to be closed now: at its own request or by a limit, and after its
    /// output.
    pub fn wants_close(&self, id: ClientId) -> bool {
        self.clients.get(id).is_none_or(|client| match client.closing {
            Closing::No => false,
            Closing::AfterOutput => client.output.pending() == 0 && client.pending.is_empty(),
            Closing::Now => true,
        })
    }

    /// Whether the event loop should read from a client. It should not while much output waits for
    /// the client, or while the client is blocked and has sent much already.
    pub fn accepts_input(&self, id: ClientId) -> bool {
        let soft = self.store.settings.output_soft_limit;
        self.clients.get(id).is_some_and(|client| {
            client.closing == Closing::No
                && !client.input_ended
                && client.output.pending() + client.pending.bytes_to_come() <= soft
                && (client.input.len() <= soft
                    || client.blocked.is_none()
                        && client.waits_for == WaitsFor::Nothing
                        && self.peers.halt == Halt::No)
        })
    }

    /// The effects that are to be logged.
    pub fn journal(&mut self) -> &mut Journal {
        &mut self.store.journal
    }

    /// Expires keys, closes idle clients, ends blocking, runs commands that were held back: a
    /// bounded slice each.
    pub fn tick(&mut self, now: Now) {
        self.now = now;
        if !self.store.replaying && self.peers.halt == Halt::No {
            self.expire_due();
            self.evict_further();
        }
        self.store.free_pending(TICK_GRAVES);
        self.note_free_memory();
        self.time_out_blocked();
        if now.monotonic_ns >= self.next_idle_check {
            self.next_idle_check = now.monotonic_ns.saturating_add(IDLE_CHECK_NS);
            let limit = self.store.settings.timeout.saturating_mul(1_000_000_000);
            if limit > 0 {
                self.store.metrics.idle_closed += self.clients.close_idle(now.monotonic_ns, limit);
            }
        }
        self.clients.close_over_soft(now.monotonic_ns);
        self.store.metrics.output_limit_closed += std::mem::take(&mut self.clients.overflowed);
        for id in self.clients.take_resumable() {
            if let Some(mut client) = self.clients.take(id) {
                self.receive(&mut client, &[]);
                // Even without new output: the event loop may read from the client again.
                self.clients.note_ready(&mut client);
                self.put_back(client);
            }
        }
        self.run_inbox();
        self.serve_ready();
        self.send_events();
    }

    /// When [`Shard::tick`] is due next, in monotonic nanoseconds; `None` if nothing will be due.
    pub fn next_deadline(&self) -> Option<u64> {
        if self.peers.halt != Halt::No {
            // Nothing else runs before the exclusive section.
            return self.clients.next_unblock();
        }
        let at_once = self.behind
            || self.store.has_pending_frees()
            || self.store.evicting
            || self.clients.has_resumable()
            || self.has_runnable_request()
            || self.clients.has_unblock_requests()
            || self.store.has_ready();
        if at_once {
            return Some(self.now.monotonic_ns);
        }
        let expiry = self.store.next_expiry().filter(|_| !self.store.replaying).map(|at| {
            let wait = at.saturating_sub(self.now.unix_ms).saturating_mul(1_000_000);
            self.now.monotonic_ns.saturating_add(wait)
        });
        let idle =
            (self.store.settings.timeout > 0 && self.clients.count() > 0).then_some(self.next_idle_check);
        let output = self.clients.next_output_check();
        let release = self.wants_release().then_some(self.next_release);
        [expiry, idle, output, release, self.clients.next_unblock()].into_iter().flatten().min()
    }

    /// Notes that a snapshot is durable.
    pub(crate) fn snapshot_finished(&mut self, now: Now) {
        self.store.metrics.snapshots += 1;
        self.store.last_save = now.unix_ms / 1000;
    }

    /// The mode of a requested SHUTDOWN.
    pub(crate) fn shutdown_requested(&self) -> Option<ShutdownMode> {
        self.store.shutdown_requested
    }

    /// Whether BGREWRITEAOF requested a compaction of the log. Resets the request.
    pub(crate) fn compaction_requested(&mut self) -> bool {
        std::mem::take(&mut self.store.compaction_requested)
    }

    /// The state of the log, as INFO persistence shows it.
    pub(crate) fn persistence(&self) -> &Persistence {
        &self.store.persistence
    }

    /// The same, for the event loop, which updates it.
    pub(crate) fn persistence_mut(&mut self) -> &mut Persistence {
        &mut self.store.persistence
    }

    /// Counts an iteration of the event loop that took so many nanoseconds.
    #[inline]
    pub(crate) fn note_iteration(&mut self, nanoseconds: u64) {
        let metrics = &mut self.store.metrics;
        metrics.longest_iteration_ns = metrics.longest_iteration_ns.max(nanoseconds);
        metrics.long_iterations += u64::from(nanoseconds >= LONG_ITERATION_NS);
    }

    /// Notes the resources that the process uses.
    pub(crate) fn note_usage(&mut self, usage: Usage) {
        let used = self.store.used_memory() + self.store.elsewhere.memory;
        let beside = usage.resident.saturating_sub(used);
        let persistence = &mut self.store.persistence;
        persistence.usage = usage;
        if usage.resident > 0 {
            persistence.startup = Some(persistence.startup.map_or(beside, |least| least.min(beside)));
        }
    }

    /// Whether the allocator is to give freed memory back to the system, once.
    pub(crate) fn takes_release(&mut self) -> bool {
        std::mem::take(&mut self.release_due)
    }

    /// Notes that much of the most memory that was in use is free.
    fn note_free_memory(&mut self) {
        if self.now.monotonic_ns >= self.next_release && self.wants_release() {
            self.store.most_used = self.store.used_memory();
            self.next_release = self.now.monotonic_ns.saturating_add(RELEASE_PAUSE_NS);
            self.release_due = true;
        }
    }

    fn wants_release(&self) -> bool {
        let (most, used) = (self.store.most_used, self.store.used_memory());
        most >= used.saturating_add(RELEASED_FROM) && used <= most / 2 && !self.store.has_pending_frees()
    }

    /// Sets how many long iterations were the store's own (the kernel did not preempt it), and the
    /// page faults around long iterations.
    pub(crate) fn note_latency(&mut self, own: u64, faults: u64) {
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
    pub(crate) fn settings(&self) -> &Settings {
        &self.store.settings
    }

    /// Bytes in use, as `maxmemory` counts them.
    pub fn used_memory(&self) -> u64 {
        self.store.used_memory()
    }

    /// Keys in all databases.
    pub fn keys(&self) -> usize {
        self.store.keys()
    }

    /// Clients connected.
    pub fn clients(&self) -> usize {
        self.clients.count()
    }
}

#[cfg(test)]
mod tests;
