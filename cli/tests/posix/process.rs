//! A program that a test has started: its output goes to files, it is waited for so long and no
//! longer, and it never outlives the test.

use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// How long a program may take to end when it is told to, before it is killed.
const MANNERS: Duration = Duration::from_secs(2);

/// How often a state without an event is looked at.
const LOOK: Duration = Duration::from_millis(5);

/// A started program with its own process group.
pub struct Process {
    what: String,
    child: Child,
    output: PathBuf,
    complaints: PathBuf,
    deadline: Instant,
}

/// How a program ended.
#[derive(Debug)]
pub struct Finished {
    pub status: ExitStatus,
    pub output: Vec<u8>,
    pub complaints: String,
}

impl Finished {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.output).into_owned()
    }
}

impl Process {
    /// Starts `command`, whose output goes to `log.out` and `log.err`.
    pub fn start(mut command: Command, log: &Path, patience: Duration) -> Self {
        let (output, complaints) = (log.with_extension("out"), log.with_extension("err"));
        let what = format!("{} (log {})", line(&command), log.display());
        command.process_group(0);
        command.stdout(File::create(&output).unwrap()).stderr(File::create(&complaints).unwrap());
        let child = command.spawn().unwrap_or_else(|cause| panic!("{what}: {cause}"));
        Self { what, child, output, complaints, deadline: Instant::now() + patience }
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Sends it a signal, not its children.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("it runs");
    }

    /// What it has printed so far.
    pub fn printed(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.output).unwrap()).into_owned()
    }

    /// What it has written to standard error so far.
    pub fn complained(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.complaints).unwrap()).into_owned()
    }

    /// Panics if it has ended.
    pub fn must_run(&mut self) {
        if let Some(status) = self.child.try_wait().unwrap() {
            panic!("{}: ended with {status}: {}", self.what, self.said());
        }
    }

    fn said(&self) -> String {
        let complaints = std::fs::read(&self.complaints).unwrap_or_default();
        format!("{}\n{}", self.printed(), String::from_utf8_lossy(&complaints))
    }

    /// Waits for its end, however that is.
    pub fn finish(mut self) -> Finished {
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() > self.deadline {
                let place = own_processes();
                panic!("{}: has not ended:\n{}\n{}", self.what, self.said(), describe(&place));
            }
            std::thread::sleep(LOOK);
        };
        let output = std::fs::read(&self.output).unwrap();
        let complaints = String::from_utf8_lossy(&std::fs::read(&self.complaints).unwrap()).into_owned();
        Finished { status, output, complaints }
    }

    /// Waits for its end, which must be a success.
    pub fn succeed(self) -> Finished {
        let what = self.what.clone();
        let finished = self.finish();
        let Finished { status, complaints, .. } = &finished;
        assert!(status.success(), "{what}: {status}: {}{complaints}", finished.text());
        finished
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Interrupted, PostgreSQL and others clean up behind them.
        for (signal, patience) in [(Signal::INT, MANNERS), (Signal::KILL, Duration::MAX)] {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            let _ = kill_process_group(self.pid(), signal);
            let since = Instant::now();
            while matches!(self.child.try_wait(), Ok(None)) && since.elapsed() < patience {
                std::thread::sleep(LOOK);
            }
        }
    }
}

/// Asks until there is an answer; a look at something that has no event to wait for.
pub fn wait_for<T>(what: &str, patience: Duration, mut question: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(answer) = question() {
            return answer;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}\n{}", describe(&own_processes()));
        std::thread::sleep(LOOK);
    }
}

fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.display().to_string()).collect::<Vec<_>>().join(" ")
}

/// Every process in this thread's network namespace but this one.
pub fn own_processes() -> Vec<Pid> {
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
pub fn children(pid: Pid) -> Vec<i32> {
    let raw = pid.as_raw_nonzero();
    let children = std::fs::read_to_string(format!("/proc/{raw}/task/{raw}/children")).unwrap_or_default();
    children.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// Each thread of each process, and where in the kernel it is.
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
            let state = status.lines().find(|line| line.starts_with("State")).unwrap_or("gone").to_owned();
            text += &format!("    {state} {} {}\n", read("wchan"), read("syscall").trim());
        }
    }
    text
}
