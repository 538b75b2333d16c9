//! What a durable SET of one connection costs beside a bare write of its record.
//!
//! 1. One store with every write durable, and one redis-benchmark under `sietch run` with one
//!    connection.
//! 2. A round has three blocks in turn: bare direct, durable writes of one record's sectors to a
//!    file beside the store's area; GETs, which take the client's way and no write; and SETs.
//! 3. The bare write and the client's way together are what a commit cannot do without. The ratio
//!    of a SET's median to that sum is what the store adds.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::Serialize;

use super::block::{interrupted_error, sample};
use super::client::{self, Load};
use super::servers::Setting;
use super::under_run::Trio;
use crate::error::Error;
use crate::machine::{SLOW, STOLEN};
use crate::options::Blocks;
use crate::plot;
use crate::storage::BareWrites;
use crate::table::{self, median, range};

/// The setting, as `--only` chooses it.
pub(super) const SETTING: Setting = Setting { name: "run commit", veth: false, durable: true, shards: 1 };

/// Bytes that a record adds to the key and the value of a SET, at most.
const RECORD_OVERHEAD: usize = 64;

/// The medians of one round, in microseconds.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Round {
    bare: f64,
    get: f64,
    set: f64,
}

impl Round {
    fn ratio(self) -> f64 {
        self.set / (self.bare + self.get)
    }
}

/// Measures the setting.
pub(super) fn measure(
    blocks: &Blocks,
    scratch: &Path,
    best: &[u64],
    stop: &AtomicBool,
) -> Result<Vec<Round>, Error> {
    let trio = Trio::start(SETTING, scratch, &blocks.out)?;
    let store = 2;
    let mut bare = BareWrites::create(scratch)?;
    let duration = Duration::from_secs_f64(blocks.seconds);
    let load = |command| Load { command, connections: 1, pipeline: 1, value: blocks.value };
    let mut sizes = [0; 2];
    for (size, command) in sizes.iter_mut().zip(["get", "set"]) {
        *size = client::calibrate(load(command), blocks.seconds, |requests| {
            trio.run(store, load(command), requests)
        })?;
    }
    let mut rounds = Vec::new();
    // A few more rounds than requested may replace dropped ones.
    for _ in 0..blocks.pairs * 2 {
        if rounds.len() == blocks.pairs {
            break;
        }
        if stop.load(Ordering::Relaxed) {
            return Err(interrupted_error());
        }
        let written = bare.median(blocks.value + RECORD_OVERHEAD, duration)? as f64 / 1000.0;
        let run = |command, requests| sample(|| trio.run(store, load(command), requests), requests, best);
        let (get, set) = (run("get", sizes[0])?, run("set", sizes[1])?);
        if [&get, &set].iter().any(|sample| sample.slowness > SLOW || sample.stolen > STOLEN) {
            continue;
        }
        rounds.push(Round { bare: written, get: get.block.p50 * 1000.0, set: set.block.p50 * 1000.0 });
    }
    Ok(rounds)
}

/// Prints the table, if something was measured.
pub(super) fn print(rounds: &[Round]) {
    if !rounds.is_empty() {
        println!("\nOne connection's durable SET beside a bare O_DIRECT|DSYNC write: medians, microseconds");
        print!("{}", table(rounds));
    }
}

fn table(rounds: &[Round]) -> String {
    let row = |name: &str, digits: usize, of: fn(Round) -> f64| {
        let values: Vec<f64> = rounds.iter().copied().map(of).collect();
        let (low, high) = range(&values);
        vec![
            name.to_owned(),
            format!("{:.digits$}", median(&values)),
            format!("{low:.digits$}-{high:.digits$}"),
        ]
    };
    let rows = [
        row("bare write of the record", 0, |round| round.bare),
        row("GET, the client's way", 0, |round| round.get),
        row("SET, durable", 0, |round| round.set),
        row("SET / (bare write + GET)", 2, Round::ratio),
    ];
    table::render(&["one connection", "p50", "range"], &rows)
}

/// Writes `kv-commit.json` below `out`, if something was measured.
pub(super) fn write(rounds: &[Round], out: &Path) -> Result<(), Error> {
    if rounds.is_empty() {
        return Ok(());
    }
    plot::json(&out.join("kv-commit.json"), rounds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_to_the_write_and_the_way_together() {
        let rounds = [(80.0, 20.0, 120.0), (80.0, 20.0, 110.0), (90.0, 10.0, 105.0)];
        let rounds = rounds.map(|(bare, get, set)| Round { bare, get, set });
        insta::assert_snapshot!(table(&rounds), @r"
        one connection             p50      range
        bare write of the record    80      80-90
        GET, the client's way       20      10-20
        SET, durable               110    105-120
        SET / (bare write + GET)  1.10  1.05-1.20
        ");
    }
}
