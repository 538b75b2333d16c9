//! The store in memory behind a link of shared memory, under a load generator on an engine of its own, beside redis-server on loopback
//! under redis-benchmark with the same load shape.
//!
//! 1. Servers are on core 0, clients on core 1. Blocks alternate; the median of the pairwise ratios is reported.
//! 2. Store and generator are two threads, each with its end of a link as the control plane makes them for two processes.
//! 3. With `--rate` only the link is measured, in an open loop.

mod generator;

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::thread::{CpuSet, sched_setaffinity};
use sietch::disk::MemoryQueue;
use sietch::net::{Config, Engine};
use sietch::nic::shm::{Endpoint, EndpointFds, Geometry, create_pair};
use sietch::{Idle, Spin, Stack, clock};
use sietch_kv::server::{Door, Plane};
use sietch_kv::settings::Settings;
use sietch_kv::shard::{Now, Shard};

use crate::error::{Error, system};
use crate::kv::client;
use crate::process::Process;
use crate::table::{self, median, range};
use generator::{Generator, Shape};

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 84, 1, 2);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 84, 1, 1);
const PORT: u16 = 6379;
const REDIS: u16 = 7011;
const MTU: usize = 1500;
/// Keys that both clients ask for: redis-benchmark is told the same.
const KEYS: u64 = 100_000;

/// Options of `bench load`.
#[derive(Debug, Clone, clap::Args)]
pub struct Arguments {
    /// Pairs of blocks a cell
    #[arg(long, default_value_t = 7)]
    pairs: usize,
    /// Seconds a block
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Bytes of a value
    #[arg(long, default_value_t = 64)]
    value: usize,
    /// Requests a second, in an open loop over the link alone
    #[arg(long)]
    rate: Option<f64>,
    /// Where logs go
    #[arg(long, default_value = "target/bench")]
    out: std::path::PathBuf,
}

/// Runs the comparison.
pub fn run(arguments: &Arguments) -> Result<(), Error> {
    std::fs::create_dir_all(&arguments.out).map_err(system("making the output folder"))?;
    let redis = arguments.rate.is_none().then(|| start_redis(&arguments.out)).transpose()?;
    let mut rows = Vec::new();
    for set in [true, false] {
        for connections in [1, 50] {
            for pipeline in [1, 16] {
                let (value, rate) = (arguments.value, arguments.rate);
                let shape = Shape { set, connections, pipeline, value, keys: KEYS, rate };
                rows.push(measure(arguments, shape, redis.as_ref().map(|(_, address)| *address))?);
            }
        }
    }
    let heading = [
        "command, connections, pipeline",
        "redis req/s",
        "sietch req/s",
        "ratio",
        "range",
        "p50/p99/p99.9 us",
    ];
    table::print(&heading, &rows);
    Ok(())
}

fn start_redis(out: &Path) -> Result<(Process, SocketAddr), Error> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, REDIS));
    let port = REDIS.to_string();
    let words = [
        "-c",
        "0",
        "redis-server",
        "--bind",
        "127.0.0.1",
        "--port",
        &port,
        "--save",
        "",
        "--appendonly",
        "no",
    ];
    let mut redis = Process::start("taskset", &words, &out.join("load-redis.log"))?;
    redis.wait_for(address)?;
    Ok((redis, address))
}

fn measure(arguments: &Arguments, shape: Shape, redis: Option<SocketAddr>) -> Result<Vec<String>, Error> {
    let link = system("the link between store and generator");
    let pair = create_pair(Geometry::for_mtu(MTU), 1).map_err(link)?;
    let stop = Arc::new(AtomicBool::new(false));
    let (far, stopped) = (pair.far, Arc::clone(&stop));
    let store = std::thread::spawn(move || serve(far, &stopped));
    pin(1)?;
    let queue = open(pair.near, 1)?;
    let stack = Stack::new(queue, &Config::new(CLIENT, 24, [1; 16]));
    let client = |cause| Error::System { action: "the load generator", cause };
    let mut generator =
        Generator::connect(stack, SocketAddrV4::new(SERVER, PORT), shape.connections).map_err(client)?;
    let duration = (arguments.seconds * 1e9) as u64;
    // GET finds what SET has written.
    let fill = Shape { set: true, pipeline: 16, rate: None, ..shape };
    generator.run(fill, duration).map_err(client)?;
    let (mut ours, mut theirs, mut all) = (Vec::new(), Vec::new(), None);
    let command = if shape.set { "set" } else { "get" };
    let load = client::Load {
        command,
        connections: shape.connections as u32,
        pipeline: shape.pipeline as u32,
        value: shape.value,
    };
    let requests = redis.map(|address| client::calibrate(address, load, arguments.seconds)).transpose()?;
    for _ in 0..arguments.pairs {
        if let (Some(address), Some(requests)) = (redis, requests) {
            theirs.push(client::run(address, load, requests)?.rate);
        }
        let begin = clock::now();
        let (replies, latencies) = generator.run(shape, duration).map_err(client)?;
        ours.push(replies as f64 * 1e9 / (clock::now() - begin) as f64);
        all.get_or_insert_with(|| latencies.clone()).add(latencies).map_err(|_| Error::System {
            action: "adding up latencies",
            cause: std::io::ErrorKind::InvalidData.into(),
        })?;
    }
    stop.store(true, Ordering::Relaxed);
    // A panic of the thread was printed when it happened.
    let _ = store.join();
    let ratios: Vec<f64> = ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs.max(1.0)).collect();
    let (low, high) = range(&ratios);
    let quantile = |quantile| all.as_ref().map_or(0.0, |all| all.value_at_quantile(quantile) as f64 / 1e3);
    Ok(vec![
        format!("{} c{} P{}", command.to_uppercase(), shape.connections, shape.pipeline),
        format!("{:.0}", median(&theirs)),
        format!("{:.0}", median(&ours)),
        format!("{:.2}", median(&ratios)),
        format!("{low:.2} to {high:.2}"),
        format!("{:.1}/{:.1}/{:.1}", quantile(0.5), quantile(0.99), quantile(0.999)),
    ])
}

fn pin(core: usize) -> Result<(), Error> {
    let mut cores = CpuSet::new();
    cores.set(core);
    sched_setaffinity(None, &cores).map_err(system("setting the CPU affinity"))
}

fn open(fds: EndpointFds, host: u8) -> Result<Endpoint, Error> {
    Endpoint::open(fds, Geometry::for_mtu(MTU), [2, 0, 0, 0, 0, host], MTU)
        .map_err(|cause| Error::System { action: "opening a link", cause: std::io::Error::other(cause) })
}

/// The store's loop, in memory, until it is told to stop.
fn serve(fds: EndpointFds, stop: &AtomicBool) -> Result<(), Error> {
    pin(0)?;
    let queue = open(fds, 2)?;
    let engine = Engine::new(&Config::new(SERVER, 24, [2; 16]), [2, 0, 0, 0, 0, 2], MTU);
    let listening = |cause| Error::System { action: "listening", cause: std::io::Error::other(cause) };
    let door = Door::open(queue, engine, SERVER, PORT).map_err(listening)?;
    let shard = Shard::new(Settings::default(), 42);
    let mut plane: Plane<Endpoint, MemoryQueue> = Plane::new(shard, None, Some(door), None);
    let mut spin = Spin::for_ever();
    while !stop.load(Ordering::Relaxed) {
        let now = clock::now();
        let turn = plane
            .turn(Now { monotonic_ns: now, unix_ms: 1_700_000_000_000 + now / 1_000_000 })
            .map_err(system("the store's loop"))?;
        if turn.busy {
            spin.busy(now);
        } else if spin.idle(now) == Idle::Yield {
            rustix::thread::sched_yield();
        } else {
            std::hint::spin_loop();
        }
    }
    Ok(())
}
