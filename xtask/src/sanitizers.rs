//! Miri and ThreadSanitizer on the rings and streams: undefined behaviour and data races that tests
//! on a processor with strong ordering do not show.
//!
//! 1. [`MIRI`] interprets the tests of `foundation/ring`. Each memory operation is checked against
//!    the aliasing and ordering rules of Rust; weak memory is simulated. Tests that would take
//!    minutes, or that need the kernel, are marked in the source (`cfg_attr(miri, ignore)`).
//! 2. [`THREADS`] runs the tests with two threads on the processor, with the standard library built
//!    for ThreadSanitizer as well.
//! 3. Both build with the seam of `foundation/ring/src/shared_memory.rs`: all ends of a stream in
//!    one process use one mapping.
//! 4. [`planted`] shows that they find something. In a copy of the tree it weakens an ordering.
//!    Each tool must report a data race. The fuzzer ([`fuzz`]) must report a copy that is too long.
//!
//! Both belong to the nightly toolchain. Without it, or without the component, a tool prints
//! `SKIPPED` and the command that installs it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{fuzz, mutations};

/// A tool: how cargo runs the tests of the rings under it.
struct Tool {
    name: &'static str,
    /// What it takes: a toolchain `nightly` that has this file or folder below its root.
    part: &'static str,
    /// How that is installed.
    component: &'static str,
    /// Arguments of cargo before the filter of the tests.
    arguments: &'static [&'static str],
    environment: &'static [(&'static str, &'static str)],
    /// Arguments of the test program.
    tests: &'static [&'static str],
}

const MIRI: Tool = Tool {
    name: "miri",
    part: "bin/cargo-miri",
    component: "miri",
    arguments: &["miri", "test", "-p", "sietch-ring", "--lib"],
    environment: &[
        // Blocks of `shared_memory` are never freed, and are found by their exposed address. Clocks
        // and `/proc` are the machine's.
        ("MIRIFLAGS", "-Zmiri-disable-isolation -Zmiri-ignore-leaks -Zmiri-permissive-provenance"),
        // A case takes as long as a thousand of them without Miri.
        ("PROPTEST_CASES", "1"),
        ("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1"),
    ],
    // Each takes seconds. The others of the crate pass as well, but for those that are marked; some
    // take minutes.
    tests: &["--test-threads=2", "channel::", "two_threads_pass", "spsc::tests::a_", "stream::tests::a_"],
};

const THREADS: Tool = Tool {
    name: "threads",
    part: "lib/rustlib/src/rust/library",
    component: "rust-src",
    arguments: &["test", "-p", "sietch-ring", "--lib", "-Zbuild-std", "--target", "x86_64-unknown-linux-gnu"],
    environment: &[("RUSTFLAGS", "-Zsanitizer=thread --cfg one_mapping"), ("CARGO_PROFILE_DEV_DEBUG", "1")],
    tests: &["threads"],
};

/// An ordering without which another processor sees an entry before its bytes: file, text and
/// replacement, and the test that both tools run.
const PLANTED: [(&str, &str, &str, &str); 2] = [
    (
        "foundation/ring/src/spsc.rs",
        "self.memory.producer().store(self.head, Ordering::Release);",
        "self.memory.producer().store(self.head, Ordering::Relaxed);",
        "two_threads_pass_entries_in_order",
    ),
    (
        "foundation/ring/src/stream/send.rs",
        "        producer.tail.store(word, Ordering::Release);",
        "        producer.tail.store(word, Ordering::Relaxed);",
        "two_threads_pass_bytes_in_order",
    ),
];

/// A copy that writes past its buffer, which AddressSanitizer must report: file, text, replacement,
/// and the fuzz target.
const PLANTED_COPY: (&str, &str, &str, &str) = (
    "foundation/ring/src/untrusted.rs",
    "copy_once(self.start.add(offset), out.as_mut_ptr(), out.len())",
    "copy_once(self.start.add(offset), out.as_mut_ptr(), out.len() + 64)",
    "frames",
);

/// Runs the tests of the rings under Miri.
pub(crate) fn miri(root: &Path) -> Result<(), String> {
    run(root, &MIRI)
}

/// Runs the tests with several threads under ThreadSanitizer.
pub(crate) fn threads(root: &Path) -> Result<(), String> {
    run(root, &THREADS)
}

fn run(root: &Path, tool: &Tool) -> Result<(), String> {
    if let Some(reason) = missing(tool) {
        println!("SKIPPED {}: {reason}", tool.name);
        return Ok(());
    }
    let status = command(root, root, tool, tool.tests)
        .status()
        .map_err(|cause| format!("{}: cannot start rustup: {cause}", tool.name))?;
    if status.success() { Ok(()) } else { Err(format!("{}: ended with {status}; see above", tool.name)) }
}

/// Weakens each ordering in a copy of the tree: both tools must report it. Then breaks a copy,
/// which the fuzzer must report.
pub(crate) fn planted(root: &Path) -> Result<(), String> {
    let tree = root.join("target/planted");
    mutations::copy(root, &tree)?;
    let mut missed = Vec::new();
    for (file, find, with, test) in PLANTED {
        let text = plant(&tree, file, find, with)?;
        for tool in [&MIRI, &THREADS] {
            if let Some(reason) = missing(tool) {
                println!("SKIPPED planted fault for {}: {reason}", tool.name);
                continue;
            }
            let found = reports_race(root, &tree, tool, test)?;
            println!(
                "{}: {}: {file}: `{}`",
                tool.name,
                if found { "detected" } else { "MISSED" },
                find.trim()
            );
            if !found {
                missed.push((tool.name, file));
            }
        }
        mutations::write(&tree.join(file), &text)?;
    }
    let (file, find, with, target) = PLANTED_COPY;
    plant(&tree, file, find, with)?;
    let program = fuzz::build(root, &tree)?;
    let found = !fuzz::fuzz(root, &program, target, 60)?;
    println!("fuzz: {}: {file}: `{find}`", if found { "detected" } else { "MISSED" });
    if !found {
        missed.push(("fuzz", file));
    }
    drop(std::fs::remove_dir_all(&tree));
    if missed.is_empty() { Ok(()) } else { Err(format!("planted: faults that no tool reported: {missed:?}")) }
}

/// Makes a change in the tree. Returns the text of the file before.
fn plant(tree: &Path, file: &str, find: &str, with: &str) -> Result<String, String> {
    let path = tree.join(file);
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    if text.matches(find).count() != 1 {
        return Err(format!("planted: {file} does not have `{find}` once; correct xtask/src/sanitizers.rs"));
    }
    mutations::write(&path, &text.replacen(find, with, 1))?;
    Ok(text)
}

fn reports_race(root: &Path, tree: &Path, tool: &Tool, test: &str) -> Result<bool, String> {
    let output = command(root, tree, tool, &[test])
        .stdin(Stdio::null())
        .output()
        .map_err(|cause| format!("{}: cannot start rustup: {cause}", tool.name))?;
    let said = [output.stdout, output.stderr].concat();
    Ok(!output.status.success() && String::from_utf8_lossy(&said).to_lowercase().contains("data race"))
}

/// The tests of the rings in `tree` under the tool; built in a folder of `root`.
fn command(root: &Path, tree: &Path, tool: &Tool, tests: &[&str]) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", "cargo"]).args(tool.arguments).arg("--").args(tests);
    command.envs(tool.environment.iter().copied());
    command.env("CARGO_TARGET_DIR", root.join("target").join(tool.name)).env_remove("CARGO");
    command.current_dir(tree);
    command
}

/// Why the tool cannot run here.
fn missing(tool: &Tool) -> Option<String> {
    let fix = format!("`rustup toolchain install nightly --component {}`", tool.component);
    let output = Command::new("rustup").args(["run", "nightly", "rustc", "--print", "sysroot"]).output();
    let root = match output {
        Ok(output) if output.status.success() => {
            PathBuf::from(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        }
        _ => return Some(format!("there is no toolchain `nightly`; {fix} installs it")),
    };
    let present = root.join(tool.part).exists();
    (!present).then(|| format!("`nightly` lacks the component {}; {fix} installs it", tool.component))
}
