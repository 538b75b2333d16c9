//! The tests of what depends on privileges, once more as an ordinary user.
//!
//! 1. As root, CI has just built and run them; the same programs are started again under `setpriv`, as a user without capabilities. Nothing is
//!    built a second time.
//! 2. Cargo says where the programs are. They run in the folder of their crate, with a home and a folder for temporary files of their own.
//! 3. Run by an ordinary user, CI has done this already. A user who may not reach the build is no failure of the tests: that says `SKIPPED`.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Crates whose tests do different things for root and for others.
const CRATES: [(&str, &str); 3] =
    [("sietch-nic", "device/nic"), ("sietch-daemon", "control/daemon"), ("sietch-cli", "cli")];

/// Programs of others under `sietch run`: they take most of the time, and set their users themselves.
const LEFT_OUT: &str = "tests/posix/";

/// Nobody's: Debian's `nobody` and `nogroup`.
const USER: &str = "65534";

/// Runs the tests of [`CRATES`] as an ordinary user.
pub fn run(root: &Path) -> Result<(), String> {
    if !is_root() {
        println!("the tests have just run as an ordinary user");
        return Ok(());
    }
    let home = std::env::temp_dir().join(format!("sietch-ordinary-{}", std::process::id()));
    let failed = |cause: std::io::Error| format!("cannot make {}: {cause}", home.display());
    std::fs::create_dir_all(&home).map_err(failed)?;
    std::fs::set_permissions(&home, std::fs::Permissions::from_mode(0o777)).map_err(failed)?;
    let outcome =
        CRATES.iter().try_for_each(|(name, folder)| of_crate(root, name, &root.join(folder), &home));
    // Daemons of the tests may have left logs there, which are of no use without them.
    let _ = std::fs::remove_dir_all(&home);
    outcome
}

fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().any(|line| line.starts_with("Uid:") && line.split_whitespace().nth(2) == Some("0"))
}

/// A command as the ordinary user.
fn as_user(program: &Path, home: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid", USER, "--regid", USER, "--clear-groups", "--no-new-privs", "--"])
        .arg(program)
        .env("HOME", home)
        .env("TMPDIR", home)
        .env_remove("XDG_RUNTIME_DIR");
    command
}

fn of_crate(root: &Path, name: &str, folder: &Path, home: &Path) -> Result<(), String> {
    for program in programs(root, name)? {
        let reached = as_user(Path::new("/usr/bin/test"), home).arg("-x").arg(&program).status();
        if !reached.map_err(|cause| format!("cannot start setpriv: {cause}"))?.success() {
            println!("SKIPPED {name} as an ordinary user: uid {USER} may not reach {}", program.display());
            return Ok(());
        }
        println!("uid {USER}: {}", program.display());
        let status = as_user(&program, home).current_dir(folder).status();
        let status = status.map_err(|cause| format!("cannot start {}: {cause}", program.display()))?;
        if !status.success() {
            return Err(format!("{} ended with {status} as uid {USER}", program.display()));
        }
    }
    Ok(())
}

/// The test programs of a crate, which are built already.
fn programs(root: &Path, name: &str) -> Result<Vec<PathBuf>, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["test", "--no-run", "--locked", "-p", name])
        .current_dir(root)
        .output()
        .map_err(|cause| format!("cannot start cargo: {cause}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("`cargo test --no-run -p {name}` ended with {}: {said}", output.status));
    }
    let found: Vec<PathBuf> = said.lines().filter_map(|line| program_of(root, line)).collect();
    if found.is_empty() { Err(format!("cargo names no test program of {name}: {said}")) } else { Ok(found) }
}

/// `Executable tests/up.rs (target/debug/deps/up-0123456789abcdef)`
fn program_of(root: &Path, line: &str) -> Option<PathBuf> {
    let line = line.trim().strip_prefix("Executable ")?;
    let (source, program) = line.strip_suffix(')')?.split_once(" (")?;
    (!source.starts_with(LEFT_OUT)).then(|| root.join(program))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_names_programs() {
        let root = Path::new("/r");
        let line = "  Executable tests/up.rs (target/debug/deps/up-01)";
        assert_eq!(program_of(root, line), Some("/r/target/debug/deps/up-01".into()));
        let unit = "  Executable unittests src/lib.rs (target/debug/deps/x-01)";
        assert_eq!(program_of(root, unit), Some("/r/target/debug/deps/x-01".into()));
        assert_eq!(program_of(root, "  Executable tests/posix/main.rs (target/debug/deps/p-01)"), None);
        assert_eq!(program_of(root, "   Compiling x v0.1.0 (/r/x)"), None);
    }
}
