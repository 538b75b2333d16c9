//! Generated files: man pages and shell completions, which the program itself writes into
//! `docs/generated`.
//!
//! They are committed so that a reader and a packager find them. [`Mode::Check`] compares them with
//! what the program generates.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cargo::build_workspace;

/// Where the generated files live, below the root of the workspace.
const FOLDER: &str = "docs/generated";

/// Shells with completions.
const SHELLS: [&str; 3] = ["bash", "zsh", "fish"];

/// What to do with the generated files.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Replace the committed files.
    Write,
    /// Compare with the committed files.
    Check,
}

/// Generates every file and writes or compares it.
pub(crate) fn run(root: &Path, mode: Mode) -> Result<(), String> {
    let scratch = root.join("target/generated");
    remove(&scratch)?;
    produce(root, &scratch)?;
    let folder = root.join(FOLDER);
    if mode == Mode::Write {
        remove(&folder)?;
        for (name, text) in read_tree(&scratch)? {
            let path = folder.join(name);
            let parent = path.parent().unwrap_or(&folder).to_owned();
            std::fs::create_dir_all(&parent).map_err(|e| format!("cannot make {}: {e}", parent.display()))?;
            std::fs::write(&path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
        }
        return Ok(());
    }
    let (fresh, committed) = (read_tree(&scratch)?, read_tree(&folder)?);
    let stale: Vec<String> = fresh
        .keys()
        .chain(committed.keys())
        .filter(|name| fresh.get(*name) != committed.get(*name))
        .map(|name| name.display().to_string())
        .collect();
    if stale.is_empty() {
        return Ok(());
    }
    Err(format!("out of date in {FOLDER}: {}; run `cargo xtask generate` and commit", stale.join(", ")))
}

fn remove(folder: &Path) -> Result<(), String> {
    match std::fs::remove_dir_all(folder) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(format!("cannot remove {}: {e}", folder.display())),
    }
}

/// Runs the program so that it writes its pages below `folder`.
fn produce(root: &Path, folder: &Path) -> Result<(), String> {
    let man = folder.join("man");
    let completions = folder.join("completions");
    for made in [&man, &completions] {
        std::fs::create_dir_all(made).map_err(|e| format!("cannot make {}: {e}", made.display()))?;
    }
    build_workspace(root)?;
    sietch(root, &["man", &man.to_string_lossy()])?;
    for shell in SHELLS {
        let text = sietch(root, &["completions", shell])?;
        let path = completions.join(format!("sietch.{shell}"));
        std::fs::write(&path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
    }
    Ok(())
}

fn sietch(root: &Path, arguments: &[&str]) -> Result<Vec<u8>, String> {
    let program = root.join("target/debug/sietch");
    let output = Command::new(&program)
        .args(arguments)
        .current_dir(root)
        .output()
        .map_err(|cause| format!("cannot start {}: {cause}", program.display()))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    Err(format!(
        "`sietch {}` ended with {}: {}",
        arguments.join(" "),
        output.status,
        String::from_utf8_lossy(&output.stderr)
    ))
}

/// Every file below `folder`, by its path relative to it. A folder that does not exist is empty.
fn read_tree(folder: &Path) -> Result<BTreeMap<PathBuf, Vec<u8>>, String> {
    let mut files = BTreeMap::new();
    let mut pending = vec![folder.to_owned()];
    while let Some(current) = pending.pop() {
        let Ok(entries) = std::fs::read_dir(&current) else {
            continue;
        };
        for entry in entries.flatten() {
            let path = entry.path();
            if path.is_dir() {
                pending.push(path);
                continue;
            }
            let text = std::fs::read(&path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
            let name = path.strip_prefix(folder).unwrap_or(&path).to_owned();
            files.insert(name, text);
        }
    }
    Ok(files)
}
