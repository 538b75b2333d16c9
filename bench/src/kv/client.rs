//! redis-benchmark: runs one command and parses the report.

use std::net::SocketAddr;

use serde::Serialize;

use crate::error::Error;
use crate::process;

/// Random keys of the commands: more than fit the second-level cache, but so few that all exist
/// after the first second.
const KEYS: &str = "100000";

/// The load of the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Load {
    /// `get` or `set`.
    pub command: &'static str,
    /// Connections.
    pub connections: u32,
    /// Requests that a connection sends before it waits.
    pub pipeline: u32,
    /// Bytes of a value.
    pub value: usize,
}

/// The client's measurements of one block.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Block {
    /// Requests a second.
    pub rate: f64,
    /// Latency percentiles in milliseconds.
    pub p50: f64,
    /// The 99th.
    pub p99: f64,
    /// The 99.9th.
    pub p999: f64,
}

/// Requests that take about `seconds`, found with the blocks that `run` measures. A multiple of the
/// pipeline depth: with another number redis-benchmark 7.0 sometimes ends with "All clients
/// disconnected", if its clock ticks just after its last batch.
pub(crate) fn calibrate(
    load: Load,
    seconds: f64,
    mut run: impl FnMut(u64) -> Result<Block, Error>,
) -> Result<u64, Error> {
    let mut requests = 2000 * u64::from(load.pipeline);
    for _ in 0..6 {
        let rate = run(requests)?.rate;
        let wanted = (rate * seconds) as u64;
        if requests * 2 > wanted {
            return Ok(wanted.max(1000).next_multiple_of(u64::from(load.pipeline)));
        }
        requests = wanted.min(requests * 10).next_multiple_of(u64::from(load.pipeline));
    }
    Ok(requests)
}

/// The words after `redis-benchmark`.
pub(crate) fn words(address: SocketAddr, load: Load, requests: u64) -> Vec<String> {
    let option = |name: &str, value: &dyn ToString| [name.to_owned(), value.to_string()];
    [
        option("-h", &address.ip()),
        option("-p", &address.port()),
        option("-t", &load.command),
        option("-n", &requests),
        option("-c", &load.connections),
        option("-P", &load.pipeline),
        option("-d", &load.value),
        option("-r", &KEYS),
        option("--precision", &3),
    ]
    .concat()
}

/// Runs one block.
pub(crate) fn run(address: SocketAddr, load: Load, requests: u64) -> Result<Block, Error> {
    let own = ["-c", "1", "redis-benchmark"].map(String::from).to_vec();
    parse_output(&process::output("taskset", &[own, words(address, load, requests)].concat())?)
}

/// Parses the output of redis-benchmark.
pub(crate) fn parse_output(text: &str) -> Result<Block, Error> {
    parse(text).ok_or_else(|| Error::Program {
        program: "redis-benchmark".into(),
        what: format!("unknown output: {}", text.chars().take(200).collect::<String>()),
        fix: "use the one of Debian 12 (7.0)",
    })
}

fn parse(text: &str) -> Option<Block> {
    // Progress lines end in carriage returns; the report follows.
    let lines = || text.split(['\n', '\r']).map(str::trim);
    let rate = lines()
        .find_map(|line| line.strip_prefix("throughput summary: ")?.split(' ').next()?.parse::<f64>().ok())?;
    // The percentage of a line is where its step begins, and a step may hold nearly all requests.
    // So the requests up to its end count.
    let steps = || {
        lines().filter_map(|line| {
            let (_, rest) = line.split_once("% <= ")?;
            let (latency, rest) = rest.split_once(" milliseconds (cumulative count ")?;
            Some((latency.parse::<f64>().ok()?, rest.strip_suffix(')')?.parse::<f64>().ok()?))
        })
    };
    let total = steps().map(|(_, count)| count).fold(0.0, f64::max);
    let percentile = |wanted: f64| {
        let (latency, _) = steps().find(|(_, count)| *count >= total * wanted / 100.0)?;
        Some(latency)
    };
    Some(Block { rate, p50: percentile(50.0)?, p99: percentile(99.0)?, p999: percentile(99.9)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_parsed() {
        let text = "GET: rps=0.0\r====== GET ======\n  100 requests completed in 0.01 seconds\n\
            Latency by percentile distribution:\n0.000% <= 0.103 milliseconds (cumulative count 1)\n\
            50.000% <= 0.207 milliseconds (cumulative count 50)\n99.219% <= 0.303 milliseconds (cumulative count 99)\n\
            99.902% <= 0.407 milliseconds (cumulative count 100)\n100.000% <= 0.500 milliseconds (cumulative count 100)\n\
            Cumulative distribution of latencies:\n0.000% <= 0.103 milliseconds (cumulative count 0)\n\
            Summary:\n  throughput summary: 98912.96 requests per second\n  latency summary (msec):\n";
        let block = parse(text).expect("a report");
        assert!((block.rate - 98912.96).abs() < 0.001);
        assert_eq!([block.p50, block.p99, block.p999], [0.207, 0.303, 0.407]);
        let coarse = text.replace("cumulative count 1)", "cumulative count 60)");
        assert_eq!(parse(&coarse).map(|block| block.p50), Some(0.103), "the first step holds the median");
        assert!(parse("Could not connect").is_none());
    }
}
