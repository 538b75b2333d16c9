//! The conformance scripts under Google's packetdrill, which finds the engine in
//! `libsietch_packetdrill.so`.
//!
//! 1. The tool is neither part of this repository nor a package of Debian: its path is given, or it
//!    is in PATH. Without it the run prints `SKIPPED`.
//! 2. Every script under `sim/conformance/scripts` runs, two at once. One that takes longer than
//!    [`TIMEOUT`] has failed.
//! 3. Scripts that the tool cannot run are in a table of [`PAGE`], each with the reason. Any other
//!    failure fails the run, and so does a script of the table that passes: the table only shrinks.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

const SCRIPTS: &str = "sim/conformance/scripts";
const PAGE: &str = "sim/conformance/scripts/README.md";

/// The head of the table of exceptions.
const TABLE: &str = "| script | why packetdrill cannot run it |";

/// Seconds for one script. Time is virtual; only an unanswered packet costs packetdrill ten
/// seconds.
const TIMEOUT: &str = "90";

/// Scripts that run at once.
const WORKERS: usize = 2;

/// Runs all scripts with the tool of that path, or the one in PATH.
pub(crate) fn run(root: &Path, tool: Option<&str>) -> Result<(), String> {
    let Some(tool) = found(tool) else {
        println!(
            "SKIPPED packetdrill: there is no packetdrill in PATH; give its path: cargo xtask packetdrill FILE"
        );
        return Ok(());
    };
    crate::cargo::cargo(root, &["build", "--locked", "-p", "sietch-packetdrill"], &[])?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let library = target.join("debug/libsietch_packetdrill.so");
    let page = std::fs::read_to_string(root.join(PAGE)).map_err(|cause| format!("{PAGE}: {cause}"))?;
    let excepted = exceptions(&page);
    let mut scripts = Vec::new();
    collect(&root.join(SCRIPTS), &mut scripts);
    scripts.sort();
    let outcomes = in_parallel(&scripts, |script| one(&tool, &library, script));
    let (mut passed, mut refused, mut failed) = (0, 0, Vec::new());
    for (script, outcome) in scripts.iter().zip(outcomes) {
        let name = script.strip_prefix(root.join(SCRIPTS)).unwrap_or(script).display().to_string();
        match (outcome, excepted.get(name.as_str())) {
            (Ok(()), None) => passed += 1,
            (Ok(()), Some(_)) => {
                failed.push(format!("{name} passes now: remove it from the table of {PAGE}"))
            }
            (Err(_), Some(_)) => refused += 1,
            (Err(why), None) => failed.push(format!("{name}: {why}")),
        }
    }
    println!("packetdrill: {passed} passed, {} failed, {refused} excepted", failed.len());
    if failed.is_empty() { Ok(()) } else { Err(format!("packetdrill: {}", failed.join("\n"))) }
}

/// The tool, if there is one.
fn found(named: Option<&str>) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    match named {
        Some(path) => Path::new(path).is_file().then(|| path.into()),
        None => std::env::split_paths(&folders)
            .map(|folder| folder.join("packetdrill"))
            .find(|file| file.is_file()),
    }
}

fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            collect(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "pkt") {
            found.push(path);
        }
    }
}

/// The scripts of the page's table, with the reasons.
fn exceptions(page: &str) -> BTreeMap<&str, &str> {
    let lines = page.lines().skip_while(|line| *line != TABLE).skip(2);
    lines
        .map_while(|line| {
            let (script, why) = line.strip_prefix("| `")?.strip_suffix(" |")?.split_once("` | ")?;
            Some((script, why))
        })
        .collect()
}

/// The outcome of `action` for each script, [`WORKERS`] at once.
fn in_parallel(
    scripts: &[PathBuf],
    action: impl Fn(&Path) -> Result<(), String> + Sync,
) -> Vec<Result<(), String>> {
    let next = AtomicUsize::new(0);
    let outcomes: Vec<_> = scripts.iter().map(|_| Mutex::new(Err("it did not run".to_owned()))).collect();
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some((script, slot)) = scripts.get(at).zip(outcomes.get(at)) else { return };
                    let outcome = action(script);
                    if let Ok(mut slot) = slot.lock() {
                        *slot = outcome;
                    }
                }
            });
        }
    });
    outcomes
        .into_iter()
        .map(|outcome| outcome.into_inner().unwrap_or_else(|_| Err("it panicked".into())))
        .collect()
}

/// Runs one script.
fn one(tool: &Path, library: &Path, script: &Path) -> Result<(), String> {
    let output = Command::new("timeout")
        .args(["--kill-after=2", TIMEOUT])
        .arg(tool)
        .arg(format!("--so_filename={}", library.display()))
        .args(["--local_ip=192.168.0.1", "--remote_ip=192.0.2.1"])
        .arg(script)
        .stdin(Stdio::null())
        .output()
        .map_err(|cause| format!("cannot start timeout: {cause}"))?;
    if output.status.success() {
        return Ok(());
    }
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed);
    let first: Vec<_> = printed.lines().take(4).collect();
    Err(format!("{}: {}", output.status, first.join("\n  ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_exceptions_is_read() {
        let page = format!(
            "text\n\n{TABLE}\n| --- | --- |\n| `a/b.pkt` | two peers |\n| `c.pkt` | `x` |\n\n| `d` | e |"
        );
        let expected = BTreeMap::from([("a/b.pkt", "two peers"), ("c.pkt", "`x`")]);
        assert_eq!(exceptions(&page), expected);
        assert!(exceptions("no table").is_empty());
    }

    #[test]
    fn every_exception_names_a_script_that_exists() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let page = std::fs::read_to_string(root.join(PAGE)).expect("the page");
        let excepted = exceptions(&page);
        assert!(!excepted.is_empty());
        for script in excepted.keys() {
            assert!(root.join(SCRIPTS).join(script).is_file(), "{script}");
        }
    }
}
