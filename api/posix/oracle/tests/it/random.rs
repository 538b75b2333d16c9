//! Random programs: in CI the same ones each time, as far as time allows; fresh ones in `cargo
//! xtask soak posix` (`SIETCH_SIM_SOAK`).
//!
//! `SIETCH_SIM_SEEDS` programs at most, for `SIETCH_SIM_SECONDS` at most; `SIETCH_POSIX_SEED` is
//! the first seed, for one that failed; `SIETCH_POSIX_FAILURES` is how many differences end the
//! run.

use std::time::Duration;

use sietch_posix_oracle::suite::{Demand, Subject, Suite, Summary};
use sietch_sim::seeds;

use crate::settings;

fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// The first seed of CI, and how many follow.
const FIRST: u64 = 20_000_000;
const PROGRAMS: u64 = 5000;
/// The programs among them that still differ: both sides have shut down reading, which cannot be
/// distinguished from the peer's end.
const REMAINING: [u64; 2] = [20_000_477, 20_001_257];

/// Runs programs. Most of a program's time is waiting, so several run at once on each core.
fn run(demand: Demand) -> Summary {
    let suite = Suite {
        kernel: settings::kernel(),
        shim: settings::shim(),
        subject: Subject::Sockets,
        seed: number("SIETCH_POSIX_SEED", seeds::first(FIRST)),
        programs: number("SIETCH_SIM_SEEDS", PROGRAMS),
        time: Duration::from_secs(number("SIETCH_SIM_SECONDS", 60)),
        demand,
        workers: 8,
        except: &REMAINING,
    };
    let most = usize::try_from(number("SIETCH_POSIX_FAILURES", 2)).unwrap_or(2);
    let summary = suite.run(most).expect("executors");
    println!(
        "{} programs, {} steps; {} undetermined, {} differed once",
        summary.programs, summary.steps, summary.undetermined, summary.once
    );
    assert!(summary.failures.is_empty(), "{}", summary.failures.join("\n"));
    summary
}

#[test]
fn random_programs_behave_under_the_shim_as_under_the_kernel() {
    let summary = run(Demand::Same);
    let doubtful = summary.undetermined + summary.once;
    assert!(doubtful * 100 <= summary.programs, "of {} programs {doubtful} are in doubt", summary.programs);
}

#[test]
#[ignore = "long: programs that differ must still neither hang nor die"]
fn random_programs_neither_hang_nor_die_under_the_shim() {
    run(Demand::Alive);
}
