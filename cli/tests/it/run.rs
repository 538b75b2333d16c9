//! `sietch run` until it executes the program: what it finds, refuses and passes on. The library is
//! a stub that reports its loading, and the service is a stub that sends a greeting.

use std::io::Write as _;
use std::net::TcpListener;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType};
use sietch_protocol::socket_service::{self, Build, Reply, ReplyKind, Request, RequestKind};
use zerocopy::IntoBytes as _;

/// A library that reports when it is loaded.
const LIBRARY: &str = "#include <unistd.h>\n\
    __attribute__((constructor)) static void loaded(void) { if (write(2, \"LOADED\\n\", 7)) {} }\n";

/// A service that sends a greeting and does nothing else.
struct Service {
    socket: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    fn start(path: &Path) -> Self {
        Self::answering(path, Reply::new(ReplyKind::Welcome))
    }

    /// A service with this greeting.
    fn answering(path: &Path, here: Reply) -> Self {
        let _ = std::fs::remove_file(path);
        let address = SocketAddrUnix::new(path).unwrap();
        let flags = SocketFlags::CLOEXEC;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        rustix::net::bind(&socket, &address).unwrap();
        rustix::net::listen(&socket, 16).unwrap();
        let socket = Arc::new(socket);
        let served = Arc::clone(&socket);
        let thread = std::thread::spawn(move || {
            while let Ok(caller) = rustix::net::accept(&served) {
                let mut bytes = [0; socket_service::REQUEST_BYTES];
                let mut none = [const { None }; socket_service::MAX_DESCRIPTORS];
                let received = socket_service::receive_message(
                    caller.as_fd(),
                    &mut bytes,
                    &mut none,
                    RecvFlags::empty(),
                );
                let reply = match received.map(|_| Request::parse(&bytes).unwrap()) {
                    Ok((_, RequestKind::Hello)) => here,
                    _ => Reply::refused(rustix::io::Errno::PERM),
                };
                let _ =
                    socket_service::send_message(caller.as_fd(), reply.as_bytes(), &[], SendFlags::empty());
            }
        });
        Self { socket, thread: Some(thread) }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Wakes the thread.
        let _ = rustix::net::shutdown(&*self.socket, Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A folder with library and service, removed when dropped.
struct Testbed {
    folder: PathBuf,
    service: Option<Service>,
}

impl Testbed {
    /// `None` without a C compiler.
    fn new(name: &str) -> Option<Self> {
        let folder = std::env::temp_dir().join(format!("sietch-run-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let mut testbed = Self { folder, service: None };
        if !testbed.compile("library.c", LIBRARY, &["-shared", "-fPIC", "-o", "library.so"]) {
            eprintln!("SKIPPED {name}: needs cc");
            return None;
        }
        testbed.service = Some(Service::start(&testbed.folder.join("sockets.sock")));
        Some(testbed)
    }

    fn compile(&self, name: &str, text: &str, arguments: &[&str]) -> bool {
        std::fs::write(self.folder.join(name), text).unwrap();
        let mut command = Command::new("cc");
        command
            .arg(name)
            .args(arguments)
            .current_dir(&self.folder)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }

    fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    fn run(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sietch"));
        command
            .arg("--socket")
            .arg(self.folder.join("sietch.sock"))
            .arg("run")
            .args(arguments)
            .env("SIETCH_PRELOAD", self.folder.join("library.so"))
            .env_remove("LD_PRELOAD")
            .stdin(Stdio::null());
        command
    }

    fn output(&self, arguments: &[&str]) -> Output {
        self.run(arguments).output().unwrap()
    }

    /// Its error on one line, and its exit status.
    fn refused(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let output = self.output(arguments);
        assert!(output.stdout.is_empty(), "{output:?}");
        let printed = text(&output.stderr);
        assert!(!printed.contains("panicked"), "{printed}");
        let line =
            printed.replace(['\u{2502}', '\u{d7}'], " ").split_whitespace().collect::<Vec<_>>().join(" ");
        (output.status.code(), line)
    }

    fn program(&self, name: &str, content: &[u8]) -> String {
        let path = self.folder.join(name);
        let mut file = std::fs::File::create(&path).unwrap();
        file.write_all(content).unwrap();
        file.set_permissions(std::fs::Permissions::from_mode(0o755)).unwrap();
        path.display().to_string()
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn run_replaces_itself_with_the_program() {
    let Some(testbed) = Testbed::new("becomes") else { return };
    // The process is the same: the id that it prints is the child's.
    let child = testbed
        .run(&["--", "sh", "-c", "echo $$ $0 $1; exit 7", "name", "word with spaces"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let id = child.id();
    let output = child.wait_with_output().unwrap();
    assert_eq!(text(&output.stdout), format!("{id} name word with spaces\n"));
    assert_eq!(output.status.code(), Some(7));
    assert!(text(&output.stderr).starts_with("LOADED\n"), "{output:?}");
    assert_eq!(testbed.output(&["--", "sh", "-c", "kill -9 $$"]).status.signal(), Some(9));
    // Without `--`, and with options of the program that Sietch has too.
    let output = testbed.output(&["echo", "--socket", "-h", "--", "--vnic"]);
    assert_eq!(text(&output.stdout), "--socket -h -- --vnic\n");
}

#[test]
fn the_environment_has_the_settings_of_the_library() {
    let Some(testbed) = Testbed::new("environment") else { return };
    let printed = |command: &mut Command| -> Vec<String> {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        text(&output.stdout).lines().map(str::to_owned).collect()
    };
    let value = |lines: &[String], name: &str| -> Option<String> {
        lines.iter().find_map(|line| line.strip_prefix(&format!("{name}=")).map(str::to_owned))
    };
    let library = testbed.path("library.so");
    let first = printed(testbed.run(&["--", "env"]).env("SIETCH_VNIC", "stray"));
    assert_eq!(value(&first, "LD_PRELOAD"), Some(library.clone()));
    assert_eq!(value(&first, "SIETCH_SOCKETS"), Some(testbed.path("sockets.sock")));
    assert_eq!(value(&first, "SIETCH_VNIC"), None);
    let application = value(&first, "SIETCH_APPLICATION").unwrap();
    assert_eq!(application.len(), 32);

    let other = testbed.folder.join("other.so");
    std::fs::copy(testbed.folder.join("library.so"), &other).unwrap();
    let port = free_port().to_string();
    let other_family = format!("[::1]:{port}:80");
    let arguments = ["--vnic", "web", "--publish", &port, "--publish", &other_family, "--", "env"];
    let second = printed(testbed.run(&arguments).env("LD_PRELOAD", &other));
    assert_eq!(value(&second, "LD_PRELOAD"), Some(format!("{library}:{}", other.display())));
    assert_eq!(value(&second, "SIETCH_VNIC").as_deref(), Some("web"));
    assert_eq!(value(&second, "SIETCH_PUBLISH"), Some(format!("127.0.0.1:{port}:{port},[::1]:{port}:80")));
    assert_eq!(value(&first, "SIETCH_PUBLISH"), None);
    assert_ne!(value(&second, "SIETCH_APPLICATION"), Some(application));
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn unavailable_ports_are_reported_before_the_program_starts() {
    let Some(testbed) = Testbed::new("publish") else { return };
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().port().to_string();
    let mapped = format!("{taken}:80");
    for arguments in [vec!["--vnic", "web", "--publish", &mapped], vec!["--publish", &mapped]] {
        let (status, printed) = testbed.refused(&[&arguments[..], &["--", "echo", "started"]].concat());
        assert!(
            status == Some(125) && printed.contains(&taken) && printed.contains("in use"),
            "{status:?} {printed}"
        );
        assert!(printed.contains("choose another port of the host"), "{printed}");
    }
    let (status, printed) =
        testbed.refused(&["--vnic", "web", "--publish", "192.0.2.1:8080:80", "--", "true"]);
    assert!(status == Some(125) && printed.contains("no address of this host"), "{status:?} {printed}");
    // On the host's addresses the same port is published already; another one is not.
    let (status, printed) = testbed.refused(&["--publish", "80", "--", "true"]);
    assert!(
        status == Some(125) && printed.contains("already") && printed.contains("HOST_PORT:80"),
        "{status:?} {printed}"
    );
    let other = format!("{}:80", free_port());
    assert!(testbed.output(&["--publish", &other, "--", "true"]).status.success());
    // The most ports of one listener.
    let ports: Vec<String> = (0..4).map(|_| format!("{}:80", free_port())).collect();
    let four: Vec<&str> = ports.iter().flat_map(|ports| ["--publish", ports]).collect();
    let (status, printed) = testbed.refused(&[&["--vnic", "web"], &four[..], &["--", "true"]].concat());
    assert!(status == Some(125) && printed.contains("port 80"), "{status:?} {printed}");
}

#[test]
fn a_program_with_liburing_is_warned_about_and_runs() {
    let Some(testbed) = Testbed::new("liburing") else { return };
    let library = ["-shared", "-fPIC", "-Wl,-soname,liburing.so.2", "-o", "liburing.so.2"];
    assert!(testbed.compile("uring.c", "int ring(void) { return 5; }", &library));
    let linked = ["-L.", "-l:liburing.so.2", "-Wl,-rpath,$ORIGIN", "-o", "rings"];
    assert!(testbed.compile("rings.c", "int ring(void); int main(void) { return ring(); }", &linked));
    let program = testbed.path("rings");
    let script = testbed.program("script", format!("#!{program}\n").as_bytes());
    for started in [&program, &script] {
        let output = testbed.output(&["--", started]);
        assert_eq!(output.status.code(), Some(5), "{output:?}");
        let printed = text(&output.stderr);
        assert!(
            printed.contains(&program) && printed.contains("liburing") && printed.contains("LOADED"),
            "{printed}"
        );
    }
    assert!(!text(&testbed.output(&["--", "true"]).stderr).contains("liburing"));
}

#[test]
fn an_unsupported_program_is_named_and_runs_only_with_anyway() {
    let Some(testbed) = Testbed::new("unfit") else { return };
    // A static program, if the C library can be linked statically.
    if testbed.compile("still.c", "int main(void) { return 3; }", &["-static", "-o", "still"]) {
        let program = testbed.path("still");
        let (status, printed) = testbed.refused(&["--", &program]);
        assert_eq!(status, Some(126));
        assert!(
            printed.contains("statically") && printed.contains("--anyway") && printed.contains(&program),
            "{printed}"
        );
        let output = testbed.output(&["--anyway", "--", &program]);
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        assert!(text(&output.stderr).contains("the kernel's sockets"), "{output:?}");
        let script = testbed.program("script", format!("#!{program}\n").as_bytes());
        assert_eq!(testbed.refused(&["--", &script]).0, Some(126));
    } else {
        eprintln!("SKIPPED part of unfit: needs a static C library");
    }
    // A Go program is recognised by its section even when it has a loader.
    let marked = "__attribute__((section(\".go.buildinfo\"), used)) static char mark[16] = \"x\";\nint main(void) { return 4; }";
    assert!(testbed.compile("going.c", marked, &["-o", "going"]));
    let (status, printed) = testbed.refused(&["--", &testbed.path("going")]);
    assert!(status == Some(126) && printed.contains("Go program"), "{status:?} {printed}");
    // The library stays in the environment of a Go program, for the programs that it starts. Here
    // the program has a loader, which loads it.
    let output = testbed.output(&["--anyway", "--", &testbed.path("going")]);
    assert!(output.status.code() == Some(4) && text(&output.stderr).contains("LOADED"), "{output:?}");
    // A 32-bit program: only its header is read.
    let mut narrow = std::fs::read("/bin/sh").unwrap();
    narrow[4] = 1;
    let (status, printed) = testbed.refused(&["--", &testbed.program("narrow", &narrow)]);
    assert!(status == Some(126) && printed.contains("32-bit"), "{status:?} {printed}");
    // One whose end is missing.
    let (status, printed) =
        testbed.refused(&["--", &testbed.program("cut", &std::fs::read("/bin/sh").unwrap()[..100])]);
    assert!(status == Some(126) && printed.contains("damaged"), "{status:?} {printed}");
}

#[test]
fn a_missing_program_is_reported_with_the_shells_status() {
    let Some(testbed) = Testbed::new("missing") else { return };
    let (status, printed) = testbed.refused(&["--", "sietch-no-such-program"]);
    assert!(status == Some(127) && printed.contains("sietch-no-such-program"), "{status:?} {printed}");
    let (status, printed) = testbed.refused(&["--", &testbed.path("none")]);
    assert!(status == Some(127) && printed.contains("none"), "{status:?} {printed}");
    let (status, _) = testbed.refused(&["--", &testbed.path("library.c")]);
    assert_eq!(status, Some(126));
    assert_eq!(testbed.refused(&[]).0, Some(2));
}

#[test]
fn without_service_or_library_the_error_has_the_fix() {
    let Some(mut testbed) = Testbed::new("without") else { return };
    let missing = testbed.path("none.so");
    let output = testbed.run(&["--", "true"]).env("SIETCH_PRELOAD", &missing).output().unwrap();
    let printed = text(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{printed}");
    assert!(printed.contains("cargo build --release") && printed.contains("none.so"), "{printed}");
    let source = testbed.path("library.c");
    let output = testbed.run(&["--", "true"]).env("SIETCH_PRELOAD", &source).output().unwrap();
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    std::fs::copy(testbed.folder.join("library.so"), testbed.folder.join("a b.so")).unwrap();
    let output =
        testbed.run(&["--", "true"]).env("SIETCH_PRELOAD", testbed.folder.join("a b.so")).output().unwrap();
    assert_eq!(output.status.code(), Some(125), "{output:?}");

    testbed.service = None;
    let (status, printed) = testbed.refused(&["--", "true"]);
    assert!(status == Some(125) && printed.contains("sietch up"), "{status:?} {printed}");
    let output = testbed.output(&["--anyway", "--", "sh", "-c", "exit 5"]);
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    assert!(!text(&output.stderr).contains("LOADED"), "{output:?}");
    // Given by its name instead of found.
    let named = testbed.path("elsewhere.sock");
    let (status, printed) = testbed.refused(&["--sockets", &named, "--", "true"]);
    assert!(status == Some(125) && printed.contains("elsewhere."), "{status:?} {printed}");
}

#[test]
fn more_ports_than_can_be_published_are_refused() {
    let Some(testbed) = Testbed::new("publish-most") else { return };
    let refused = |ports: Vec<String>| {
        let publish = ports.iter().flat_map(|port| ["--publish", port.as_str()]);
        testbed.refused(&publish.chain(["--", "true"]).collect::<Vec<_>>())
    };
    let (status, printed) = refused((0..33).map(|at| format!("{}:{}", 20_000 + at, 30_000 + at)).collect());
    assert!(status == Some(125) && printed.contains("32 of"), "{status:?} {printed}");
    let of_one = (0..4).map(|at| format!("127.0.0.{}:20000:30000", 10 + at)).collect();
    let (status, printed) = refused(of_one);
    assert!(status == Some(125) && printed.contains("3 of port 30000"), "{status:?} {printed}");
}

#[test]
fn a_service_without_a_uid_for_the_user_is_reported_and_the_program_has_kernel_sockets() {
    let Some(mut testbed) = Testbed::new("unmapped") else { return };
    let path = testbed.folder.join("sockets.sock");
    testbed.service = None;
    testbed.service = Some(Service::answering(&path, Reply::refused(rustix::io::Errno::OVERFLOW)));
    let output = testbed.output(&["--", "sh", "-c", "echo $LD_PRELOAD$SIETCH_SOCKETS; exit 6"]);
    let printed = text(&output.stderr);
    assert_eq!(output.status.code(), Some(6), "{output:?}");
    assert_eq!(text(&output.stdout).trim(), "", "{output:?}");
    assert!(printed.contains("user namespace") && printed.contains("kernel's sockets"), "{printed}");
    let (status, printed) = testbed.refused(&["--vnic", "kv", "--", "true"]);
    assert!(status == Some(125) && printed.contains("user namespace"), "{status:?} {printed}");
}

#[test]
fn a_service_of_another_version_is_reported_once_and_the_program_has_kernel_sockets() {
    let Some(mut testbed) = Testbed::new("versions") else { return };
    let path = testbed.folder.join("sockets.sock");
    let (own, other) = (Build::own(sietch_ring::stream::MAGIC), Build::own(u64::from_le_bytes(*b"SIETCHS9")));
    // Its build has a name, so that the message can name the one to replace.
    let mut foreign = Reply::refused(rustix::io::Errno::PROTO).from_build(&other);
    foreign.version = 77;
    let mut nameless = Reply::refused(rustix::io::Errno::PROTO);
    nameless.version = 78;
    for (reply, expected) in
        [(Reply::welcome(9, &other), "SIETCHS9"), (foreign, "SIETCHS9"), (nameless, "messages 78")]
    {
        testbed.service = None;
        testbed.service = Some(Service::answering(&path, reply));
        let output = testbed.output(&["--", "sh", "-c", "echo $LD_PRELOAD$SIETCH_SOCKETS; exit 6"]);
        let printed = text(&output.stderr);
        assert_eq!(output.status.code(), Some(6), "{output:?}");
        assert_eq!(text(&output.stdout).trim(), "", "{output:?}");
        for words in [expected, "SIETCHS7", "the kernel's", testbed.path("sockets.sock").as_str()] {
            assert_eq!(printed.matches(words).count(), 1, "{words} in {printed}");
        }
        assert!(printed.contains("same version"), "{printed}");
        // Only the kernel's sockets are replaced.
        let (status, printed) = testbed.refused(&["--vnic", "kv", "--", "true"]);
        assert!(status == Some(125) && printed.contains(expected), "{status:?} {printed}");
        assert_eq!(testbed.output(&["--anyway", "--vnic", "kv", "--", "true"]).status.code(), Some(0));
    }
    testbed.service = None;
    testbed.service = Some(Service::answering(&path, Reply::welcome(9, &own)));
    let output = testbed.output(&["--", "true"]);
    assert_eq!(text(&output.stderr).trim(), "LOADED", "{output:?}");
    // A library of another build; the file contains its build's name.
    let mark: Vec<_> = other.as_bytes().iter().map(u8::to_string).collect();
    let marked = format!(
        "__attribute__((section(\".sietch.build\"), used)) const unsigned char mark[] = {{{}}};\n{LIBRARY}",
        mark.join(",")
    );
    assert!(testbed.compile("marked.c", &marked, &["-shared", "-fPIC", "-o", "library.so"]));
    let output = testbed.output(&["--", "true"]);
    let printed = text(&output.stderr);
    assert!(printed.contains("SIETCHS9") && !printed.contains("LOADED"), "{output:?}");
}
