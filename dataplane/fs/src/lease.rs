//! Leases: several clients, each with a log of its own, on one tree.
//!
//! 1. A client reads an inode under a shared lease and changes it under an exclusive one. A
//!    directory is an inode: its entries belong to it. [`TREE`] is the lease of a rename that moves
//!    a directory to another one, so that the way from a directory to the root does not change
//!    under it. A client keeps a lease until another client needs it.
//! 2. [`LeaseTable`] is the service's side. Requests for an inode queue up. The first one that
//!    cannot be granted has the leases in its way revoked; what comes behind it waits, so that
//!    readers do not starve a writer. A holder has a lease for a minimum time, so that two clients
//!    do not pass it to and fro with each operation.
//! 3. **A lease passes by log position.** An exclusive holder releases it with the end of its log.
//!    The next client gets it when the service has digested that log up to there. Therefore a
//!    client finds in the digested state, as of its grant, all that others did to the inode.
//! 4. The digest asks the table whether the writer of a record held what the record needs
//!    ([`Judge`]). By rule 3 no valid record is left undigested when the lease has passed, so the
//!    state of the table *now* decides.
//! 5. A client that does not answer a revocation in time is fenced: its log is digested to its end,
//!    its epoch ends, and so do its leases. A client that died is treated alike.
//!    After half of the time the revocation is sent again, as an urgent one. A client that keeps
//!    the lease because it waits for another one then gives it back, so that it is not fenced in
//!    place of the client that it waits for.
//! 6. An inode number belongs to the client that got it from the service, until another client asks
//!    for it: a new file needs no request.
//! 7. A client says with a release whether it still has the inode open. So the service knows, when
//!    nothing but itself has a lease, whether an inode without a name can be freed.
//!
//! Why the order in which logs are replayed after a crash does not matter: let a record of log A
//! and one of log B change the same inode, and A's be the earlier. B got the lease after A had
//! released it, and after A's log was digested up to the release. So when B appended its record,
//! A's was durable in the pool. Undigested records of two logs therefore change different inodes.
//! What a record reads beside them was digested before the lease on it was granted. Recovery
//! checks the first part ([`Replay`]).
//!
//! Room in the pool is shared out to clients too ([`Rooms`]), so that what all logs hold fits.
//! Limits of users have leases of their own, too ([`quota`]).
//!
//! What it must never do: grant a lease before its last exclusive holder's log is digested; let a
//! client that does not answer keep others waiting for ever; let one client take memory without
//! bound.

mod entry;
mod judge;
pub(crate) mod quota;
mod references;
mod room;
mod table;
#[cfg(test)]
mod tests;

pub use judge::{Anything, Held, Judge, Replay};
pub use room::{MAX_BUDGET_STEP, RoomEvent, Rooms};
pub use table::{Counts, LeaseTable, Refused, Times};

use crate::inode::InodeNumber;

/// The lease of a client that moves a directory to another one. No inode has this number.
pub const TREE: InodeNumber = InodeNumber(0);

/// Leases that a client has, at most: 8 MiB of the service's memory.
pub const MAX_HELD: usize = 1 << 16;
/// Leases that a client keeps at most: far enough below [`MAX_HELD`] that what the table counts of
/// new inodes does not matter.
pub const MAX_KEPT: usize = 1 << 15;
/// Leases that a client has released, and that pass on when its log is digested: from then on it is
/// digested at once.
pub const MAX_DRAINING: usize = 4096;
/// Requests of a client that wait, at most. An operation waits for one at a time.
pub const MAX_WAITING: usize = 64;
/// Sets of 64 inodes of which a client has one open without a lease, at most: 32 MiB of the
/// service's memory. Where inodes were made one after the other, these are 64 million.
pub const MAX_REFERENCE_SETS: usize = 1 << 20;

/// A client, by the number of its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientNumber(pub u32);

impl ClientNumber {
    /// The service itself, which frees inodes. No log has this number.
    pub const SERVICE: Self = Self(0);
}

/// What a lease allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// To read the inode.
    Shared,
    /// To change it.
    Exclusive,
}

/// A lease was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// On this inode.
    pub inode: InodeNumber,
    /// For this.
    pub mode: Mode,
    /// Which grant it is: a release and a revocation name it, so that one that crosses a newer
    /// grant has no effect. Never 0.
    pub serial: u64,
    /// No other client has the inode open. It stays so while the lease is exclusive.
    pub is_sole: bool,
}

/// A lease is wanted back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Revocation {
    /// On this inode.
    pub inode: InodeNumber,
    /// That of the grant.
    pub serial: u64,
    /// A shared lease may be kept.
    pub may_share: bool,
    /// It was not answered for long: an operation that waits for another lease begins anew.
    pub is_urgent: bool,
}

/// What a client is notified of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It has a lease.
    Granted(Grant),
    /// It must release one.
    Revoked(Revocation),
}

/// A client gives a lease back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    /// On this inode.
    pub inode: InodeNumber,
    /// That of the grant, or of the revocation that this answers.
    pub serial: u64,
    /// It keeps a shared lease.
    pub shares: bool,
    /// The end of its log: no later record needs the lease.
    pub position: u64,
    /// It keeps the inode although its last name goes.
    pub is_referenced: bool,
}
