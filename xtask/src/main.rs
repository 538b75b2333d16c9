//! Chores of the project. `cargo xtask` without arguments prints the commands.
#![forbid(unsafe_code)]

mod cargo;
mod check;
mod ci;
mod deny;
mod fuzz;
mod generate;
mod guest;
mod instructions;
mod mutations;
mod ordinary;
mod packetdrill;
mod programs;
mod sanitizers;
mod soak;
mod sources;
mod suites;
mod tidy;
mod vtc;

use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  check [BASE]     format, tidy, clippy, and quick tests of the crates that changed since BASE (default HEAD)
  ci               everything that must hold before a change lands; .ci/run installs what it needs, then runs it
  deny [--install] checks licences, duplicate versions, sources and advisories of the dependencies;
                   --install installs cargo-deny
  doc              builds the documentation of every crate, private items included; a warning is an error
  fuzz [TARGET [SECONDS]]
                   fuzzes the parsers of foreign bytes, guided by coverage, with AddressSanitizer
  fuzz keep        adds the inputs that reached new code to sim/fuzz/corpus
  generate         writes the man pages and shell completions of docs/generated
  guest [PACKAGE]  tries Sietch in a guest under QEMU, on Debian's own kernel or on that of PACKAGE
  instructions     counts the instructions of the fast paths and compares them with limits (needs valgrind)
  loom             tests rings and doorbells under every order of their threads' steps
  miri             interprets the tests of rings and streams under Miri (needs the nightly toolchain)
  modules CRATE    prints the files of a crate (its folder) in the order of their layers, with their imports
  mutations [TEXT] removes each comparison of the storage formats, or those whose text or file contains TEXT:
                   a test must fail
  ordinary         runs the tests that depend on privileges as an ordinary user (needs root)
  packetdrill [FILE]
                   runs the conformance scripts under Google's packetdrill: FILE, or the one in PATH
  planted          plants faults in a copy of the tree: miri, threads and fuzz must report them
  soak [SUITE]     long runs with fresh seeds: fresh, net, storage, kv, fuzz, interop, posix, files, fs, sanitizers,
                   mutations, packetdrill, foreign, or all (default)
  suites [MODULE]  runs CPython's socket tests, or one module, on the kernel and under `sietch run` (needs root)
  suites vtc FOLDER TESTER...
                   runs the .vtc files below FOLDER with a command (varnishtest or vtest) in the same ways
  tests            runs every test of the workspace, two programs at a time
  threads          runs the tests with several threads under ThreadSanitizer (needs the nightly toolchain)
  tidy             checks the rules that no compiler checks";

fn main() -> ExitCode {
    if guest::inside::is_this() {
        guest::inside::run();
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments.as_slice() {
        ["check"] => check::run(&root(), "HEAD"),
        ["check", base] => check::run(&root(), base),
        ["ci"] => ci::run(&root()),
        ["deny"] => deny::run(&root(), deny::Missing::Skip),
        ["deny", "--install"] => deny::run(&root(), deny::Missing::Install),
        ["tidy"] => tidy::run(&root()),
        ["modules", folder] => tidy::modules(&root(), folder),
        ["fuzz"] => fuzz::run(&root(), None, fuzz::SECONDS),
        ["fuzz", "keep"] => fuzz::keep(&root()),
        ["fuzz", target] => fuzz::run(&root(), Some(target), 60),
        ["fuzz", target, seconds] => seconds
            .parse()
            .map_err(|_| format!("{seconds}: not a number of seconds"))
            .and_then(|seconds| fuzz::run(&root(), Some(target), seconds)),
        ["generate"] => generate::run(&root(), generate::Mode::Write),
        ["guest"] => guest::run(&root(), None),
        ["guest", package] => guest::run(&root(), Some(package)),
        ["loom"] => ci::loom(&root()),
        ["miri"] => sanitizers::miri(&root()),
        ["tests"] => ci::tests(&root()),
        ["threads"] => sanitizers::threads(&root()),
        ["planted"] => sanitizers::planted(&root()),
        ["doc"] => ci::doc(&root()),
        ["instructions"] => instructions::run(&root()),
        ["mutations"] => mutations::run(&root(), ""),
        ["mutations", filter] => mutations::run(&root(), filter),
        ["ordinary"] => ordinary::run(&root()),
        ["packetdrill"] => packetdrill::run(&root(), None),
        ["packetdrill", tool] => packetdrill::run(&root(), Some(tool)),
        ["suites"] => suites::run(&root(), None),
        ["suites", "vtc", folder, tester @ ..] if !tester.is_empty() => vtc::run(&root(), folder, tester),
        ["suites", module] => suites::run(&root(), Some(module)),
        ["soak"] => soak::run(&root(), "all"),
        ["soak", suite] => soak::run(&root(), suite),
        _ => Err(USAGE.to_owned()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

/// The root of the workspace: the parent of this crate's folder.
fn root() -> PathBuf {
    let mut root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.pop();
    root
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usage_names_every_soak_suite() {
        let at = USAGE.find("  soak [SUITE]").expect("a line of soak");
        let text = &USAGE[at..USAGE.find("  suites [MODULE]").expect("the next line")];
        for suite in soak::names() {
            assert!(text.contains(suite), "{suite} is not in: {text}");
        }
    }
}
