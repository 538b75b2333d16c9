//! A program sends any message with any descriptors to the socket service. The service keeps
//! serving others, and keeps nothing of the message.
//!
//! 1. A seed is a few dozen requests of every kind, mutated, cut, lengthened or random. Each has up
//!    to six descriptors of all kinds and states (files, folders, pipes, memory of wrong sizes and
//!    seals, sockets of every family, placeholders, the service's own socket). The sender reads the
//!    answer or not, and goes away. Between them listeners' placeholders get any message, and
//!    streams' placeholders are sent anything.
//! 2. All the while a bystander's connection carries bytes, and new ones are made to its listener.
//! 3. At the end the service has as many descriptors as before, and nothing in its tables.
//!
//! The seed of a failure is printed; `cargo xtask soak fuzz` continues for an hour.

use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, netlink};
use sietch_protocol::socket_service::{
    ARRIVAL_BYTES, BacklogChange, Descriptors, Name, REQUEST_BYTES, ReplyKind, Request, RequestKind,
    receive_message, send_message,
};
use sietch_ring::stream::Endpoint;
use sietch_sim::Random;
use sietch_sim::seeds::{self, Budget};
use zerocopy::IntoBytes as _;

use crate::isolated;
use crate::sockets_fixture::{TestService, arrival, client, connect, listen};

/// Messages of one seed.
const MESSAGES: usize = 40;

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("proc is mounted").count()
}

/// One of every kind of descriptor, and of TCP sockets one in every state.
fn zoo(service: &TestService, target: std::net::SocketAddr) -> Vec<OwnedFd> {
    let listening = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let six = TcpListener::bind("[::1]:0").map_or_else(|_| client(AddressFamily::INET6), OwnedFd::from);
    let connected = TcpStream::connect(listening.local_addr().expect("bound")).expect("it listens");
    let half = TcpStream::connect(listening.local_addr().expect("bound")).expect("it listens");
    half.shutdown(std::net::Shutdown::Write).expect("connected");
    let bound = client(AddressFamily::INET);
    rustix::net::bind(&bound, &"127.0.0.1:0".parse::<std::net::SocketAddr>().expect("an address"))
        .expect("a free port");
    let stopped = TcpListener::bind("127.0.0.1:0").expect("a free port");
    rustix::net::shutdown(&stopped, Shutdown::Both).expect("it listens");
    let (reader, writer) = rustix::pipe::pipe().expect("descriptors");
    let (one, other) = UnixStream::pair().expect("descriptors");
    let memory = |bytes: u64, seals: SealFlags| {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("zoo", flags).expect("memory");
        rustix::fs::ftruncate(&file, bytes).expect("memory");
        rustix::fs::fcntl_add_seals(&file, seals).expect("it may be sealed");
        file
    };
    let open = |path: &str, flags: OFlags| {
        rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).expect("every system has it")
    };
    let unix = |kind| {
        rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).expect("a descriptor")
    };
    let asking = service.open();
    let (reply, mut ends) = connect(service, target);
    assert_eq!(reply.kind(), ReplyKind::Connected);
    let mut all: Vec<OwnedFd> = vec![
        listening.into(),
        six,
        connected.into(),
        half.into(),
        bound,
        client(AddressFamily::INET),
        client(AddressFamily::INET6),
        stopped.into(),
        UdpSocket::bind("127.0.0.1:0").expect("a free port").into(),
        one.into(),
        other.into(),
        UnixDatagram::unbound().expect("a descriptor").into(),
        unix(SocketType::SEQPACKET),
        asking,
        reader,
        writer,
        memory(0, SealFlags::empty()),
        memory(4096, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL),
        memory(1 << 24, SealFlags::WRITE),
        open("/dev/null", OFlags::RDWR),
        open("/", OFlags::RDONLY | OFlags::DIRECTORY),
        open("/", OFlags::PATH),
        open("/proc/self/status", OFlags::RDONLY),
        rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("a descriptor"),
        rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).expect("a descriptor"),
        rustix::fs::inotify::init(rustix::fs::inotify::CreateFlags::CLOEXEC).expect("a descriptor"),
    ];
    let diag = Some(netlink::SOCK_DIAG);
    let netlink =
        rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, diag);
    all.extend(netlink);
    all.extend(ends.iter_mut().filter_map(Option::take));
    all
}

/// A request of any kind, mostly one that makes sense.
fn draw(dice: &mut Random, application: [u8; 16], target: std::net::SocketAddr) -> Vec<u8> {
    let mut request = Request::new(RequestKind::Hello, application);
    request.kind = dice.below(16) as u16;
    request.backlog = dice.word() as u32 >> dice.below(32);
    request.flags = dice.below(8) as u32;
    let names = [
        Name::NONE,
        target.into(),
        std::net::SocketAddr::from(([127, 0, 0, 1], dice.word() as u16)).into(),
        std::net::SocketAddr::from(([0; 8], dice.word() as u16)).into(),
        Name { bytes: [dice.word() as u8; 28], length: dice.below(40) as u32 },
    ];
    (request.local, request.remote) = (*dice.pick(&names), *dice.pick(&names));
    if dice.chance(100) {
        dice.fill(&mut request.vnic);
    }
    let mut bytes = request.as_bytes().to_vec();
    match dice.below(8) {
        0 => dice.fill(&mut bytes),
        1 => bytes.truncate(dice.index(REQUEST_BYTES)),
        2 => bytes.resize(REQUEST_BYTES + 1 + dice.index(4096), 7),
        3 | 4 => {
            for _ in 0..=dice.below(4) {
                let at = dice.index(bytes.len());
                bytes[at] ^= 1 << dice.below(8);
            }
        }
        _ => {}
    }
    bytes
}

/// Sends a message to the service, and reads the answer or not. What was given is kept, for a
/// while.
fn exchange(
    service: &TestService,
    dice: &mut Random,
    bytes: &[u8],
    sent: &[BorrowedFd<'_>],
) -> Option<Descriptors> {
    let socket = service.open();
    if send_message(socket.as_fd(), bytes, sent, SendFlags::empty()).is_err() || dice.chance(300) {
        return None;
    }
    rustix::net::shutdown(&socket, Shutdown::Write).expect("it is open");
    let mut received = Descriptors::default();
    let _ = receive_message(socket.as_fd(), &mut [0; 512], &mut received, RecvFlags::empty());
    Some(received)
}

/// Sends anything over placeholders.
fn babble(dice: &mut Random, to: &OwnedFd, animals: &[OwnedFd]) {
    let mut bytes = match dice.below(3) {
        0 => BacklogChange::new(dice.word() as u32).as_bytes().to_vec(),
        1 => vec![0; dice.index(ARRIVAL_BYTES * 2)],
        _ => vec![1],
    };
    if dice.chance(500) {
        dice.fill(&mut bytes);
    }
    let sent: Vec<_> = (0..dice.below(3)).map(|_| dice.pick(animals).as_fd()).collect();
    let _ = send_message(to.as_fd(), &bytes, &sent, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// A connection whose bytes must arrive in spite of the others.
struct Bystander {
    placeholder: OwnedFd,
    address: std::net::SocketAddr,
    ends: [Endpoint; 2],
    _placeholders: [OwnedFd; 2],
    said: u8,
}

impl Bystander {
    fn new(service: &TestService) -> Self {
        let (placeholder, address) = listen(service, "127.0.0.1:0", 64);
        let (_, mut own) = connect(service, address);
        let (_, mut theirs) = arrival(&placeholder);
        let mut take = |which: usize| {
            let of = if which == 0 { &mut own } else { &mut theirs };
            let [socket, common, page] = [0, 1, 2].map(|at| of[at].take().expect("three descriptors"));
            (socket, Endpoint::attach(common.as_fd(), page.as_fd()).expect("a stream"))
        };
        let ((one, first), (other, second)) = (take(0), take(1));
        Self { placeholder, address, ends: [first, second], _placeholders: [one, other], said: 0 }
    }

    fn goes_on(&mut self, service: &TestService) {
        self.said = self.said.wrapping_add(1);
        let [from, to] = &self.ends;
        let text = [self.said; 100];
        assert_eq!(from.send().expect("no other sender").write(&text), text.len());
        let mut read = [0; 100];
        assert_eq!(to.receive().expect("no other reader").read(&mut read), text.len());
        assert_eq!(read, text);
        let (reply, _own) = connect(service, self.address);
        assert_eq!(reply.kind(), ReplyKind::Connected);
        assert_eq!(arrival(&self.placeholder).0.peer, reply.local);
    }
}

fn run(service: &TestService, seed: u64) {
    let mut dice = Random::new(seed);
    let mut application = [0; 16];
    // Not the application of the bystander, which a request could revoke.
    dice.fill(&mut application[1..]);
    let mut bystander = Bystander::new(service);
    let (victim, target) = listen(service, "127.0.0.1:0", 16);
    let animals = zoo(service, target);
    let mut held: Vec<OwnedFd> = Vec::new();
    for round in 0..MESSAGES {
        let bytes = draw(&mut dice, application, target);
        let count = if dice.chance(700) { 1 } else { dice.below(7) };
        let all: Vec<&OwnedFd> = animals.iter().chain(&held).collect();
        let sent: Vec<_> = (0..count).map(|_| dice.pick(&all).as_fd()).collect();
        let given = exchange(service, &mut dice, &bytes, &sent);
        held.extend(given.into_iter().flatten().flatten());
        for to in held.iter().chain([&victim]) {
            if dice.chance(100) {
                babble(&mut dice, to, &animals);
            }
        }
        while held.len() > 20 {
            held.swap_remove(dice.index(20));
        }
        if round % 8 == 0 {
            bystander.goes_on(service);
        }
    }
    bystander.goes_on(service);
}

#[test]
fn no_message_of_a_program_harms_another() {
    if isolated::passes("no_message_of_a_program_harms_another") {
        return;
    }
    let service = TestService::new();
    service.shown();
    let before = descriptors();
    // The counts of descriptors are of the whole process.
    let alone = std::sync::Mutex::new(());
    seeds::run("it sockets_fuzz", &[], Budget { seeds: 150, seconds: 10 }, |seed| {
        let _alone = alone.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        run(&service, seed);
        service.until(|shown| {
            (shown.listeners, shown.connections, shown.applications) == (0, 0, 0) && descriptors() <= before
        });
    });
}
