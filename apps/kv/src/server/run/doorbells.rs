//! The doorbells that the server sleeps on, beside those of kernel sockets.

use std::os::fd::{BorrowedFd, OwnedFd};

use sietch_socket::SocketQueue;

use crate::server::Error;

/// The lease of all devices that the server started with.
pub(super) const LEASE: u64 = 1;
/// SIGTERM or SIGINT has arrived.
pub(super) const SIGNAL: u64 = 2;
/// The VNIC's queue.
pub(super) const VNIC: u64 = 3;
/// The disk's queue.
pub(super) const DISK: u64 = 4;
/// The lease of a link that was acquired again.
pub(super) const LINK_LEASE: u64 = 5;
/// The request for a link has ended.
pub(super) const LINK_GRANTED: u64 = 6;
/// The request for an area has ended.
pub(super) const AREA_GRANTED: u64 = 7;
/// The streams through memory.
pub(super) const STREAMS: u64 = 8;
/// The channels of the other cores.
pub(super) const CORES: u64 = 9;

/// Makes the server sleep on a doorbell, too, and report it by this token.
pub(super) fn watch(sockets: &mut SocketQueue, doorbell: BorrowedFd<'_>, token: u64) -> Result<(), Error> {
    let system = |cause| Error::System { action: "watching a doorbell", cause };
    let copy: OwnedFd = doorbell.try_clone_to_owned().map_err(system)?;
    sockets.watch(copy, token).map_err(system)
}
