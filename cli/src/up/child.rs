//! A program that `sietch up` runs: this very binary with another command.
//!
//! 1. It is a process group of its own, so that a Ctrl-C at the terminal reaches `up` alone, which
//!    then stops its children in order. If `up` is killed, the kernel sends them SIGTERM
//!    (`--parent`).
//! 2. Its standard error goes to a log in the data directory. Its standard output is a pipe on
//!    which it reports once that it is ready.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::{Child as Process, ChildStdout, Command};

use crate::error::Error;
use crate::log_file;
use crate::style::escaped;

/// For the kernel to end a process that was killed.
const AFTER_KILL: Duration = Duration::from_secs(5);
/// Lines of a log that are shown when its program ended early.
const SHOWN_LINES: usize = 8;

/// From the end of a log, in bytes, for those lines.
const SHOWN_BYTES: u64 = 4096;

/// How a program reports that it is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reports {
    Byte,
    Line,
}

/// How a program has ended.
#[derive(Debug)]
pub(super) struct End {
    pub(super) how: String,
    /// Its exit status is 0.
    pub(super) is_clean: bool,
}

/// A running program.
#[derive(Debug)]
pub(super) struct Child {
    what: &'static str,
    process: Process,
    ready: BufReader<ChildStdout>,
    reports: Reports,
    /// The report, as far as it has been read.
    said: Vec<u8>,
    log: PathBuf,
    log_start: u64,
}

impl Child {
    /// Starts `sietch ARGUMENTS`.
    ///
    /// # Errors
    /// [`Error::File`] for its log; [`Error::Start`].
    pub(super) fn start(
        what: &'static str,
        arguments: Vec<OsString>,
        log: &Path,
        reports: Reports,
    ) -> Result<Self, Error> {
        let opened = log_file::open(log)
            .map_err(Error::file(log, "name a folder that you may write to with `--data DIR`"))?;
        let log_start = opened.metadata().map_or(0, |metadata| metadata.len());
        let failed = |source| Error::Start { what, source };
        let mut process = Command::new(program())
            .arg0("sietch")
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(opened)
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let ready = process.stdout.take().ok_or_else(|| failed(std::io::ErrorKind::BrokenPipe.into()))?;
        let (ready, log) = (BufReader::new(ready), log.to_owned());
        Ok(Self { what, process, ready, reports, said: Vec::new(), log, log_start })
    }

    /// Its process, while it runs.
    pub(super) fn pid(&self) -> Option<u32> {
        self.process.id()
    }

    /// Waits until it reports that it is ready; the report. May be cancelled and called again.
    ///
    /// # Errors
    /// [`Error::EndedEarly`] if it ends instead.
    pub(super) async fn ready(&mut self) -> Result<String, Error> {
        let limit = sietch::STARTUP_REPORT_MAX_LINE as u64 + 1;
        let left = limit.saturating_sub(self.said.len() as u64);
        // What a cancelled call has read stays in `said`.
        let read = match self.reports {
            Reports::Byte => (&mut self.ready).take(1).read_to_end(&mut self.said).await,
            Reports::Line => (&mut self.ready).take(left).read_until(b'\n', &mut self.said).await,
        };
        let whole = match self.reports {
            Reports::Byte => !self.said.is_empty(),
            Reports::Line => self.said.last() == Some(&b'\n'),
        };
        match read {
            Ok(_) if whole => Ok(String::from_utf8_lossy(&self.said).into_owned()),
            _ => Err(self.ended_early().await),
        }
    }

    /// Waits until it ends. May be cancelled and called again.
    pub(super) async fn ended(&mut self) -> End {
        match self.process.wait().await {
            Ok(status) => End { how: describe(status), is_clean: status.success() },
            Err(cause) => End { how: cause.to_string(), is_clean: false },
        }
    }

    /// Sends SIGTERM.
    pub(super) fn terminate(&self) {
        // The process id stays valid until it is waited for.
        if let Some(pid) = self.pid().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw) {
            // It can only fail if the process has just ended.
            let _ = kill_process(pid, Signal::TERM);
        }
    }

    /// Waits for its end, and kills it after `grace`. Returns whether it ended by itself.
    pub(super) async fn wait_or_kill(&mut self, grace: Duration) -> bool {
        if tokio::time::timeout(grace, self.process.wait()).await.is_ok() {
            return true;
        }
        // It can only fail if the process has just ended. A process of which a thread hangs in the
        // kernel, in the close of a descriptor that it was sent, ends later than this one may wait.
        let _ = tokio::time::timeout(AFTER_KILL, self.process.kill()).await;
        false
    }

    /// Its pipe is closed: it has ended, or is about to.
    async fn ended_early(&mut self) -> Error {
        let how = match tokio::time::timeout(Duration::from_secs(5), self.process.wait()).await {
            Ok(Ok(status)) => describe(status),
            _ => {
                let _ = self.process.kill().await;
                "it closed its output".to_owned()
            }
        };
        let last = last_lines(&self.log, self.log_start).unwrap_or_default();
        Error::EndedEarly { what: self.what, how, last, log: self.log.display().to_string() }
    }
}

/// This binary, also when its file was replaced while it runs.
pub(crate) fn program() -> PathBuf {
    std::env::current_exe().ok().filter(|path| path.exists()).unwrap_or_else(|| "/proc/self/exe".into())
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => status.to_string(),
    }
}

/// The last lines that were written to `log` after `start`, each after a line end.
fn last_lines(log: &Path, start: u64) -> std::io::Result<String> {
    let mut file = File::open(log)?;
    let length = file.metadata()?.len();
    // A log that was shortened since is all of this start.
    let start = if start > length { 0 } else { start };
    file.seek(SeekFrom::Start(start.max(length.saturating_sub(SHOWN_BYTES)).min(length)))?;
    let mut bytes = Vec::new();
    file.take(SHOWN_BYTES).read_to_end(&mut bytes)?;
    // The part may be unprivileged, and these lines reach the terminal of root.
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let shown = &lines[lines.len().saturating_sub(SHOWN_LINES)..];
    Ok(shown.iter().map(|line| format!("\n    {}", escaped(line))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_lines_of_this_start_are_shown() {
        let log = std::env::temp_dir().join(format!("sietch-log-{}", std::process::id()));
        let old = "an older start\n";
        let new: String = (0..20).map(|line| format!("\u{1b}line {line}\n\n")).collect();
        std::fs::write(&log, format!("{old}{new}")).expect("write");
        let shown = last_lines(&log, old.len() as u64).expect("read");
        assert_eq!(shown.lines().count(), 1 + SHOWN_LINES);
        assert!(shown.ends_with("\n    \\u{1b}line 19"), "{shown}");
        let few = last_lines(&log, (old.len() + new.len() - 9) as u64).expect("read");
        assert_eq!(few, "\n    line 19");
        std::fs::remove_file(&log).expect("remove");
    }
}
