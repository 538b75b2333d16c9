//! What keeps an inode of a client after its last name.
//!
//! 1. An open handle or a reference ([`crate::FileSystem::retain`]) keeps it, wherever the name was
//!    removed.
//! 2. A mount's kernel knows each file that was listed ([`crate::FileSystem::know`]). It soon drops
//!    what is removed through it, unless a program still uses it: as a working directory, or by
//!    `O_PATH`. So that keeps what this client removed.
//! 3. A kernel does not notice what another client removes, and would keep that, with its room, as
//!    long as it likes. So that keeps nothing then: the number is stale.

/// Handles and references of one inode.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct References {
    /// Open handles, and references.
    pub kept: u64,
    /// What a kernel knows.
    pub known: u64,
    /// This client removed its last name.
    pub is_removed_here: bool,
}

impl References {
    /// Whether there is none.
    pub(super) fn is_empty(self) -> bool {
        self.kept == 0 && self.known == 0
    }

    /// Whether they keep the inode after its last name.
    pub(super) fn keep_removed(self, is_shared: bool) -> bool {
        self.kept > 0 || self.known > 0 && (self.is_removed_here || !is_shared)
    }
}
