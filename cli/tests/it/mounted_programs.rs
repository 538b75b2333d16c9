//! `sietch run --fs`: programs that are clients of a served file system, beside users of its mount.
//!
//! 1. Each test serves a file system of its own, mounts it, and runs programs in its folder
//!    ([`Served`]): under the library, or on the mount alone. The library takes a file from the
//!    kernel at the first call (`SIETCH_FILES_CALLS`), where it would wait for many.
//! 2. Random programs of calls on files ([`random`]) must do there what they do in memory.
//! 3. `records.c` writes numbered records: a lost, doubled or torn one is found.
//! 4. Processes are killed at any moment ([`kills`]).
//! 5. Numbers are duplicated while they change ([`duplicates`]).
//!
//! Needs root, `/dev/fuse` and `cc`; otherwise each test prints SKIPPED and the reason.

mod duplicates;
mod kills;
mod random;
mod records;
mod rights;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::file_system::{Running, Testbed, can_mount};

/// How long a program may take; each needs seconds at most.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks at what a program has done.
const PAUSE: Duration = Duration::from_millis(5);

/// A file system that is served and mounted.
struct Served {
    // Dropped first: an end of the service ends the mount.
    mount: Running,
    service: Running,
    testbed: Testbed,
}

impl Served {
    /// Serves and mounts; none where that is not possible, which it says.
    fn start(name: &str) -> Option<Self> {
        Self::start_on(name, "shm/data")
    }

    /// As [`start`](Self::start), on this medium: `shm/data` is persistent memory, `data` a disk.
    fn start_on(name: &str, medium: &str) -> Option<Self> {
        if !can_mount() {
            return None;
        }
        let testbed = Testbed::new(name);
        testbed.create(medium);
        let service = Running::start(&testbed, &["serve", "store"]);
        // For programs that give up their user.
        let mount = Running::start(&testbed, &["mount", "store", "mnt", "--allow-other"]);
        let served = Self { mount, service, testbed };
        std::fs::write(served.testbed.folder.join("records.c"), include_str!("mounted_programs/records.c"))
            .expect("write a program");
        let mut compiler = Command::new("cc");
        compiler.args(["-O1", "-pthread", "records.c", "-o", "records"]).current_dir(&served.testbed.folder);
        if !compiler.status().is_ok_and(|status| status.success()) {
            println!("SKIPPED: needs cc");
            return None;
        }
        Some(served)
    }

    /// A program under the library.
    fn under(&self, program: &Path) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sietch"));
        command
            .arg("run")
            .arg("--sockets")
            .arg(self.testbed.path("no.sock"))
            .arg("--fs")
            .arg(self.testbed.path("mnt"))
            .arg("--")
            .arg(program)
            .env("SIETCH_FILES_CALLS", "1")
            .env("SIETCH_PRELOAD", library())
            .env_remove("LD_PRELOAD")
            .current_dir(self.testbed.folder.join("mnt"));
        command
    }

    /// `records` with these arguments.
    fn records(&self, side: Side, arguments: &[&str]) -> Command {
        let program = self.testbed.folder.join("records");
        let mut command = match side {
            Side::Library => self.under(&program),
            Side::Mount => Command::new(&program),
        };
        command.args(arguments).current_dir(self.testbed.folder.join("mnt")).stdin(Stdio::null());
        command
    }
}

/// By whom the files of a program are read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    /// By a client in the program.
    Library,
    /// By the mount.
    Mount,
}

/// The library that was built for this test. One beside the command may be older.
fn library() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_sietch")).with_file_name("deps").join("libsietch_posix.so")
}

/// A program that is killed if the test ends before it. What it writes goes to files.
struct Program {
    child: Child,
    folder: PathBuf,
    name: String,
}

impl Program {
    /// Starts it; the name is that of its output.
    fn start(served: &Served, name: &str, mut command: Command) -> Self {
        let folder = served.testbed.folder.clone();
        let create = |what: &str| File::create(folder.join(format!("{name}.{what}"))).expect("make a file");
        let child = command.stdout(create("out")).stderr(create("err")).spawn().expect("start a program");
        Self { child, folder, name: name.to_owned() }
    }

    fn output(&self) -> Vec<u8> {
        std::fs::read(self.folder.join(format!("{}.out", self.name))).expect("read its output")
    }

    fn errors(&self) -> String {
        std::fs::read_to_string(self.folder.join(format!("{}.err", self.name))).expect("read its errors")
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("a signal");
    }

    /// Waits until it has written so many bytes.
    fn wait_for_output(&self, bytes: usize) {
        let begun = Instant::now();
        while self.output().len() < bytes {
            assert!(begun.elapsed() < PATIENCE, "{} writes nothing: {}", self.name, self.errors());
            std::thread::sleep(PAUSE);
        }
    }

    /// Waits for its end, which must come by itself.
    fn ended(&mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("wait") {
                return status;
            }
            assert!(begun.elapsed() < PATIENCE, "{} hangs", self.name);
            std::thread::sleep(PAUSE);
        }
    }

    /// Waits for its end, which must be in order.
    fn succeeded(&mut self) {
        let status = self.ended();
        assert!(status.success(), "{}: {status}: {}", self.name, self.errors());
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
