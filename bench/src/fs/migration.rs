//! A working set twice the fast medium, over time.
//!
//! 1. Sietch's client has [`FAST`] bytes of memory that stand in for NVM, and a file on the disk as
//!    its SSD. It writes twice as much to [`FILES`] files, in blocks of 4 KiB, and then blocks at
//!    random, until [`SECONDS`] have passed. Data leave the memory meanwhile, and nothing waits for
//!    them.
//! 2. The kernel's file system on the same disk does the same, in its page cache, in turn with
//!    Sietch.
//! 3. Each window of 100 ms counts its operations, and what was moved until then. A second without
//!    an operation is what must not be.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;
use sietch_service::fs::{BLOCK, ClassName};

use super::files::{Directory, Files, LATER, Use};
use super::places::{Removed, kind_of};
use super::random::Random;
use super::sietch::{AT_ONCE, Native, Store, medium};
use crate::error::{Error, system};
use crate::plot::{self, Line};

/// Bytes of the fast medium, of the slow one, and of the log.
const FAST: u64 = 256 << 20;
const SLOW: u64 = 2 << 30;
const LOG: u64 = 64 << 20;
/// Files that are written in turn.
const FILES: u64 = 8;
/// How long a run takes.
const SECONDS: u64 = 15;
/// A window, and how many of them are a second.
const WINDOW: Duration = Duration::from_millis(100);
const WINDOWS: usize = 10;
/// Runs of each subject, at most.
const RUNS: usize = 3;

/// One run of one subject.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Run {
    pub name: &'static str,
    /// Operations in each window of 100 ms.
    pub operations: Vec<u64>,
    /// MiB that were moved between media until the end of each window.
    pub moved: Vec<f64>,
    /// The longest operation, in milliseconds.
    pub longest: f64,
}

/// Runs on a folder of the disk and one of memory, and draws the last runs.
///
/// # Errors
/// There is no room, or a call failed.
pub(super) fn run(folder: &Path, memory: &Path, rounds: usize, out: &Path) -> Result<Vec<Run>, Error> {
    let failed = || system("writing a working set");
    let mut runs = Vec::new();
    for _ in 0..rounds.min(RUNS) {
        let plain = Removed::create(folder.join("moving-plain"))?;
        let point = plain.0.clone();
        let kernel = Directory::open(kind_of(&point)?, LATER, &point, plain)?;
        runs.push(write(&kernel).map_err(failed())?);
        drop(kernel);
        let fast = memory.join(format!("sietch-bench-moving-{}", std::process::id()));
        let media =
            vec![medium(ClassName::Nvm, fast, FAST), medium(ClassName::Ssd, folder.join("moving-ssd"), SLOW)];
        let store = Store::over(folder.join("moving"), media, Some(LOG))?;
        runs.push(write(&Native::open("Sietch", AT_ONCE, store)?).map_err(failed())?);
    }
    draw(&runs, out)?;
    Ok(runs)
}

/// One run, on new files.
fn write(files: &dyn Files) -> io::Result<Run> {
    let names: Vec<String> = (0..FILES).map(|number| format!("moving-{number}")).collect();
    let open = names.iter().map(|name| files.create(name, Use::Anywhere)).collect::<io::Result<Vec<_>>>()?;
    let blocks = 2 * FAST / BLOCK as u64;
    let (mut random, mut data) = (Random::new(1), vec![0_u8; BLOCK]);
    let mut run = Run { name: files.name(), operations: Vec::new(), moved: Vec::new(), longest: 0.0 };
    let (begun, mut longest, mut before) = (Instant::now(), Duration::ZERO, Duration::ZERO);
    let mut number = 0;
    while number < blocks || before < Duration::from_secs(SECONDS) {
        let (file, block) = match number {
            number if number < blocks => (number % FILES, number / FILES),
            _ => (random.below(FILES), random.below(blocks / FILES)),
        };
        data[..8].copy_from_slice(&number.to_le_bytes());
        files.write_at(&open[file as usize], block * BLOCK as u64, &data)?;
        number += 1;
        let now = begun.elapsed();
        longest = longest.max(now - before);
        run.count(now, files);
        before = now;
    }
    run.longest = longest.as_secs_f64() * 1e3;
    // It did not have all of its time.
    run.operations.pop();
    run.moved.truncate(run.operations.len());
    open.into_iter().for_each(|file| files.close(file));
    names.iter().try_for_each(|name| files.unlink(name))?;
    files.settle()?;
    Ok(run)
}

impl Run {
    /// An operation ended `at` this time.
    fn count(&mut self, at: Duration, files: &dyn Files) {
        let window = (at.as_nanos() / WINDOW.as_nanos()) as usize;
        if self.operations.len() <= window {
            let moves = files.totals().map(|totals| totals.moves).unwrap_or_default();
            let moved = (moves.demoted + moves.promoted) as f64 * BLOCK as f64 / f64::from(1 << 20);
            self.moved.resize(window + 1, moved);
            self.operations.resize(window + 1, 0);
        }
        self.operations[window] += 1;
    }

    /// Operations in the second that has the fewest, and in the window that has the fewest.
    fn least(&self) -> (u64, u64) {
        let seconds = self.operations.windows(WINDOWS).map(|second| second.iter().sum());
        (seconds.min().unwrap_or_default(), self.operations.iter().copied().min().unwrap_or_default())
    }

    fn mean(&self) -> f64 {
        let windows = self.operations.len().max(1) as f64;
        self.operations.iter().sum::<u64>() as f64 / windows * WINDOWS as f64
    }
}

/// What is printed of a run.
pub(super) fn describe(run: &Run) -> String {
    let (second, window) = run.least();
    format!(
        "working set twice the fast medium, {}: {:.0} operations a second; in any second at least {second}, in any 100 ms {window}; longest {:.1} ms; {:.0} MiB moved",
        run.name,
        run.mean(),
        run.longest,
        run.moved.last().copied().unwrap_or_default()
    )
}

/// Draws the last run of each subject.
fn draw(runs: &[Run], out: &Path) -> Result<(), Error> {
    let last = &runs[runs.len().saturating_sub(2)..];
    let line = |run: &Run| Line {
        name: format!("{}: thousand operations a second", run.name),
        points: over_time(run.operations.iter().map(|count| *count as f64 * WINDOWS as f64 / 1e3)),
        is_right: false,
    };
    let moved = |run: &Run| Line {
        name: format!("{}: MiB moved to the slower medium and back", run.name),
        points: over_time(run.moved.iter().copied()),
        is_right: true,
    };
    let lines: Vec<Line> = last.iter().map(line).chain(last.last().map(moved)).collect();
    let title = "A working set twice the fast medium: writes of 4 KiB over time";
    plot::over_time(&out.join("fs-migration.svg"), title, ("thousand operations a second", "MiB"), &lines)
}

/// A point for each window, at its end, in seconds.
fn over_time(values: impl Iterator<Item = f64>) -> Vec<(f64, f64)> {
    values.enumerate().map(|(window, value)| ((window + 1) as f64 / WINDOWS as f64, value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_without_operations_is_seen_wherever_it_begins() {
        let mut operations = vec![5; 40];
        operations[13..23].fill(0);
        let run = Run { name: "Sietch", operations, moved: vec![2.0; 40], longest: 1.5 };
        assert_eq!(run.least(), (0, 0));
        insta::assert_snapshot!(describe(&run), @"working set twice the fast medium, Sietch: 38 operations a second; in any second at least 0, in any 100 ms 0; longest 1.5 ms; 2 MiB moved");
    }
}
