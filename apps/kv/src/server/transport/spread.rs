//! Which core serves a new client.
//!
//! 1. Core 0 accepts every connection, from the kernel and from the socket service: one listening
//!    socket, as with one core. It chooses the core with the fewest clients, and passes connections
//!    of other cores on ([`NewClient`]). So clients are spread evenly, which sockets with
//!    SO_REUSEPORT are not: the kernel spreads those by a hash.
//! 2. Each core publishes how many clients it has and how many of those passed to it it has taken
//!    ([`Load`]). Core 0 adds the ones that are on their way.
//! 3. The core that gets a connection decides whether to serve it: it has the settings, and counts
//!    the clients of all cores.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use sietch::stream::Connection as Stream;

/// A connection that one core accepted and another serves.
#[derive(Debug)]
pub(in crate::server) enum NewClient {
    /// A socket of the kernel.
    Kernel(OwnedFd),
    /// A stream through memory.
    Memory(Stream),
}

/// What a core publishes. Each on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Published {
    clients: AtomicU32,
    taken: AtomicU32,
}

/// The clients of one core, as the core that accepts sees them.
#[derive(Debug)]
pub(in crate::server) struct Load {
    all: Arc<[Published]>,
    core: usize,
    taken: u32,
}

impl Load {
    /// One for each core, in order.
    fn of_cores(count: usize) -> Vec<Self> {
        let all: Arc<[Published]> = (0..count).map(|_| Published::default()).collect();
        (0..count).map(|core| Self { all: Arc::clone(&all), core, taken: 0 }).collect()
    }

    /// The core got a client that was passed to it.
    fn take(&mut self) {
        self.taken = self.taken.wrapping_add(1);
    }

    /// Publishes the number of clients. Once an iteration.
    fn publish(&self, clients: u64) {
        let Some(own) = self.all.get(self.core) else { return };
        let clients = u32::try_from(clients).unwrap_or(u32::MAX);
        // Between the two stores a client may be counted not at all, which is no harm: it is a
        // balance, and nothing else depends on it.
        own.clients.store(clients, Ordering::Relaxed);
        own.taken.store(self.taken, Ordering::Relaxed);
    }
}

/// Chooses cores for new clients. Core 0 has it.
#[derive(Debug)]
pub(in crate::server) struct Spread {
    own: Load,
    /// Clients chosen for each core so far.
    given: Vec<u32>,
    /// The core chosen last.
    chosen: usize,
    /// Clients to be passed on.
    leaving: Vec<(usize, NewClient)>,
}

impl Spread {
    /// Spreads clients over the cores of `own`, which is that of core 0.
    fn new(own: Load) -> Self {
        let given = vec![0; own.all.len()];
        Self { own, given, chosen: 0, leaving: Vec::new() }
    }

    /// Chooses the core of a new client. If it is another one, [`Spread::pass`] follows.
    pub(in crate::server) fn choose_other(&mut self) -> Option<&mut Self> {
        let clients = |(published, &given): (&Published, &u32)| {
            let on_their_way = given.wrapping_sub(published.taken.load(Ordering::Relaxed));
            u64::from(published.clients.load(Ordering::Relaxed)) + u64::from(on_their_way)
        };
        let loads = self.own.all.iter().zip(&self.given).map(clients);
        self.chosen = loads.enumerate().min_by_key(|(_, clients)| *clients).map_or(0, |(core, _)| core);
        self.given[self.chosen] = self.given[self.chosen].wrapping_add(1);
        if self.chosen == 0 {
            self.own.take();
        }
        (self.chosen != 0).then_some(self)
    }

    /// Passes a client on, to the core that was chosen.
    pub(in crate::server) fn pass(&mut self, client: NewClient) {
        self.leaving.push((self.chosen, client));
    }
}

/// A core's part in this.
#[derive(Debug, Default)]
pub(in crate::server) enum Intake {
    /// There is one core.
    #[default]
    Alone,
    /// It accepts for all cores.
    Accepts(Spread),
    /// It gets its connections from core 0.
    Given {
        /// What it publishes.
        load: Load,
        /// Connections that it has not taken yet.
        arrived: Vec<NewClient>,
    },
}

impl Intake {
    /// One for each core, in order.
    pub(in crate::server) fn of_cores(count: usize) -> Vec<Self> {
        if count < 2 {
            return vec![Self::Alone];
        }
        let given = |load| Self::Given { load, arrived: Vec::new() };
        let mut loads = Load::of_cores(count).into_iter();
        let accepting = loads.next().map(|load| Self::Accepts(Spread::new(load)));
        accepting.into_iter().chain(loads.map(given)).collect()
    }

    /// How connections are passed on, on the core that accepts.
    pub(in crate::server) fn spread(&mut self) -> Option<&mut Spread> {
        match self {
            Self::Accepts(spread) => Some(spread),
            Self::Alone | Self::Given { .. } => None,
        }
    }

    /// Connections to be passed on, each with its core.
    pub(in crate::server) fn take_leaving(&mut self) -> Vec<(usize, NewClient)> {
        self.spread().map(|spread| std::mem::take(&mut spread.leaving)).unwrap_or_default()
    }

    /// A connection has come from core 0.
    pub(in crate::server) fn arrive(&mut self, client: NewClient) {
        if let Self::Given { arrived, .. } = self {
            arrived.push(client);
        }
    }

    /// The connections that have come and were not taken yet.
    pub(in crate::server) fn take_arrived(&mut self) -> Vec<NewClient> {
        let Self::Given { load, arrived } = self else { return Vec::new() };
        arrived.iter().for_each(|_| load.take());
        std::mem::take(arrived)
    }

    /// Publishes the number of this core's clients. Once an iteration.
    pub(in crate::server) fn publish(&self, clients: u64) {
        match self {
            Self::Alone => {}
            Self::Accepts(spread) => spread.own.publish(clients),
            Self::Given { load, .. } => load.publish(clients),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_spread_evenly_also_before_their_cores_have_seen_them() {
        let mut loads = Load::of_cores(3);
        let mut spread = Spread::new(loads.remove(0));
        let mut chosen = [0; 3];
        for _ in 0..9 {
            spread.choose_other();
            chosen[spread.chosen] += 1;
        }
        assert_eq!(chosen, [3, 3, 3]);
        spread.own.publish(3);
        // Core 2 has taken its clients, and two of them have gone.
        (0..3).for_each(|_| loads[1].take());
        loads[1].publish(1);
        let next: Vec<usize> = (0..3)
            .map(|_| {
                spread.choose_other();
                spread.chosen
            })
            .collect();
        assert_eq!(next, [2, 2, 0]);
    }
}
