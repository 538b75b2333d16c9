//! Threads over links of shared memory, with engines as peers in the test's own thread.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd as _;
use std::sync::mpsc::{Sender, channel};

use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, socketpair};
use sietch_net::{Config, Engine};
use sietch_nic::NicQueue as _;
use sietch_nic::shm::{Endpoint, LinkLayout, create_pair};
use sietch_protocol::socket_service::{
    Descriptors, Name, REPLY_BYTES, Reply, ReplyKind, Request, RequestKind, receive_arrival, receive_message,
};
use sietch_ring::stream;

use super::*;
use crate::requests::descriptors::RequestDescriptors;
use crate::requests::vnic::VnicRequest;
use crate::tcp::vnic::Access;

const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PATIENCE: Duration = Duration::from_secs(30);

struct Served {
    requests: Sender<VnicRequest>,
    doorbell: OwnedFd,
    peer: Engine,
    queue: Endpoint,
}

fn engine(address: Ipv4Addr, queue: &Endpoint) -> Engine {
    Engine::new(&Config::new(address, 24, [address.octets()[3]; 16]), queue.mac(), queue.mtu())
}

fn serve(pool: &mut Pool<Endpoint>, name: &str) -> Served {
    let layout = LinkLayout::for_mtu(1500);
    let pair = create_pair(layout, 1).expect("memory");
    let (one, other) = (pair.near, pair.far);
    let open = |fds, last| Endpoint::open(fds, layout, [2, 0, 0, 0, 0, last], 1500).expect("a link");
    let (queue, far) = (open(one, 2), open(other, 1));
    let (requests, received) = channel();
    let doorbell = eventfd(0, EventfdFlags::NONBLOCK).expect("a descriptor");
    let access =
        Access { uid: 0, addresses: vec![SERVICE.into()], ports: vec![1..=65535], peers: Vec::new() };
    let (own, served) = (doorbell.try_clone().expect("a descriptor"), engine(SERVICE, &queue));
    pool.add(Vnic::new(name.into(), access, queue, served, received, own, None).expect("descriptors"))
        .expect("a thread");
    Served { requests, doorbell, peer: engine(PEER, &far), queue: far }
}

impl Served {
    fn listen(&self, port: u16) -> OwnedFd {
        let (own, socket) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .expect("descriptors");
        let mut request = Request::new(RequestKind::Listen, [5; 16]);
        request.local = Name::from(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)));
        request.backlog = 8;
        let (kind, descriptors) = (RequestKind::Listen, RequestDescriptors::default());
        self.requests
            .send(VnicRequest {
                uid: 0,
                administers: false,
                request,
                kind,
                descriptors,
                pair: None,
                dry_run: false,
                socket,
            })
            .expect("it listens");
        rustix::io::write(&self.doorbell, &1_u64.to_ne_bytes()).expect("it is ours");
        let (mut bytes, mut received) = ([0; REPLY_BYTES], Descriptors::default());
        let (length, _) =
            receive_message(own.as_fd(), &mut bytes, &mut received, RecvFlags::empty()).expect("an answer");
        let reply = Reply::parse(&bytes[..length]).expect("a reply");
        assert_eq!(reply.kind(), ReplyKind::Listening);
        received[0].take().expect("a placeholder")
    }

    fn poll(&mut self, now: u64) {
        self.peer.poll(&mut self.queue, now).expect("the link is whole");
        self.peer.take_events(&mut Vec::new());
    }
}

/// Moves VNICs to and fro between two threads while each echoes a stream: every byte comes back, in
/// order.
#[test]
fn vnics_change_threads_while_bytes_flow() {
    const TOTAL: usize = 1 << 20;
    let mut pool = Pool::start(Options { most: 2, spin: Some(0) }).expect("descriptors");
    let mut all: Vec<Served> = ["a", "b"].map(|name| serve(&mut pool, name)).into();
    let start = Instant::now();
    let mut flows = Vec::new();
    for served in &mut all {
        let listener = served.listen(7);
        let now = || start.elapsed().as_nanos() as u64 + 1_000_000_000;
        let flow = served.peer.connect((SERVICE, 7), now()).expect("there is room");
        let mut received = Descriptors::default();
        while receive_arrival(listener.as_fd(), RecvFlags::DONTWAIT, &mut received).is_err() {
            served.poll(now());
            assert!(start.elapsed() < PATIENCE, "no connection arrived");
        }
        let [placeholder, common, page, _] = received;
        let (common, page) = (common.expect("memory"), page.expect("a page"));
        let end = stream::Endpoint::attach(common.as_fd(), page.as_fd()).expect("a stream");
        flows.push((flow, end, placeholder.expect("a placeholder"), listener, 0_usize, 0_usize));
    }
    let (mut round, mut moved) = (0_u64, 0);
    while flows.iter().any(|flow| flow.5 < TOTAL) {
        let now = start.elapsed().as_nanos() as u64 + 1_000_000_000;
        round += 1;
        if round.is_multiple_of(50) {
            // From wherever the second one is to the other thread.
            let at = lock(&pool.shared.sampled)
                .threads
                .iter()
                .find_map(|(thread, (_, loads))| loads.iter().any(|load| load.vnic == 2).then_some(*thread));
            if let Some(from) = at {
                lock(&pool.shared.inboxes[from].moves).push(Move { vnic: 2, from, to: 1 - from });
                pool.shared.notify(from);
                moved += 1;
            }
        }
        for (served, (flow, end, placeholder, _, sent, back)) in all.iter_mut().zip(&mut flows) {
            served.poll(now);
            if *sent < TOTAL {
                let piece: Vec<u8> = (*sent..TOTAL.min(*sent + 1000)).map(|at| (at % 251) as u8).collect();
                *sent += served.peer.send(*flow, &piece);
            }
            let mut bytes = [0; 4096];
            let room = end.writable().min(bytes.len());
            let count = end.receive().expect("no other user").read(&mut bytes[..room]);
            assert_eq!(end.send().expect("no other user").write(&bytes[..count]), count);
            for due in [end.data_notification(), end.room_notification()] {
                let flags = rustix::net::SendFlags::DONTWAIT;
                end.notify_with([due], || rustix::net::send(&*placeholder, &[0], flags).is_ok());
            }
            let count = served.peer.read(*flow, &mut bytes);
            for byte in &bytes[..count] {
                assert_eq!(*byte, (*back % 251) as u8, "byte {back}");
                *back += 1;
            }
        }
        assert!(start.elapsed() < PATIENCE, "nothing moves: {:?}", pool.report().read());
    }
    assert!(moved > 0);
}

#[test]
fn a_vnic_whose_device_was_removed_ends_and_is_reported() {
    let mut pool = Pool::start(Options { most: 1, spin: Some(0) }).expect("descriptors");
    let served = serve(&mut pool, "ended");
    let listener = served.listen(80);
    drop((served.peer, served.queue));
    // The listener hangs up when its VNIC ends.
    let mut received = Descriptors::default();
    let incoming = receive_arrival(listener.as_fd(), RecvFlags::empty(), &mut received).expect("an end");
    assert!(matches!(incoming, sietch_protocol::socket_service::Incoming::Closed));
    let start = Instant::now();
    while pool.take_ended() != ["ended"] {
        assert!(start.elapsed() < PATIENCE, "its end was not reported");
        std::thread::yield_now();
    }
}

#[test]
fn half_of_the_cores_are_for_the_applications() {
    assert_eq!([1, 2, 3, 4, 8, 64].map(max_threads), [1, 1, 1, 2, 4, 32]);
}
