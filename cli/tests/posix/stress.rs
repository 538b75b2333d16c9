//! Threads and processes that share connections and wait for them in every way, from a seed: no
//! byte is lost, and no call waits for data that has arrived.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::testbed::{self, Sides, Testbed};

#[test]
fn every_waiter_is_woken() {
    testbed::run(module_path!(), &["python3"], Sides::BOTH, &[Sides::BOTH], load);
}

/// The seed of the first round: from the environment, else a fresh one. The program prints it.
fn seed() -> String {
    let fresh = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_secs());
    std::env::var("SIETCH_POSIX_SEED").unwrap_or_else(|_| fresh().to_string())
}

fn load(testbed: &Testbed) {
    let script = testbed.write("stress.py", include_str!("scripts/stress.py"));
    // A second without progress is a stall. Where tests run in parallel, a process may not have the
    // processor for longer.
    let stall = testbed.size("5", "1");
    let printed = testbed.client_output("python3", &[&script, &seed(), testbed.size("15", "500"), stall]);
    assert!(printed.contains("all right"), "{printed}");
}
