//! The rules of the house that no compiler checks. Each rule is one function over the files git
//! tracks and has a test of its own that shows it firing.
//!
//! 1. [`floors`]: imports between crates run downwards only.
//! 2. [`files`]: length of files and functions, leftover to-dos, names that say nothing, ASCII,
//!    SAFETY lines, `unsafe` only where the design allows it.
//! 3. [`links`]: every relative link in a document leads somewhere.
//! 4. [`promises`]: every file and test that a page names in passing exists.
//! 5. [`counters`]: every counter of a `metrics.rs`, and of a log, is changed somewhere outside it,
//!    and shown.
//! 6. [`crate::mutations`]: every comparison of the storage formats has a mutation that a test must
//!    notice.

mod counters;
mod files;
mod floors;
mod links;
mod promises;

use std::path::{Path, PathBuf};
use std::process::Command;

/// A file that git tracks (or would, were it added), with its text.
pub struct SourceFile {
    /// Path relative to the root, with `/`.
    pub path: String,
    /// The whole text.
    pub text: String,
}

/// Applies every rule and prints each finding as `path:line: what; mend`.
pub fn run(root: &Path) -> Result<(), String> {
    let sources = tracked(root)?;
    let mut findings = Vec::new();
    floors::check(&sources, &mut findings);
    files::check(&sources, &mut findings);
    links::check(&sources, &mut findings);
    promises::check(&sources, &mut findings);
    counters::check(&sources, &mut findings);
    crate::mutations::check(&sources, &mut findings);
    if findings.is_empty() {
        return Ok(());
    }
    findings.sort();
    for finding in &findings {
        eprintln!("{finding}");
    }
    Err(format!("tidy: {} findings", findings.len()))
}

fn tracked(root: &Path) -> Result<Vec<SourceFile>, String> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"])
        .current_dir(root)
        .output()
        .map_err(|cause| format!("cannot start git: {cause}"))?;
    if !output.status.success() {
        return Err(format!("git ls-files: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let mut sources = Vec::new();
    for name in output.stdout.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let path = String::from_utf8_lossy(name).into_owned();
        // A file deleted in the working tree, or one that is no text, has no style.
        if let Ok(text) = std::fs::read_to_string(root.join(PathBuf::from(&path))) {
            sources.push(SourceFile { path, text });
        }
    }
    Ok(sources)
}
