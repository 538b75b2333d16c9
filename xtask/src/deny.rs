//! The rules for dependencies, checked by cargo-deny as `deny.toml` says.
//!
//! 1. *licenses*, *bans* (duplicate versions, wildcards) and *sources* read the lock
//!    file and the manifests. They need no network once cargo has fetched the crates.
//! 2. *advisories* compares the lock file with the RustSec database, which cargo-deny fetches from
//!    GitHub. Where it cannot be fetched, the step prints `SKIPPED`.
//!
//! CI runs it where cargo-deny is installed. `cargo xtask deny --install` installs it, which takes
//! some minutes.

use std::path::Path;
use std::process::Command;

use crate::cargo::cargo;

/// The version that `--install` installs: its configuration is the one of `deny.toml`.
const VERSION: &str = "0.20.2";

/// The output of cargo-deny if the advisory database cannot be fetched.
const UNREACHABLE: [&str; 3] = [
    "failed to fetch advisory database",
    "unable to load advisory database",
    "failed to load advisory database",
];

/// Whether a missing cargo-deny is installed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    /// It is installed with cargo.
    Install,
    /// The step prints `SKIPPED`.
    Skip,
}

/// Runs every check. Fails if one of them has a finding.
pub(crate) fn run(root: &Path, missing: Missing) -> Result<(), String> {
    if !is_installed() {
        if missing == Missing::Skip {
            println!("SKIPPED deny: there is no cargo-deny; `cargo xtask deny --install` installs it");
            return Ok(());
        }
        cargo(root, &["install", "cargo-deny", "--version", VERSION, "--locked"], &[])?;
    }
    for check in ["licenses", "bans", "sources"] {
        cargo(root, &["deny", "--locked", "check", "--hide-inclusion-graph", check], &[])
            .map_err(|_| format!("deny: {check}: see above, and deny.toml"))?;
    }
    let advisories = advisories(root)?;
    println!("deny: checked licenses, bans, sources; advisories: {advisories}");
    Ok(())
}

fn is_installed() -> bool {
    Command::new("cargo-deny").arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Checks advisories. Returns what to print of it.
fn advisories(root: &Path) -> Result<&'static str, String> {
    let output = Command::new("cargo-deny")
        .args(["--locked", "check", "advisories"])
        .current_dir(root)
        .output()
        .map_err(|cause| format!("cannot start cargo-deny: {cause}"))?;
    if output.status.success() {
        return Ok("checked");
    }
    let printed = String::from_utf8_lossy(&output.stderr);
    if is_unreachable(&printed) {
        return Ok("SKIPPED, because the database cannot be fetched");
    }
    Err(format!("deny: advisories: {}", printed.trim()))
}

fn is_unreachable(printed: &str) -> bool {
    UNREACHABLE.iter().any(|text| printed.contains(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreachable_database_is_no_finding() {
        assert!(is_unreachable("2026-01-01 [ERROR] failed to fetch advisory database https://x: timed out"));
        assert!(!is_unreachable("error[vulnerability]: use after free"));
    }
}
