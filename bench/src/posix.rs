//! Unmodified programs on the kernel's sockets and under `sietch run`: the same binaries, the same
//! loopback.
//!
//! 1. A *row* is a server, a client and the client's requests. A *column* says which of the two run
//!    under `sietch run`:
//!    - Linux: neither. Sietch: both.
//!    - With `--one-end`: the server alone. Its client is a program of this host that does not use
//!      Sietch.
//!    - With `--same`: neither, a second time. The difference to Linux is then the noise of the
//!      machine.
//!    - With `--vnic` there are two other columns: servers in a network namespace behind a veth
//!      pair, and servers on a VNIC over AF_XDP that a service core serves (`sietch run --vnic`).
//!      The same client, on the kernel's sockets at the host's end of the pair, loads both
//!      ([`network`]).
//! 2. The servers of all columns of a row are up at the same time, each on a port of its own. Only
//!    one of them has load at a time. A round runs one block of every column, in a rotating order.
//!    Servers are pinned to CPU 1 and clients to CPU 0, in every column alike.
//! 3. A calibration loop runs on each core around a block. A round in which a core was slow, or
//!    much time was stolen, is dropped and counted. The report also states the processor time of
//!    other processes.
//! 4. CPU per operation is that of the whole machine, interrupts and the start of the client
//!    included. A client of the bench itself that keeps a fixed rate measures only the time in
//!    which its requests count. At few requests a second, connection setup would otherwise be most
//!    of it.
//! 5. No program can hang the measurement: each has a time limit. A column that fails reports the
//!    reason and has no more blocks in its row; the next row restarts its server.
//! 6. Everything runs in its own network namespace, with cubic. There is no column with busy
//!    polling. The kernel busy-polls the NAPI instance of a socket, and packets over loopback have
//!    none (`SO_INCOMING_NAPI_ID` is 0), so `net.core.busy_poll` has no effect here.

mod agent;
mod environment;
mod idle;
mod load;
mod network;
mod program;
mod report;
mod results;
mod rows;
mod sietch;
mod tree;
mod variants;

use std::path::PathBuf;
use std::time::Instant;

use crate::error::{Error, system};
use crate::isolation::{self, interrupted};
use crate::machine::{self, Cpu, SLOW, STOLEN};
pub(crate) use agent::{Arguments as AgentArguments, run as act};
use environment::{Environment, Running};
use results::{Column, Measured, Sample};
use rows::{Row, Server};
use variants::{BOTH, LINUX, Location, ONE_END, SAME, SERVED, Variant};

/// Options of `bench posix`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Arguments {
    /// Rounds a row
    #[arg(long, default_value_t = 7)]
    pairs: usize,
    /// Seconds a block; programs that only know whole seconds get the next one
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Only rows whose name contains this (redis, `GET c50`, memcached, nginx, pgbench, iperf3,
    /// zookeeper, gloo, rpc, idle)
    #[arg(long)]
    only: Option<String>,
    /// Name the rows and measure nothing
    #[arg(long)]
    list: bool,
    /// A column with the server alone under Sietch
    #[arg(long)]
    one_end: bool,
    /// Servers behind veth pairs instead, on the kernel's sockets and on a VNIC over AF_XDP;
    /// clients on the kernel's sockets
    #[arg(long, conflicts_with = "one_end")]
    vnic: bool,
    /// A second column of Linux: how much two equal columns differ here
    #[arg(long)]
    same: bool,
    /// Keep the rounds in which a core was slow or stolen: a rough hint from a busy machine
    #[arg(long)]
    keep: bool,
    /// No Sietch: Linux alone
    #[arg(long)]
    linux_only: bool,
    /// Where logs, JSON and SVG go
    #[arg(long, default_value = "target/bench")]
    out: PathBuf,
}

impl Arguments {
    /// The columns, Linux the first.
    fn variants(&self) -> Vec<Variant> {
        let location = if self.vnic { Location::Veth } else { Location::Loopback };
        let mut variants = vec![Variant { location, ..LINUX }];
        variants.extend(self.same.then_some(Variant { location, ..SAME }));
        match (self.linux_only, self.vnic) {
            (true, _) => {}
            (false, true) => variants.push(SERVED),
            (false, false) => {
                variants.push(BOTH);
                variants.extend(self.one_end.then_some(ONE_END));
            }
        }
        variants
    }
}

/// Runs the whole comparison.
///
/// # Errors
/// The kernel refused an operation, a result could not be written, or the user interrupted the run.
/// A program that fails is a line of the report.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Error> {
    let wanted = |name: &str| arguments.only.as_ref().is_none_or(|only| name.contains(only.as_str()));
    // The ranks of gloo listen and connect both, at addresses of the loopback.
    let reaches = |row: &Row| !arguments.vnic || !matches!(row.server, Server::Gloo { .. });
    let rows: Vec<Row> = rows::all().into_iter().filter(|row| wanted(&row.name) && reaches(row)).collect();
    if arguments.list {
        rows.iter().for_each(|row| println!("{}", row.name));
        return Ok(());
    }
    if !rustix::process::geteuid().is_root() {
        return Err(Error::Program {
            program: "bench posix".into(),
            what: "needs root for a network namespace of its own".into(),
            fix: "run it as root",
        });
    }
    if isolation::enter()? {
        return Ok(());
    }
    std::fs::create_dir_all(&arguments.out).map_err(system("making the output folder"))?;
    tree::adopt_orphans()?;
    println!("{}", machine::describe());
    println!("{}", machine::absences()?);
    println!("{}", machine::distance()?);
    println!(
        "{} rounds of blocks of {} s; servers on CPU 1, clients on CPU 0, in all columns alike; {}; the machine has to be idle",
        arguments.pairs,
        arguments.seconds,
        if arguments.vnic { "veth pairs; the service core where the scheduler puts it" } else { "loopback" }
    );
    if !arguments.vnic {
        println!(
            "no column with busy polling: loopback has no NAPI instance to poll, net.core.busy_poll changes nothing"
        );
    }
    let environment = Environment::create(&arguments.out, interrupted()?)?;
    let variants = arguments.variants();
    let mut bench =
        Bench { arguments, environment: &environment, variants, best: machine::calibrate()?, servers: None };
    let mut results = Vec::new();
    for row in rows {
        let result = bench.measure(row)?;
        report::progress(&result);
        results.push(result);
    }
    let measures_idle = wanted(idle::NAME) && !arguments.vnic;
    let idle = if measures_idle { idle::measure(&environment, &bench.variants)? } else { Vec::new() };
    report::print(&results, &idle);
    report::write(&results, &idle, &arguments.out, arguments.vnic)
}

/// The servers of all columns: the kind of server, and for each column the server or why it is
/// absent.
type Servers = (Server, Vec<Result<Running, String>>);

/// State that outlives a row.
struct Bench<'a> {
    arguments: &'a Arguments,
    environment: &'a Environment,
    variants: Vec<Variant>,
    /// The calibrated speed of the cores.
    best: Vec<u64>,
    servers: Option<Servers>,
}

impl Bench<'_> {
    /// Runs one row to its end.
    fn measure(&mut self, row: Row) -> Result<Measured, Error> {
        let column = |variant: &Variant| Column { variant: variant.name, samples: Vec::new(), failed: None };
        let columns = self.variants.iter().map(column).collect();
        let mut result = Measured { row, columns, dropped: 0, skipped: None };
        let missing = result.row.needs().iter().find(|needed| program::find(needed).is_none());
        if let Some(missing) = missing {
            result.skipped = Some(format!("needs {missing}"));
            return Ok(result);
        }
        self.start(result.row.server)?;
        let mut sizes = vec![0; self.variants.len()];
        for (at, size) in sizes.iter_mut().enumerate() {
            match self.size(&result.row, at) {
                Ok(found) => *size = found,
                Err(cause) => self.fail(&mut result, at, &cause)?,
            }
        }
        // A few more rounds than requested may replace dropped ones.
        for round in 0..self.arguments.pairs * 2 {
            let all_failed = result.columns.iter().all(|column| column.failed.is_some());
            if result.columns[0].samples.len() == self.arguments.pairs || all_failed {
                break;
            }
            self.round(round, &sizes, &mut result)?;
        }
        Ok(result)
    }

    /// A block of every column that has not failed.
    fn round(&mut self, round: usize, sizes: &[u64], result: &mut Measured) -> Result<(), Error> {
        let count = self.variants.len();
        let mut samples: Vec<Option<Sample>> = vec![None; count];
        for position in 0..count {
            let at = (position + round) % count;
            if result.columns[at].failed.is_some() {
                continue;
            }
            match self.block(&result.row, at, sizes[at]) {
                Ok(sample) => samples[at] = Some(sample),
                Err(cause) => self.fail(result, at, &cause)?,
            }
        }
        let bad = |sample: &Sample| sample.slowness > SLOW || sample.stolen > STOLEN;
        if !self.arguments.keep && samples.iter().flatten().any(bad) {
            result.dropped += 1;
            return Ok(());
        }
        for (column, sample) in result.columns.iter_mut().zip(samples) {
            column.samples.push(sample);
        }
        Ok(())
    }

    /// Starts the `server` of every column, unless the server of the previous row is the same and
    /// works.
    fn start(&mut self, server: Server) -> Result<(), Error> {
        if self.servers.as_ref().is_some_and(|(running, _)| *running != server) {
            self.servers = None;
        }
        let variants = &self.variants;
        let (_, servers) = self.servers.get_or_insert_with(|| {
            (server, variants.iter().map(|_| Err("not started".to_owned())).collect())
        });
        for (slot, variant) in servers.iter_mut().zip(variants) {
            let works = slot.as_mut().is_ok_and(|running| running.program.is_up().is_ok());
            if !works {
                *slot = self.environment.start(server, *variant).map_err(|cause| cause.cause());
            }
            self.environment.check_interrupt()?;
        }
        Ok(())
    }

    /// The server of a column.
    fn server(&self, at: usize) -> Result<&Running, Error> {
        let server = self.servers.as_ref().and_then(|(_, servers)| servers.get(at));
        let server = server.ok_or_else(|| program::failed("server", "not started".into()))?;
        server.as_ref().map_err(|cause| program::failed("server", cause.clone()))
    }

    /// Records that a column failed, and ends its server, which may hang. Fails if the user has
    /// interrupted the measurement.
    fn fail(&mut self, result: &mut Measured, at: usize, cause: &Error) -> Result<(), Error> {
        self.environment.check_interrupt()?;
        result.columns[at].failed = Some(cause.cause());
        if let Some((_, servers)) = &mut self.servers {
            servers[at] = Err("ended after a failure".into());
        }
        Ok(())
    }

    /// The size of a column's block, for clients that count requests instead of time. The
    /// calibration also warms up both ends.
    fn size(&self, row: &Row, at: usize) -> Result<u64, Error> {
        self.environment.size(row, self.server(at)?, self.variants[at], self.arguments.seconds)
    }

    fn block(&self, row: &Row, at: usize, size: u64) -> Result<Sample, Error> {
        let running = self.server(at)?;
        let before = machine::calibrate()?;
        let (begin, cpu, own) = (Instant::now(), Cpu::read()?, tree::used());
        let client = self.environment.load(row, running, self.variants[at], self.arguments.seconds, size)?;
        let (elapsed, cpu) = (begin.elapsed().as_nanos() as f64, Cpu::read()?.since(cpu));
        let own = tree::used().saturating_sub(own);
        let after = machine::calibrate()?;
        Ok(Sample {
            cpu_us: client.counted_cpu_us.unwrap_or(cpu.busy as f64 / 1e3 / client.operations.max(1.0)),
            foreign: cpu.busy.saturating_sub(cpu.interrupts + own) as f64 / elapsed,
            stolen: cpu.stolen as f64 / elapsed / before.len().max(1) as f64,
            slowness: machine::slowness(&before, &after, &self.best),
            client,
        })
    }
}
