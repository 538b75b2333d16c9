//! The tests that depend on privileges, once more as an ordinary user.
//!
//! 1. As root, CI has just built and run them. The same programs are started again under `setpriv`,
//!    as a user without capabilities. Nothing is built a second time.
//! 2. Cargo reports where the programs are. They run in the folder of their crate, with their own
//!    home and folder for temporary files.
//! 3. If an ordinary user runs CI, `cargo test` has already run the tests as one, and the run
//!    prints `SKIPPED`. It does so as well if that user may not reach the build.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Crates whose tests do different things for root and for others.
const CRATES: [&str; 3] = ["device/nic", "control/daemon", "cli"];

/// Tests of other projects' programs under `sietch run`: they take most of the time, and set their
/// users themselves.
const LEFT_OUT: &str = "tests/posix/";

/// Debian's `nobody` and `nogroup`.
const USER: &str = "65534";

/// Runs the tests of [`CRATES`] as an ordinary user.
pub(crate) fn run(root: &Path) -> Result<(), String> {
    if !is_root() {
        println!("SKIPPED ordinary: not root, so `cargo test` already runs the tests as an ordinary user");
        return Ok(());
    }
    let home = std::env::temp_dir().join(format!("sietch-ordinary-{}", std::process::id()));
    let failed = |cause: std::io::Error| format!("cannot make {}: {cause}", home.display());
    std::fs::create_dir_all(&home).map_err(failed)?;
    std::fs::set_permissions(&home, std::fs::Permissions::from_mode(0o777)).map_err(failed)?;
    let outcome = programs(root).and_then(|programs| {
        let all = CRATES.iter().filter_map(|name| of_crate(&root.join(name), &programs, &home).err());
        let failed: Vec<_> = all.collect();
        if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
    });
    // Daemons of the tests may have left logs there, which are of no use after them.
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

fn of_crate(folder: &Path, programs: &[(PathBuf, PathBuf)], home: &Path) -> Result<(), String> {
    let (mut count, mut failed) = (0, Vec::new());
    for (_, program) in programs.iter().filter(|(of, _)| of == folder) {
        let reached = as_user(Path::new("/usr/bin/test"), home).arg("-x").arg(program).status();
        if !reached.map_err(|cause| format!("cannot start setpriv: {cause}"))?.success() {
            println!(
                "SKIPPED {} as an ordinary user: uid {USER} may not reach {}",
                folder.display(),
                program.display()
            );
            return Ok(());
        }
        println!("uid {USER}: {}", program.display());
        let status = as_user(program, home).current_dir(folder).status();
        let status = status.map_err(|cause| format!("cannot start {}: {cause}", program.display()))?;
        if !status.success() {
            failed.push(format!("{} ended with {status} as uid {USER}", program.display()));
        }
        count += 1;
    }
    if count == 0 {
        failed.push(format!("cargo names no test program of {}", folder.display()));
    }
    if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
}

/// The test programs that are already built: the folder of their crate, and their paths. The
/// command names the whole workspace, because cargo would build a single crate again with other
/// features.
fn programs(root: &Path) -> Result<Vec<(PathBuf, PathBuf)>, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["test", "--workspace", "--no-run", "--locked", "--message-format=json"])
        .current_dir(root)
        .stderr(std::process::Stdio::inherit())
        .output()
        .map_err(|cause| format!("cannot start cargo: {cause}"))?;
    if !output.status.success() {
        return Err(format!("`cargo test --no-run` ended with {}", output.status));
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let found: Vec<_> = messages.lines().filter_map(program_of).collect();
    if found.is_empty() { Err("cargo names no test program".into()) } else { Ok(found) }
}

/// The folder of the crate and the program in a line of cargo's output, if it is a test program.
fn program_of(line: &str) -> Option<(PathBuf, PathBuf)> {
    let message: serde_json::Value = serde_json::from_str(line).ok()?;
    let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
    let is_test = message["profile"]["test"].as_bool()?;
    let source = text(&message["target"]["src_path"])?;
    let folder = PathBuf::from(text(&message["manifest_path"])?).parent()?.to_owned();
    (is_test && !source.contains(LEFT_OUT)).then_some((folder, text(&message["executable"])?.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_names_programs() {
        let line = |source: &str, test: bool| {
            format!(
                r#"{{"manifest_path":"/r/cli/Cargo.toml","target":{{"src_path":"/r/cli/{source}"}},
                "profile":{{"test":{test}}},"executable":"/r/target/debug/deps/it-01"}}"#
            )
        };
        let found = Some(("/r/cli".into(), "/r/target/debug/deps/it-01".into()));
        assert_eq!(program_of(&line("tests/it/main.rs", true)), found);
        assert_eq!(program_of(&line("src/main.rs", true)), found);
        assert_eq!(program_of(&line("src/main.rs", false)), None);
        assert_eq!(program_of(&line("tests/posix/main.rs", true)), None);
        assert_eq!(program_of("   Compiling x v0.1.0 (/r/x)"), None);
    }
}
