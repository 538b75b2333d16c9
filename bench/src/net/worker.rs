//! One end of a block: a process of its own, pinned to a core.

use std::net::SocketAddr;
use std::path::PathBuf;

use rustix::thread::{CpuSet, sched_setaffinity};

use super::linux::{self, Waiting};
use super::measure::Outcome;
use super::sietch;
use super::work::Work;
use crate::error::{Error, system};

/// Options of the hidden `bench worker`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Arguments {
    /// `server` or `client`
    #[arg(long)]
    role: String,
    /// `blocking` or `spinning` kernel sockets, or the name of a VNIC or of an end of a link
    #[arg(long)]
    way: String,
    /// What to do, as `Work` prints it
    #[arg(long)]
    work: String,
    /// Where the server answers
    #[arg(long)]
    address: SocketAddr,
    /// Seconds of the window
    #[arg(long)]
    seconds: f64,
    /// The core to run on
    #[arg(long)]
    core: usize,
    /// The daemon's socket
    #[arg(long)]
    socket: PathBuf,
    /// The server's process, for the client that measures memory
    #[arg(long)]
    peer: Option<u32>,
}

/// Serves until it is killed, or loads the server and prints its measurements as a line of JSON.
///
/// # Errors
/// No such work exists, or the work failed.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Error> {
    let mut core = CpuSet::new();
    core.set(arguments.core);
    sched_setaffinity(None, &core).map_err(system("setting the CPU affinity"))?;
    let work: Work = arguments.work.parse().map_err(|what| Error::Program {
        program: "bench worker".into(),
        what,
        fix: "it is not meant to be started by hand",
    })?;
    let waiting = match arguments.way.as_str() {
        "blocking" => Some(Waiting::Blocking),
        "spinning" => Some(Waiting::Spinning),
        _ => None,
    };
    let address = arguments.address;
    if arguments.role == "server" {
        let ready = |address: SocketAddr| println!("{address}");
        return match waiting {
            Some(waiting) => linux::serve(work, waiting, address, ready),
            None => sietch::serve(work, (&arguments.socket, &arguments.way), address, ready),
        };
    }
    let outcome: Outcome = match waiting {
        Some(waiting) => linux::load(work, waiting, address, arguments.seconds, arguments.peer)?,
        None => {
            let way = (arguments.socket.as_path(), arguments.way.as_str());
            sietch::load(work, way, address, arguments.seconds, arguments.peer)?
        }
    };
    let line = serde_json::to_string(&outcome)
        .map_err(|cause| Error::System { action: "writing JSON", cause: cause.into() })?;
    println!("{line}");
    Ok(())
}
