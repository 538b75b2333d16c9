//! Room in the pool, shared out to clients: what all logs together hold always fits.
//!
//! 1. A client has a *budget* of blocks: what its records need that are not digested is never more.
//!    All budgets together are never more than the pool has free, but for a part that is never
//!    shared out.
//! 2. When a client's records are digested, its budget shrinks by what they took, and never by more
//!    than they were promised. At the same time the client counts them no more, so its promises
//!    stay within the budget. What they took beyond their promise, such as a chunk of node blocks,
//!    is taken from the budget when later records need less than they were promised.
//! 3. A client that needs more asks for it. It gets a step more than it needs, so that it does not
//!    ask for each operation.
//! 4. The digest refuses a record that needs more than is left of its client's budget
//!    ([`super::Judge::budget`]).
//! 5. Requests are served in their order. When not enough is left, all others are asked for what
//!    they have not promised. What they have promised may be more than their records take: their
//!    logs are digested ([`Rooms::owing`]), and then they are asked once more. While a client
//!    waits, nothing of what was promised and not needed stays with the others. What then is not
//!    there is refused, and so is a request that has waited until its deadline.
//! 6. The time for an answer begins when the caller next looks for late clients, which is after it
//!    has asked them: a long digest in between takes nothing from it. It counts for the first
//!    question only. At the second one the request ends, not the client.
//!
//! What it must never do: share out a block twice; let a client that does not answer, or that goes
//! on to log, keep others waiting for ever.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::ClientNumber;

/// Blocks that a client gets beyond what it asks for, at most: 16 MiB.
pub const MAX_BUDGET_STEP: u64 = 4096;

/// What a client is notified of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoomEvent {
    /// Its request was served, or refused.
    Answer(bool),
    /// It must say how much of its budget it needs.
    Recall,
}

/// The module's header describes it.
#[derive(Debug, Default)]
pub struct Rooms {
    /// Blocks that can be shared out, budgets included.
    usable: u64,
    budgets: BTreeMap<ClientNumber, u64>,
    /// Blocks that records of a client took beyond their promise.
    debts: BTreeMap<ClientNumber, u64>,
    /// Clients that wait.
    queue: VecDeque<Request>,
    /// What was done for the first of them.
    stage: Stage,
    events: VecDeque<(ClientNumber, RoomEvent)>,
}

/// A client that wants a larger budget.
#[derive(Clone, Copy, Debug)]
struct Request {
    client: ClientNumber,
    /// The budget that it wants to have.
    wanted: u64,
    /// It waits for the digest of other logs, and for the second answers, until this time.
    until: u64,
}

/// What was done for the first request.
#[derive(Debug, Default)]
enum Stage {
    /// Nothing.
    #[default]
    New,
    /// These clients were asked, and have not answered. They must until the time, once it is set.
    Asking { asked: BTreeSet<ClientNumber>, until: Option<u64>, is_last: bool },
    /// The logs of these clients are to be digested.
    Digesting(BTreeSet<ClientNumber>),
}

impl Rooms {
    /// A client comes, with no budget.
    pub fn join(&mut self, client: ClientNumber) {
        self.budgets.insert(client, 0);
    }

    /// A client is gone, and its log digested.
    pub fn gone(&mut self, client: ClientNumber) {
        self.budgets.remove(&client);
        self.debts.remove(&client);
        self.events.retain(|(to, _)| *to != client);
        if self.queue.front().is_some_and(|first| first.client == client) {
            self.stage = Stage::New;
        }
        self.queue.retain(|waiting| waiting.client != client);
        self.answered(client);
        self.digested(client);
    }

    /// So many blocks can be shared out now, budgets included.
    pub fn set_usable(&mut self, usable: u64) {
        self.usable = usable;
        self.settle();
    }

    /// Records of a client were digested. They were promised so many blocks, and the pool has this
    /// many less or more free than before. [`Rooms::set_usable`] follows.
    pub fn spent(&mut self, client: ClientNumber, promised: u64, (before, after): (u64, u64)) {
        let Some(budget) = self.budgets.get_mut(&client) else { return };
        let debt = self.debts.entry(client).or_default();
        let took = debt.saturating_add(before).saturating_sub(after);
        let paid = took.min(promised);
        *debt = took - paid;
        // While no request waits, the client keeps what its records did not need.
        let leaves = if self.queue.is_empty() { paid } else { promised };
        *budget = budget.saturating_sub(leaves);
    }

    /// What a client may promise.
    pub fn budget(&self, client: ClientNumber) -> u64 {
        self.budgets.get(&client).copied().unwrap_or(0)
    }

    /// A client wants a budget of so many blocks. The answer is an event. The request waits for the
    /// digest of other logs until `until`.
    pub fn request(&mut self, client: ClientNumber, blocks: u64, until: u64) {
        if !self.budgets.contains_key(&client) {
            return;
        }
        match self.queue.iter_mut().find(|waiting| waiting.client == client) {
            Some(waiting) => waiting.wanted = blocks,
            None => self.queue.push_back(Request { client, wanted: blocks, until }),
        }
        self.settle();
    }

    /// A client needs only so much of its budget.
    pub fn returned(&mut self, client: ClientNumber, keeps: u64) {
        if let Some(budget) = self.budgets.get_mut(&client) {
            *budget = keeps.min(*budget);
        }
        self.answered(client);
        self.settle();
    }

    fn answered(&mut self, client: ClientNumber) {
        if let Stage::Asking { asked, .. } = &mut self.stage {
            asked.remove(&client);
        }
    }

    /// The clients whose logs are to be digested for one that waits.
    pub fn owing(&self) -> Vec<ClientNumber> {
        match &self.stage {
            Stage::Digesting(owing) => owing.iter().copied().collect(),
            _ => Vec::new(),
        }
    }

    /// The log of a client has no record that is not digested, or had none a moment ago.
    pub fn digested(&mut self, client: ClientNumber) {
        if let Stage::Digesting(owing) = &mut self.stage {
            owing.remove(&client);
        }
        self.settle();
    }

    /// The clients that were asked and have not answered in time, once: each must be fenced, and
    /// [`Rooms::gone`] called for it. Those that were asked since the last call must answer before
    /// `next`. A request that has waited until its deadline is refused.
    pub fn late(&mut self, now: u64, next: u64) -> Vec<ClientNumber> {
        let is_due = self.queue.front().is_some_and(|first| now >= first.until);
        match &mut self.stage {
            Stage::Asking { until: until @ None, is_last: false, .. } => *until = Some(next),
            Stage::Asking { asked, until: Some(until), .. } if now >= *until => {
                *until = u64::MAX;
                return asked.iter().copied().collect();
            }
            Stage::Asking { asked: left, is_last: true, .. } | Stage::Digesting(left) if is_due => {
                left.clear();
                self.settle();
            }
            _ => {}
        }
        Vec::new()
    }

    /// The next time at which [`Rooms::late`] may have something to do.
    pub fn next_time(&self) -> Option<u64> {
        match &self.stage {
            Stage::New => None,
            Stage::Asking { until: Some(until), .. } => Some(*until),
            Stage::Asking { is_last: false, .. } => Some(0),
            Stage::Asking { .. } | Stage::Digesting(_) => self.queue.front().map(|first| first.until),
        }
    }

    /// The next thing to notify a client of.
    pub fn event(&mut self) -> Option<(ClientNumber, RoomEvent)> {
        self.events.pop_front()
    }

    /// Serves requests as far as that is possible.
    fn settle(&mut self) {
        while let Some(Request { client, wanted, .. }) = self.queue.front().copied() {
            let shared_out: u64 = self.budgets.values().sum();
            let left = self.usable.saturating_sub(shared_out);
            let budget = self.budgets.entry(client).or_default();
            let missing = wanted.saturating_sub(*budget);
            let is_served = missing <= left;
            if is_served {
                *budget += missing + ((left - missing) / 2).min(MAX_BUDGET_STEP);
            } else if wanted <= self.usable && !self.has_tried_all(client) {
                // No client can return more than is usable: then none is asked.
                return;
            }
            self.queue.pop_front();
            self.stage = Stage::New;
            self.events.push_back((client, RoomEvent::Answer(is_served)));
        }
    }

    /// Whether nothing more can be done for the first request, of `client`. If something can, it
    /// has begun.
    fn has_tried_all(&mut self, client: ClientNumber) -> bool {
        loop {
            let others = || self.budgets.iter().filter(|(other, budget)| **other != client && **budget > 0);
            self.stage = match &self.stage {
                Stage::Asking { asked, .. } if !asked.is_empty() => return false,
                Stage::Digesting(owing) if !owing.is_empty() => return false,
                Stage::Asking { is_last: true, .. } => return true,
                Stage::Asking { .. } => Stage::Digesting(others().map(|(other, _)| *other).collect()),
                stage @ (Stage::New | Stage::Digesting(_)) => {
                    let is_last = matches!(stage, Stage::Digesting(_));
                    let asked: BTreeSet<_> = others().map(|(other, _)| *other).collect();
                    self.events.extend(asked.iter().map(|other| (*other, RoomEvent::Recall)));
                    Stage::Asking { asked, until: None, is_last }
                }
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const A: ClientNumber = ClientNumber(1);
    const B: ClientNumber = ClientNumber(2);

    fn rooms(usable: u64) -> Rooms {
        let mut rooms = Rooms::default();
        rooms.join(A);
        rooms.join(B);
        rooms.set_usable(usable);
        rooms
    }

    #[test]
    fn a_client_gets_what_another_does_not_need() {
        let mut rooms = rooms(100);
        rooms.request(A, 10, 0);
        assert_eq!(rooms.event(), Some((A, RoomEvent::Answer(true))));
        assert_eq!(rooms.budget(A), 10 + 45);
        rooms.request(B, 80, 0);
        assert_eq!(rooms.event(), Some((A, RoomEvent::Recall)));
        assert_eq!(rooms.event(), None);
        rooms.returned(A, 10);
        assert_eq!(rooms.event(), Some((B, RoomEvent::Answer(true))));
        assert_eq!((rooms.budget(A), rooms.budget(B)), (10, 85));
    }

    #[test]
    fn what_is_not_there_is_refused() {
        let mut rooms = rooms(100);
        rooms.request(A, 60, 0);
        rooms.event();
        rooms.request(B, 50, 7);
        assert_eq!(rooms.event(), Some((A, RoomEvent::Recall)));
        // Its time begins when it was asked, however long that took.
        assert_eq!((rooms.next_time(), rooms.late(100, 107)), (Some(0), vec![]));
        assert_eq!((rooms.late(106, 0), rooms.late(107, 0)), (vec![], vec![A]));
        rooms.returned(A, 55);
        assert_eq!((rooms.owing(), rooms.event()), (vec![A], None));
        // Its log has nothing that takes less than was promised.
        rooms.digested(A);
        assert_eq!(rooms.event(), Some((A, RoomEvent::Recall)));
        rooms.returned(A, 55);
        assert_eq!(rooms.event(), Some((B, RoomEvent::Answer(false))));
        // A client that does not answer is fenced, and its room is there.
        rooms.request(B, 50, 0);
        rooms.event();
        rooms.set_usable(90);
        rooms.gone(A);
        assert_eq!(rooms.event(), Some((B, RoomEvent::Answer(true))));
        assert!(rooms.late(u64::MAX, 0).is_empty());
    }

    /// Small records take less than they were promised: a client that waits gets the rest, also if
    /// their client goes on to log.
    #[test]
    fn what_was_promised_and_not_needed_goes_to_the_client_that_waits() {
        let mut rooms = rooms(100);
        rooms.request(A, 100, 0);
        rooms.event();
        rooms.request(B, 50, 7);
        assert_eq!(rooms.event(), Some((A, RoomEvent::Recall)));
        rooms.returned(A, 100);
        assert_eq!(rooms.owing(), [A]);
        rooms.spent(A, 40, (100, 99));
        rooms.set_usable(99);
        assert_eq!((rooms.event(), rooms.budget(A)), (None, 60));
        rooms.request(A, 80, 7);
        rooms.spent(A, 20, (99, 99));
        rooms.set_usable(99);
        assert_eq!(rooms.event(), Some((B, RoomEvent::Answer(true))));
        assert!(rooms.budget(A) + rooms.budget(B) <= 99);
    }

    #[test]
    fn a_request_waits_for_the_digest_until_its_deadline() {
        let mut rooms = rooms(100);
        rooms.request(A, 100, 0);
        rooms.event();
        rooms.request(B, 50, 7);
        rooms.event();
        rooms.returned(A, 100);
        assert_eq!((rooms.owing(), rooms.next_time()), (vec![A], Some(7)));
        assert_eq!((rooms.late(6, 9), rooms.event()), (vec![], None));
        // What the digest took until then may be enough.
        assert_eq!((rooms.late(7, 9), rooms.event()), (vec![], Some((A, RoomEvent::Recall))));
        // Nothing ends a client that does not answer the second time; the request ends.
        assert_eq!(rooms.next_time(), Some(7));
        assert_eq!((rooms.late(8, 9), rooms.event()), (vec![], Some((B, RoomEvent::Answer(false)))));
        assert_eq!(rooms.next_time(), None);
    }

    /// A chunk of node blocks is more than was promised: later records pay for it, and the client's
    /// other promises stay good.
    #[test]
    fn what_records_take_beyond_their_promise_is_paid_later() {
        let mut rooms = rooms(1000);
        rooms.request(A, 100, 0);
        let budget = rooms.budget(A);
        rooms.spent(A, 10, (1000, 960));
        assert_eq!(rooms.budget(A), budget - 10);
        rooms.spent(A, 20, (960, 959));
        assert_eq!(rooms.budget(A), budget - 30);
        rooms.spent(A, 20, (959, 958));
        assert_eq!(rooms.budget(A), budget - 42);
        // Room that records made pays too.
        rooms.spent(A, 5, (958, 900));
        rooms.spent(A, 5, (900, 970));
        assert_eq!(rooms.budget(A), budget - 47);
        rooms.spent(A, 5, (970, 970));
        assert_eq!(rooms.budget(A), budget - 47);
    }

    proptest! {
        /// Clients promise within their budgets, digests take what was promised: it always fits.
        #[test]
        fn promises_always_fit(
            steps in prop::collection::vec((0..3_u32, 0..4_u8, 0..60_u64), 1..200),
        ) {
            let mut rooms = Rooms::default();
            let mut free: u64 = 300;
            let mut promised = [0_u64; 3];
            for client in 0..3 {
                rooms.join(ClientNumber(client));
            }
            rooms.set_usable(free);
            for (number, what, blocks) in steps {
                let (client, index) = (ClientNumber(number), number as usize);
                match what {
                    0 if promised[index] + blocks <= rooms.budget(client) => promised[index] += blocks,
                    0 | 1 => rooms.request(client, promised[index] + blocks, 0),
                    2 if blocks % 2 == 0 => rooms.digested(client),
                    2 => rooms.returned(client, promised[index]),
                    _ => {
                        // A part of what was promised is taken; the rest of that was not needed.
                        let digested = blocks.min(promised[index]);
                        let took = digested / 2;
                        promised[index] -= digested;
                        rooms.spent(client, digested, (free, free - took));
                        free -= took;
                        rooms.set_usable(free);
                    }
                }
                while let Some((to, event)) = rooms.event() {
                    if event == RoomEvent::Recall {
                        rooms.returned(to, promised[to.0 as usize]);
                    }
                }
                let all: u64 = (0..3).map(|client| rooms.budget(ClientNumber(client))).sum();
                prop_assert!(all <= free, "{all} of {free}");
                for (index, promised) in promised.iter().enumerate() {
                    prop_assert!(*promised <= rooms.budget(ClientNumber(index as u32)));
                }
            }
        }

        /// Records, requests and messages in any order, each message as late as may be: what an
        /// honest client has logged is within its budget where it is judged.
        #[test]
        fn honest_records_are_within_the_budget_however_late_messages_are(
            steps in prop::collection::vec((0..2_usize, 0..6_u8, 1..40_u64), 1..300),
        ) {
            let mut rooms = rooms(200);
            let mut free: u64 = 300;
            let mut peers = [Peer::default(), Peer::default()];
            for (index, what, blocks) in steps {
                let client = [A, B][index];
                let peer = &mut peers[index];
                match what {
                    0 if peer.promised() + blocks <= peer.budget => peer.log.push_back(blocks),
                    0 | 1 => peer.said.push_back(Said::Wants(peer.promised() + blocks)),
                    2 => peer.hear(),
                    3 => match peer.said.pop_front() {
                        Some(Said::Wants(wanted)) => rooms.request(client, wanted, 0),
                        Some(Said::Keeps(keeps)) => {
                            peer.known_returns += 1;
                            rooms.returned(client, keeps);
                        }
                        None => {}
                    },
                    _ => {
                        // Some records are digested. They take less than was promised, or more.
                        let first = (peer.digested - peer.known) as usize;
                        let count = (peer.log.len() - first).min(1 + blocks as usize % 4);
                        let promised: u64 = peer.log.range(first..first + count).sum();
                        prop_assert!(promised <= rooms.budget(client), "{promised}: {rooms:?}");
                        let after = (free + 5).saturating_sub(promised * (blocks % 8) / 5);
                        rooms.spent(client, promised, (free, after));
                        free = after;
                        rooms.set_usable(free.saturating_sub(100));
                        peer.digested += count as u64;
                    }
                }
                for (peer, client) in peers.iter_mut().zip([A, B]) {
                    let news = (peer.digested, rooms.budget(client), peer.known_returns);
                    if peer.reported != Some(news) {
                        peer.reported = Some(news);
                        peer.heard.push_back(Heard::Progress(news));
                    }
                }
                while let Some((to, event)) = rooms.event() {
                    if event == RoomEvent::Recall {
                        peers[usize::from(to == B)].heard.push_back(Heard::Recall);
                    }
                }
                for (peer, client) in peers.iter().zip([A, B]) {
                    let left: u64 = peer.log.range((peer.digested - peer.known) as usize..).sum();
                    prop_assert!(left <= rooms.budget(client), "{left} of {client:?}: {rooms:?}");
                }
            }
        }
    }

    /// What a client has said, and the service has not heard.
    #[derive(Debug)]
    enum Said {
        Wants(u64),
        Keeps(u64),
    }

    /// The other way round. Progress: records that are digested, the budget, returns.
    #[derive(Debug)]
    enum Heard {
        Progress((u64, u64, u64)),
        Recall,
    }

    /// An honest client, as one in another process is.
    #[derive(Debug, Default)]
    struct Peer {
        /// What its records were promised that are not digested, as far as it knows.
        log: VecDeque<u64>,
        budget: u64,
        returns: u64,
        /// Records that are digested, and those of which it knows.
        digested: u64,
        known: u64,
        known_returns: u64,
        reported: Option<(u64, u64, u64)>,
        said: VecDeque<Said>,
        heard: VecDeque<Heard>,
    }

    impl Peer {
        fn promised(&self) -> u64 {
            self.log.iter().sum()
        }

        fn hear(&mut self) {
            match self.heard.pop_front() {
                Some(Heard::Progress((digested, budget, returns))) => {
                    self.log.drain(..(digested - self.known) as usize);
                    self.known = digested;
                    self.budget = if returns == self.returns { budget } else { self.budget.min(budget) };
                }
                Some(Heard::Recall) => {
                    let keeps = self.promised();
                    self.budget = self.budget.min(keeps);
                    self.returns += 1;
                    self.said.push_back(Said::Keeps(keeps));
                }
                None => {}
            }
        }
    }
}
