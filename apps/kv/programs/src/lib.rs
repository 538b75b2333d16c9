//! Random programs of Redis commands, and a redis-server that runs them beside the store. Only
//! tests use this crate.
//!
//! 1. [`generate`] makes the program of a seed: about 300 commands of all families from templates,
//!    some of them invalid.
//! 2. [`huge`] makes single commands whose arguments or effects are as large as the limits allow.
//! 3. [`oracle`] starts a redis-server for the test, and [`connection`] is a client of it or of the
//!    store.
//! 4. [`reply`] parses replies into trees and removes what Redis does not define: the order of
//!    sets, random choices, remaining times.
//! 5. [`state`] reads all data of a server, in a form that can be compared between two servers.
#![forbid(unsafe_code)]

pub mod connection;
pub mod generate;
pub mod huge;
pub mod oracle;
pub mod reply;
pub mod state;
