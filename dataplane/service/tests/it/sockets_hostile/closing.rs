//! Users whose sockets hang in their close, and what that leaves to others.

use std::path::Path;

use rustix::io::Errno;
use sietch_protocol::closer::PeerSocket;

use super::users::{ONE, OTHER, as_user, is_root};
use super::*;

/// Sends a request about a socket whose last close hangs until the returned peer closes. When the
/// rest of the returned value is dropped, only the service has the socket. If the service reads the
/// request later than that, its close hangs; otherwise the drop may hang.
fn ask_to_hang(path: &Path, uid: u32) -> (TcpStream, impl Send + use<>) {
    let (one, peer) = lingering();
    let (holder, sender) = std::os::unix::net::UnixStream::pair().expect("descriptors");
    send_message(sender.as_fd(), b"x", &[one.as_fd()], SendFlags::empty()).expect("room");
    let query = request(RequestKind::Adopt);
    let sent = || {
        let socket = crate::sockets_fixture::open(path);
        match send_message(socket.as_fd(), query.as_bytes(), &[holder.as_fd()], SendFlags::NOSIGNAL) {
            // No thread is left for this user, whose connection is closed at once.
            Ok(_) | Err(Errno::PIPE | Errno::CONNRESET) => socket,
            Err(error) => panic!("there is room: {error}"),
        }
    };
    let socket = as_user(uid, sent).expect("root may take any uid");
    (peer, (one, sender, holder, socket))
}

/// The same where the service does not read before this returns.
fn hang(path: &Path, uid: u32) -> TcpStream {
    ask_to_hang(path, uid).0
}

/// Returns whether a user is served: it sends a request about a pipe, and the service closes its
/// copy.
fn is_served(service: &TestService, uid: u32) -> bool {
    let send_all = || {
        let (reader, writer) = rustix::pipe::pipe().expect("descriptors");
        match service.call(&request(RequestKind::Adopt), &[writer.as_fd()]) {
            Ok((reply, _)) => {
                assert_eq!(reply.kind(), ReplyKind::Unknown);
                drop(writer);
                assert_eq!(rustix::io::read(&reader, &mut [0; 1]), Ok(0));
                true
            }
            // It goes to the kernel, and at once.
            Err(error) => {
                assert_ne!(error, Errno::TIMEDOUT);
                false
            }
        }
    };
    as_user(uid, send_all).expect("root may take any uid")
}

#[test]
fn closing_that_hangs_for_as_many_users_as_can_leaves_one_thread_to_the_next() {
    let name = "closing_that_hangs_for_as_many_users_as_can_leaves_one_thread_to_the_next";
    if !is_root(name) {
        return;
    }
    if isolated::passes(name) {
        return;
    }
    let before = descriptors();
    // The first users get four threads each until half are in use, and all others one.
    let first = limits::CLOSERS / 2 / limits::CLOSERS_PER_USER;
    let others = limits::CLOSERS / 2 - 1;
    let mut uids = (ONE + 100..).flat_map(|uid| {
        let each = if uid < ONE + 100 + first as u32 { limits::CLOSERS_PER_USER } else { 1 };
        std::iter::repeat_n(uid, each)
    });
    let mut peers = Vec::new();
    let service = TestService::after(Rules::default(), |path| {
        let hanging = uids.by_ref().take(limits::CLOSERS / 2 + others);
        peers.extend(hanging.map(|uid| hang(path, uid)));
    });
    // These users have sent more than their share, which would use all that is left.
    for uid in ONE + 100..ONE + 100 + 2 * first as u32 {
        as_user(uid, || {
            let null = std::fs::File::open("/dev/null").expect("it is there");
            let socket = service.open();
            let query = request(RequestKind::Adopt);
            send_message(socket.as_fd(), query.as_bytes(), &[null.as_fd()], SendFlags::empty())
                .expect("room");
        });
    }
    for _ in 0..50 {
        // The thread counts as busy for a moment after the close before has returned.
        let begun = std::time::Instant::now();
        while !is_served(&service, OTHER) {
            assert!(begun.elapsed() < std::time::Duration::from_secs(10), "one thread is left");
            std::thread::yield_now();
        }
    }
    // The last one as well: no thread is left for others, which are refused at once.
    for uid in uids {
        if !is_served(&service, OTHER) {
            break;
        }
        // The drop in this process may hang.
        let path = service.socket.clone();
        let (sender, peer) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let (peer, rest) = ask_to_hang(&path, uid);
            sender.send(peer).expect("it is waited for");
            drop(rest);
        });
        peers.push(peer.recv().expect("the request is sent"));
    }
    let (reply, _) = service.administer(&request(RequestKind::List)).expect("an answer");
    assert_eq!(reply.kind(), ReplyKind::Listed, "administrators are served");
    drop(peers);
    while !is_served(&service, OTHER) {
        std::thread::yield_now();
    }
    drop(service);
    while descriptors() > before {
        std::thread::yield_now();
    }
}

#[test]
fn unclosed_descriptors_of_a_user_are_bounded_and_another_is_served() {
    let name = "unclosed_descriptors_of_a_user_are_bounded_and_another_is_served";
    if !is_root(name) {
        return;
    }
    if isolated::passes(name) {
        return;
    }
    let before = descriptors();
    let mut peers = Vec::new();
    let service = TestService::after(Rules::default(), |path| {
        peers.extend((0..limits::CLOSERS_PER_USER).map(|_| hang(path, ONE)));
    });
    let null = std::fs::File::open("/dev/null").expect("it is there");
    let query = request(RequestKind::Adopt);
    let send_all = |times: usize| {
        for _ in 0..times {
            let socket = service.open();
            let _ = send_message(socket.as_fd(), query.as_bytes(), &[null.as_fd()], SendFlags::empty());
        }
    };
    // Each request leaves two descriptors while the user is served. One that finds the user's other
    // requests open is rejected and leaves none.
    as_user(ONE, || send_all(limits::UNCLOSED / 2));
    let none_is_open = || service.until_by_itself(|shown| shown.requests == 0);
    none_is_open();
    while is_read(&service, ONE) {
        as_user(ONE, || send_all(100));
        none_is_open();
    }
    // Fewer than may be parked.
    as_user(ONE, || send_all(limits::PARKED_PER_USER - 200));
    assert!(is_served(&service, OTHER));
    assert!(!is_read(&service, ONE), "it has all that it may have");
    // The user's share, its open requests, and a few sockets that hold the parked rest.
    let most = limits::UNCLOSED + 2 * limits::REQUESTS_PER_USER + limits::UNCLOSED / 50;
    let has = descriptors() - before;
    assert!(has >= limits::UNCLOSED && has <= most, "{has} of {most}");
    drop(peers);
    while !is_served(&service, ONE) {
        std::thread::yield_now();
    }
    drop((service, null));
    while descriptors() > before {
        std::thread::yield_now();
    }
}

/// As before Linux 6.16, where an application can put descriptors into placeholders and doorbells.
#[test]
fn a_user_whose_ends_of_pairs_hang_in_their_close_is_left_to_the_kernel() {
    let name = "a_user_whose_ends_of_pairs_hang_in_their_close_is_left_to_the_kernel";
    if !is_root(name) {
        return;
    }
    if isolated::passes(name) {
        return;
    }
    let service = TestService::new();
    let end = |hangs: Option<TcpStream>| {
        let (one, other) = std::os::unix::net::UnixStream::pair().expect("descriptors");
        if let Some(hangs) = &hangs {
            send_message(one.as_fd(), b"x", &[hangs.as_fd()], SendFlags::empty()).expect("room");
        }
        drop((hangs, PeerSocket::new(other.into(), false, ONE)));
    };
    let peers: Vec<_> = (0..limits::CLOSERS_PER_USER)
        .map(|_| {
            let (one, peer) = lingering();
            end(Some(one));
            peer
        })
        .collect();
    assert!(is_read(&service, ONE), "these alone leave room");
    // All threads of the user hang, so each of these keeps its descriptor.
    (0..limits::UNCLOSED).for_each(|_| end(None));
    assert!(!is_read(&service, ONE), "it has all that it may have");
    assert!(is_read(&service, OTHER));
    drop(peers);
    while !is_read(&service, ONE) {
        std::thread::yield_now();
    }
}

/// Whether the service reads a request of this user that needs no close.
fn is_read(service: &TestService, uid: u32) -> bool {
    as_user(uid, || service.call(&request(RequestKind::Hello), &[]).is_ok()).expect("root may take any uid")
}
