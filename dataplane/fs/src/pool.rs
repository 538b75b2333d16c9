//! The shared area: data on several media, and one copy-on-write tree that says what they are.
//!
//! 1. A pool has up to eight media, each a disk queue. The first is the *home*: it has the tree,
//!    and the superblock that says which tree is current.
//! 2. The tree holds the items of the file system, and those of the pool itself: each free run of
//!    blocks, and each *chunk* of blocks in which nodes are. Free runs are in memory while the pool
//!    is open ([`data_space`]). Which blocks of the chunks are free follows from the tree
//!    ([`node_space`]).
//! 3. A change writes data to blocks that were free in every generation that counts, and changes
//!    copies of nodes in memory. [`Pool::commit`] writes the nodes, flushes all media, and then
//!    writes one superblock. That makes all of it current, or nothing ([`commit`]).
//! 4. What a commit replaced or freed is used again when the commit is durable and no reader needs
//!    an older generation ([`Pool::readers_at`]).
//! 5. A [`Reader`] on another thread has queues of its own, and reads one generation until it is
//!    advanced to the next.
//! 6. New data go to the fastest medium below its hard watermark ([`Watermarks`]). The mover copies
//!    data to blocks that are set aside ([`Pool::set_aside`]) through queues of its own
//!    ([`Copier`]).
//! 7. A medium can grow, join or leave ([`media_change`]), each by one commit.
//! 8. A reserve of node blocks and of data blocks is for removals: a full pool can be emptied.
//!
//! What it must never do: write a block that the current generation, or that of a reader, refers
//! to; say that a commit is durable before all media are flushed; take a stale or misplaced node
//! for the current one; return a block twice.

mod block_cache;
mod change;
mod check;
mod commit;
mod copier;
mod data_space;
mod error;
mod format;
mod free_map;
pub mod limits;
mod media_change;
mod media_table;
mod medium;
mod node_space;
mod open;
mod own_items;
mod reader;
mod root;
mod run;
mod set_aside;
mod slot;
mod state;
mod superblock;
mod watermarks;

pub(crate) use block_cache::BlockCache;
pub use check::{Findings, Runs, check};
pub(crate) use check::{Item, Superblocks, check_items};
pub use copier::Copier;
pub use error::{FormatError, MediaError, OpenError, Unsuitable};
pub use format::{FormatOptions, format};
pub use media_change::{Belonging, belonging, recorded_media};
pub use medium::{Class, Member};
pub use node_space::FreeBlocks;
pub use reader::Reader;
pub use root::{Counters, Root};
pub use run::Run;
pub use state::Pool;
pub use superblock::VERSION;
pub use watermarks::{MediumUse, Watermarks};

#[cfg(test)]
mod tests;
