//! A VNIC with real memory, real placeholders and a wire; applications are played by the test.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc::{Sender, channel};

use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, recv, socketpair};
use sietch_net::{CloseReason, Config, EventKind, FlowId};
use sietch_nic::wire::{WireQueue, pair};
use sietch_nic::{Frame, NicQueue, Offloads, TransmitError, Untrusted};
use sietch_protocol::socket_service::{
    Incoming, Name, REPLY_BYTES, Reply, ReplyKind, Request, RequestKind, receive_arrival,
};
use sietch_ring::stream::{Endpoint, Hangup, flag, option};

use super::*;
use crate::sockets::{Command, CommandSender, Listing, LocalConnection, Revocation};

mod exhaustion;

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
    fn tail(&self, frame: &Frame) -> Untrusted<'_> {
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

struct Scene {
    vnic: Vnic<Wire>,
    peer: Engine,
    peer_queue: WireQueue,
    requests: Sender<VnicRequest>,
    doorbell: OwnedFd,
    now: u64,
    closed: Vec<(FlowId, CloseReason)>,
    accepted: Vec<FlowId>,
    /// The commands that the socket service gets.
    commands: Receiver<Command>,
}

fn engine(address: Ipv4Addr, queue: &impl NicQueue) -> Engine {
    Engine::new(&Config::new(address, 24, [address.octets()[3]; 16]), queue.mac(), queue.mtu())
}

impl Scene {
    fn new() -> Self {
        let (queue, peer_queue) = pair([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1], 1500, 512);
        let (requests, received) = channel();
        let doorbell = eventfd(0, EventfdFlags::NONBLOCK).expect("a descriptor");
        let access = Access {
            uid: 1000,
            addresses: vec![SERVICE.into()],
            ports: vec![80..=80, 7000..=7999, 40_000..=50_000],
            peers: vec![(Ipv4Addr::new(10, 0, 0, 0).into(), 24)],
        };
        let served = engine(SERVICE, &queue);
        let own = doorbell.try_clone().expect("a descriptor");
        let (sender, commands) = channel();
        let socket_service =
            Some(CommandSender { commands: sender, doorbell: doorbell.try_clone().expect("a descriptor") });
        let vnic = Vnic::new("test".into(), access, Wire(queue), served, received, own, socket_service)
            .expect("descriptors");
        let peer = engine(PEER, &peer_queue);
        let (closed, accepted) = (Vec::new(), Vec::new());
        Self { vnic, peer, peer_queue, requests, doorbell, now: 1_000_000_000, closed, accepted, commands }
    }

    /// Runs both sides for some milliseconds.
    fn run(&mut self) {
        for _ in 0..200 {
            self.now += 100_000;
            self.vnic.poll(self.now).expect("the wire is whole");
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

    fn call(
        &mut self,
        uid: u32,
        kind: RequestKind,
        change: impl FnOnce(&mut Request),
        with: Option<&OwnedFd>,
    ) -> (Reply, Descriptors) {
        let own = self.send(uid, kind, change, with);
        self.run();
        answer(&own)
    }

    /// Sends a request, and returns the socket of its answer.
    fn send(
        &mut self,
        uid: u32,
        kind: RequestKind,
        change: impl FnOnce(&mut Request),
        with: Option<&OwnedFd>,
    ) -> OwnedFd {
        let (own, socket) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .expect("descriptors");
        let mut request = Request::new(kind, [5; 16]);
        change(&mut request);
        let mut descriptors = Descriptors::default();
        descriptors[0] = with.map(|fd| fd.try_clone().expect("a descriptor"));
        // As the socket service says it: here root came over the administrators' socket.
        let administers = uid == 0;
        let descriptors = descriptors.into();
        let request =
            VnicRequest { uid, administers, request, kind, descriptors, pair: None, dry_run: false, socket };
        self.requests.send(request).expect("it listens");
        rustix::io::write(&self.doorbell, &1_u64.to_ne_bytes()).expect("it is ours");
        own
    }

    fn listen(&mut self, port: u16) -> OwnedFd {
        let (reply, [placeholder, ..]) =
            self.call(1000, RequestKind::Listen, |request| bound(request, port), None);
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

fn answer(own: &OwnedFd) -> (Reply, Descriptors) {
    let (mut bytes, mut received) = ([0; REPLY_BYTES], Descriptors::default());
    let (length, _) =
        receive_message(own.as_fd(), &mut bytes, &mut received, RecvFlags::DONTWAIT).expect("an answer");
    (Reply::parse(&bytes[..length]).expect("a reply"), received)
}

fn bound(request: &mut Request, port: u16) {
    request.local = Name::from(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)));
    request.backlog = 8;
}

fn accept(listener: &OwnedFd) -> (OwnedFd, Endpoint) {
    let mut received = Descriptors::default();
    let arrived =
        receive_arrival(listener.as_fd(), RecvFlags::DONTWAIT, &mut received).expect("a client connected");
    assert!(matches!(arrived, Incoming::Arrived(_)));
    stream(received)
}

fn stream([placeholder, common, page, _]: Descriptors) -> (OwnedFd, Endpoint) {
    let (common, page) = (common.expect("memory"), page.expect("a page"));
    (placeholder.expect("a placeholder"), Endpoint::attach(common.as_fd(), page.as_fd()).expect("a stream"))
}

#[test]
fn an_application_serves_a_peer_and_its_death_frees_everything() {
    let mut scene = Scene::new();
    let listener = scene.listen(80);
    let flow = scene.peer_connects(80);
    let (placeholder, end) = accept(&listener);
    assert_eq!(scene.peer.send(flow, b"question"), 8);
    scene.run();
    let mut bytes = [0; 16];
    assert_eq!(end.receive().expect("no other user").read(&mut bytes), 8);
    assert_eq!(end.send().expect("no other user").write(b"answer"), 6);
    // The service sleeps for this connection by now, so it is notified.
    scene.run();
    assert!(end.data_notification().is_needed());
    rustix::net::send(&placeholder, &[0], SendFlags::NOSIGNAL).expect("the service holds it");
    scene.run();
    assert_eq!(scene.peer.read(flow, &mut bytes), 6);
    assert_eq!(&bytes[..6], b"answer");
    // Bytes are undelivered when the application closes everything, its listener included.
    assert_eq!(scene.peer.send(flow, b"unread"), 6);
    scene.run();
    drop((placeholder, end, listener));
    scene.run();
    assert_eq!(scene.closed, [(flow, CloseReason::Reset)]);
    let (counters, usages) = scene.vnic.report();
    assert_eq!((counters.connections, counters.bindings, usages.len()), (0, 0, 0));
    assert_eq!((scene.vnic.cookies.len(), scene.vnic.placeholders.len()), (0, 0));
    let refused = scene.peer_connects(80);
    assert_eq!(scene.closed.last(), Some(&(refused, CloseReason::Refused)));
    drop(scene.listen(80));
}

#[test]
fn a_program_that_writes_to_its_placeholder_is_reset_on_both_sides() {
    let mut scene = Scene::new();
    let listener = scene.listen(80);
    let open = scene.peer_connects(80);
    let (placeholder, end) = accept(&listener);
    rustix::net::send(&placeholder, b"io_uring", SendFlags::NOSIGNAL).expect("the service holds it");
    scene.run();
    assert_eq!(scene.closed, [(open, CloseReason::Reset)]);
    assert_eq!(end.hung_up(), Hangup::Reset);
    let closed = scene.peer_connects(80);
    let (placeholder, end) = accept(&listener);
    rustix::net::send(&placeholder, b"io_uring", SendFlags::NOSIGNAL).expect("the service holds it");
    drop((placeholder, end));
    scene.run();
    assert_eq!(scene.closed.last(), Some(&(closed, CloseReason::Reset)));
}

/// Shuts writing down past the library. Nothing is reported in each poll afterwards.
fn shut_down_past_the_library(scene: &mut Scene, placeholder: &OwnedFd) {
    rustix::net::shutdown(placeholder, rustix::net::Shutdown::Write).expect("the service holds it");
    scene.run();
    let before = scene.vnic.report().0.notifications;
    scene.run();
    assert_eq!(scene.vnic.report().0.notifications, before);
}

#[test]
fn a_program_that_shuts_its_placeholder_down_is_reset_in_every_phase() {
    let mut scene = Scene::new();
    let listener = scene.listen(80);
    let open = scene.peer_connects(80);
    let (placeholder, end) = accept(&listener);
    assert_eq!(end.send().expect("no other user").write(b"first"), 5);
    shut_down_past_the_library(&mut scene, &placeholder);
    assert_eq!(scene.closed, [(open, CloseReason::Reset)]);
    assert_eq!(end.hung_up(), Hangup::Reset);

    // Before the handshake is complete: nothing answers at that address.
    let nowhere = SocketAddr::from((Ipv4Addr::new(10, 0, 0, 77), 9000));
    let to_nowhere = |request: &mut Request| request.remote = Name::from(nowhere);
    let (reply, received) = scene.call(1000, RequestKind::Connect, to_nowhere, None);
    assert_eq!(reply.kind(), ReplyKind::Connecting);
    let (placeholder, end) = stream(received);
    shut_down_past_the_library(&mut scene, &placeholder);
    assert_eq!(end.private().take_error(), Errno::CONNRESET.raw_os_error() as u32);

    // After both sides have ended their streams.
    let closed = scene.peer_connects(80);
    let (placeholder, end) = accept(&listener);
    scene.peer.close(closed);
    scene.run();
    end.finish();
    rustix::net::send(&placeholder, &[0], SendFlags::NOSIGNAL).expect("the service holds it");
    scene.run();
    shut_down_past_the_library(&mut scene, &placeholder);
    assert_eq!(scene.vnic.report().0.connections, 0);
}

#[test]
fn a_slow_reader_reads_all_that_came_before_a_reset() {
    let mut scene = Scene::new();
    let listener = scene.listen(80);
    let flow = scene.peer_connects(80);
    let (placeholder, end) = accept(&listener);
    let mut sent = 0_u64;
    // Until ring, engine and peer are full.
    loop {
        let more: Vec<u8> = (sent..).take(1 << 20).map(|at| (at / 251) as u8).collect();
        let taken = scene.peer.send(flow, &more);
        let unacknowledged = scene.peer.unacknowledged(flow);
        sent += taken as u64;
        scene.run();
        if taken == 0 && scene.peer.unacknowledged(flow) == unacknowledged {
            break;
        }
    }
    let acknowledged = sent - scene.peer.unacknowledged(flow) as u64;
    assert!(acknowledged > 5 << 20, "{acknowledged} bytes: more than its ring holds");
    scene.peer.abort(flow);
    scene.run();
    assert_eq!(scene.vnic.host.engine().flows().count(), 0, "the engine is done with it");
    let mut read = 0_u64;
    let mut bytes = vec![0; 100_000];
    loop {
        let count = end.receive().expect("no other user").read(&mut bytes);
        for (at, byte) in (read..).zip(&bytes[..count]) {
            assert_eq!(*byte, (at / 251) as u8, "at {at}");
        }
        read += count as u64;
        if count == 0 && end.hung_up() == Hangup::Reset && scene.vnic.report().0.connections == 0 {
            break;
        }
        if end.room_notification().is_needed() {
            // The service may have delivered everything and closed.
            let _ = rustix::net::send(&placeholder, &[0], SendFlags::NOSIGNAL);
        }
        (0..20).for_each(|_| {
            scene.now += 100_000;
            scene.vnic.poll(scene.now).expect("the wire is whole");
        });
    }
    assert!((acknowledged..=sent).contains(&read), "{read} of {acknowledged}");
    assert_eq!(scene.vnic.report().0.connections, 0);
}

#[test]
fn an_application_connects_and_gets_the_result() {
    let mut scene = Scene::new();
    scene.peer.listen(9000, 8).expect("no other listener");
    let to =
        |port: u16| move |request: &mut Request| request.remote = Name::from(SocketAddr::from((PEER, port)));
    let (reply, received) = scene.call(1000, RequestKind::Connect, to(9000), None);
    assert_eq!(reply.kind(), ReplyKind::Connecting);
    let (placeholder, end) = stream(received);
    scene.run();
    assert_eq!(end.private().state.load(std::sync::atomic::Ordering::Acquire), 0);
    assert_eq!(recv(&placeholder, &mut [0_u8; 8][..], RecvFlags::DONTWAIT).map(|(count, _)| count), Ok(1));
    assert_eq!(end.send().expect("no other user").write(&[7; 5000]), 5000);
    scene.run();
    let _ = rustix::net::send(&placeholder, &[0], SendFlags::NOSIGNAL);
    scene.run();
    let flow = scene.accepted[0];
    assert_eq!(scene.peer.received(flow).0.len() + scene.peer.received(flow).1.len(), 5000);
    // The peer resets: the application gets the error after the delivered bytes.
    assert_eq!(scene.peer.send(flow, b"last words"), 10);
    scene.run();
    scene.peer.abort(flow);
    scene.run();
    assert_eq!((end.readable(), end.hung_up()), (10, Hangup::Reset));

    let (reply, received) = scene.call(1000, RequestKind::Connect, to(9001), None);
    assert_eq!(reply.kind(), ReplyKind::Connecting);
    let (_placeholder, end) = stream(received);
    scene.run();
    assert_eq!(end.private().take_error(), Errno::CONNREFUSED.raw_os_error() as u32);
}

#[test]
fn requests_without_permission_are_refused() {
    let mut scene = Scene::new();
    let refused =
        |(reply, _): (Reply, Descriptors)| (reply.kind() == ReplyKind::Refused).then(|| reply.error());
    let other = scene.call(1001, RequestKind::Listen, |request| bound(request, 80), None);
    assert_eq!(refused(other), Some(Errno::ACCESS));
    let filtered = scene.call(1000, RequestKind::Listen, |request| bound(request, 81), None);
    assert_eq!(refused(filtered), Some(Errno::ACCESS));
    let _held = scene.listen(80);
    let taken = scene.call(1000, RequestKind::Bind, |request| bound(request, 80), None);
    assert_eq!(refused(taken), Some(Errno::ADDRINUSE));
    let far = scene.call(
        1000,
        RequestKind::Connect,
        |request| request.remote = Name::from(SocketAddr::from(([10, 0, 1, 1], 80))),
        None,
    );
    assert_eq!(refused(far), Some(Errno::ACCESS));
    let loopback = scene.call(
        1000,
        RequestKind::Connect,
        |request| request.remote = Name::from(SocketAddr::from(([127, 0, 0, 1], 80))),
        None,
    );
    assert_eq!(loopback.0.kind(), ReplyKind::UseKernel);
}

#[test]
fn a_reservation_holds_a_port_until_it_is_closed_or_listened_on() {
    let mut scene = Scene::new();
    let (reply, [reservation, ..]) = scene.call(1000, RequestKind::Bind, |request| bound(request, 0), None);
    let name = reply.local.address().expect("a name");
    assert!(scene.vnic.host.ports().is_allowed(name.port()));
    let reservation = reservation.expect("a reservation");
    let (reply, [placeholder, ..]) =
        scene.call(1000, RequestKind::Listen, |request| request.backlog = 5, Some(&reservation));
    assert_eq!((reply.kind(), reply.local.address()), (ReplyKind::Listening, Some(name)));
    drop(reservation);
    scene.run();
    scene.peer_connects(name.port());
    let listener = placeholder.expect("a placeholder");
    let (stream, _end) = accept(&listener);
    let (adopted, _) = scene.call(1000, RequestKind::Adopt, |_| {}, Some(&stream));
    assert_eq!(adopted.kind(), ReplyKind::Stream);
    let (adopted, _) = scene.call(1000, RequestKind::Adopt, |_| {}, Some(&listener));
    assert_eq!((adopted.kind(), adopted.local.address()), (ReplyKind::Listener, Some(name)));
    assert_eq!(adopted.limit, 6, "its backlog, and one");
    let (_, [second, ..]) = scene.call(1000, RequestKind::Bind, |request| bound(request, 7001), None);
    drop(second);
    scene.run();
    assert_eq!(scene.vnic.report().0.bindings, 1);
}

#[test]
fn a_bound_name_is_reserved_before_listen() {
    let mut scene = Scene::new();
    let (_, [held, ..]) = scene.call(1000, RequestKind::Bind, |request| bound(request, 7002), None);
    let (second, _) = scene.call(1000, RequestKind::Bind, |request| bound(request, 7002), None);
    assert_eq!((second.kind(), second.error()), (ReplyKind::Refused, Errno::ADDRINUSE));
    drop(held);
    let (third, [_third, ..]) = scene.call(1000, RequestKind::Bind, |request| bound(request, 7002), None);
    assert_eq!(third.kind(), ReplyKind::Bound);
    // As on Linux: with SO_REUSEADDR both may be bound, and one may listen.
    let reused = |request: &mut Request| {
        bound(request, 7003);
        request.flags = sietch_protocol::socket_service::REUSED_ADDRESS;
    };
    let (_, [one, ..]) = scene.call(1000, RequestKind::Bind, reused, None);
    let (both, [other, ..]) = scene.call(1000, RequestKind::Bind, reused, None);
    assert_eq!(both.kind(), ReplyKind::Bound);
    let (listening, [_placeholder, ..]) = scene.call(1000, RequestKind::Listen, reused, one.as_ref());
    assert_eq!(listening.kind(), ReplyKind::Listening);
    let (refused, _) = scene.call(1000, RequestKind::Listen, reused, other.as_ref());
    assert_eq!((refused.kind(), refused.error()), (ReplyKind::Refused, Errno::ADDRINUSE));
}

#[test]
fn a_service_that_ends_resets_peers_and_applications_at_once() {
    let mut scene = Scene::new();
    let listener = scene.listen(80);
    let flow = scene.peer_connects(80);
    let (_placeholder, end) = accept(&listener);
    let waiting = scene.peer_connects(80);
    scene.vnic.end(Errno::NETDOWN);
    // The service runs no more: only bytes that it has sent already can arrive.
    scene.peer.receive(&mut scene.peer_queue, scene.now);
    let mut events = Vec::new();
    scene.peer.take_events(&mut events);
    let reset = |flow| {
        events.iter().any(|event| event.flow == flow && event.kind == EventKind::Closed(CloseReason::Reset))
    };
    assert!(reset(flow) && reset(waiting), "{events:?}");
    assert_eq!(end.hung_up(), Hangup::Reset);
    let (_waited, unaccepted) = accept(&listener);
    assert_eq!(unaccepted.hung_up(), Hangup::Reset);
    let closed = recv(&listener, &mut [0_u8; 8][..], RecvFlags::DONTWAIT).map(|(count, _)| count);
    assert!(matches!(closed, Ok(0) | Err(Errno::CONNRESET)), "{closed:?}");
}

/// An application's socket option, as its library sets it.
fn set(placeholder: &OwnedFd, end: &Endpoint, scene: usize, value: u64) {
    end.private().options[scene].store(option::SET | value, std::sync::atomic::Ordering::Release);
    end.announce();
    rustix::net::send(placeholder, &[0], SendFlags::NOSIGNAL).expect("the service holds it");
}

#[test]
fn socket_options_reach_the_engine_and_tcp_info_comes_back() {
    let mut scene = Scene::new();
    let listener = scene.listen(80);
    let flow = scene.peer_connects(80);
    let (placeholder, end) = accept(&listener);
    assert!(end.private().has(flag::SERVED));
    scene.run();
    let dctcp = b"dctcp".iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    set(&placeholder, &end, option::CONGESTION, dctcp);
    scene.run();
    let engine = scene.vnic.host.engine();
    assert!(engine.flows().any(|(_, info)| info.congestion == sietch_net::congestion::Kind::Dctcp));
    // Under a cork, small things wait, but not for ever.
    set(&placeholder, &end, option::CORK, 1);
    scene.run();
    assert_eq!(end.send().expect("no other user").write(b"header"), 6);
    set(&placeholder, &end, option::NO_DELAY, 1);
    scene.run();
    assert!(scene.peer.received(flow).0.is_empty());
    let call = |scene: &mut Scene| scene.call(1000, RequestKind::Information, |_| {}, Some(&placeholder)).0;
    let reply = call(&mut scene);
    assert_eq!((reply.kind(), reply.spare[0]), (ReplyKind::Information, 1));
    let word = |at: usize| u32::from_ne_bytes(reply.spare[at..at + 4].try_into().expect("four bytes"));
    assert_eq!((reply.limit, word(16)), (6, 1448));
    (0..10).for_each(|_| scene.run());
    assert_eq!(scene.peer.received(flow).0, b"header");
    // Further bytes wait under the cork; when it is removed, all of them leave at once.
    assert_eq!(end.send().expect("no other user").write(b"body"), 4);
    set(&placeholder, &end, option::NO_DELAY, 1);
    scene.run();
    assert_eq!(scene.peer.received(flow).0, b"header");
    set(&placeholder, &end, option::CORK, 0);
    scene.run();
    assert_eq!(scene.peer.received(flow).0, b"headerbody");
    // Silence is detected when the program requested that.
    set(&placeholder, &end, option::KEEP_IDLE, 1);
    set(&placeholder, &end, option::KEEP_COUNT, 1);
    set(&placeholder, &end, option::KEEP_INTERVAL, 1);
    set(&placeholder, &end, option::KEEPALIVE, 1);
    scene.run();
    for _ in 0..400 {
        scene.now += 10_000_000;
        scene.vnic.poll(scene.now).expect("the wire is whole");
    }
    assert_eq!(end.private().take_error(), Errno::TIMEDOUT.raw_os_error().unsigned_abs());
    assert_eq!(end.hung_up(), Hangup::Reset);
}

/// Writes until ring, engine and peer are full.
fn fill(scene: &mut Scene, placeholder: &OwnedFd, end: &Endpoint) {
    loop {
        let written = end.send().expect("no other user").write(&[7; 1 << 16]);
        if end.data_notification().is_needed() {
            let _ = rustix::net::send(placeholder, &[0], SendFlags::NOSIGNAL);
        }
        scene.run();
        if written == 0 {
            return;
        }
    }
}

#[test]
fn a_user_timeout_ends_the_connection_with_a_peer_that_does_not_read() {
    for set_first in [true, false] {
        let mut scene = Scene::new();
        let listener = scene.listen(80);
        let flow = scene.peer_connects(80);
        let (placeholder, end) = accept(&listener);
        if set_first {
            set(&placeholder, &end, option::USER_TIMEOUT, 1000);
        }
        fill(&mut scene, &placeholder, &end);
        if !set_first {
            set(&placeholder, &end, option::USER_TIMEOUT, 1000);
        }
        // A second and a half.
        (0..75).for_each(|_| scene.run());
        assert_eq!(end.private().take_error(), Errno::TIMEDOUT.raw_os_error().unsigned_abs());
        assert_eq!(end.hung_up(), Hangup::Reset);
        assert_eq!(scene.closed, [(flow, CloseReason::Reset)], "set first: {set_first}");
    }
}

#[test]
fn two_applications_of_one_vnic_are_connected_without_the_engine() {
    let mut scene = Scene::new();
    let listener = scene.listen(7000);
    let to = |request: &mut Request| request.remote = Name::from(SocketAddr::from((SERVICE, 7000)));
    let (reply, received) = scene.call(1000, RequestKind::Connect, to, None);
    assert_eq!(reply.kind(), ReplyKind::Connected);
    let (_client, one) = stream(received);
    let (_server, other) = accept(&listener);
    assert_eq!(one.send().expect("no other user").write(b"hello"), 5);
    assert_eq!(other.readable(), 5);
    assert_eq!(scene.vnic.report().0.connections, 0);
    // The socket service has it from now on: the holder of a placeholder gets what belongs to it.
    let Ok(Command::AddConnection(local)) = scene.commands.try_recv() else { panic!("no command was sent") };
    let LocalConnection { connection, cookies, memory } = *local;
    let cookie = |socket| rustix::net::sockopt::socket_cookie(socket).expect("a socket");
    assert_eq!(cookies, [cookie(&_client), cookie(&_server)]);
    assert_eq!((connection.client.uid, connection.names.peer), (1000, (SERVICE, 7000).into()));
    let again = Endpoint::attach(memory.common.as_fd(), memory.private[1].as_fd()).expect("the same end");
    assert_eq!(again.readable(), 5);
}

#[test]
fn a_local_connection_after_the_last_close_of_its_listener_is_refused() {
    let mut scene = Scene::new();
    let listener = scene.listen(7000);
    let to = |request: &mut Request| request.remote = Name::from(SocketAddr::from((SERVICE, 7000)));
    drop(listener);
    let own = scene.send(1000, RequestKind::Connect, to, None);
    // The iteration has read its events before the listener was closed.
    scene.vnic.take_requests();
    let (reply, _) = answer(&own);
    assert_eq!((reply.kind(), reply.error()), (ReplyKind::Refused, Errno::CONNREFUSED));
    scene.listen(7000);
}

#[test]
fn a_name_is_free_after_the_last_close_of_its_listener() {
    let mut scene = Scene::new();
    for _ in 0..2 {
        drop(scene.listen(7000));
        let own = scene.send(1000, RequestKind::Bind, |request| bound(request, 7000), None);
        // The iteration has read its events before the listener was closed.
        scene.vnic.take_requests();
        let (reply, reservation) = answer(&own);
        assert_eq!(reply.kind(), ReplyKind::Bound);
        drop(reservation);
        let own = scene.send(1000, RequestKind::Bind, |request| bound(request, 7000), None);
        scene.vnic.take_requests();
        assert_eq!(answer(&own).0.kind(), ReplyKind::Bound, "after the end of a reservation");
        scene.run();
    }
}

#[test]
fn many_local_connections_wait_until_they_are_accepted() {
    let mut scene = Scene::new();
    let deep = |request: &mut Request| {
        bound(request, 7000);
        request.backlog = 200;
    };
    let (_, [listener, ..]) = scene.call(1000, RequestKind::Listen, deep, None);
    let listener = listener.expect("a placeholder");
    let to = |request: &mut Request| request.remote = Name::from(SocketAddr::from((SERVICE, 7000)));
    let clients: Vec<Endpoint> = (0..150)
        .map(|_| {
            let (reply, received) = scene.call(1000, RequestKind::Connect, to, None);
            assert_eq!(reply.kind(), ReplyKind::Connected, "{}", reply.error());
            stream(received).1
        })
        .collect();
    for (index, client) in clients.iter().enumerate() {
        scene.vnic.wake();
        scene.run();
        let (_placeholder, end) = accept(&listener);
        assert_eq!(client.send().expect("no other user").write(&[index as u8]), 1);
        assert_eq!(end.readable(), 1, "in the order in which they came");
    }
}

#[test]
fn an_application_is_listed_and_revoked() {
    let mut scene = Scene::new();
    let listener = scene.listen(80);
    let flow = scene.peer_connects(80);
    let (_placeholder, end) = accept(&listener);
    scene.run();
    fn read<T: serde::de::DeserializeOwned>((reply, [file, ..]): (Reply, Descriptors)) -> T {
        assert_eq!(reply.kind(), ReplyKind::Listed, "{}", reply.error());
        let text = sietch_protocol::sealed::read(file.expect("a list"), 1 << 20).expect("sealed");
        serde_json::from_slice(&text).expect("JSON")
    }
    let listing: Listing = read(scene.call(0, RequestKind::List, |_| {}, None));
    let [application] = &listing.applications[..] else { panic!("{listing:?}") };
    assert_eq!((application.accepted, application.listeners, application.connections), (1, 1, 0));
    assert_eq!((application.vnic.as_deref(), application.memory > 0), (Some("test"), true));
    assert_eq!(listing.connections[0].local, (SERVICE, 80).into());
    let none: Listing = read(scene.call(77, RequestKind::List, |_| {}, None));
    assert!(none.applications.is_empty(), "another's: {none:?}");
    let (refused, _) = scene.call(77, RequestKind::Revoke, |_| {}, None);
    assert_eq!(refused.error(), Errno::SRCH);
    let cut: Revocation = read(scene.call(1000, RequestKind::Revoke, |_| {}, None));
    assert_eq!((cut.listeners, cut.connections.len()), (1, 1));
    scene.run();
    assert_eq!(scene.closed, [(flow, CloseReason::Reset)]);
    assert_eq!(end.hung_up(), Hangup::Reset);
    assert_eq!(scene.vnic.report().1, []);
    // The listener does not return: another has its name.
    let (refused, _) = scene.call(1000, RequestKind::Listen, |request| bound(request, 80), None);
    assert_eq!(refused.error(), Errno::ACCESS);
    let other = |request: &mut Request| {
        bound(request, 80);
        request.application = [6; 16];
    };
    let (listening, _) = scene.call(1000, RequestKind::Listen, other, None);
    assert_eq!(listening.kind(), ReplyKind::Listening);
}
