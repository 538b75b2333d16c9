//! An unmodified redis-benchmark under `sietch run`, against three servers in alternating blocks.
//!
//! | server | the way of the client's bytes |
//! | --- | --- |
//! | redis-server | kernel loopback |
//! | redis-server under `sietch run` | shared memory, with the library at both ends |
//! | Sietch kv | shared memory, with kv as a native listener of the socket service |
//!
//! 1. All three are up at the same time, with one socket service: that of the `sietch up` which
//!    runs the store.
//! 2. Before the first block the measurement checks that the second and the third server are
//!    listeners of the service. With `--always` no connection of the client stays on the kernel
//!    then.
//! 3. With two shards the store may run on every core, the client's among them: the rate is then
//!    that of two busy threads and a client on the machine's cores, and the processor time of a
//!    request says what a core more would bring.
//! 4. The server that runs first alternates. A round of three blocks gives two ratios.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::block::{interrupted_error, sample};
use super::client::{self, Block, Load};
use super::results::Sample;
use super::servers::{self, Setting};
use crate::error::{Error, system};
use crate::machine::{SLOW, STOLEN};
use crate::options::Blocks;
use crate::plot::{self, Bar};
use crate::process::{self, Process};
use crate::table::{self, median, range};

/// The settings, as `--only` chooses them.
pub(super) const SETTINGS: [Setting; 4] = [
    Setting { name: "run memory", veth: false, durable: false, shards: 1 },
    Setting { name: "run durable", veth: false, durable: true, shards: 1 },
    Setting { name: "run memory 2 shards", veth: false, durable: false, shards: 2 },
    Setting { name: "run durable 2 shards", veth: false, durable: true, shards: 2 },
];

/// The ports of the three servers.
const PORTS: [u16; 3] = [7001, 7004, servers::SIETCH_PORT];

/// How long a listener may take until the service has it.
const REGISTRATION: Duration = Duration::from_secs(15);

/// One cell: the samples of the three servers, round by round.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Cell {
    setting: String,
    load: Load,
    /// redis-server on the kernel, redis-server under `sietch run`, Sietch kv.
    samples: [Vec<Sample>; 3],
    /// Rounds that were dropped.
    dropped: usize,
}

/// The servers of a setting. Dropping this ends them.
pub(super) struct Trio {
    addresses: [SocketAddr; 3],
    /// The words before a program under `sietch run`.
    prefix: Vec<String>,
    // The redis-server under `sietch run` ends before the service.
    _servers: [Process; 3],
}

impl Trio {
    pub(super) fn start(setting: Setting, scratch: &Path, out: &Path) -> Result<Self, Error> {
        let label = setting.name.replace(' ', "-");
        let folder = scratch.join(&label);
        let program = process::sietch_program()?.to_string_lossy().into_owned();
        process::preload_library()?;
        let addresses = PORTS.map(|port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
        let log = |side: &str| out.join(format!("{label}-{side}.log"));
        let own = |side: &str| -> Result<PathBuf, Error> {
            let own = folder.join(side);
            std::fs::create_dir_all(&own).map_err(system("making the data folder"))?;
            Ok(own)
        };
        let store = own("store")?;
        let mut third = servers::start_sietch(setting, &store, &log("sietch"))?;
        third.wait_for(addresses[2])?;
        let socket = servers::socket(&store);
        let prefix = [&program, "--socket", &socket, "run", "--always", "--"].map(String::from).to_vec();
        let redis = |address, side: &str, prefix: &[String]| {
            let words = servers::redis_words(setting, address, &own(side)?);
            let pinned = ["-c", "0"].map(String::from).to_vec();
            Process::start("taskset", &[&pinned, prefix, &words].concat(), &log(side))
        };
        let mut first = redis(addresses[0], "redis", &[])?;
        first.wait_for(addresses[0])?;
        let mut second = redis(addresses[1], "redis-run", &prefix)?;
        second.wait_for(addresses[1])?;
        let trio = Self { addresses, prefix, _servers: [second, first, third] };
        trio.wait_until_registered(&program, &socket)?;
        Ok(trio)
    }

    /// Waits until the service has the listeners of the last two servers.
    fn wait_until_registered(&self, program: &str, socket: &str) -> Result<(), Error> {
        let started = Instant::now();
        loop {
            let listed = process::output(program, &["--socket", socket, "sockets"])?;
            let missing = self.addresses[1..].iter().find(|address| !listed.contains(&address.to_string()));
            let Some(missing) = missing else { return Ok(()) };
            if started.elapsed() > REGISTRATION {
                return Err(Error::Program {
                    program: "sietch sockets".into(),
                    what: format!("{missing} is no listener of the service"),
                    fix: "see the servers' logs below target/bench",
                });
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Runs one block of the client under `sietch run`.
    pub(super) fn run(&self, server: usize, load: Load, requests: u64) -> Result<Block, Error> {
        let pinned = ["-c", "1"].map(String::from).to_vec();
        let own = vec!["redis-benchmark".to_owned()];
        let words = client::words(self.addresses[server], load, requests);
        client::parse_output(&process::output(
            "taskset",
            &[pinned, self.prefix.clone(), own, words].concat(),
        )?)
    }
}

/// Measures a setting.
pub(super) fn measure(
    setting: Setting,
    blocks: &Blocks,
    scratch: &Path,
    best: &[u64],
    stop: &AtomicBool,
    cells: &mut Vec<Cell>,
) -> Result<(), Error> {
    let trio = Trio::start(setting, scratch, &blocks.out)?;
    for load in servers::loads(setting, blocks.value) {
        let mut sizes = [0; 3];
        for (server, size) in sizes.iter_mut().enumerate() {
            *size = client::calibrate(load, blocks.seconds, |requests| trio.run(server, load, requests))?;
        }
        let mut cell = Cell { setting: setting.name.into(), load, samples: Default::default(), dropped: 0 };
        // A few more rounds than requested may replace dropped ones.
        for round in 0..blocks.pairs * 2 {
            if cell.samples[0].len() == blocks.pairs {
                break;
            }
            if stop.load(Ordering::Relaxed) {
                return Err(interrupted_error());
            }
            let mut taken: [Option<Sample>; 3] = [const { None }; 3];
            for step in 0..3 {
                let server = (round + step) % 3;
                let run = || trio.run(server, load, sizes[server]);
                taken[server] = Some(sample(run, sizes[server], best)?);
            }
            let disturbed = |sample: &Sample| sample.slowness > SLOW || sample.stolen > STOLEN;
            if taken.iter().flatten().any(disturbed) {
                cell.dropped += 1;
                continue;
            }
            for (samples, sample) in cell.samples.iter_mut().zip(taken) {
                samples.extend(sample);
            }
        }
        progress(&cell);
        cells.push(cell);
    }
    Ok(())
}

/// The ratios, round by round, of kv over server `to`, of the value that `of` takes from a sample.
fn ratios(cell: &Cell, to: usize, of: fn(&Sample) -> f64) -> Vec<f64> {
    let both = cell.samples[2].iter().zip(&cell.samples[to]);
    both.map(|(sietch, other)| of(sietch) / of(other).max(f64::MIN_POSITIVE)).collect()
}

fn rate(sample: &Sample) -> f64 {
    sample.block.rate
}

fn name(cell: &Cell) -> String {
    let load = cell.load;
    format!("{} {} c{} P{}", cell.setting, load.command.to_uppercase(), load.connections, load.pipeline)
}

fn progress(cell: &Cell) {
    let shown = |to| {
        let ratios = ratios(cell, to, rate);
        let (low, high) = range(&ratios);
        format!("{:.2}x ({low:.2} to {high:.2})", median(&ratios))
    };
    println!(
        "{}: {} redis on the kernel, {} redis under sietch run, {} rounds, {} dropped",
        name(cell),
        shown(0),
        shown(1),
        cell.samples[0].len(),
        cell.dropped
    );
}

/// Prints the table, if there are cells.
pub(super) fn print(cells: &[Cell]) {
    if !cells.is_empty() {
        println!(
            "\nredis-benchmark under `sietch run`: a redis-server on the kernel, b redis-server under `sietch run`, c kv; CPU is that of the whole machine"
        );
        print!("{}", table(cells));
    }
}

fn table(cells: &[Cell]) -> String {
    let heading = [
        "setting, command, connections, pipeline",
        "a req/s",
        "b req/s",
        "c req/s",
        "c/a",
        "range",
        "c/b",
        "range",
        "p50 ms",
        "p99 ms",
        "CPU us/req",
    ];
    let rows: Vec<Vec<String>> = cells
        .iter()
        .map(|cell| {
            let middles = |of: fn(&Sample) -> f64| {
                cell.samples.each_ref().map(|samples| median(&samples.iter().map(of).collect::<Vec<_>>()))
            };
            let all = |of: fn(&Sample) -> f64, digits: usize| {
                middles(of).map(|value| format!("{value:.digits$}")).join("/")
            };
            let mut row = vec![name(cell)];
            row.extend(middles(rate).map(|rate| format!("{rate:.0}")));
            for to in [0, 1] {
                let ratios = ratios(cell, to, rate);
                let (low, high) = range(&ratios);
                row.extend([format!("{:.2}", median(&ratios)), format!("{low:.2}-{high:.2}")]);
            }
            row.push(all(|sample| sample.block.p50, 3));
            row.push(all(|sample| sample.block.p99, 3));
            row.push(all(|sample| sample.cpu_us, 2));
            row
        })
        .collect();
    table::render(&heading, &rows)
}

/// Writes `kv-run.json` and `kv-run.svg` below `out`, if there are cells.
pub(super) fn write(cells: &[Cell], out: &Path) -> Result<(), Error> {
    if cells.is_empty() {
        return Ok(());
    }
    let bars: Vec<Bar> = cells
        .iter()
        .map(|cell| {
            let rates = ratios(cell, 1, rate);
            Bar { name: name(cell), ratio: median(&rates), range: range(&rates) }
        })
        .collect();
    let title = "Sietch kv beside redis-server, both reached through memory: requests a second";
    plot::write(out, "kv-run", title, cells, &bars)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_shows_kv_beside_both_redis_servers() {
        let sample = |rate: f64| Sample {
            block: Block { rate, p50: 0.1, p99: 0.2, p999: 0.4 },
            cpu_us: 1e6 / rate,
            stolen: 0.0,
            slowness: 1.0,
        };
        let samples = [[1e5, 1.1e5, 0.9e5], [8e5, 8e5, 9e5], [16e5, 11e5, 18e5]];
        let cell = Cell {
            setting: "run memory".to_owned(),
            load: Load { command: "get", connections: 50, pipeline: 1, value: 64 },
            samples: samples.map(|rates| rates.map(sample).to_vec()),
            dropped: 0,
        };
        insta::assert_snapshot!(table(&[cell]), @r"
        setting, command, connections, pipeline  a req/s  b req/s  c req/s    c/a        range   c/b      range             p50 ms             p99 ms       CPU us/req
        run memory GET c50 P1                     100000   800000  1600000  16.00  10.00-20.00  2.00  1.38-2.00  0.100/0.100/0.100  0.200/0.200/0.200  10.00/1.25/0.62
        ");
    }
}
