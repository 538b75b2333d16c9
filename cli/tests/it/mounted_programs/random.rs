//! Random programs of calls on files: in CI the same ones each time, fresh ones in `cargo xtask
//! soak files` (`SIETCH_SIM_SOAK`).
//!
//! `SIETCH_SIM_SEEDS` programs at most, for `SIETCH_SIM_SECONDS` at most; `SIETCH_POSIX_SEED` is
//! the first seed, for one that failed.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use sietch_posix_oracle::session::Setting;
use sietch_posix_oracle::suite::{Demand, Subject, Suite};
use sietch_sim::seeds;

use super::{Served, library};

/// The first seed of CI, and how many follow.
const FIRST: u64 = 30_000_000;
const PROGRAMS: u64 = 100;

fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// Builds the executor, into the folder of this test program, and returns its path.
fn executor() -> PathBuf {
    let folder = Path::new(env!("CARGO_BIN_EXE_sietch")).parent().expect("a folder").to_owned();
    let mut command = Command::new(env!("CARGO"));
    command.args(["build", "--quiet", "--package", "sietch-posix-oracle", "--bins", "--locked"]);
    command.arg("--target-dir").arg(folder.parent().expect("a target folder"));
    if folder.file_name().is_some_and(|name| name == "release") {
        command.arg("--release");
    }
    let status =
        command.stdin(Stdio::null()).current_dir(env!("CARGO_MANIFEST_DIR")).status().expect("cargo");
    assert!(status.success(), "the executor cannot be built: {status}");
    folder.join("sietch-socket-calls")
}

/// Runs programs in memory and on the mount, there under the library if `calls` says after how many
/// calls it takes a file.
fn compare(name: &str, calls: Option<u32>, programs: u64) {
    let Some(served) = Served::start(name) else { return };
    let kernel = Setting { folder: Some(served.testbed.folder.join("shm")), ..Setting::plain(&executor()) };
    let folder = Some(served.testbed.folder.join("mnt"));
    let shim = match calls {
        None => Setting { folder, ..kernel.clone() },
        Some(calls) => Setting {
            executor: env!("CARGO_BIN_EXE_sietch").into(),
            arguments: [
                "run".as_ref(),
                "--sockets".as_ref(),
                served.testbed.folder.join("no.sock").as_os_str(),
                "--fs".as_ref(),
                served.testbed.folder.join("mnt").as_os_str(),
                "--".as_ref(),
                kernel.executor.as_os_str(),
            ]
            .map(ToOwned::to_owned)
            .to_vec(),
            environment: vec![
                ("SIETCH_FILES_CALLS".into(), calls.to_string().into()),
                ("SIETCH_PRELOAD".into(), library().into()),
            ],
            folder,
        },
    };
    let suite = Suite {
        kernel,
        shim,
        subject: Subject::Files,
        seed: number("SIETCH_POSIX_SEED", seeds::first(FIRST)),
        programs: number("SIETCH_SIM_SEEDS", programs),
        time: Duration::from_secs(number("SIETCH_SIM_SECONDS", 60)),
        demand: Demand::Same,
        workers: 2,
        except: &[],
    };
    let summary = suite.run(2).expect("executors");
    println!(
        "{} programs, {} steps; {} undetermined, {} differed once",
        summary.programs, summary.steps, summary.undetermined, summary.once
    );
    assert!(summary.failures.is_empty(), "{}", summary.failures.join("\n"));
    let doubtful = summary.undetermined + summary.once;
    assert!(doubtful * 20 <= summary.programs, "of {} programs {doubtful} are in doubt", summary.programs);
}

#[test]
fn random_programs_behave_on_a_mount_as_in_memory() {
    compare("random-mount", None, PROGRAMS / 3);
}

#[test]
fn random_programs_behave_under_the_library_as_in_memory() {
    compare("random-first", Some(1), PROGRAMS);
}

#[test]
fn random_programs_behave_where_the_library_takes_files_late() {
    compare("random-late", Some(3), PROGRAMS / 2);
}
