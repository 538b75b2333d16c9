//! A word of memory with which the service fences a client.
//!
//! 1. The service writes the word, and only then reads the log to its end. The client appends a
//!    record, and only then looks at the word. Between the two, each side has a full fence. So a
//!    record that the service does not read belongs to a client that sees the word.
//! 2. The client may write the word too. It harms only itself.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};

use rustix::fs::{MemfdFlags, SealFlags};
use sietch_disk::BLOCK;
use sietch_disk::nvm::{Mapped, Medium as _};

/// Bytes of a line of memory.
const LINE: usize = 64;

/// One side's view of the word.
pub(super) struct Fence(Mapped);

/// Makes the memory of a word.
pub(super) fn memory() -> std::io::Result<OwnedFd> {
    let memory = rustix::fs::memfd_create("sietch-fence", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&memory, BLOCK as u64)?;
    rustix::fs::fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(memory)
}

impl Fence {
    /// The word in `memory`.
    pub(super) fn open(memory: &impl AsFd) -> std::io::Result<Self> {
        let memory = memory.as_fd().try_clone_to_owned()?;
        Mapped::memory(memory, BLOCK as u64).map(Self).map_err(std::io::Error::other)
    }

    /// Fences the client.
    pub(super) fn set(&mut self) {
        self.0.store(0, &[1; LINE]);
        self.0.fence();
        fence(Ordering::SeqCst);
    }

    /// Whether the client is fenced.
    pub(super) fn is_set(&self) -> bool {
        fence(Ordering::SeqCst);
        let mut line = [0; LINE];
        self.0.load(0, &mut line);
        line[0] != 0
    }
}
