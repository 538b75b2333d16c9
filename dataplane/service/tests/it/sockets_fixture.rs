//! A socket service in this process, in a folder of its own, and what a client sends to it.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};
use sietch_protocol::administration;
use sietch_protocol::socket_service::{
    Arrival, Descriptors, Incoming, Reply, ReplyKind, Request, RequestKind, call, call_on, receive_arrival,
};
use sietch_ring::stream::RegionSizes;
use sietch_service::Snapshot;
use sietch_service::sockets::{Command, CommandSender, Options, Rules, SocketReport, Source, run};

/// How long something that happens at once may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// A service that runs until this value is dropped.
pub(crate) struct TestService {
    folder: PathBuf,
    pub socket: PathBuf,
    commands: Sender<Command>,
    doorbell: OwnedFd,
    report: Arc<Snapshot<SocketReport>>,
    thread: Option<JoinHandle<std::io::Result<()>>>,
}

impl TestService {
    pub(crate) fn new() -> Self {
        Self::with(Rules::default())
    }

    pub(crate) fn with(rules: Rules) -> Self {
        Self::after(rules, |_| {})
    }

    /// Starts a service after `before` has run, which gets the path: requests that it sends wait in
    /// the socket's queue.
    pub(crate) fn after(rules: Rules, before: impl FnOnce(&Path)) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("sietch-sockets-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a service in this process serves");
        let socket = folder.join("sockets.sock");
        let listening =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .expect("a service in this process serves");
        rustix::net::bind(
            &listening,
            &SocketAddrUnix::new(&socket).expect("a service in this process serves"),
        )
        .expect("a service in this process serves");
        rustix::net::listen(&listening, 1024).expect("a service in this process serves");
        std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o666))
            .expect("a service in this process serves");
        let administrators = administration::listen(&socket, SocketType::SEQPACKET);
        let administrators = Some(administrators.expect("a service in this process serves"));
        let (commands, orders) = channel();
        let doorbell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .expect("a service in this process serves");
        let own = doorbell.try_clone().expect("a service in this process serves");
        let report = Arc::<Snapshot<SocketReport>>::default();
        let shown = Arc::clone(&report);
        let region_sizes = RegionSizes { smallest: 14, largest: 22 };
        let options = Options { socket: Source::New(listening), administrators, rules, region_sizes };
        before(&socket);
        let thread = std::thread::spawn(move || run(options, &orders, &own, &shown));
        Self { folder, socket, commands, doorbell, report, thread: Some(thread) }
    }

    /// Lets another service take everything over from this one, which ends.
    pub(crate) fn succeed(&mut self) {
        self.succeed_after(|_| {});
    }

    /// The same. `before` runs when the predecessor waits for the confirmation of its successor,
    /// and gets the administrators' socket.
    pub(crate) fn succeed_after(&mut self, before: impl FnOnce(&Path)) {
        let flags = SocketFlags::CLOEXEC;
        let predecessor = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .expect("a descriptor");
        rustix::net::connect(&predecessor, &SocketAddrUnix::new(self.administrators()).expect("a path"))
            .expect("it serves");
        let mut received = Descriptors::default();
        let reply = call_on(predecessor.as_fd(), &request(RequestKind::TakeOver), &[], &mut received)
            .expect("it may succeed itself");
        assert_eq!(reply.kind(), ReplyKind::Handover);
        before(&self.administrators());
        let (commands, orders) = channel();
        let doorbell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("a descriptor");
        let own = doorbell.try_clone().expect("a descriptor");
        let report = Arc::<Snapshot<SocketReport>>::default();
        let shown = Arc::clone(&report);
        let options = Options {
            socket: Source::Predecessor(predecessor),
            administrators: None,
            rules: Rules::default(),
            region_sizes: RegionSizes { smallest: 14, largest: 22 },
        };
        let thread = std::thread::spawn(move || run(options, &orders, &own, &shown));
        let predecessor = self.thread.replace(thread).expect("it runs");
        predecessor.join().expect("no panic").expect("it transferred everything");
        (self.commands, self.doorbell, self.report) = (commands, doorbell, report);
    }

    pub(crate) fn send(&self, command: Command) {
        self.commands.send(command).expect("a service in this process serves");
        rustix::io::write(&self.doorbell, &1_u64.to_ne_bytes()).expect("a service in this process serves");
        // The doorbell is read in the iteration in which the command is applied; before, a request
        // may be answered as if there were none.
        let start = Instant::now();
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        while poll(&mut [PollFd::new(&self.doorbell, PollFlags::IN)], Some(&none)) == Ok(1) {
            assert!(start.elapsed() < PATIENCE, "the service does not read its doorbell");
            std::thread::yield_now();
        }
    }

    /// Returns a sender of commands, as the TCP host has one.
    pub(crate) fn command_sender(&self) -> CommandSender {
        let doorbell = self.doorbell.try_clone().expect("a descriptor");
        CommandSender { commands: self.commands.clone(), doorbell }
    }

    /// A connection to it, over which nothing was sent yet.
    pub(crate) fn open(&self) -> OwnedFd {
        open(&self.socket)
    }

    pub(crate) fn call(
        &self,
        request: &Request,
        send: &[BorrowedFd<'_>],
    ) -> Result<(Reply, Descriptors), Errno> {
        let mut received = Descriptors::default();
        let reply = call(self.socket.as_os_str().as_bytes(), request, send, &mut received)?;
        Ok((reply, received))
    }

    /// The administrators' socket.
    pub(crate) fn administrators(&self) -> PathBuf {
        administration::administrator_socket(&self.socket)
    }

    /// As [`TestService::call`], over the administrators' socket.
    pub(crate) fn administer(&self, request: &Request) -> Result<(Reply, Descriptors), Errno> {
        let mut received = Descriptors::default();
        let reply = call(self.administrators().as_os_str().as_bytes(), request, &[], &mut received)?;
        Ok((reply, received))
    }

    pub(crate) fn listen_on(&self, kernel: impl AsFd, backlog: u32) -> OwnedFd {
        let mut query = request(RequestKind::Listen);
        query.backlog = backlog;
        let (reply, mut received) =
            self.call(&query, &[kernel.as_fd()]).expect("a service in this process serves");
        assert_eq!(reply.kind(), ReplyKind::Listening, "{reply:?}");
        received[0].take().expect("a service in this process serves")
    }

    /// The present report. The two requests make sure that the service has published it.
    pub(crate) fn shown(&self) -> SocketReport {
        let _ = self.call(&request(RequestKind::Hello), &[]).expect("a service in this process serves");
        let _ = self.call(&request(RequestKind::Hello), &[]).expect("a service in this process serves");
        self.report.read()
    }

    /// The report that was published last, without a request.
    pub(crate) fn noted(&self) -> SocketReport {
        self.report.read()
    }

    pub(crate) fn until(&self, right: impl Fn(&SocketReport) -> bool) -> SocketReport {
        self.wait(right, || self.send(Command::Sweep))
    }

    /// The same, without a command to sweep.
    pub(crate) fn until_by_itself(&self, right: impl Fn(&SocketReport) -> bool) -> SocketReport {
        self.wait(right, std::thread::yield_now)
    }

    fn wait(&self, right: impl Fn(&SocketReport) -> bool, between: impl Fn()) -> SocketReport {
        let start = Instant::now();
        loop {
            let shown = self.shown();
            if right(&shown) {
                return shown;
            }
            assert!(start.elapsed() < PATIENCE, "{shown:?}");
            between();
        }
    }
}

impl Drop for TestService {
    fn drop(&mut self) {
        let _ = self.commands.send(Command::Stop);
        let _ = rustix::io::write(&self.doorbell, &1_u64.to_ne_bytes());
        let ended = self.thread.take().map(JoinHandle::join);
        let _ = std::fs::remove_dir_all(&self.folder);
        if !std::thread::panicking() {
            ended
                .expect("a service in this process serves")
                .expect("a service in this process serves")
                .expect("a service in this process serves");
        }
    }
}

/// A connection to the service with this socket.
pub(crate) fn open(path: &Path) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .expect("a descriptor");
    rustix::net::connect(&socket, &SocketAddrUnix::new(path).expect("a path")).expect("it serves");
    socket
}

pub(crate) fn request(kind: RequestKind) -> Request {
    Request::new(kind, [7; 16])
}

/// A listener of the service, and its address.
pub(crate) fn listen(service: &TestService, address: &str, backlog: u32) -> (OwnedFd, SocketAddr) {
    let kernel = TcpListener::bind(address).expect("a service in this process serves");
    let address = kernel.local_addr().expect("a service in this process serves");
    (service.listen_on(kernel, backlog), address)
}

/// A socket that is about to connect.
pub(crate) fn client(family: AddressFamily) -> OwnedFd {
    rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .expect("a service in this process serves")
}

/// Asks to be connected.
pub(crate) fn connect(service: &TestService, to: SocketAddr) -> (Reply, Descriptors) {
    let mut query = request(RequestKind::Connect);
    query.remote = to.into();
    let socket = client(if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 });
    service.call(&query, &[socket.as_fd()]).expect("a service in this process serves")
}

/// The next connection of a listener.
pub(crate) fn arrival(placeholder: &OwnedFd) -> (Arrival, Descriptors) {
    let mut received = Descriptors::default();
    let mut waited = [PollFd::new(placeholder, PollFlags::IN)];
    let patience = PATIENCE.try_into().expect("it is short");
    assert_ne!(poll(&mut waited, Some(&patience)), Ok(0), "no connection has arrived");
    match receive_arrival(placeholder.as_fd(), RecvFlags::empty(), &mut received)
        .expect("a service in this process serves")
    {
        Incoming::Arrived(arrival) => (arrival, received),
        other => panic!("{other:?}"),
    }
}

/// Listens at a name that is about to be free. Another test of this program may have forked a child
/// that has not started its own program yet; such a child holds all descriptors of this process.
pub(crate) fn bind_when_free(name: SocketAddr) -> TcpListener {
    let start = Instant::now();
    loop {
        match TcpListener::bind(name) {
            Ok(listener) => return listener,
            Err(error) => assert!(start.elapsed() < PATIENCE, "{name}: {error}"),
        }
        std::thread::yield_now();
    }
}
