//! A crash-consistent file system over several media, at user level.
//!
//! The idea is Strata's (Kwon et al., SOSP 2017): an application makes an operation durable by
//! writing one record to a log of its own; a service *digests* the logs later into a shared,
//! read-optimised area. This crate is the engine of both sides. It has no thread, no clock and no
//! system call: it takes bytes, times and queues.
//!
//! 1. A front end calls an operation of [`FileSystem`]. The [`client`] walks no paths: it works on
//!    inodes. It looks at its overlay first, then at the digested state ([`Base`]).
//! 2. The client checks permissions and existence, and makes one [`Change`] of the operation. The
//!    change is appended to the log as one self-checking record, with one fence. Then the operation
//!    is durable, atomic and in order, as far as the log's medium promises.
//! 3. The client applies the change to its overlay, where later operations see it. Data stay in the
//!    log; the overlay has their positions.
//! 4. The digest reads the log up to some position and judges each record. It builds the net effect
//!    in an overlay of its own, so that a file that was created and removed leaves nothing.
//! 5. It copies data to new blocks of the pool, and changes a copy-on-write tree: inodes, entries,
//!    extents, free space, and how far each log was applied. Data are flushed on every medium, then
//!    the tree, then one superblock makes all of it current.
//! 6. Only then the log's space is free, and the client drops from its overlay what the digested
//!    state now has.
//! 7. The [`mover`] takes cold data to slower media in large writes, and hot data back.
//! 8. After a crash, the service opens the last tree and digests what each log has beyond it.
//!
//! What it must never do: change a record or a block that something durable refers to; apply a
//! record twice, or decide by existence whether it was applied; return data that do not have their
//! checksum; trust a record's meaning because its checksum is right.
//!
//! The layers, lowest first: `limits`, `error`; `inode`, `name`, `quota`; `access`, `ascent`,
//! `change`; `lease`; `file_system`, `base`, `direct`; `log`; `tree`; `pool`; `overlay`; `client`,
//! `digest`; `mover`; `inline`, `shared`; `check`.
#![forbid(unsafe_code)]

pub mod access;
mod ascent;
pub mod base;
pub mod change;
pub mod check;
pub mod client;
pub mod digest;
mod digested;
pub mod direct;
mod error;
pub mod file_system;
pub mod heat;
mod inline;
pub mod inode;
mod items;
pub mod lease;
pub mod limits;
pub mod log;
pub mod mover;
pub mod name;
mod overlay;
pub mod pin;
pub mod pool;
pub mod quota;
pub mod shared;
mod tree;

pub use base::Base;
pub use change::Change;
pub use client::Client;
pub use digest::Digest;
pub use digested::{Digested, Store};
pub use error::Fault;
pub use file_system::{FileSystem, Leased};
pub use inline::Inline;
pub use items::LogState;
pub use tree::{Key, MAX_VALUE, OWN_KINDS};
