//! A service in a namespace of its own, as in a container, and programs outside it.

use std::io::Write as _;

use super::*;

/// The variable that makes this program serve.
const SERVE: &str = "SIETCH_TEST_SERVE_OUTSIDE";
/// The text before the path of its socket in its output.
const HERE: &str = "serves at ";

#[test]
fn a_service_in_a_pid_namespace_of_its_own_serves_programs_outside() {
    let name = "a_service_in_a_pid_namespace_of_its_own_serves_programs_outside";
    if std::env::var_os(SERVE).is_some() {
        return serve();
    }
    let Some(Elsewhere { mut child, socket, _said }) = Elsewhere::start(name, &["--pid", "--kill-child"])
    else {
        return;
    };
    let exchange = |request: &Request, sent: &[BorrowedFd<'_>]| {
        let mut received = Descriptors::default();
        call(socket.as_bytes(), request, sent, &mut received).map(|reply| (reply.kind(), received))
    };
    let kernel = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let mut query = request(RequestKind::Connect);
    query.remote = kernel.local_addr().expect("bound").into();
    let mut listen = request(RequestKind::Listen);
    listen.backlog = 8;
    let (kind, placeholder) = exchange(&listen, &[kernel.as_fd()]).expect("a program outside is answered");
    assert_eq!(kind, ReplyKind::Listening);
    let idle = client(AddressFamily::INET);
    let (kind, _own) = exchange(&query, &[idle.as_fd()]).expect("a program outside is answered");
    assert_eq!(kind, ReplyKind::Connected);
    arrival(placeholder[0].as_ref().expect("a listener's"));
    // But it does not administer: the service cannot determine its namespaces.
    let administrators = sietch_protocol::administration::administrator_socket(std::path::Path::new(&socket));
    let mut received = Descriptors::default();
    let listed = call(administrators.as_os_str().as_bytes(), &request(RequestKind::List), &[], &mut received);
    assert!(listed.is_err(), "{listed:?}");
    drop(child.stdin.take());
    assert!(child.wait().expect("it is a child").success());
}

/// A service in another namespace: this program again, in which the test of that name serves.
struct Elsewhere {
    child: Child,
    socket: String,
    /// Its other output: kept open, so that it can write.
    _said: std::io::BufReader<std::process::ChildStdout>,
}

impl Elsewhere {
    /// Returns `None` and prints why if the namespace cannot be made.
    fn start(name: &str, namespaces: &[&str]) -> Option<Self> {
        let mut command = Command::new("unshare");
        let program = std::env::current_exe().expect("this program has a path");
        command.args(namespaces).arg("--fork").arg(program);
        command.args(["--exact", "--nocapture", &format!("sockets_hostile::outside::{name}")]);
        command.env(SERVE, "").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("unshare is there");
        let mut said = std::io::BufReader::new(child.stdout.take().expect("piped"));
        let mut socket = None;
        let mut line = String::new();
        while socket.is_none() && std::io::BufRead::read_line(&mut said, &mut line).is_ok_and(|read| read > 0)
        {
            socket = line.trim_end().split_once(HERE).map(|(_, path)| path.to_owned());
            line.clear();
        }
        if socket.is_none() {
            let ended = child.wait();
            let root = rustix::process::geteuid().is_root();
            assert!(!root, "root may make namespaces: {ended:?}");
            eprintln!("SKIPPED {name}: needs root, to make a namespace");
        }
        socket.map(|socket| Self { child, socket, _said: said })
    }
}

#[test]
fn users_without_a_uid_in_the_user_namespace_of_a_service_go_to_the_kernel() {
    let name = "users_without_a_uid_in_the_user_namespace_of_a_service_go_to_the_kernel";
    if std::env::var_os(SERVE).is_some() {
        return serve();
    }
    if !users::is_root(name) {
        return;
    }
    // Only root has a uid in that namespace.
    let Some(Elsewhere { mut child, socket, _said }) = Elsewhere::start(name, &["--user", "--map-root-user"])
    else {
        return;
    };
    let send = |kind: RequestKind, sent: &[BorrowedFd<'_>]| {
        let mut received = Descriptors::default();
        let reply = call(socket.as_bytes(), &request(kind), sent, &mut received).expect("an answer");
        (reply.kind(), reply.error())
    };
    let kernel = TcpListener::bind("127.0.0.1:0").expect("a free port");
    for uid in [users::ONE, users::OTHER] {
        let done = users::as_user(uid, || {
            let (kind, _) = send(RequestKind::Listen, &[kernel.as_fd()]);
            assert_eq!(kind, ReplyKind::UseKernel);
            for kind in [RequestKind::Hello, RequestKind::List, RequestKind::Revoke] {
                let refused = (ReplyKind::Refused, rustix::io::Errno::OVERFLOW);
                assert_eq!(send(kind, &[]), refused, "{kind:?}: the owner is unknown");
            }
        });
        assert!(done.is_some(), "root may take any uid");
    }
    assert_eq!(send(RequestKind::Hello, &[]).0, ReplyKind::Welcome);
    assert_eq!(send(RequestKind::Listen, &[kernel.as_fd()]).0, ReplyKind::Listening);
    drop(child.stdin.take());
    assert!(child.wait().expect("it is a child").success());
}

/// Serves until its input ends.
fn serve() {
    let service = TestService::new();
    println!("{HERE}{}", service.socket.display());
    std::io::stdout().flush().expect("a pipe");
    let _ = std::io::stdin().read(&mut [0; 1]);
}
