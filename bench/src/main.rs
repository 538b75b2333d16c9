//! Side-by-side measurements: Linux and Sietch alternate in one run, same machine, same work, same
//! client.
//!
//! `cargo run --release -p sietch-bench -- NAME` prints a table and writes JSON and SVG to
//! `target/bench/`.
//!
//! 1. Two servers of one kind each are up at the same time; blocks of about a second alternate
//!    between them (A B A B ...).
//! 2. Around each block the machine's CPU counters are read, and a short calibration loop runs on
//!    each core. A pair with a block in which a core was slow, or in which much time was stolen, is
//!    dropped and counted.
//! 3. Reported are medians over pairs, the range, and the median of the pairwise ratios.
#![forbid(unsafe_code)]

mod error;
mod fs;
mod isolation;
mod kv;
mod load;
mod machine;
mod net;
mod options;
mod plot;
mod posix;
mod process;
mod storage;
mod table;

use clap::{Parser, Subcommand};

/// Measures Sietch beside Linux.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// The file system: operations and filebench's flows beside ext4 and tmpfs, and recovery
    Fs(fs::Arguments),
    /// redis-server and Sietch kv under redis-benchmark, behind a veth pair and on kernel sockets
    Kv(kv::Arguments),
    /// redis-server, and the store on kernel sockets and on a link of shared memory, under one load
    /// generator
    Load(load::Arguments),
    /// The network engine: UDP echo, RPC, bulk and connections beside kernel sockets
    Net(net::Arguments),
    /// Unmodified programs: redis-server, memcached, nginx, PostgreSQL and iperf3 on kernel sockets
    /// and under `sietch run`
    Posix(posix::Arguments),
    /// The persistent log: appends beside files, SQLite, redis-server and libpmemlog, and recovery
    Storage(storage::Arguments),
    #[command(hide = true)]
    FsWriter(fs::WriterArguments),
    #[command(hide = true)]
    PosixClient(posix::AgentArguments),
    #[command(hide = true)]
    Worker(net::WorkerArguments),
}

fn main() -> miette::Result<()> {
    let outcome = match Arguments::parse().bench {
        Bench::Fs(arguments) => fs::run(&arguments),
        Bench::FsWriter(arguments) => fs::write(&arguments),
        Bench::Kv(arguments) => kv::run(&arguments),
        Bench::Load(arguments) => load::run(&arguments),
        Bench::Net(arguments) => net::run(&arguments),
        Bench::Posix(arguments) => posix::run(&arguments),
        Bench::PosixClient(arguments) => posix::act(&arguments),
        Bench::Storage(arguments) => storage::run(&arguments),
        Bench::Worker(arguments) => net::work(&arguments),
    };
    outcome.map_err(|cause| miette::miette!("{cause}"))
}
