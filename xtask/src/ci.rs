//! What must hold before a change lands, cheapest first:
//!
//! 1. formatting and the tidy rules,
//! 2. clippy over every target, warnings are errors,
//! 3. every test of the workspace, with the same seeds each time: a landing fails for what it changes (fresh ones are for `cargo xtask soak`),
//!    those that depend on privileges once more as an ordinary user ([`crate::ordinary`]),
//! 4. the rings and doorbells under loom,
//! 5. instructions of the network's fast path, of durable appends and of the store's commands within their limits, under valgrind,
//! 6. what a user would do, on Debian's own kernel under QEMU ([`crate::guest`]), where there is QEMU,
//! 7. generated files are what the program would generate.
//!
//! A step that fails ends the run, with its name; the tests and programs of that step have all run by then.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use crate::{generate, guest, instructions, ordinary, tidy};

/// Runs every step from the folder `root`.
pub fn run(root: &Path) -> Result<(), String> {
    step("format", || cargo(root, &["fmt", "--all", "--check"], &[]))?;
    step("tidy", || tidy::run(root))?;
    step("clippy", || {
        cargo(root, &["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"], &[])
    })?;
    step("tests", || cargo(root, &["test", "--workspace", "--locked", "--no-fail-fast"], &[]))?;
    step("tests as an ordinary user", || ordinary::run(root))?;
    step("loom", || {
        let target = root.join("target/loom");
        cargo(
            root,
            &["test", "-p", "sietch-ring", "--test", "loom", "--release", "--locked"],
            &[("RUSTFLAGS", "--cfg loom"), ("CARGO_TARGET_DIR", &target.to_string_lossy())],
        )
    })?;
    step("instructions", || instructions::run(root))?;
    step("guest", || guest::run(root, None))?;
    step("generated files", || generate::run(root, generate::Mode::Check))
}

fn step(name: &str, action: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    println!("== {name}");
    let started = Instant::now();
    action().map_err(|cause| format!("ci: {name} failed: {cause}"))?;
    println!("== {name}: ok in {} s", started.elapsed().as_secs());
    Ok(())
}

/// Runs cargo with `arguments` and extra environment in `root`.
pub fn cargo(root: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Result<(), String> {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(program)
        .args(arguments)
        .envs(environment.iter().copied())
        .current_dir(root)
        .status()
        .map_err(|cause| format!("cannot start cargo: {cause}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("`cargo {}` ended with {status}", arguments.join(" ")))
    }
}
