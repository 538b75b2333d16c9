//! The tests that depend on privileges, once more as an ordinary user.
//!
//! 1. As root, CI has just built and run them. The same programs are started again under `setpriv`,
//!    as a user without capabilities. Nothing is built a second time.
//! 2. The programs run as in [`crate::programs`], with a home and a folder for temporary files that
//!    the user may write to.
//! 3. If an ordinary user runs CI, `cargo test` has already run the tests as one, and the run
//!    prints `SKIPPED`. It does so as well if that user may not reach the build.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use crate::programs::{self, Job};

/// Crates whose tests do different things for root and for others.
const CRATES: [&str; 3] = ["device/nic", "control/daemon", "cli"];

/// Tests of other projects' programs under `sietch run`: they take most of the time, and set their
/// users themselves.
const LEFT_OUT: &str = "tests/posix/";

/// Debian's `nobody` and `nogroup`.
const USER: &str = "65534";

/// Runs the tests of [`CRATES`] as an ordinary user.
pub(crate) fn run(root: &Path) -> Result<(), String> {
    if !is_root() {
        println!("SKIPPED ordinary: not root, so `cargo test` already runs the tests as an ordinary user");
        return Ok(());
    }
    let home = std::env::temp_dir().join(format!("sietch-ordinary-{}", std::process::id()));
    let failed = |cause: std::io::Error| format!("cannot make {}: {cause}", home.display());
    std::fs::create_dir_all(&home).map_err(failed)?;
    std::fs::set_permissions(&home, std::fs::Permissions::from_mode(0o777)).map_err(failed)?;
    let outcome = jobs(root, &home).and_then(|jobs| programs::run(root, jobs));
    // Daemons of the tests may have left logs there, which are of no use after them.
    let _ = std::fs::remove_dir_all(&home);
    outcome
}

fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().any(|line| line.starts_with("Uid:") && line.split_whitespace().nth(2) == Some("0"))
}

/// The test programs of [`CRATES`], each to be started as the ordinary user.
fn jobs(root: &Path, home: &Path) -> Result<Vec<Job>, String> {
    let programs = programs::of_workspace(root)?;
    let mut jobs = Vec::new();
    for folder in CRATES.map(|name| root.join(name)) {
        let mut of_crate = programs.iter().filter(|program| program.folder == folder).peekable();
        let Some(first) = of_crate.peek() else {
            return Err(format!("cargo names no test program of {}", folder.display()));
        };
        let mut reached = Command::new("/usr/bin/test");
        reached.arg("-x").arg(&first.path);
        let reached = as_user(&reached, home).status();
        if !reached.map_err(|cause| format!("cannot start setpriv: {cause}"))?.success() {
            let (folder, path) = (folder.display(), first.path.display());
            println!("SKIPPED {folder} as an ordinary user: uid {USER} may not reach {path}");
            continue;
        }
        let wanted = of_crate.filter(|program| !program.source.to_string_lossy().contains(LEFT_OUT));
        jobs.extend(wanted.map(|program| {
            let Job { name, command } = program.job();
            Job { name: format!("uid {USER}: {name}"), command: as_user(&command, home) }
        }));
    }
    Ok(jobs)
}

/// A command, to be started as the ordinary user.
fn as_user(command: &Command, home: &Path) -> Command {
    let mut other = Command::new("setpriv");
    other.args(["--reuid", USER, "--regid", USER, "--clear-groups", "--no-new-privs", "--"]);
    other.arg(command.get_program()).args(command.get_args());
    if let Some(folder) = command.get_current_dir() {
        other.current_dir(folder);
    }
    other.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    other.env("HOME", home).env("TMPDIR", home).env_remove("XDG_RUNTIME_DIR");
    other
}
