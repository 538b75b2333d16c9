//! A VNIC with real memory, real placeholders and a wire; applications are played by the test.

use std::net::Ipv4Addr;
use std::sync::mpsc::{Sender, channel};

use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, recv, socketpair};
use sietch_net::{CloseReason, Config, EventKind, FlowId};
use sietch_nic::wire::{WireQueue, pair};
use sietch_nic::{Foreign, Frame, Offloads, TransmitError};
use sietch_protocol::socket_service::{Incoming, Name, REPLY_BYTES, Reply, ReplyKind, receive_arrival};
use sietch_ring::stream::{End, Hangup};

use super::*;

const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

/// A wire as a device.
#[derive(Debug)]
struct Wire(WireQueue);

impl NicQueue for Wire {
    fn mac(&self) -> [u8; 6] {
        self.0.mac()
    }
    fn mtu(&self) -> usize {
        self.0.mtu()
    }
    fn receive(&mut self, out: &mut Vec<Frame>, limit: usize) -> usize {
        self.0.receive(out, limit)
    }
    fn bytes(&self, frame: &Frame) -> &[u8] {
        self.0.bytes(frame)
    }
    fn tail(&self, frame: &Frame) -> Foreign<'_> {
        self.0.tail(frame)
    }
    fn bytes_mut(&mut self, frame: &mut Frame) -> &mut [u8] {
        self.0.bytes_mut(frame)
    }
    fn allocate(&mut self, length: usize) -> Option<Frame> {
        self.0.allocate(length)
    }
    fn offloads(&self) -> Offloads {
        self.0.offloads()
    }
    fn release(&mut self, frame: Frame) {
        self.0.release(frame);
    }
    fn transmit(&mut self, frame: Frame) -> Result<(), TransmitError> {
        self.0.transmit(frame)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
    fn free_buffers(&self) -> usize {
        self.0.free_buffers()
    }
}

impl Device for Wire {
    fn doorbell(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

struct Place {
    vnic: Vnic<Wire>,
    peer: Engine,
    peer_queue: WireQueue,
    orders: Sender<Asked>,
    bell: OwnedFd,
    now: u64,
    closed: Vec<(FlowId, CloseReason)>,
    accepted: Vec<FlowId>,
}

fn engine(address: Ipv4Addr, queue: &impl NicQueue) -> Engine {
    Engine::new(&Config::new(address, 24, [address.octets()[3]; 16]), queue.mac(), queue.mtu())
}

impl Place {
    fn new() -> Self {
        let (queue, peer_queue) = pair([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1], 1500, 512);
        let (orders, received) = channel();
        let bell = eventfd(0, EventfdFlags::NONBLOCK).expect("a descriptor");
        let access = Access {
            uid: 1000,
            addresses: vec![SERVICE.into()],
            ports: vec![80..=80, 7000..=7999, 40_000..=50_000],
            peers: vec![(Ipv4Addr::new(10, 0, 0, 0).into(), 24)],
        };
        let served = engine(SERVICE, &queue);
        let own = bell.try_clone().expect("a descriptor");
        let vnic = Vnic::new("test".into(), access, Wire(queue), served, received, own).expect("descriptors");
        let peer = engine(PEER, &peer_queue);
        let (closed, accepted) = (Vec::new(), Vec::new());
        Self { vnic, peer, peer_queue, orders, bell, now: 1_000_000_000, closed, accepted }
    }

    /// Turns both sides for some milliseconds.
    fn run(&mut self) {
        for _ in 0..200 {
            self.now += 100_000;
            self.vnic.turn(self.now).expect("the wire is whole");
            self.peer.receive(&mut self.peer_queue, self.now);
            let mut events = Vec::new();
            self.peer.take_events(&mut events);
            for event in events {
                match event.kind {
                    EventKind::Closed(reason) => self.closed.push((event.flow, reason)),
                    EventKind::Accepted { .. } => self.accepted.push(event.flow),
                    _ => {}
                }
            }
            self.peer.emit(&mut self.peer_queue, self.now).expect("the wire is whole");
        }
    }

    fn ask(
        &mut self,
        uid: u32,
        kind: RequestKind,
        change: impl FnOnce(&mut Request),
        with: Option<&OwnedFd>,
    ) -> (Reply, Descriptors) {
        let (own, socket) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .expect("descriptors");
        let mut request = Request::new(kind, [5; 16]);
        change(&mut request);
        let mut descriptors = Descriptors::default();
        descriptors[0] = with.map(|fd| fd.try_clone().expect("a descriptor"));
        self.orders.send(Asked { uid, request, kind, descriptors, socket }).expect("it listens");
        rustix::io::write(&self.bell, &1_u64.to_ne_bytes()).expect("it is ours");
        self.run();
        let (mut bytes, mut received) = ([0; REPLY_BYTES], Descriptors::default());
        let (length, _) =
            receive_message(own.as_fd(), &mut bytes, &mut received, RecvFlags::DONTWAIT).expect("an answer");
        (Reply::parse(&bytes[..length]).expect("a reply"), received)
    }

    fn listen(&mut self, port: u16) -> OwnedFd {
        let (reply, [placeholder, ..]) =
            self.ask(1000, RequestKind::Listen, |request| bound(request, port), None);
        assert_eq!(reply.kind(), ReplyKind::Listening, "{}", reply.error());
        placeholder.expect("a placeholder")
    }

    /// The peer connects to a port.
    fn peer_connects(&mut self, port: u16) -> FlowId {
        let flow = self.peer.connect((SERVICE, port), self.now).expect("there is room");
        self.run();
        flow
    }
}

fn bound(request: &mut Request, port: u16) {
    request.local = Name::from(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)));
    request.backlog = 8;
}

fn accept(listener: &OwnedFd) -> (OwnedFd, End) {
    let mut received = Descriptors::default();
    let arrived =
        receive_arrival(listener.as_fd(), RecvFlags::DONTWAIT, &mut received).expect("somebody connected");
    assert!(matches!(arrived, Incoming::Arrived(_)));
    stream(received)
}

fn stream([placeholder, common, page, _]: Descriptors) -> (OwnedFd, End) {
    let (common, page) = (common.expect("memory"), page.expect("a page"));
    (placeholder.expect("a placeholder"), End::attach(common.as_fd(), page.as_fd()).expect("a stream"))
}

#[test]
fn an_application_serves_a_peer_and_its_death_frees_everything() {
    let mut place = Place::new();
    let listener = place.listen(80);
    let flow = place.peer_connects(80);
    let (placeholder, end) = accept(&listener);
    assert_eq!(place.peer.send(flow, b"question"), 8);
    place.run();
    let mut bytes = [0; 16];
    assert_eq!(end.receive().expect("nobody else").read(&mut bytes), 8);
    assert_eq!(end.send().expect("nobody else").write(b"answer"), 6);
    // The service sleeps for this connection by now: it is rung.
    place.run();
    for _ in 0..end.ring_for_data() {
        rustix::net::send(&placeholder, &[0], SendFlags::NOSIGNAL).expect("the service holds it");
    }
    place.run();
    assert_eq!(place.peer.read(flow, &mut bytes), 6);
    assert_eq!(&bytes[..6], b"answer");
    // Something unread, and the application is gone, listener and all.
    assert_eq!(place.peer.send(flow, b"unread"), 6);
    place.run();
    drop((placeholder, end, listener));
    place.run();
    assert_eq!(place.closed, [(flow, CloseReason::Reset)]);
    let (counters, shares) = place.vnic.shown();
    assert_eq!((counters.connections, counters.claims, shares.len()), (0, 0, 0));
    assert_eq!((place.vnic.cookies.len(), place.vnic.placeholders.len()), (0, 0));
    let refused = place.peer_connects(80);
    assert_eq!(place.closed.last(), Some(&(refused, CloseReason::Refused)));
    drop(place.listen(80));
}

#[test]
fn an_application_connects_and_hears_how_it_went() {
    let mut place = Place::new();
    place.peer.listen(9000, 8).expect("nobody listens");
    let to =
        |port: u16| move |request: &mut Request| request.remote = Name::from(SocketAddr::from((PEER, port)));
    let (reply, received) = place.ask(1000, RequestKind::Connect, to(9000), None);
    assert_eq!(reply.kind(), ReplyKind::Connecting);
    let (placeholder, end) = stream(received);
    place.run();
    assert_eq!(end.private().state.load(std::sync::atomic::Ordering::Acquire), 0);
    assert_eq!(recv(&placeholder, &mut [0_u8; 8][..], RecvFlags::DONTWAIT).map(|(count, _)| count), Ok(1));
    assert_eq!(end.send().expect("nobody else").write(&[7; 5000]), 5000);
    place.run();
    let _ = rustix::net::send(&placeholder, &[0], SendFlags::NOSIGNAL);
    place.run();
    let flow = place.accepted[0];
    assert_eq!(place.peer.received(flow).0.len() + place.peer.received(flow).1.len(), 5000);
    // The peer resets: the application hears it after what it was given.
    assert_eq!(place.peer.send(flow, b"last words"), 10);
    place.run();
    place.peer.abort(flow);
    place.run();
    assert_eq!((end.readable(), end.hung_up()), (10, Hangup::Reset));

    let (reply, received) = place.ask(1000, RequestKind::Connect, to(9001), None);
    assert_eq!(reply.kind(), ReplyKind::Connecting);
    let (_placeholder, end) = stream(received);
    place.run();
    assert_eq!(end.private().take_error(), Errno::CONNREFUSED.raw_os_error() as u32);
}

#[test]
fn who_may_not_is_refused() {
    let mut place = Place::new();
    let refused =
        |(reply, _): (Reply, Descriptors)| (reply.kind() == ReplyKind::Refused).then(|| reply.error());
    let other = place.ask(1001, RequestKind::Listen, |request| bound(request, 80), None);
    assert_eq!(refused(other), Some(Errno::ACCESS));
    let filtered = place.ask(1000, RequestKind::Listen, |request| bound(request, 81), None);
    assert_eq!(refused(filtered), Some(Errno::ACCESS));
    let _held = place.listen(80);
    let taken = place.ask(1000, RequestKind::Bind, |request| bound(request, 80), None);
    assert_eq!(refused(taken), Some(Errno::ADDRINUSE));
    let far = place.ask(
        1000,
        RequestKind::Connect,
        |request| request.remote = Name::from(SocketAddr::from(([10, 0, 1, 1], 80))),
        None,
    );
    assert_eq!(refused(far), Some(Errno::ACCESS));
    let loopback = place.ask(
        1000,
        RequestKind::Connect,
        |request| request.remote = Name::from(SocketAddr::from(([127, 0, 0, 1], 80))),
        None,
    );
    assert_eq!(loopback.0.kind(), ReplyKind::NotOurs);
}

#[test]
fn a_reservation_holds_a_port_until_it_is_closed_or_listened_on() {
    let mut place = Place::new();
    let (reply, [reservation, ..]) = place.ask(1000, RequestKind::Bind, |request| bound(request, 0), None);
    let name = reply.local.address().expect("a name");
    assert!(place.vnic.host.ports().is_allowed(name.port()));
    let reservation = reservation.expect("a reservation");
    let (reply, [placeholder, ..]) =
        place.ask(1000, RequestKind::Listen, |request| request.backlog = 5, Some(&reservation));
    assert_eq!((reply.kind(), reply.local.address()), (ReplyKind::Listening, Some(name)));
    drop(reservation);
    place.run();
    place.peer_connects(name.port());
    let listener = placeholder.expect("a placeholder");
    let (stream, _end) = accept(&listener);
    let (adopted, _) = place.ask(1000, RequestKind::Adopt, |_| {}, Some(&stream));
    assert_eq!(adopted.kind(), ReplyKind::Stream);
    let (adopted, _) = place.ask(1000, RequestKind::Adopt, |_| {}, Some(&listener));
    assert_eq!((adopted.kind(), adopted.local.address()), (ReplyKind::Listener, Some(name)));
    let (_, [second, ..]) = place.ask(1000, RequestKind::Bind, |request| bound(request, 7001), None);
    drop(second);
    place.run();
    assert_eq!(place.vnic.shown().0.claims, 1);
}

#[test]
fn two_applications_of_one_vnic_talk_without_the_engine() {
    let mut place = Place::new();
    let listener = place.listen(7000);
    let to = |request: &mut Request| request.remote = Name::from(SocketAddr::from((SERVICE, 7000)));
    let (reply, received) = place.ask(1000, RequestKind::Connect, to, None);
    assert_eq!(reply.kind(), ReplyKind::Connected);
    let (_client, one) = stream(received);
    let (_server, other) = accept(&listener);
    assert_eq!(one.send().expect("nobody else").write(b"hello"), 5);
    assert_eq!(other.readable(), 5);
    assert_eq!(place.vnic.shown().0.connections, 0);
}
