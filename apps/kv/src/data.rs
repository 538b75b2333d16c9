//! The data set: databases and their keys, the values, and their changes as records of the log.
//!
//! ```text
//!  keyspace          databases, expiry, eviction, memory accounting
//!  value             strings, lists, sets, hashes, sorted sets
//!  index  journal    the hash table of databases and collections; effects as log records
//! ```

pub(crate) mod index;
pub mod journal;
pub(crate) mod keyspace;
pub(crate) mod value;
