//! Several users at one service: what no user may do, and what no user can take from the others.
//!
//! A thread of root can run as another user ([`as_user`]). Without root these tests print that they
//! were skipped.

use rustix::io::Errno;
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use sietch_protocol::socket_service::{REPLY_BYTES, Reply, Request, RequestKind};
use sietch_service::sockets::Listing;

use super::*;

/// Two users as which nothing else runs here.
pub(super) const ONE: u32 = 64_001;
pub(super) const OTHER: u32 = 64_002;

/// Runs `what` on a thread of this user; `None` if this process may not.
pub(super) fn as_user<R: Send>(uid: u32, what: impl FnOnce() -> R + Send) -> Option<R> {
    let become_it = move || {
        let (group, user) = (rustix::process::Gid::from_raw(uid), rustix::process::Uid::from_raw(uid));
        set_thread_groups(&[]).ok()?;
        set_thread_res_gid(group, group, group).ok()?;
        set_thread_res_uid(user, user, user).ok()?;
        Some(what())
    };
    std::thread::scope(|scope| scope.spawn(become_it).join().expect("it passes"))
}

/// Whether tests of several users can run; prints that they were skipped if not.
pub(super) fn is_root(name: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED {name}: needs root, to be several users");
    }
    root
}

/// Sends a request and does not wait for the answer.
fn send_request(path: &std::path::Path, query: &Request, sent: &impl std::os::fd::AsFd) -> OwnedFd {
    let socket = crate::sockets_fixture::open(path);
    send_message(socket.as_fd(), query.as_bytes(), &[sent.as_fd()], SendFlags::empty()).expect("room");
    socket
}

/// The answer to that.
fn answer(socket: &OwnedFd) -> (Reply, Descriptors) {
    let (mut bytes, mut received) = ([0; REPLY_BYTES], Descriptors::default());
    let found = receive_message(socket.as_fd(), &mut bytes, &mut received, RecvFlags::empty());
    let (length, _) = found.expect("an answer");
    (Reply::parse(&bytes[..length]).expect("an answer"), received)
}

#[test]
fn requests_of_one_user_in_one_iteration_are_bounded() {
    let name = "requests_of_one_user_in_one_iteration_are_bounded";
    if !is_root(name) {
        return;
    }
    let kernel = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let mut listens = request(RequestKind::Listen);
    listens.backlog = 1024;
    let mut connects = request(RequestKind::Connect);
    connects.remote = kernel.local_addr().expect("bound").into();
    let many = 6 * limits::BATCH_PER_USER;
    let (mut listener, mut crowd, mut other) = (None, Vec::new(), None);
    // All of it waits when the service begins.
    let service = TestService::after(Rules::default(), |path| {
        let connect = || send_request(path, &connects, &client(AddressFamily::INET));
        listener = as_user(OTHER, || send_request(path, &listens, &kernel));
        crowd = as_user(ONE, || (0..many).map(|_| connect()).collect()).expect("root may take any uid");
        other = as_user(OTHER, connect);
    });
    let listener = answer(&listener.expect("root may take any uid"));
    assert_eq!(listener.0.kind(), ReplyKind::Listening);
    // Ports are given one after the other.
    let port = |socket: &OwnedFd| {
        let (reply, kept) = answer(socket);
        assert_eq!(reply.kind(), ReplyKind::Connected);
        (reply.local.address().expect("a name").port(), kept)
    };
    let first: Vec<_> = crowd.iter().map(port).collect();
    let (own, _kept) = port(&other.expect("root may take any uid"));
    let earliest = first[0].0;
    let before = first.iter().filter(|(one, _)| one.wrapping_sub(earliest) < own.wrapping_sub(earliest));
    // The other is admitted with the fourth batch of new requests, and answered in that iteration.
    let most = (many + 2).div_ceil(limits::BATCH) * limits::BATCH_PER_USER;
    assert!(before.clone().count() <= most && most < many, "{} of {many}", before.count());
    drop((service, listener, kernel));
}

#[test]
fn a_user_that_fills_the_queue_of_requests_delays_another_by_a_few_iterations() {
    let name = "a_user_that_fills_the_queue_of_requests_delays_another_by_a_few_iterations";
    if !is_root(name) || isolated::passes(name) {
        return;
    }
    limits::raise_descriptors();
    let kernel = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let mut listens = request(RequestKind::Listen);
    listens.backlog = 4096;
    let mut connects = request(RequestKind::Connect);
    connects.remote = kernel.local_addr().expect("bound").into();
    // With the listener and the other's, as many as the queue of the test's service takes.
    let many: usize = 1022;
    let socket = client(AddressFamily::INET);
    let (mut listener, mut crowd, mut other) = (None, Vec::new(), None);
    // All of it waits when the service begins.
    let service = TestService::after(Rules::default(), |path| {
        let connect = || send_request(path, &connects, &socket);
        listener = as_user(OTHER, || send_request(path, &listens, &kernel));
        crowd = as_user(ONE, || (0..many).map(|_| connect()).collect()).expect("root may take any uid");
        other = as_user(OTHER, connect);
    });
    let listener = answer(&listener.expect("root may take any uid"));
    assert_eq!(listener.0.kind(), ReplyKind::Listening);
    let (reply, _kept) = answer(&other.expect("root may take any uid"));
    assert_eq!(reply.kind(), ReplyKind::Connected);
    let own = reply.local.address().expect("a name").port();
    let port = |socket: &OwnedFd| {
        let (mut bytes, mut received) = ([0; REPLY_BYTES], Descriptors::default());
        let found = receive_message(socket.as_fd(), &mut bytes, &mut received, RecvFlags::empty());
        let reply = Reply::parse(&bytes[..found.map_or(0, |(length, _)| length)]).ok()?;
        Some((reply.local.address().expect("a name").port(), received))
    };
    let answered: Vec<_> = crowd.iter().filter_map(port).collect();
    // Ports are given one after the other.
    let first = answered[0].0;
    let early = answered.iter().filter(|(one, _)| one.wrapping_sub(first) < own.wrapping_sub(first)).count();
    // The iterations that show that the queue is crowded, and those that empty it.
    let most = (limits::CROWDED + many.div_ceil(limits::BATCH_CROWDED)) * limits::BATCH_PER_USER;
    assert!(early <= most, "{early} of {many} were answered before");
    let rejected = many - answered.len();
    assert!(rejected > 0, "more than a user may have open leave the queue");
    // An ordinary burst of a user's programs is not rejected.
    assert!(answered.len() >= limits::REQUESTS_PER_USER + limits::CROWDED * limits::BATCH_PER_USER);
    assert_eq!(service.shown().counters.rejected, rejected as u64);
}

fn list(found: Result<(Reply, Descriptors), Errno>) -> Listing {
    let (reply, descriptors) = found.expect("an answer");
    assert_eq!(reply.kind(), ReplyKind::Listed);
    let file = descriptors[0].as_ref().expect("a list");
    let text = sietch_protocol::sealed::read(file, 1 << 20).expect("sealed");
    serde_json::from_slice(&text).expect("a list")
}

#[test]
fn no_uid_administers_over_the_programs_socket() {
    let name = "no_uid_administers_over_the_programs_socket";
    if !is_root(name) {
        return;
    }
    let service = TestService::new();
    let (_placeholder, address) = listen(&service, "127.0.0.1:0", 16);
    // This process is root, and started the service. A container's root has the same uid.
    let seen = list(service.call(&request(RequestKind::List), &[]));
    assert_eq!(seen, Listing::default());
    for kind in [RequestKind::Revoke, RequestKind::TakeOver] {
        let (reply, _) = service.call(&request(kind), &[]).expect("an answer");
        assert_eq!(reply.kind(), ReplyKind::Refused, "{kind:?}");
    }
    assert_eq!(connect(&service, address).0.kind(), ReplyKind::Connected);
    assert_eq!(list(service.administer(&request(RequestKind::List))).listeners.len(), 1);
    // And administrators do nothing else over theirs.
    let (reply, _) = service.administer(&request(RequestKind::Connect)).expect("an answer");
    assert_eq!((reply.kind(), reply.error()), (ReplyKind::Refused, Errno::OPNOTSUPP));
}

#[test]
fn a_user_sees_and_ends_its_own_and_cannot_reach_the_administrators_socket() {
    let name = "a_user_sees_and_ends_its_own_and_cannot_reach_the_administrators_socket";
    if !is_root(name) {
        return;
    }
    let service = TestService::new();
    let (_placeholder, address) = listen(&service, "127.0.0.1:0", 16);
    let done = as_user(ONE, || {
        let (mine, own) = listen(&service, "127.0.0.1:0", 16);
        let seen = list(service.call(&request(RequestKind::List), &[]));
        assert_eq!(seen.listeners.iter().map(|found| found.name).collect::<Vec<_>>(), [own]);
        assert_eq!(service.administer(&request(RequestKind::List)).err(), Some(Errno::ACCESS));
        let (reply, _) = service.call(&request(RequestKind::TakeOver), &[]).expect("an answer");
        assert_eq!(reply.kind(), ReplyKind::Refused);
        let (reply, _) = service.call(&Request::new(RequestKind::Revoke, [7; 16]), &[]).expect("an answer");
        assert_eq!(reply.kind(), ReplyKind::Listed);
        drop(mine);
    });
    assert!(done.is_some(), "root may take any uid");
    // The other application of the same number is as it was.
    let left = list(service.administer(&request(RequestKind::List)));
    assert_eq!(left.listeners.iter().map(|found| found.name).collect::<Vec<_>>(), [address]);
    let (again, _) = listen(&service, "127.0.0.1:0", 16);
    drop(again);
}

#[test]
fn a_user_with_all_its_requests_open_leaves_some_to_another() {
    let name = "a_user_with_all_its_requests_open_leaves_some_to_another";
    if !is_root(name) {
        return;
    }
    let service = TestService::new();
    let silent = || (0..limits::REQUESTS_PER_USER + 20).map(|_| service.open()).collect::<Vec<_>>();
    let silent = as_user(ONE, silent).expect("root may take any uid");
    as_user(OTHER, || {
        let (mine, address) = listen(&service, "127.0.0.1:0", 16);
        assert_eq!(connect(&service, address).0.kind(), ReplyKind::Connected);
        arrival(&mine);
    });
    assert_eq!(
        service.administer(&request(RequestKind::List)).expect("an answer").0.kind(),
        ReplyKind::Listed
    );
    drop(silent);
}

#[test]
fn a_user_that_lists_again_and_again_is_refused_and_another_is_not() {
    let name = "a_user_that_lists_again_and_again_is_refused_and_another_is_not";
    if !is_root(name) {
        return;
    }
    let service = TestService::new();
    let list = || service.call(&request(RequestKind::List), &[]).expect("an answer").0;
    let refused = || {
        (0..100 * limits::LISTS_PER_SECOND).map(|_| list()).find(|reply| reply.kind() == ReplyKind::Refused)
    };
    let refused = as_user(ONE, refused).expect("root may take any uid");
    assert_eq!(refused.map(|reply| reply.error()), Some(Errno::AGAIN));
    as_user(OTHER, || assert_eq!(list().kind(), ReplyKind::Listed));
    assert!(service.shown().counters.limited > 0);
}

#[test]
fn closing_that_hangs_for_one_user_does_not_hang_for_another() {
    let name = "closing_that_hangs_for_one_user_does_not_hang_for_another";
    if !is_root(name) {
        return;
    }
    if isolated::passes("closing_that_hangs_for_one_user_does_not_hang_for_another") {
        return;
    }
    let service = TestService::new();
    service.shown();
    let before = descriptors();
    let mut peers = Vec::new();
    let mut closes = Vec::new();
    // Ten times as many as one user's threads.
    for _ in 0..10 * limits::CLOSERS_PER_USER {
        let (one, peer) = lingering();
        peers.push(peer);
        let (holder, sender) = std::os::unix::net::UnixStream::pair().expect("descriptors");
        send_message(sender.as_fd(), b"x", &[one.as_fd()], SendFlags::empty()).expect("room");
        let query = request(RequestKind::Adopt);
        let socket = as_user(ONE, || {
            let socket = service.open();
            send_message(socket.as_fd(), query.as_bytes(), &[holder.as_fd()], SendFlags::empty())
                .expect("room");
            socket
        });
        closes.push(std::thread::spawn(move || drop((one, holder, sender, socket))));
    }
    as_user(OTHER, || {
        let (reader, writer) = rustix::pipe::pipe().expect("descriptors");
        let (reply, _) = service.call(&request(RequestKind::Adopt), &[writer.as_fd()]).expect("an answer");
        assert_eq!(reply.kind(), ReplyKind::Unknown);
        drop(writer);
        // The end comes when the service has closed its copy.
        assert_eq!(rustix::io::read(&reader, &mut [0; 1]), Ok(0));
    });
    drop(peers);
    closes.into_iter().for_each(|close| close.join().expect("it only closes"));
    assert_returns(&service, before);
}

/// What a hostile user does: invalid requests, floods of silent ones, listeners that never accept,
/// connections that are never accepted.
fn storm(service: &TestService, target: SocketAddr, seed: u64, over: &std::sync::atomic::AtomicBool) {
    let mut dice = Dice(seed);
    let mut held: Vec<OwnedFd> = Vec::new();
    while !over.load(std::sync::atomic::Ordering::Relaxed) {
        let socket = service.open();
        let null = std::fs::File::open("/dev/null").expect("it is there");
        match dice.throw(4) {
            0 => {
                let bytes: Vec<u8> = (0..1 + dice.throw(300)).map(|_| dice.throw(256) as u8).collect();
                let _ = send_message(socket.as_fd(), &bytes, &[null.as_fd()], SendFlags::DONTWAIT);
            }
            1 => held.push(socket),
            kind => {
                let mut query = request(if kind == 2 { RequestKind::Listen } else { RequestKind::Connect });
                query.application = [dice.throw(256) as u8; 16];
                (query.backlog, query.remote) = (dice.throw(5000) as u32, target.into());
                let kernel = client(AddressFamily::INET);
                if kind == 2 {
                    let any = SocketAddr::from(([127, 0, 0, 1], 0));
                    let bound =
                        rustix::net::bind(&kernel, &any).and_then(|()| rustix::net::listen(&kernel, 1));
                    bound.expect("a free port");
                }
                // The service may refuse, reject or serve it: each is right.
                let mut received = Descriptors::default();
                let path = std::os::unix::ffi::OsStrExt::as_bytes(service.socket.as_os_str());
                let _ = call(path, &query, &[kernel.as_fd()], &mut received);
                held.extend(received.into_iter().flatten());
            }
        }
        if held.len() > 500 {
            held.clear();
        }
    }
}

#[test]
fn users_that_flood_the_service_together_leave_another_undisturbed() {
    let name = "users_that_flood_the_service_together_leave_another_undisturbed";
    if !is_root(name) {
        return;
    }
    if isolated::passes("users_that_flood_the_service_together_leave_another_undisturbed") {
        return;
    }
    let service = TestService::new();
    service.shown();
    let before = descriptors();
    // A listener of another user, which accepts none of their connections.
    let (victim, target) = listen(&service, "127.0.0.1:0", 64);
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let hostile = [ONE, ONE + 10, ONE + 20].map(|uid| {
            let (service, over) = (&service, &over);
            scope.spawn(move || as_user(uid, || storm(service, target, uid.into(), over)))
        });
        as_user(OTHER, || {
            for _ in 0..200 {
                let (mine, address) = listen(&service, "127.0.0.1:0", 16);
                let (reply, _own) = connect(&service, address);
                assert_eq!(reply.kind(), ReplyKind::Connected);
                arrival(&mine);
            }
        });
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        hostile.into_iter().for_each(|one| assert!(one.join().expect("it passes").is_some()));
    });
    drop(victim);
    assert_returns(&service, before);
}
