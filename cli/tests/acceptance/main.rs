//! The promises of Sietch, tested with the real binaries: daemon, store, kernel, Redis' own clients
//! and hostile ones.
//!
//! 1. Every test has a network namespace, folders and a port of its own ([`testbed`]). The
//!    namespace belongs to the test's thread and ends with the last process in it. A failed test
//!    leaves nothing behind either.
//! 2. Tests run one after another, even if the harness has several threads: rates, idle time and
//!    replies must be measured on an otherwise idle machine.
//! 3. As an ordinary user they are skipped, and print that.
//! 4. `SIETCH_KILLS=100` and `SIETCH_IDLE_SECONDS=60` run the long forms. With `SIETCH_SHARDS=3`
//!    the store of every test has three shards.
#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

mod bad_input;
mod benchmark_suite;
mod brokered;
mod client;
mod corruption;
mod hostile;
mod idle;
mod inside;
mod ipv6;
mod kill_daemon;
mod kill_store;
mod large_values;
mod link;
mod memory_only;
mod names;
mod ordinary_user;
mod programs;
mod published;
mod served;
mod shards;
mod switch;
mod switch_by_up;
mod testbed;
mod through_memory;

/// A number from the environment, for the longer forms of a test.
fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// The process of a hostile application; a test starts it as an ordinary user.
#[test]
#[ignore = "a process of the test of the same module"]
fn attacker_process() {
    hostile::attacker::run();
}
