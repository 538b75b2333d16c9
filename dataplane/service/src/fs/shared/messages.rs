//! What client and service say to each other, as frames of [`sietch_protocol::frame`].

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use sietch_fs::inode::InodeNumber;
use sietch_fs::lease::{Grant, Mode, Release, Revocation};
use sietch_fs::pool::Root;

use crate::fs::description::{Durability, MediumDescription};

/// Version of the messages: both sides are of one build, or do not talk.
pub(super) const VERSION: u32 = 6;

/// The first message of a client.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    pub version: u32,
}

/// The answer. With it come descriptors: the memory of the log, its copy on disk if it has one, the
/// word that fences, and the media.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Welcome {
    /// Number of the log, and the client's.
    pub log: u32,
    pub epoch: u32,
    pub seed: u64,
    /// Where the log goes on, and behind which sequence.
    pub position: u64,
    pub sequence: u64,
    pub log_bytes: u64,
    pub durability: Durability,
    /// The log has a copy on disk, whose descriptor comes with this.
    pub has_disk: bool,
    pub media: Vec<MediumDescription>,
    pub progress: Progress,
}

/// Why a client is refused.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    Welcome(Box<Welcome>),
    Refused(String),
}

/// What a client says.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// The log has records up to here.
    Logged(u64),
    /// An operation waits until what was logged is digested.
    Wait(u64),
    /// It reads this generation from now on.
    Reads(u64),
    /// It needs numbers for inodes.
    Numbers,
    /// It asks for a lease.
    Lease { inode: u64, exclusive: bool },
    /// It does not wait for a lease any more.
    Cancel(u64),
    /// It gives a lease back.
    Release { inode: u64, serial: u64, shares: bool, position: u64, referenced: bool },
    /// It does not have an inode open any more.
    Closed(u64),
    /// It needs a budget of so many blocks.
    Room(u64),
    /// It needs only so much of its budget.
    ReturnRoom(u64),
    /// It waits, and asks whether the service runs.
    Probe,
}

/// What was committed, and what the client may promise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Progress {
    /// [`Root::to_bytes`].
    pub root: Vec<u8>,
    /// The log is in that up to here.
    pub digested: u64,
    /// The log has no record before this position that is not digested.
    pub read: u64,
    /// Blocks that records may need which are not digested.
    pub budget: u64,
    /// How often the client has returned room, as far as the service knows.
    pub returns: u64,
    /// Nanoseconds in which the service digests a MiB of the log.
    pub speed: u64,
}

impl Progress {
    pub(super) fn root(&self) -> Option<Root> {
        Root::from_bytes(&self.root)
    }
}

/// What the service says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Notice {
    Progress(Progress),
    Numbers {
        start: u64,
        end: u64,
    },
    Granted {
        inode: u64,
        exclusive: bool,
        serial: u64,
        sole: bool,
    },
    Revoked {
        inode: u64,
        serial: u64,
        may_share: bool,
        is_urgent: bool,
    },
    Room(bool),
    RecallRoom,
    Advance,
    /// The answer to a probe.
    Runs,
    /// A request for a lease on this inode was refused.
    Refused {
        inode: u64,
        errno: i32,
    },
    /// The service takes nothing more of this client.
    Ended(String),
}

impl Request {
    pub(super) fn lease(inode: InodeNumber, mode: Mode) -> Self {
        Self::Lease { inode: inode.0, exclusive: mode == Mode::Exclusive }
    }

    pub(super) fn release(release: Release) -> Self {
        Self::Release {
            inode: release.inode.0,
            serial: release.serial,
            shares: release.shares,
            position: release.position,
            referenced: release.is_referenced,
        }
    }
}

impl Notice {
    pub(super) fn granted(grant: Grant) -> Self {
        Self::Granted {
            inode: grant.inode.0,
            exclusive: grant.mode == Mode::Exclusive,
            serial: grant.serial,
            sole: grant.is_sole,
        }
    }

    pub(super) fn revoked(revocation: Revocation) -> Self {
        Self::Revoked {
            inode: revocation.inode.0,
            serial: revocation.serial,
            may_share: revocation.may_share,
            is_urgent: revocation.is_urgent,
        }
    }

    pub(super) fn refused(inode: InodeNumber, errno: Errno) -> Self {
        Self::Refused { inode: inode.0, errno: errno.raw_os_error() }
    }
}

/// The mode of a lease.
pub(super) fn mode(exclusive: bool) -> Mode {
    if exclusive { Mode::Exclusive } else { Mode::Shared }
}
