//! One end of a connection: its state, its doorbell, its peer, and calls that block on it.
//!
//! An end is in memory that both peers share (`sietch_ring::stream`). Its descriptor is a
//! *placeholder*: a Unix socket whose other end the peer holds. A byte on it is a *doorbell*: it
//! wakes the sleeping threads, and means "check shared memory again".

pub(crate) mod blocked;
pub(crate) mod doorbell;
pub(crate) mod edges;
pub(crate) mod names;
pub(crate) mod option_words;
pub(crate) mod owner;
pub(crate) mod pause;
pub(crate) mod peer;
pub(crate) mod placeholder;
pub(crate) mod short_lived;
pub(crate) mod spin;
pub(crate) mod status;
