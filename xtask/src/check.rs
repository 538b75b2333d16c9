//! The developer's loop: checks of a change that take minutes.
//!
//! 1. The changed files are those that differ from a base commit (`HEAD` unless another is given),
//!    and new ones. A file belongs to the crate whose folder is the longest prefix of its path. A
//!    file of no crate changes none; the workspace's manifest, lock file or toolchain changes all.
//! 2. Format, tidy and clippy check the whole workspace. Cargo compiles only the changed crates and
//!    those that depend on them, with the same features as in CI.
//! 3. Then come the unit tests of each changed crate, and its integration tests that need neither
//!    root nor minutes ([`QUICK_TESTS`]). Each crate has a command of its own, which builds what
//!    `cargo test -p CRATE` builds. A command for several crates would unite their features, and
//!    each new combination of crates would build most dependencies again.
//! 4. Each step prints its time. The first that fails ends the run.
//!
//! CI runs everything else: `cargo xtask ci`.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use serde_json::Value;

use crate::cargo::cargo;
use crate::tidy;

/// Integration tests that take seconds, by crate. Everything that is not here waits for CI.
const QUICK_TESTS: [(&str, &str); 3] =
    [("sietch-conformance", "scripts"), ("sietch-disk", "it"), ("sietch-socket", "conformance")];

/// Changed crates up to which each is tested alone. With more, one command for the workspace takes
/// less time.
const MOST_ALONE: usize = 4;

/// Files of no crate on which all crates depend.
const EVERYTHING: [&str; 3] = ["Cargo.toml", "Cargo.lock", "rust-toolchain.toml"];

/// A crate of the workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Package {
    name: String,
    /// Relative to the root, with `/` at its end.
    folder: String,
    /// The names of its integration tests.
    tests: BTreeSet<String>,
    /// Whether it has a library or a program.
    has_units: bool,
}

/// Checks the change against `base`.
pub(crate) fn run(root: &Path, base: &str) -> Result<(), String> {
    let started = Instant::now();
    let packages = packages(root)?;
    let changed = changed(&packages, &changed_files(root, base)?);
    let names: Vec<&str> = changed.iter().map(|package| package.name.as_str()).collect();
    println!(
        "changed since {base}: {}",
        if names.is_empty() { "no crate".to_owned() } else { names.join(", ") }
    );
    step("format", || cargo(root, &["fmt", "--all", "--check"], &[]))?;
    step("tidy", || tidy::run(root))?;
    let clippy = ["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"];
    step("clippy", || cargo(root, &clippy, &[]))?;
    for (name, words) in test_commands(&changed) {
        step(&name, || cargo(root, &words, &[]))?;
    }
    println!("== check: ok in {:.0} s", started.elapsed().as_secs_f64());
    Ok(())
}

fn step(name: &str, action: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    let started = Instant::now();
    let outcome = action();
    let seconds = started.elapsed().as_secs_f64();
    match outcome {
        Ok(()) => println!("== {name}: ok in {seconds:.1} s"),
        Err(cause) => return Err(format!("check: {name} failed after {seconds:.1} s: {cause}")),
    }
    Ok(())
}

/// The commands that test the changed crates, each with the name of its step.
fn test_commands<'a>(changed: &[&'a Package]) -> Vec<(String, Vec<&'a str>)> {
    let test = ["test", "--locked", "--quiet"];
    if changed.len() > MOST_ALONE {
        return vec![(
            "unit tests of all crates".to_owned(),
            [&test[..], &["--workspace", "--lib", "--bins"]].concat(),
        )];
    }
    let mut commands = Vec::new();
    for package in changed {
        let mut targets = Vec::new();
        if package.has_units {
            targets.extend(["--lib", "--bins"]);
        }
        for (name, quick) in QUICK_TESTS {
            if name == package.name && package.tests.contains(quick) {
                targets.extend(["--test", quick]);
            }
        }
        if !targets.is_empty() {
            let words = [&test[..], &["-p", package.name.as_str()], &targets].concat();
            commands.push((format!("tests of {}", package.name), words));
        }
    }
    commands
}

/// The crates to which the changed files belong.
fn changed<'a>(packages: &'a [Package], files: &[String]) -> Vec<&'a Package> {
    if files.iter().any(|file| EVERYTHING.contains(&file.as_str())) {
        return packages.iter().collect();
    }
    let owners = files.iter().filter_map(|file| {
        let holding = packages.iter().filter(|package| file.starts_with(&package.folder));
        holding.max_by_key(|package| package.folder.len()).map(|package| package.name.as_str())
    });
    let owners: BTreeSet<&str> = owners.collect();
    packages.iter().filter(|package| owners.contains(package.name.as_str())).collect()
}

/// The files that differ from `base`, and new ones.
fn changed_files(root: &Path, base: &str) -> Result<Vec<String>, String> {
    let mut files = git(root, &["diff", "--name-only", "--no-renames", base, "--"])?;
    files.extend(git(root, &["ls-files", "--others", "--exclude-standard"])?);
    Ok(files)
}

fn git(root: &Path, arguments: &[&str]) -> Result<Vec<String>, String> {
    let output = Command::new("git")
        .args(arguments)
        .current_dir(root)
        .output()
        .map_err(|cause| format!("cannot start git: {cause}"))?;
    if !output.status.success() {
        return Err(format!(
            "git {}: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        ));
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

/// The crates of the workspace, as cargo describes them.
fn packages(root: &Path) -> Result<Vec<Package>, String> {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(program)
        .args(["metadata", "--no-deps", "--locked", "--format-version", "1"])
        .current_dir(root)
        .output()
        .map_err(|cause| format!("cannot start cargo: {cause}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    let metadata =
        serde_json::from_slice(&output.stdout).map_err(|cause| format!("cargo metadata: {cause}"))?;
    packages_in(&metadata).ok_or_else(|| "cargo metadata: unknown format".to_owned())
}

fn packages_in(metadata: &Value) -> Option<Vec<Package>> {
    let root = metadata["workspace_root"].as_str()?;
    let all = metadata["packages"].as_array()?;
    all.iter()
        .map(|package| {
            let manifest = package["manifest_path"].as_str()?.strip_prefix(root)?.strip_prefix('/')?;
            let targets = package["targets"].as_array()?;
            let is = |target: &Value, kinds: &[&str]| {
                let found = target["kind"].as_array().into_iter().flatten().filter_map(Value::as_str);
                found.into_iter().any(|kind| kinds.contains(&kind))
            };
            Some(Package {
                name: package["name"].as_str()?.to_owned(),
                folder: manifest.strip_suffix("Cargo.toml")?.to_owned(),
                tests: targets
                    .iter()
                    .filter(|target| is(target, &["test"]))
                    .filter_map(|target| target["name"].as_str().map(str::to_owned))
                    .collect(),
                has_units: targets.iter().any(|target| is(target, &["lib", "bin", "cdylib", "proc-macro"])),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, folder: &str) -> Package {
        Package {
            name: name.to_owned(),
            folder: folder.to_owned(),
            tests: ["it".to_owned()].into(),
            has_units: true,
        }
    }

    fn workspace() -> Vec<Package> {
        vec![
            package("sietch-disk", "device/disk/"),
            package("posix", "api/posix/"),
            package("preload", "api/posix/preload/"),
            package("cli", "cli/"),
            package("sim", "sim/"),
        ]
    }

    /// The commands for a change of these files, one a line.
    fn commands(packages: &[Package], files: &[&str]) -> String {
        let files: Vec<_> = files.iter().map(|file| (*file).to_owned()).collect();
        let commands = test_commands(&changed(packages, &files));
        commands.iter().map(|(name, words)| format!("{name}: cargo {}\n", words.join(" "))).collect()
    }

    #[test]
    fn each_changed_crate_is_tested_alone_with_its_quick_tests() {
        let files = ["api/posix/preload/src/lib.rs", "device/disk/Cargo.toml", "docs/posix.md"];
        insta::assert_snapshot!(commands(&workspace(), &files), @r"
        tests of sietch-disk: cargo test --locked --quiet -p sietch-disk --lib --bins --test it
        tests of preload: cargo test --locked --quiet -p preload --lib --bins
        ");
    }

    #[test]
    fn targets_that_do_not_exist_are_not_tested() {
        let mut packages = workspace();
        packages[0].tests.clear();
        packages[0].has_units = false;
        assert_eq!(commands(&packages, &["device/disk/src/lib.rs"]), "");
        assert_eq!(commands(&packages, &["docs/posix.md", "README.md"]), "");
    }

    #[test]
    fn the_lock_file_changes_all_crates_which_are_tested_together() {
        assert_eq!(
            commands(&workspace(), &["Cargo.lock"]),
            "unit tests of all crates: cargo test --locked --quiet --workspace --lib --bins\n"
        );
    }

    #[test]
    fn the_description_of_cargo_is_read() {
        let metadata = serde_json::json!({
            "workspace_root": "/w",
            "packages": [
                {
                    "name": "a", "manifest_path": "/w/x/a/Cargo.toml",
                    "targets": [{"name": "a", "kind": ["lib"]}, {"name": "it", "kind": ["test"]}],
                },
                {"name": "b", "manifest_path": "/w/b/Cargo.toml",
                 "targets": [{"name": "b", "kind": ["bench"]}]},
            ],
        });
        let found = packages_in(&metadata).expect("two packages");
        assert_eq!(found[0], package("a", "x/a/"));
        assert!(!found[1].has_units && found[1].tests.is_empty());
    }
}
