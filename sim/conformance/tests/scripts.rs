//! Every script under `scripts/`, one test each. `cargo test -p sietch-conformance -- WORD ...`
//! runs those whose path has one of the words.

use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use sietch_conformance::runner;

fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            collect(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "pkt") {
            found.push(path);
        }
    }
}

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts");
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&String> = arguments.iter().filter(|word| !word.starts_with('-')).collect();
    let mut scripts = Vec::new();
    collect(&root, &mut scripts);
    scripts.sort();
    let name = |path: &PathBuf| path.strip_prefix(&root).unwrap_or(path).display().to_string();
    scripts.retain(|path| words.is_empty() || words.iter().any(|word| name(path).contains(word.as_str())));
    if arguments.iter().any(|argument| argument == "--list") {
        scripts.iter().for_each(|path| println!("{}: test", name(path)));
        return ExitCode::SUCCESS;
    }
    let mut failures = Vec::new();
    for path in &scripts {
        let result = fs::read_to_string(path).map_err(|error| error.to_string()).and_then(|text| {
            catch_unwind(|| runner::run(&text).map_err(|failure| failure.to_string()))
                .unwrap_or_else(|_| Err("it panicked\n".into()))
        });
        println!("script {} ... {}", name(path), if result.is_ok() { "ok" } else { "FAILED" });
        if let Err(reason) = result {
            failures.push(format!("{}\n{reason}", name(path)));
        }
    }
    for failure in &failures {
        println!("\n---- {failure}");
    }
    println!("\n{} scripts, {} failed", scripts.len(), failures.len());
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
