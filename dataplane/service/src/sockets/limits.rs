//! What a user and an application may have of the socket service at most, and what the service does
//! in one turn. Who reaches a limit goes to the kernel, whose limits are its own business: no limit
//! here makes a program fail. A program names its application itself, so what protects users from
//! one another is counted by user. `docs/spec/budgets.md` is the table of all of them.

use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Listeners of one application: more than a server with a socket for each core, address and
/// protocol has.
pub const LISTENERS_PER_APPLICATION: usize = 1024;

/// Connections that one application has made: as many as it can have to one server by its ports.
pub const CONNECTIONS_PER_APPLICATION: usize = 32_768;

/// Listeners of one user: four applications of the largest kind.
pub const LISTENERS_PER_USER: usize = 4 * LISTENERS_PER_APPLICATION;

/// Connections that one user has made: four applications of the largest kind. Each takes some 600
/// bytes of tables here.
pub const CONNECTIONS_PER_USER: usize = 4 * CONNECTIONS_PER_APPLICATION;

/// Connections of one listener that nobody has accepted, whatever the program says to `listen`: the
/// kernel's own bound (`net.core.somaxconn`).
pub const MOST_BACKLOG: u32 = 4096;

/// Listeners of one kernel's socket: a server with a worker for each core. All of them are looked
/// at with each connection.
pub const LISTENERS_OF_ONE_SOCKET: usize = 64;

/// Messages that may lie in a listener's pair. The others wait in the service, which can close
/// them; what lies there holds descriptors in flight, of which the kernel allows an ordinary user
/// as many as it may have open.
pub const IN_PAIR: u32 = 64;

/// Applications: each is an entry of a table.
pub const APPLICATIONS: usize = 16_384;

/// Applications of one user: a build that starts a thousand programs at once.
pub const APPLICATIONS_PER_USER: usize = 1024;

/// Requests of one user that are answered in one turn, before the others have theirs.
pub const PER_TURN_AND_USER: usize = 16;

/// Descriptors that count for a connection: its memory and two pages, the accepting end's
/// placeholder, which is here until somebody accepts, and the socket that keeps a name to which its
/// program was bound.
pub const DESCRIPTORS_PER_CONNECTION: usize = 5;

/// Descriptors that count for a listener: its pair, the kernel's socket, and a connection of the
/// kernel that waits because the pair is full.
pub const DESCRIPTORS_PER_LISTENER: usize = 3;

/// So many times the descriptors that are free a user may have: one that takes all it can leaves a
/// quarter to the others, two leave a seventh.
pub const SHARE: usize = 3;

/// Requests of one user that are open at once: each is a process in the middle of a system call.
pub const REQUESTS_PER_USER: usize = 256;

/// Requests of administrators that are open at once, beside the others: commands of people. They
/// have their own, so that a crowd does not keep out who would end it.
pub const ADMINISTRATORS: usize = 16;

/// Requests that are open at once.
pub const REQUESTS: usize = 1024;

/// How long a request may take to arrive: it is sent right after connecting.
pub const REQUEST_PATIENCE: Duration = Duration::from_secs(2);

/// New requests and new kernel connections of one listener that are taken in one turn, before the
/// others have theirs.
pub const PER_TURN: usize = 32;

/// Descriptors that a service of root has: the kernel's own bound of one process (`fs.nr_open`,
/// where nobody changed it), for some 200,000 connections.
pub const DESCRIPTORS: u64 = 1 << 20;

/// Descriptors that the service keeps for itself, for requests and for administrators: the rest is
/// for connections and listeners.
pub const SPARE_DESCRIPTORS: usize = 2048;

/// How long after the close of a placeholder what is gone is taken out: many together, so that a
/// load of short connections wakes the service two hundred times a second for it and not ten
/// thousand times. Who needs a name or a descriptor before has it at once.
pub const BURY: Duration = Duration::from_millis(5);

/// How often it is looked which connections are gone, while there are any of which the kernel does
/// not tell.
pub const SWEEP: Duration = Duration::from_secs(10);

/// How often that is done for lists, of all users together: it asks the kernel for every Unix
/// socket of the network namespace, and everybody else waits meanwhile.
pub const SWEEP_FOR_LISTS: Duration = Duration::from_secs(1);

/// It is also looked when so many were made since: a program that connects for each request must
/// not fill the registry.
pub const SWEEP_AFTER: usize = 1024;

/// Ports of connecting sockets that have none: first those beyond the kernel's own
/// (`net.ipv4.ip_local_port_range`, 32768 to 60999 where nobody changed it), so that no name means
/// two connections.
pub const FIRST_EPHEMERAL: u16 = 61_000;

/// ... and when all of those are taken, these.
pub const FIRST_KERNEL_EPHEMERAL: u16 = 32_768;

/// How long the loop waits for a call on a socket that an application holds too: the call itself
/// takes microseconds, but the machine may be busy.
pub const HELD_UP: Duration = Duration::from_millis(500);

/// Threads of one user that may hang in such a call.
pub const HELPERS_PER_USER: usize = 4;

/// What such calls of one user may take from all others at once, however they end.
pub const HELD_UP_IN_ALL: Duration = Duration::from_secs(2);

/// One part in so many of the time that passes is what they may take in the long run.
pub const HELD_UP_SHARE: u32 = 10;

/// A call that took no longer is not counted: a request costs the others as much anyway. An
/// `accept` for which another holder of the listener was faster takes 100 microseconds, and is
/// counted.
pub const HELD_UP_UNNOTICED: Duration = Duration::from_micros(50);

/// Threads that may hang in closing a descriptor that an application sent: a file of a file system
/// that the application itself serves is closed when that application pleases, and a TCP socket may
/// linger. Each that hangs takes a number of a process and some 20 KiB; 160 users together can have
/// all of them hang.
pub const CLOSERS: usize = 256;

/// Those of one user, while less than half of all close something, and more than one, so that what
/// closes at once does not wait for what hangs. From then on a user has one.
pub const CLOSERS_PER_USER: usize = 4;

/// Descriptors of one user that wait for such a thread: those of a listener that ends with all its
/// backlog, twice.
pub const UNCLOSED: usize = 2 * MOST_BACKLOG as usize;

/// So many may wait of a user however few are free: what a few requests take that are being
/// answered. They are of [`SPARE_DESCRIPTORS`].
pub const UNCLOSED_ALWAYS: usize = 32;

/// Sockets of all users that are put away inside others, at most. From some 2000 on the kernel may
/// let each message with a socket in it wait for a search through all of them (net/unix/garbage.c),
/// those of this service's answers among them: a millisecond for so many, measured on Linux 6.18.
pub const PUT_AWAY: usize = 6000;

/// Those of one user.
pub const PUT_AWAY_PER_USER: usize = 4000;

/// How many descriptors of one user may wait to be closed while so many are free: nobody has more
/// of them than it leaves.
pub const fn most_unclosed(free: usize) -> usize {
    if free < UNCLOSED_ALWAYS {
        UNCLOSED_ALWAYS
    } else if free < UNCLOSED {
        free
    } else {
        UNCLOSED
    }
}

/// Applications of one user that are remembered as revoked, the latest ones: each is a program that
/// was started once, and its number is never given again. Each takes 16 bytes.
pub const REVOKED: usize = 1024;

/// Users of whom something is remembered that they revoked themselves: 64 MiB in all. An
/// administrator's revocations are beside these.
pub const REVOKING_USERS: usize = 4096;

/// Lists that one user may ask for in a second: a person, or `sietch top` of a few. Each asks the
/// kernel three times for each of its connections.
pub const LISTS_PER_SECOND: u32 = 10;

/// Whether a user that has `own` descriptors may have so many `more` of those that are `free`.
pub const fn has_share(own: usize, more: usize, free: usize) -> bool {
    more <= free && own + more <= SHARE * free
}

/// Lets this process have as many descriptors as it may: root may have as many as [`DESCRIPTORS`],
/// whatever it was started with. How many that are.
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
    fn users_with_as_much_to_be_closed_as_they_can_leave_as_much_to_the_next() {
        let mut left = 100_000;
        while left > UNCLOSED_ALWAYS {
            let mut own = 0;
            while own < most_unclosed(left) {
                own += 1;
                left -= 1;
            }
            assert!(own <= UNCLOSED && left + UNCLOSED_ALWAYS >= own, "{own}, {left}");
        }
        assert_eq!(most_unclosed(0), UNCLOSED_ALWAYS);
    }

    #[test]
    fn users_that_take_all_they_can_leave_some_to_the_next() {
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
