//! A program that a test has started: its output goes to files, its run time is limited, and it
//! never outlives the test.

use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// How long a program may take to end after a signal, before it is killed.
const EXIT_GRACE: Duration = Duration::from_secs(2);

/// How often a state without an event is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A started program with its own process group.
pub(crate) struct Process {
    what: String,
    child: Child,
    output: PathBuf,
    errors: PathBuf,
    deadline: Instant,
}

/// How a program ended.
#[derive(Debug)]
pub(crate) struct Finished {
    pub status: ExitStatus,
    pub output: Vec<u8>,
    pub errors: String,
}

impl Finished {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.output).into_owned()
    }
}

impl Process {
    /// Starts `command`, whose output goes to `log.out` and `log.err`.
    pub(crate) fn start(mut command: Command, log: &Path, patience: Duration) -> Self {
        let (output, errors) = (log.with_extension("out"), log.with_extension("err"));
        let what = format!("{} (log {})", line(&command), log.display());
        command.process_group(0);
        command.stdout(File::create(&output).unwrap()).stderr(File::create(&errors).unwrap());
        let child = command.spawn().unwrap_or_else(|cause| panic!("{what}: {cause}"));
        Self { what, child, output, errors, deadline: Instant::now() + patience }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Sends a signal to the program, not to its children.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("it runs");
    }

    /// Its output so far.
    pub(crate) fn printed(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.output).unwrap()).into_owned()
    }

    /// Its standard error so far.
    pub(crate) fn errors_so_far(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.errors).unwrap()).into_owned()
    }

    /// Panics if it has ended.
    pub(crate) fn must_run(&mut self) {
        if let Some(status) = self.child.try_wait().unwrap() {
            panic!("{}: ended with {status}: {}", self.what, self.whole_output());
        }
    }

    fn whole_output(&self) -> String {
        let errors = std::fs::read(&self.errors).unwrap_or_default();
        format!("{}\n{}", self.printed(), String::from_utf8_lossy(&errors))
    }

    /// Waits for its end, whatever the status.
    pub(crate) fn finish(mut self) -> Finished {
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() > self.deadline {
                let testbed = own_processes();
                panic!("{}: has not ended:\n{}\n{}", self.what, self.whole_output(), describe(&testbed));
            }
            std::thread::sleep(POLL_INTERVAL);
        };
        let output = std::fs::read(&self.output).unwrap();
        let errors = String::from_utf8_lossy(&std::fs::read(&self.errors).unwrap()).into_owned();
        Finished { status, output, errors }
    }

    /// Waits for its end, which must be a success.
    pub(crate) fn succeed(self) -> Finished {
        let what = self.what.clone();
        let finished = self.finish();
        let Finished { status, errors, .. } = &finished;
        assert!(status.success(), "{what}: {status}: {}{errors}", finished.text());
        finished
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Interrupted, PostgreSQL and others clean up behind them.
        for (signal, patience) in [(Signal::INT, EXIT_GRACE), (Signal::KILL, Duration::MAX)] {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            let _ = kill_process_group(self.pid(), signal);
            let since = Instant::now();
            while matches!(self.child.try_wait(), Ok(None)) && since.elapsed() < patience {
                std::thread::sleep(POLL_INTERVAL);
            }
        }
    }
}

/// Polls until there is an answer, where no event can be waited for.
pub(crate) fn wait_for<T>(what: &str, patience: Duration, mut question: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(answer) = question() {
            return answer;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}\n{}", describe(&own_processes()));
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.display().to_string()).collect::<Vec<_>>().join(" ")
}

/// Every process in this thread's network namespace except this one.
pub(crate) fn own_processes() -> Vec<Pid> {
    let Ok(own) = std::fs::read_link("/proc/thread-self/ns/net") else { return Vec::new() };
    let Ok(all) = std::fs::read_dir("/proc") else { return Vec::new() };
    let in_it = |pid: &Pid| {
        std::fs::read_link(format!("/proc/{}/ns/net", pid.as_raw_nonzero()))
            .is_ok_and(|namespace| namespace == own)
    };
    all.flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok().and_then(Pid::from_raw))
        .filter(|pid| *pid != rustix::process::getpid() && in_it(pid))
        .collect()
}

/// Its children.
pub(crate) fn children(pid: Pid) -> Vec<i32> {
    let raw = pid.as_raw_nonzero();
    let children = std::fs::read_to_string(format!("/proc/{raw}/task/{raw}/children")).unwrap_or_default();
    children.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// Each thread of each process, and its current kernel function.
fn describe(processes: &[Pid]) -> String {
    let mut text = String::from("processes of this test (thread: state, where it waits, system call):\n");
    for pid in processes {
        let raw = pid.as_raw_nonzero();
        let words = std::fs::read(format!("/proc/{raw}/cmdline")).unwrap_or_default();
        let words = String::from_utf8_lossy(&words).replace('\0', " ");
        text += &format!("{raw} {words}\n");
        for task in std::fs::read_dir(format!("/proc/{raw}/task")).into_iter().flatten().flatten() {
            let read = |name: &str| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
            let status = read("status");
            let state = status.lines().find(|line| line.starts_with("State")).unwrap_or("ended").to_owned();
            text += &format!("    {state} {} {}\n", read("wchan"), read("syscall").trim());
        }
    }
    text
}
