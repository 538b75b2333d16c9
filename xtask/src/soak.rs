//! The long runs: the simulator's suites with many more seeds than CI has time for.
//!
//! Seeds and seconds can be set by `SIETCH_SIM_SEEDS` and `SIETCH_SIM_SECONDS`; what is set outside wins.

use std::path::Path;

use crate::ci::cargo;

/// One suite: its name, and the simulator's test file that it runs.
const SUITES: [(&str, &str); 3] = [("net", "tcp"), ("storage", "durability"), ("kv", "system")];

/// Seeds of a suite: a night's worth on two cores for the network, some hours for the others.
const SEEDS: &str = "100000";

/// Seconds after which a suite ends even if seeds are left.
const SECONDS: &str = "36000";

/// Runs the suite of that name, or all of them.
pub fn run(root: &Path, suite: &str) -> Result<(), String> {
    let chosen: Vec<_> = SUITES.iter().filter(|(name, _)| suite == "all" || suite == *name).collect();
    if chosen.is_empty() {
        let names: Vec<_> = SUITES.iter().map(|(name, _)| *name).collect();
        return Err(format!("soak: no suite `{suite}`; there are: {}, all", names.join(", ")));
    }
    let seeds = std::env::var("SIETCH_SIM_SEEDS").unwrap_or_else(|_| SEEDS.to_owned());
    let seconds = std::env::var("SIETCH_SIM_SECONDS").unwrap_or_else(|_| SECONDS.to_owned());
    for (name, test) in chosen {
        println!("== soak {name}: {seeds} seeds, at most {seconds} s");
        cargo(
            root,
            &["test", "--release", "-p", "sietch-sim", "--test", test, "--", "--nocapture"],
            &[("SIETCH_SIM_SEEDS", &seeds), ("SIETCH_SIM_SECONDS", &seconds)],
        )?;
    }
    Ok(())
}
