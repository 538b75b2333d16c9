//! The mutation gate: whatever the log makes durable is there for a reason that some crash shows.
//!
//! 1. [`SITES`] lists every line of the source at which something is made durable, in the order of
//!    the lines, and the fences that it makes. A line that is not in the table fails the gate, and
//!    so does a fence that no line of the table makes. So there is no flush without a mutation.
//! 2. Each fence must be met. Then the disk ignores it, and some crash must break the promise.
//! 3. Without a mutation nothing breaks.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use super::{Run, Verdict, format_cut_short, kill_then_power_loss};
use crate::disk::{Fence, Phase};

/// What a line that makes something durable contains.
const MARKS: [&str; 5] =
    ["Operation::Flush)", "durable: true", "next_write(durable)", "settle(&mut", "write_superblock(disk, "];
const CALL: &str = "write_superblock(&mut ";

/// A line of the source: its file, a part of it, and the fences that it makes (none: the function
/// that it calls makes them).
type Site = (&'static str, &'static str, &'static [Fence]);

const SITES: &[Site] = &[
    ("log.rs", "next_write(durable)", &[Fence::LogWrite]),
    ("log.rs", "token(CLASS_FLUSH, 0)", &[Fence::LogFlush]),
    // The function that writes both copies, and the one that flushes.
    (
        "log/open.rs",
        "length: SUPERBLOCK, buffer",
        &[Fence::Superblock(Phase::Format), Fence::Superblock(Phase::Open), Fence::Superblock(Phase::Close)],
    ),
    ("log/open.rs", "execute(disk, \"flushing\"", &[Fence::Settle(Phase::Open), Fence::Settle(Phase::Close)]),
    ("log/open.rs", "length, buffer", &[Fence::Blank]),
    // Formatting, generation 1 and generation 0.
    ("log/open.rs", "write_superblock(disk, &superblock)", &[]),
    ("log/open.rs", "write_superblock(disk, &superblock)", &[]),
    // Opening.
    ("log/open.rs", "settle(&mut disk)", &[]),
    ("log/open.rs", "write_superblock(&mut disk, &next)", &[]),
    ("log/open.rs", "write_superblock(&mut disk, &next)", &[]),
    ("log/proof.rs", "length: SUPERBLOCK, buffer", &[Fence::ProofSuperblock]),
    // The module `resize` takes this one away.
    ("log/resize.rs", "length: SUPERBLOCK, buffer", &[]),
    // Durable for the sake of the commits beside it; the flush that follows keeps the promise.
    ("log/snapshot.rs", "next_write(durable)", &[]),
    ("log/snapshot.rs", "token(CLASS_SNAPSHOT_FLUSH, 0)", &[Fence::SnapshotFlush]),
    ("log/snapshot.rs", "length: SUPERBLOCK, buffer", &[Fence::SnapshotSuperblock]),
    // Closing.
    ("log/snapshot.rs", "settle(&mut self.disk)", &[]),
    ("log/snapshot.rs", "write_superblock(&mut self.disk", &[]),
    ("log/truncate.rs", "token(CLASS_TRUNCATE_FLUSH, 0)", &[Fence::TruncateFlush]),
    ("log/truncate.rs", "length: SUPERBLOCK, buffer", &[Fence::TruncateSuperblock]),
];

/// Files of the source, in the order of their paths.
fn sources(folder: &Path, found: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("the source").flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.file_name().is_some_and(|name| name != "tests.rs") {
            found.push(path);
        }
    }
    found.sort();
}

/// Every line of the source that makes something durable: where, and the line.
fn marked() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    let mut lines = Vec::new();
    for path in files {
        let name = path.strip_prefix(&root).expect("below it").display().to_string();
        for line in std::fs::read_to_string(&path).expect("the source").lines() {
            let line = line.trim();
            let is_code = !line.starts_with("//") && !line.contains("fn ");
            if is_code && MARKS.iter().chain([&CALL]).any(|mark| line.contains(mark)) {
                lines.push((name.clone(), line.to_owned()));
            }
        }
    }
    lines
}

#[test]
fn every_line_that_makes_something_durable_is_in_the_table() {
    let lines = marked();
    let mut sites: Vec<&Site> = SITES.iter().collect();
    // As the files come.
    sites.sort_by_key(|(file, ..)| lines.iter().position(|(name, _)| name == file));
    for (at, (file, line)) in lines.iter().enumerate() {
        let fits = sites.get(at).is_some_and(|(name, text, _)| name == file && line.contains(text));
        assert!(fits, "src/{file}: `{line}` is not in the table of the gate, or not in its place");
    }
    assert_eq!(lines.len(), sites.len(), "the table names lines that do not exist");
}

/// A crash test, without or with an ignored fence.
type CrashTest = Box<dyn Fn(Option<Fence>) -> Verdict>;

/// The crash tests that may notice an ignored fence.
fn crash_tests() -> Vec<CrashTest> {
    fn life(run: Run, step: usize) -> CrashTest {
        Box::new(move |ignored| Run { ignored, ..run }.enumerate(step))
    }
    let mut tests: Vec<CrashTest> =
        vec![Box::new(|ignored| kill_then_power_loss(ignored, 1..=60)), Box::new(format_cut_short)];
    tests.extend((1..=10).map(|seed| life(Run::new(seed), 5)));
    // Short lives, event by event: how they end counts.
    tests.extend((1..=24).map(|seed| life(Run { steps: 20, ..Run::new(seed) }, 1)));
    // Lives long enough to write again to segments that a snapshot has freed.
    tests.extend((1..=6).map(|seed| life(Run { steps: 900, aborts: true, ..Run::new(seed) }, 61)));
    tests
}

/// Whether a crash test fails. A broken promise may also show as a failed assertion in the driver.
fn fails(test: &CrashTest, ignored: Option<Fence>) -> bool {
    catch_unwind(AssertUnwindSafe(|| test(ignored))).map_or(true, |verdict| verdict.is_err())
}

#[test]
fn ignoring_any_fence_is_noticed() {
    let mut met: Vec<Fence> = Vec::new();
    for seed in 1..=20 {
        for &fence in &Run::new(seed).live(usize::MAX).0.borrow().seen {
            if !met.contains(&fence) {
                met.push(fence);
            }
        }
    }
    let listed: Vec<Fence> = SITES.iter().flat_map(|(.., fences)| fences.iter().copied()).collect();
    for fence in &met {
        assert!(listed.contains(fence), "{fence:?} was met, and no line of the table makes it");
    }
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let tests = crash_tests();
    // By the first test that fails. It must not fail without that fault.
    let noticing = |fence: &Fence| tests.iter().position(|test| fails(test, Some(*fence)));
    let noticed: Vec<_> = listed.iter().map(|fence| (fence, noticing(fence))).collect();
    let mut used: BTreeSet<usize> = noticed.iter().filter_map(|(_, test)| *test).collect();
    if sietch_sim::seeds::is_soak() {
        used.extend(0..tests.len());
    }
    let wolf = used.iter().any(|test| fails(&tests[*test], None));
    std::panic::set_hook(hook);
    for fence in &listed {
        assert!(met.contains(fence), "{fence:?} never happened");
    }
    let unnoticed: Vec<_> = noticed.iter().filter(|(_, test)| test.is_none()).collect();
    assert!(unnoticed.is_empty(), "no test misses {unnoticed:?}");
    assert!(!wolf, "the gate cries wolf");
}
