//! Limits on what clients cost the daemon, with their reasons. `docs/spec/budgets.md` is the table.

use std::time::Duration;

use sietch_protocol::frame::MAX_DESCRIPTORS;

use crate::allowance::Rate;
use crate::control::MOST_PAGES;

/// Connections in all, if the limit of open files has room for them ([`connection_limit`]): each
/// costs a task.
pub(super) const MAX_CONNECTIONS: usize = 256;
/// Connections that wait in the kernel's queue before they are accepted. All users share it, so a
/// connection waits behind all that are in it. A program that finds it full sleeps in `connect`,
/// and the kernel wakes such programs in order.
pub(super) const QUEUE: i32 = 128;
/// Open files that the daemon raises its limit to where it may: what [`MAX_CONNECTIONS`] and all
/// devices need, several times.
pub(super) const OPEN_FILES: u64 = 65_536;
/// Open files of one connection: socket, pidfd, what rides on a frame that has begun to arrive, and
/// its pages of counters.
pub(super) const FILES_OF_CONNECTION: usize = 2 + MAX_DESCRIPTORS + MOST_PAGES;
/// Open files that no client gets: devices, volumes, administrators, the pages of the service core,
/// and what revoking opens.
pub(super) const RESERVED_FILES: usize = 512;
/// Connections of one user, so that one user cannot lock the others out. Uid 0 is no exception: a
/// container's root has it too.
pub(super) const MAX_CONNECTIONS_PER_UID: usize = 32;
/// Connections of administrators, beside the others: commands of people, `sietch up`, mounts.
pub(super) const MAX_ADMINISTRATORS: usize = 32;
/// For the handshake, and from a frame's first byte to its last. An honest client needs
/// microseconds.
pub(super) const READ_LIMIT: Duration = Duration::from_secs(5);
/// For the client to take an answer.
pub(super) const WRITE_LIMIT: Duration = Duration::from_secs(5);
/// Notices waiting for one client: one for each grant it can hold and a few more.
pub(super) const OUTBOX: usize = 160;
/// Requests that a client may make. The daemon stops reading from a client that makes more.
pub(super) const REQUESTS: Rate = Rate { per_second: 200.0, burst: 400.0 };
/// Connections that a user may make. A further one is served later, as long as the user has few
/// ([`MAX_CONNECTIONS_PER_UID`]). Each takes the daemon some twenty system calls.
pub(super) const CONNECTIONS: Rate = Rate { per_second: 100.0, burst: 400.0 };
/// Seconds in which the control task makes and removes VNICs of one user, and serves no other
/// client: a VNIC of the kernel takes some hundred milliseconds. A user that has spent more waits
/// before it acquires the next.
pub(super) const DEVICE_SECONDS: Rate = Rate { per_second: 0.2, burst: 30.0 };
/// Descriptors of users that wait to be closed, beside those of open connections: what is left of
/// the open files.
pub(super) fn spare_files(open_files: usize, connections: usize) -> usize {
    open_files.saturating_sub(RESERVED_FILES + connections * FILES_OF_CONNECTION)
}
/// Events waiting for the control task: one for each connection.
pub(super) const EVENTS: usize = MAX_CONNECTIONS;
/// How long the end waits for last answers and notices to be taken.
pub(super) const FAREWELL: Duration = Duration::from_secs(1);

/// Connections for which there are open files, whatever rides on them: clients never take those
/// that revoking needs.
pub(super) fn connection_limit(open_files: usize) -> usize {
    (open_files.saturating_sub(RESERVED_FILES) / FILES_OF_CONNECTION).clamp(2, MAX_CONNECTIONS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_never_take_the_files_that_are_kept_for_revoking() {
        for open_files in [1024, 4096, 65_536, 1 << 20] {
            let most = connection_limit(open_files) * FILES_OF_CONNECTION + RESERVED_FILES;
            assert!(most <= open_files, "{most} of {open_files}");
        }
    }
}
