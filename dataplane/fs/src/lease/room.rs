//! Room in the pool, shared out to clients: what all logs together hold always fits.
//!
//! 1. A client has a *budget* of blocks: what its records need that are not digested is never more.
//!    All budgets together are never more than the pool has free, but for a part that is never
//!    shared out.
//! 2. When a client's records are digested, its budget shrinks by what they took. At the same time
//!    the client counts them no more, so its promises stay within the budget.
//! 3. A client that needs more asks for it. It gets a step more than it needs, so that it does not
//!    ask for each operation.
//! 4. When not enough is left, all others are asked for what they have not promised. What then is
//!    not there is refused. Requests are served in their order.
//!
//! What it must never do: share out a block twice; let a client that does not answer keep others
//! waiting for ever.

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
    /// Clients, and the budget that each wants to have.
    queue: VecDeque<(ClientNumber, u64)>,
    /// Of the first request: clients that were asked and have not answered; `None`: not asked yet.
    asked: Option<BTreeSet<ClientNumber>>,
    /// Until when they must answer.
    deadline: u64,
    events: VecDeque<(ClientNumber, RoomEvent)>,
}

impl Rooms {
    /// A client comes, with no budget.
    pub fn join(&mut self, client: ClientNumber) {
        self.budgets.insert(client, 0);
    }

    /// A client is gone, and its log digested.
    pub fn gone(&mut self, client: ClientNumber, until: u64) {
        self.budgets.remove(&client);
        self.events.retain(|(to, _)| *to != client);
        if self.queue.front().is_some_and(|(first, _)| *first == client) {
            self.asked = None;
        }
        self.queue.retain(|(waiting, _)| *waiting != client);
        if let Some(asked) = &mut self.asked {
            asked.remove(&client);
        }
        self.settle(until);
    }

    /// So many blocks can be shared out now, budgets included.
    pub fn set_usable(&mut self, usable: u64) {
        self.usable = usable;
    }

    /// Records of a client were digested, and took so many blocks.
    pub fn spent(&mut self, client: ClientNumber, blocks: u64) {
        if let Some(budget) = self.budgets.get_mut(&client) {
            *budget = budget.saturating_sub(blocks);
        }
    }

    /// What a client may promise.
    pub fn budget(&self, client: ClientNumber) -> u64 {
        self.budgets.get(&client).copied().unwrap_or(0)
    }

    /// A client wants a budget of so many blocks. The answer is an event. Others that are asked for
    /// room answer before `until`.
    pub fn request(&mut self, client: ClientNumber, blocks: u64, until: u64) {
        if !self.budgets.contains_key(&client) {
            return;
        }
        match self.queue.iter_mut().find(|(waiting, _)| *waiting == client) {
            Some((_, wanted)) => *wanted = blocks,
            None => self.queue.push_back((client, blocks)),
        }
        self.settle(until);
    }

    /// A client needs only so much of its budget.
    pub fn returned(&mut self, client: ClientNumber, keeps: u64, until: u64) {
        if let Some(budget) = self.budgets.get_mut(&client) {
            *budget = keeps.min(*budget);
        }
        if let Some(asked) = &mut self.asked {
            asked.remove(&client);
        }
        self.settle(until);
    }

    /// The clients that were asked and have not answered in time: each must be fenced, and
    /// [`Rooms::gone`] called for it.
    pub fn late(&self, now: u64) -> Vec<ClientNumber> {
        match &self.asked {
            Some(asked) if now >= self.deadline => asked.iter().copied().collect(),
            _ => Vec::new(),
        }
    }

    /// The next thing to notify a client of.
    pub fn event(&mut self) -> Option<(ClientNumber, RoomEvent)> {
        self.events.pop_front()
    }

    /// Serves requests as far as that is possible.
    fn settle(&mut self, until: u64) {
        while let Some((client, wanted)) = self.queue.front().copied() {
            let shared_out: u64 = self.budgets.values().sum();
            let left = self.usable.saturating_sub(shared_out);
            let budget = self.budgets.entry(client).or_default();
            let missing = wanted.saturating_sub(*budget);
            let is_served = missing <= left;
            if is_served {
                *budget += missing + ((left - missing) / 2).min(MAX_BUDGET_STEP);
            } else {
                let asked = self.asked.get_or_insert_with(|| {
                    let others =
                        self.budgets.iter().filter(|(other, budget)| **other != client && **budget > 0);
                    let others: BTreeSet<_> = others.map(|(other, _)| *other).collect();
                    self.events.extend(others.iter().map(|other| (*other, RoomEvent::Recall)));
                    self.deadline = until;
                    others
                });
                if !asked.is_empty() {
                    return;
                }
            }
            self.queue.pop_front();
            self.asked = None;
            self.events.push_back((client, RoomEvent::Answer(is_served)));
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
        rooms.returned(A, 10, 0);
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
        assert_eq!((rooms.late(6), rooms.late(7)), (vec![], vec![A]));
        rooms.returned(A, 55, 0);
        assert_eq!(rooms.event(), Some((B, RoomEvent::Answer(false))));
        // A client that does not answer is fenced, and its room is there.
        rooms.request(B, 50, 0);
        rooms.event();
        rooms.set_usable(90);
        rooms.gone(A, 0);
        assert_eq!(rooms.event(), Some((B, RoomEvent::Answer(true))));
        assert!(rooms.late(u64::MAX).is_empty());
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
                    2 => rooms.returned(client, promised[index], 0),
                    _ => {
                        // A part of what was promised is taken; the rest of that was not needed.
                        let digested = blocks.min(promised[index]);
                        let took = digested / 2;
                        promised[index] -= digested;
                        free -= took;
                        rooms.spent(client, took);
                        rooms.set_usable(free);
                    }
                }
                while let Some((to, event)) = rooms.event() {
                    if event == RoomEvent::Recall {
                        rooms.returned(to, promised[to.0 as usize], 0);
                    }
                }
                let all: u64 = (0..3).map(|client| rooms.budget(ClientNumber(client))).sum();
                prop_assert!(all <= free, "{all} of {free}");
                for (index, promised) in promised.iter().enumerate() {
                    prop_assert!(*promised <= rooms.budget(ClientNumber(index as u32)));
                }
            }
        }
    }
}
