//! `sietch down`: stops the running `sietch up`, and waits until it has ended.

use std::io::Write as _;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, pidfd_send_signal};

use crate::administration;
use crate::error::Error;
use crate::output;
use crate::paths;
use crate::process;
use crate::up::instance::{self, Record};

/// The store's grace, the daemon's, and some.
const PATIENCE: i64 = 45;

/// Seconds without a word. A usual end takes less.
const SILENCE: i64 = 2;

/// Stops the instance whose daemon listens at `socket`.
///
/// # Errors
/// [`Error::NotRunning`], [`Error::Signal`] (another user's), [`Error::DoesNotStop`].
pub(crate) fn run(socket: &Path) -> Result<(), Error> {
    let path = paths::record(socket);
    let Some(record) = instance::find(&path)? else {
        return stop_daemon(socket, &path);
    };
    let process = instance::process(&path, &record)?;
    let pid = record.pid;
    let failed = |cause: rustix::io::Errno| Error::Signal { pid, source: cause.into() };
    pidfd_send_signal(&process, Signal::TERM).map_err(failed)?;
    let ends_within = |seconds| {
        let limit = Timespec { tv_sec: seconds, tv_nsec: 0 };
        poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&limit)).map(|ready| ready > 0).map_err(failed)
    };
    if !ends_within(SILENCE)? {
        // Only a display: if standard error is closed, the wait is the same.
        let _ = writeln!(std::io::stderr(), "{}", progress(&record));
        if !ends_within(PATIENCE - SILENCE)? {
            return Err(Error::DoesNotStop { pid, seconds: PATIENCE });
        }
    }
    output::print(&format!("sietch, pid {pid}, is down\n"))
}

/// What a longer end waits for.
fn progress(record: &Record) -> String {
    let pid = record.pid;
    match record.store.filter(|store| process::is_stopped(*store)) {
        Some(store) => format!(
            "sietch, pid {pid}: waits for its store, pid {store}, which is stopped (SIGSTOP): `kill -CONT {store}` lets it \
             end in order; without that it is killed after 30 s"
        ),
        None => format!(
            "sietch, pid {pid}: still ending; the store has 30 s to flush its log, and file systems to digest theirs"
        ),
    }
}

/// There is no `up`, but perhaps a daemon that was started by itself.
fn stop_daemon(socket: &Path, record: &Path) -> Result<(), Error> {
    let mut connection = match administration::connect(socket) {
        Ok(connection) => connection,
        Err(elsewhere @ Error::Elsewhere { .. }) => return Err(elsewhere),
        Err(_) => return Err(Error::NotRunning { path: record.to_owned() }),
    };
    let pid = connection.welcome().pid;
    connection.shutdown()?;
    output::print(&format!("the daemon, pid {pid}, which ran without `sietch up`, is down\n"))
}
