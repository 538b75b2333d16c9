//! The rules of the project that no compiler checks. Each rule is a function over the files that
//! git tracks. A snapshot in its tests shows its findings.
//!
//! 1. [`layers`]: imports between crates run downwards only.
//! 2. [`cycles`]: modules of a crate import downwards only.
//! 3. [`files`]: length of files and functions, leftover to-dos, names that say nothing, ASCII,
//!    SAFETY lines, `unsafe` only where the design allows it, width of comments.
//! 4. [`links`]: every relative link in a document leads somewhere.
//! 5. [`references`]: every file and every test that a page names exists.
//! 6. [`counters`]: every counter of a `metrics.rs`, and of a log, is changed somewhere outside it,
//!    and shown.
//! 7. [`words`]: words of a private dialect, for each of which the field has a term.
//! 8. [`numbers`]: a number that a page repeats is the constant's in the code.
//! 9. [`crate::mutations`]: every comparison of the storage formats has a mutation that a test must
//!    detect.

mod counters;
mod cycles;
mod files;
mod layers;
mod links;
mod numbers;
mod references;
mod words;

use std::path::Path;

use crate::sources;

/// Applies every rule and prints each finding as `path:line: what; fix`.
pub(crate) fn run(root: &Path) -> Result<(), String> {
    let sources = sources::tracked(root)?;
    let mut findings = Vec::new();
    layers::check(&sources, &mut findings);
    cycles::check(&sources, &mut findings);
    files::check(&sources, &mut findings);
    links::check(&sources, &mut findings);
    references::check(&sources, &mut findings);
    numbers::check(&sources, &mut findings);
    words::check(&sources, &mut findings);
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

/// Prints the modules of the crate in `folder` in the order of their layers.
///
/// # Errors
///
/// git cannot list the files, or one cannot be parsed.
pub(crate) fn modules(root: &Path, folder: &str) -> Result<(), String> {
    cycles::print(&sources::tracked(root)?, folder)
}
