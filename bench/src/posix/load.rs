//! Runs the clients for the length of a block, and parses their output.

use std::time::Duration;

use super::environment::{Environment, Running};
use super::program::{Program, failed, words};
use super::results::ClientReport;
use super::rows::{Client, PYTHON, Row, Server};
use super::variants::Variant;
use crate::error::Error;
use crate::kv::client::{self, Block, Load};

/// How much longer than its block a client may run.
const GRACE: Duration = Duration::from_secs(15);

/// SETs before the measurement: afterwards 95 % of the keys that redis-benchmark requests exist.
const FILLING: u64 = 300_000;

impl Environment {
    /// Runs the command `words` to its end; it must end soon after `seconds`.
    fn client_output(
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
        client::parse_output(&self.client_output("redis-benchmark", variant, words(&command), seconds)?)
    }

    /// Fills a server with the data that the clients request.
    pub(super) fn fill(&self, server: Server, running: &Running, variant: Variant) -> Result<(), Error> {
        match server {
            Server::Redis => {
                let load = Load { command: "set", connections: 50, pipeline: 16, value: 64 };
                self.redis(load, running, variant, FILLING, 1.0).map(drop)
            }
            Server::Memcached { .. } => {
                let words = self.agent("memcached-fill", running.address);
                self.client_output("memcached", variant, words, 1.0).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// The number of requests in a block, for clients without a time limit; warms up both ends.
    pub(super) fn size(
        &self,
        row: &Row,
        running: &Running,
        variant: Variant,
        seconds: f64,
    ) -> Result<u64, Error> {
        match row.client {
            Client::Redis(load) => client::calibrate(load, seconds, |requests| {
                self.redis(load, running, variant, requests, seconds)
            }),
            _ => self.load(row, running, variant, seconds.min(0.3), 0).map(|_| 0),
        }
    }

    /// One block.
    pub(super) fn load(
        &self,
        row: &Row,
        running: &Running,
        variant: Variant,
        seconds: f64,
        size: u64,
    ) -> Result<ClientReport, Error> {
        let (host, port) = (running.address.ip().to_string(), running.address.port().to_string());
        let whole = seconds.ceil().max(1.0);
        match row.client {
            Client::Redis(load) => {
                let block = self.redis(load, running, variant, size, seconds)?;
                let [p50, p99, p999] = [block.p50, block.p99, block.p999].map(|time| Some(time * 1e3));
                Ok(ClientReport {
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
            Client::Lock => {
                let script = self.folder(running.address.port()).join("lock.py");
                let mut command = words(&[PYTHON.as_ref(), script.as_os_str()]);
                command.extend(words(&[&running.address.to_string(), &seconds.to_string()]));
                report("kazoo", &self.client_output("kazoo", variant, command, seconds)?)
            }
            Client::AllReduce { floats } => {
                let folder = self.folder(running.address.port());
                let mut command = self.all_reduce("load", &folder, floats)?;
                command.extend(words(&[&seconds.to_string()]));
                report("gloo", &self.client_output("gloo", variant, command, seconds)?)
            }
            Client::Wrk { connections } => {
                let (connections, time) = (format!("-c{connections}"), format!("-d{whole}s"));
                let url = format!("http://{}/file", running.address);
                let command = words(&["wrk", "-t1", &connections, &time, "--latency", &url]);
                let text = self.client_output("wrk", variant, command, whole)?;
                wrk(&text).ok_or_else(|| unexpected_output("wrk", &text))
            }
            Client::Pgbench { clients } => {
                let (clients, time) = (clients.to_string(), whole.to_string());
                let command = [
                    "pgbench", "-S", "-n", "-h", &host, "-p", &port, "-U", "postgres", "-c", &clients, "-T",
                    &time, "postgres",
                ];
                let text = self.client_output("pgbench", variant, words(&command), whole)?;
                pgbench(&text).ok_or_else(|| unexpected_output("pgbench", &text))
            }
            Client::Iperf { reverse } => {
                let time = whole.to_string();
                let mut command = words(&["iperf3", "-c", &host, "-p", &port, "-t", &time, "-J"]);
                command.extend(reverse.then(|| "-R".into()));
                let text = self.client_output("iperf3", variant, command, whole)?;
                iperf(&text).ok_or_else(|| unexpected_output("iperf3", &text))
            }
        }
    }

    /// A client of the bench itself.
    fn own(
        &self,
        role: &str,
        variant: Variant,
        running: &Running,
        options: &[String],
        seconds: f64,
    ) -> Result<ClientReport, Error> {
        let mut command = self.agent(role, running.address);
        command.extend(words(options));
        command.extend(words(&["--seconds", &seconds.to_string()]));
        report(role, &self.client_output(role, variant, command, seconds)?)
    }
}

/// The report of a client that prints it as JSON.
fn report(name: &str, text: &str) -> Result<ClientReport, Error> {
    serde_json::from_str(text.trim()).map_err(|_| unexpected_output(name, text))
}

fn unexpected_output(name: &str, text: &str) -> Error {
    let start: String = text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(160).collect();
    failed(name, format!("unexpected output: \"{start}\""))
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

fn wrk(text: &str) -> Option<ClientReport> {
    if text.contains("Socket errors") || text.contains("Non-2xx") {
        return None;
    }
    let count = text.lines().find_map(|line| line.trim().split_once(" requests in ")?.0.parse().ok())?;
    let p50 = text.lines().find_map(|line| microseconds(line.trim().strip_prefix("50%")?.trim()));
    Some(ClientReport {
        operations: count,
        rate: after(text, "Requests/sec:")?,
        p50,
        ..ClientReport::default()
    })
}

fn pgbench(text: &str) -> Option<ClientReport> {
    if after(text, "number of failed transactions:")? > 0.0 {
        return None;
    }
    let operations = after(text, "number of transactions actually processed:")?;
    Some(ClientReport { operations, rate: after(text, "tps =")?, ..ClientReport::default() })
}

fn iperf(text: &str) -> Option<ClientReport> {
    let report: serde_json::Value = serde_json::from_str(text).ok()?;
    let sum = report.get("end")?.get("sum_received")?;
    let bytes = sum.get("bytes")?.as_f64()?;
    let seconds = sum.get("seconds")?.as_f64()?;
    Some(ClientReport { operations: bytes / 1e6, rate: bytes / 1e6 / seconds, ..ClientReport::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrk_output_is_parsed() {
        let text = "Running 1s test @ http://127.0.0.1:5556/file\n  Latency Distribution\n     50%    1.34ms\n     99%    9.18ms\n  \
            30847 requests in 1.01s, 37.18MB read\nRequests/sec:  30563.95\nTransfer/sec:     36.84MB\n";
        let report = wrk(text).expect("a report");
        assert_eq!((report.operations, report.rate, report.p50), (30847.0, 30563.95, Some(1340.0)));
        assert!(
            wrk(&text.replace("Requests/sec", "Socket errors: connect 0, read 3\nRequests/sec")).is_none()
        );
    }

    #[test]
    fn pgbench_output_is_parsed() {
        let text = "number of transactions actually processed: 21034\nnumber of failed transactions: 0 (0.000%)\n\
            latency average = 0.047 ms\ninitial connection time = 3.1 ms\ntps = 21077.32 (without initial connection time)\n";
        let report = pgbench(text).expect("a report");
        assert_eq!((report.operations, report.rate), (21034.0, 21077.32));
        assert!(pgbench("pgbench: error: connection refused").is_none());
    }

    #[test]
    fn iperf_output_is_parsed() {
        let text = r#"{"end": {"sum_received": {"bytes": 2000000, "seconds": 0.5, "bits_per_second": 1}}}"#;
        let report = iperf(text).expect("a report");
        assert_eq!((report.operations, report.rate), (2.0, 4.0));
        assert!(iperf(r#"{"error": "unable to connect"}"#).is_none());
    }
}
