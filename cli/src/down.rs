//! `sietch down`: stops the running `sietch up`, and waits until it has ended.
//!
//! The record has a process id, for which a pidfd is opened; then the record is read again. If its
//! owner still holds it, the pidfd is the owner's. Only then is the signal sent, through the pidfd.

use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::administration;
use crate::error::Error;
use crate::output;
use crate::paths;
use crate::up::instance;

/// The store's grace, the daemon's, and some.
const PATIENCE: u64 = 45;

/// Stops the instance whose daemon listens at `socket`.
///
/// # Errors
/// [`Error::NotRunning`], [`Error::Signal`] (another user's), [`Error::DoesNotStop`].
pub(crate) fn run(socket: &Path) -> Result<(), Error> {
    let path = paths::record(socket);
    let Some(record) = instance::find(&path)? else {
        return stop_daemon(socket, &path);
    };
    if !instance::may_stop(&path, &record)? {
        return Err(Error::NotRunning { path });
    }
    let pid = record.pid;
    let failed = |cause: rustix::io::Errno| Error::Signal { pid, source: cause.into() };
    let process = Pid::from_raw(pid).ok_or_else(|| failed(rustix::io::Errno::SRCH))?;
    let process = pidfd_open(process, PidfdFlags::empty()).map_err(failed)?;
    match instance::find(&path)? {
        Some(again) if again.pid == pid => {}
        _ => return Err(Error::NotRunning { path }),
    }
    pidfd_send_signal(&process, Signal::TERM).map_err(failed)?;
    let limit = Timespec { tv_sec: i64::try_from(PATIENCE).unwrap_or(i64::MAX), tv_nsec: 0 };
    match poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&limit)).map_err(failed)? {
        0 => Err(Error::DoesNotStop { pid, seconds: PATIENCE }),
        _ => output::print(&format!("sietch, pid {pid}, is down\n")),
    }
}

/// There is no `up`, but perhaps a daemon that was started by itself.
fn stop_daemon(socket: &Path, record: &Path) -> Result<(), Error> {
    let Ok(mut connection) = administration::connect(socket) else {
        return Err(Error::NotRunning { path: record.to_owned() });
    };
    let pid = connection.welcome().pid;
    connection.shutdown()?;
    output::print(&format!("the daemon, pid {pid}, which ran without `sietch up`, is down\n"))
}
