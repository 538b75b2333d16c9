//! Counts instructions under callgrind, and compares them with the limits in the benchmarks: of a
//! request on the network's fast path, a durable append, a command of the store, and a message of
//! an unmodified program.
//!
//! valgrind comes from the system; the runner, which must have the library's version, is installed
//! with cargo if it is missing.

use std::path::Path;
use std::process::Command;

use crate::cargo::cargo;

/// The runner's version: that of `gungraun` in Cargo.toml.
const VERSION: &str = "0.20.0";

/// Counts, and fails if a limit is exceeded.
pub(crate) fn run(root: &Path) -> Result<(), String> {
    if Command::new("valgrind").arg("--version").output().is_err() {
        return Err("instructions: valgrind is missing; install it (Debian: apt install valgrind)".into());
    }
    let installed = Command::new("gungraun-runner").arg("--version").output();
    let fits = installed.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(VERSION));
    if !fits {
        cargo(root, &["install", "gungraun-runner", "--version", VERSION, "--locked"], &[])?;
    }
    let packages = ["-p", "sietch-net", "-p", "sietch-persist", "-p", "sietch-kv", "-p", "sietch-posix"];
    let counted = [&packages[..], &["--bench", "instructions"]].concat();
    cargo(root, &[&["bench", "--locked"][..], &counted].concat(), &[])
}
