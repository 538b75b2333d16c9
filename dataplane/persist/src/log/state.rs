//! What the operations of a log remember between two polls.
//!
//! The log owns one value of each type here. The operations themselves (`super::snapshot`,
//! `super::truncate` and others) are methods of the log in files above.

pub(in crate::log) mod proof;
pub(in crate::log) mod reads;
pub(in crate::log) mod requests;
pub(in crate::log) mod resize;
pub(in crate::log) mod snapshot;
pub(in crate::log) mod truncation;
pub(in crate::log) mod waiters;
