//! The service of a file system: it owns the media, recovers logs and digests them.
//!
//! 1. A file system is a folder with a *description* ([`description`]): the files of its media, the
//!    memory of its log, and which of them survive a loss of power. [`create()`] makes it.
//! 2. [`open()`] locks every file, opens the pool, digests what the log has from before, frees what
//!    no name leads to, and begins a new epoch of the log. From then on the file system is whole.
//! 3. A thread digests ([`digester`]). It lets records gather, because later ones make earlier ones
//!    pointless, and begins when a quarter of the log is full, when records are old, or when a
//!    client waits for room. A client that logs faster than that waits a little, often, before its
//!    log is full ([`pacing`]).
//! 4. A client in the same process ([`local`]) reads what was committed through queues of its own.
//!    It changes to the next commit between two operations, and only then are the blocks that this
//!    commit replaced used again.
//! 5. Several processes share a file system through one that serves it ([`shared`]).
//! 6. Another thread moves data between the media ([`mover`]): cold ones to slower media, hot ones
//!    back. It has queues of its own, and pauses while the foreground has work.
//! 7. [`check()`] verifies a file system that is not open, and recovers nothing. [`recount()`]
//!    counts again what users have.
//! 8. A medium can get larger, others can join ([`media_change`]), and one can leave ([`drain()`]),
//!    while it is not open.
//!
//! What it must never do: keep a client waiting for the medium, unless half of its log is full; go
//! on after a medium failed as if it had not.
//!
//! The layers, lowest first: `undrained`; `error`, `pacing`; `description`; `media`; `logs`,
//! `requests`; `create`, `digester`, `recovery`, `syncs`; `local`, `mover`; `open`, `shared`;
//! `check`, `media_change`, `recount`; `drain`.

mod check;
mod create;
pub mod description;
mod digester;
mod drain;
mod error;
mod local;
mod logs;
mod media;
mod media_change;
mod mover;
mod open;
mod pacing;
mod recount;
mod recovery;
mod requests;
pub mod shared;
mod syncs;
#[cfg(test)]
mod test_folder;
mod undrained;

pub use check::{Checked, Undigested, check};
pub use create::{CreateOptions, Interrupt, create, create_interruptibly};
pub use description::{Change, ClassName, Description, Durability, Migration};
pub use digester::{Digester, Publications, Totals};
pub use drain::drain;
pub use error::StoreError;
pub use local::Local;
pub use media_change::{add, grow};
pub use open::{FileSystemClient, Running, open};
pub use recount::recount;
pub use sietch_fs::limits::BLOCK;
pub use sietch_fs::mover::Moves;
pub use sietch_fs::pin::PIN;
pub use sietch_fs::pool::MediumUse;
pub use undrained::Undrained;
