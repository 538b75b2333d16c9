//! An application that has something on the host's addresses and on VNICs, and its end.

use std::sync::mpsc::channel;
use std::time::Instant;

use rustix::event::{EventfdFlags, eventfd};
use rustix::net::SocketFlags;
use sietch_protocol::socket_service::{Request, RequestKind};
use sietch_ring::stream::{Memory, RegionSizes};
use sietch_service::sockets::page_names;
use sietch_service::sockets::{Application, Connection, Names};
use sietch_service::sockets::{Command, LocalConnection};
use sietch_service::sockets::{Listing, Revocation};
use sietch_service::tcp::VnicRequest;
use sietch_service::tcp::{RequestQueue, RevocationFilter, fan_out};

use super::*;

/// A VNIC on which the user with this uid has an application of the requested id, and the number of
/// times that it ended one.
struct Pretended {
    uid: u32,
    ended: usize,
}

impl Pretended {
    fn answer(&mut self, query: VnicRequest) {
        let mut cut = Revocation { users: [self.uid].into(), ..Revocation::default() };
        if query.request.user().is_some_and(|uid| uid != self.uid) {
            return query.refuse(Errno::SRCH);
        }
        if !query.dry_run {
            self.ended += 1;
            cut.connections.push([1, 2]);
        }
        let text = serde_json::to_vec(&cut).expect("a text");
        let file = sietch_protocol::sealed::make("test", &text).expect("memory");
        query.descriptors.answer(query.socket, Reply::new(ReplyKind::Listed), vec![file]);
    }
}

/// Revokes the application of this test's requests at a service with one VNIC.
fn revoke(service: &TestService, vnic: &mut Pretended, query: &Request) -> Result<Revocation, Errno> {
    let (vnics, queries) = channel();
    service.send(Command::Vnics(vnics));
    let (orders, received) = channel();
    let doorbell = eventfd(0, EventfdFlags::NONBLOCK).expect("a descriptor");
    std::thread::scope(|scope| {
        let socket_service = service.command_sender();
        scope.spawn(move || {
            let query: VnicRequest = queries.recv().expect("the service sends a request");
            // When it is dropped the VNIC gets no more requests.
            let orders = orders;
            let line = RequestQueue { requests: &orders, doorbell: &doorbell };
            fan_out(query, std::iter::once(line), Some(&socket_service), &mut RevocationFilter::default());
        });
        scope.spawn(move || received.into_iter().for_each(|query| vnic.answer(query)));
        let (reply, descriptors) = service.administer(query).expect("an answer");
        if reply.kind() == ReplyKind::Refused {
            return Err(reply.error());
        }
        let file = descriptors[0].as_ref().expect("a list");
        let text = sietch_protocol::sealed::read(file, 1 << 20).expect("sealed");
        Ok(serde_json::from_slice(&text).expect("a list"))
    })
}

#[test]
fn an_id_that_two_users_have_ends_nothing() {
    let service = TestService::new();
    let own = rustix::process::geteuid().as_raw();
    let (placeholder, address) = listen(&service, "127.0.0.1:0", 16);
    let query = request(RequestKind::Revoke);
    let mut vnic = Pretended { uid: own + 1, ended: 0 };
    assert_eq!(revoke(&service, &mut vnic, &query), Err(Errno::NOTUNIQ));
    assert_eq!(vnic.ended, 0, "a dry run only checks the owner");
    assert_eq!(connect(&service, address).0.kind(), ReplyKind::Connected, "nothing was ended");
    // A request that names the user ends that user's application.
    let of = |uid| {
        let mut query = query;
        query.set_user(uid);
        query
    };
    let cut = revoke(&service, &mut vnic, &of(own + 1)).expect("one is meant");
    assert_eq!((cut.listeners, cut.connections.len(), vnic.ended), (0, 1, 1));
    assert_eq!(connect(&service, address).0.kind(), ReplyKind::Connected, "it is the other's");
    let cut = revoke(&service, &mut vnic, &of(own)).expect("one is meant");
    assert_eq!((cut.listeners, cut.users, vnic.ended), (1, [own].into(), 1));
    drop(placeholder);
}

#[test]
fn an_application_on_host_and_vnic_ends_on_both() {
    let service = TestService::new();
    let own = rustix::process::geteuid().as_raw();
    let _placeholder = listen(&service, "127.0.0.1:0", 16);
    let query = request(RequestKind::Revoke);
    let mut vnic = Pretended { uid: own, ended: 0 };
    let cut = revoke(&service, &mut vnic, &query).expect("one user's");
    assert_eq!((cut.listeners, cut.connections, cut.users, vnic.ended), (1, vec![[1, 2]], [own].into(), 1));
    let kernel = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let mut again = request(RequestKind::Listen);
    again.backlog = 1;
    let (reply, _) = service.call(&again, &[kernel.as_fd()]).expect("an answer");
    assert_eq!(reply.error(), Errno::ACCESS, "its requests are refused");
    // The second answer says that the application has nothing on the host any more, and still has
    // something on the VNIC.
    let cut = revoke(&service, &mut vnic, &query).expect("one user's");
    assert_eq!((cut.listeners, vnic.ended), (0, 2));
}

#[test]
fn a_revocation_with_a_user_ends_here_before_vnics_are_asked() {
    let service = TestService::new();
    let own = rustix::process::geteuid().as_raw();
    let (placeholder, address) = listen(&service, "127.0.0.1:0", 16);
    let (_, ends) = connect(&service, address);
    arrival(&placeholder);
    let (vnics, queries) = channel::<VnicRequest>();
    service.send(Command::Vnics(vnics));
    let mut query = request(RequestKind::Revoke);
    query.set_user(own);
    let cut = std::thread::scope(|scope| {
        let revoked = scope.spawn(|| service.administer(&query).expect("an answer"));
        let revocation = queries.recv().expect("the service sends a request");
        // No VNIC has answered yet.
        assert_eq!(service.shown().listeners, 0);
        let end = sietch_ring::stream::Endpoint::attach(
            ends[1].as_ref().expect("memory").as_fd(),
            ends[2].as_ref().expect("a private page").as_fd(),
        );
        let state = end.expect("ours").private().state.load(std::sync::atomic::Ordering::Relaxed);
        assert_eq!(state, sietch_ring::stream::state::FAILED);
        fan_out(
            revocation,
            std::iter::empty(),
            Some(&service.command_sender()),
            &mut RevocationFilter::default(),
        );
        service.send(Command::Sweep);
        let (reply, descriptors) = revoked.join().expect("no panic");
        assert_eq!(reply.kind(), ReplyKind::Listed);
        let text = sietch_protocol::sealed::read(descriptors[0].as_ref().expect("a list"), 1 << 20);
        serde_json::from_slice::<Revocation>(&text.expect("sealed")).expect("a list")
    });
    // Each is reported once, though it was found twice.
    assert_eq!((cut.listeners, cut.connections.len(), cut.users), (1, 1, [own].into()));
    assert_eq!(service.shown().counters.revoked, 1);
}

#[test]
fn all_vnics_get_a_request_at_the_same_time() {
    let (lines, queries): (Vec<_>, Vec<_>) = (0..2).map(|_| channel::<VnicRequest>()).unzip();
    let doorbell = eventfd(0, EventfdFlags::NONBLOCK).expect("a descriptor");
    let (own, socket) = rustix::net::socketpair(
        AddressFamily::UNIX,
        rustix::net::SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .expect("descriptors");
    let (request, kind, descriptors) =
        (request(RequestKind::List), RequestKind::List, Descriptors::default().into());
    let query = VnicRequest {
        uid: 0,
        administers: true,
        request,
        kind,
        descriptors,
        pair: None,
        dry_run: false,
        socket,
    };
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // Each answers when both have the request.
            let both: Vec<VnicRequest> = queries.iter().filter_map(|query| query.recv().ok()).collect();
            for query in both {
                let listing = Listing { omitted: 1, ..Listing::default() };
                let text = serde_json::to_vec(&listing).expect("a text");
                let file = sietch_protocol::sealed::make("test", &text).expect("memory");
                query.descriptors.answer(query.socket, Reply::new(ReplyKind::Listed), vec![file]);
            }
        });
        let lines: Vec<_> =
            lines.iter().map(|orders| RequestQueue { requests: orders, doorbell: &doorbell }).collect();
        fan_out(query, lines.into_iter(), None, &mut RevocationFilter::default());
    });
    drop(lines);
    let (mut bytes, mut received) = ([0; 512], Descriptors::default());
    sietch_protocol::socket_service::receive_message(
        own.as_fd(),
        &mut bytes,
        &mut received,
        rustix::net::RecvFlags::empty(),
    )
    .expect("an answer");
    let text = sietch_protocol::sealed::read(received[0].as_ref().expect("a list"), 1 << 20);
    let listing: Listing = serde_json::from_slice(&text.expect("sealed")).expect("a list");
    assert_eq!(listing.omitted, 2, "both have answered in time");
}

#[test]
fn requests_queued_behind_a_revocation_are_refused() {
    let service = TestService::new();
    let _placeholder = listen(&service, "127.0.0.1:0", 16);
    let (vnics, queries) = channel::<VnicRequest>();
    service.send(Command::Vnics(vnics));
    let mut of_vnic = request(RequestKind::Connect);
    of_vnic.set_vnic("v0");
    of_vnic.remote = std::net::SocketAddr::from(([10, 0, 0, 3], 80)).into();
    let mut of_another = of_vnic;
    of_another.application = [8; 16];
    std::thread::scope(|scope| {
        let revoked = scope.spawn(|| service.administer(&request(RequestKind::Revoke)).expect("an answer").0);
        let revocation = queries.recv().expect("the service sends a request");
        let connected = [of_vnic, of_another].map(|query| {
            let service = &service;
            let connected = scope.spawn(move || service.call(&query, &[]).expect("an answer").0);
            (connected, queries.recv().expect("the service passes it on: nothing is revoked yet"))
        });
        // The application has nothing on any VNIC, and no such VNIC exists.
        let mut filter = RevocationFilter::default();
        fan_out(revocation, std::iter::empty(), Some(&service.command_sender()), &mut filter);
        let answers = connected.map(|(connected, query)| {
            if let Some(admitted) = filter.admit(query) {
                admitted.refuse(Errno::NODEV);
            }
            connected.join().expect("no panic").error()
        });
        assert_eq!(answers, [Errno::ACCESS, Errno::NODEV], "another application's is admitted");
        service.send(Command::Sweep);
        assert_eq!(revoked.join().expect("no panic").kind(), ReplyKind::Listed);
    });
    // From now on the service itself refuses it.
    assert_eq!(service.call(&of_vnic, &[]).expect("an answer").0.error(), Errno::ACCESS);
}

#[test]
fn a_program_that_closes_everything_meanwhile_is_revoked_as_well() {
    let service = TestService::new();
    let (placeholder, _) = listen(&service, "127.0.0.1:0", 16);
    let (vnics, queries) = channel::<VnicRequest>();
    service.send(Command::Vnics(vnics));
    std::thread::scope(|scope| {
        let revoked = scope.spawn(|| service.administer(&request(RequestKind::Revoke)).expect("an answer").0);
        let revocation = queries.recv().expect("the service sends a request");
        drop(placeholder);
        service.until(|shown| shown.listeners == 0);
        fan_out(
            revocation,
            std::iter::empty(),
            Some(&service.command_sender()),
            &mut RevocationFilter::default(),
        );
        service.send(Command::Sweep);
        assert_eq!(revoked.join().expect("no panic").kind(), ReplyKind::Listed);
    });
    let kernel = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let mut again = request(RequestKind::Listen);
    again.backlog = 1;
    let (reply, _) = service.call(&again, &[kernel.as_fd()]).expect("an answer");
    assert_eq!(reply.error(), Errno::ACCESS);
}

/// Adds a connection that was made on a VNIC, whose end the kernel does not report. The returned
/// descriptors hold it.
fn enter(service: &TestService) -> [OwnedFd; 2] {
    let uid = rustix::process::geteuid().as_raw();
    let application = Application { uid, id: [7; 16] };
    let names = Names { local: ([10, 0, 0, 2], 1000).into(), peer: ([10, 0, 0, 2], 80).into() };
    let accepted = Names { local: names.peer, peer: names.local };
    let connection =
        Connection { client: application, server: application, namespace: 1 << 63, names, accepted };
    let memory = Memory::create(
        RegionSizes { smallest: 14, largest: 22 },
        [page_names(names.local, names.peer), page_names(names.peer, names.local)],
    );
    let memory = memory.expect("memory");
    let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    let pair: [OwnedFd; 2] = pair.expect("descriptors").into();
    let cookies = pair.each_ref().map(|end| rustix::net::sockopt::socket_cookie(end).expect("a socket"));
    service.send(Command::AddConnection(Box::new(LocalConnection { connection, memory, cookies })));
    pair
}

#[test]
fn lists_in_a_row_sweep_once() {
    let service = TestService::new();
    let held = enter(&service);
    let list = || {
        let (reply, _) = service.administer(&request(RequestKind::List)).expect("an answer");
        assert_eq!(reply.kind(), ReplyKind::Listed);
    };
    let begin = Instant::now();
    (0..100).for_each(|_| list());
    let counters = service.shown().counters;
    let seconds = begin.elapsed().as_secs();
    assert!(counters.sweeps <= 2 + seconds, "{} sweeps in {seconds} s", counters.sweeps);
    drop(held);
    // But the sweep finds that the connection was closed.
    service.until_by_itself(|shown| {
        list();
        shown.connections == 0
    });
}
