//! Exclusive sections: commands that need the keys or the clients of several shards.
//!
//! 1. The event loop of the coordinator has gathered the shards, whole. No other command runs
//!    anywhere meanwhile.
//! 2. For each shard whose clients wait, the other shards become its guests: its store holds all
//!    partitions, and a handler reaches the other clients and settings
//!    ([`Others`]). A client's pipeline goes on in the section, up to a bound. All commands of a
//!    section have a bound, too; each shard has an equal share of it. After [`LONGEST_NS`] no
//!    further command begins; a transaction is one command. Each section runs one command at least,
//!    and begins with another shard than the last, so that each shard has its turn.
//! 3. When a command has changed a key for which clients wait, they are served before the next
//!    command runs, in the order of their arrival: each by its own shard, with all others as its
//!    guests. Commands that CLIENT UNPAUSE has released count as commands of the section. Each
//!    shard runs those behind the bound itself.
//! 4. A command that takes rights from clients, kills or pauses them runs only once every command
//!    that was forwarded has run: such a command takes effect before the reply to CLIENT PAUSE, or
//!    not while the pause lasts. Each shard counts what it forwards and runs, and forwards nothing
//!    until the next section if the counts differ. What it holds for want of room runs then;
//!    replies beyond the soft limit of a client's output are lost, and the client is closed.
//! 5. If all shards together have more than `maxmemory`, keys of any of them are evicted at the
//!    end.
//! 6. The effects of all shards are put together in the order of their execution.

use std::collections::VecDeque;

use super::peers::Halt;
use super::{ClientId, Now, Shard};
use crate::clients::{Client, Clients, Closing, WaitsFor};
use crate::commands::Others;
use crate::data::keyspace::Store;
use crate::foundation::totals::Sums;

/// Commands that a client may run in a section: its pipeline goes on, but the shards cannot do
/// anything else meanwhile.
const COMMANDS_OF_CLIENT: usize = 64;
/// Commands that run in one section, divided among the shards, those of a transaction counted each:
/// about a millisecond of short ones. What is left waits for the next section, and the shards run
/// their other commands in between.
const COMMANDS: usize = 1024;

/// Nanoseconds after which a section begins no further command: twice what [`COMMANDS`] short ones
/// take, so that this concerns long ones. The other cores wait meanwhile.
const LONGEST_NS: u64 = 2_000_000;

/// Nanoseconds until another section tries to evict, if there was nothing to evict.
const FULL_NS: u64 = 100_000_000;

/// Runs what waits for an exclusive section in any of the shards, which are in their order.
/// Afterwards all effects of the section, in the order of their execution, are in the journal of
/// the first shard: the caller appends them before it gives the shards back.
pub fn run(shards: &mut Vec<Box<Shard>>, now: Now) {
    if shards.len() < 2 {
        return;
    }
    shards.iter_mut().for_each(|shard| shard.now = now);
    shards[0].store.metrics.exclusive_sections += 1;
    let drained = is_drained(shards);
    let share = (COMMANDS / shards.len()).max(1);
    for shard in shards.iter_mut() {
        (shard.peers.drained, shard.peers.share) = (drained, share);
    }
    limit_time(shards);
    serve_ready(shards);
    let mut begun = false;
    let first = shards[0].peers.next_first;
    shards[0].peers.next_first = (first + 1) % shards.len();
    for number in (first..shards.len()).chain(0..first) {
        let mut queue = std::mem::take(&mut shards[number].peers.section);
        shards[number].peers.left = COMMANDS_OF_CLIENT;
        // However slow the machine is, each section serves one client at least.
        if queue.is_empty() || !begun || shards[number].may_begin() {
            shards[number].peers.awaits_drain = false;
        }
        while !queue.is_empty() && (!begun || shards[number].may_begin()) {
            begun = true;
            with_guests(shards, number, |shard| shard.run_section(&mut queue));
            serve_ready(shards);
        }
        // Those that wait for forwarded commands are the first in the next section.
        shards[number].peers.section.append(&mut queue);
    }
    make_room(shards);
    let draining = shards.iter().any(|shard| shard.peers.awaits_drain);
    // What each has now; its own publication is an iteration away.
    shards.iter_mut().for_each(|shard| shard.exchange_totals());
    for shard in shards.iter_mut() {
        shard.exchange_totals();
        shard.peers.drain(draining);
        shard.end_halt();
        if shard.store.observation.changed {
            shard.observe();
        }
    }
}

/// Has the section begin commands for [`LONGEST_NS`] from now on.
fn limit_time(shards: &mut [Box<Shard>]) {
    let now = (shards[0].store.observation.time.monotonic_ns)();
    shards.iter_mut().for_each(|shard| shard.peers.until = now.saturating_add(LONGEST_NS));
}

/// Evicts keys of all shards, if all have more than the limit together.
fn make_room(shards: &mut Vec<Box<Shard>>) {
    if shards[0].store.settings.maxmemory == 0 {
        return;
    }
    let (has_room, more) = with_guests(shards, 0, |shard| {
        let has_room = shard.make_room();
        shard.send_events();
        (has_room, has_room && shard.store.is_over_limit())
    });
    let until = if has_room { 0 } else { shards[0].now.monotonic_ns.saturating_add(FULL_NS) };
    for shard in shards.iter_mut() {
        shard.peers.full_until = until;
        shard.store.evicting &= more;
    }
}

/// Whether every command that was forwarded has run.
fn is_drained(shards: &[Box<Shard>]) -> bool {
    shards.iter().enumerate().all(|(from, sender)| {
        shards.iter().enumerate().all(|(to, owner)| sender.peers.sent[to] == owner.peers.ran[from])
    })
}

/// Makes all others the guests of a shard, does `work`, and puts the effects behind those of the
/// section.
fn with_guests<T>(shards: &mut Vec<Box<Shard>>, number: usize, work: impl FnOnce(&mut Shard) -> T) -> T {
    let mut host = shards.remove(number);
    let own = |at: usize| if at < number { at } else { at + 1 };
    let partitions = shards.iter_mut().enumerate().map(|(at, guest)| (own(at), guest.store.take_partition()));
    host.store.host(partitions.collect());
    host.guests = std::mem::take(shards);
    host.sum_up_guests();
    let result = work(&mut host);
    *shards = std::mem::take(&mut host.guests);
    for (owner, partition) in host.store.release_guests() {
        shards[if owner < number { owner } else { owner - 1 }].store.put_partition(partition);
    }
    host.guests = std::mem::take(shards);
    host.sum_up_guests();
    *shards = std::mem::take(&mut host.guests);
    let record = if number > 0 { host.store.journal.take() } else { None };
    shards.insert(number, host);
    if let Some(record) = record {
        shards[0].store.journal.append_record(&record);
    }
    result
}

/// Serves the clients that CLIENT UNBLOCK names and those that wait for changed keys. Then runs
/// what a pause has postponed, within the bound of the section.
fn serve_ready(shards: &mut Vec<Box<Shard>>) {
    loop {
        if let Some(number) = shards.iter().position(|shard| !shard.clients.unblock_requests.is_empty()) {
            with_guests(shards, number, Shard::serve_unblock_requests);
            continue;
        }
        if !shards.iter().any(|shard| shard.store.has_ready()) {
            let Some(number) = shards.iter().position(|shard| shard.may_serve_released()) else { return };
            with_guests(shards, number, |shard| {
                let left = std::mem::replace(&mut shard.peers.left, COMMANDS_OF_CLIENT);
                shard.serve_released();
                shard.peers.left = left;
            });
            continue;
        }
        let ready = with_guests(shards, 0, |shard| {
            let key = shard.store.pop_ready()?;
            let waiters = shard.store.waiters(&key);
            Some((key, waiters))
        });
        let Some((key, waiters)) = ready else { return };
        for waiter in waiters {
            if waiter.shard >= shards.len() {
                continue;
            }
            let there = with_guests(shards, waiter.shard, |shard| shard.retry_in_section(&key, &waiter));
            if !there {
                break;
            }
        }
    }
}

impl Shard {
    /// Notes what the guests have, instead of what they have published.
    fn sum_up_guests(&mut self) {
        let mut sums = Sums::default();
        for guest in &self.guests {
            sums.memory += guest.store.used_memory();
            sums.dumped += guest.store.weight().dumped as u64;
        }
        self.store.elsewhere = sums;
    }

    /// Whether the section may begin another command of this shard.
    fn may_begin(&self) -> bool {
        self.peers.share > 0 && (self.store.observation.time.monotonic_ns)() <= self.peers.until
    }

    /// Runs the pipelines of the clients in `queue`, until a command has made a key ready or the
    /// section may begin none. A client that may go on stays at the front.
    fn run_section(&mut self, queue: &mut VecDeque<ClientId>) {
        while let Some(&id) = queue.front() {
            self.peers.halt = Halt::No;
            let Some(mut client) = self.clients.take(id) else {
                queue.pop_front();
                continue;
            };
            client.waits_for = WaitsFor::Nothing;
            if client.closing == Closing::No {
                self.receive(&mut client, &[]);
            }
            let is_ready = self.peers.halt == Halt::Ready;
            if !is_ready || client.input.is_empty() {
                queue.pop_front();
                self.peers.left = COMMANDS_OF_CLIENT;
            } else {
                // If there is no share left, it goes on in the next section.
                client.waits_for = WaitsFor::Section;
            }
            // The event loop may read from it again.
            self.clients.note_ready(&mut client);
            self.put_back(client);
            if is_ready || !self.may_begin() {
                return;
            }
        }
    }

    /// Runs a command in an exclusive section: every key and every client is at hand. Returns false
    /// if the client's next command has to wait.
    pub(super) fn execute_in_section(&mut self, client: &mut Client, arguments: &[&[u8]]) -> bool {
        // A client's first command runs in any case: a long one may have taken the time to read it.
        let is_first = self.peers.left == COMMANDS_OF_CLIENT;
        if self.peers.left == 0 || !(is_first || self.may_begin()) {
            self.peers.halt = Halt::Bound;
            return false;
        }
        if !self.peers.drained && self.restricts_clients(client, arguments) {
            self.peers.awaits_drain = true;
            client.waits_for = WaitsFor::Section;
            self.peers.section.push_back(client.id);
            return false;
        }
        self.peers.left -= 1;
        let queued = client.transaction.as_ref().map_or(0, |transaction| transaction.queue.len());
        self.execute(client, arguments);
        let ran = if client.in_transaction() { 1 } else { 1 + queued };
        self.peers.share = self.peers.share.saturating_sub(ran);
        if self.store.has_ready() || self.must_serve() || self.guests.iter().any(|guest| guest.must_serve()) {
            self.peers.halt = Halt::Ready;
        }
        true
    }

    /// Whether clients of this shard are to be served before the section runs another command.
    fn must_serve(&self) -> bool {
        !self.clients.unblock_requests.is_empty() || self.may_serve_released()
    }

    /// Whether the section may run a command of this shard that a pause has postponed.
    fn may_serve_released(&self) -> bool {
        !self.clients.released.is_empty() && self.may_begin()
    }
}

impl Others for Vec<Box<Shard>> {
    fn count(&self) -> usize {
        self.len()
    }

    fn store(&self, number: usize) -> &Store {
        &self[number].store
    }

    fn store_mut(&mut self, number: usize) -> &mut Store {
        &mut self[number].store
    }

    fn clients(&self, number: usize) -> &Clients {
        &self[number].clients
    }

    fn clients_mut(&mut self, number: usize) -> &mut Clients {
        &mut self[number].clients
    }
}
