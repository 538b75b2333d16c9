//! `sietch up` end to end: its output, and what remains afterwards.
//!
//! Each test has folders, a port and (as root) a network namespace of its own. The namespace
//! belongs to a thread, and what that thread starts lives in it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

mod file_systems;

/// The environment of a test: folders, port, user.
struct Testbed {
    folder: PathBuf,
    port: u16,
    /// The ordinary user that runs everything; without one, this process's.
    user: Option<u32>,
}

impl Testbed {
    fn new(name: &str, user: Option<u32>) -> Self {
        let folder = std::env::temp_dir().join(format!("sietch-up-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("make a folder");
        let free = TcpListener::bind("127.0.0.1:0").expect("bind");
        let port = free.local_addr().expect("address").port();
        if let Some(uid) = user {
            std::os::unix::fs::chown(&folder, Some(uid), Some(uid)).expect("chown");
        }
        let testbed = Self { folder, port, user };
        testbed.configure();
        testbed
    }

    fn configure(&self) {
        let uid = self.user.unwrap_or_else(|| match rustix::process::getuid().as_raw() {
            0 => 61870,
            uid => uid,
        });
        let port = self.port;
        let text = format!(
            "[[vnic]]\nname = \"kv\"\nuid = {uid}\naddress = \"10.84.0.2/24\"\nhost_address = \"10.84.0.1\"\n\
             address6 = \"fd84::2/64\"\nhost_address6 = \"fd84::1\"\n\
             tcp_ports = [\"{port}\"]\n\n[[vsa]]\nname = \"kv\"\nuid = {uid}\nsize = \"64MiB\"\n\n\
             [kv]\nuid = {uid}\nport = {port}\n"
        );
        std::fs::write(self.folder.join("sietch.toml"), text).expect("write sietch.toml");
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("run/sietch.sock")
    }

    fn sietch(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sietch"));
        command
            .arg("--socket")
            .arg(self.socket())
            .args(arguments)
            .env("HOME", &self.folder)
            .env_remove("XDG_RUNTIME_DIR")
            .stdin(Stdio::null());
        if let Some(uid) = self.user {
            command.uid(uid).gid(uid);
        }
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.sietch(arguments).output().expect("start sietch")
    }

    fn up_arguments(&self, more: &[&str]) -> Vec<String> {
        let path = |name: &str| self.folder.join(name).display().to_string();
        let fixed =
            ["up".to_owned(), "--config".to_owned(), path("sietch.toml"), "--data".to_owned(), path("data")];
        fixed.into_iter().chain(more.iter().map(|word| (*word).to_owned())).collect()
    }

    /// Starts `sietch up` and reads its output until it is up.
    fn up(&self, more: &[&str]) -> Up {
        let arguments = self.up_arguments(more);
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        Up::wait_for(&mut self.sietch(&words)).expect("start sietch")
    }

    fn kernel(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    fn status(&self) -> serde_json::Value {
        let output = self.run(&["status", "--json"]);
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// Nothing of the run remains: no socket, no record, no veth, none of the processes.
    fn assert_clean(&self, processes: &[i64]) {
        let left = std::fs::read_dir(self.folder.join("run")).expect("read").count();
        assert_eq!(left, 0, "socket or record left behind");
        for pid in processes {
            assert!(!runs(*pid), "{pid} still runs");
        }
        if rustix::process::geteuid().is_root() && self.user.is_none() {
            assert_eq!(links(), ["lo"], "an interface was left behind");
        }
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A running `sietch up`, stopped when dropped.
struct Up {
    child: Child,
    /// Kept open, because the program may still write.
    output: Option<BufReader<ChildStdout>>,
    banner: String,
}

impl Up {
    /// Starts `command`, a `sietch up`, and reads its output until it is up.
    fn wait_for(command: &mut Command) -> std::io::Result<Self> {
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let mut up = Self { child, output: None, banner: String::new() };
        let mut output = BufReader::new(up.child.stdout.take().expect("a pipe"));
        while !up.banner.lines().any(|line| line.starts_with("daemon:")) {
            if output.read_line(&mut up.banner)? == 0 {
                panic!("sietch up ended: {:?}: {}", up.child.wait(), up.complaints());
            }
        }
        up.output = Some(output);
        Ok(up)
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        let _ = kill_process(pid, signal);
    }

    fn interrupt(mut self) -> (ExitStatus, String) {
        self.signal(Signal::INT);
        let status = self.child.wait().expect("wait");
        (status, self.complaints())
    }

    /// Its standard error.
    fn complaints(&mut self) -> String {
        let mut printed = String::new();
        self.child.stderr.take().expect("a pipe").read_to_string(&mut printed).expect("read");
        printed
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        self.output = None;
        if matches!(self.child.try_wait(), Ok(None)) {
            self.signal(Signal::TERM);
            let _ = self.child.wait();
        }
    }
}

/// The interfaces of this thread's network namespace.
fn links() -> Vec<String> {
    let text = std::fs::read_to_string("/proc/thread-self/net/dev").expect("read");
    text.lines()
        .skip(2)
        .filter_map(|line| line.split(':').next())
        .map(|name| name.trim().to_owned())
        .collect()
}

/// Runs `test` in a thread with a network namespace of its own, whose loopback is up.
fn in_own_network(name: &str, test: impl FnOnce() + Send + 'static) {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED {name}: needs root for a network namespace");
        return;
    }
    let thread = std::thread::spawn(move || {
        #[expect(deprecated, reason = "the replacement is unsafe for flags that are not used here")]
        rustix::thread::unshare(rustix::thread::UnshareFlags::NEWNET).expect("a network namespace");
        let loopback = Command::new("ip").args(["link", "set", "lo", "up"]).status().expect("ip");
        assert!(loopback.success());
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Whether a process runs; a zombie does not.
fn runs(pid: i64) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// Sends one inline command and returns the first line of the reply.
fn try_query(address: SocketAddr, command: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(10))?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    write!(stream, "{command}\r\n")?;
    let mut reply = BufReader::new(stream);
    let mut line = String::new();
    reply.read_line(&mut line)?;
    if line.starts_with('$') && line != "$-1\r\n" {
        line.clear();
        reply.read_line(&mut line)?;
    }
    if line.is_empty() {
        Err(std::io::ErrorKind::UnexpectedEof.into())
    } else {
        Ok(line.trim_end().to_owned())
    }
}

fn query(address: SocketAddr, command: &str) -> String {
    try_query(address, command).expect("a reply")
}

/// Sends requests until the store answers again, as a client does after a lost connection.
fn query_until_answered(address: SocketAddr, command: &str) -> String {
    for _ in 0..600 {
        if let Ok(reply) = try_query(address, command) {
            return reply;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("{address} did not come back");
}

fn processes(status: &serde_json::Value) -> Vec<i64> {
    let of = |value: &serde_json::Value| value.as_i64().expect("a pid");
    vec![of(&status["daemon"]["pid"]), of(&status["instance"]["pid"]), of(&status["instance"]["store"])]
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn root_gets_a_vnic_an_unprivileged_store_and_a_clean_end() {
    in_own_network("root_gets_a_vnic_an_unprivileged_store_and_a_clean_end", || {
        let testbed = Testbed::new("root", None);
        let up = testbed.up(&[]);
        let vnic: SocketAddr = format!("10.84.0.2:{}", testbed.port).parse().expect("an address");
        let line = format!("af_xdp VNIC kv {vnic} (kernel-enforced)");
        assert!(up.banner.contains(&line), "{}", up.banner);
        assert_eq!(query(vnic, "SET a 1"), "+OK");
        assert_eq!(query(testbed.kernel(), "GET a"), "1");
        // Over IPv6 it is the same store.
        let six = SocketAddr::from((Ipv6Addr::new(0xfd84, 0, 0, 0, 0, 0, 0, 2), testbed.port));
        assert!(up.banner.contains(&six.to_string()), "{}", up.banner);
        assert_eq!(query(six, "SET over ipv6"), "+OK");
        assert_eq!(query(testbed.kernel(), "GET over"), "ipv6");
        assert_eq!(text(&testbed.run(&["status"]).stdout).matches("fd84::2").count(), 2);

        let status = testbed.status();
        assert_eq!(status["daemon"]["vnics"][0]["protection"], "kernel-enforced");
        assert_eq!(status["daemon"]["vnics"][0]["holder"]["uid"], 61870);
        let pids = processes(&status);
        let credentials = std::fs::read_to_string(format!("/proc/{}/status", pids[2])).expect("read");
        for line in ["CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1"] {
            assert!(credentials.contains(line), "{line} is not in\n{credentials}");
        }
        assert!(credentials.contains("Uid:\t61870\t61870\t61870\t61870"), "{credentials}");

        let stat: serde_json::Value =
            serde_json::from_slice(&testbed.run(&["stat", "--json"]).stdout).expect("JSON");
        let sources: Vec<&str> = stat["groups"]
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(|group| group["source"].as_str())
            .collect();
        for source in ["daemon", "vnic kv", "kv", "log", "tcp", "nic"] {
            assert!(sources.contains(&source), "{source} is not in {sources:?}");
        }

        let (status, printed) = up.interrupt();
        assert!(status.success(), "{status:?}: {printed}");
        testbed.assert_clean(&pids);
    });
}

#[test]
fn a_second_up_is_refused_and_down_stops_the_first() {
    in_own_network("a_second_up_is_refused_and_down_stops_the_first", || {
        let testbed = Testbed::new("second", None);
        let mut up = testbed.up(&["--net", "linux"]);
        assert!(up.banner.contains("network:    linux sockets"), "{}", up.banner);
        let arguments = testbed.up_arguments(&[]);
        let second = testbed.run(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(second.status.code(), Some(1));
        let printed = text(&second.stderr);
        let pid = up.child.id().to_string();
        assert!(printed.contains("already running") && printed.contains(&pid), "{printed}");
        assert!(printed.contains(&testbed.kernel().to_string()), "{printed}");

        let pids = processes(&testbed.status());
        let down = testbed.run(&["down"]);
        assert!(down.status.success(), "{down:?}");
        assert!(up.child.wait().expect("wait").success());
        testbed.assert_clean(&pids);
        assert_eq!(testbed.run(&["down"]).status.code(), Some(1));
    });
}

#[test]
fn sockets_of_unmodified_programs_are_counted_with_everything_else() {
    in_own_network("sockets_of_unmodified_programs_are_counted_with_everything_else", || {
        let testbed = Testbed::new("counted", None);
        let _up = testbed.up(&["--net", "linux"]);
        let shown =
            || text(&testbed.run(&["stat"]).stdout).lines().any(|line| line.starts_with("sockets (pid "));
        // The service core publishes its page in its next iteration.
        let patience = Instant::now() + Duration::from_secs(20);
        while !shown() {
            assert!(Instant::now() < patience, "{}", text(&testbed.run(&["stat"]).stdout));
            std::thread::sleep(Duration::from_millis(50));
        }
    });
}

#[test]
fn a_process_that_dies_is_restarted_and_no_write_is_lost() {
    in_own_network("a_process_that_dies_is_restarted_and_no_write_is_lost", || {
        let testbed = Testbed::new("again", None);
        let up = testbed.up(&[]);
        // The status names the last one until it has the next.
        let kill = |which: usize| loop {
            let pid = i32::try_from(processes(&testbed.status())[which]).expect("a pid");
            match kill_process(Pid::from_raw(pid).expect("a pid"), Signal::KILL) {
                Ok(()) => break,
                Err(error) => assert_eq!(error, rustix::io::Errno::SRCH),
            }
        };
        for round in 0..3 {
            assert_eq!(query_until_answered(testbed.kernel(), &format!("SET key{round} {round}")), "+OK");
            kill(2);
            assert_eq!(query_until_answered(testbed.kernel(), &format!("GET key{round}")), round.to_string());
        }
        // The daemon: the store continues without it, on one connection.
        let mut stream = TcpStream::connect(testbed.kernel()).expect("connect");
        // A command waits for the next daemon, also one that the last has not welcomed.
        let daemon = i32::try_from(processes(&testbed.status())[0]).expect("a pid");
        let send = |signal| kill_process(Pid::from_raw(daemon).expect("a pid"), signal).expect("a daemon");
        send(Signal::STOP);
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| testbed.run(&["status"]));
            std::thread::sleep(Duration::from_millis(300));
            send(Signal::KILL);
            let output = asked.join().expect("the thread that asks");
            assert!(output.status.success(), "{output:?}");
        });
        stream.write_all(b"PING\r\n").expect("send");
        let mut pong = [0; 7];
        stream.read_exact(&mut pong).expect("receive");
        assert_eq!(&pong, b"+PONG\r\n");
        let (status, printed) = up.interrupt();
        assert!(status.success(), "{status:?}: {printed}");
        assert!(printed.contains("starting it again"), "{printed}");
    });
}

#[test]
fn a_detached_up_runs_until_down() {
    in_own_network("a_detached_up_runs_until_down", || {
        let testbed = Testbed::new("detached", None);
        let arguments = testbed.up_arguments(&["--detach", "--net", "linux"]);
        let output = testbed.run(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(output.status.success(), "{output:?}");
        assert!(text(&output.stdout).contains("linux sockets"), "{output:?}");
        assert_eq!(query(testbed.kernel(), "PING"), "+PONG");
        let pids = processes(&testbed.status());
        assert!(testbed.run(&["down"]).status.success());
        testbed.assert_clean(&pids);
    });
}

fn signal_process(pid: i64, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a pid");
    kill_process(pid, signal).expect("it runs");
}

/// A detached `sietch up`, stopped when dropped.
struct Detached<'a>(&'a Testbed);

impl Drop for Detached<'_> {
    fn drop(&mut self) {
        let _ = self.0.run(&["down"]);
    }
}

#[test]
fn a_detached_up_opens_its_log_again_at_sighup() {
    in_own_network("a_detached_up_opens_its_log_again_at_sighup", || {
        let testbed = Testbed::new("rotated", None);
        let arguments = testbed.up_arguments(&["--detach", "--net", "linux"]);
        let output = testbed.run(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(output.status.success(), "{output:?}");
        let detached = Detached(&testbed);
        let log = testbed.folder.join("data/up.log");
        std::fs::rename(&log, log.with_extension("log.1")).expect("rename the log");
        let pids = processes(&testbed.status());
        signal_process(pids[1], Signal::HUP);
        let patience = Instant::now() + Duration::from_secs(20);
        while !log.exists() {
            assert!(runs(pids[1]) && Instant::now() < patience, "the log is not opened again");
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(detached);
        testbed.assert_clean(&pids);
    });
}

#[test]
fn a_stopped_store_is_shown_and_down_says_what_it_waits_for() {
    in_own_network("a_stopped_store_is_shown_and_down_says_what_it_waits_for", || {
        let testbed = Testbed::new("stopped", None);
        let up = testbed.up(&["--net", "linux"]);
        let pids = processes(&testbed.status());
        signal_process(pids[2], Signal::STOP);
        let word = format!("kill -CONT {}", pids[2]);
        let patience = Instant::now() + Duration::from_secs(20);
        loop {
            let shown = text(&testbed.run(&["status"]).stdout);
            if shown.contains(&word) {
                break;
            }
            assert!(Instant::now() < patience, "{shown}");
        }
        assert_eq!(testbed.status()["stopped"][0]["what"], "store");
        let mut down = testbed.sietch(&["down"]);
        let mut down = down.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().expect("start sietch");
        let mut line = String::new();
        BufReader::new(down.stderr.take().expect("a pipe")).read_line(&mut line).expect("read");
        signal_process(pids[2], Signal::CONT);
        assert!(down.wait().expect("wait").success());
        assert!(line.contains(&word), "{line:?}");
        drop(up);
        testbed.assert_clean(&pids);
    });
}

#[test]
fn a_socket_service_that_runs_already_is_named_and_keeps_its_socket() {
    in_own_network("a_socket_service_that_runs_already_is_named_and_keeps_its_socket", || {
        let testbed = Testbed::new("beside", None);
        let socket = testbed.folder.join("run/sockets.sock").display().to_string();
        let mut service = testbed.sietch(&["service", "--sockets-only", "--sockets", &socket]);
        let service = service.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("start sietch");
        let mut service = Up { child: service, output: None, banner: String::new() };
        let mut serves = BufReader::new(service.child.stdout.take().expect("a pipe"));
        serves.read_line(&mut service.banner).expect("read");

        let mut up = testbed.up(&["--net", "linux"]);
        let mut output = up.output.take().expect("a pipe");
        let (status, printed) = up.interrupt();
        assert!(status.success(), "{status:?}: {printed}");
        let mut warnings = String::new();
        output.read_to_string(&mut warnings).expect("read");
        assert!(warnings.contains("warning:") && warnings.contains(&socket), "{warnings:?}");
        let listed = testbed.run(&["sockets", "--sockets", &socket]);
        assert!(listed.status.success(), "{listed:?}");
    });
}

#[test]
fn an_instance_of_another_environment_is_found_by_its_data_directory() {
    let name = "an_instance_of_another_environment_is_found_by_its_data_directory";
    in_own_network(name, move || {
        let testbed = Testbed::new("elsewhere", Some(65534));
        let sietch = |words: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_sietch"));
            command.args(words).env("HOME", &testbed.folder).uid(65534).gid(65534).stdin(Stdio::null());
            for variable in ["XDG_RUNTIME_DIR", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "SIETCH_SOCKET"] {
                command.env_remove(variable);
            }
            command
        };
        let up = ["up", "--net", "linux", "--durability", "none"];
        let Ok(first) = Up::wait_for(&mut sietch(&up)) else {
            eprintln!("SKIPPED {name}: needs a target folder that an ordinary user can read");
            return;
        };
        let socket = testbed.folder.join(".local/share/sietch/run/sietch.sock").display().to_string();
        for words in [&["down"][..], &["status"], &up] {
            let output = sietch(words).env("XDG_RUNTIME_DIR", testbed.folder.join("xdg")).output();
            let output = output.expect("start sietch");
            assert_eq!(output.status.code(), Some(1), "{words:?}: {output:?}");
            let printed = text(&output.stderr);
            assert!(printed.contains(&format!("--socket {socket}")), "{words:?}: {printed}");
        }
        assert!(sietch(&["--socket", &socket, "down"]).output().expect("start sietch").status.success());
        assert!(first.interrupt().0.success());
    });
}

#[test]
fn an_ordinary_user_gets_the_same_store_on_kernel_sockets() {
    let name = "an_ordinary_user_gets_the_same_store_on_kernel_sockets";
    in_own_network(name, move || {
        let testbed = Testbed::new("user", Some(65534));
        if testbed.sietch(&["--version"]).output().is_err() {
            eprintln!("SKIPPED {name}: needs a target folder that an ordinary user can read");
            return;
        }
        let up = testbed.up(&[]);
        let first = up.banner.lines().next().expect("a line");
        assert!(first.contains("linux sockets, because"), "{first}");
        assert_eq!(query(testbed.kernel(), "SET a 1"), "+OK");
        let pids = processes(&testbed.status());
        let credentials = std::fs::read_to_string(format!("/proc/{}/status", pids[2])).expect("read");
        assert!(credentials.contains("CapEff:\t0000000000000000"), "{credentials}");
        let (status, printed) = up.interrupt();
        assert!(status.success(), "{status:?}: {printed}");
        testbed.assert_clean(&pids);

        let up = testbed.up(&["--without-io-uring"]);
        assert_eq!(query(testbed.kernel(), "GET a"), "1", "{}", up.banner);
        let (status, printed) = up.interrupt();
        assert!(status.success() && !printed.contains("killed"), "{status:?}: {printed}");
    });
}

#[test]
fn as_the_first_process_of_a_namespace_it_ends_in_order_at_both_signals() {
    in_own_network("as_the_first_process_of_a_namespace_it_ends_in_order_at_both_signals", || {
        for signal in [Signal::TERM, Signal::INT] {
            let testbed = Testbed::new("first", None);
            let arguments = testbed.up_arguments(&["--net", "linux"]);
            let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
            let sietch = testbed.sietch(&words);
            // The environment in a container: it is process 1, and sees no other process.
            let mut command = Command::new("unshare");
            command.args(["--pid", "--fork", "--mount-proc", "--kill-child"]).arg(sietch.get_program());
            command.args(sietch.get_args()).env("HOME", &testbed.folder).env_remove("XDG_RUNTIME_DIR");
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = command.spawn().expect("start unshare");
            let output = BufReader::new(child.stdout.take().expect("a pipe"));
            let mut lines = output.lines().map_while(Result::ok);
            assert!(lines.any(|line| line.starts_with("daemon:")), "it does not come up");
            let file = format!("/proc/{0}/task/{0}/children", child.id());
            let first = std::fs::read_to_string(file).expect("read");
            let first =
                first.split_whitespace().next().and_then(|text| text.parse().ok()).and_then(Pid::from_raw);
            kill_process(first.expect("it runs"), signal).expect("it runs");
            let ended = child.wait_with_output().expect("wait");
            assert!(ended.status.success(), "{signal:?}: {ended:?}");
            testbed.assert_clean(&[]);
        }
    });
}

/// Why the store does not run, once `status` says so.
fn failing_store(testbed: &Testbed) -> String {
    let patience = Instant::now() + Duration::from_secs(60);
    loop {
        // There may be no daemon for a moment; what there is of the instance is shown all the same.
        let output = testbed.run(&["status", "--json"]);
        let status: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        if let Some(why) = status["instance"]["failing"][0]["why"].as_str() {
            assert_eq!(status["instance"]["failing"][0]["part"], "the store");
            return why.to_owned();
        }
        assert!(Instant::now() < patience, "{status}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A size that the file gets without a reload is met by the next daemon, and by the next store.
#[test]
fn a_store_that_cannot_start_ends_nothing_else_and_serves_again_once_its_area_fits() {
    in_own_network("a_store_that_cannot_start_ends_nothing_else", || {
        let testbed = Testbed::new("unfit", None);
        let resize = |size: &str| {
            let file = testbed.folder.join("sietch.toml");
            let text = std::fs::read_to_string(&file).expect("read");
            let (before, rest) = text.split_once("size = \"").expect("a size");
            let (_, after) = rest.split_once('"').expect("its end");
            std::fs::write(&file, format!("{before}size = \"{size}\"{after}")).expect("write");
        };
        let up = testbed.up(&["--net", "linux"]);
        assert_eq!(query(testbed.kernel(), "SET a 1"), "+OK");
        resize("96MiB");
        let refused = testbed.run(&["reload"]);
        let why = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1));
        assert!(why.contains("the area has 64MiB") && why.contains("vsa resize kv 96MiB"), "{why}");
        assert!(!why.contains("remove"), "{why}");

        let pids = processes(&testbed.status());
        let kill = |pid: i64| {
            let pid = Pid::from_raw(i32::try_from(pid).expect("a pid")).expect("a pid");
            kill_process(pid, Signal::KILL).expect("kill");
        };
        kill(pids[0]);
        kill(pids[2]);
        let why = failing_store(&testbed);
        assert!(why.contains("the area has 64MiB") && why.contains("vsa resize kv 96MiB"), "{why}");
        assert!(runs(pids[1]), "up continues");
        let resized = testbed.run(&["vsa", "resize", "kv", "96MiB"]);
        assert!(resized.status.success(), "{resized:?}");
        assert_eq!(query_until_answered(testbed.kernel(), "GET a"), "1");
        // The whole area is the store's: its limit of files follows.
        let limits = format!("/proc/{}/limits", processes(&testbed.status())[2]);
        let limits = std::fs::read_to_string(limits).expect("read");
        let size = limits.lines().find(|line| line.starts_with("Max file size")).expect("a line");
        assert!(size.contains(&(96 << 20).to_string()), "{size}");
        let (status, printed) = up.interrupt();
        assert!(status.success(), "{status:?}: {printed}");
        assert!(printed.contains("the store does not run"), "{printed}");

        // From the start: the other parts serve, and the banner says what does not.
        std::fs::write(testbed.folder.join("data/areas/kv.owner"), "61870\n").expect("write");
        resize("128MiB");
        let up = testbed.up(&["--net", "linux"]);
        assert!(up.banner.contains("failing:    the store does not run"), "{}", up.banner);
        assert!(up.banner.contains("vsa resize kv 128MiB"), "{}", up.banner);
        assert!(text(&testbed.run(&["status"]).stdout).contains("the store does not run"));
        assert!(testbed.run(&["vsa", "resize", "kv", "128MiB"]).status.success());
        assert_eq!(query_until_answered(testbed.kernel(), "GET a"), "1");
        let (status, printed) = up.interrupt();
        assert!(status.success(), "{status:?}: {printed}");
    });
}

/// A backup of a store that runs, and its way into an area that is not there yet, as another
/// installation has it.
#[test]
fn a_backup_of_a_running_store_is_restored_where_no_store_has_run() {
    in_own_network("a_backup_of_a_running_store_is_restored_where_no_store_has_run", || {
        let testbed = Testbed::new("backup", None);
        let path = |name: &str| testbed.folder.join(name).display().to_string();
        let up = testbed.up(&["--net", "linux"]);
        assert_eq!(query(testbed.kernel(), "SET a 1"), "+OK");
        assert_eq!(query(testbed.kernel(), "RPUSH list x y"), ":2");
        let refused = query(testbed.kernel(), "BGSAVE");
        assert!(refused.starts_with("-ERR") && refused.contains("sietch kv backup"), "{refused}");
        let file = path("store.skb");
        let made = testbed.run(&["kv", "backup", &file]);
        assert!(made.status.success() && text(&made.stderr).contains("2 keys"), "{made:?}");
        // It holds the data: no other user may read it.
        let mode = std::os::unix::fs::PermissionsExt::mode(
            &std::fs::metadata(&file).expect("it is there").permissions(),
        );
        assert_eq!(mode & 0o777, 0o600);
        // One that has ended early leaves its file, one that runs its lock.
        let partial = std::fs::File::create(path("store.skb.partial")).expect("create");
        partial.lock().expect("no other process has it");
        let refused = testbed.run(&["kv", "backup", &file]);
        assert!(text(&refused.stderr).contains("another backup is writing"), "{refused:?}");
        assert!(!refused.status.success() && std::fs::metadata(path("store.skb.partial")).is_ok());
        // Programs that other tests start meanwhile have it for a moment, too.
        partial.unlock().expect("it is locked");
        assert!(testbed.run(&["kv", "backup", &file]).status.success());
        assert!(std::fs::metadata(path("store.skb.partial")).is_err());
        let piped = testbed.run(&["kv", "backup", "-"]);
        assert!(piped.status.success(), "{piped:?}");
        let skip_time = |bytes: &[u8]| (bytes.len(), bytes[24..32].to_vec());
        assert_eq!(skip_time(&piped.stdout), skip_time(&std::fs::read(&file).expect("read")));
        let running = testbed.run(&["kv", "restore", &file, "--config", &path("sietch.toml")]);
        assert!(text(&running.stderr).contains("sietch down"), "{running:?}");
        assert_eq!(query(testbed.kernel(), "SET after 1"), "+OK");
        drop(up);

        // Another folder stands for another machine.
        let restore = |data: &str, more: &[&str]| {
            let fixed = ["kv", "restore", &file, "--config", &path("sietch.toml"), "--data", &path(data)];
            testbed.run(&[&fixed[..], more].concat())
        };
        let restored = restore("elsewhere", &[]);
        assert!(restored.status.success(), "{restored:?}");
        let owner = std::fs::read_to_string(testbed.folder.join("elsewhere/areas/kv.owner")).expect("read");
        assert_eq!(owner.lines().next(), Some("61870"));
        let refused = restore("data", &[]);
        assert!(text(&refused.stderr).contains("the area has 3 keys already"), "{refused:?}");
        assert!(restore("data", &["--replace"]).status.success());
        for replaced in [true, false] {
            let up = testbed.up(&["--net", "linux"]);
            assert_eq!(query(testbed.kernel(), "GET a"), "1", "replaced: {replaced}");
            assert_eq!(query(testbed.kernel(), "LLEN list"), ":2", "replaced: {replaced}");
            assert_eq!(query(testbed.kernel(), "EXISTS after"), ":0", "replaced: {replaced}");
            drop(up);
            std::fs::remove_dir_all(path("data")).expect("remove");
            if replaced {
                std::fs::rename(path("elsewhere"), path("data")).expect("rename");
            }
        }
        // A restore that is killed leaves no daemon, which the next `up` would not replace.
        let to = path("killed");
        let fixed = ["kv", "restore", "-", "--config", &path("sietch.toml"), "--data", &to];
        let mut killed = testbed.sietch(&fixed).stdin(Stdio::piped()).spawn().expect("start sietch");
        let deadline = Instant::now() + Duration::from_secs(20);
        let answers = || testbed.run(&["status"]).status.success();
        while !answers() {
            assert!(Instant::now() < deadline, "the restore starts no daemon");
        }
        killed.kill().expect("it runs");
        killed.wait().expect("its end");
        while answers() {
            assert!(Instant::now() < deadline, "its daemon runs on");
        }
        // What is damaged changes nothing.
        let mut bytes = std::fs::read(&file).expect("read");
        bytes.truncate(bytes.len() - 1);
        std::fs::write(&file, bytes).expect("write");
        let damaged = restore("data", &[]);
        assert!(text(&damaged.stderr).contains("cut short at offset"), "{damaged:?}");
        assert!(!testbed.folder.join("data/areas/kv.vsa").exists(), "it makes no area");
    });
}
