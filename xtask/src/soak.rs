//! The long runs: the simulator's suites with many more seeds than CI has time for.
//!
//! Seeds, seconds and threads can be set by `SIETCH_SIM_SEEDS`, `SIETCH_SIM_SECONDS` and `SIETCH_SIM_THREADS`; what is set
//! outside wins. Each test runs that many seeds, one test after the other, on as many threads as there are cores.

use std::path::Path;

use crate::ci::cargo;

/// One suite: its name, the simulator's test file that it runs, and which of the file's tests (empty: all). One test has the
/// whole matrix of the network.
const SUITES: [(&str, &str, &str); 3] =
    [("net", "tcp", "every_cell"), ("storage", "durability", ""), ("kv", "system", "")];

/// Seeds of a suite: a night's worth on two cores for the network, some hours for the others.
const SEEDS: &str = "100000";

/// Seconds after which a suite ends even if seeds are left.
const SECONDS: &str = "36000";

/// Runs the suite of that name, or all of them.
pub fn run(root: &Path, suite: &str) -> Result<(), String> {
    let chosen: Vec<_> = SUITES.iter().filter(|(name, ..)| suite == "all" || suite == *name).collect();
    if chosen.is_empty() {
        let names: Vec<_> = SUITES.iter().map(|(name, ..)| *name).collect();
        return Err(format!("soak: no suite `{suite}`; there are: {}, all", names.join(", ")));
    }
    let seeds = std::env::var("SIETCH_SIM_SEEDS").unwrap_or_else(|_| SEEDS.to_owned());
    let seconds = std::env::var("SIETCH_SIM_SECONDS").unwrap_or_else(|_| SECONDS.to_owned());
    let threads = std::env::var("SIETCH_SIM_THREADS").unwrap_or_else(|_| {
        std::thread::available_parallelism().map_or(1, std::num::NonZero::get).to_string()
    });
    for (name, test, filter) in chosen {
        println!("== soak {name}: {seeds} seeds a test, at most {seconds} s each, on {threads} threads");
        cargo(
            root,
            &[
                "test",
                "--release",
                "-p",
                "sietch-sim",
                "--test",
                test,
                "--",
                filter,
                "--nocapture",
                "--test-threads=1",
            ],
            &[
                ("SIETCH_SIM_SEEDS", &seeds),
                ("SIETCH_SIM_SECONDS", &seconds),
                ("SIETCH_SIM_THREADS", &threads),
            ],
        )?;
    }
    Ok(())
}
