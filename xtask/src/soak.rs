//! Long runs: random tests with more seeds than CI has time for.
//!
//! 1. `SIETCH_SIM_SEEDS`, `SIETCH_SIM_SECONDS` and `SIETCH_SIM_THREADS` in the environment take
//!    precedence over the table. Each test runs that many seeds, one test after the other, on as
//!    many threads as there are cores.
//! 2. With `SIETCH_SIM_SOAK` tests draw fresh seeds, where CI runs the same ones each time, and
//!    tests that enumerate go further.
//! 3. `fresh` is all tests of the workspace, with seeds and property-test cases that a plain run
//!    does not draw.
//! 4. What is a command of its own has a name here as well ([`COMMANDS`]): coverage-guided fuzzing,
//!    the sanitizers, mutations, and suites of others.
//! 5. The numbers of explored states that tests print (`N states in S s`) are added up and printed
//!    at the end.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::{fuzz, mutations, packetdrill, sanitizers, suites};

/// The suite of all tests with fresh seeds.
const FRESH: &str = "fresh";

/// One suite.
struct Suite {
    name: &'static str,
    package: &'static str,
    /// The test file that it runs.
    file: &'static str,
    /// Which of the file's tests; empty for all.
    filter: &'static str,
    /// Seeds of each test.
    seeds: &'static str,
    /// Seconds after which a test ends even if seeds are left.
    seconds: &'static str,
}

/// All suites, in about a night on two cores for the network, and some hours for storage and the
/// store. Each fuzz target takes an hour, and so do tests against the kernel's TCP (which need
/// root, and print that). Unmodified programs take some hours. Storage is the volume's metadata,
/// the log, queue and map on disks and in persistent memory, the store on them, and killed
/// processes.
const SUITES: [Suite; 21] = [
    // One test has the whole matrix of the network.
    Suite { filter: "every_cell", ..Suite::of("net", "sietch-sim", "it") },
    Suite { filter: "power_loss", ..Suite::of("storage", "sietch-volume", "it") },
    Suite { filter: "power_loss", ..Suite::of("storage", "sietch-persist", "it") },
    Suite { filter: "ignoring_any_fence", ..Suite::of("storage", "sietch-persist", "it") },
    Suite { filter: "nvm::", seconds: "3600", ..Suite::of("storage", "sietch-sim", "it") },
    Suite { filter: "durability::", ..Suite::of("storage", "sietch-sim", "it") },
    // Each seed is a process that is killed.
    Suite { filter: "kill_9", seeds: "1000", ..Suite::of("storage", "sietch-persist", "it") },
    Suite {
        filter: "no_acknowledged_write_is_lost_when_the_store_is_killed",
        seeds: "1000",
        ..Suite::of("storage", "sietch-cli", "acceptance")
    },
    Suite { filter: "system::", ..Suite::of("kv", "sietch-sim", "it") },
    // An hour of random programs beside redis-server, the store killed again and again.
    Suite {
        filter: "wherever_the_store_is_killed",
        seconds: "3600",
        ..Suite::of("kv", "sietch-cli", "acceptance")
    },
    Suite {
        filter: "fuzz::",
        seeds: "1000000000000",
        seconds: "3600",
        ..Suite::of("fuzz", "sietch-net", "it")
    },
    Suite {
        filter: "sockets_fuzz::",
        seeds: "1000000000000",
        seconds: "3600",
        ..Suite::of("fuzz", "sietch-service", "it")
    },
    // Tests of other programs and of many connections draw nothing: one run, in CI, is enough.
    Suite { filter: "random_cells", seconds: "3600", ..Suite::of("interop", "sietch", "it") },
    // Each seed is a long load of a program of Debian's, each test a program with its ends under
    // Sietch or not.
    Suite { seeds: "20", seconds: "300", ..Suite::of("posix", "sietch-cli", "posix") },
    // Random programs of socket calls beside the kernel.
    Suite {
        filter: "random_programs",
        seeds: "1000000",
        seconds: "3600",
        ..Suite::of("posix", "sietch-posix-oracle", "it")
    },
    // Random programs of calls on files of a mount, under the library and beside it.
    Suite {
        filter: "mounted_programs::random",
        seeds: "1000000",
        seconds: "3600",
        ..Suite::of("files", "sietch-cli", "it")
    },
    Suite { filter: "mounted_programs::kills", seeds: "1000", ..Suite::of("files", "sietch-cli", "it") },
    // Random programs of file operations beside the kernel.
    // Crashes, and the client beside the model.
    Suite { filter: "power_loss", seconds: "3600", ..Suite::of("fs", "sietch-fs", "it") },
    Suite { filter: "programs::", seconds: "3600", ..Suite::of("fs", "sietch-fs", "it") },
    // Every crash test that may notice an ignored fence passes without that fault. CI runs only
    // those that noticed one.
    Suite { filter: "ignoring_any_fence", ..Suite::of("fs", "sietch-fs", "it") },
    Suite {
        filter: "random_programs_behave",
        seeds: "1000000",
        seconds: "3600",
        ..Suite::of("fs", "sietch-fs-oracle", "it")
    },
];

/// A command, in the root of the workspace.
type RunCommand = fn(&Path) -> Result<(), String>;

/// Suites that are commands of their own.
const COMMANDS: [(&str, RunCommand); 5] = [
    // An hour for each target.
    ("fuzz", |root| fuzz::run(root, None, 3600)),
    ("sanitizers", |root| {
        sanitizers::miri(root)?;
        sanitizers::threads(root)?;
        sanitizers::planted(root)
    }),
    ("mutations", |root| mutations::run(root, "")),
    ("packetdrill", |root| packetdrill::run(root, None)),
    ("foreign", |root| suites::run(root, None)),
];

impl Suite {
    const fn of(name: &'static str, package: &'static str, file: &'static str) -> Self {
        Self { name, package, file, filter: "", seeds: "100000", seconds: "36000" }
    }
}

/// The names of the suites, without `all`.
pub(crate) fn names() -> Vec<&'static str> {
    let mut names = vec![FRESH];
    names.extend(SUITES.iter().map(|suite| suite.name));
    names.extend(COMMANDS.iter().map(|(name, _)| *name));
    names.sort_unstable();
    names.dedup();
    names
}

/// Runs the suite of that name, or all of them.
pub(crate) fn run(root: &Path, suite: &str) -> Result<(), String> {
    let chosen: Vec<_> = SUITES.iter().filter(|each| suite == "all" || suite == each.name).collect();
    if suite != "all" && !names().contains(&suite) {
        return Err(format!("soak: no suite `{suite}`; there are: {}, all", names().join(", ")));
    }
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get).to_string();
    let set =
        |variable: &str, otherwise: &str| std::env::var(variable).unwrap_or_else(|_| otherwise.to_owned());
    let threads = set("SIETCH_SIM_THREADS", &threads);
    let mut states = 0;
    if matches!(suite, "all" | FRESH) {
        fresh(root)?;
    }
    for Suite { name, package, file, filter, seeds, seconds } in chosen {
        let (seeds, seconds) = (set("SIETCH_SIM_SEEDS", seeds), set("SIETCH_SIM_SECONDS", seconds));
        println!(
            "== soak {name}: {package} {file}: {seeds} seeds a test, at most {seconds} s each, on {threads} threads"
        );
        let test = ["test", "--release", "-p", package, "--test", file, "--", filter];
        let environment = [
            ("SIETCH_SIM_SEEDS", &*seeds),
            ("SIETCH_SIM_SECONDS", &*seconds),
            ("SIETCH_SIM_THREADS", &*threads),
            ("SIETCH_SIM_SOAK", "1"),
            // The store's suites: each seed is a round.
            ("SIETCH_KILLS", &*seeds),
        ];
        states +=
            cargo_output(root, &[&test[..], &["--nocapture", "--test-threads=1"]].concat(), &environment)?;
    }
    for (name, command) in COMMANDS.iter().filter(|(name, _)| suite == "all" || suite == *name) {
        println!("== soak {name}: `cargo xtask`");
        command(root)?;
    }
    if states > 0 {
        println!("== soak {suite}: {states} states explored, all correct");
    }
    Ok(())
}

/// Runs all tests once, with seeds and property-test cases that differ from run to run. Plain runs
/// use the same ones each time.
fn fresh(root: &Path) -> Result<(), String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()).to_string();
    println!("== soak {FRESH}: PROPTEST_RNG_SEED={now}");
    let environment = [("SIETCH_SIM_FRESH", "1"), ("PROPTEST_RNG_SEED", &*now), ("PROPTEST_CASES", "4096")];
    cargo_output(root, &["test", "--workspace", "--locked"], &environment).map(drop)
}

/// Runs cargo, prints its output, and returns the sum of the explored states that tests report.
fn cargo_output(root: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Result<u64, String> {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut child = Command::new(program)
        .args(arguments)
        .envs(environment.iter().copied())
        .current_dir(root)
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|cause| format!("cannot start cargo: {cause}"))?;
    let mut states = 0;
    if let Some(output) = child.stdout.take() {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            println!("{line}");
            states += states_in(&line);
        }
    }
    let status = child.wait().map_err(|cause| format!("cannot wait for cargo: {cause}"))?;
    if status.success() {
        Ok(states)
    } else {
        Err(format!("`cargo {}` ended with {status}", arguments.join(" ")))
    }
}

/// The number in `... seeds, N states in ...`.
fn states_in(line: &str) -> u64 {
    let Some((before, _)) = line.split_once(" states in ") else { return 0 };
    before.rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}
