//! The test programs of the workspace, two at a time.
//!
//! 1. Cargo builds them and reports where they are ([`of_workspace`]).
//! 2. Each runs as `cargo test` runs it: in the folder of its crate, with the name of the crate in
//!    the environment. Examples in documentation are not programs; cargo runs them.
//! 3. Two run at a time ([`run`]), because half of the time a program waits: for clocks, and for
//!    other programs that it started. What a program prints goes to a file, which is printed when
//!    it ends.
//! 4. All run, also after one has failed. The error names those that failed.

use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Programs that run at a time.
const AT_A_TIME: usize = 2;

/// The folder of the tests that take longest. They are the first to run: the last program to end
/// should be a short one.
const LONGEST: &str = "cli/tests";

/// A test program that is built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    /// The folder of its crate.
    pub folder: PathBuf,
    /// The file with its `main` or its tests.
    pub source: PathBuf,
    pub path: PathBuf,
    /// The name of its crate.
    package: String,
}

impl Program {
    /// As `cargo test` would start it.
    pub(crate) fn job(&self) -> Job {
        let mut command = Command::new(&self.path);
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        command.env("CARGO_PKG_NAME", &self.package);
        Job { name: format!("{} ({})", self.source.display(), self.path.display()), command }
    }
}

/// A program that is to run.
#[derive(Debug)]
pub(crate) struct Job {
    /// What messages call it.
    pub name: String,
    pub command: Command,
}

/// The test programs of all crates, in the order in which they should run. The command names the
/// whole workspace, because cargo would build a single crate again with other features.
pub(crate) fn of_workspace(root: &Path) -> Result<Vec<Program>, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["test", "--workspace", "--no-run", "--locked", "--message-format=json"])
        .current_dir(root)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|cause| format!("cannot start cargo: {cause}"))?;
    if !output.status.success() {
        return Err(format!("`cargo test --no-run` ended with {}", output.status));
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let mut found: Vec<_> = messages.lines().filter_map(program_of).collect();
    found.sort_by_key(|program| (!program.source.starts_with(root.join(LONGEST)), program.source.clone()));
    if found.is_empty() { Err("cargo names no test program".into()) } else { Ok(found) }
}

/// The program in a line of cargo's output, if it is a test program.
fn program_of(line: &str) -> Option<Program> {
    let message: serde_json::Value = serde_json::from_str(line).ok()?;
    let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
    if !message["profile"]["test"].as_bool()? {
        return None;
    }
    // As `path+file:///folder#name@version`, without the name where it is the folder's.
    let (place, name) = message["package_id"].as_str()?.rsplit_once('#')?;
    let name = name.split_once('@').map_or_else(|| place.rsplit('/').next(), |(name, _)| Some(name));
    Some(Program {
        folder: PathBuf::from(text(&message["manifest_path"])?).parent()?.to_owned(),
        source: text(&message["target"]["src_path"])?.into(),
        path: text(&message["executable"])?.into(),
        package: name?.to_owned(),
    })
}

/// Runs all, and prints what they print, each when it has ended.
pub(crate) fn run(root: &Path, jobs: Vec<Job>) -> Result<(), String> {
    let jobs = Mutex::new(jobs.into_iter().enumerate().collect::<VecDeque<_>>());
    let failed = Mutex::new(Vec::new());
    let next = || jobs.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let work = || {
        while let Some((number, job)) = next() {
            if let Err(cause) = run_one(root, number, job) {
                failed.lock().unwrap_or_else(PoisonError::into_inner).push(cause);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(work);
        }
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
}

fn run_one(root: &Path, number: usize, Job { name, mut command }: Job) -> Result<(), String> {
    let log = root.join(format!("target/test-{number}.log"));
    let output = File::create(&log).and_then(|file| Ok((file.try_clone()?, file)));
    let (file, other) = output.map_err(|cause| format!("cannot make {}: {cause}", log.display()))?;
    let started = Instant::now();
    let status = command.stdin(Stdio::null()).stdout(file).stderr(other).status();
    let status = status.map_err(|cause| format!("cannot start {name}: {cause}"))?;
    let printed = std::fs::read(&log).map_err(|cause| format!("cannot read {}: {cause}", log.display()))?;
    // In one piece: the other program may end at the same time.
    println!("{name}: {} s\n{}", started.elapsed().as_secs(), String::from_utf8_lossy(&printed));
    if status.success() { Ok(()) } else { Err(format!("{name} ended with {status}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_names_programs() {
        let line = |id: &str, test: bool| {
            format!(
                r#"{{"package_id":"path+file:///r/{id}","manifest_path":"/r/cli/Cargo.toml",
                "target":{{"src_path":"/r/cli/tests/it/main.rs"}},
                "profile":{{"test":{test}}},"executable":"/r/target/debug/deps/it-01"}}"#
            )
        };
        let found = |package: &str| {
            Some(Program {
                folder: "/r/cli".into(),
                source: "/r/cli/tests/it/main.rs".into(),
                path: "/r/target/debug/deps/it-01".into(),
                package: package.into(),
            })
        };
        assert_eq!(program_of(&line("cli#sietch-cli@0.1.0", true)), found("sietch-cli"));
        assert_eq!(program_of(&line("xtask#0.1.0", true)), found("xtask"));
        assert_eq!(program_of(&line("cli#sietch-cli@0.1.0", false)), None);
        assert_eq!(program_of("   Compiling x v0.1.0 (/r/x)"), None);
    }

    #[test]
    fn all_run_and_those_that_fail_are_named() {
        let root = std::env::temp_dir().join(format!("sietch-programs-{}", std::process::id()));
        std::fs::create_dir_all(root.join("target")).expect("a folder");
        let job = |name: &str, script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).current_dir(&root);
            Job { name: name.into(), command }
        };
        let jobs = vec![
            job("one", "exit 3"),
            job("two", ": > two"),
            job("three", "exit 4"),
            job("four", ": > four"),
        ];
        let outcome = run(&root, jobs).expect_err("two fail");
        assert!(outcome.contains("one ended with exit status: 3"), "{outcome}");
        assert!(outcome.contains("three ended with exit status: 4"), "{outcome}");
        assert!(root.join("two").exists() && root.join("four").exists());
        std::fs::remove_dir_all(&root).expect("the folder goes");
    }
}
