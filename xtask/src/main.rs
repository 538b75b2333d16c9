//! Chores of the project: `cargo xtask check | ci | tidy | modules | soak | guest | ordinary |
//! mutations | loom | instructions | generate | packetdrill | suites | deny`.
#![forbid(unsafe_code)]

mod cargo;
mod check;
mod ci;
mod deny;
mod generate;
mod guest;
mod instructions;
mod mutations;
mod ordinary;
mod packetdrill;
mod soak;
mod sources;
mod suites;
mod tidy;

use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  check [BASE]     format, tidy, clippy and quick tests of what has changed since BASE (or HEAD)
  ci               everything that must hold before a change lands (what .ci/run runs)
  tidy             the rules that no compiler checks
  modules CRATE    the files of a crate (its folder) in the order of their layers, with what each imports
  guest [PACKAGE]  Sietch on Debian's own kernel, or another of its packages, in a guest under QEMU
  deny [--install] licences, duplicate versions, sources and advisories of the dependencies (needs cargo-deny)
  generate         write the generated files again (man pages, shell completions)
  doc              the documentation of every crate, private items included, without warnings
  loom             the rings and doorbells under each order of their threads' steps
  instructions     count the instructions of the network's fast path (needs valgrind)
  ordinary         the tests of what depends on privileges, as an ordinary user (root)
  mutations [TEXT] take away each comparison of the storage formats (whose line or file has TEXT): a test must notice
  packetdrill [FILE]
                   the conformance scripts under Google's packetdrill, FILE or the one in PATH
  soak [SUITE]     the long runs: net, storage, kv, fuzz, interop, posix, or all of them
  suites [MODULE]  CPython's own tests of sockets, on the kernel's and under `sietch run` (root)";

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
        ["generate"] => generate::run(&root(), generate::Mode::Write),
        ["guest"] => guest::run(&root(), None),
        ["guest", package] => guest::run(&root(), Some(package)),
        ["loom"] => ci::loom(&root()),
        ["doc"] => ci::doc(&root()),
        ["instructions"] => instructions::run(&root()),
        ["mutations"] => mutations::run(&root(), ""),
        ["mutations", filter] => mutations::run(&root(), filter),
        ["ordinary"] => ordinary::run(&root()),
        ["packetdrill"] => packetdrill::run(&root(), None),
        ["packetdrill", tool] => packetdrill::run(&root(), Some(tool)),
        ["suites"] => suites::run(&root(), None),
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
