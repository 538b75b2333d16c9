//! The environment of a test: network namespace, folders, configuration, and the running `sietch
//! up`.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// The time limit of every wait.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The user that the store runs as.
pub(crate) const STORE_USER: u32 = 61870;

/// The user of the second VNIC.
pub(crate) const ROGUE_USER: u32 = 61999;

/// Address of the store's VNIC.
pub(crate) const VNIC: &str = "10.84.0.2";

/// Its IPv6 address.
pub(crate) const VNIC6: &str = "fd84::2";

/// One test at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Runs `test` in a thread with a network namespace of its own, whose loopback is up.
pub(crate) fn in_own_network(name: &str, test: impl FnOnce() + Send + 'static) {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED {name}: needs root for a network namespace");
        return;
    }
    // A failed test poisons the lock, which does not concern the next one.
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let thread = std::thread::spawn(move || {
        #[expect(deprecated, reason = "the replacement is unsafe for flags that are not used here")]
        rustix::thread::unshare(rustix::thread::UnshareFlags::NEWNET).expect("a network namespace");
        ip(&["link", "set", "lo", "up"]);
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Whether `program` can be started; if not, prints that the test is skipped.
pub(crate) fn has(test: &str, program: &str) -> bool {
    let found =
        Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !found {
        eprintln!("SKIPPED {test}: needs {program}; install redis-tools");
    }
    found
}

/// Runs `ip` and returns its output.
pub(crate) fn ip(arguments: &[&str]) -> String {
    let output = Command::new("ip").args(arguments).output().expect("iproute2");
    text(&output.stdout) + &text(&output.stderr)
}

/// Bytes as text.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Sends a signal to a process of the test.
pub(crate) fn signal(pid: i64, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(pid, signal).expect("it runs");
}

/// Polls until there is an answer, where no event can be waited for.
pub(crate) fn wait_for<T>(what: &str, mut question: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = question() {
            return answer;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// CPU time of a process so far, in clock ticks.
pub(crate) fn ticks(pid: i64) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let (_, fields) = stat.rsplit_once(") ").expect("a name in brackets");
    fields.split(' ').skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum()
}

/// Open descriptors of a process.
pub(crate) fn descriptors(pid: i64) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs").count()
}

/// The environment of a test: folders, port, user.
pub(crate) struct Testbed {
    pub folder: PathBuf,
    pub port: u16,
    /// The ordinary user that runs everything; none: the user that runs the test.
    user: Option<u32>,
}

impl Testbed {
    pub(crate) fn new(name: &str) -> Self {
        Self::of(name, None)
    }

    pub(crate) fn of(name: &str, user: Option<u32>) -> Self {
        let folder = std::env::temp_dir().join(format!("sietch-acceptance-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("make a folder");
        if let Some(uid) = user {
            std::os::unix::fs::chown(&folder, Some(uid), Some(uid)).expect("chown");
        }
        let free = TcpListener::bind("127.0.0.1:0").expect("bind");
        let testbed = Self { folder, port: free.local_addr().expect("address").port(), user };
        testbed.configure(&testbed.configuration());
        testbed
    }

    /// The default sietch.toml of a test.
    pub(crate) fn configuration(&self) -> String {
        // An ordinary user's store runs as that user.
        let own = rustix::process::geteuid();
        let store = if own.is_root() { STORE_USER } else { own.as_raw() };
        let (uid, port) = (self.user.unwrap_or(store), self.port);
        let shards = crate::number("SIETCH_SHARDS", 1);
        format!(
            "[[vnic]]\nname = \"kv\"\nuid = {uid}\naddress = \"{VNIC}/24\"\nhost_address = \"10.84.0.1\"\n\
             address6 = \"{VNIC6}/64\"\nhost_address6 = \"fd84::1\"\ntcp_ports = [\"{port}\"]\n\n\
             [[vnic]]\nname = \"rogue\"\nuid = {ROGUE_USER}\naddress = \"10.84.1.2/24\"\n\
             host_address = \"10.84.1.1\"\naddress6 = \"fd84:1::2/64\"\n\
             host_address6 = \"fd84:1::1\"\nudp_ports = [\"7000-7009\"]\nrate = \"8Mbit/s\"\n\n\
             [[vsa]]\nname = \"store\"\nuid = {uid}\nsize = \"64MiB\"\n\n\
             [kv]\nuid = {uid}\nport = {port}\nvsa = \"store\"\nshards = {shards}\n"
        )
    }

    pub(crate) fn configure(&self, text: &str) {
        std::fs::write(self.folder.join("sietch.toml"), text).expect("write sietch.toml");
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.join("run/sietch.sock")
    }

    pub(crate) fn area(&self) -> PathBuf {
        self.folder.join("data/areas/store.vsa")
    }

    pub(crate) fn vnic(&self) -> SocketAddr {
        format!("{VNIC}:{}", self.port).parse().unwrap()
    }

    pub(crate) fn vnic6(&self) -> SocketAddr {
        format!("[{VNIC6}]:{}", self.port).parse().unwrap()
    }

    pub(crate) fn kernel(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// `sietch` with `arguments`, as the testbed's user.
    pub(crate) fn sietch(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sietch"));
        command
            .arg("--socket")
            .arg(self.socket())
            .args(arguments)
            .env("HOME", &self.folder)
            .env("NO_COLOR", "1")
            .env_remove("XDG_RUNTIME_DIR")
            .current_dir("/")
            .stdin(Stdio::null());
        if let Some(uid) = self.user {
            command.uid(uid).gid(uid);
        }
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.sietch(arguments).output().expect("start sietch")
    }

    /// What a process of `sietch up` has logged so far.
    pub(crate) fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.join("data").join(name)).unwrap_or_default()
    }

    /// `sietch up` with this testbed's folders.
    pub(crate) fn up_command(&self, more: &[&str]) -> Command {
        let path = |name: &str| self.folder.join(name).display().to_string();
        let (config, data) = (path("sietch.toml"), path("data"));
        let fixed = ["up", "--config", &config, "--data", &data];
        self.sietch(&[&fixed, more].concat())
    }

    /// Starts `sietch up` and reads its output until it is up.
    pub(crate) fn up(&self, more: &[&str]) -> Up {
        self.up_by(self.up_command(more))
    }

    /// The same with this command.
    pub(crate) fn up_by(&self, mut command: Command) -> Up {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().expect("start sietch");
        let mut up = Up { child, output: None, banner: String::new(), data: self.folder.join("data") };
        let mut output = BufReader::new(up.child.stdout.take().expect("a pipe"));
        while !up.banner.lines().any(|line| line.starts_with("daemon:")) {
            if output.read_line(&mut up.banner).expect("read") == 0 {
                panic!("sietch up ended: {:?}: {}", up.child.wait(), up.complaints());
            }
        }
        up.output = Some(output);
        up
    }

    /// Runs a `sietch up` whose store cannot start, and returns what it says of it, on one line.
    pub(crate) fn failing_store(&self, more: &[&str]) -> String {
        let up = self.up(more);
        let printed = up.banner.split_whitespace().collect::<Vec<_>>().join(" ");
        up.stop();
        assert!(printed.contains("store does not run"), "{printed}");
        printed
    }

    /// Runs a `sietch up` that cannot succeed and returns its error, on one line.
    pub(crate) fn refused(&self, more: &[&str]) -> String {
        let output = self.up_command(more).output().expect("start sietch");
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert_no_panic(&self.folder.join("data"));
        let printed = text(&output.stderr);
        assert!(!printed.contains("panicked"), "{printed}");
        // The report is wrapped and has a margin.
        printed.replace(['\u{2502}', '\u{d7}'], " ").split_whitespace().collect::<Vec<_>>().join(" ")
    }

    pub(crate) fn try_status(&self) -> Option<serde_json::Value> {
        let output = self.run(&["status", "--json"]);
        output.status.success().then(|| serde_json::from_slice(&output.stdout).expect("JSON"))
    }

    pub(crate) fn status(&self) -> serde_json::Value {
        self.try_status().expect("the daemon runs")
    }

    /// The process ids of daemon, `up` and store. A store answers its clients before `up` has
    /// reported its process to the daemon; until then the status has none, or the last one.
    pub(crate) fn pids(&self) -> [i64; 3] {
        let is_running = |pid: &i64| Path::new("/proc").join(pid.to_string()).exists();
        wait_for("the process ids of daemon, `up` and store", || {
            let status = self.try_status()?;
            let pid = |value: &serde_json::Value| value.as_i64().filter(is_running);
            let (daemon, instance) = (&status["daemon"], &status["instance"]);
            Some([pid(&daemon["pid"])?, pid(&instance["pid"])?, pid(&instance["store"])?])
        })
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        if let Ok(entries) = std::fs::read_dir(self.folder.join("data/areas")) {
            for entry in entries.flatten() {
                // A revoked area may be immutable.
                if let Ok(file) = std::fs::File::open(entry.path()) {
                    let _ = rustix::fs::ioctl_setflags(&file, rustix::fs::IFlags::empty());
                }
            }
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A running `sietch up`, stopped when dropped.
pub(crate) struct Up {
    child: Child,
    /// Kept open, because the program may still write.
    output: Option<BufReader<ChildStdout>>,
    pub banner: String,
    data: PathBuf,
}

impl Up {
    pub(crate) fn pid(&self) -> i64 {
        i64::from(self.child.id())
    }

    /// What it has printed behind the line about the daemon, read to the end of it.
    pub(crate) fn remainder(&mut self) -> String {
        let mut printed = String::new();
        let output = self.output.take();
        signal(self.pid(), Signal::INT);
        output.expect("not read before").read_to_string(&mut printed).expect("read");
        printed
    }

    /// Ends it as Ctrl-C does, and checks that it has not panicked. Returns its errors.
    pub(crate) fn stop(mut self) -> String {
        signal(self.pid(), Signal::INT);
        let status = self.child.wait().expect("wait");
        let printed = self.complaints();
        assert!(status.success(), "{status:?}: {printed}");
        assert!(!printed.contains("panicked"), "{printed}");
        assert_no_panic(&self.data);
        printed
    }

    fn complaints(&mut self) -> String {
        let mut printed = String::new();
        self.child.stderr.take().expect("a pipe").read_to_string(&mut printed).expect("read");
        printed
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        self.output = None;
        let pid = Pid::from_child(&self.child);
        for how in [Signal::TERM, Signal::KILL] {
            let deadline = Instant::now() + PATIENCE;
            while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
                if Instant::now() + PATIENCE >= deadline {
                    let _ = kill_process(pid, how);
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        if std::thread::panicking() {
            for name in ["daemon.log", "kv.log"] {
                let log = std::fs::read_to_string(self.data.join(name)).unwrap_or_default();
                eprintln!("--- {name}\n{log}");
            }
        }
    }
}

/// Checks that neither daemon nor store has panicked.
fn assert_no_panic(data: &Path) {
    for name in ["daemon.log", "kv.log"] {
        let log = std::fs::read_to_string(data.join(name)).unwrap_or_default();
        assert!(!log.contains("panicked"), "{name}: {log}");
    }
}
