//! Memory that two sides share, and how they take turns in it.
//!
//! - [`pool`]: which buffer of a queue belongs to whom.

pub mod pool;

pub use pool::{BufferPool, Owner};
