//! A program in a process group of its own, with a time limit for its end. Nothing of it survives.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use super::tree;
use crate::error::{Error, system};

/// How long a program may take to end after its signal.
const END: Duration = Duration::from_secs(4);

/// How often a wait checks for an interrupt.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The length of the quoted output of a program.
const QUOTED: usize = 160;

/// A running program. Dropping it ends the program and all its descendants.
#[derive(Debug)]
pub(super) struct Program {
    name: String,
    child: Child,
    log: PathBuf,
    /// The signal that ends it.
    pub ends_by: Signal,
}

/// The command for the words of a command line.
pub(super) fn words<S: AsRef<std::ffi::OsStr>>(words: &[S]) -> Vec<OsString> {
    words.iter().map(|word| word.as_ref().to_owned()).collect()
}

/// Whether this program is installed.
pub(super) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin", "/usr/bin"].map(PathBuf::from));
    folders.map(|folder| folder.join(name)).find(|file| file.is_file())
}

impl Program {
    /// Starts `words`. Errors call it `name`. Its standard output goes to `log`, its standard error
    /// to a file beside it.
    pub(super) fn start(name: &str, words: &[OsString], log: &Path) -> Result<Self, Error> {
        let out = File::create(log).map_err(system("creating a log file"))?;
        let errors = File::create(log.with_extension("err")).map_err(system("creating a log file"))?;
        let (program, rest) = words.split_first().ok_or_else(|| failed(name, "no command".into()))?;
        let child = Command::new(program)
            .args(rest)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(errors)
            .process_group(0)
            .spawn()
            .map_err(|cause| failed(name, cause.to_string()))?;
        Ok(Self { name: name.to_owned(), child, log: log.to_owned(), ends_by: Signal::TERM })
    }

    /// The process id of the program.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Fails if the program has ended.
    pub(super) fn is_up(&mut self) -> Result<(), Error> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(self.failed(&format!("ended with {status}"))),
            Err(cause) => Err(self.failed(&cause.to_string())),
        }
    }

    /// Waits until `ready`, called every few milliseconds, returns true.
    pub(super) fn wait_until(
        &mut self,
        limit: Duration,
        stop: &AtomicBool,
        mut ready: impl FnMut() -> bool,
    ) -> Result<(), Error> {
        let started = Instant::now();
        while started.elapsed() < limit {
            self.is_up()?;
            if ready() {
                return Ok(());
            }
            if stop.load(Ordering::Relaxed) {
                return Err(interrupted());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err(self.failed(&format!("was not ready within {} s", limit.as_secs())))
    }

    /// Waits until the program ends, which it must do with success within `limit`; returns its
    /// output.
    pub(super) fn output(mut self, limit: Duration, stop: &AtomicBool) -> Result<String, Error> {
        let started = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().map_err(system("waiting for a program"))? {
                break status;
            }
            if stop.load(Ordering::Relaxed) {
                return Err(interrupted());
            }
            let left = limit.saturating_sub(started.elapsed());
            if left.is_zero() {
                return Err(self.failed(&format!("did not end within {} s", limit.as_secs())));
            }
            self.sleep(left.min(POLL_INTERVAL));
        };
        if !status.success() {
            return Err(self.failed(&format!("ended with {status}")));
        }
        std::fs::read_to_string(&self.log).map_err(system("reading what a program printed"))
    }

    /// Sleeps until the program ends, at most `limit`.
    fn sleep(&self, limit: Duration) {
        let end = Timespec { tv_sec: 0, tv_nsec: i64::from(limit.subsec_nanos()) };
        let end = Timespec { tv_sec: limit.as_secs() as i64, ..end };
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        match pid.map(|pid| pidfd_open(pid, PidfdFlags::empty())) {
            Some(Ok(fd)) => {
                // A signal, the program's end or a timeout: the caller checks which.
                let _ = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&end));
            }
            _ => std::thread::sleep(Duration::from_millis(5).min(limit)),
        }
    }

    /// An error of this program, with the end of its output.
    pub(super) fn failed(&self, what: &str) -> Error {
        let printed = [self.log.with_extension("err"), self.log.clone()]
            .iter()
            .filter_map(|file| std::fs::read(file).ok())
            .map(|bytes| String::from_utf8_lossy(&bytes).split_whitespace().collect::<Vec<_>>().join(" "))
            .find(|text| !text.is_empty())
            .unwrap_or_default();
        let skipped = printed.chars().count().saturating_sub(QUOTED);
        let printed: String = printed.chars().skip(skipped).collect();
        failed(
            &self.name,
            if printed.is_empty() { what.to_owned() } else { format!("{what} (\"{printed}\")") },
        )
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let mut family = tree::below(self.child.id());
        if let Ok(None) = self.child.try_wait() {
            if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
                // It may have ended just now.
                let _ = kill_process(pid, self.ends_by);
            }
            let started = Instant::now();
            while started.elapsed() < END && matches!(self.child.try_wait(), Ok(None)) {
                self.sleep(POLL_INTERVAL);
            }
            family.extend(tree::below(self.child.id()));
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        for process in family {
            process.end();
        }
    }
}

/// An error of the program `name`.
pub(super) fn failed(name: &str, what: String) -> Error {
    Error::Program { program: name.to_owned(), what, fix: "see its log below target/bench" }
}

/// The error after an interrupt by the user.
pub(super) fn interrupted() -> Error {
    Error::Program { program: "bench posix".into(), what: "interrupted".into(), fix: "run it again" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("sietch-bench-program-{name}-{}", std::process::id()))
    }

    fn remove(log: &Path) {
        for file in [log.to_owned(), log.with_extension("err")] {
            std::fs::remove_file(file).expect("it was just made");
        }
    }

    #[test]
    fn output_is_returned_and_a_failure_quotes_it() {
        let (log, stop) = (log("prints"), AtomicBool::new(false));
        let run = |script: &str| {
            let words = words(&["sh", "-c", script]);
            Program::start("sh", &words, &log)?.output(Duration::from_secs(60), &stop)
        };
        assert_eq!(run("echo yes").expect("it prints"), "yes\n");
        let cause = run("echo 'no such thing' >&2; exit 3").expect_err("it fails").to_string();
        assert!(cause.contains("no such thing"), "{cause}");
        remove(&log);
    }

    #[test]
    fn a_hanging_program_is_ended_with_all_its_children() {
        let (log, stop) = (log("hangs"), AtomicBool::new(false));
        let words = words(&["sh", "-c", "trap '' TERM; setsid sleep 61.5 & sleep 61.5"]);
        let mut program = Program::start("sh", &words, &log).expect("a shell");
        program.ends_by = Signal::KILL;
        let pid = program.pid();
        while tree::below(pid).len() < 2 {
            std::thread::yield_now();
        }
        let family = tree::below(pid);
        program.output(Duration::from_millis(50), &stop).expect_err("it hangs");
        for process in family {
            let line = std::fs::read_to_string(format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
            assert!(!line.contains("61.5"), "{line} is still there");
        }
        remove(&log);
    }
}
