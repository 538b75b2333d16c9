//! Applications that lie, flood, stop and die: the service stays up, others are undisturbed, and
//! everything that such an application had is freed.
//!
//! The service runs in this process. Tests that count its descriptors run in a process of their own
//! ([`isolated`]).

mod changed_sockets;
mod closing;
mod outside;
mod users;

use std::io::Read as _;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, Signal, kill_process};
use sietch_protocol::socket_service::{
    Descriptors, REQUEST_BYTES, ReplyKind, Request, RequestKind, call, change_backlog, receive_message,
    send_message,
};
use sietch_service::sockets::{Rules, limits};
use zerocopy::IntoBytes as _;

use crate::isolated;
use crate::sockets_fixture::{TestService, arrival, bind_when_free, client, connect, listen, request};

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("proc is mounted").count()
}

/// Everything that clients made is closed, and the service has as many descriptors as before.
fn assert_returns(service: &TestService, before: usize) {
    let empty = |shown: &sietch_service::sockets::SocketReport| {
        shown.listeners == 0 && shown.connections == 0 && shown.applications == 0 && descriptors() <= before
    };
    service.until(empty);
}

/// A pseudo-random sequence (xorshift) that is the same in each run.
struct Dice(u64);

impl Dice {
    fn throw(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % sides
    }
}

#[test]
fn malformed_requests_cost_only_their_sender() {
    if isolated::passes("malformed_requests_cost_only_their_sender") {
        return;
    }
    let service = TestService::new();
    service.shown();
    let before = descriptors();
    let mut dice = Dice(0x5eed);
    for round in 0..2000 {
        let mut bytes = vec![0; dice.throw(2 * REQUEST_BYTES)];
        bytes.iter_mut().for_each(|byte| *byte = dice.throw(256) as u8);
        let mut good = request(RequestKind::Connect);
        good.kind = dice.throw(14) as u16;
        // Half of them begin like a request; a quarter differ from a request in a few bytes.
        let keep = [0, 8, 8, REQUEST_BYTES][round % 4].min(bytes.len());
        bytes[..keep].copy_from_slice(&good.as_bytes()[..keep]);
        if keep == REQUEST_BYTES {
            bytes.truncate(keep);
            for _ in 0..dice.throw(3) {
                let at = dice.throw(REQUEST_BYTES);
                bytes[at] = dice.throw(256) as u8;
            }
        }
        let null = std::fs::File::open("/dev/null").expect("it is there");
        let sent: Vec<BorrowedFd<'_>> = vec![null.as_fd(); dice.throw(4)];
        let socket = service.open();
        if !bytes.is_empty() {
            send_message(socket.as_fd(), &bytes, &sent, SendFlags::empty()).expect("the queue is empty");
        }
        if round % 3 == 0 {
            // An answer, or the end.
            rustix::net::shutdown(&socket, rustix::net::Shutdown::Write).expect("it is open");
            let _ = receive_message(
                socket.as_fd(),
                &mut [0; 512],
                &mut Descriptors::default(),
                RecvFlags::empty(),
            );
        }
    }
    assert_returns(&service, before);
}

#[test]
fn descriptors_of_a_wrong_kind_are_refused_and_closed() {
    if isolated::passes("descriptors_of_a_wrong_kind_are_refused_and_closed") {
        return;
    }
    let service = TestService::new();
    let (placeholder, address) = listen(&service, "127.0.0.1:0", 16);
    service.shown();
    let before = descriptors();
    {
        let listening = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let connected = TcpStream::connect(listening.local_addr().expect("bound")).expect("it listens");
        let udp = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        let (one, other) = std::os::unix::net::UnixStream::pair().expect("descriptors");
        let (reader, writer) = rustix::pipe::pipe().expect("descriptors");
        let null = std::fs::File::open("/dev/null").expect("it is there");
        let memory = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC).expect("memory");
        let path =
            rustix::fs::open("/", rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).expect("a folder");
        let idle = client(AddressFamily::INET);
        let wrong: Vec<(RequestKind, BorrowedFd<'_>)> = vec![
            (RequestKind::Listen, idle.as_fd()),
            (RequestKind::Listen, connected.as_fd()),
            (RequestKind::Listen, udp.as_fd()),
            (RequestKind::Connect, listening.as_fd()),
            (RequestKind::Connect, connected.as_fd()),
            (RequestKind::Connect, udp.as_fd()),
        ];
        let never = [
            one.as_fd(),
            other.as_fd(),
            reader.as_fd(),
            writer.as_fd(),
            null.as_fd(),
            memory.as_fd(),
            path.as_fd(),
        ];
        let both = [RequestKind::Listen, RequestKind::Connect];
        let never = never.into_iter().flat_map(|sent| both.map(|kind| (kind, sent)));
        for (kind, sent) in wrong.into_iter().chain(never) {
            let mut query = request(kind);
            query.remote = address.into();
            let (reply, _) = service.call(&query, &[sent]).expect("an answer");
            assert_eq!(reply.kind(), ReplyKind::Refused, "{kind:?} {sent:?}");
            // More descriptors than the request has, and none.
            let (reply, _) = service.call(&query, &[sent, sent]).expect("an answer");
            assert_eq!(reply.kind(), ReplyKind::Refused);
        }
        let (reply, _) = service.call(&request(RequestKind::Listen), &[]).expect("an answer");
        assert_eq!(reply.kind(), ReplyKind::Refused);
    }
    service.until(|_| descriptors() <= before);
    assert_eq!(connect(&service, address).0.kind(), ReplyKind::Connected);
    arrival(&placeholder);
}

/// A TCP socket whose last `close` waits for its peer for an hour, unless the option is changed.
/// Returns that peer too.
fn lingering() -> (TcpStream, TcpStream) {
    use std::io::Write as _;
    let listening = TcpListener::bind("127.0.0.1:0").expect("a free port");
    // Small buffers, because a test may have hundreds of them.
    rustix::net::sockopt::set_socket_recv_buffer_size(&listening, 4096).expect("a socket");
    let mut one = TcpStream::connect(listening.local_addr().expect("bound")).expect("it listens");
    rustix::net::sockopt::set_socket_send_buffer_size(&one, 4096).expect("a socket");
    let (other, _) = listening.accept().expect("it has connected");
    one.set_nonblocking(true).expect("a socket");
    while one.write(&[0; 65536]).is_ok() {}
    one.set_nonblocking(false).expect("a socket");
    rustix::net::sockopt::set_socket_linger(&one, Some(Duration::from_secs(3600))).expect("a socket");
    (one, other)
}

#[test]
fn a_lingering_socket_delays_no_request_wherever_it_is_hidden() {
    if isolated::passes("a_lingering_socket_delays_no_request_wherever_it_is_hidden") {
        return;
    }
    let service = TestService::new();
    service.shown();
    let before = descriptors();
    let mut peers = Vec::new();
    let mut closes = Vec::new();
    // The last close waits, in this thread or in the service: in some of these rounds it is in the
    // service.
    for _ in 0..5 {
        // Behind as many descriptors as a request may have.
        let (one, too_many) = lingering();
        let socket = service.open();
        let null = std::fs::File::open("/dev/null").expect("it is there");
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(5))];
        let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
        let sent = [null.as_fd(), null.as_fd(), null.as_fd(), null.as_fd(), one.as_fd()];
        assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(&sent)));
        let query = request(RequestKind::Hello);
        let bytes = [std::io::IoSlice::new(query.as_bytes())];
        rustix::net::sendmsg(&socket, &bytes, &mut control, SendFlags::empty()).expect("room");
        closes.push(std::thread::spawn(move || drop((one, null, socket))));
        // In an unread message of a socket that is sent.
        let (one, nested) = lingering();
        let (holder, sender) = std::os::unix::net::UnixStream::pair().expect("descriptors");
        send_message(sender.as_fd(), b"x", &[one.as_fd()], SendFlags::empty()).expect("room");
        let socket = service.open();
        send_message(
            socket.as_fd(),
            request(RequestKind::Adopt).as_bytes(),
            &[holder.as_fd()],
            SendFlags::empty(),
        )
        .expect("room");
        closes.push(std::thread::spawn(move || drop((one, holder, sender, socket))));
        // In a message behind the request.
        let (one, second) = lingering();
        let socket = service.open();
        let query = request(RequestKind::Hello);
        for bytes in [query.as_bytes(), b"x"] {
            // The service may have answered by now.
            let _ = send_message(socket.as_fd(), bytes, &[one.as_fd()], SendFlags::empty());
        }
        closes.push(std::thread::spawn(move || drop((one, socket))));
        peers.push((too_many, nested, second));
    }
    // The answer comes within the timeout of a request, which is far less than the hour.
    let (reply, _) = service.call(&request(RequestKind::Hello), &[]).expect("it answers");
    assert_eq!(reply.kind(), ReplyKind::Welcome);
    // When the peers have closed, no socket lingers any more.
    drop(peers);
    closes.into_iter().for_each(|close| close.join().expect("it only closes"));
    assert_returns(&service, before);
}

#[test]
fn silent_requests_delay_others_only_briefly() {
    if isolated::passes("silent_requests_delay_others_only_briefly") {
        return;
    }
    let service = TestService::new();
    service.shown();
    let before = descriptors();
    // More requests than one user may have: the service rejects the excess at once.
    let silent: Vec<OwnedFd> = (0..limits::REQUESTS_PER_USER + 50).map(|_| service.open()).collect();
    let mut received = Descriptors::default();
    use std::os::unix::ffi::OsStrExt as _;
    let path = service.socket.as_os_str().as_bytes();
    // Meanwhile a program of the same user goes to the kernel: its call gets an error number and
    // does not wait.
    assert!(call(path, &request(RequestKind::Hello), &[], &mut received).is_err());
    // When the silent requests have timed out, others are served.
    drop(silent.into_iter().take(1));
    while call(path, &request(RequestKind::Hello), &[], &mut received).is_err() {
        std::thread::yield_now();
    }
    service.until(|shown| shown.counters.rejected >= 50);
    assert_returns(&service, before);
}

#[test]
fn a_listener_that_never_accepts_holds_its_backlog_and_no_more() {
    if isolated::passes("a_listener_that_never_accepts_holds_its_backlog_and_no_more") {
        return;
    }
    let service = TestService::new();
    service.shown();
    let before = descriptors();
    let (placeholder, address) = listen(&service, "127.0.0.1:0", 50);
    let (other, elsewhere) = listen(&service, "127.0.0.1:0", 50);
    let mut kept = Vec::new();
    let mut kernels = 0;
    for _ in 0..10_000 {
        let (reply, descriptors) = connect(&service, address);
        match reply.kind() {
            ReplyKind::Connected => kept.push(descriptors),
            ReplyKind::UseKernel => kernels += 1,
            other => panic!("{other:?}"),
        }
    }
    // The last two of the 51 places are in the kernel's queue.
    assert_eq!((kept.len(), kernels), (49, 10_000 - 49));
    // Waiting connections stay when their clients have closed: they can still be accepted, as in
    // the kernel.
    assert_eq!(connect(&service, elsewhere).0.kind(), ReplyKind::Connected);
    arrival(&other);
    drop((kept, placeholder, other));
    assert_returns(&service, before);
}

#[test]
fn kernel_clients_of_a_listener_that_never_accepts_stay_with_the_kernel() {
    if isolated::passes("kernel_clients_of_a_listener_that_never_accepts_stay_with_the_kernel") {
        return;
    }
    let service = TestService::new();
    service.shown();
    let before = descriptors();
    let (placeholder, address) = listen(&service, "127.0.0.1:0", 4096);
    let clients: Vec<TcpStream> =
        (0..150).map(|_| TcpStream::connect(address).expect("the kernel has room")).collect();
    let held = service
        .until(|shown| shown.counters.kernel_accepted >= u64::from(limits::IN_PAIR) / 2)
        .counters
        .kernel_accepted;
    assert!(held <= u64::from(limits::IN_PAIR) + 1, "{held} were taken from the kernel");
    // All of them are there for `accept`, in their order.
    for client in &clients {
        let (arrival, _) = arrival(&placeholder);
        assert_eq!(arrival.peer.address(), client.local_addr().ok());
    }
    drop((clients, placeholder));
    assert_returns(&service, before);
}

#[test]
fn an_invalid_message_on_a_placeholder_closes_that_listener() {
    if isolated::passes("an_invalid_message_on_a_placeholder_closes_that_listener") {
        return;
    }
    let service = TestService::new();
    service.shown();
    let before = descriptors();
    let (good, address) = listen(&service, "127.0.0.1:0", 16);
    change_backlog(good.as_fd(), 4).expect("room");
    let (bad, _) = listen(&service, "127.0.0.1:0", 16);
    let null = std::fs::File::open("/dev/null").expect("it is there");
    send_message(bad.as_fd(), &[7; 40], &[], SendFlags::empty()).expect("room");
    service.until(|shown| shown.listeners == 1);
    drop(bad);
    let (bad, _) = listen(&service, "127.0.0.1:0", 16);
    let message = sietch_protocol::socket_service::BacklogChange::new(5);
    let sent = send_message(bad.as_fd(), message.as_bytes(), &[null.as_fd()], SendFlags::empty());
    // Since Linux 6.16 a descriptor does not even arrive.
    if sent != Err(rustix::io::Errno::PERM) {
        sent.expect("room");
        service.until(|shown| shown.listeners == 1);
    }
    // The valid listener has its new backlog.
    let kinds: Vec<ReplyKind> = (0..4).map(|_| connect(&service, address).0.kind()).collect();
    assert_eq!(kinds[2..], [ReplyKind::Connected, ReplyKind::UseKernel]);
    drop((good, bad, null));
    assert_returns(&service, before);
}

#[test]
fn an_application_that_races_the_service_in_accept_delays_no_other() {
    let service = TestService::new();
    let kernel = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = kernel.local_addr().expect("bound");
    let placeholder = service.listen_on(&kernel, 16);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        // The application blocks in `accept` itself, and makes the socket blocking each time.
        let thief = kernel.try_clone().expect("descriptors");
        let over = &stop;
        scope.spawn(move || {
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                let _ = thief.set_nonblocking(false);
                let _ = rustix::net::accept(&thief);
            }
        });
        for _ in 0..300 {
            TcpStream::connect(address).expect("it listens still");
            let (reply, _) = service.call(&request(RequestKind::Hello), &[]).expect("it answers");
            assert_eq!(reply.kind(), ReplyKind::Welcome);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let _ = rustix::net::shutdown(&kernel, rustix::net::Shutdown::Both);
    });
    drop(placeholder);
}

/// Runs `test` in a network namespace of its own, with a loopback that has 192.0.2.5 as well.
/// Without the right to do so it prints that it was skipped.
fn in_own_namespace(name: &str, test: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let tried = scope.spawn(|| {
            #[allow(
                deprecated,
                reason = "the other is unsafe: another thread may rely on what is unshared; here none does"
            )]
            let unshared = rustix::thread::unshare(rustix::thread::UnshareFlags::NEWNET);
            if unshared.is_err() {
                eprintln!("SKIPPED {name}: needs root");
                return;
            }
            for words in ["link set lo up", "address add 192.0.2.5/32 dev lo"] {
                let done = Command::new("ip").args(words.split(' ')).status().expect("iproute2");
                assert!(done.success(), "{words}");
            }
            test();
        });
        tried.join().expect("it passes");
    });
}

/// A TCP socket bound to any name, also of another host. `keep` leaves the option set that allows
/// it.
fn bound_freely(name: &str, keep: bool) -> OwnedFd {
    use rustix::net::sockopt::set_ip_freebind;
    let socket = client(AddressFamily::INET);
    set_ip_freebind(&socket, true).expect("any user may");
    rustix::net::bind(&socket, &name.parse::<SocketAddr>().expect("a name")).expect("any address");
    set_ip_freebind(&socket, keep).expect("any user may");
    socket
}

#[test]
fn a_forged_address_of_a_bound_socket_is_refused() {
    in_own_namespace("a_forged_address_of_a_bound_socket_is_refused", || {
        let service = TestService::new();
        let (placeholder, address) = listen(&service, "0.0.0.0:0", 16);
        let connects = |socket: &OwnedFd, to: &str, port| {
            let mut query = request(RequestKind::Connect);
            query.remote = SocketAddr::new(to.parse().expect("an address"), port).into();
            service.call(&query, &[socket.as_fd()]).expect("an answer").0.kind()
        };
        let port = address.port();
        let kinds = |to: &str, port| {
            [true, false].map(|keep| connects(&bound_freely("198.51.100.7:0", keep), to, port))
        };
        for to in ["127.0.0.1", "192.0.2.5"] {
            assert_eq!(kinds(to, port), [ReplyKind::UseKernel; 2], "a forged address reaches {to}");
        }
        // A listener at an address of another host does not make it one of this host.
        let elsewhere = bound_freely("198.51.100.8:0", false);
        rustix::net::listen(&elsewhere, 16).expect("bound");
        let there = SocketAddr::try_from(rustix::net::getsockname(&elsewhere).expect("a socket"));
        let there = there.expect("a name");
        let _listens = service.listen_on(&elsewhere, 16);
        let any = client(AddressFamily::INET);
        assert_eq!(connects(&any, "198.51.100.8", there.port()), ReplyKind::UseKernel);
        // Neither does a host on which every program may bind to every address.
        std::fs::write("/proc/sys/net/ipv4/ip_nonlocal_bind", "1").expect("this namespace's own");
        assert_eq!(connects(&any, "198.51.100.8", there.port()), ReplyKind::UseKernel);
        assert_eq!(connects(&client(AddressFamily::INET), "198.51.100.9", port), ReplyKind::UseKernel);
        let socket = client(AddressFamily::INET);
        let forged: SocketAddr = "198.51.100.7:0".parse().expect("a name");
        rustix::net::bind(&socket, &forged).expect("any user may");
        assert_eq!(connects(&socket, "127.0.0.1", port), ReplyKind::UseKernel);
        // An address of the host is accepted as before.
        let own = bound_freely("192.0.2.5:0", true);
        assert_eq!(connects(&own, "127.0.0.1", port), ReplyKind::Connected);
        assert_eq!(arrival(&placeholder).0.peer.address().expect("a name").ip().to_string(), "192.0.2.5");
        assert_eq!(connects(&client(AddressFamily::INET), "192.0.2.5", port), ReplyKind::Connected);
    });
}

#[test]
fn an_address_of_another_namespace_is_checked_there() {
    let service = TestService::new();
    in_own_namespace("an_address_of_another_namespace_is_checked_there", || {
        let (placeholder, address) = listen(&service, "0.0.0.0:0", 16);
        let own = SocketAddr::new([192, 0, 2, 5].into(), address.port());
        assert_eq!(connect(&service, own).0.kind(), ReplyKind::Connected);
        assert_eq!(arrival(&placeholder).0.local.address(), Some(own));
        let far = SocketAddr::new([192, 0, 2, 6].into(), address.port());
        assert_eq!(connect(&service, far).0.kind(), ReplyKind::UseKernel);
    });
}

#[test]
fn a_socket_of_another_namespace_finds_no_listener_here() {
    let name = "a_socket_of_another_namespace_finds_no_listener_here";
    let service = TestService::new();
    let (placeholder, address) = listen(&service, "127.0.0.1:0", 16);
    std::thread::scope(|scope| {
        let tried = scope.spawn(|| {
            #[allow(
                deprecated,
                reason = "the other is unsafe: another thread may rely on what is unshared; here none does"
            )]
            let unshared = rustix::thread::unshare(rustix::thread::UnshareFlags::NEWNET);
            if unshared.is_err() {
                eprintln!("SKIPPED {name}: needs root");
                return;
            }
            assert_eq!(connect(&service, address).0.kind(), ReplyKind::UseKernel);
            // A listener of that namespace may have the same name.
            let socket = client(AddressFamily::INET);
            rustix::net::bind(&socket, &address).expect("an empty namespace");
            rustix::net::listen(&socket, 5).expect("bound");
            let there = service.listen_on(&socket, 5);
            assert_eq!(connect(&service, address).0.kind(), ReplyKind::Connected);
            arrival(&there);
        });
        tried.join().expect("it passes");
    });
    assert_eq!(connect(&service, address).0.kind(), ReplyKind::Connected);
    arrival(&placeholder);
}

#[test]
fn rules_decide_at_connection_set_up() {
    let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = free.local_addr().expect("bound").port();
    let deny = |action| Rules(vec![format!("deny {action} port {port}").parse().expect("a rule")]);
    let service = TestService::with(deny("listen"));
    let (reply, _) = service.call(&request(RequestKind::Listen), &[free.as_fd()]).expect("an answer");
    assert_eq!((reply.kind(), reply.error()), (ReplyKind::Refused, rustix::io::Errno::ACCESS));
    service.send(sietch_service::sockets::Command::Rules(deny("connect")));
    let placeholder = service.listen_on(&free, 16);
    let (reply, _) = connect(&service, SocketAddr::from(([127, 0, 0, 1], port)));
    assert_eq!((reply.kind(), reply.error()), (ReplyKind::Refused, rustix::io::Errno::ACCESS));
    service.until(|shown| shown.counters.denied == 2);
    drop(placeholder);
}

/// Where [`application`] finds the service, and a listener to connect to.
const SERVICE: &str = "SIETCH_HOSTILE_SERVICE";
const TARGET: &str = "SIETCH_HOSTILE_TARGET";

/// Not a test: the program that other tests start, kill and stop. It listens, connects to itself
/// and to the target, accepts, and closes, for ever.
#[test]
fn application() {
    let Some(path) = std::env::var_os(SERVICE) else { return };
    let target: SocketAddr = std::env::var(TARGET).expect("both are set").parse().expect("an address");
    let call = |kind, remote: Option<SocketAddr>, sent: &OwnedFd| {
        let mut query = request(kind);
        query.application = [9; 16];
        query.backlog = 8;
        query.remote = remote.map_or(query.remote, Into::into);
        let mut received = Descriptors::default();
        use std::os::unix::ffi::OsStrExt as _;
        let reply = call(path.as_bytes(), &query, &[sent.as_fd()], &mut received);
        (reply, received)
    };
    println!("READY");
    let mut held = std::collections::VecDeque::new();
    loop {
        let kernel = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let own = kernel.local_addr().expect("bound");
        let (_, listening) = call(RequestKind::Listen, None, &kernel.into());
        for _ in 0..4 {
            held.push_back(call(RequestKind::Connect, Some(own), &client(AddressFamily::INET)).1);
            held.push_back(call(RequestKind::Connect, Some(target), &client(AddressFamily::INET)).1);
        }
        let mut received = Descriptors::default();
        if let Some(placeholder) = &listening[0] {
            let _ = receive_message(placeholder.as_fd(), &mut [0; 128], &mut received, RecvFlags::DONTWAIT);
        }
        held.push_back(received);
        held.push_back(listening);
        while held.len() > 40 {
            held.pop_front();
        }
    }
}

/// Starts a process that runs [`application`].
fn spawn(service: &TestService, target: SocketAddr) -> Child {
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "sockets_hostile::application", "--nocapture"])
        .env(SERVICE, &service.socket)
        .env(TARGET, target.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process");
    let mut said = Vec::new();
    let out = child.stdout.as_mut().expect("it is piped");
    while !said.ends_with(b"READY\n") {
        let mut byte = [0];
        assert_eq!(out.read(&mut byte).expect("a pipe"), 1, "it did not start");
        said.push(byte[0]);
    }
    child
}

fn end(mut child: Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// Takes everything that has arrived, so that the target's queue does not decide.
fn accept_all(placeholder: &OwnedFd) {
    let mut received = Descriptors::default();
    while receive_message(placeholder.as_fd(), &mut [0; 128], &mut received, RecvFlags::DONTWAIT).is_ok() {}
}

#[test]
fn applications_killed_at_any_point_leave_nothing_behind() {
    if isolated::passes("applications_killed_at_any_point_leave_nothing_behind") {
        return;
    }
    let service = TestService::new();
    service.shown();
    let before = descriptors();
    let rounds: u64 =
        std::env::var("SIETCH_KILL_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(25);
    let (placeholder, address) = listen(&service, "127.0.0.1:0", 4096);
    let mut dice = Dice(0xdead);
    for _ in 0..rounds {
        let child = spawn(&service, address);
        // At a random point of its work.
        let enough = service.shown().counters.connected + dice.throw(60) as u64;
        while service.shown().counters.connected < enough {
            accept_all(&placeholder);
        }
        end(child);
        // Others are served, and get nothing that the dead application had.
        accept_all(&placeholder);
        let (reply, own) = connect(&service, address);
        assert_eq!(reply.kind(), ReplyKind::Connected);
        drop(own);
    }
    accept_all(&placeholder);
    service.until(|shown| shown.listeners == 1 && shown.connections == 0);
    drop(placeholder);
    assert_returns(&service, before);
}

#[test]
fn a_stopped_application_with_full_queues_disturbs_no_other() {
    if isolated::passes("a_stopped_application_with_full_queues_disturbs_no_other") {
        return;
    }
    let service = TestService::new();
    service.shown();
    let before = descriptors();
    let (placeholder, address) = listen(&service, "127.0.0.1:0", 64);
    let child = spawn(&service, address);
    let pid = Pid::from_child(&child);
    service.until(|shown| shown.listeners > 1);
    kill_process(pid, Signal::STOP).expect("it runs");
    accept_all(&placeholder);
    // The stopped application has connections that are not accepted.
    for _ in 0..200 {
        let (reply, _own) = connect(&service, address);
        assert_eq!(reply.kind(), ReplyKind::Connected);
        arrival(&placeholder);
    }
    kill_process(pid, Signal::KILL).expect("it is there");
    end(child);
    accept_all(&placeholder);
    drop(placeholder);
    assert_returns(&service, before);
}

#[test]
fn an_administrator_revokes_one_application_and_others_go_on() {
    let service = TestService::new();
    let (placeholder, address) = listen(&service, "127.0.0.1:0", 16);
    let kernel = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let elsewhere = kernel.local_addr().expect("bound");
    let mut query = request(RequestKind::Listen);
    (query.application, query.backlog) = ([8; 16], 16);
    let (_, mut other) = service.call(&query, &[kernel.as_fd()]).expect("an answer");
    let other = other[0].take().expect("a placeholder");
    drop(kernel);
    let (_, own) = connect(&service, address);
    arrival(&placeholder);
    let list = || {
        let (reply, descriptors) = service.administer(&request(RequestKind::List)).expect("an answer");
        assert_eq!(reply.kind(), ReplyKind::Listed);
        let file = descriptors[0].as_ref().expect("a list");
        let text = sietch_protocol::sealed::read(file, 1 << 20).expect("sealed");
        serde_json::from_slice::<sietch_service::sockets::Listing>(&text).expect("a list")
    };
    let before = list();
    assert_eq!((before.applications.len(), before.listeners.len(), before.connections.len()), (2, 2, 1));
    let (reply, _) = service.administer(&request(RequestKind::Revoke)).expect("an answer");
    assert_eq!(reply.kind(), ReplyKind::Listed);
    // The listener is closed, the connection is reset, and the other user's is unchanged.
    drop(bind_when_free(address));
    let page = own[2].as_ref().expect("a private page");
    let end = sietch_ring::stream::Endpoint::attach(own[1].as_ref().expect("memory").as_fd(), page.as_fd())
        .expect("ours");
    let state = end.private().state.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(state, sietch_ring::stream::state::FAILED);
    assert_eq!(end.private().take_error(), rustix::io::Errno::CONNRESET.raw_os_error().unsigned_abs());
    let mut query = request(RequestKind::Connect);
    (query.application, query.remote) = ([6; 16], elsewhere.into());
    let (reply, _) = service.call(&query, &[client(AddressFamily::INET).as_fd()]).expect("an answer");
    assert_eq!(reply.kind(), ReplyKind::Connected);
    arrival(&other);
    // A revoked application stays revoked when it asks again.
    let again = bind_when_free(address);
    let (reply, _) = service.call(&request(RequestKind::Listen), &[again.as_fd()]).expect("an answer");
    assert_eq!((reply.kind(), reply.error()), (ReplyKind::Refused, rustix::io::Errno::ACCESS));
    let (reply, _) = service
        .administer(&sietch_protocol::socket_service::Request::new(RequestKind::Revoke, [1; 16]))
        .expect("an answer");
    assert_eq!(reply.kind(), ReplyKind::Refused);
}

#[test]
fn a_pair_of_sockets_is_no_placeholder() {
    let service = TestService::new();
    let (one, _other) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("descriptors");
    let (reply, _) = service.call(&request(RequestKind::Adopt), &[one.as_fd()]).expect("an answer");
    assert_eq!(reply.kind(), ReplyKind::Unknown);
}

#[test]
fn no_program_sends_descriptors_to_the_other_end_of_its_connection() {
    let service = TestService::new();
    let (placeholder, address) = listen(&service, "127.0.0.1:0", 16);
    let (_, connected) = connect(&service, address);
    let (_, accepted) = arrival(&placeholder);
    let ends = [&connected[0], &accepted[0]].map(|end| end.as_ref().expect("a placeholder"));
    if !sietch_ring::socket_pair::refuses_descriptors(ends[0]) {
        return eprintln!(
            "SKIPPED no_program_sends_descriptors_to_the_other_end_of_its_connection: needs Linux 6.16, to refuse them"
        );
    }
    for end in ends {
        // The thread of the other program that takes the byte would close it.
        let sent = send_message(end.as_fd(), &[0], &[end.as_fd()], SendFlags::DONTWAIT);
        assert_eq!(sent, Err(rustix::io::Errno::PERM));
        send_message(end.as_fd(), &[0], &[], SendFlags::DONTWAIT).expect("a doorbell");
    }
}
