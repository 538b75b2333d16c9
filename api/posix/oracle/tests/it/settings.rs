//! The two settings: the kernel, and the shim with a socket service.
//!
//! The shim is a dependency of the tests that is not linked: cargo builds it before them, so that
//! no test uses a stale library. A test that ran cargo for it would get other features of its
//! dependencies, and replace the library that other tests use.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};

use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use sietch_posix_oracle::session::Setting;
use sietch_ring::stream::RegionSizes;
use sietch_service::Snapshot;
use sietch_service::sockets::{Options, Rules, Source, run};

/// The kernel's sockets.
pub(crate) fn kernel() -> Setting {
    Setting::plain(Path::new(env!("CARGO_BIN_EXE_sietch-socket-calls")))
}

/// The shim.
pub(crate) fn shim() -> Setting {
    static SETTING: OnceLock<Setting> = OnceLock::new();
    SETTING.get_or_init(start).clone()
}

fn start() -> Setting {
    let library = library();
    let socket = serve();
    let variable = |name: &str, value: OsString| (OsString::from(name), value);
    let environment = vec![
        variable("LD_PRELOAD", library.into()),
        variable("SIETCH_SOCKETS", socket.into()),
        variable("SIETCH_APPLICATION", "00112233445566778899aabbccddeeff".into()),
    ];
    Setting { environment, ..kernel() }
}

/// The library that was built for this test. One beside the executor may be older.
fn library() -> PathBuf {
    let executor = Path::new(env!("CARGO_BIN_EXE_sietch-socket-calls"));
    let library = executor.with_file_name("deps").join("libsietch_posix.so");
    assert!(library.exists(), "{} is missing", library.display());
    library
}

/// Starts a socket service in a process of its own, which ends with this one, and returns the path
/// of its socket. A service in this process would share its descriptors with every executor between
/// fork and exec, and closed connections would stay open that long.
fn serve() -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("sockets");
    // Of an earlier run; there may be none.
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    let socket = folder.join(format!("{}.sock", std::process::id()));
    let own = std::env::current_exe().expect("this program");
    let mut service = Command::new(own);
    service.args(["--exact", "settings::service", "--ignored", "--nocapture"]).env(SOCKET, &socket);
    let mut service = service.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a service");
    let ready = BufReader::new(service.stdout.take().expect("its output")).lines().map_while(Result::ok);
    assert!(ready.into_iter().any(|line| line.contains(READY)), "the service does not start");
    // Its standard input ends when this process does.
    std::mem::forget(service);
    socket
}

/// Names the socket on which the service listens.
const SOCKET: &str = "SIETCH_ORACLE_SOCKET";
/// The service's output once it listens.
const READY: &str = "the service listens";

#[test]
#[ignore = "not a test: the service that the other tests start"]
fn service() {
    let Some(path) = std::env::var_os(SOCKET) else { return };
    let listening =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .expect("a socket");
    rustix::net::bind(&listening, &SocketAddrUnix::new(&*path).expect("a short path")).expect("a path");
    rustix::net::listen(&listening, 1024).expect("a listener");
    let options = Options {
        socket: Source::New(listening),
        administrators: None,
        rules: Rules::default(),
        region_sizes: RegionSizes { smallest: 14, largest: 22 },
    };
    std::thread::spawn(move || {
        // The channel for commands: none is sent, and the service ends with the process.
        let (_commands, orders) = channel();
        let doorbell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");
        run(options, &orders, &doorbell, &Arc::new(Snapshot::default())).expect("a service");
    });
    println!("{READY}");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    // The parent does not read the test's final output.
    std::process::exit(0);
}
