//! A network namespace for the measurement, and a shutdown that removes everything.
//!
//! 1. Started as root, the program allows cubic for namespaces (the comparison's congestion
//!    control) and starts a copy of itself inside a new network namespace. Nothing that the copy
//!    makes there is visible outside, and all of it is removed when the copy ends.
//! 2. A signal to the first process is forwarded to the copy, which stops its servers and removes
//!    its files. The first process ends only after that.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{Pid, Signal, kill_process};

use crate::error::{Error, system};
use crate::process;

/// Set in the copy of this program that runs inside its own network namespace.
const INSIDE: &str = "SIETCH_BENCH_INSIDE";

/// A flag that SIGINT and SIGTERM set, so that the program can end after its block and clean up.
pub(crate) fn interrupted() -> Result<Arc<AtomicBool>, Error> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&flag)).map_err(system("watching for signals"))?;
    }
    Ok(flag)
}

/// Congestion control that namespaces may use; dropping this restores the former setting.
struct Allowed(String);

impl Allowed {
    const FILE: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";

    /// Adds cubic to the allowed congestion controls.
    fn cubic() -> Result<Self, Error> {
        let before = std::fs::read_to_string(Self::FILE).map_err(system("reading the congestion control"))?;
        std::fs::write(Self::FILE, format!("{} cubic", before.trim()))
            .map_err(system("allowing cubic as congestion control"))?;
        Ok(Self(before))
    }
}

impl Drop for Allowed {
    fn drop(&mut self) {
        // Allowing one more is harmless if it cannot be taken back.
        let _ = std::fs::write(Self::FILE, &self.0);
    }
}

/// Ensures that the measurement runs in its own network namespace, with cubic. Returns whether a
/// copy of this program has done all the work, so that nothing remains to do.
///
/// # Errors
/// The namespace cannot be made, or the copy failed.
pub(crate) fn enter() -> Result<bool, Error> {
    if std::env::var_os(INSIDE).is_none() {
        run_copy()?;
        return Ok(true);
    }
    process::output("ip", &["link", "set", "lo", "up"])?;
    process::output("sysctl", &["-qw", "net.ipv4.tcp_congestion_control=cubic"])?;
    Ok(false)
}

/// Runs this program again in a network namespace of its own.
fn run_copy() -> Result<(), Error> {
    let _allowed = Allowed::cubic()?;
    let program = std::env::current_exe().map_err(system("finding this program"))?;
    let mut child = std::process::Command::new("unshare")
        .arg("--net")
        .arg("--")
        .arg(program)
        .args(std::env::args_os().skip(1))
        .env(INSIDE, "1")
        .spawn()
        .map_err(system("starting unshare (util-linux)"))?;
    // A signal to this process is forwarded to the copy, which cleans up. Only then does this
    // process end.
    let stop = interrupted()?;
    let status = loop {
        if let Some(status) = child.try_wait().map_err(system("waiting for the measurement"))? {
            break status;
        }
        if stop.swap(false, Ordering::Relaxed)
            && let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw)
        {
            // It may have ended just now.
            let _ = kill_process(pid, Signal::TERM);
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    };
    if status.success() {
        return Ok(());
    }
    Err(Error::Program {
        program: "bench".into(),
        what: format!("ended with {status}"),
        fix: "see the error above",
    })
}

/// A folder for the servers' data. Dropping it removes the folder.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// Creates a folder below `parent`, or by default below target/bench.
    pub(crate) fn create(parent: Option<&Path>) -> Result<Self, Error> {
        let parent = parent.map_or_else(|| PathBuf::from("target/bench"), Path::to_owned);
        let path = parent.join(format!("data-{}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(system("making the data folder"))?;
        std::fs::canonicalize(path).map(Self).map_err(system("finding the data folder"))
    }

    /// The path of the folder.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A folder that cannot be removed is recognisable by its process id.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
