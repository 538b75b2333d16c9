//! `sietch up --detach`.
//!
//! 1. The same command is started again with `--detached`, its standard output a pipe.
//! 2. That process leaves the terminal, comes up, prints what it always prints, and a byte after
//!    it: zero, or one if some part does not run. From then on its output goes to a log in the data
//!    directory.
//! 3. The first process copies the pipe to its output. At that byte it is done, and its exit status
//!    is the byte. If the pipe ends without one, the other process has failed and said why on
//!    standard error.
//! 4. At SIGHUP the log is opened again: it was renamed, and a new one is to be begun.

use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use super::child::program;
use crate::error::Error;
use crate::log_file;
use crate::output;

/// Ends what is printed before the process is on its own: everything serves.
const END: u8 = 0;

/// The same, and some part does not run; what was printed says which.
const INCOMPLETE: u8 = 1;

/// Starts the process that stays, and waits until it serves.
///
/// # Errors
/// [`Error::Start`]. If it starts but does not come up, this process ends with its exit status.
pub(super) fn start() -> Result<(), Error> {
    let what = "detached `sietch up`";
    let failed = |source| Error::Start { what, source };
    let line = std::env::args_os().skip(1).map(|word| match word.to_str() {
        Some("--detach") => "--detached".into(),
        _ => word,
    });
    let mut process = Command::new(program())
        .arg0("sietch")
        .args(line)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let mut said = Vec::new();
    if let Some(mut pipe) = process.stdout.take() {
        let mut byte = [0];
        while matches!(pipe.read(&mut byte), Ok(1)) {
            if [END, INCOMPLETE].contains(&byte[0]) {
                output::print(&String::from_utf8_lossy(&said))?;
                return if byte[0] == END { Ok(()) } else { std::process::exit(INCOMPLETE.into()) };
            }
            said.push(byte[0]);
        }
    }
    let status = process.wait().map_err(failed)?;
    output::print(&String::from_utf8_lossy(&said))?;
    std::process::exit(status.code().filter(|code| *code != 0).unwrap_or(1));
}

/// Makes this process the leader of a session without a terminal.
///
/// # Errors
/// [`Error::Start`].
pub(super) fn leave_terminal() -> Result<(), Error> {
    match rustix::process::setsid() {
        Ok(_) => Ok(()),
        Err(cause) => Err(Error::Start { what: "detached `sietch up`", source: cause.into() }),
    }
}

/// Tells the waiting process whether `all` parts run, and redirects the output to the log.
///
/// # Errors
/// [`Error::File`] for the log.
pub(super) fn serve_alone(log: &Path, all: bool) -> Result<(), Error> {
    match output::print(if all { "\0" } else { "\x01" }) {
        // The waiting process may have been killed; this one stays.
        Ok(()) | Err(Error::OutputClosed) => {}
        Err(other) => return Err(other),
    }
    write_to(log)
}

/// Redirects the output to the file that is now named `log`.
///
/// # Errors
/// [`Error::File`].
pub(super) fn write_to(log: &Path) -> Result<(), Error> {
    let failed = || Error::file(log, "name a folder that you may write to with `--data DIR`");
    let file = log_file::open(log).map_err(failed())?;
    rustix::stdio::dup2_stdout(&file)
        .and_then(|()| rustix::stdio::dup2_stderr(&file))
        .map_err(|cause| failed()(cause.into()))
}
