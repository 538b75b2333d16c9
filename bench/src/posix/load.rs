//! What clients do for the length of a block, and what they saw.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Variant;
use super::program::{Program, failed, words};
use super::rows::{Client, Row, Server};
use super::stage::{Running, Stage};
use crate::error::Error;
use crate::kv::client::{self, Block, Load};

/// How much longer than its block a client may take.
const GRACE: Duration = Duration::from_secs(15);

/// SETs before anything is measured: of the keys that redis-benchmark asks for, 95 % are there
/// then.
const FILLING: u64 = 300_000;

/// What a client saw.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(super) struct Told {
    /// Operations, also those that were made while nothing was counted.
    pub operations: f64,
    /// Operations a second.
    pub rate: f64,
    /// Latency in microseconds, as far as the client tells it.
    pub least: Option<f64>,
    pub p50: Option<f64>,
    pub p99: Option<f64>,
    pub p999: Option<f64>,
    /// Busy microseconds of the whole machine for each operation while it was counted, if the
    /// client watches: without its start and end.
    pub counted_cpu_us: Option<f64>,
}

impl Stage {
    /// Runs a client of `words` to its end, which must come soon after `seconds`.
    fn client_says(
        &self,
        name: &str,
        variant: Variant,
        words: Vec<std::ffi::OsString>,
        seconds: f64,
    ) -> Result<String, Error> {
        let command = self.client(variant, words)?;
        let limit = Duration::from_secs_f64(seconds) + GRACE;
        Program::start(name, &command, &self.log(&format!("{name}-client")))?.output(limit, &self.stop)
    }

    fn redis(
        &self,
        load: Load,
        running: &Running,
        variant: Variant,
        requests: u64,
        seconds: f64,
    ) -> Result<Block, Error> {
        let command =
            [vec!["redis-benchmark".to_owned()], client::words(running.address, load, requests)].concat();
        client::understand(&self.client_says("redis-benchmark", variant, words(&command), seconds)?)
    }

    /// Gives a server the data that it is asked for.
    pub fn fill(&self, server: Server, running: &Running, variant: Variant) -> Result<(), Error> {
        match server {
            Server::Redis => {
                let load = Load { command: "set", connections: 50, pipeline: 16, value: 64 };
                self.redis(load, running, variant, FILLING, 1.0).map(drop)
            }
            Server::Memcached { .. } => {
                let words = self.agent("memcached-fill", running.address);
                self.client_says("memcached", variant, words, 1.0).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// How many requests a block has for clients that do not know seconds; warms up everybody.
    pub fn size(&self, row: &Row, running: &Running, variant: Variant, seconds: f64) -> Result<u64, Error> {
        match row.client {
            Client::Redis(load) => client::calibrate(load, seconds, |requests| {
                self.redis(load, running, variant, requests, seconds)
            }),
            _ => self.load(row, running, variant, seconds.min(0.3), 0).map(|_| 0),
        }
    }

    /// One block.
    pub fn load(
        &self,
        row: &Row,
        running: &Running,
        variant: Variant,
        seconds: f64,
        size: u64,
    ) -> Result<Told, Error> {
        let (host, port) = (running.address.ip().to_string(), running.address.port().to_string());
        let whole = seconds.ceil().max(1.0);
        match row.client {
            Client::Redis(load) => {
                let block = self.redis(load, running, variant, size, seconds)?;
                let [p50, p99, p999] = [block.p50, block.p99, block.p999].map(|time| Some(time * 1e3));
                Ok(Told {
                    operations: size as f64,
                    rate: block.rate,
                    least: None,
                    p50,
                    p99,
                    p999,
                    counted_cpu_us: None,
                })
            }
            Client::Memcached { connections } => {
                let options = ["--connections".to_owned(), connections.to_string()];
                self.own("memcached", variant, running, &options, seconds)
            }
            Client::Rpc { connections, rate } => {
                let rate = ["--rate".to_owned(), rate.to_string()];
                let options =
                    [vec!["--connections".to_owned(), connections.to_string()], rate.to_vec()].concat();
                self.own("rpc", variant, running, &options, seconds)
            }
            Client::Wrk { connections } => {
                let (connections, time) = (format!("-c{connections}"), format!("-d{whole}s"));
                let url = format!("http://{}/file", running.address);
                let command = words(&["wrk", "-t1", &connections, &time, "--latency", &url]);
                let text = self.client_says("wrk", variant, command, whole)?;
                wrk(&text).ok_or_else(|| not_understood("wrk", &text))
            }
            Client::Pgbench { clients } => {
                let (clients, time) = (clients.to_string(), whole.to_string());
                let command = [
                    "pgbench", "-S", "-n", "-h", &host, "-p", &port, "-U", "postgres", "-c", &clients, "-T",
                    &time, "postgres",
                ];
                let text = self.client_says("pgbench", variant, words(&command), whole)?;
                pgbench(&text).ok_or_else(|| not_understood("pgbench", &text))
            }
            Client::Iperf { reverse } => {
                let time = whole.to_string();
                let mut command = words(&["iperf3", "-c", &host, "-p", &port, "-t", &time, "-J"]);
                command.extend(reverse.then(|| "-R".into()));
                let text = self.client_says("iperf3", variant, command, whole)?;
                iperf(&text).ok_or_else(|| not_understood("iperf3", &text))
            }
        }
    }

    /// A client of our own.
    fn own(
        &self,
        role: &str,
        variant: Variant,
        running: &Running,
        options: &[String],
        seconds: f64,
    ) -> Result<Told, Error> {
        let mut command = self.agent(role, running.address);
        command.extend(words(options));
        command.extend(words(&["--seconds", &seconds.to_string()]));
        let text = self.client_says(role, variant, command, seconds)?;
        serde_json::from_str(text.trim()).map_err(|_| not_understood(role, &text))
    }
}

fn not_understood(name: &str, text: &str) -> Error {
    let start: String = text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(160).collect();
    failed(name, format!("said what could not be understood: \"{start}\""))
}

/// The first word after `mark`, as a number.
fn after(text: &str, mark: &str) -> Option<f64> {
    let (_, rest) = text.split_once(mark)?;
    rest.split_whitespace().next()?.parse().ok()
}

/// A time with its unit, in microseconds.
fn microseconds(word: &str) -> Option<f64> {
    let units = [("us", 1.0), ("ms", 1e3), ("s", 1e6)];
    units.iter().find_map(|(unit, factor)| Some(word.strip_suffix(unit)?.parse::<f64>().ok()? * factor))
}

fn wrk(text: &str) -> Option<Told> {
    if text.contains("Socket errors") || text.contains("Non-2xx") {
        return None;
    }
    let count = text.lines().find_map(|line| line.trim().split_once(" requests in ")?.0.parse().ok())?;
    let p50 = text.lines().find_map(|line| microseconds(line.trim().strip_prefix("50%")?.trim()));
    Some(Told { operations: count, rate: after(text, "Requests/sec:")?, p50, ..Told::default() })
}

fn pgbench(text: &str) -> Option<Told> {
    if after(text, "number of failed transactions:")? > 0.0 {
        return None;
    }
    let operations = after(text, "number of transactions actually processed:")?;
    Some(Told { operations, rate: after(text, "tps =")?, ..Told::default() })
}

fn iperf(text: &str) -> Option<Told> {
    let report: serde_json::Value = serde_json::from_str(text).ok()?;
    let sum = report.get("end")?.get("sum_received")?;
    let bytes = sum.get("bytes")?.as_f64()?;
    let seconds = sum.get("seconds")?.as_f64()?;
    Some(Told { operations: bytes / 1e6, rate: bytes / 1e6 / seconds, ..Told::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrk_is_understood() {
        let text = "Running 1s test @ http://127.0.0.1:5556/file\n  Latency Distribution\n     50%    1.34ms\n     99%    9.18ms\n  \
            30847 requests in 1.01s, 37.18MB read\nRequests/sec:  30563.95\nTransfer/sec:     36.84MB\n";
        let told = wrk(text).expect("a report");
        assert_eq!((told.operations, told.rate, told.p50), (30847.0, 30563.95, Some(1340.0)));
        assert!(
            wrk(&text.replace("Requests/sec", "Socket errors: connect 0, read 3\nRequests/sec")).is_none()
        );
    }

    #[test]
    fn pgbench_is_understood() {
        let text = "number of transactions actually processed: 21034\nnumber of failed transactions: 0 (0.000%)\n\
            latency average = 0.047 ms\ninitial connection time = 3.1 ms\ntps = 21077.32 (without initial connection time)\n";
        let told = pgbench(text).expect("a report");
        assert_eq!((told.operations, told.rate), (21034.0, 21077.32));
        assert!(pgbench("pgbench: error: connection refused").is_none());
    }

    #[test]
    fn iperf_is_understood() {
        let text = r#"{"end": {"sum_received": {"bytes": 2000000, "seconds": 0.5, "bits_per_second": 1}}}"#;
        let told = iperf(text).expect("a report");
        assert_eq!((told.operations, told.rate), (2.0, 4.0));
        assert!(iperf(r#"{"error": "unable to connect"}"#).is_none());
    }
}
