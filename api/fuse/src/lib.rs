//! A file system of `sietch-fs` as a FUSE mount, for programs that do not link or preload Sietch.
//!
//! 1. [`Mount::new`] mounts any [`sietch_fs::FileSystem`] on a directory. [`Mount::run`] serves the
//!    kernel's requests on several threads, and returns the file system when it is unmounted. Below
//!    it, a [`Session`] mounts and unmounts anything that answers requests.
//! 2. **Permissions are checked by the kernel** (`default_permissions`). FUSE sends only the user
//!    and the main group of a caller. Supplementary groups and capabilities would have to be read
//!    from `/proc`, which races with `setgroups(2)` and fails for callers in other PID namespaces.
//!    The kernel has the caller's true credentials, user namespaces included, and the attributes
//!    that this crate returns. The file system therefore gets each request as one that is
//!    permitted, with the caller's user and group as the owner of what it creates. One that changes
//!    names or attributes and had to wait is checked here too, and goes back to the kernel if this
//!    check refuses it ([`mod@sender`]).
//! 3. **Set-user-ID and set-group-ID bits** are cleared here where Linux clears them
//!    (`FUSE_HANDLE_KILLPRIV_V2`), so that a write is one request and not three. This reads a
//!    caller's groups from `/proc` for set-group-ID without the permission to execute.
//! 4. **Coherence.** Other clients of the file system change it beside this mount. Names and
//!    attributes have a time-out of 0: the kernel asks for them at each use. Data are in the page
//!    cache, because `mmap` needs it. The kernel discards them when a file is opened, and when a
//!    read finds that mtime or size has changed (`FUSE_AUTO_INVAL_DATA`). Only a page that is
//!    mapped already may be old. Where no other client exists, [`Options::keep`] lets the kernel
//!    cache names and attributes.
//! 5. **Appends** go to the end that the file system knows; the kernel's offset may be old. If the
//!    two differ, the kernel's pages of that file are invalidated, by a thread that nothing waits
//!    for.
//! 6. An inode that the kernel knows is noted ([`FileSystem::know`]) until the kernel forgets it.
//!    What the kernel still has at the end is forgotten. That does not keep what another client
//!    removes: its number is stale then (`ESTALE`), unless a file is open.
//! 7. If the file system panics, the caller gets EIO, as does every later request: its state cannot
//!    be trusted any more. The mount can still be unmounted.
//!
//! 8. **Waits.** The threads that read requests wait for no medium and for no other client: a
//!    request that has to wait for room, a lease, the disk of the log or the digest is answered by
//!    another thread (`changes.rs`). So users that write do not keep others from the mount.
//!
//! Locks (`fcntl`, `flock`) are the kernel's: they hold among the programs that use this mount.
//! `O_TMPFILE` gets `EOPNOTSUPP`, because the `fuser` crate does not have the request.
//!
//! What it must never do: wait for the kernel while a request waits for it (a notification runs in
//! its own thread); answer a request twice or not at all; return an attribute, an entry or data
//! from a cache of its own.
//!
//! The layers, lowest first: `attributes`, `options`, `error`; `mount_point`, `set_id`, `stale`,
//! `turns`, `replies`; `session`, `waiting`, `budget`, `lock_waits`; `state`; `changes`, `flush`,
//! `listing`, `operations`; `requests`; `mount`.
//!
//! [`FileSystem::know`]: sietch_fs::FileSystem::know
#![forbid(unsafe_code)]

mod attributes;
mod budget;
mod changes;
mod error;
mod flush;
mod listing;
mod lock_waits;
mod mount;
mod mount_point;
mod operations;
mod options;
mod replies;
mod requests;
mod sender;
mod session;
mod set_id;
mod stale;
mod state;
mod turns;
mod waiting;

pub use error::MountError;
pub use mount::{Inner, Mount};
pub use options::Options;
pub use session::{Session, Unmounter};
