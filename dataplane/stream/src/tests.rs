//! Two connections of one process, joined by memory, with a poller each where one sleeps.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, socketpair};
use sietch_protocol::socket_service::{Descriptors, Name, Reply, ReplyKind, Request};
use sietch_ring::stream::{Endpoint, Memory, Names, RegionSizes};
use sietch_structures::XorShift64;

use crate::connection::{Connection, Transport};
use crate::placeholder::{Direct, OtherEnd, Placeholder as _};
use crate::poller::{Event, Interest, Poller, SleepLimit};
use crate::relay;
use crate::service::{self, SocketService};
use crate::{outcome, peer};

/// The placeholders and ends of a connection.
fn ends() -> [(OwnedFd, Endpoint); 2] {
    let memory = Memory::create(RegionSizes::default(), [Names::default(); 2]).expect("memfds");
    let (first, second) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .expect("a pair of sockets");
    let [zero, one] = memory
        .private
        .each_ref()
        .map(|private| Endpoint::attach(memory.common.as_fd(), private.as_fd()).expect("its own memory"));
    [(first, zero), (second, one)]
}

fn pair() -> [Rc<Connection>; 2] {
    ends().map(|(placeholder, end)| Rc::new(Connection::of_memory(placeholder, end)))
}

/// A client whose server cannot map the connection: the client, the kernel's socket that the server
/// has, and the thread that relays.
fn relayed() -> (Connection, std::net::TcpStream, std::thread::JoinHandle<io::Result<()>>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let socket = std::net::TcpStream::connect(listener.local_addr().expect("a name")).expect("it listens");
    socket.set_nonblocking(true).expect("a socket");
    let (accepted, _) = listener.accept().expect("it has connected");
    let [(client, own), (placeholder, end)] = ends();
    let relaying = std::thread::spawn(move || relay(placeholder, end, socket.into()));
    (Connection::of_memory(client, own), accepted, relaying)
}

fn kind<T: std::fmt::Debug>(result: io::Result<T>) -> io::ErrorKind {
    result.expect_err("an error").kind()
}

/// A poller that has asked for the events of one connection, and sleeps.
struct Sleeper {
    poller: Poller,
    events: Vec<Event>,
    now: u64,
}

impl Sleeper {
    fn new() -> Self {
        Self { poller: Poller::new().expect("a descriptor"), events: Vec::new(), now: 0 }
    }

    fn poll(&mut self) -> Vec<Interest> {
        self.now += 1_000;
        self.poller.poll(self.now, &mut self.events).expect("the kernel watches");
        self.events.drain(..).map(|event| event.ready).collect()
    }

    /// Whether the kernel would end a sleep.
    fn is_woken(&self) -> bool {
        let mut entry = [PollFd::new(&self.poller, PollFlags::IN)];
        rustix::event::poll(&mut entry, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1)
    }
}

#[test]
fn bytes_of_any_sizes_arrive_in_order_with_and_without_a_copy() {
    let [one, other] = pair();
    let mut random = XorShift64::new(7);
    let (mut sent, mut received) = (0_u64, 0_u64);
    let byte = |at: u64| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
    for _ in 0..20_000 {
        let length = (random.word() % 5_000) as usize;
        let bytes: Vec<u8> = (sent..).take(length).map(byte).collect();
        let put = if random.word().is_multiple_of(2) {
            one.try_write(&bytes)
        } else {
            one.try_write_with(|space| {
                let half = space.put(&bytes[..length / 2]);
                if half == length / 2 {
                    space.put(&bytes[length / 2..]);
                }
            })
        };
        match put {
            Ok(put) => sent += put as u64,
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
        let most = (random.word() % 5_000) as usize;
        let check = |bytes: &[u8], from: u64| {
            assert!(
                bytes.iter().zip(from..).all(|(found, at)| *found == byte(at)),
                "wrong bytes from {from}"
            );
        };
        let got = if random.word().is_multiple_of(2) {
            let mut out = vec![0; most];
            let got = other.try_read(&mut out);
            check(&out[..*got.as_ref().unwrap_or(&0)], received);
            got
        } else {
            let shown = other.try_read_with(|pieces| {
                let (first, second) = (pieces[0].take(most).to_vec(), pieces[1].to_vec());
                check(&first, received);
                check(&second, received + pieces[0].len() as u64);
                first.len()
            });
            shown.map(|used| used.expect("it has not ended"))
        };
        match got {
            Ok(got) => received += got as u64,
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
        assert!(received <= sent);
    }
    assert!(sent > 10 << 20, "{sent} bytes are too few to change the region");
}

#[test]
fn bytes_go_from_ring_to_ring() {
    let ([one, other], [next, last]) = (pair(), pair());
    let bytes: Vec<u8> = (0..40_000_u32).map(|at| (at % 251) as u8).collect();
    assert_eq!(one.try_write(&bytes).expect("there is room"), bytes.len());
    let mut copy = Vec::new();
    while copy.len() < bytes.len() {
        let forwarded = other.try_read_with(|pieces| {
            let mut put = 0;
            let written = next.try_write_with(|space| {
                for piece in pieces {
                    put += space.put_untrusted(piece);
                }
            });
            assert_eq!(written.expect("there is room"), put);
            put
        });
        assert!(forwarded.expect("bytes wait").is_some_and(|bytes| bytes > 0));
        let mut out = vec![0; 65_536];
        let got = last.try_read(&mut out).expect("they have arrived");
        copy.extend_from_slice(&out[..got]);
    }
    assert!(copy == bytes);
}

#[test]
#[cfg_attr(miri, ignore = "TCP")]
fn a_relayed_connection_carries_bytes_and_ends_both_ways() {
    let (client, mut accepted, relaying) = relayed();
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
    let expected = bytes.clone();
    let peer = std::thread::spawn(move || {
        let mut read = Vec::new();
        accepted.read_to_end(&mut read).expect("no reset");
        accepted.write_all(&read).expect("the client reads");
    });
    let mut sent = 0;
    while sent < bytes.len() {
        match client.try_write(&bytes[sent..]) {
            Ok(more) => sent += more,
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
        std::thread::yield_now();
    }
    client.try_shutdown().expect("it is open");
    let (mut read, mut out) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        match client.try_read(&mut out) {
            Ok(0) => break,
            Ok(more) => read.extend_from_slice(&out[..more]),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
        std::thread::yield_now();
    }
    assert!(read == expected);
    peer.join().expect("no panic");
    relaying.join().expect("no panic").expect("no error");
}

#[test]
#[cfg_attr(miri, ignore = "TCP")]
fn a_relayed_connection_is_reset_with_either_side() {
    for resets in ["the client", "the kernel's peer"] {
        let (client, mut accepted, relaying) = relayed();
        if resets == "the client" {
            client.abort_on_close();
            drop(client);
            let error = accepted.read(&mut [0; 1]).expect_err("a reset");
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        } else {
            rustix::net::sockopt::set_socket_linger(&accepted, Some(std::time::Duration::ZERO)).expect("TCP");
            drop(accepted);
            let error = loop {
                match client.try_read(&mut [0; 1]) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::yield_now(),
                    other => break other.expect_err("a reset"),
                }
            };
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        }
        relaying.join().expect("no panic").expect_err("a reset");
    }
}

#[test]
fn a_sleeper_is_woken_by_bytes_by_room_and_by_the_end() {
    let [one, other] = pair();
    let mut sleeper = Sleeper::new();
    let token = sleeper.poller.add_connection(&other).expect("it is watched");
    sleeper.poller.want(token, Interest::DATA, 0);
    assert!(sleeper.poll().is_empty());
    assert_eq!(sleeper.poller.prepare_sleep(), SleepLimit::Unlimited);
    assert!(!sleeper.is_woken());

    assert_eq!(one.try_write(b"hello").expect("there is room"), 5);
    assert!(sleeper.is_woken());
    assert_eq!(sleeper.poll(), [Interest::DATA]);
    assert!(sleeper.poll().is_empty(), "it is reported once");
    assert_eq!(other.try_read(&mut [0; 10]).expect("bytes"), 5);
    assert_eq!(kind(other.try_read(&mut [0; 10])), io::ErrorKind::WouldBlock);

    // A byte that is there from before wakes nothing.
    sleeper.poller.want(token, Interest::DATA, 0);
    assert_eq!(sleeper.poller.prepare_sleep(), SleepLimit::Unlimited);
    assert!(!sleeper.is_woken());

    // Room, once the peer has read a quarter.
    while other.try_write(&[1; 65_536]).is_ok() {}
    sleeper.poller.want(token, Interest::ROOM, 0);
    assert_eq!(sleeper.poller.prepare_sleep(), SleepLimit::Unlimited);
    assert!(!sleeper.is_woken());
    let mut buffer = vec![0; 1 << 20];
    while one.try_read(&mut buffer).is_ok() {}
    assert!(sleeper.is_woken());
    assert_eq!(sleeper.poll(), [Interest::ROOM]);

    drop(one);
    assert!(sleeper.is_woken());
    assert_eq!(sleeper.poll(), [Interest::DATA]);
    assert_eq!(other.try_read(&mut buffer).expect("the end"), 0);
    sleeper.poller.remove(token);
    assert!(!sleeper.is_woken());
}

#[test]
fn what_is_ready_before_a_sleep_prevents_it() {
    let [one, other] = pair();
    let mut sleeper = Sleeper::new();
    let token = sleeper.poller.add_connection(&other).expect("it is watched");
    sleeper.poller.want(token, Interest::DATA, 0);
    assert!(sleeper.poll().is_empty());
    assert_eq!(one.try_write(b"hello").expect("there is room"), 5);
    assert_eq!(sleeper.poller.prepare_sleep(), SleepLimit::None);
    assert_eq!(sleeper.poll(), [Interest::DATA]);
    // More than what is there, and the end in its place.
    sleeper.poller.want(token, Interest::DATA, 5);
    assert_eq!(sleeper.poller.prepare_sleep(), SleepLimit::Unlimited);
    one.try_shutdown().expect("it is connected");
    assert!(sleeper.is_woken());
    assert_eq!(sleeper.poll(), [Interest::DATA]);
}

#[test]
fn several_are_reported_in_the_order_of_their_bytes() {
    let pairs: Vec<_> = (0..8).map(|_| pair()).collect();
    let mut sleeper = Sleeper::new();
    let tokens: Vec<_> =
        pairs.iter().map(|[_, other]| sleeper.poller.add_connection(other).expect("it is watched")).collect();
    for token in &tokens {
        sleeper.poller.want(*token, Interest::DATA, 0);
    }
    assert!(sleeper.poll().is_empty());
    let order = [5, 0, 7, 2, 1, 6, 3, 4];
    for at in order {
        assert_eq!(pairs[at][0].try_write(b"x").expect("there is room"), 1);
        // Longer than a tick of the clock that arrivals are noted with.
        let before = sietch_ring::stream::arrivals::cycles();
        while sietch_ring::stream::arrivals::cycles().wrapping_sub(before) < 1_000 {
            if cfg!(miri) {
                break;
            }
        }
    }
    sleeper.now += 1_000;
    sleeper.poller.poll(sleeper.now, &mut sleeper.events).expect("the kernel watches");
    let reported: Vec<_> = sleeper.events.iter().map(|event| event.token).collect();
    assert_eq!(reported, order.map(|at| tokens[at]));
}

#[test]
fn an_end_that_leaves_bytes_unread_resets_and_the_error_comes_once() {
    let [one, other] = pair();
    assert_eq!(one.try_write(b"unread").expect("there is room"), 6);
    assert_eq!(other.try_write(b"last words").expect("there is room"), 10);
    drop(other);
    let mut out = [0; 20];
    assert_eq!(one.try_read(&mut out).expect("bytes come first"), 10);
    assert_eq!(kind(one.try_read(&mut out)), io::ErrorKind::ConnectionReset);
    assert_eq!(one.try_read(&mut out).expect("then the end"), 0);
    assert_eq!(kind(one.try_write(b"x")), io::ErrorKind::BrokenPipe);
}

#[test]
fn an_end_that_leaves_buffered_bytes_unread_resets_a_client_of_the_kernel_too() {
    let listening = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let mut client =
        std::net::TcpStream::connect(listening.local_addr().expect("its name")).expect("it listens");
    let (accepted, _) = listening.accept().expect("a client waits");
    let connection = Connection::accepted_by_kernel(accepted.into());
    client.write_all(b"unread").expect("it is connected");
    let ready = PollFlags::IN;
    let Transport::Kernel(kernel) = &connection.transport else { unreachable!("it is the kernel's") };
    rustix::event::poll(&mut [PollFd::new(&kernel.socket, ready)], None).expect("bytes come");
    assert_eq!(connection.try_read_with(|_| 0).expect("bytes wait"), Some(0));
    assert_eq!(connection.available(), 6);
    drop(connection);
    assert_eq!(kind(client.read(&mut [0; 10])), io::ErrorKind::ConnectionReset);
}

#[test]
fn after_a_normal_close_one_write_is_taken() {
    let [one, other] = pair();
    drop(other);
    assert_eq!(one.try_read(&mut [0; 10]).expect("the end"), 0);
    assert_eq!(one.try_write(b"too late").expect("its kernel would take it"), 8);
    assert_eq!(kind(one.try_write(b"x")), io::ErrorKind::BrokenPipe);
}

#[test]
fn a_byte_past_the_library_resets_both_ends() {
    let [one, other] = pair();
    let mut sleeper = Sleeper::new();
    let token = sleeper.poller.add_connection(&other).expect("it is watched");
    sleeper.poller.want(token, Interest::DATA, 0);
    assert_eq!(sleeper.poller.prepare_sleep(), SleepLimit::Unlimited);
    let Transport::Memory { placeholder, .. } = &one.transport else { unreachable!("it is through memory") };
    rustix::net::send(placeholder, b"GET /", SendFlags::empty()).expect("a socket");
    assert!(sleeper.is_woken());
    assert_eq!(sleeper.poll(), [Interest::DATA]);
    assert_eq!(kind(other.try_read(&mut [0; 10])), io::ErrorKind::ConnectionReset);
    assert_eq!(kind(one.try_read(&mut [0; 10])), io::ErrorKind::ConnectionReset);
}

#[test]
fn a_shutdown_past_the_library_resets_both_ends() {
    for unread in [&b""[..], &[0]] {
        let [one, other] = pair();
        let mut sleeper = Sleeper::new();
        let token = sleeper.poller.add_connection(&other).expect("it is watched");
        sleeper.poller.want(token, Interest::DATA, 0);
        assert_eq!(sleeper.poller.prepare_sleep(), SleepLimit::Unlimited);
        let Transport::Memory { placeholder, .. } = &one.transport else {
            unreachable!("it is through memory")
        };
        rustix::net::send(placeholder, unread, SendFlags::empty()).expect("a socket");
        rustix::net::shutdown(placeholder, rustix::net::Shutdown::Write).expect("a socket");
        assert!(sleeper.is_woken());
        assert_eq!(sleeper.poll(), [Interest::DATA]);
        assert_eq!(kind(other.try_read(&mut [0; 10])), io::ErrorKind::ConnectionReset);
        assert_eq!(kind(one.try_read(&mut [0; 10])), io::ErrorKind::ConnectionReset);
    }
}

#[test]
fn an_end_that_reads_no_more_is_not_taken_for_a_shutdown_past_the_library() {
    let [one, other] = pair();
    let Transport::Memory { placeholder, end } = &one.transport else { unreachable!("it is through memory") };
    let placeholder = Direct(placeholder.as_fd());
    outcome::shut_down(placeholder, end, rustix::net::Shutdown::Read, |change| change()).expect("connected");
    assert_eq!(placeholder.other_end(), OtherEnd::SilentForGood);
    assert!(!peer::check_peer_closed(placeholder, end));
    assert_eq!(one.try_write(b"still").expect("there is room"), 5);
    assert_eq!(other.try_read(&mut [0; 10]).expect("bytes"), 5);
}

#[test]
fn a_call_within_a_call_of_the_same_connection_would_block() {
    let [one, other] = pair();
    assert_eq!(one.try_write(b"hello").expect("there is room"), 5);
    let used = other.try_read_with(|pieces| {
        assert_eq!(kind(other.try_read(&mut [0; 10])), io::ErrorKind::WouldBlock);
        pieces[0].len()
    });
    assert_eq!(used.expect("bytes"), Some(5));
    let put = one.try_write_with(|space| {
        assert_eq!(kind(one.try_write(b"within")), io::ErrorKind::WouldBlock);
        assert_eq!(space.put(b"after"), 5);
    });
    assert_eq!(put.expect("there is room"), 5);
}

/// How often this thread was descheduled while it was runnable.
fn forced_switches() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").expect("procfs");
    let mut counts = status.lines().filter_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"));
    counts.next().and_then(|count| count.trim().parse().ok()).expect("the kernel counts them")
}

#[test]
#[cfg_attr(miri, ignore = "procfs and processors")]
fn a_peer_that_seems_to_close_again_and_again_costs_a_loop_no_processor_time() {
    const HINTS: u64 = 200;
    let [peer, own] = pair();
    let Transport::Memory { end, .. } = &peer.transport else { unreachable!("it is memory") };
    let mut sleeper = Sleeper::new();
    let token = sleeper.poller.add_connection(&own).expect("it is watched");
    sleeper.poller.want(token, Interest::DATA, 0);
    // Another thread needs the same processor all the time.
    let everywhere = rustix::thread::sched_getaffinity(None).expect("its processors");
    let mut here = rustix::thread::CpuSet::new();
    here.set(rustix::thread::sched_getcpu());
    rustix::thread::sched_setaffinity(None, &here).expect("one of its processors");
    let done = AtomicBool::new(false);
    let (mut reported, mut switches) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Relaxed) {
                std::hint::spin_loop();
            }
        });
        let before = forced_switches();
        for _ in 0..HINTS {
            end.closing();
            reported += sleeper.poll().len();
        }
        switches = forced_switches() - before;
        done.store(true, Relaxed);
    });
    rustix::thread::sched_setaffinity(None, &everywhere).expect("its processors");
    assert_eq!(reported, 0, "it is still there");
    assert!(switches < HINTS / 2, "descheduled {switches} times");
    // It is noticed when it closes.
    drop(peer);
    sleeper.now += 1_000_000;
    assert_eq!(sleeper.poll(), [Interest::DATA]);
}

/// A service that says of a name so many times that it is closing a socket there.
struct Closing {
    busy: std::cell::Cell<u32>,
    pauses: std::cell::Cell<u32>,
}

impl SocketService for Closing {
    fn application(&self) -> [u8; 16] {
        [7; 16]
    }

    fn vnic(&self) -> Option<&str> {
        None
    }

    fn call(
        &self,
        _: &Request,
        _: &[BorrowedFd<'_>],
        _: &mut Descriptors,
    ) -> Result<Reply, rustix::io::Errno> {
        let mut reply = Reply::new(ReplyKind::UseKernel);
        if let Some(left) = self.busy.get().checked_sub(1) {
            self.busy.set(left);
            reply.errno = rustix::io::Errno::BUSY.raw_os_error().cast_unsigned();
        }
        Ok(reply)
    }

    fn pause(&self) {
        self.pauses.set(self.pauses.get() + 1);
    }
}

#[test]
fn a_program_goes_to_the_kernel_when_the_service_has_closed_the_listener_there() {
    let to = Name::from(std::net::SocketAddr::from(([127, 0, 0, 1], 80)));
    // In the last case the close hangs.
    for (busy, pauses, left) in [(0, 0, 0), (3, 3, 0), (1000, 100, 1000 - 101)] {
        let service = Closing { busy: busy.into(), pauses: 0.into() };
        let connected = service::connect(&service, None, Name::NONE, to);
        assert!(matches!(connected, Ok(service::Connected::NotOurs)));
        assert_eq!((service.pauses.get(), service.busy.get()), (pauses, left));
    }
}
