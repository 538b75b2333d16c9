//! Chores of the project: `cargo xtask ci | tidy | soak | mutations | instructions | generate`.
#![forbid(unsafe_code)]

mod ci;
mod generate;
mod instructions;
mod mutations;
mod soak;
mod tidy;

use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  ci               everything that must hold before a change lands (what .ci/run runs)
  tidy             the rules of the house that no compiler checks
  generate         write the generated files again (man pages, shell completions)
  instructions     count the instructions of the network's fast path (needs valgrind)
  mutations [TEXT] take away each comparison of the storage formats (whose line or file has TEXT): a test must notice
  soak [SUITE]     the long runs: net, storage, kv, fuzz, interop, posix, or all of them";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments.as_slice() {
        ["ci"] => ci::run(&root()),
        ["tidy"] => tidy::run(&root()),
        ["generate"] => generate::run(&root(), generate::Mode::Write),
        ["instructions"] => instructions::run(&root()),
        ["mutations"] => mutations::run(&root(), ""),
        ["mutations", filter] => mutations::run(&root(), filter),
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
