//! The service of several clients, without threads: logs, leases, room, and one digest.
//!
//! 1. A client joins with the memory of its log, which was digested to its end. It gets an epoch,
//!    and asks for leases and room by calls; answers are [`Message`]s in its queue.
//! 2. [`SharedDigest::step`] digests the logs that others wait for, up to the positions at which
//!    leases were released. [`SharedDigest::digest`] digests any log. After each commit the table
//!    of leases and the budgets know of it.
//! 3. A record without the leases that it needs, or a log that lost a record, ends that client:
//!    what is valid is digested, the epoch ends, its leases end. Others go on. A client that does
//!    not answer in time, or that died, ends alike.
//! 4. An inode that lost its last name stays while a client has it open. When that may be over, the
//!    service itself acquires the lease on it. Then no client has one, and no log has a record of
//!    the inode that is not digested. If no client said that it has it open, the inode is freed.
//! 5. Clients read the root that they know; blocks that later commits replaced are used again when
//!    all have advanced. A digest that needs such blocks asks them to. A client that does not
//!    advance in time is ended.
//! 6. A client that lacks room waits until the logs of the clients that were promised it are
//!    digested, a batch of each in a step.
//! 7. While nothing is to be digested, what is left of removals goes on, and blocks for nodes that
//!    are spare are room for data again ([`SharedDigest::give_back`]).
//! 8. A record that needs more room than its client has been given ends that client. So does one
//!    for which the pool has no room all the same, before anything of it is applied.
//!
//! 9. What a client says bounds no work: it gives leases back at positions that its log can have
//!    reached, and a log is digested at most one ring further than it was read when its client
//!    ended, however much that client appends meanwhile.
//!
//! What it must never do: take a record of a client after its leases ended; free an inode that a
//! client has open; end one client because of what another one did; digest one log for ever.

mod inline;

pub use inline::InlineShared;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use rustix::io::Errno;
use sietch_disk::DiskQueue;
use sietch_disk::nvm::Medium;

use crate::client::{Message, spare_blocks};
use crate::digest::{Batch, Digest, DigestError, FREED_AT_ONCE, Invalid};
use crate::error::Fault;
use crate::inode::InodeNumber;
use crate::items::LogState;
use crate::lease::{
    ClientNumber, Counts, Event, Grant, Held, LeaseTable, Mode, Refused, Release, RoomEvent, Rooms, Times,
};
use crate::pool::Root;

/// A client's log, and what the service says to the client.
struct Log<M> {
    memory: M,
    /// Of the log's identity.
    seed: u64,
    /// It has records up to here, as its client says.
    logged: u64,
    digested: u64,
    /// It has no record before this position that is not digested.
    read: u64,
    /// The generation that the client reads.
    reads: u64,
    /// It must read this generation until then.
    must_read: Option<(u64, u64)>,
    /// Numbers for inodes that it gets next. No other client gets them.
    numbers: Range<u64>,
    messages: VecDeque<Message>,
    /// Has the client notice that it is fenced.
    fence: Option<Box<dyn FnOnce() + Send>>,
    /// Why the service takes nothing more from the client.
    ended: Option<Ended>,
}

/// Numbers for inodes that are set aside for a client by one commit. It gets them in small parts.
const NUMBERS: u64 = 1 << 24;

/// See [`SharedDigest::progress`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The newest root.
    pub root: Root,
    /// The client's log is in it up to here.
    pub digested: u64,
    /// The log has no record before this position that is not digested.
    pub read: u64,
    /// What the client may promise.
    pub budget: u64,
}

impl<M: Medium> Log<M> {
    /// The position up to which the log can have records now: a client appends only to memory that
    /// the digest has given back.
    fn limit(&self) -> u64 {
        self.read.saturating_add(self.memory.len() as u64)
    }

    /// The client reads this generation from now on, and none before it.
    fn reads_at(&mut self, generation: u64) {
        self.reads = self.reads.max(generation);
        self.must_read = self.must_read.filter(|(asked, _)| self.reads < *asked);
    }
}

/// The end of a client.
struct Ended {
    cause: String,
    /// What is in the log up to here is to be digested first.
    drains_to: Option<u64>,
    /// Its epoch and its leases have ended.
    is_done: bool,
}

/// The module's header describes it.
pub struct SharedDigest<D: DiskQueue, M> {
    digest: Digest<D>,
    table: LeaseTable,
    rooms: Rooms,
    logs: BTreeMap<ClientNumber, Log<M>>,
    times: Times,
    now: u64,
    /// The newest generation, and the oldest that is read, when nothing was left to give back.
    gave_back: Option<(u64, u64)>,
}

impl<D: DiskQueue, M: Medium> SharedDigest<D, M> {
    /// Digests into the pool of `digest`: no log has a record that is not digested, and no client
    /// has anything open.
    pub fn new(digest: Digest<D>, times: Times) -> Self {
        let mut shared = Self {
            digest,
            table: LeaseTable::new(times),
            rooms: Rooms::default(),
            logs: BTreeMap::new(),
            times,
            now: 0,
            gave_back: None,
        };
        shared.committed();
        shared
    }

    /// A client comes, with the log in `memory`, which is digested to its end. Its writer goes on
    /// behind the state that is returned.
    ///
    /// # Errors
    /// A medium failed.
    pub fn join(&mut self, client: ClientNumber, memory: M, seed: u64) -> Result<LogState, DigestError> {
        let state = self.digest.begin_epoch(client.0, seed)?;
        let at = state.position;
        let reads = self.digest.root().generation;
        let messages = VecDeque::new();
        let log = Log {
            memory,
            seed,
            logged: at,
            digested: at,
            read: at,
            reads,
            must_read: None,
            numbers: 0..0,
            messages,
            fence: None,
            ended: None,
        };
        self.logs.insert(client, log);
        self.table.join(client, at);
        self.rooms.join(client);
        self.committed();
        Ok(state)
    }

    /// Where a client does not see [`SharedDigest::is_served`] at once, `fence` is called when it
    /// ends, before its log is read to its end. When that has returned, the client must see that it
    /// is fenced after each record that it appends.
    pub fn set_fence(&mut self, client: ClientNumber, fence: Box<dyn FnOnce() + Send>) {
        if let Some(log) = self.logs.get_mut(&client) {
            log.fence = Some(fence);
        }
    }

    /// A client is gone: its log is digested to its end.
    ///
    /// # Errors
    /// A medium failed; [`DigestError::Held`]: others must advance first, then it is called again.
    pub fn died(&mut self, client: ClientNumber) -> Result<(), DigestError> {
        self.end(client, "it is gone".to_owned(), true)?;
        self.finish_ends()?;
        let ended = self.logs.get(&client).and_then(|log| log.ended.as_ref());
        if ended.is_some_and(|ended| !ended.is_done) {
            return Err(DigestError::Held);
        }
        self.logs.remove(&client);
        Ok(())
    }

    /// The time is `now`: sends what is due, and ends clients that did not answer. Returns them.
    ///
    /// # Errors
    /// A medium failed.
    pub fn tick(&mut self, now: u64) -> Result<Vec<ClientNumber>, DigestError> {
        self.set_time(now);
        self.finish_ends()?;
        let is_late = |log: &Log<M>| log.must_read.is_some_and(|(_, until)| self.now >= until);
        let readers: Vec<_> = self
            .logs
            .iter()
            .filter(|(_, log)| is_late(log))
            .map(|(client, _)| (*client, "to advance"))
            .collect();
        let leases = self.table.tick(self.now).into_iter().map(|client| (client, "to release a lease"));
        let rooms = self.rooms.late(self.now, self.room_deadline());
        let rooms = rooms.into_iter().map(|client| (client, "to return room"));
        let mut late: BTreeMap<ClientNumber, &str> = BTreeMap::new();
        late.extend(readers.into_iter().chain(rooms).chain(leases));
        for (client, what) in &late {
            self.end(*client, format!("it was asked {what} and did not in time"), true)?;
        }
        self.deliver()?;
        Ok(late.into_keys().collect())
    }

    /// The time is `now`, before what clients said until then is handed over. Then
    /// [`SharedDigest::tick`] is called: so no client ends that answered in time.
    pub fn set_time(&mut self, now: u64) {
        self.now = now.max(self.now);
    }

    /// The next time at which [`SharedDigest::tick`] has something to do, if nothing comes before.
    pub fn next_time(&self) -> Option<u64> {
        let readers = self.logs.values().filter_map(|log| Some(log.must_read?.1)).min();
        [self.table.next_time(), self.rooms.next_time(), readers].into_iter().flatten().min()
    }

    /// Digests what clients wait for; whether there was something.
    ///
    /// # Errors
    /// As of [`Digest::digest`].
    pub fn step(&mut self) -> Result<bool, DigestError> {
        let (mut has_digested, mut is_held) = (false, false);
        let clients: Vec<_> = self.logs.keys().copied().collect();
        for client in clients {
            while let Some(owed) = self.table.owed(client)
                && let Some(log) = self.logs.get_mut(&client)
            {
                // A release names the end of the log: there must be records up to there.
                log.logged = log.logged.max(owed);
                has_digested = true;
                match self.digest(client) {
                    // The client ends: it named a position that its log does not reach.
                    Ok(batch) if batch.records == 0 => break,
                    Ok(_) => {}
                    // Other logs may need no such blocks.
                    Err(DigestError::Held) => {
                        is_held = true;
                        break;
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        for client in self.rooms.owing() {
            has_digested = true;
            match self.digest(client) {
                Ok(batch) if batch.more => {}
                Ok(_) => self.rooms.digested(client),
                Err(DigestError::Held) => is_held = true,
                Err(error) => return Err(error),
            }
        }
        self.deliver()?;
        if is_held { Err(DigestError::Held) } else { Ok(has_digested) }
    }

    /// Whether [`SharedDigest::step`] has more to do, if it is called again.
    pub fn has_steps(&self) -> bool {
        !self.rooms.owing().is_empty()
    }

    /// Digests one batch of a client's log. A log that cannot be digested further ends its client.
    ///
    /// # Errors
    /// As of [`Digest::digest`].
    pub fn digest(&mut self, client: ClientNumber) -> Result<Batch, DigestError> {
        let batch = self.batch(client)?;
        let Some(log) = self.logs.get(&client) else { return Ok(batch) };
        let cause = match &batch.invalid {
            Some(invalid) => Some(format!("the record at {}: {}", invalid.position, invalid.cause)),
            None if batch.records == 0 && log.read < log.logged => {
                Some(format!("the log has no record at {}, and has records up to {}", log.read, log.logged))
            }
            None => None,
        };
        if let Some(cause) = cause {
            self.end(client, cause, false)?;
        }
        self.deliver()?;
        Ok(batch)
    }

    /// Digests one batch.
    fn batch(&mut self, client: ClientNumber) -> Result<Batch, DigestError> {
        self.read_by();
        let Self { digest, table, rooms, logs, .. } = self;
        let is_open = |log: &&mut Log<M>| log.ended.as_ref().is_none_or(|ended| !ended.is_done);
        let Some(log) = logs.get_mut(&client).filter(is_open) else {
            return Ok(Batch::default());
        };
        let before = digest.root().free;
        let mut judge = Held::new(table, client, rooms.budget(client));
        let batch = match digest.digest_judged(&log.memory, client.0, log.seed, &mut judge) {
            Err(DigestError::Held) => {
                self.ask_to_advance();
                return Err(DigestError::Held);
            }
            // Nothing has changed.
            Err(DigestError::Fault(fault @ Fault::Full { .. })) if !digest.is_stopped() => {
                let state = digest.log_state(client.0)?;
                let invalid = Some(Invalid { position: state.position, cause: fault.to_string() });
                Batch { state, read: log.read, invalid, ..Batch::default() }
            }
            other => other?,
        };
        (log.digested, log.read) = (batch.state.position, batch.read);
        rooms.spent(client, batch.promised, (before, digest.root().free));
        self.reap()?;
        // The client that made it may have it open, or frees it with its next record, unless it
        // gave the lease up before: the table knows that until the log is digested.
        let mut given_up = batch.orphans.clone();
        given_up.retain(|inode| !self.table.is_of_its_maker(*inode));
        self.table.digested(client, batch.read, self.now);
        for inode in given_up {
            self.look_at(inode)?;
        }
        Ok(batch)
    }

    /// Ends a client. With `is_draining`, its log is digested to its end. What cannot be done now,
    /// because others must advance first, is done later.
    fn end(&mut self, client: ClientNumber, cause: String, is_draining: bool) -> Result<(), DigestError> {
        let Some(log) = self.logs.get_mut(&client).filter(|log| log.ended.is_none()) else { return Ok(()) };
        let drains_to = is_draining.then(|| log.limit());
        // The client sees it before the log is read to its end: a record that it appended without
        // seeing it is read.
        log.ended = Some(Ended { cause, drains_to, is_done: false });
        if let Some(fence) = log.fence.take() {
            fence();
        }
        (log.reads, log.must_read) = (u64::MAX, None);
        log.messages.clear();
        self.finish_ends()
    }

    /// Goes on with what [`SharedDigest::end`] could not do.
    fn finish_ends(&mut self) -> Result<(), DigestError> {
        let is_ending = |log: &Log<M>| log.ended.as_ref().is_some_and(|ended| !ended.is_done);
        let ending: Vec<_> =
            self.logs.iter().filter(|(_, log)| is_ending(log)).map(|(client, _)| *client).collect();
        for client in ending {
            match self.finish_end(client) {
                Err(DigestError::Held) => {}
                other => other?,
            }
        }
        Ok(())
    }

    fn finish_end(&mut self, client: ClientNumber) -> Result<(), DigestError> {
        // What lies further was appended after the end: a hostile client may go on for ever.
        let is_draining = |log: &Log<M>| {
            log.ended.as_ref().and_then(|ended| ended.drains_to).is_some_and(|until| log.read < until)
        };
        while self.logs.get(&client).is_some_and(is_draining) {
            let batch = self.batch(client)?;
            if batch.records == 0 || batch.invalid.is_some() {
                break;
            }
        }
        if let Some(seed) = self.logs.get(&client).map(|log| log.seed) {
            self.digest.begin_epoch(client.0, seed)?;
        }
        if let Some(ended) = self.logs.get_mut(&client).and_then(|log| log.ended.as_mut()) {
            ended.is_done = true;
        }
        self.table.gone(client, self.now);
        self.rooms.gone(client);
        self.committed();
        let mut from = InodeNumber(0);
        while let Some(inode) = self.digest.kept_orphan(from)? {
            self.look_at(inode)?;
            from.0 = inode.0 + 1;
        }
        self.deliver()
    }

    /// Puts messages into the queues of clients, and frees what is free, many inodes by one commit.
    fn deliver(&mut self) -> Result<(), DigestError> {
        loop {
            let mut granted = Vec::new();
            while granted.len() < FREED_AT_ONCE
                && let Some((client, event)) = self.table.event()
            {
                match event {
                    Event::Granted(grant) if client == ClientNumber::SERVICE => granted.push(grant),
                    Event::Granted(grant) => self.send(client, Message::Granted(grant)),
                    Event::Revoked(revocation) => self.send(client, Message::Revoked(revocation)),
                }
            }
            while let Some((client, event)) = self.rooms.event() {
                self.send(
                    client,
                    match event {
                        RoomEvent::Answer(is_there) => Message::Room(is_there),
                        RoomEvent::Recall => Message::RecallRoom,
                    },
                );
            }
            if !granted.is_empty() {
                self.free(&granted)?;
                continue;
            }
            let mut has_looked = false;
            for _ in 0..FREED_AT_ONCE {
                let Some(inode) = self.table.next_unreferenced() else { break };
                self.look_at(inode)?;
                has_looked = true;
            }
            if !has_looked {
                return Ok(());
            }
        }
    }

    fn send(&mut self, client: ClientNumber, message: Message) {
        if let Some(log) = self.logs.get_mut(&client) {
            log.messages.push_back(message);
        }
    }

    /// Frees an inode some time, if it has no name and no client has it open.
    fn look_at(&mut self, inode: InodeNumber) -> Result<(), DigestError> {
        let is_busy = self.table.is_referenced(inode) || self.table.has_sole_holder(inode);
        if !is_busy && self.digest.is_unnamed(inode)? {
            // The service has no limits, so that nothing is forgotten.
            let _ = self.table.acquire(ClientNumber::SERVICE, inode, Mode::Exclusive, self.now);
        }
        Ok(())
    }

    /// The service has these leases.
    fn free(&mut self, grants: &[Grant]) -> Result<(), DigestError> {
        let mut inodes: Vec<_> = grants.iter().map(|grant| grant.inode).collect();
        inodes.retain(|inode| !self.table.is_referenced(*inode));
        let freed = self.digest.free_unnamed(&inodes);
        for &Grant { inode, serial, .. } in grants {
            let release = Release { inode, serial, shares: false, position: 0, is_referenced: false };
            let _ = self.table.release(ClientNumber::SERVICE, release, self.now);
        }
        if freed? > 0 { self.reap().map(drop) } else { Ok(()) }
    }

    /// Removes what was freed, as far as clients allow it. Returns whether that is all.
    fn reap(&mut self) -> Result<bool, DigestError> {
        loop {
            self.committed();
            match self.digest.reap() {
                Ok(true) => {}
                Ok(false) => return Ok(true),
                Err(DigestError::Held) => {
                    self.ask_to_advance();
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether [`SharedDigest::give_back`] may find something: nothing is to be digested, and it
    /// was not called since the last commit and the last client that advanced.
    pub fn may_give_back(&self) -> bool {
        let is_behind = |log: &Log<M>| log.ended.is_none() && log.read < log.logged;
        let now = (self.digest.root().generation, self.oldest());
        self.gave_back != Some(now) && !self.logs.values().any(is_behind)
    }

    /// Gives room back that is free for data when nothing is to be digested: what is left of files
    /// that were freed, and blocks for nodes that are spare. Each batch gives back what is free
    /// before its commit; nothing follows the last one.
    ///
    /// # Errors
    /// A medium failed; [`DigestError::Held`]: clients must advance first, then it is called again.
    pub fn give_back(&mut self) -> Result<(), DigestError> {
        if !self.may_give_back() {
            return Ok(());
        }
        let oldest = self.oldest();
        if !self.reap()? {
            return Err(DigestError::Held);
        }
        if self.digest.give_nodes_back()? {
            self.committed();
        }
        self.gave_back = Some((self.digest.root().generation, oldest));
        Ok(())
    }

    /// Until when clients answer that are asked for room now. An operation may wait for room while
    /// others wait for its leases, so it must not wait for long.
    fn room_deadline(&self) -> u64 {
        self.now.saturating_add(self.times.answer / 4)
    }

    /// Takes notice of a commit.
    fn committed(&mut self) {
        let root = self.digest.root();
        let usable = root.free.saturating_sub(spare_blocks(root.total));
        self.rooms.set_usable(usable);
        self.read_by();
    }

    /// No client reads a generation before the oldest that one reads.
    fn read_by(&mut self) {
        let oldest = self.oldest();
        self.digest.pool().readers_at(oldest);
    }

    /// The oldest generation that a client reads.
    fn oldest(&self) -> u64 {
        self.logs.values().map(|log| log.reads).min().unwrap_or(u64::MAX)
    }

    fn ask_to_advance(&mut self) {
        let newest = self.digest.root().generation;
        let until = self.now.saturating_add(self.times.answer);
        for log in self.logs.values_mut().filter(|log| log.reads < newest && log.must_read.is_none()) {
            log.must_read = Some((newest, until));
            log.messages.push_back(Message::Advance);
        }
    }

    /// A client reads the newest root from now on. Returns that, the position up to which its log
    /// is in it, and its budget.
    pub fn advance(&mut self, client: ClientNumber) -> Option<(Root, u64, u64)> {
        let root = self.digest.root();
        let log = self.logs.get_mut(&client).filter(|log| log.ended.is_none())?;
        log.reads_at(root.generation);
        let digested = log.digested;
        self.read_by();
        Some((root, digested, self.rooms.budget(client)))
    }

    /// What a client is to know, where it does not call [`SharedDigest::advance`].
    pub fn progress(&self, client: ClientNumber) -> Option<Progress> {
        let log = self.logs.get(&client).filter(|log| log.ended.is_none())?;
        let (digested, read) = (log.digested, log.read);
        Some(Progress { root: self.digest.root(), digested, read, budget: self.rooms.budget(client) })
    }

    /// A client reads this generation from now on, and none before it.
    pub fn reads(&mut self, client: ClientNumber, generation: u64) {
        if let Some(log) = self.logs.get_mut(&client) {
            log.reads_at(generation);
        }
        self.read_by();
    }

    /// The next message for a client.
    pub fn message(&mut self, client: ClientNumber) -> Option<Message> {
        self.logs.get_mut(&client)?.messages.pop_front()
    }

    /// A client's log has records up to `position`.
    pub fn logged(&mut self, client: ClientNumber, position: u64) {
        if let Some(log) = self.logs.get_mut(&client) {
            log.logged = log.logged.max(position);
        }
    }

    /// Whether a client's log has records that are not digested.
    pub fn is_behind(&self, client: ClientNumber) -> bool {
        self.logs.get(&client).is_some_and(|log| log.read < log.logged)
    }

    /// Why a client was ended, if it was.
    pub fn ended(&self, client: ClientNumber) -> Option<&str> {
        Some(&self.logs.get(&client)?.ended.as_ref()?.cause)
    }

    /// Whether the service takes requests of a client.
    pub fn is_served(&self, client: ClientNumber) -> bool {
        self.logs.get(&client).is_some_and(|log| log.ended.is_none())
    }

    /// What a client may promise.
    pub fn budget(&self, client: ClientNumber) -> u64 {
        self.rooms.budget(client)
    }

    /// Numbers for new inodes of a client.
    ///
    /// # Errors
    /// As of [`Digest::inode_numbers`].
    pub fn inode_numbers(&mut self, client: ClientNumber, count: u64) -> Result<Range<u64>, DigestError> {
        let Some(log) = self.logs.get_mut(&client).filter(|log| log.ended.is_none()) else { return Ok(0..0) };
        let is_used_up = log.numbers.is_empty();
        if is_used_up {
            // One commit, and one range in the table, for many requests.
            log.numbers = self.digest.inode_numbers(NUMBERS.max(count))?;
        }
        let Range { start, end } = log.numbers;
        let numbers = start..end.min(start.saturating_add(count));
        log.numbers.start = numbers.end;
        self.table.own(client, numbers.clone());
        if is_used_up {
            self.committed();
        }
        Ok(numbers)
    }

    /// A client asks for a lease. The answer is a message.
    ///
    /// # Errors
    /// A medium failed.
    pub fn request_lease(
        &mut self,
        client: ClientNumber,
        inode: InodeNumber,
        mode: Mode,
    ) -> Result<(), DigestError> {
        if self.is_served(client) {
            let errno = match self.table.acquire(client, inode, mode, self.now) {
                Ok(()) => None,
                Err(Refused::Held | Refused::Waiting) => Some(Errno::NOLCK),
                Err(Refused::Unknown) => Some(Errno::IO),
            };
            self.deliver()?;
            errno.into_iter().for_each(|errno| self.send(client, Message::Refused { inode, errno }));
        }
        Ok(())
    }

    /// A client does not wait for a lease any more.
    ///
    /// # Errors
    /// A medium failed.
    pub fn cancel_lease(&mut self, client: ClientNumber, inode: InodeNumber) -> Result<(), DigestError> {
        if self.is_served(client) {
            self.table.cancel(client, inode, self.now);
        }
        self.deliver()
    }

    /// A client releases a lease.
    ///
    /// # Errors
    /// A medium failed.
    pub fn release_lease(&mut self, client: ClientNumber, release: Release) -> Result<(), DigestError> {
        let log = self.logs.get(&client).filter(|log| log.ended.is_none());
        let (position, limit) = (release.position, log.map(Log::limit));
        if limit.is_some_and(|limit| position > limit) {
            let cause = format!("it released a lease at {position}, which its log cannot have reached");
            self.end(client, cause, true)?;
        } else if limit.is_some() && !self.table.release(client, release, self.now) {
            self.end(client, "it has too many inodes open".to_owned(), true)?;
        }
        self.deliver()
    }

    /// A client does not have an inode open any more. [`SharedDigest::tick`] frees it, with others
    /// that were closed until then.
    pub fn unreferenced(&mut self, client: ClientNumber, inode: InodeNumber) {
        if self.is_served(client) {
            self.table.unreferenced(client, inode);
        }
    }

    /// A client wants a budget of so many blocks.
    ///
    /// # Errors
    /// A medium failed.
    pub fn request_room(&mut self, client: ClientNumber, blocks: u64) -> Result<(), DigestError> {
        if self.is_served(client) {
            self.rooms.request(client, blocks, self.room_deadline());
        }
        self.deliver()
    }

    /// A client needs only so much of its budget.
    ///
    /// # Errors
    /// A medium failed.
    pub fn return_room(&mut self, client: ClientNumber, keeps: u64) -> Result<(), DigestError> {
        if self.is_served(client) {
            self.rooms.returned(client, keeps);
        }
        self.deliver()
    }

    /// The leases and requests, for people who look for what is stuck.
    pub fn leases(&self) -> String {
        format!("{:?}", self.table)
    }

    /// Inodes with leases or requests, and references without a lease.
    pub fn table_len(&self) -> (usize, usize) {
        self.table.len()
    }

    /// What the table of leases did.
    pub fn counts(&self) -> Counts {
        self.table.counts()
    }

    /// The pool was changed by other means: data have moved.
    pub fn has_changed(&mut self) {
        self.committed();
    }

    /// The digest.
    pub fn digest_mut(&mut self) -> &mut Digest<D> {
        &mut self.digest
    }

    /// Gives the digest back.
    pub fn into_digest(self) -> Digest<D> {
        self.digest
    }
}
