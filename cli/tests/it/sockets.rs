//! `sietch service --sockets-only`, `sietch sockets` and `sietch revoke` from outside: no daemon,
//! any user.

use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use rustix::net::RecvFlags;
use sietch_protocol::socket_service::{
    Descriptors, Incoming, ReplyKind, Request, RequestKind, call, receive_arrival,
};

/// The daemon's configuration.
const AREA: &str = "[[vsa]]\nname = \"kv\"\nuid = 61870\nsize = \"1MiB\"\n";

/// A folder for one test.
struct Testbed {
    folder: PathBuf,
}

impl Testbed {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("sietch-sockets-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("make a folder");
        Self { folder }
    }

    fn socket(&self) -> PathBuf {
        // In a folder that does not exist yet.
        self.folder.join("run/sockets.sock")
    }

    fn sietch(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sietch"));
        command.env("SIETCH_SOCKETS", self.socket()).env("NO_COLOR", "1");
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.sietch().args(arguments).output().expect("run sietch")
    }

    /// A running service.
    fn serve(&self, more: &[&str]) -> Service {
        let mut command = self.sietch();
        command.args(["service", "--sockets-only", "--sockets"]).arg(self.socket()).args(more);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("run sietch");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut line).expect("a line");
        assert_eq!(line.trim_end(), self.socket().display().to_string());
        Service(child)
    }

    fn exchange(&self, request: &Request, sent: &[std::os::fd::BorrowedFd<'_>]) -> (ReplyKind, Descriptors) {
        let mut received = Descriptors::default();
        let reply =
            call(self.socket().as_os_str().as_bytes(), request, sent, &mut received).expect("an answer");
        (reply.kind(), received)
    }

    fn listen(&self, application: [u8; 16]) -> (OwnedFd, SocketAddr) {
        let kernel = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let mut request = Request::new(RequestKind::Listen, application);
        request.backlog = 16;
        let (kind, mut received) = self.exchange(&request, &[kernel.as_fd()]);
        assert_eq!(kind, ReplyKind::Listening);
        (received[0].take().expect("a placeholder"), kernel.local_addr().expect("bound"))
    }

    fn list(&self) -> serde_json::Value {
        let output = self.run(&["sockets", "--json"]);
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).expect("JSON")
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

struct Service(Child);

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn arrived(placeholder: &OwnedFd) -> bool {
    let mut received = Descriptors::default();
    let found = receive_arrival(placeholder.as_fd(), RecvFlags::empty(), &mut received);
    matches!(found, Ok(Incoming::Arrived(_)))
}

#[test]
fn a_service_alone_is_listed_and_an_application_is_revoked_by_its_number() {
    let testbed = Testbed::new("alone");
    let _service = testbed.serve(&[]);
    let mode = std::fs::metadata(testbed.socket()).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o666, "every user may send requests");
    let (placeholder, address) = testbed.listen([0xab; 16]);
    let id = "ab".repeat(16);
    let shown = String::from_utf8(testbed.run(&["sockets"]).stdout).expect("text");
    assert!(shown.contains(&id) && shown.contains(&address.to_string()), "{shown}");
    let output = testbed.run(&["revoke", &id]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(testbed.list()["listeners"], serde_json::json!([]));
    assert!(TcpListener::bind(address).is_ok(), "the port is free");
    assert!(!testbed.run(&["revoke", &id]).status.success(), "there is nothing more to revoke");
    drop(placeholder);
}

#[test]
fn a_second_service_leaves_the_first_alone_and_a_successor_takes_its_place() {
    let testbed = Testbed::new("successor");
    let mut first = testbed.serve(&[]);
    let (placeholder, address) = testbed.listen([1; 16]);
    let socket = testbed.socket();
    let second = testbed.run(&["service", "--sockets-only", "--sockets", &socket.display().to_string()]);
    assert!(!second.status.success(), "{second:?}");
    let _next = testbed.serve(&["--succeed"]);
    assert!(first.0.wait().expect("it is a child").success(), "the first has ended by itself");
    assert_eq!(testbed.list()["listeners"].as_array().map(Vec::len), Some(1));
    let _client = TcpStream::connect(address).expect("it listens still");
    assert!(arrived(&placeholder));
}

#[test]
fn rules_of_the_command_line_are_kept() {
    let testbed = Testbed::new("rules");
    let own = rustix::process::geteuid().as_raw();
    let kernel = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = kernel.local_addr().expect("bound").port();
    let (allow, deny) = (format!("allow all port {port}"), format!("deny listen user {own}"));
    let _service = testbed.serve(&["--rule", &allow, "--rule", &deny]);
    let listen = |kernel: &TcpListener| {
        testbed.exchange(&Request::new(RequestKind::Listen, [1; 16]), &[kernel.as_fd()]).0
    };
    assert_eq!(listen(&kernel), ReplyKind::Listening);
    assert_eq!(listen(&TcpListener::bind("127.0.0.1:0").expect("a free port")), ReplyKind::Refused);
    let output = testbed.run(&["service", "--sockets-only", "--rule", "deny everything"]);
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(printed.contains("second word") && printed.contains("deny listen port 1-1023"), "{printed}");
}

#[test]
fn a_service_that_was_killed_leaves_a_socket_that_the_next_one_replaces() {
    let testbed = Testbed::new("killed");
    drop(testbed.serve(&[]));
    let output = testbed.run(&["sockets"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("sietch up"), "{output:?}");
    let _service = testbed.serve(&[]);
    assert_eq!(testbed.list()["applications"], serde_json::json!([]));
    let left = std::fs::read_dir(&testbed.folder).expect("a folder").count();
    assert_eq!(left, 1, "nothing but the socket");
}

/// The ways in which a container's root gets access to a socket that it was given: with uid 0, in
/// other namespaces, without capabilities.
const CONTAINERS: [&[&str]; 2] =
    [&["--pid", "--fork", "--net"], &["--user", "--map-root-user", "--pid", "--fork", "--net"]];

/// A command of this release, started as a container's root; nothing if this process may not create
/// such a container.
fn from_container(container: &[&str], sietch: &Command) -> Option<Output> {
    let mut command = Command::new("unshare");
    command.args(container).args(["setpriv", "--bounding-set=-all", "--inh-caps=-all"]);
    let may = |mut command: Command| command.arg("true").output().is_ok_and(|tried| tried.status.success());
    let mut tried = Command::new("unshare");
    tried.args(container).args(["setpriv", "--bounding-set=-all", "--inh-caps=-all"]);
    if !rustix::process::geteuid().is_root() || !may(tried) {
        return None;
    }
    command.arg(sietch.get_program()).args(sietch.get_args());
    for (name, value) in sietch.get_envs() {
        command.env(name, value.expect("nothing is removed"));
    }
    Some(command.output().expect("it could be run before"))
}

#[test]
fn the_root_of_a_container_lists_revokes_and_replaces_nothing() {
    let testbed = Testbed::new("container");
    let mut service = testbed.serve(&[]);
    let (_placeholder, address) = testbed.listen([0xcd; 16]);
    let id = "cd".repeat(16);
    let socket = testbed.socket().display().to_string();
    let tries: [&[&str]; 3] = [
        &["sockets", "--json"],
        &["revoke", &id],
        &["service", "--sockets-only", "--succeed", "--sockets", &socket],
    ];
    for container in CONTAINERS {
        for arguments in tries {
            let mut sietch = testbed.sietch();
            sietch.args(arguments);
            let Some(output) = from_container(container, &sietch) else {
                eprintln!("SKIPPED container {container:?}: needs root, unshare and setpriv");
                continue;
            };
            let printed = String::from_utf8_lossy(&output.stdout);
            assert!(!printed.contains(&id), "{container:?} {arguments:?} sees: {printed}");
            assert!(!output.status.success(), "{container:?} {arguments:?}: {output:?}");
        }
    }
    assert!(service.0.try_wait().expect("it is a child").is_none(), "the service runs still");
    let listed = testbed.list();
    assert_eq!(listed["listeners"][0]["name"], serde_json::json!(address.to_string()));
}

#[test]
fn the_root_of_a_container_does_not_administer_the_daemon() {
    let testbed = Testbed::new("contained-daemon");
    let file = |name: &str| testbed.folder.join(name).display().to_string();
    let (socket, config, data) = (file("run/sietch.sock"), file("sietch.toml"), file("data"));
    std::fs::write(&config, AREA).expect("write sietch.toml");
    let arguments =
        ["--socket", &socket, "daemon", "--without-network", "--config", &config, "--data", &data];
    let mut daemon = testbed.sietch();
    daemon.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
    let mut daemon = Service(daemon.spawn().expect("run sietch"));
    let status = || testbed.run(&["--socket", &socket, "status", "--json"]);
    while !status().status.success() {
        assert!(daemon.0.try_wait().expect("it is a child").is_none(), "it does not serve");
    }
    for container in CONTAINERS {
        for words in [["status"].as_slice(), &["revoke", "kv"], &["reload"], &["down"]] {
            let mut sietch = testbed.sietch();
            sietch.args(["--socket", &socket]).args(words);
            let Some(output) = from_container(container, &sietch) else {
                eprintln!("SKIPPED container {container:?}: needs root, unshare and setpriv");
                continue;
            };
            assert!(!output.status.success(), "{container:?} {words:?}: {output:?}");
        }
    }
    assert!(status().status.success(), "it serves still");
}

/// A command as a user starts it, or as the first process of a PID namespace, as in a container.
/// Returns the started process, and the process to signal.
fn start(sietch: &Command, is_first: bool) -> Option<(Service, rustix::process::Pid)> {
    let mut command = Command::new("env");
    // A shell starts its background jobs with SIGINT ignored, and they inherit that.
    command.arg("--default-signal=INT");
    if is_first {
        command.args(["unshare", "--pid", "--fork", "--kill-child"]);
    }
    command
        .arg(sietch.get_program())
        .args(sietch.get_args())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    for (name, value) in sietch.get_envs() {
        command.env(name, value.expect("nothing is removed"));
    }
    let mut child = Service(command.spawn().expect("it starts"));
    if !is_first {
        let pid = rustix::process::Pid::from_child(&child.0);
        return Some((child, pid));
    }
    let file = format!("/proc/{0}/task/{0}/children", child.0.id());
    loop {
        if child.0.try_wait().expect("it is a child").is_some() {
            return None;
        }
        let children = std::fs::read_to_string(&file).unwrap_or_default();
        if let Some(pid) = children.split_whitespace().next().and_then(|text| text.parse().ok()) {
            return rustix::process::Pid::from_raw(pid).map(|pid| (child, pid));
        }
    }
}

/// Whether a process has a handler for a signal.
fn handles(pid: rustix::process::Pid, signal: rustix::process::Signal) -> bool {
    let status =
        std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & (1 << (signal.as_raw() - 1)) != 0
}

/// How long a process may take to end cleanly on a busy machine.
const END: std::time::Duration = std::time::Duration::from_secs(60);

fn ended(service: &mut Service) -> Option<std::process::ExitStatus> {
    let start = std::time::Instant::now();
    while start.elapsed() < END {
        if let Some(status) = service.0.try_wait().expect("it is a child") {
            return Some(status);
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    None
}

/// How long a process may take to serve on a busy machine.
const START: std::time::Duration = std::time::Duration::from_secs(60);

#[test]
fn sigterm_and_sigint_end_every_process_also_the_first_of_a_namespace() {
    use rustix::process::Signal;
    let testbed = Testbed::new("signals");
    let file = |name: &str| testbed.folder.join(name).display().to_string();
    let (socket, config, data) = (file("run/sietch.sock"), file("sietch.toml"), file("data"));
    std::fs::write(&config, AREA).expect("write sietch.toml");
    let sockets = testbed.socket().display().to_string();
    let service = ["service", "--sockets-only", "--sockets", &sockets];
    let daemon = ["--socket", &socket, "daemon", "--without-network", "--config", &config, "--data", &data];
    let watch = ["--socket", &socket, "stat", "--watch", "1"];
    let command = |arguments: &[&str]| {
        let mut command = testbed.sietch();
        command.args(arguments);
        command
    };
    let root = rustix::process::geteuid().is_root();
    for (signal, is_first) in
        [(Signal::TERM, false), (Signal::INT, false), (Signal::TERM, true), (Signal::INT, true)]
    {
        if is_first && !root {
            eprintln!("SKIPPED the first process of a PID namespace: needs root");
            continue;
        }
        // The files of the last service say nothing about the next.
        for left in [&sockets, &socket] {
            let _ = std::fs::remove_file(left);
        }
        let end = |arguments: &[&str], serves: &dyn Fn(rustix::process::Pid) -> bool| {
            let Some((mut child, pid)) = start(&command(arguments), is_first) else {
                panic!("{arguments:?} does not start");
            };
            let started = std::time::Instant::now();
            while !serves(pid) {
                assert!(child.0.try_wait().expect("it is a child").is_none(), "{arguments:?} ended");
                assert!(started.elapsed() < START, "{arguments:?} does not serve");
            }
            rustix::process::kill_process(pid, signal).expect("it runs");
            let status = ended(&mut child);
            status.unwrap_or_else(|| panic!("{arguments:?} still runs after {signal:?}, first: {is_first}"))
        };
        // The first process of a namespace cannot be administered from outside. It serves when it
        // has its socket, and handles the signal from before that.
        let has = |path: &str, pid| std::path::Path::new(path).exists() && handles(pid, signal);
        let status = end(&service, &|pid| {
            if is_first { has(&sockets, pid) } else { testbed.run(&["sockets"]).status.success() }
        });
        assert!(status.success(), "service: {status:?}");
        let serves = || testbed.run(&["--socket", &socket, "status"]).status.success();
        let status = end(&daemon, &|pid| if is_first { has(&socket, pid) } else { serves() });
        assert!(status.success(), "daemon: {status:?}");
        let left = std::path::Path::new(&socket).exists();
        assert!(!left, "the daemon ended in order");
        // A command that only queries ends at once, by the signal. It queries from the daemon's own
        // namespaces.
        if !is_first {
            let serving = start(&command(&daemon), false).expect("it starts");
            while !serves() {}
            // Until `env` has become the command, SIGINT may still be ignored.
            let status = end(&watch, &|pid| {
                let comm = format!("/proc/{}/comm", pid.as_raw_nonzero());
                std::fs::read_to_string(comm).is_ok_and(|name| name.trim_end() == "sietch")
            });
            assert!(!status.success() && status.code().is_none(), "stat: {status:?}");
            drop(serving);
        }
        let _ = std::fs::remove_dir_all(testbed.folder.join("data"));
    }
}
