//! Files on a mount of a shared file system: which descriptors are such files, and who does their
//! reads and writes, the kernel or a client in this process.
//!
//! 1. `sietch run --fs DIR` names mounts. A regular file that is opened there gets a word in
//!    [`words`] and a [`state::File`]. Its descriptor is the kernel's, of the mount, and every call
//!    works on it. This library only takes reads and writes from it, where that is faster.
//! 2. Calls of such a file are counted. After so many of them ([`mounts::calls`]), this process
//!    becomes a client of the file system ([`state::Store`]), asks for a lease on the inode
//!    ([`claim`]), and does reads and writes itself: a write is a record in a log of its own.
//! 3. A call that finds the lease gone is done by the kernel, and the count begins anew. So two
//!    processes that use a file in turn pay for a passing lease once in many calls.
//! 4. The position of a descriptor stays the kernel's: a call at the position reads it and sets it
//!    (`lseek(2)`). So dup, fork, exec and stdio see one position. A description that another
//!    process may have is read and written at its position by the kernel alone.
//!    Descriptors 0 to 2 are the kernel's: the C library closes them past this library.
//! 5. A file that this process maps is the kernel's from then on; the mount gets to know
//!    ([`sietch_fs::direct`]).
//! 6. A thread looks after each client, so that leases pass on while the program computes.
//! 7. A child of fork has the files, and no client: it closes the descriptors of its parent's, and
//!    becomes one itself. A child in which no handler of a fork ran has nothing here: its files are
//!    the kernel's.
//! 8. A process that gives up rights is a client no more ([`crate::calls::process`]).
//!
//! One lock guards all of it ([`state::with`]). It is held while a lease is waited for, and never
//! while the kernel is asked for something of the mount: the mount may wait for this process. A
//! handler of the program that has interrupted a thread takes no memory from the heap; its calls
//! are the kernel's.
//!
//! What it must never do: write to a file by a number that names another one by now; make a call
//! fail that the kernel could do.
//!
//! The layers, lowest first: `words`, `mounts`, `position`; `state`; `claim`.

pub(crate) mod claim;
pub(crate) mod mounts;
pub(crate) mod position;
pub(crate) mod state;
pub(crate) mod words;

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use sietch_fs::direct::Way;

pub use state::{Attach, AttachedStore, set_attach};

/// Asks the mount of a descriptor where the service of its file system is.
///
/// # Errors
/// `ENOTTY`: it is not of a mount whose file system is served.
pub fn ask(descriptor: BorrowedFd<'_>) -> io::Result<Way> {
    mounts::ask(descriptor.as_raw_fd()).map_err(io::Error::from_raw_os_error)
}
