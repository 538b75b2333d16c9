//! The environment of a test: network namespace, folder, socket service, and which side is under
//! Sietch.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use sietch_structures::XorShift64;

use crate::process::{self, Finished, Process};

/// The time limit of a program with a short load, which takes some seconds on an idle machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The same for a long load.
const LONG_PATIENCE: Duration = Duration::from_secs(600);

/// Bytes that may cross the kernel's loopback when both ends are under Sietch: a test may use the
/// kernel on purpose.
const LOOPBACK_ALLOWANCE: u64 = 64 << 10;

/// One test at a time: a load has the machine to itself.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The sockets of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Kernel,
    Sietch,
}

/// The sockets of servers and of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sides {
    server: Side,
    client: Side,
}

impl Sides {
    pub(crate) const KERNEL: Self = Self { server: Side::Kernel, client: Side::Kernel };
    pub(crate) const BOTH: Self = Self { server: Side::Sietch, client: Side::Sietch };
    pub(crate) const SERVER: Self = Self { server: Side::Sietch, client: Side::Kernel };
    pub(crate) const CLIENT: Self = Self { server: Side::Kernel, client: Side::Sietch };
}

impl fmt::Display for Sides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::KERNEL => "kernel_only",
            Self::BOTH => "both_ends",
            Self::SERVER => "server_only",
            _ => "client_only",
        })
    }
}

/// Runs `load` if this machine has the `programs`: once and short in CI if `sides` is among
/// `quick`, long and repeatedly in a soak.
pub(crate) fn run(module: &str, programs: &[&str], sides: Sides, quick: &[Sides], load: fn(&Testbed)) {
    let program = module.rsplit("::").next().unwrap_or(module);
    let name = format!("{program}::{sides}");
    let long = std::env::var_os("SIETCH_SIM_SOAK").is_some();
    let wanted = std::env::var_os("SIETCH_POSIX_ALL").is_some();
    if !long && !wanted && !quick.contains(&sides) {
        eprintln!("SKIPPED {name}: needs time; it is part of `cargo xtask soak posix`");
        return;
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED {name}: needs root for a network namespace");
        return;
    }
    if let Some(missing) = programs.iter().find(|program| find(program).is_none()) {
        eprintln!("SKIPPED {name}: needs {missing}");
        return;
    }
    let number = |variable: &str| std::env::var(variable).ok().and_then(|text| text.parse::<u64>().ok());
    let rounds = number("SIETCH_SIM_SEEDS").filter(|_| long).unwrap_or(1);
    let seconds = number("SIETCH_SIM_SECONDS").filter(|_| long).unwrap_or(0);
    let started = Instant::now();
    let mut round = 0;
    while round == 0 || round < rounds && started.elapsed() < Duration::from_secs(seconds) {
        round += 1;
        let name = name.clone();
        in_own_network(move || {
            let testbed = Testbed::new(&name, sides, long);
            load(&testbed);
            testbed.check_loopback_bytes();
            testbed.close();
        });
    }
    println!("{name}: {round} rounds in {} ms", started.elapsed().as_millis());
}

/// The library that `sietch run` preloads: the one built for this test. One beside the command may
/// be older.
pub(crate) fn library() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_sietch")).with_file_name("deps").join("libsietch_posix.so")
}

/// The path of `program`: PATH, and Debian's folders for servers.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    // A Python in a user's home is a script around another one; the system's is a program.
    let first = (program == "python3").then(|| PathBuf::from("/usr/bin"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = first.into_iter().chain(std::env::split_paths(&path)).chain(["/usr/sbin".into()]);
    folders.map(|folder| folder.join(program)).find(|file| file.is_file()).or_else(|| {
        let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
        versions.flatten().map(|version| version.path().join("bin").join(program)).find(|file| file.is_file())
    })
}

fn in_own_network(test: impl FnOnce() + Send + 'static) {
    // A failed test poisons the lock, which does not concern the next one.
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let thread = std::thread::spawn(move || {
        #[expect(deprecated, reason = "the replacement is unsafe for flags that are not used here")]
        rustix::thread::unshare(rustix::thread::UnshareFlags::NEWNET).expect("a network namespace");
        let up = Command::new("ip").args(["link", "set", "lo", "up"]).status().expect("iproute2");
        assert!(up.success());
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// The environment of a running test.
pub(crate) struct Testbed {
    pub folder: PathBuf,
    sides: Sides,
    pub long: bool,
    service: RefCell<Option<Process>>,
    /// The service's descriptors before the first client.
    descriptors: Cell<usize>,
    /// Whether Sietch keeps every connection, also short-lived ones.
    always: Cell<bool>,
    /// Whether the load exceeds the service's limits.
    expects_full: Cell<bool>,
    /// Whether the bytes on loopback are not checked.
    skips_byte_check: Cell<bool>,
    /// Programs started so far, for the names of their logs.
    started: Cell<u32>,
}

impl Testbed {
    fn new(name: &str, sides: Sides, long: bool) -> Self {
        let name = name.replace("::", "-");
        let folder = std::env::temp_dir().join(format!("sietch-posix-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        for each in ["logs", "run"] {
            std::fs::create_dir_all(folder.join(each)).unwrap();
        }
        let testbed = Self {
            folder,
            sides,
            long,
            service: RefCell::new(None),
            descriptors: Cell::new(0),
            always: Cell::new(true),
            expects_full: Cell::new(false),
            skips_byte_check: Cell::new(false),
            started: Cell::new(0),
        };
        if sides != Sides::KERNEL {
            testbed.start_service();
        }
        testbed
    }

    /// Starts the socket service, and waits until it serves.
    pub(crate) fn start_service(&self) {
        let mut service = self.sietch();
        service.args(["service", "--sockets-only"]);
        let service = self.start_command(service, "service", LONG_PATIENCE * 2);
        process::wait_for("the socket service", PATIENCE, || service.printed().contains('/').then_some(()));
        // A service that answers has opened all descriptors that it needs at the start.
        self.sockets();
        self.descriptors.set(descriptors(service.pid()));
        *self.service.borrow_mut() = Some(service);
    }

    /// Kills the socket service with SIGKILL.
    pub(crate) fn kill_service(&self) {
        let service = self.service.borrow_mut().take().expect("a service runs");
        service.signal(Signal::KILL);
        service.finish();
    }

    /// The output of `sietch sockets`.
    pub(crate) fn sockets(&self) -> serde_json::Value {
        let mut command = self.sietch();
        command.args(["sockets", "--json"]);
        let printed = command.output().unwrap();
        assert!(printed.status.success(), "{printed:?}");
        serde_json::from_slice(&printed.stdout).unwrap()
    }

    /// Revokes an application.
    pub(crate) fn revoke(&self, application: &str) {
        let mut command = self.sietch();
        command.args(["revoke", application]);
        let printed = command.output().unwrap();
        assert!(printed.status.success(), "{printed:?}");
    }

    /// The names of all listeners, in order.
    pub(crate) fn listeners(&self) -> Vec<String> {
        let shown = self.sockets();
        let all = shown["listeners"].as_array().expect("a list");
        let mut names: Vec<_> =
            all.iter().map(|one| one["name"].as_str().expect("a name").to_owned()).collect();
        names.sort();
        names
    }

    /// The number of connections.
    pub(crate) fn connections(&self) -> usize {
        self.sockets()["connections"].as_array().expect("a list").len()
    }

    /// Descriptors that the service has opened since the first client.
    pub(crate) fn service_descriptors(&self) -> usize {
        let service = self.service.borrow();
        descriptors(service.as_ref().expect("a service runs").pid()).saturating_sub(self.descriptors.get())
    }

    /// The service's resident memory, in KiB.
    pub(crate) fn service_memory(&self) -> usize {
        let service = self.service.borrow();
        let pid = service.as_ref().expect("a service runs").pid();
        let status = std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS")).expect("it has memory");
        line.split_whitespace().nth(1).and_then(|word| word.parse().ok()).expect("a number")
    }

    /// Connections for which the service has descriptors: `docs/spec/sockets.md`, limits.
    pub(crate) fn most_connections(&self) -> usize {
        let service = self.service.borrow();
        let pid = service.as_ref().expect("a service runs").pid();
        let limits = std::fs::read_to_string(format!("/proc/{}/limits", pid.as_raw_nonzero())).unwrap();
        let line = limits.lines().find(|line| line.starts_with("Max open files")).expect("a limit");
        let most: usize =
            line.split_whitespace().nth(3).and_then(|word| word.parse().ok()).expect("a number");
        // One user leaves a quarter, and five count for each (docs/spec/budgets.md). A few
        // listeners have some as well.
        (most - 2048) * 3 / 4 / 5 - 20
    }

    fn sietch(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sietch"));
        command.arg("--socket").arg(self.folder.join("run/sietch.sock")).stdin(Stdio::null());
        command
            .env("HOME", &self.folder)
            .env("NO_COLOR", "1")
            .env("SIETCH_PRELOAD", library())
            .current_dir(&self.folder);
        command
    }

    /// From now on short-lived connections may stay on kernel TCP; with both ends under Sietch some
    /// must.
    pub(crate) fn allow_kernel_connections(&self) {
        self.always.set(false);
    }

    /// The load will exceed the service's limits: the kernel must serve some of the connections.
    pub(crate) fn expect_full_service(&self) {
        self.expects_full.set(true);
    }

    /// Some connections are on the kernel on purpose, and all have few bytes: the check of bytes on
    /// loopback is skipped.
    pub(crate) fn skip_byte_check(&self) {
        self.skips_byte_check.set(true);
    }

    /// `short`, or `long` in a soak.
    pub(crate) fn size<T>(&self, short: T, long: T) -> T {
        if self.long { long } else { short }
    }

    pub(crate) fn patience(&self) -> Duration {
        self.size(PATIENCE, LONG_PATIENCE)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    /// A file with this content.
    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.folder.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path.display().to_string()
    }

    fn command(&self, side: Side, program: &str, arguments: &[&str]) -> Command {
        let file = find(program).unwrap_or_else(|| program.into());
        let mut command = match side {
            Side::Kernel => Command::new(file),
            Side::Sietch => {
                let mut command = self.sietch();
                command.arg("run").args(self.always.get().then_some("--always")).arg("--").arg(file);
                command
            }
        };
        command.args(arguments).stdin(Stdio::null()).current_dir(&self.folder).env("HOME", &self.folder);
        command
    }

    /// The command of a server on the server's side.
    pub(crate) fn server_command(&self, program: &str, arguments: &[&str]) -> Command {
        self.command(self.sides.server, program, arguments)
    }

    /// The command of a client on the client's side.
    pub(crate) fn client_command(&self, program: &str, arguments: &[&str]) -> Command {
        self.command(self.sides.client, program, arguments)
    }

    /// A command on the kernel's sockets.
    pub(crate) fn kernel_command(&self, program: &str, arguments: &[&str]) -> Command {
        self.command(Side::Kernel, program, arguments)
    }

    /// Starts a command.
    pub(crate) fn start(&self, command: Command, name: &str) -> Process {
        self.start_command(command, name, self.patience())
    }

    fn start_command(&self, command: Command, name: &str, patience: Duration) -> Process {
        let number = self.started.get();
        self.started.set(number + 1);
        Process::start(command, &self.folder.join(format!("logs/{number:02}-{name}")), patience)
    }

    /// Starts a server and waits until it listens on `port`.
    pub(crate) fn serve(&self, program: &str, arguments: &[&str], port: u16) -> Process {
        // A server runs as long as the test.
        let server = self.server_command(program, arguments);
        let mut server = self.start_command(server, program, LONG_PATIENCE * 2);
        self.listening(&mut server, port);
        server
    }

    /// Waits until a socket listens on `port`: the kernel lists it, whichever way the connections
    /// take.
    pub(crate) fn listening(&self, server: &mut Process, port: u16) {
        let listens = |table: &str| {
            let table = std::fs::read_to_string(format!("/proc/thread-self/net/{table}")).unwrap_or_default();
            table.lines().any(|line| {
                let mut fields = line.split_whitespace();
                let local = fields.nth(1).unwrap_or_default();
                local.ends_with(&format!(":{port:04X}")) && fields.nth(1) == Some("0A")
            })
        };
        process::wait_for(&format!("a listener on port {port}"), self.patience(), || {
            server.must_run();
            (listens("tcp") || listens("tcp6")).then_some(())
        });
    }

    /// Runs a client to its successful end.
    pub(crate) fn client(&self, program: &str, arguments: &[&str]) -> Finished {
        self.start(self.client_command(program, arguments), program).succeed()
    }

    /// The output of a client.
    pub(crate) fn client_output(&self, program: &str, arguments: &[&str]) -> String {
        self.client(program, arguments).text()
    }

    /// Runs a client that reads `input`.
    pub(crate) fn client_reading(&self, program: &str, arguments: &[&str], input: &Path) -> Finished {
        let mut command = self.client_command(program, arguments);
        command.stdin(std::fs::File::open(input).unwrap());
        self.start(command, program).succeed()
    }

    /// Polls for a state without an event.
    pub(crate) fn wait_for<T>(&self, what: &str, question: impl FnMut() -> Option<T>) -> T {
        process::wait_for(what, self.patience(), question)
    }

    /// Checks that the bytes crossed the kernel's loopback, or did not, as the sides require.
    fn check_loopback_bytes(&self) {
        if self.skips_byte_check.get() {
            return;
        }
        let octets = loopback_octets();
        if self.sides == Sides::BOTH && self.always.get() && !self.expects_full.get() {
            assert!(octets < LOOPBACK_ALLOWANCE, "{octets} bytes went through the kernel's loopback");
        } else {
            assert!(octets > LOOPBACK_ALLOWANCE, "only {octets} bytes went through the kernel's loopback");
        }
    }

    /// Checks that after the end of all programs the service runs, has logged no warning and has
    /// closed every descriptor.
    fn close(self) {
        let Some(mut service) = self.service.take() else { return };
        service.must_run();
        let others = || process::own_processes().into_iter().filter(|pid| *pid != service.pid());
        others().for_each(|pid| kill_process(pid, Signal::KILL).unwrap_or_default());
        self.wait_for("the ends of all programs", || others().next().is_none().then_some(()));
        self.wait_for("the service to close what they had", || {
            (descriptors(service.pid()) <= self.descriptors.get()).then_some(())
        });
        service.must_run();
        let printed = service.errors_so_far();
        assert!(
            !printed.contains("WARN") && !printed.contains("ERROR") && !printed.contains("panicked"),
            "{printed}"
        );
        // Ended with everything else.
        *self.service.borrow_mut() = Some(service);
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        drop(self.service.take());
        // Backends of PostgreSQL leave their process group.
        for pid in process::own_processes() {
            let _ = kill_process(pid, Signal::KILL);
        }
        if std::thread::panicking() && std::env::var_os("SIETCH_POSIX_QUIET").is_none() {
            show_logs(&self.folder.join("logs"));
        }
        if !(std::thread::panicking() && std::env::var_os("SIETCH_POSIX_KEEP").is_some()) {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}

/// Open descriptors of a process.
fn descriptors(pid: Pid) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero())).expect("it runs").count()
}

/// The ends of all logs.
fn show_logs(folder: &Path) {
    let mut files: Vec<_> =
        std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    files.sort();
    for file in files {
        let text = std::fs::read(&file).unwrap_or_default();
        if !text.is_empty() {
            let tail = String::from_utf8_lossy(&text[text.len().saturating_sub(2000)..]).into_owned();
            eprintln!("--- {}\n{}", file.file_name().unwrap_or_default().display(), tail.trim_end());
        }
    }
}

/// Bytes of IP packets that this namespace's kernel has received: all of them over its loopback.
pub(crate) fn loopback_octets() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/netstat").unwrap();
    let mut lines = text.lines().filter(|line| line.starts_with("IpExt:"));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let testbed = names.split(' ').position(|name| name == "InOctets").unwrap();
    values.split(' ').nth(testbed).unwrap().parse().unwrap()
}

/// Pseudo-random bytes, the same in every run.
pub(crate) fn pattern(bytes: usize) -> Vec<u8> {
    let mut random = XorShift64::new(0x9e37_79b9_7f4a_7c15);
    let mut all = Vec::with_capacity(bytes + 8);
    while all.len() < bytes {
        all.extend_from_slice(&random.word().to_le_bytes());
    }
    all.truncate(bytes);
    all
}

/// Checks that both files hold the same bytes.
pub(crate) fn assert_same_files(one: &Path, other: &Path) {
    let read =
        |path: &Path| std::fs::read(path).unwrap_or_else(|cause| panic!("{}: {cause}", path.display()));
    let (left, right) = (read(one), read(other));
    let differ = left.iter().zip(&right).position(|(left, right)| left != right);
    assert!(
        left == right,
        "{} ({} bytes) and {} ({} bytes) differ, first at {differ:?}",
        one.display(),
        left.len(),
        other.display(),
        right.len()
    );
}
