//! The files that git tracks, for the rules that read them.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A file that git tracks, or a new one that is not ignored, with its text.
pub(crate) struct SourceFile {
    /// Path relative to the root, with `/`.
    pub(crate) path: String,
    /// The whole text.
    pub(crate) text: String,
}

/// Every text file of the checkout at `root`: tracked, or new and not ignored.
///
/// # Errors
///
/// git cannot be started, or fails.
pub(crate) fn tracked(root: &Path) -> Result<Vec<SourceFile>, String> {
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
        // A file that was deleted in the working tree, or that is not text, is skipped.
        if let Ok(text) = std::fs::read_to_string(root.join(PathBuf::from(&path))) {
            sources.push(SourceFile { path, text });
        }
    }
    Ok(sources)
}
