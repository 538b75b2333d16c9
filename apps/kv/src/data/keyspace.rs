//! The data set: databases, expiry, memory accounting, watched keys.
//!
//! 1. A [`Database`](database::Database) is an [`Index`](crate::data::index::Index) of [`Entry`]s.
//!    An entry has its key, its value, its expiry (or [`NEVER`]) and a word for eviction (time of
//!    last access, or frequency). A string that was set as a whole is one allocation with its key,
//!    and so is a packed collection.
//! 2. Keys with an expiry are also in an ordered set of (deadline, hash of the key). Its first
//!    element is the next deadline: active expiry never samples, and an idle store has nothing to
//!    do.
//! 3. A key is expired lazily when it is looked up and actively by [`Store::expire_due`]; both
//!    record a DEL. While a log is replayed nothing expires: the log holds the deletions.
//! 4. Each change calls [`Store::signal`]: it increments the version of a watched key, and queues a
//!    key that clients wait for.
//! 5. The keys of one shard are its [`Partition`], which another shard may hold for a while.
//! 6. FLUSHALL sets whole databases aside; [`Store::free_pending`] frees them in bounded slices.
//! 7. [`Data`] is one database as a command sees it, with the clock reading of the batch.

mod candidates;
mod change;
mod clock;
mod data;
mod database;
mod entry;
mod eviction;
mod key;
mod partial_dump;
mod partition;
mod partitions;
mod record;
mod store;

pub(crate) use clock::NEVER;
pub use clock::Now;
pub(crate) use data::Data;
pub(crate) use entry::Entry;
pub(crate) use key::DatabaseKey;
pub(crate) use partial_dump::{DumpedPart, EffectDetail, PartialDump};
pub(crate) use partition::{Partition, Waiter};
pub(crate) use store::{ShutdownMode, Store};
