//! The mutation gate for comparisons in the storage formats: a test fails if any one check of a
//! checksum, epoch, sequence or generation is removed.
//!
//! 1. [`MUTATIONS`] lists the comparisons of the storage formats, the text that replaces each,
//!    and the test that must then fail. (Flushes and durable writes have gates of their own, which
//!    need no compiler: `dataplane/persist/tests/it/crash/gate.rs` and
//!    `control/volume/tests/it/crash.rs`.)
//! 2. [`check`] compares the table with the source, in CI: each text occurs once, and every line of
//!    [`FILES`] that compares such a thing is in the table, or in [`EXEMPT`] with the reason. A new
//!    comparison without a mutation fails.
//! 3. [`run`] makes each mutation in a copy of the tree, one after another: it must compile, and
//!    its test must fail.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::sources::SourceFile;

/// A comparison that is removed.
struct Mutation {
    file: &'static str,
    /// The text to replace.
    find: &'static str,
    /// The replacement.
    with: &'static str,
    /// Package, and which of its tests.
    test: (&'static str, &'static str),
}

const LAYOUT: &str = "dataplane/persist/src/layout.rs";
const SCAN: &str = "dataplane/persist/src/scan.rs";
const COPIES: &str = "device/disk/src/superblock_copies.rs";
const VOLUME_LAYOUT: &str = "control/volume/src/layout.rs";
const VOLUME: &str = "control/volume/src/volume.rs";
const FS_RECORD: &str = "dataplane/fs/src/log/record/layout.rs";
const FS_LOG: &str = "dataplane/fs/src/log/reader.rs";
const FS_SUPERBLOCK: &str = "dataplane/fs/src/pool/superblock.rs";
const FS_OPEN: &str = "dataplane/fs/src/pool/open.rs";
const FS_NODE: &str = "dataplane/fs/src/tree/node.rs";
const FS_DATA: &str = "dataplane/fs/src/digested.rs";
const FS_SPACE: &str = "dataplane/fs/src/pool/data_space.rs";

/// The files whose comparisons must be in the table.
const FILES: [&str; 11] = [
    COPIES,
    LAYOUT,
    SCAN,
    VOLUME_LAYOUT,
    VOLUME,
    FS_RECORD,
    FS_LOG,
    FS_SUPERBLOCK,
    FS_NODE,
    FS_DATA,
    FS_SPACE,
];

const fn log(file: &'static str, find: &'static str, with: &'static str, filter: &'static str) -> Mutation {
    Mutation { file, find, with, test: ("sietch-persist", filter) }
}

const fn volume(
    file: &'static str,
    find: &'static str,
    with: &'static str,
    filter: &'static str,
) -> Mutation {
    Mutation { file, find, with, test: ("sietch-volume", filter) }
}

const fn file_system(
    file: &'static str,
    find: &'static str,
    with: &'static str,
    filter: &'static str,
) -> Mutation {
    Mutation { file, find, with, test: ("sietch-fs", filter) }
}

const MUTATIONS: [Mutation; 32] = [
    // Superblocks of a log: whole, and the newest.
    log(LAYOUT, "|| raw.checksum.get() != superblock_checksum(bytes)", "", "superblocks"),
    log(
        COPIES,
        "generation(b) >= generation(&found)",
        "generation(b) > u64::MAX - 9 && generation(&found) > 0",
        "crash::power_loss_at",
    ),
    log(LAYOUT, "sequence < SEQUENCE_LIMIT", "sequence < u64::MAX || sequence > 0", "forged::sequences"),
    // Records: whole, in their place, of this log.
    log(
        LAYOUT,
        "(checksum(seed, offset, checked) == stored.get()).then",
        "(stored.get() > 0 || seed > 0 || offset > 0).then",
        "faults::rot_in",
    ),
    log(LAYOUT, "crc32c_from(seed ^ place, bytes)", "crc32c_from(seed ^ (place & 0), bytes)", "version_1"),
    // The record that comes next: of this stream, and this very one.
    log(SCAN, "tag.stream == self.stream\n", "tag.stream > 0\n", "another_stream"),
    log(SCAN, "            && tag.sequence == self.sequence\n", "", "another_stream"),
    log(SCAN, "if tag.sequence >= wanted.from", "if tag.sequence > 0", "crash::power_loss"),
    // Required records: up to the next run, all of the snapshot, up to where the log was closed.
    log(
        SCAN,
        "(chain.expected < next.first || chain.fragments_open)",
        "chain.fragments_open",
        "former_owner",
    ),
    log(
        SCAN,
        "if chain.expected <= place.last || chain.fragments_open",
        "if chain.fragments_open",
        "faults::rot_in_a_snapshot",
    ),
    log(SCAN, "if superblock.clean > last.committed", "if superblock.clean == u64::MAX", "after_closing"),
    // Checks that prove that something is missing.
    log(SCAN, "if superblock.proven >= last.expected.max(1)", "if superblock.proven == u64::MAX", "idle_log"),
    log(
        SCAN,
        "if stream_epoch(tag.stream) > epoch {",
        "if stream_epoch(tag.stream) == u32::MAX && epoch > 0 {",
        "superblocks",
    ),
    log(
        SCAN,
        "stream_epoch(tag.stream) >= newest && tag.durable >= last.expected.max(1)",
        "stream_epoch(tag.stream) >= newest && tag.durable == u64::MAX",
        "faults::rot_in_an_acknowledged",
    ),
    log(SCAN, "(tag.durable >= last.expected.max(1)\n", "(tag.durable == u64::MAX\n", "given_away"),
    // The metadata of a volume: superblocks, checkpoint, records.
    volume(
        VOLUME_LAYOUT,
        "|| raw.checksum.get() != sum",
        "|| sum == 0 && raw.checksum.get() == 1",
        "rotten_metadata",
    ),
    volume(
        VOLUME_LAYOUT,
        "if checksum(seed, offset, checked) != raw.checksum.get()",
        "if checked.is_empty() && checksum(seed, offset, checked) == 1",
        "rotten_metadata",
    ),
    volume(
        VOLUME_LAYOUT,
        "|| checksum(seed, offset, block.get(CHECKED_FROM..)?) != raw.checksum.get()",
        "|| checksum(seed, offset, block.get(CHECKED_FROM..)?) == 1",
        "rotten_metadata",
    ),
    volume(
        COPIES,
        "generation(b) >= generation(&found)",
        "generation(b) > u64::MAX - 9 && generation(&found) > 0",
        "power_loss",
    ),
    volume(VOLUME, "record.sequence == sequence + 1", "record.sequence > 0", "power_loss"),
    volume(
        VOLUME,
        "Some(record) if record.sequence > sequence",
        "Some(record) if record.sequence == u64::MAX",
        "rotten_metadata",
    ),
    volume(
        VOLUME,
        "record.epoch > superblock.epoch || record.sequence > sequence",
        "record.epoch == u64::MAX",
        "format_cut_short",
    ),
    // The log of a file system: a record is of this log, of this epoch, whole, and the next one.
    file_system(FS_RECORD, "            && header.log.get() == identity.log\n", "", "log::"),
    file_system(FS_RECORD, "\n            && header.epoch.get() == identity.epoch;", ";", "log::"),
    file_system(
        FS_RECORD,
        "crc32c(bytes) == self.checksum.get()",
        "crc32c(bytes) > 0 || self.checksum.get() > 0",
        "log::",
    ),
    file_system(FS_LOG, "if header.sequence() != sequence {", "if header.sequence() == 0 {", "log::"),
    file_system(FS_LOG, "header.proven() >= self.sequence", "header.proven() == u64::MAX", "log::"),
    // Its pool: superblocks, nodes, data, and blocks that are not used again too early.
    file_system(FS_SUPERBLOCK, " || raw.checksum.get() != checksum(bytes)", "", "pool::"),
    file_system(FS_OPEN, "key != other.root.generation", "key == u64::MAX", "pool::"),
    file_system(
        FS_NODE,
        "header.generation.get() != pointer.generation || found != pointer.checksum",
        "header.generation.get() == u64::MAX && found == 0",
        "pool::",
    ),
    file_system(
        FS_DATA,
        "items::checksum(block) != *expected",
        "items::checksum(block) == 1 && *expected == 2",
        "faults::",
    ),
    file_system(FS_SPACE, "&& freed <= generation", "&& freed <= u64::MAX - generation", "pool::reader"),
];

/// Comparisons without a mutation: a part of their line, and the reason.
const EXEMPT: [(&str, &str, &str); 15] = [
    (LAYOUT, "header.magic.get() != RECORD_MAGIC", "a cheap filter in front of the checksum"),
    (LAYOUT, "raw.snapshot_stream.get() != 0", "how the format says that there is no snapshot"),
    (LAYOUT, "self.stream == log_stream", "which kind of stream it is, no proof"),
    (LAYOUT, "w[0].first < w[1].first", "numbers of a hostile writer, behind a checksum"),
    (LAYOUT, "run.epoch <= self.epoch", "numbers of a hostile writer, behind a checksum"),
    (LAYOUT, "last.epoch != self.epoch", "how many places are remembered"),
    (
        SCAN,
        "wanted.stop.is_none_or",
        "where a chain ends that is known to end: what is behind it has another epoch",
    ),
    (SCAN, "tag.sequence == last.expected);", "whether a tail is called torn, in the report alone"),
    (SCAN, "tag.sequence > last.expected", "whether a tail is called torn, in the report alone"),
    (
        SCAN,
        "|| stream_epoch(tag.stream) > superblock.epoch",
        "a segment is read as a whole: its content is judged by the same rule",
    ),
    (LAYOUT, "closed: raw.closed.get() != 0 || raw.clean.get() != 0", "what the report says"),
    (VOLUME_LAYOUT, "u64::MAX / 2", "numbers of a hostile writer, behind a checksum"),
    (
        VOLUME,
        "found.generation == superblock.generation",
        "an older checkpoint is given away by the records in the other half, too",
    ),
    (
        VOLUME,
        "filter(|record| record.epoch == superblock.epoch)",
        "writes of a dead owner that land late: its lock rules them out",
    ),
    (
        FS_NODE,
        "header.checksum.get() != found",
        "the pointer has it too; this says which of the two is wrong",
    ),
];

const WORDS: [&str; 8] =
    ["checksum", "epoch", "sequence", ".generation", ".durable", "expected", ".stream", ".clean"];
const OPERATORS: [&str; 6] = [" == ", " != ", " < ", " <= ", " > ", " >= "];

/// Compares the table with the source. Findings have the form `path:line: what; fix`.
pub(crate) fn check(sources: &[SourceFile], findings: &mut Vec<String>) {
    for mutation in &MUTATIONS {
        let text =
            sources.iter().find(|source| source.path == mutation.file).map_or("", |source| &source.text);
        let times = text.matches(mutation.find).count();
        if times != 1 {
            findings.push(format!(
                "{}:1: `{}` occurs {times} times, not once; correct the table in xtask/src/mutations.rs",
                mutation.file,
                mutation.find.trim()
            ));
        }
    }
    for source in sources.iter().filter(|source| FILES.contains(&&*source.path)) {
        for (number, line) in (1..).zip(source.text.lines()) {
            let line = line.trim();
            let compares = WORDS.iter().any(|word| line.contains(word))
                && OPERATORS.iter().any(|operator| line.contains(operator));
            if line.starts_with("//")
                || line.starts_with("const _")
                || !compares
                || is_listed(&source.path, line)
            {
                continue;
            }
            findings.push(format!(
                "{}:{number}: a comparison without a mutation; add it to xtask/src/mutations.rs",
                source.path
            ));
        }
    }
}

fn is_listed(path: &str, line: &str) -> bool {
    let mutated = |mutation: &Mutation| mutation.file == path && line.contains(mutation.find.trim());
    MUTATIONS.iter().any(mutated) || EXEMPT.iter().any(|(file, text, _)| *file == path && line.contains(text))
}

/// Makes each mutation whose text or file contains `filter`, and checks that its test fails.
pub(crate) fn run(root: &Path, filter: &str) -> Result<(), String> {
    let tree = root.join("target/mutations");
    copy(root, &tree)?;
    let mut missed = Vec::new();
    let chosen = MUTATIONS.iter().filter(|m| m.find.contains(filter) || m.file.contains(filter));
    for Mutation { file, find, with, test } in chosen {
        let path = tree.join(file);
        let read = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        write(&path, &read.replacen(find, with, 1))?;
        let verdict = judge(root, &tree, test);
        write(&path, &read)?;
        let found = verdict?;
        println!("{}: {file}: `{}`", if found { "detected" } else { "MISSED" }, find.trim());
        if !found {
            missed.push(*find);
        }
    }
    drop(std::fs::remove_dir_all(&tree));
    match missed.as_slice() {
        [] => Ok(()),
        _ => Err(format!("mutations: no test fails without these: {missed:?}")),
    }
}

/// Writes a file; an error names it.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
}

/// Whether the test fails in `tree`. An error if it does not compile.
fn judge(root: &Path, tree: &Path, (package, filter): &(&str, &str)) -> Result<bool, String> {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // Dependencies are built once for both trees.
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), Into::into);
    let cargo = |more: &[&str]| {
        Command::new(&program)
            .args(["test", "-q", "-p", package, "--test", "it"])
            .args(more)
            .env("CARGO_TARGET_DIR", &target)
            .env("SIETCH_SIM_SECONDS", "6")
            .current_dir(tree)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .map_err(|cause| format!("cannot start cargo: {cause}"))
    };
    if !cargo(&["--no-run"])?.success() {
        return Err(format!("mutations: {package} does not compile: see `cargo test` in {}", tree.display()));
    }
    Ok(!cargo(&["--", filter])?.success())
}

/// Copies every tracked file.
pub(crate) fn copy(root: &Path, tree: &Path) -> Result<(), String> {
    drop(std::fs::remove_dir_all(tree));
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"])
        .current_dir(root)
        .output()
        .map_err(|cause| format!("cannot start git: {cause}"))?;
    for name in output.stdout.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let name = String::from_utf8_lossy(name).into_owned();
        let (from, to) = (root.join(&name), tree.join(&name));
        if let Some(folder) = to.parent() {
            std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        }
        if from.is_file() {
            std::fs::copy(&from, &to).map_err(|e| format!("{}: {e}", from.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Vec<SourceFile> {
        vec![SourceFile { path: SCAN.to_owned(), text: text.to_owned() }]
    }

    #[test]
    fn a_comparison_without_a_mutation_and_a_mutation_without_its_text_are_found() {
        let mut findings = Vec::new();
        check(&source("if tag.epoch < 7 {}\nlet x = 3;\n// tag.epoch < 7\n"), &mut findings);
        findings.retain(|finding| finding.starts_with(&format!("{SCAN}:")));
        findings.sort();
        let (first, last) = (findings.first().expect("a finding"), findings.last().expect("a finding"));
        insta::assert_snapshot!(format!("{first}\n{last}"), @r"
        dataplane/persist/src/scan.rs:1: `&& tag.sequence == self.sequence` occurs 0 times, not once; correct the table in xtask/src/mutations.rs
        dataplane/persist/src/scan.rs:1: a comparison without a mutation; add it to xtask/src/mutations.rs
        ");
    }
}
