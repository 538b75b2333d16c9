//! The clients of a shard, their subscriptions, and the lists of clients that need service.
//!
//! A client that is being served is taken out of its slot (`take`, `put`), so that its command may
//! change it and other clients at the same time.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::SocketAddr;

use super::announcement::Announcement;
use super::client::{Client, Closing, Pause, WaitsFor};
use crate::foundation::client_id::ClientId;
use crate::foundation::settings::OutputLimits;
use crate::foundation::totals::Numbers;

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    used: bool,
    client: Option<Box<Client>>,
}

type Subscribers = HashMap<Box<[u8]>, BTreeSet<ClientId>>;

/// All clients but the one that is being served.
pub(crate) struct Clients {
    slots: Vec<Slot>,
    vacant: Vec<u32>,
    count: usize,
    /// The numbers of clients, those of all shards.
    pub(crate) numbers: Numbers,
    unsealed: Vec<ClientId>,
    /// Clients whose output waits for a sequence, in order of it.
    sealed: VecDeque<(u64, ClientId)>,
    ready: Vec<ClientId>,
    resumable: Vec<ClientId>,
    /// Blocked clients with a deadline.
    pub(crate) deadlines: BTreeSet<(u64, ClientId)>,
    pub(crate) blocked: usize,
    /// Waits that have begun, which numbers them.
    pub(crate) waits: u64,
    channels: Subscribers,
    patterns: BTreeMap<Box<[u8]>, BTreeSet<ClientId>>,
    /// The pause of commands, if there is one.
    pub(crate) pause: Option<Pause>,
    /// Clients whose commands it has postponed, oldest first.
    pub(crate) postponed: Vec<ClientId>,
    /// Clients whose postponed commands may run now that the pause is over, oldest first.
    pub(crate) released: VecDeque<ClientId>,
    /// Clients that receive every command.
    pub(crate) monitors: BTreeSet<ClientId>,
    /// Clients that wait until a sequence of the log is durable; `None`: the one that their batch
    /// will have.
    pub(crate) syncing: Vec<(Option<u64>, ClientId)>,
    /// Blocked clients that CLIENT UNBLOCK names, and whether with an error.
    pub(crate) unblock_requests: Vec<(ClientId, bool)>,
    /// Clients closed because their output exceeded the limit.
    pub(crate) overflowed: u64,
    /// The limits of output, as the settings have them.
    pub(super) output_limits: OutputLimits,
    /// Clients that have had as much output as their soft limit.
    pub(super) over_soft: Vec<ClientId>,
    /// When the first of them may be over its limit, in monotonic nanoseconds.
    pub(super) next_output_check: u64,
    /// By shard: what it must know. None of them in a store of one shard.
    announcements: Vec<Vec<Announcement>>,
    own: usize,
    /// The other shards that have monitors, each with the period of its monitors.
    pub(crate) monitored_by: BTreeMap<usize, u64>,
    /// How often there were first no monitors here, and then some.
    monitor_period: u64,
    /// The other shards know of the monitors here.
    monitors_known: bool,
}

impl Clients {
    /// No clients, of shard `own` of `count`.
    pub(crate) fn new(own: usize, count: usize) -> Self {
        Self {
            slots: Vec::new(),
            vacant: Vec::new(),
            count: 0,
            numbers: Numbers::default(),
            unsealed: Vec::new(),
            sealed: VecDeque::new(),
            ready: Vec::new(),
            resumable: Vec::new(),
            deadlines: BTreeSet::new(),
            blocked: 0,
            waits: 0,
            channels: HashMap::new(),
            patterns: BTreeMap::new(),
            unblock_requests: Vec::new(),
            syncing: Vec::new(),
            pause: None,
            postponed: Vec::new(),
            released: VecDeque::new(),
            monitors: BTreeSet::new(),
            overflowed: 0,
            output_limits: OutputLimits::default(),
            over_soft: Vec::new(),
            next_output_check: u64::MAX,
            announcements: if count > 1 { vec![Vec::new(); count] } else { Vec::new() },
            own,
            monitored_by: BTreeMap::new(),
            monitor_period: 0,
            monitors_known: false,
        }
    }

    pub(crate) fn add(&mut self, peer: SocketAddr, local: SocketAddr, now_ns: u64) -> ClientId {
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() as u32 - 1
        });
        let entry = &mut self.slots[slot as usize];
        let id = ClientId { slot, generation: entry.generation };
        entry.used = true;
        let number = self.numbers.next() + 1;
        entry.client = Some(Box::new(Client::new(id, number, peer, local, now_ns)));
        self.count += 1;
        id
    }

    fn slot(&mut self, id: ClientId) -> Option<&mut Slot> {
        self.slots.get_mut(id.slot as usize).filter(|slot| slot.used && slot.generation == id.generation)
    }

    /// Takes a client out to serve it.
    pub(crate) fn take(&mut self, id: ClientId) -> Option<Box<Client>> {
        self.slot(id)?.client.take()
    }

    /// Puts a client back.
    pub(crate) fn put(&mut self, client: Box<Client>) {
        if let Some(slot) = self.slot(client.id) {
            slot.client = Some(client);
        }
    }

    /// Frees the slot of a disconnected client.
    pub(crate) fn free(&mut self, id: ClientId) {
        if let Some(slot) = self.slot(id) {
            slot.used = false;
            slot.client = None;
            slot.generation = slot.generation.wrapping_add(1);
            self.vacant.push(id.slot);
            self.count -= 1;
        }
    }

    /// Clients, the one that is being served included.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// The number of the shard.
    pub(crate) fn own(&self) -> usize {
        self.own
    }

    /// Clients that wait for something, the end of a pause included.
    pub(crate) fn blocked(&self) -> usize {
        self.blocked + self.postponed.len() + self.released.len()
    }

    /// Clients that wait up to a time that their command has named.
    pub(crate) fn with_timeout(&self) -> usize {
        self.deadlines.len().saturating_sub(self.postponed.len() + self.released.len())
    }

    pub(crate) fn get(&self, id: ClientId) -> Option<&Client> {
        self.slots
            .get(id.slot as usize)
            .filter(|slot| slot.generation == id.generation)
            .and_then(|slot| slot.client.as_deref())
    }

    pub(crate) fn get_mut(&mut self, id: ClientId) -> Option<&mut Client> {
        self.slot(id)?.client.as_deref_mut()
    }

    /// All clients but the one that is being served.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Client> {
        self.slots.iter().filter_map(|slot| slot.client.as_deref())
    }

    /// Notes that a client has new output.
    pub(crate) fn note_output(&mut self, client: &mut Client) {
        if !client.unsealed {
            client.unsealed = true;
            self.unsealed.push(client.id);
        }
    }

    /// Queues a client for the event loop.
    pub(crate) fn note_ready(&mut self, client: &mut Client) {
        if !client.ready {
            client.ready = true;
            self.ready.push(client.id);
        }
    }

    pub(crate) fn seal(&mut self, sequence: u64, durable: u64) {
        let mut unsealed = std::mem::take(&mut self.unsealed);
        for id in unsealed.drain(..) {
            let Some(mut client) = self.take(id) else {
                continue;
            };
            client.unsealed = false;
            client.output.seal(sequence, durable);
            if client.output.is_held() {
                self.sealed.push_back((sequence, id));
            }
            if !client.output.releasable().is_empty() || client.closing != Closing::No {
                self.note_ready(&mut client);
            }
            self.put(client);
        }
        self.unsealed = unsealed;
    }

    pub(crate) fn release(&mut self, durable: u64) {
        while let Some(&(sequence, id)) = self.sealed.front()
            && sequence <= durable
        {
            self.sealed.pop_front();
            if let Some(mut client) = self.take(id) {
                client.output.release(durable);
                self.note_ready(&mut client);
                self.put(client);
            }
        }
    }

    /// Closes every client whose output waits for a sequence, and drops that output.
    pub(crate) fn fail(&mut self) {
        self.sealed.clear();
        self.announcements.iter_mut().for_each(|list| list.retain(Announcement::shows_nothing));
        let is_held = |client: &&Client| client.output.is_held() || client.pending.has_held();
        let held: Vec<ClientId> = self.iter().filter(is_held).map(Client::id).collect();
        for id in held {
            if let Some(mut client) = self.take(id) {
                client.output.drop_held();
                client.pending.clear();
                client.closing = Closing::AfterOutput;
                self.note_ready(&mut client);
                self.put(client);
            }
        }
    }

    pub(crate) fn take_ready(&mut self, out: &mut Vec<ClientId>) {
        let mut ready = std::mem::take(&mut self.ready);
        for id in ready.drain(..) {
            if let Some(client) = self.get_mut(id) {
                client.ready = false;
                out.push(id);
            }
        }
        self.ready = ready;
    }

    pub(crate) fn resume_later(&mut self, id: ClientId) {
        if let Some(client) = self.get_mut(id)
            && !client.resumable
        {
            client.resumable = true;
            self.resumable.push(id);
        }
    }

    /// The same for a client that is being served; its flag is set already.
    pub(crate) fn push_resumable(&mut self, id: ClientId) {
        self.resumable.push(id);
    }

    /// Lets the postponed clients run their commands, in the order of their arrival.
    pub(crate) fn release_postponed(&mut self) {
        self.released.extend(self.postponed.drain(..));
    }

    /// Whether clients are to be unblocked, or to run what was postponed.
    pub(crate) fn has_unblock_requests(&self) -> bool {
        !self.unblock_requests.is_empty() || !self.released.is_empty()
    }

    pub(crate) fn take_resumable(&mut self) -> Vec<ClientId> {
        let ids = std::mem::take(&mut self.resumable);
        for &id in &ids {
            if let Some(client) = self.get_mut(id) {
                client.resumable = false;
            }
        }
        ids
    }

    pub(crate) fn has_resumable(&self) -> bool {
        !self.resumable.is_empty()
    }

    pub(crate) fn next_unblock(&self) -> Option<u64> {
        self.deadlines.first().map(|&(deadline, _)| deadline)
    }

    /// Whether there are monitors, here or on another shard.
    pub(crate) fn are_monitored(&self) -> bool {
        !self.monitors.is_empty() || !self.monitored_by.is_empty()
    }

    /// Notes that the other shards learn of the monitors here: they are monitored by this shard,
    /// from this period on.
    pub(crate) fn monitors_become_known(&mut self) -> (usize, u64) {
        if !self.monitors_known {
            self.monitors_known = true;
            self.monitor_period += 1;
        }
        (self.own, self.monitor_period)
    }

    /// Tells the other shards when there are no monitors here any more.
    pub(crate) fn announce_monitors(&mut self) {
        if self.monitors_known && self.monitors.is_empty() {
            self.monitors_known = false;
            self.announce(&Announcement::NoMonitors { period: self.monitor_period });
        }
    }

    /// Tells all other shards.
    pub(crate) fn announce(&mut self, announcement: &Announcement) {
        let own = self.own;
        let others = self.announcements.iter_mut().enumerate().filter(|&(shard, _)| shard != own);
        others.for_each(|(_, list)| list.push(announcement.clone()));
    }

    /// Tells the other shards that have monitors of a line.
    pub(super) fn announce_line(&mut self, line: &[u8]) {
        for &shard in self.monitored_by.keys() {
            self.announcements[shard].push(Announcement::MonitorLine(line.into()));
        }
    }

    /// What another shard must know, since the last call.
    pub(crate) fn take_announcements(&mut self, shard: usize) -> Vec<Announcement> {
        self.announcements.get_mut(shard).map(std::mem::take).unwrap_or_default()
    }

    /// Closes a client that is not the one being served.
    pub(crate) fn close(&mut self, id: ClientId, closing: Closing) {
        if let Some(mut client) = self.take(id) {
            client.closing = closing;
            if closing == Closing::Now {
                client.output.clear();
            }
            self.note_ready(&mut client);
            self.put(client);
        }
    }

    /// Closes all clients of these users.
    pub(crate) fn kill_users(&mut self, deleted: &BTreeSet<Vec<u8>>) {
        let doomed: Vec<ClientId> =
            self.iter().filter(|client| deleted.contains(&client.user)).map(Client::id).collect();
        doomed.into_iter().for_each(|id| self.close(id, Closing::Now));
    }

    pub(crate) fn close_idle(&mut self, now_ns: u64, limit_ns: u64) -> u64 {
        let idle: Vec<ClientId> = self
            .iter()
            .filter(|client| client.blocked.is_none() && client.waits_for == WaitsFor::Nothing)
            .filter(|client| !client.is_subscriber() && !client.monitor)
            .filter(|client| now_ns.saturating_sub(client.active_ns) > limit_ns)
            .map(Client::id)
            .collect();
        for &id in &idle {
            self.close(id, Closing::Now);
        }
        idle.len() as u64
    }

    /// Subscribes a client to a channel; whether the subscription is new.
    pub(crate) fn subscribe(&mut self, client: &mut Client, channel: &[u8]) -> bool {
        let new = client.channels.insert(channel.into());
        if new {
            self.channels.entry(channel.into()).or_default().insert(client.id);
        }
        new
    }

    /// Subscribes a client to a pattern; whether the subscription is new.
    pub(crate) fn subscribe_pattern(&mut self, client: &mut Client, pattern: &[u8]) -> bool {
        let new = client.patterns.insert(pattern.into());
        if new {
            self.patterns.entry(pattern.into()).or_default().insert(client.id);
        }
        new
    }

    /// Ends a subscription.
    pub(crate) fn unsubscribe(&mut self, client: &mut Client, channel: &[u8]) {
        if client.channels.remove(channel)
            && let Some(subscribers) = self.channels.get_mut(channel)
        {
            subscribers.remove(&client.id);
            if subscribers.is_empty() {
                self.channels.remove(channel);
            }
        }
    }

    /// Ends the subscription to a pattern.
    pub(crate) fn unsubscribe_pattern(&mut self, client: &mut Client, pattern: &[u8]) {
        if client.patterns.remove(pattern)
            && let Some(subscribers) = self.patterns.get_mut(pattern)
        {
            subscribers.remove(&client.id);
            if subscribers.is_empty() {
                self.patterns.remove(pattern);
            }
        }
    }

    /// Ends all subscriptions of a client.
    pub(crate) fn unsubscribe_all(&mut self, client: &mut Client) {
        for channel in std::mem::take(&mut client.channels) {
            client.channels.insert(channel.clone());
            self.unsubscribe(client, &channel);
        }
        for pattern in std::mem::take(&mut client.patterns) {
            client.patterns.insert(pattern.clone());
            self.unsubscribe_pattern(client, &pattern);
        }
    }

    /// Channels that have subscribers, with their number.
    pub(crate) fn channels(&self) -> impl Iterator<Item = (&[u8], usize)> {
        self.channels.iter().map(|(channel, subscribers)| (&**channel, subscribers.len()))
    }

    /// Subscribers of a channel.
    pub(crate) fn subscribers(&self, channel: &[u8]) -> Vec<ClientId> {
        self.channels
            .get(channel)
            .map(|subscribers| subscribers.iter().copied().collect())
            .unwrap_or_default()
    }

    /// Patterns that have subscribers, and their subscribers.
    pub(crate) fn patterns(&self) -> impl Iterator<Item = (&[u8], &BTreeSet<ClientId>)> {
        self.patterns.iter().map(|(pattern, subscribers)| (&**pattern, subscribers))
    }

    /// Notes that a client, which this returns, was sent `count` bytes of its output.
    #[inline]
    pub(crate) fn note_sent(&mut self, id: ClientId, count: usize) -> Option<&mut Client> {
        let slot = self.slots.get_mut(id.slot as usize).filter(|slot| slot.generation == id.generation)?;
        let client = slot.client.as_deref_mut()?;
        client.output.consumed(count);
        client.note_sent(&self.output_limits);
        Some(client)
    }

    /// Appends a message to the output of a client other than the one being served, within the
    /// limit of its output.
    pub(crate) fn send(&mut self, id: ClientId, now_ns: u64, write: impl FnOnce(bool, &mut Vec<u8>)) {
        let Some(mut client) = self.take(id) else {
            return;
        };
        if client.closing == Closing::No {
            write(client.resp3, &mut client.output.bytes);
            self.check_output(&mut client, now_ns);
            if client.closing == Closing::No {
                self.note_output(&mut client);
            }
        }
        self.put(client);
    }
}
