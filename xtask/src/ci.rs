//! Everything that must hold before a change lands, cheapest first:
//!
//! 1. formatting and the tidy rules,
//! 2. clippy over every target, warnings are errors,
//! 3. the licences and sources of dependencies ([`crate::deny`]), where cargo-deny is installed,
//! 4. the documentation of every crate, warnings are errors,
//! 5. every test of the workspace, two programs at a time ([`crate::programs`]), and the examples
//!    in documentation. Seeds are the same each time, so that a landing fails for its own change;
//!    `cargo xtask soak` draws fresh ones. The tests that depend on privileges run once more as an
//!    ordinary user ([`crate::ordinary`]),
//! 6. the rings and doorbells under loom, rings and streams under Miri and ThreadSanitizer
//!    ([`crate::sanitizers`]) where the nightly toolchain is installed,
//! 7. instructions of the network's fast path, of durable appends and of the store's commands
//!    within their limits, under valgrind,
//! 8. the steps of a user on Debian's own kernel under QEMU ([`crate::guest`]), where QEMU is
//!    installed,
//! 9. generated files equal those that the program generates.
//!
//! Many tests wait for clocks rather than for the processor. Steps 6 and 7 measure no time, so they
//! run in the background of all from the build on, at the lowest priority ([`BackgroundStep`]). The
//! first failed step ends the run, which names it. By then all tests of that step, and the steps in
//! its background, have run.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::cargo::{build_workspace, cargo};
use crate::{deny, generate, guest, ordinary, programs, tidy};

/// Runs every step from the folder `root`.
pub(crate) fn run(root: &Path) -> Result<(), String> {
    step("format", || cargo(root, &["fmt", "--all", "--check"], &[]))?;
    step("tidy", || tidy::run(root))?;
    step("clippy", || {
        cargo(root, &["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"], &[])
    })?;
    step("dependencies", || deny::run(root, deny::Missing::Skip))?;
    let background =
        ["loom", "instructions", "miri", "threads"].map(|name| BackgroundStep::start(root, name));
    let tested = step("build", || build_workspace(root)).and_then(|()| {
        // Not beside the tests: it locks the target folder, and some of them build with cargo.
        step("doc", || doc(root))?;
        step("tests", || tests(root))?;
        step("examples", || {
            cargo(root, &["test", "--workspace", "--doc", "--locked", "--no-fail-fast"], &[])
        })?;
        step("tests as an ordinary user", || ordinary::run(root))?;
        step("guest", || guest::run(root, None))?;
        step("generated files", || generate::run(root, generate::Mode::Check))
    });
    let finished = background.into_iter().map(|step| step.and_then(BackgroundStep::finish));
    let failed: Vec<String> = [tested].into_iter().chain(finished).filter_map(Result::err).collect();
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
}

/// Every test program of the workspace.
pub(crate) fn tests(root: &Path) -> Result<(), String> {
    let programs = programs::of_workspace(root)?;
    programs::run(root, programs.iter().map(programs::Program::job).collect())
}

/// The documentation of every crate, private items included; a warning is an error.
pub(crate) fn doc(root: &Path) -> Result<(), String> {
    cargo(
        root,
        &["doc", "--workspace", "--no-deps", "--document-private-items", "--locked"],
        &[("RUSTDOCFLAGS", "-D warnings")],
    )
}

/// The rings and doorbells under loom, in a target folder of their own.
pub(crate) fn loom(root: &Path) -> Result<(), String> {
    let target = root.join("target/loom");
    cargo(
        root,
        &["test", "-p", "sietch-ring", "--test", "loom", "--release", "--locked"],
        &[("RUSTFLAGS", "--cfg loom"), ("CARGO_TARGET_DIR", &target.to_string_lossy())],
    )
}

fn step(name: &str, action: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    println!("== {name}");
    let started = Instant::now();
    action().map_err(|cause| format!("ci: {name} failed: {cause}"))?;
    println!("== {name}: ok in {} s", started.elapsed().as_secs());
    Ok(())
}

/// A step in the background: this program with another command. Its output, and the processor time
/// that it took, go to a file until the step has ended.
struct BackgroundStep {
    name: &'static str,
    /// Waits for its end; returns its status and its duration.
    waiter: JoinHandle<io::Result<(ExitStatus, Duration)>>,
    log: PathBuf,
}

impl BackgroundStep {
    fn start(root: &Path, name: &'static str) -> Result<Self, String> {
        let failed = |cause: io::Error| format!("ci: {name} failed: cannot start it with `nice`: {cause}");
        let folder = root.join("target");
        std::fs::create_dir_all(&folder).map_err(failed)?;
        let log = folder.join(format!("{name}.log"));
        let file = File::create(&log).map_err(failed)?;
        let mut command = Command::new("nice");
        command.args(["-n", "19", "bash", "-c", "time \"$0\" \"$1\""]);
        command.arg(std::env::current_exe().map_err(failed)?).arg(name);
        command.stdout(file.try_clone().map_err(failed)?).stderr(file);
        let (started, mut child) = (Instant::now(), command.spawn().map_err(failed)?);
        let waiter = std::thread::spawn(move || child.wait().map(|status| (status, started.elapsed())));
        Ok(Self { name, waiter, log })
    }

    /// Waits for its end and prints its output.
    fn finish(self) -> Result<(), String> {
        let name = self.name;
        let ended =
            self.waiter.join().map_err(|_| format!("ci: the thread that waits for {name} ended early"))?;
        let (status, time) = ended.map_err(|cause| format!("ci: cannot wait for {name}: {cause}"))?;
        let output = std::fs::read(&self.log)
            .map_err(|cause| format!("ci: cannot read {}: {cause}", self.log.display()))?;
        println!("== {name}\n{}", String::from_utf8_lossy(&output));
        if !status.success() {
            return Err(format!("ci: {name} failed: `cargo xtask {name}` ended with {status}"));
        }
        println!("== {name}: ok in {} s, beside the tests", time.as_secs());
        Ok(())
    }
}
