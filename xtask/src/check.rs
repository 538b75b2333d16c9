//! The developer's loop: checks of a change that take minutes.
//!
//! 1. The changed files are those that differ from a base commit (`HEAD` unless another is given),
//!    and new ones. A file belongs to the crate whose folder is the longest prefix of its path.
//! 2. The chosen crates are the changed ones and those that depend on them directly. A file that
//!    belongs to no crate chooses none; the workspace's manifest, lock file or toolchain chooses
//!    all.
//! 3. The steps are: format and tidy, of everything; clippy and the unit tests (`--lib --bins`), of
//!    the chosen crates; the integration tests that need neither root nor minutes
//!    ([`QUICK_TESTS`]), of the changed crates.
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

/// Files of no crate on which all crates depend.
const EVERYTHING: [&str; 3] = ["Cargo.toml", "Cargo.lock", "rust-toolchain.toml"];

/// A crate of the workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Package {
    name: String,
    /// Relative to the root, with `/` at its end.
    folder: String,
    /// The crates of the workspace that it depends on, its tests included.
    dependencies: BTreeSet<String>,
    /// The names of its integration tests.
    tests: BTreeSet<String>,
    /// Whether it has a library or a program.
    has_units: bool,
}

/// The crates that a change chooses.
#[derive(Debug, Default, PartialEq, Eq)]
struct Choice {
    /// They have changed files.
    changed: BTreeSet<String>,
    /// They depend on a changed crate.
    dependents: BTreeSet<String>,
}

/// Checks the change against `base`.
pub(crate) fn run(root: &Path, base: &str) -> Result<(), String> {
    let started = Instant::now();
    let packages = packages(root)?;
    let choice = choose(&packages, &changed_files(root, base)?);
    let names = |names: &BTreeSet<String>| match names.len() {
        0 => "none".to_owned(),
        _ => names.iter().cloned().collect::<Vec<_>>().join(", "),
    };
    println!("changed since {base}: {}", names(&choice.changed));
    println!("depend on them:     {}", names(&choice.dependents));
    step("format", || cargo(root, &["fmt", "--all", "--check"], &[]))?;
    step("tidy", || tidy::run(root))?;
    let all: Vec<&Package> = packages
        .iter()
        .filter(|package| choice.changed.contains(&package.name) || choice.dependents.contains(&package.name))
        .collect();
    if !all.is_empty() {
        let chosen = selected(all.iter().copied());
        let clippy =
            [&["clippy", "--locked", "--all-targets"][..], &chosen, &["--", "-D", "warnings"]].concat();
        step("clippy", || cargo(root, &clippy, &[]))?;
    }
    let units = selected(all.iter().copied().filter(|package| package.has_units));
    if !units.is_empty() {
        let unit = [&["test", "--locked", "--quiet", "--lib", "--bins"][..], &units].concat();
        step("unit tests", || cargo(root, &unit, &[]))?;
    }
    for (package, test) in quick_tests(&packages, &choice) {
        let words = ["test", "--locked", "--quiet", "-p", package, "--test", test];
        step(&format!("{package} --test {test}"), || cargo(root, &words, &[]))?;
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

/// The options that select packages.
fn selected<'a>(packages: impl Iterator<Item = &'a Package>) -> Vec<&'a str> {
    packages.flat_map(|package| ["-p", package.name.as_str()]).collect()
}

/// The quick integration tests of changed crates.
fn quick_tests<'a>(packages: &'a [Package], choice: &Choice) -> Vec<(&'a str, &'static str)> {
    let changed = packages.iter().filter(|package| choice.changed.contains(&package.name));
    changed
        .flat_map(|package| {
            let quick = QUICK_TESTS
                .iter()
                .filter(|(name, test)| *name == package.name && package.tests.contains(*test));
            quick.map(|(_, test)| (package.name.as_str(), *test))
        })
        .collect()
}

/// The crates that a change of these files chooses.
fn choose(packages: &[Package], files: &[String]) -> Choice {
    let mut choice = Choice::default();
    if files.iter().any(|file| EVERYTHING.contains(&file.as_str())) {
        choice.changed = packages.iter().map(|package| package.name.clone()).collect();
        return choice;
    }
    for file in files {
        let owner = packages
            .iter()
            .filter(|package| file.starts_with(&package.folder))
            .max_by_key(|package| package.folder.len());
        choice.changed.extend(owner.map(|package| package.name.clone()));
    }
    choice.dependents = packages
        .iter()
        .filter(|package| !choice.changed.contains(&package.name))
        .filter(|package| !package.dependencies.is_disjoint(&choice.changed))
        .map(|package| package.name.clone())
        .collect();
    choice
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
    let names: BTreeSet<&str> = all.iter().filter_map(|package| package["name"].as_str()).collect();
    all.iter()
        .map(|package| {
            let manifest = package["manifest_path"].as_str()?.strip_prefix(root)?.strip_prefix('/')?;
            let dependencies =
                package["dependencies"].as_array()?.iter().filter_map(|each| each["name"].as_str());
            let targets = package["targets"].as_array()?;
            let is = |target: &Value, kinds: &[&str]| {
                let found = target["kind"].as_array().into_iter().flatten().filter_map(Value::as_str);
                found.into_iter().any(|kind| kinds.contains(&kind))
            };
            Some(Package {
                name: package["name"].as_str()?.to_owned(),
                folder: manifest.strip_suffix("Cargo.toml")?.to_owned(),
                dependencies: dependencies.filter(|name| names.contains(name)).map(str::to_owned).collect(),
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

    fn package(name: &str, folder: &str, dependencies: &[&str]) -> Package {
        Package {
            name: name.to_owned(),
            folder: folder.to_owned(),
            dependencies: dependencies.iter().map(|name| (*name).to_owned()).collect(),
            tests: ["it".to_owned()].into(),
            has_units: true,
        }
    }

    fn workspace() -> Vec<Package> {
        vec![
            package("ring", "foundation/ring/", &[]),
            package("posix", "api/posix/", &["ring"]),
            package("preload", "api/posix/preload/", &["posix"]),
            package("cli", "cli/", &["preload"]),
        ]
    }

    fn chosen(files: &[&str]) -> (Vec<String>, Vec<String>) {
        let files: Vec<_> = files.iter().map(|file| (*file).to_owned()).collect();
        let Choice { changed, dependents } = choose(&workspace(), &files);
        (changed.into_iter().collect(), dependents.into_iter().collect())
    }

    #[test]
    fn a_file_chooses_its_crate_and_those_that_depend_on_it() {
        let (changed, dependents) = chosen(&["foundation/ring/src/lib.rs"]);
        assert_eq!((changed, dependents), (vec!["ring".to_owned()], vec!["posix".to_owned()]));
    }

    #[test]
    fn a_crate_within_the_folder_of_another_owns_its_files() {
        let (changed, dependents) = chosen(&["api/posix/preload/src/lib.rs"]);
        assert_eq!((changed, dependents), (vec!["preload".to_owned()], vec!["cli".to_owned()]));
    }

    #[test]
    fn a_changed_crate_is_no_dependent() {
        let (changed, dependents) = chosen(&["foundation/ring/Cargo.toml", "api/posix/src/lib.rs"]);
        assert_eq!(changed, ["posix", "ring"]);
        assert_eq!(dependents, ["preload"]);
    }

    #[test]
    fn a_document_chooses_nothing_and_the_lock_file_everything() {
        assert_eq!(chosen(&["docs/posix.md", "README.md"]), (vec![], vec![]));
        assert_eq!(chosen(&["Cargo.lock", "README.md"]).0.len(), 4);
    }

    #[test]
    fn quick_tests_are_those_of_changed_crates_that_exist() {
        let mut packages = workspace();
        packages[0].name = "sietch-disk".to_owned();
        let choice =
            Choice { changed: ["sietch-disk".to_owned(), "cli".to_owned()].into(), ..Choice::default() };
        assert_eq!(quick_tests(&packages, &choice), [("sietch-disk", "it")]);
        packages[0].tests.clear();
        assert_eq!(quick_tests(&packages, &choice), []);
    }

    #[test]
    fn the_description_of_cargo_is_read() {
        let metadata = serde_json::json!({
            "workspace_root": "/w",
            "packages": [
                {
                    "name": "a", "manifest_path": "/w/x/a/Cargo.toml",
                    "dependencies": [{"name": "b"}, {"name": "serde"}],
                    "targets": [{"name": "a", "kind": ["lib"]}, {"name": "it", "kind": ["test"]}],
                },
                {"name": "b", "manifest_path": "/w/b/Cargo.toml", "dependencies": [],
                 "targets": [{"name": "b", "kind": ["bench"]}]},
            ],
        });
        let found = packages_in(&metadata).expect("two packages");
        assert_eq!(found[0], package("a", "x/a/", &["b"]));
        assert!(!found[1].has_units && found[1].tests.is_empty());
    }
}
