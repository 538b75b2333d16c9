//! What a user of a socket queue relies on, shown on both implementations.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use sietch_socket::{Appetite, Choice, ConnectionId, Handler, SocketQueue, Verdict};

/// An owner that notes everything and takes as much as it is set to.
#[derive(Default)]
struct Owner {
    connections: HashMap<u64, ConnectionId>,
    received: HashMap<u64, Vec<u8>>,
    ended: Vec<u64>,
    broken: Vec<u64>,
    writable: Vec<u64>,
    doorbells: Vec<u64>,
    next: u64,
    /// Bytes of one connection after which it has had enough.
    limit: Option<usize>,
    refuse: bool,
    /// Connections are released, and these are their sockets.
    release: bool,
    released: Vec<OwnedFd>,
}

impl Handler for Owner {
    fn accepted(&mut self, id: ConnectionId, peer: SocketAddr, local: SocketAddr) -> Verdict {
        assert_ne!(peer.port(), local.port());
        if self.refuse {
            return Verdict::Refuse(b"-ERR max number of clients reached\r\n");
        }
        if self.release {
            return Verdict::Release;
        }
        self.next += 1;
        self.connections.insert(self.next, id);
        Verdict::Accept(self.next)
    }
    fn released(&mut self, socket: OwnedFd) {
        self.released.push(socket);
    }
    fn received(&mut self, user: u64, bytes: &[u8]) -> Appetite {
        let all = self.received.entry(user).or_default();
        all.extend_from_slice(bytes);
        if self.limit.is_some_and(|limit| all.len() >= limit) { Appetite::Enough } else { Appetite::More }
    }
    fn ended(&mut self, user: u64) {
        self.ended.push(user);
    }
    fn broken(&mut self, user: u64) {
        self.broken.push(user);
    }
    fn writable(&mut self, user: u64) {
        self.writable.push(user);
    }
    fn doorbell(&mut self, token: u64) {
        self.doorbells.push(token);
    }
}

/// Runs `test` on each implementation that this machine has.
fn each(test: impl Fn(SocketQueue)) {
    test(SocketQueue::open(Choice::Epoll).unwrap());
    let queue = SocketQueue::open(Choice::Automatic).unwrap();
    if queue.name() == "io_uring" {
        test(queue);
    } else {
        eprintln!("SKIPPED the io_uring half: the kernel refuses io_uring");
    }
}

fn listen(queue: &mut SocketQueue) -> SocketAddr {
    queue.listen("127.0.0.1:0".parse().unwrap()).unwrap()
}

/// Polls the queue until `done` says so; 20 s are more than any test needs on the slowest machine.
fn poll_until(
    queue: &mut SocketQueue,
    owner: &mut Owner,
    mut done: impl FnMut(&mut SocketQueue, &mut Owner) -> bool,
) {
    for _ in 0..2000 {
        queue.poll(owner).unwrap();
        if done(queue, owner) {
            queue.flush().unwrap();
            return;
        }
        queue.wait(Some(Duration::from_millis(10))).unwrap();
    }
    panic!("it did not happen");
}

#[test]
fn bytes_go_both_ways_and_a_half_close_is_heard() {
    each(|mut queue| {
        let address = listen(&mut queue);
        let mut owner = Owner::default();
        let mut client = TcpStream::connect(address).unwrap();
        client.write_all(b"PING\r\n").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        poll_until(&mut queue, &mut owner, |_, owner| owner.ended == [1]);
        assert_eq!(owner.received[&1], b"PING\r\n");
        assert_eq!(queue.send(owner.connections[&1], b"+PONG\r\n"), 7);
        queue.close(owner.connections[&1]);
        queue.flush().unwrap();
        let reader = std::thread::spawn(move || {
            let mut reply = String::new();
            client.read_to_string(&mut reply).map(|_| reply)
        });
        poll_until(&mut queue, &mut owner, |_, _| reader.is_finished());
        assert_eq!(reader.join().unwrap().unwrap(), "+PONG\r\n");
        assert!(owner.broken.is_empty());
    });
}

#[test]
fn a_released_connection_is_served_by_another_queue() {
    each(|mut queue| {
        let mut other = SocketQueue::open(Choice::Automatic).unwrap();
        let address = listen(&mut queue);
        let mut acceptor = Owner { release: true, ..Owner::default() };
        let mut client = TcpStream::connect(address).unwrap();
        client.write_all(b"PING\r\n").unwrap();
        poll_until(&mut queue, &mut acceptor, |_, acceptor| !acceptor.released.is_empty());
        let mut owner = Owner::default();
        other.adopt(acceptor.released.pop().unwrap(), &mut owner);
        poll_until(&mut other, &mut owner, |_, owner| owner.received.contains_key(&1));
        assert_eq!(owner.received[&1], b"PING\r\n");
        drop(client);
        poll_until(&mut other, &mut owner, |_, owner| owner.ended == [1]);
        queue.poll(&mut acceptor).unwrap();
        assert!(acceptor.received.is_empty() && acceptor.broken.is_empty());
    });
}

#[test]
fn a_peer_that_does_not_read_is_bounded_and_loses_nothing() {
    const TOTAL: usize = 32 << 20;
    each(|mut queue| {
        let address = listen(&mut queue);
        let mut owner = Owner::default();
        let client = TcpStream::connect(address).unwrap();
        poll_until(&mut queue, &mut owner, |_, owner| owner.next == 1);
        let id = owner.connections[&1];
        let pattern: Vec<u8> = (0..TOTAL).map(|at| (at % 251) as u8).collect();
        let mut sent = 0;
        // No reader: the queue must refuse long before everything is in memory.
        for _ in 0..50 {
            sent += queue.send(id, &pattern[sent..]);
            queue.flush().unwrap();
            queue.poll(&mut owner).unwrap();
        }
        assert!(sent < TOTAL, "{}: took everything from a peer that reads nothing", queue.name());
        let expected = pattern.clone();
        let reader = std::thread::spawn(move || {
            let mut client = client;
            let mut all = Vec::new();
            client.read_to_end(&mut all).unwrap();
            assert!(all == expected, "bytes differ");
        });
        poll_until(&mut queue, &mut owner, |queue, owner| {
            if !owner.writable.is_empty() || sent < TOTAL {
                owner.writable.clear();
                sent += queue.send(id, &pattern[sent..]);
            }
            sent == TOTAL
        });
        queue.close(id);
        poll_until(&mut queue, &mut owner, |_, _| reader.is_finished());
        reader.join().unwrap();
    });
}

#[test]
fn a_connection_that_had_enough_is_not_read_until_it_is_resumed() {
    const TOTAL: usize = 8 << 20;
    each(|mut queue| {
        let address = listen(&mut queue);
        let mut owner = Owner { limit: Some(1), ..Owner::default() };
        let mut client = TcpStream::connect(address).unwrap();
        let writer = std::thread::spawn(move || {
            let bytes: Vec<u8> = (0..TOTAL).map(|at| (at % 253) as u8).collect();
            client.write_all(&bytes).unwrap();
        });
        poll_until(&mut queue, &mut owner, |_, owner| owner.received.contains_key(&1));
        for _ in 0..20 {
            queue.wait(Some(Duration::from_millis(5))).unwrap();
            queue.poll(&mut owner).unwrap();
        }
        assert!(owner.received[&1].len() <= sietch_socket::RECEIVE_BYTES, "read on after enough");
        assert!(!writer.is_finished(), "the peer did not feel it");
        owner.limit = None;
        queue.resume(owner.connections[&1]);
        poll_until(&mut queue, &mut owner, |_, owner| owner.ended == [1]);
        writer.join().unwrap();
        let received = &owner.received[&1];
        assert!(
            received.len() == TOTAL
                && received.iter().enumerate().all(|(at, byte)| *byte == (at % 253) as u8)
        );
    });
}

#[test]
fn a_reset_is_heard_once_and_its_id_is_dead() {
    each(|mut queue| {
        let address = listen(&mut queue);
        let mut owner = Owner::default();
        let client = TcpStream::connect(address).unwrap();
        poll_until(&mut queue, &mut owner, |_, owner| owner.next == 1);
        // Closing with unread bytes makes the kernel send a reset.
        queue.send(owner.connections[&1], b"unread");
        queue.flush().unwrap();
        let mut one = [0];
        client.peek(&mut one).unwrap();
        drop(client);
        poll_until(&mut queue, &mut owner, |_, owner| !owner.broken.is_empty() || !owner.ended.is_empty());
        let stale = owner.connections[&1];
        queue.close(stale);
        assert_eq!(queue.send(stale, b"discarded"), 9, "bytes to a dead connection are swallowed");
        let _second = TcpStream::connect(address).unwrap();
        poll_until(&mut queue, &mut owner, |_, owner| owner.next == 2);
        assert!(owner.broken.len() <= 1);
    });
}

#[test]
fn a_refused_peer_reads_the_reason() {
    each(|mut queue| {
        let address = listen(&mut queue);
        let mut owner = Owner { refuse: true, ..Owner::default() };
        let client = std::thread::spawn(move || {
            let mut reply = String::new();
            TcpStream::connect(address).unwrap().read_to_string(&mut reply).map(|_| reply)
        });
        poll_until(&mut queue, &mut owner, |_, _| client.is_finished());
        assert_eq!(client.join().unwrap().unwrap(), "-ERR max number of clients reached\r\n");
    });
}

#[test]
fn five_hundred_connections_echo_and_leave_nothing() {
    each(|mut queue| {
        let address = listen(&mut queue);
        let mut owner = Owner::default();
        let clients = std::thread::spawn(move || {
            for _ in 0..2 {
                let mut open: Vec<TcpStream> =
                    (0..250).map(|_| TcpStream::connect(address).unwrap()).collect();
                for (number, client) in open.iter_mut().enumerate() {
                    client.write_all(format!("hello {number:05}").as_bytes()).unwrap();
                }
                for (number, client) in open.iter_mut().enumerate() {
                    let mut reply = [0; 11];
                    client.read_exact(&mut reply).unwrap();
                    assert_eq!(&reply[..], format!("hello {number:05}").as_bytes());
                }
            }
        });
        poll_until(&mut queue, &mut owner, |queue, owner| {
            for (user, bytes) in owner.received.drain() {
                assert_eq!(queue.send(owner.connections[&user], &bytes), bytes.len());
            }
            for user in owner.ended.drain(..) {
                queue.close(owner.connections[&user]);
            }
            clients.is_finished()
        });
        clients.join().unwrap();
        assert_eq!(owner.next, 500);
    });
}

#[test]
fn a_doorbell_ends_the_sleep_each_time_it_rings() {
    each(|mut queue| {
        let mut owner = Owner::default();
        let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        queue.watch(ours.try_clone().unwrap().into(), 7).unwrap();
        for round in 1..=3 {
            theirs.write_all(b"!").unwrap();
            poll_until(&mut queue, &mut owner, |_, owner| owner.doorbells.len() >= round);
            let mut byte = [0];
            (&ours).read_exact(&mut byte).unwrap();
            // A level that was seen twice is no second ring.
            queue.poll(&mut owner).unwrap();
            owner.doorbells.truncate(round);
        }
        assert_eq!(owner.doorbells, [7, 7, 7]);
    });
}

#[test]
fn a_taken_port_is_refused_by_its_address() {
    each(|mut queue| {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let error = queue.listen(address).unwrap_err().to_string();
        assert!(error.contains(&address.to_string()) && error.contains("another"), "{error}");
    });
}

#[test]
fn an_unwatched_descriptor_is_closed_and_notifies_no_more() {
    each(|mut queue| {
        let mut owner = Owner::default();
        let (kept, mut kept_writer) = std::io::pipe().unwrap();
        let (dropped, mut writer) = std::io::pipe().unwrap();
        queue.watch(kept.into(), 1).unwrap();
        queue.watch(dropped.into(), 2).unwrap();
        // Once it has slept, the queue waits for both.
        queue.wait(Some(Duration::from_millis(1))).unwrap();
        queue.unwatch(2);
        poll_until(&mut queue, &mut owner, |_, _| writer.write_all(b"x").is_err());
        kept_writer.write_all(b"x").unwrap();
        poll_until(&mut queue, &mut owner, |_, owner| !owner.doorbells.is_empty());
        assert!(owner.doorbells.iter().all(|&token| token == 1));
    });
}

#[test]
fn a_connection_that_was_accepted_elsewhere_is_served_like_any_other() {
    each(|mut queue| {
        let mut owner = Owner::default();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        // As another process may have left it.
        accepted.set_nonblocking(true).unwrap();
        queue.adopt(accepted.into(), &mut owner);
        assert_eq!(owner.next, 1);
        // It waits for bytes, although the socket came without any.
        queue.poll(&mut owner).unwrap();
        queue.wait(Some(Duration::from_millis(1))).unwrap();
        queue.poll(&mut owner).unwrap();
        client.write_all(b"PING\r\n").unwrap();
        poll_until(&mut queue, &mut owner, |_, owner| owner.received.contains_key(&1));
        assert_eq!(owner.received[&1], b"PING\r\n");
        assert_eq!(queue.send(owner.connections[&1], b"+PONG\r\n"), 7);
        queue.flush().unwrap();
        let mut reply = [0; 7];
        client.read_exact(&mut reply).unwrap();
        assert_eq!(&reply, b"+PONG\r\n");
        drop(client);
        poll_until(&mut queue, &mut owner, |_, owner| owner.ended == [1]);
        assert!(owner.broken.is_empty());
        // One that is refused gets the last words.
        owner.refuse = true;
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        queue.adopt(listener.accept().unwrap().0.into(), &mut owner);
        let mut words = String::new();
        client.read_to_string(&mut words).unwrap();
        assert_eq!(words, "-ERR max number of clients reached\r\n");
    });
}

#[test]
fn a_listening_socket_that_another_holder_shuts_down_is_closed() {
    each(|mut queue| {
        let mut owner = Owner::default();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let other = listener.try_clone().unwrap();
        queue.listen_on(listener.into()).unwrap();
        let mut client = TcpStream::connect(address).unwrap();
        poll_until(&mut queue, &mut owner, |_, owner| owner.next == 1);
        rustix::net::shutdown(&other, rustix::net::Shutdown::Both).unwrap();
        drop(other);
        // The queue is not busy with a socket that never becomes good again ...
        let mut rounds = 0;
        while queue.poll(&mut owner).unwrap() > 0 || rounds < 3 {
            queue.wait(Some(Duration::from_millis(1))).unwrap();
            rounds += 1;
            assert!(rounds < 100, "{}: the end is reported again and again", queue.name());
        }
        // ... frees the name, and serves what was accepted before.
        drop(std::net::TcpListener::bind(address).unwrap());
        client.write_all(b"PING\r\n").unwrap();
        poll_until(&mut queue, &mut owner, |_, owner| owner.received.contains_key(&1));
    });
}

/// The variable of a process of its own for the test below, which has a low limit of descriptors.
const ISOLATED: &str = "SIETCH_SOCKET_TEST_ISOLATED";

#[test]
fn connections_are_accepted_again_once_descriptors_are_free_elsewhere() {
    let name = "connections_are_accepted_again_once_descriptors_are_free_elsewhere";
    if std::env::var_os(ISOLATED).is_none() {
        let mut own = std::process::Command::new("sh");
        own.args(["-c", "ulimit -n 128 && exec \"$0\" --exact \"$1\" --nocapture"]);
        own.arg(std::env::current_exe().unwrap()).arg(name);
        let output = own.env(ISOLATED, "1").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    each(|mut queue| {
        let mut owner = Owner::default();
        let address = queue.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let _first = TcpStream::connect(address).unwrap();
        poll_until(&mut queue, &mut owner, |_, owner| owner.next == 1);
        let _second = TcpStream::connect(address).unwrap();
        // Others of this process take all descriptors. The first connection stays.
        let mut others = Vec::new();
        while let Ok(other) = std::fs::File::open("/dev/null") {
            others.push(other);
        }
        for _ in 0..3 {
            queue.poll(&mut owner).unwrap();
            queue.wait(Some(Duration::from_millis(1))).unwrap();
        }
        assert_eq!(owner.next, 1, "{}: there is no descriptor", queue.name());
        drop(others);
        poll_until(&mut queue, &mut owner, |_, owner| owner.next == 2);
    });
}
