//! Bounds of the socket service, with their reasons: what a user and an application may have, and
//! what the service does in one iteration.
//!
//! No bound here makes a program fail: beyond it the program goes to the kernel, which has its own
//! limits. A program chooses its application's id itself, so the bounds that protect users from one
//! another count by user. `docs/spec/budgets.md` is the table of all of them.

use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

pub(crate) use sietch_protocol::closer::limits::most_unclosed;
pub use sietch_protocol::closer::limits::{CLOSERS, CLOSERS_PER_USER, PARKED_PER_USER, UNCLOSED};

pub(crate) use crate::requests::limits::MOST_BACKLOG;

/// Listeners of one application: more than a server with a socket for each core, address and
/// protocol has.
pub(crate) const LISTENERS_PER_APPLICATION: usize = 1024;

/// Connections that one application has made: as many as it can have to one server by its ports.
pub(crate) const CONNECTIONS_PER_APPLICATION: usize = 32_768;

/// Listeners of one user: four applications of the largest kind.
pub(crate) const LISTENERS_PER_USER: usize = 4 * LISTENERS_PER_APPLICATION;

/// Connections that one user has made: four applications of the largest kind. Each takes some 600
/// bytes of tables here.
pub(crate) const CONNECTIONS_PER_USER: usize = 4 * CONNECTIONS_PER_APPLICATION;

/// Listeners of one kernel's socket: a server with a worker for each core. Each connection visits
/// all of them.
pub const LISTENERS_OF_ONE_SOCKET: usize = 64;

/// Messages that may be queued in a listener's pair. The others wait in the service, which can
/// close them. Queued messages hold descriptors in flight, of which the kernel allows an ordinary
/// user as many as it may have open.
pub const IN_PAIR: u32 = 64;

/// Applications: each is an entry of a table.
pub(crate) const APPLICATIONS: usize = 16_384;

/// Applications of one user: a build that starts a thousand programs at once.
pub(crate) const APPLICATIONS_PER_USER: usize = 1024;

/// Requests of one user that are answered in one iteration, before those of others.
pub const BATCH_PER_USER: usize = 16;

/// Descriptors that count for a connection: its memory and two pages; the accepting end's
/// placeholder, until the program accepts; and the socket that keeps a name to which its program
/// was bound.
pub(crate) const DESCRIPTORS_PER_CONNECTION: usize = 5;

/// Descriptors that count for a listener: its pair, the kernel's socket, and a connection of the
/// kernel that waits because the pair is full.
pub(crate) const DESCRIPTORS_PER_LISTENER: usize = 3;

/// A user may have this many times the free descriptors. One that takes all it can leaves a quarter
/// to the others. Two leave a sixteenth if one follows the other, a seventh if they alternate.
const SHARE: usize = 3;

/// Open requests of one user: each is a process in the middle of a system call.
pub const REQUESTS_PER_USER: usize = 256;

/// Open requests of administrators, beside the others. They have their own bound, so that many
/// programs cannot keep out the administrator that would end them.
pub(crate) const ADMINISTRATORS: usize = 16;

/// Open requests of all users.
pub(crate) const REQUESTS: usize = 1024;

/// How long a request may take to arrive: programs send it right after connecting.
pub(crate) const REQUEST_PATIENCE: Duration = Duration::from_secs(2);

/// New requests, and new kernel connections of one listener, that are accepted in one iteration,
/// before others are served.
pub const BATCH: usize = 32;

/// Requests that wait in the kernel's queue before they are accepted. All users share it, so a
/// request waits behind all that are in it. A program that finds it full sleeps in `connect`, and
/// the kernel wakes such programs in order.
pub const QUEUE: i32 = 128;

/// So many iterations in a row that accept [`BATCH`] requests and leave some show that requests
/// arrive faster than they are answered. Until then a burst of one user's programs waits in the
/// kernel's queue, and fewer of them are rejected.
pub const CROWDED: usize = 8;

/// New requests that are accepted in one iteration while the queue is crowded. All users share the
/// kernel's queue, so what a user has there beyond its share must leave it soon: it is rejected.
pub const BATCH_CROWDED: usize = 512;

/// Connections of one user that a thread closes unread, together. The loop closes fewer itself if
/// nothing is queued in them.
pub(crate) const UNREAD_TOGETHER: usize = 16;

/// Descriptors of a service of root: the kernel's default bound of one process (`fs.nr_open`), for
/// some 200,000 connections.
const DESCRIPTORS: u64 = 1 << 20;

/// Descriptors that the service keeps for requests and for administrators. The others are for
/// connections and listeners.
pub(crate) const SPARE_DESCRIPTORS: usize = 2048;

/// How long after the close of a placeholder closed connections are removed, many together. So a
/// load of short connections wakes the service two hundred times a second and not ten thousand
/// times. A request that needs a name or a descriptor earlier removes them at once.
pub(crate) const REAP_DELAY: Duration = Duration::from_millis(5);

/// The time between two sweeps, while there are connections whose end the kernel does not report.
pub(crate) const SWEEP: Duration = Duration::from_secs(10);

/// The least time between two sweeps for lists, of all users together. A sweep requests from the
/// kernel every Unix socket of the network namespace, and all other requests wait meanwhile.
pub(crate) const SWEEP_FOR_LISTS: Duration = Duration::from_secs(1);

/// New connections after which a sweep happens early: a program that connects for each request must
/// not fill the registry.
pub(crate) const SWEEP_AFTER: usize = 1024;

/// The first ephemeral port: those beyond the kernel's own range come first
/// (`net.ipv4.ip_local_port_range`, by default 32768 to 60999), so that no name means two
/// connections.
pub(crate) const FIRST_EPHEMERAL: u16 = 61_000;

/// The first of the kernel's ephemeral ports, used when all of those are taken.
pub(crate) const FIRST_KERNEL_EPHEMERAL: u16 = 32_768;

/// How long the loop waits for a call on a socket that an application holds too. The call itself
/// takes microseconds, but the machine may be busy.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_millis(500);

/// Threads that may hang in such calls of one user.
pub(crate) const HELPERS_PER_USER: usize = 4;

/// The time that such calls of one user may take at once, however they end.
pub(crate) const CALL_BUDGET: Duration = Duration::from_secs(2);

/// In the long run they may take one part in this many of the time that passes.
pub(crate) const CALL_BUDGET_REFILL: u32 = 10;

/// A call that took no longer is free: a request costs the others as much anyway. An `accept` that
/// loses against another holder of the listener takes 100 microseconds, and is charged.
pub(crate) const CALL_UNCHARGED: Duration = Duration::from_micros(50);

/// Relays of one user: as many as arrivals in a pair, which a program that can map no more finds
/// there.
pub const RELAYS_PER_USER: usize = IN_PAIR as usize;

/// Relays of all users. Each is a thread and a connection's address space.
pub(crate) const RELAYS: usize = 4 * RELAYS_PER_USER;

/// Lists that one user may request in a second: a person, or a few instances of `sietch top`. Each
/// takes three system calls for each of its connections.
pub const LISTS_PER_SECOND: u32 = 10;

/// Returns whether a user that has `own` descriptors may have `more` of the `free` ones.
pub(crate) const fn has_share(own: usize, more: usize, free: usize) -> bool {
    more <= free && own + more <= SHARE * free
}

/// Raises this process's limit of descriptors as far as it may: root may have [`DESCRIPTORS`],
/// from any previous limit. Returns the new limit.
pub fn raise_descriptors() -> usize {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let most = Some(DESCRIPTORS);
    let more = Rlimit { current: most, maximum: most };
    if maximum.is_none_or(|maximum| maximum >= DESCRIPTORS) || setrlimit(Resource::Nofile, more).is_err() {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
    let now = getrlimit(Resource::Nofile).current.unwrap_or(DESCRIPTORS);
    usize::try_from(now).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_that_take_all_they_can_leave_some_to_others() {
        for all in [1 << 14, 1 << 20] {
            let mut left = all;
            let mut before = all;
            for user in 0..5 {
                let mut own = 0;
                while has_share(own, DESCRIPTORS_PER_CONNECTION, left) {
                    own += DESCRIPTORS_PER_CONNECTION;
                    left -= DESCRIPTORS_PER_CONNECTION;
                }
                assert!(
                    own > 0 && left + DESCRIPTORS_PER_CONNECTION >= before / 4,
                    "{user}: {own}, {left} of {all}"
                );
                before = left;
            }
        }
    }
}
