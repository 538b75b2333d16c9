//! The table of leases: see the module's account.
//!
//! 1. A request joins the queue of its inode. [`LeaseTable::settle`] grants what can be granted,
//!    and has revoked what is in the way of the first request that cannot.
//! 2. A grant has a serial. A release of an older serial is ignored: it crossed the grant.
//! 3. An inode without an entry is held by the client that its number belongs to. The holder gets
//!    an entry when a client asks. If that is another one, the holder may not know the inode any
//!    more; then it answers the revocation at once. If it is the holder itself, it gets all of
//!    it: its log may have records that need it. The holder may also give such an inode back
//!    before another asks (serial 0).
//! 4. Times come from the caller. Revocations and their deadlines are in one ordered set.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::entry::{Entry, Holder, Revoking};
use super::references::References;
use super::{ClientNumber, Event, Grant, MAX_DRAINING, MAX_HELD, MAX_WAITING, Mode, Release, Revocation};
use crate::inode::InodeNumber;

/// How long things take, in nanoseconds of the caller's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// A holder has a lease for so long before it is revoked.
    pub hold: u64,
    /// A revocation is answered within this time.
    pub answer: u64,
}

impl Default for Times {
    /// 1 ms holds some hundred operations; 5 s is more than a stopped thread of a loaded machine.
    fn default() -> Self {
        Self { hold: 1_000_000, answer: 5_000_000_000 }
    }
}

/// Why a request is not even queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// No such client, or one that is gone.
    #[error("the client has no log here")]
    Unknown,
    /// It has [`MAX_HELD`] leases.
    #[error("the client holds {MAX_HELD} leases; it must release some")]
    Held,
    /// It waits for [`MAX_WAITING`] leases.
    #[error("the client waits for {MAX_WAITING} leases; it must wait for fewer at a time")]
    Waiting,
}

/// What the table did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Leases that were granted.
    pub grants: u64,
    /// Revocations that were sent.
    pub revocations: u64,
    /// Clients that did not answer in time.
    pub late: u64,
}

/// What the table knows of a client.
#[derive(Debug, Default)]
struct Client {
    /// Its log is digested up to here.
    digested: u64,
    holds: BTreeSet<InodeNumber>,
    waits: BTreeSet<InodeNumber>,
    /// Releases that wait for the digest.
    draining: BTreeSet<(u64, InodeNumber)>,
}

/// The module's header describes it.
#[derive(Debug)]
pub struct LeaseTable {
    times: Times,
    entries: HashMap<InodeNumber, Entry, RandomState>,
    clients: BTreeMap<ClientNumber, Client>,
    /// Inode numbers that belong to clients: first number to the one behind the last.
    owned: BTreeMap<u64, (u64, ClientNumber)>,
    references: References,
    /// When a revocation is sent, or its deadline.
    timers: BTreeSet<(u64, InodeNumber, ClientNumber)>,
    events: VecDeque<(ClientNumber, Event)>,
    /// Inodes that may have lost their last reference.
    unreferenced: VecDeque<InodeNumber>,
    serial: u64,
    counts: Counts,
}

impl LeaseTable {
    /// A table without clients, but for the service itself.
    pub fn new(times: Times) -> Self {
        let clients = BTreeMap::from([(ClientNumber::SERVICE, Client::default())]);
        Self {
            times,
            entries: HashMap::default(),
            clients,
            owned: BTreeMap::new(),
            references: References::default(),
            timers: BTreeSet::new(),
            events: VecDeque::new(),
            unreferenced: VecDeque::new(),
            serial: 0,
            counts: Counts::default(),
        }
    }

    /// A client comes, whose log is digested up to `digested`.
    pub fn join(&mut self, client: ClientNumber, digested: u64) {
        self.clients.insert(client, Client { digested, ..Client::default() });
    }

    /// These inode numbers belong to a client: it creates inodes with them.
    pub fn own(&mut self, client: ClientNumber, numbers: Range<u64>) {
        if numbers.is_empty() || !self.clients.contains_key(&client) {
            return;
        }
        // Ranges that follow each other are one.
        let before = self.owned.range(..numbers.start).next_back().map(|(start, range)| (*start, *range));
        match before {
            Some((start, (end, owner))) if end == numbers.start && owner == client => {
                self.owned.insert(start, (numbers.end, client));
            }
            _ => drop(self.owned.insert(numbers.start, (numbers.end, client))),
        }
    }

    /// The client that an inode number belongs to.
    pub fn owner(&self, inode: InodeNumber) -> Option<ClientNumber> {
        let (_, (end, client)) = self.owned.range(..=inode.0).next_back()?;
        (inode.0 < *end).then_some(*client)
    }

    /// A client asks for a lease. The answer is an [`Event`].
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn acquire(
        &mut self,
        client: ClientNumber,
        inode: InodeNumber,
        mode: Mode,
        now: u64,
    ) -> Result<(), Refused> {
        let owner = self.owner(inode);
        let state = self.clients.get_mut(&client).ok_or(Refused::Unknown)?;
        if client != ClientNumber::SERVICE && !state.waits.contains(&inode) {
            if state.waits.len() >= MAX_WAITING {
                return Err(Refused::Waiting);
            }
            if state.holds.len() + state.waits.len() >= MAX_HELD && !state.holds.contains(&inode) {
                return Err(Refused::Held);
            }
        }
        let has_entry = self.entries.contains_key(&inode);
        if let Some(owner) = owner.filter(|_| !has_entry) {
            self.hold(owner, inode, Mode::Exclusive, 0);
        }
        let entry = self.entries.entry(inode).or_default();
        if entry.holder(client).is_some_and(|holder| holder.mode >= mode) {
            self.grant_again(client, inode);
            return Ok(());
        }
        match entry.queue.iter_mut().find(|(waiting, _)| *waiting == client) {
            Some((_, wanted)) => *wanted = mode.max(*wanted),
            None => entry.queue.push_back((client, mode)),
        }
        if let Some(state) = self.clients.get_mut(&client) {
            state.waits.insert(inode);
        }
        self.settle(inode, now);
        Ok(())
    }

    /// A client does not wait for a lease any more. It may have been granted meanwhile.
    pub fn cancel(&mut self, client: ClientNumber, inode: InodeNumber, now: u64) {
        if let Some(state) = self.clients.get_mut(&client) {
            state.waits.remove(&inode);
        }
        if let Some(entry) = self.entries.get_mut(&inode) {
            entry.queue.retain(|(waiting, _)| *waiting != client);
        }
        self.settle(inode, now);
    }

    /// A client gives a lease back, or does not know of it any more; whether the table takes its
    /// word: `false`: it has too many inodes open.
    #[must_use]
    pub fn release(&mut self, client: ClientNumber, release: Release, now: u64) -> bool {
        let inode = release.inode;
        self.admit_maker(client, &release);
        let Some(entry) = self.entries.get_mut(&inode) else { return true };
        let Some(holder) = entry.holder_mut(client).filter(|holder| holder.serial == release.serial) else {
            return true;
        };
        let was = holder.mode;
        if let Some(time) = holder.timer() {
            self.timers.remove(&(time, inode, client));
        }
        let Some(state) = self.clients.get_mut(&client) else { return true };
        if release.shares {
            (holder.mode, holder.revoking, holder.since) = (Mode::Shared, Revoking::No, now);
        } else {
            entry.holders.retain(|holder| holder.client != client);
            state.holds.remove(&inode);
        }
        if was == Mode::Exclusive && release.position > state.digested {
            entry.draining = Some((client, release.position));
            state.draining.insert((release.position, inode));
        }
        let mut is_accepted = true;
        if !release.shares {
            if release.is_referenced {
                is_accepted = self.references.insert(client, inode);
            } else {
                self.references.remove(client, inode);
                self.unreferenced.push_back(inode);
            }
        }
        self.settle(inode, now);
        is_accepted
    }

    /// A client gives back an inode that it made and that no other asked for: from now on there is
    /// an entry, which says up to where its log has records of the inode.
    fn admit_maker(&mut self, client: ClientNumber, release: &Release) {
        let inode = release.inode;
        let is_unknown = release.serial == 0 && !self.entries.contains_key(&inode);
        if is_unknown && !release.shares && self.owner(inode) == Some(client) {
            self.hold(client, inode, Mode::Exclusive, 0);
            let holder = self.entries.get_mut(&inode).and_then(|entry| entry.holder_mut(client));
            holder.into_iter().for_each(|holder| holder.serial = 0);
        }
    }

    /// A client does not have an inode open any more, on which it has no lease, or not the only
    /// one.
    pub fn unreferenced(&mut self, client: ClientNumber, inode: InodeNumber) {
        self.references.remove(client, inode);
        self.unreferenced.push_back(inode);
    }

    /// A client's log is digested up to `position`.
    pub fn digested(&mut self, client: ClientNumber, position: u64, now: u64) {
        let Some(state) = self.clients.get_mut(&client) else { return };
        state.digested = state.digested.max(position);
        while let Some(state) = self.clients.get_mut(&client)
            && let Some((at, inode)) = state.draining.first().copied()
            && at <= state.digested
        {
            state.draining.pop_first();
            if let Some(entry) = self.entries.get_mut(&inode)
                && entry.draining == Some((client, at))
            {
                entry.draining = None;
            }
            self.settle(inode, now);
        }
    }

    /// The position up to which a client's log must be digested before others get on.
    pub fn owed(&self, client: ClientNumber) -> Option<u64> {
        let draining = &self.clients.get(&client)?.draining;
        if draining.len() >= MAX_DRAINING {
            return draining.last().map(|(position, _)| *position);
        }
        let is_waited_for =
            |inode: &InodeNumber| self.entries.get(inode).is_some_and(|entry| !entry.queue.is_empty());
        draining.iter().rev().find(|(_, inode)| is_waited_for(inode)).map(|(position, _)| *position)
    }

    /// A client is gone, and its log is digested to its end, or to the record that was refused. The
    /// caller looks at all inodes without a name: the client may have had them open.
    pub fn gone(&mut self, client: ClientNumber, now: u64) {
        let Some(state) = self.clients.remove(&client) else { return };
        self.owned.retain(|_, (_, owner)| *owner != client);
        self.events.retain(|(to, _)| *to != client);
        self.references.remove_client(client);
        let draining = state.draining.iter().map(|(_, inode)| *inode);
        let touched: BTreeSet<_> =
            state.holds.iter().copied().chain(state.waits.iter().copied()).chain(draining).collect();
        for inode in touched {
            let Some(entry) = self.entries.get_mut(&inode) else { continue };
            if let Some(time) = entry.holder(client).and_then(Holder::timer) {
                self.timers.remove(&(time, inode, client));
            }
            entry.holders.retain(|holder| holder.client != client);
            entry.queue.retain(|(waiting, _)| *waiting != client);
            if entry.draining.is_some_and(|(draining, _)| draining == client) {
                entry.draining = None;
            }
            self.unreferenced.push_back(inode);
            self.settle(inode, now);
        }
    }

    /// Sends revocations whose time has come, and returns the clients that did not answer one in
    /// time: each must be fenced, and [`LeaseTable::gone`] called for it.
    pub fn tick(&mut self, now: u64) -> Vec<ClientNumber> {
        let mut late = BTreeSet::new();
        while let Some((time, inode, client)) = self.timers.first().copied()
            && time <= now
        {
            self.timers.pop_first();
            let Some(entry) = self.entries.get_mut(&inode) else { continue };
            let Some(holder) = entry.holder_mut(client) else { continue };
            match holder.revoking {
                Revoking::At(_) | Revoking::Sent(_) => self.revoke(client, inode, now),
                Revoking::Urgent(_) => {
                    holder.revoking = Revoking::No;
                    late.insert(client);
                }
                Revoking::No => {}
            }
        }
        self.counts.late += late.len() as u64;
        late.into_iter().collect()
    }

    /// The next time at which [`LeaseTable::tick`] has something to do.
    pub fn next_time(&self) -> Option<u64> {
        self.timers.first().map(|(time, _, _)| *time)
    }

    /// The next thing to tell a client.
    pub fn event(&mut self) -> Option<(ClientNumber, Event)> {
        self.events.pop_front()
    }

    /// The next inode that may have lost its last reference.
    pub fn next_unreferenced(&mut self) -> Option<InodeNumber> {
        self.unreferenced.pop_front()
    }

    /// Whether a client without a lease has an inode open.
    pub fn is_referenced(&self, inode: InodeNumber) -> bool {
        self.references.has_other(ClientNumber::SERVICE, inode)
    }

    /// Whether a client has the inode alone, and knows that no other has it open: it frees it.
    pub fn has_sole_holder(&self, inode: InodeNumber) -> bool {
        match self.entries.get(&inode) {
            Some(entry) => {
                entry.holders.iter().any(|holder| holder.mode == Mode::Exclusive && holder.is_sole)
            }
            None => false,
        }
    }

    /// Whether no client but the one that its number belongs to ever asked for an inode, as far as
    /// the table knows.
    pub fn is_of_its_maker(&self, inode: InodeNumber) -> bool {
        !self.entries.contains_key(&inode) && self.owner(inode).is_some()
    }

    /// Whether a record at `position` of a client's log may change an inode.
    pub fn may_change(&self, client: ClientNumber, inode: InodeNumber, position: u64) -> bool {
        let Some(entry) = self.entries.get(&inode) else { return self.owner(inode) == Some(client) };
        let holds = entry.holder(client).is_some_and(|holder| holder.mode == Mode::Exclusive);
        let held = entry.draining.is_some_and(|(draining, end)| draining == client && position < end);
        holds || held
    }

    /// What was done so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Inodes with leases or requests, and references without a lease.
    pub fn len(&self) -> (usize, usize) {
        (self.entries.len(), self.references.len())
    }

    /// Whether nothing is held, awaited or referred to.
    pub fn is_empty(&self) -> bool {
        self.len() == (0, 0)
    }

    /// Grants and revokes what is due at an inode.
    fn settle(&mut self, inode: InodeNumber, now: u64) {
        while let Some(entry) = self.entries.get_mut(&inode)
            && let Some(request) = entry.queue.front().copied()
            && entry.admits(request)
        {
            entry.queue.pop_front();
            let (client, mode) = request;
            if let Some(state) = self.clients.get_mut(&client) {
                state.waits.remove(&inode);
            }
            self.hold(client, inode, mode, now);
            self.tell_grant(client, inode);
        }
        let Some(entry) = self.entries.get_mut(&inode) else { return };
        if entry.is_idle() {
            self.entries.remove(&inode);
            return;
        }
        let request = entry.queue.front().copied();
        let (mut due, mut again) = (Vec::new(), Vec::new());
        for holder in &mut entry.holders {
            let wanted = request.filter(|request| Entry::conflicts(holder, *request));
            let may_share = wanted.is_some_and(|(_, mode)| mode == Mode::Shared);
            match (wanted, holder.revoking) {
                (None, Revoking::At(time)) => {
                    self.timers.remove(&(time, inode, holder.client));
                    holder.revoking = Revoking::No;
                }
                (Some(_), Revoking::No) => {
                    let at = now.max(holder.since.saturating_add(self.times.hold));
                    (holder.revoking, holder.may_share) = (Revoking::At(at), may_share);
                    self.timers.insert((at, inode, holder.client));
                    if at == now {
                        due.push(holder.client);
                    }
                }
                (Some(_), Revoking::At(_)) => holder.may_share = may_share,
                // One that allowed less is answered by less.
                (Some(_), Revoking::Sent(_) | Revoking::Urgent(_)) if holder.may_share && !may_share => {
                    holder.may_share = false;
                    again.push(holder.client);
                }
                _ => {}
            }
        }
        for client in due {
            self.revoke(client, inode, now);
        }
        for client in again {
            self.tell_revocation(client, inode);
        }
    }

    /// Makes a client a holder, or the holder of more.
    fn hold(&mut self, client: ClientNumber, inode: InodeNumber, mode: Mode, since: u64) {
        self.serial += 1;
        let entry = self.entries.entry(inode).or_default();
        if let Some(time) = entry.holder(client).and_then(Holder::timer) {
            self.timers.remove(&(time, inode, client));
        }
        entry.holders.retain(|holder| holder.client != client);
        let (serial, is_sole) = (self.serial, !self.references.has_other(client, inode));
        let (revoking, may_share) = (Revoking::No, false);
        entry.holders.push(Holder { client, mode, serial, is_sole, since, revoking, may_share });
        // What it has open, it says when it releases the lease.
        self.references.remove(client, inode);
        if let Some(state) = self.clients.get_mut(&client) {
            state.holds.insert(inode);
        }
    }

    /// Tells a client that it holds a lease.
    fn tell_grant(&mut self, client: ClientNumber, inode: InodeNumber) {
        let Some(holder) = self.entries.get(&inode).and_then(|entry| entry.holder(client)) else { return };
        let &Holder { mode, serial, is_sole, .. } = holder;
        let grant = Grant { inode, mode, serial, is_sole };
        self.events.push_back((client, Event::Granted(grant)));
        self.counts.grants += 1;
    }

    /// A holder asks for what it holds: it does not know. A revocation that it has not answered
    /// names the older serial, so it is sent again; its deadline stays.
    fn grant_again(&mut self, client: ClientNumber, inode: InodeNumber) {
        self.serial += 1;
        let serial = self.serial;
        let Some(entry) = self.entries.get_mut(&inode) else { return };
        let Some(holder) = entry.holder_mut(client) else { return };
        holder.serial = serial;
        holder.is_sole = !self.references.has_other(client, inode);
        let revoking = holder.revoking;
        self.tell_grant(client, inode);
        if matches!(revoking, Revoking::Sent(_) | Revoking::Urgent(_)) {
            self.tell_revocation(client, inode);
        }
    }

    /// Sends a revocation, or sends it again as an urgent one.
    fn revoke(&mut self, client: ClientNumber, inode: InodeNumber, now: u64) {
        let Some(entry) = self.entries.get_mut(&inode) else { return };
        let Some(holder) = entry.holder_mut(client) else { return };
        if let Some(time) = holder.timer() {
            self.timers.remove(&(time, inode, client));
        }
        let next = now.saturating_add(self.times.answer / 2);
        holder.revoking = match holder.revoking {
            Revoking::No | Revoking::At(_) => Revoking::Sent(next),
            Revoking::Sent(_) | Revoking::Urgent(_) => Revoking::Urgent(next),
        };
        self.timers.insert((next, inode, client));
        self.tell_revocation(client, inode);
    }

    fn tell_revocation(&mut self, client: ClientNumber, inode: InodeNumber) {
        let Some(holder) = self.entries.get(&inode).and_then(|entry| entry.holder(client)) else { return };
        let is_urgent = matches!(holder.revoking, Revoking::Urgent(_));
        let &Holder { serial, may_share, .. } = holder;
        let revocation = Revocation { inode, serial, may_share, is_urgent };
        self.events.push_back((client, Event::Revoked(revocation)));
        self.counts.revocations += 1;
    }
}
