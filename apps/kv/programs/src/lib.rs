//! Random programs of Redis commands, and a redis-server to run them beside the store. For tests
//! alone.
//!
//! 1. [`generate`] makes the program of a seed: about 300 commands of all families from templates,
//!    some of them wrong.
//! 2. [`huge`] makes single commands whose arguments or effects are as large as the limits allow.
//! 3. [`oracle`] starts a redis-server of the test's own, and [`connection`] speaks to it, or to
//!    the store.
//! 4. [`reply`] reads replies into trees and takes out what Redis leaves open: the order of sets,
//!    random choices, remaining times.
//! 5. [`state`] reads everything that a server holds, in a form that two servers share.
#![forbid(unsafe_code)]

pub mod connection;
pub mod generate;
pub mod huge;
pub mod oracle;
pub mod reply;
pub mod state;
