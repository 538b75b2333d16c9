//! Coverage-guided fuzzing, with AddressSanitizer, of the targets in `sim/fuzz`.
//!
//! 1. The program is built with the counters of libFuzzer and with AddressSanitizer, by the
//!    project's own toolchain: `RUSTC_BOOTSTRAP` lets it take the unstable flag. It has a target
//!    folder of its own.
//! 2. Each target runs for some seconds from the kept corpus: a file in `sim/fuzz/corpus`, which is
//!    unpacked first. New inputs go to `target/fuzz/corpus`. `cargo xtask fuzz keep` packs what
//!    reaches all known code into the file.
//! 3. An input that fails is written to `target/fuzz/failed`, and its replay is printed.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cargo::cargo;

/// The kept corpora, a file for each target.
const CORPUS: &str = "sim/fuzz/corpus";

const TRIPLE: &str = "x86_64-unknown-linux-gnu";

/// What cargo-fuzz passes to the compiler, without its debug information.
const FLAGS: &str = "--cfg fuzzing -Zsanitizer=address -Cpasses=sancov-module \
     -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
     -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares \
     -Cllvm-args=-simplifycfg-branch-fold-threshold=0";

/// Seconds of each target, if none are named.
pub(crate) const SECONDS: u32 = 10;
/// The longest input. An engine or a store takes milliseconds for longer ones, and finds no more.
const LONGEST: &str = "-max_len=4096";

/// Builds the program and runs one target, or all, for so many seconds each.
pub(crate) fn run(root: &Path, only: Option<&str>, seconds: u32) -> Result<(), String> {
    let program = build(root, root)?;
    let mut failed = Vec::new();
    for name in targets(root, only)? {
        println!("== fuzz {name}: {seconds} s");
        if !fuzz(root, &program, &name, seconds)? {
            failed.push(name);
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("fuzz: failed: {}", failed.join(", "))) }
}

/// Replaces the kept corpus by the inputs, of it and of those found since, that reach all code
/// that any of them reaches.
pub(crate) fn keep(root: &Path) -> Result<(), String> {
    let program = build(root, root)?;
    for name in targets(root, None)? {
        let (kept, found) = folders(root, &name)?;
        let merged = root.join("target/fuzz/merged");
        drop(std::fs::remove_dir_all(&merged));
        std::fs::create_dir_all(&merged).map_err(failed(&merged))?;
        let status = command(&program, &name)
            .args(["-set_cover_merge=1", LONGEST])
            .args([&merged, &kept, &found])
            .status()
            .map_err(failed(&program))?;
        if !status.success() {
            return Err(format!("fuzz: merging the corpus of {name} ended with {status}"));
        }
        pack(&merged, &root.join(CORPUS).join(&name))?;
    }
    Ok(())
}

/// Writes the files of a folder into one: for each its length and its bytes.
fn pack(folder: &Path, file: &Path) -> Result<(), String> {
    let entries = std::fs::read_dir(folder).map_err(failed(folder))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let mut packed = Vec::new();
    for path in paths {
        let bytes = std::fs::read(&path).map_err(failed(&path))?;
        let length = u32::try_from(bytes.len()).map_err(|_| format!("{}: too long", path.display()))?;
        packed.extend(length.to_le_bytes());
        packed.extend(bytes);
    }
    std::fs::write(file, packed).map_err(failed(file))
}

/// Writes what [`pack`] wrote into a new folder.
fn unpack(file: &Path, folder: &Path) -> Result<(), String> {
    drop(std::fs::remove_dir_all(folder));
    std::fs::create_dir_all(folder).map_err(failed(folder))?;
    let packed = std::fs::read(file).map_err(failed(file))?;
    let mut left = &packed[..];
    for number in 0.. {
        let Some((length, rest)) = left.split_first_chunk() else { break };
        let (bytes, rest) = rest
            .split_at_checked(u32::from_le_bytes(*length) as usize)
            .ok_or_else(|| format!("{}: cut short; take the committed one", file.display()))?;
        let path = folder.join(format!("{number}"));
        std::fs::write(&path, bytes).map_err(failed(&path))?;
        left = rest;
    }
    Ok(())
}

fn failed(path: &Path) -> impl FnOnce(std::io::Error) -> String {
    let path = path.to_owned();
    move |cause| format!("fuzz: {}: {cause}", path.display())
}

/// Builds the program of `tree` into a folder of `root`.
pub(crate) fn build(root: &Path, tree: &Path) -> Result<PathBuf, String> {
    let target = root.join("target/fuzz");
    cargo(
        tree,
        &[
            "build",
            "--locked",
            "-p",
            "sietch-fuzz",
            "--bin",
            "fuzzer",
            "--features",
            "libfuzzer",
            "--target",
            TRIPLE,
        ],
        &[
            ("RUSTC_BOOTSTRAP", "1"),
            ("RUSTFLAGS", FLAGS),
            ("CARGO_TARGET_DIR", &target.to_string_lossy()),
            ("CARGO_INCREMENTAL", "0"),
        ],
    )?;
    Ok(target.join(TRIPLE).join("debug/fuzzer"))
}

/// Whether a target found nothing in so many seconds.
pub(crate) fn fuzz(root: &Path, program: &Path, name: &str, seconds: u32) -> Result<bool, String> {
    let (kept, found) = folders(root, name)?;
    let inputs = root.join("target/fuzz/failed").join(name);
    std::fs::create_dir_all(&inputs).map_err(failed(&inputs))?;
    let status = command(program, name)
        .args([LONGEST, "-timeout=10", "-rss_limit_mb=2048", "-verbosity=0", "-print_final_stats=1"])
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-artifact_prefix={}/", inputs.display()))
        .args([found, kept])
        .status()
        .map_err(failed(program))?;
    if !status.success() {
        let inputs = inputs.display();
        println!("fuzz: the input is in {inputs}; replay it: cargo run -p sietch-fuzz {name} {inputs}/FILE");
    }
    Ok(status.success())
}

fn command(program: &Path, name: &str) -> Command {
    let mut command = Command::new(program);
    command.env("SIETCH_FUZZ_TARGET", name);
    command
}

/// The kept corpus of a target, unpacked, and the folder for what is found.
fn folders(root: &Path, name: &str) -> Result<(PathBuf, PathBuf), String> {
    let fuzz = root.join("target/fuzz");
    let (kept, found) = (fuzz.join("kept").join(name), fuzz.join("corpus").join(name));
    std::fs::create_dir_all(&found).map_err(failed(&found))?;
    unpack(&root.join(CORPUS).join(name), &kept)?;
    Ok((kept, found))
}

/// The targets: each has a file with its kept corpus.
fn targets(root: &Path, only: Option<&str>) -> Result<Vec<String>, String> {
    let corpus = root.join(CORPUS);
    let listed = std::fs::read_dir(&corpus).map_err(failed(&corpus))?;
    let mut names: Vec<String> =
        listed.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    match only {
        Some(name) if !names.iter().any(|known| known == name) => {
            Err(format!("fuzz: no target `{name}`; there are: {}", names.join(", ")))
        }
        Some(name) => Ok(vec![name.to_owned()]),
        None => Ok(names),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packed_corpus_is_unpacked_as_it_was_and_half_of_one_is_refused() {
        let folder = std::env::temp_dir().join(format!("sietch-corpus-{}", std::process::id()));
        let (from, to, file) = (folder.join("a"), folder.join("b"), folder.join("c"));
        std::fs::create_dir_all(&from).expect("a folder");
        for (name, bytes) in [("0", &b""[..]), ("1", b"some"), ("2", b"\0\0\0\0")] {
            std::fs::write(from.join(name), bytes).expect("a file");
        }
        pack(&from, &file).expect("it is packed");
        unpack(&file, &to).expect("it is unpacked");
        assert_eq!(std::fs::read(to.join("1")).expect("the second"), b"some");
        assert_eq!(std::fs::read_dir(&to).expect("a folder").count(), 3);
        let packed = std::fs::read(&file).expect("the file");
        std::fs::write(&file, &packed[..packed.len() - 1]).expect("half of it");
        let refused = unpack(&file, &to);
        std::fs::remove_dir_all(&folder).expect("it was made here");
        assert!(refused.is_err_and(|error| error.contains("cut short")));
    }
}
