//! Runs cargo: the one that started this program.

use std::path::Path;
use std::process::Command;

/// Runs cargo with `arguments` and extra environment in `root`.
pub(crate) fn cargo(root: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Result<(), String> {
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

/// Builds every program of the workspace into `target/debug`, as the tests do. Any other selection
/// of packages changes the features of crates and builds most of the workspace again.
pub(crate) fn build_workspace(root: &Path) -> Result<(), String> {
    cargo(root, &["test", "--workspace", "--no-run", "--locked"], &[])
}
