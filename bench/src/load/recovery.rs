//! How fast a server recovers its keys: redis-server's append-only file beside Sietch's log, with
//! the same data.
//!
//! 1. Both are filled with the same keys, every write durable, and ended. Each is then started a
//!    few times. The measured time is the server's own report of its loading time, from Redis' log
//!    ("DB loaded from append only file") and Sietch's INFO persistence. It does not include the
//!    start of a process.
//! 2. This is done once with the data as commands, one after the other, and once after a rewrite:
//!    Redis' RDB preamble, Sietch's snapshot.

use std::path::Path;

use serde::Serialize;

use super::compaction::{MANY, fill};
use super::control::ControlConnection;
use super::generator::Generator;
use super::limits::CONNECTIONS;
use super::transport::Sockets;
use crate::error::{Error, system};
use crate::kv::servers::{LOOPBACK_DURABLE, Pair};
use crate::table::{self, median};

/// Starts of each.
const TIMES: usize = 3;

/// The data that was read, and the times of both servers.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Loaded {
    what: &'static str,
    /// Seconds, one value for each start.
    redis: Vec<f64>,
    sietch: Vec<f64>,
    /// Bytes that were read.
    redis_bytes: f64,
    sietch_bytes: f64,
}

/// Fills, ends and starts both; data below `scratch`, logs in `out`.
pub(super) fn measure(scratch: &Path, out: &Path, value: usize) -> Result<Vec<Loaded>, Error> {
    let scratch = scratch.join("recovery");
    let start = || Pair::start(LOOPBACK_DURABLE, &scratch, out);
    let pair = start()?;
    for address in [pair.redis, pair.sietch] {
        let sockets = Sockets::connect(address, CONNECTIONS).map_err(system("connecting to a server"))?;
        fill(&mut Generator::new(sockets, CONNECTIONS), value)?;
    }
    drop(pair);
    let mut all = Vec::new();
    for what in ["commands", "after a rewrite"] {
        let mut loaded = Loaded { what, redis: vec![], sietch: vec![], redis_bytes: 0.0, sietch_bytes: 0.0 };
        for time in 0..TIMES {
            let pair = start()?;
            let mut sietch = ControlConnection::connect(pair.sietch)?;
            loaded.sietch.push(sietch.field("recovery_seconds")?);
            loaded.sietch_bytes = sietch.field("recovery_bytes")?;
            let mut redis = ControlConnection::connect(pair.redis)?;
            loaded.redis.push(load_seconds(&out.join("loopback-durable-redis.log"))?);
            loaded.redis_bytes = redis.field("aof_current_size")?;
            if time + 1 == TIMES && all.is_empty() {
                sietch.compact()?;
                redis.compact()?;
            }
        }
        all.push(loaded);
    }
    Ok(all)
}

/// The loading time in redis-server's log.
fn load_seconds(log: &Path) -> Result<f64, Error> {
    let text = std::fs::read_to_string(log).map_err(system("reading redis-server's log"))?;
    text.lines()
        .rev()
        .find_map(|line| line.split("DB loaded from append only file: ").nth(1))
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .ok_or_else(|| Error::Program {
            program: "redis-server".into(),
            what: "has no loading time in its log".into(),
            fix: "use the one of Debian 12 (7.0)",
        })
}

/// Prints what was measured.
pub(super) fn print(all: &[Loaded]) {
    if all.is_empty() {
        return;
    }
    println!(
        "\nrecovery of {MANY} keys, {TIMES} starts each; times are each server's own report of reading its data"
    );
    let rows: Vec<Vec<String>> = all
        .iter()
        .map(|loaded| {
            let (redis, sietch) = (median(&loaded.redis), median(&loaded.sietch));
            let rate = |bytes: f64, seconds: f64| {
                format!("{:.0} MB, {:.2} GB/s", bytes / 1e6, bytes / 1e9 / seconds.max(1e-9))
            };
            vec![
                loaded.what.to_owned(),
                format!("{redis:.3}"),
                format!("{sietch:.3}"),
                format!("{:.2}", redis / sietch.max(1e-9)),
                rate(loaded.redis_bytes, redis),
                rate(loaded.sietch_bytes, sietch),
            ]
        })
        .collect();
    table::print(&["data", "redis s", "sietch s", "times as fast", "redis read", "sietch read"], &rows);
}
