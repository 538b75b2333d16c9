//! Runs a test over many seeds.
//!
//! 1. `SIETCH_SIM_SEED=n`: that seed alone, nothing caught, so that a debugger sees the failure.
//! 2. Else: the given regression seeds, then fresh ones, until `SIETCH_SIM_SEEDS` or the default number of them
//!    have run or `SIETCH_SIM_SECONDS` or the default time is over, whichever comes first.
//! 3. A seed that panics prints the command that repeats it, and the panic goes on.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How much a run does when the environment says nothing.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    /// Fresh seeds.
    pub seeds: u64,
    /// Seconds after which no further seed starts.
    pub seconds: u64,
}

/// Runs `test` for the seeds of the environment, or the regression seeds and fresh ones within `budget`. `name` is the
/// test's file and function, as in `tcp transfer`.
///
/// # Panics
/// As `test` does, after printing the seed.
pub fn run(name: &str, regressions: &[u64], budget: Budget, mut test: impl FnMut(u64)) {
    if let Some(seed) = number("SIETCH_SIM_SEED") {
        eprintln!("{name}: seed {seed}");
        return test(seed);
    }
    let count = number("SIETCH_SIM_SEEDS").unwrap_or(budget.seeds);
    let limit = Duration::from_secs(number("SIETCH_SIM_SECONDS").unwrap_or(budget.seconds));
    let started = Instant::now();
    let fresh = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    // Small numbers are easier to repeat; fresh ones must differ from run to run.
    let fresh = (0..count).map(|step| (fresh / 1000).wrapping_add(step) % 1_000_000_000_000);
    let mut ran = 0;
    for seed in regressions.iter().copied().chain(fresh) {
        if started.elapsed() > limit {
            break;
        }
        if let Err(cause) = catch_unwind(AssertUnwindSafe(|| test(seed))) {
            let file = name.split(' ').next().unwrap_or(name);
            let function = name.split(' ').nth(1).unwrap_or_default();
            eprintln!(
                "{name}: seed {seed} failed; repeat it with: SIETCH_SIM_SEED={seed} cargo test -p sietch-sim --test {file} {function}"
            );
            resume_unwind(cause);
        }
        ran += 1;
    }
    println!("{name}: {ran} seeds in {:.1} s", started.elapsed().as_secs_f64());
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}
