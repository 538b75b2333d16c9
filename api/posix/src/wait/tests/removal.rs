//! Streams that the program removes, modifies and adds again between two waits, as event loops do
//! with every request. The kernel's epoll reports nothing of a removed socket, and puts one
//! that is added and ready behind all that are ready.

use super::*;

/// The data of what is ready, in the order of the report.
fn reported(epoll: &Epoll, timeout: c_int) -> Vec<u64> {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 8];
    let time = crate::wait::poll::milliseconds(timeout);
    // SAFETY: so many entries.
    let got = unsafe { epoll::wait(epoll.0, events.as_mut_ptr(), 8, time, ptr::null()) };
    events[..got.expect("epoll_wait")].iter().map(|event| event.u64).collect()
}

/// Three streams with their peers, registered for input and in use.
fn three() -> (Epoll, [(Stream, Peer); 3]) {
    let (epoll, streams) = (Epoll::new(), [(); 3].map(|()| pair()));
    for ((stream, peer), data) in streams.iter().zip(0..) {
        epoll.add(stream.0, IN, data);
        peer.send(b"hello");
        assert_eq!(reported(&epoll, 0), [data]);
        stream.receive();
    }
    (epoll, streams)
}

#[test]
fn a_removed_stream_is_silent_in_every_wait_until_it_is_added_again() {
    let (epoll, streams) = three();
    let (outer, (stream, peer)) = (Epoll::new(), &streams[1]);
    for data in 1..10 {
        epoll.remove(stream.0).expect("EPOLL_CTL_DEL");
        assert_eq!(epoll.remove(stream.0), Err(libc::ENOENT));
        assert_eq!(epoll.control(libc::EPOLL_CTL_MOD, stream.0, IN, 0), Err(libc::ENOENT));
        peer.send(b"hello");
        assert_eq!(reported(&epoll, 0), [0; 0], "polled");
        // From the second round on the next wait finds it on the list, or not any more.
        if data % 2 == 0 {
            assert_eq!(reported(&epoll, 5), [0; 0], "slept");
        }
        if data % 3 == 0 {
            outer.add(epoll.0, IN, 7);
            assert_eq!(reported(&outer, 5), [0; 0], "watched by another epoll");
            outer.remove(epoll.0).expect("EPOLL_CTL_DEL");
        }
        epoll.add(stream.0, IN, data);
        assert_eq!(epoll.control(libc::EPOLL_CTL_ADD, stream.0, IN, 0), Err(libc::EEXIST));
        assert_eq!(reported(&epoll, 0), [data]);
        stream.receive();
    }
}

#[test]
fn a_removed_stream_wakes_no_other_thread() {
    let (epoll, streams) = three();
    assert_eq!(reported(&epoll, 0), [0; 0]);
    epoll.remove(streams[0].0.0).expect("EPOLL_CTL_DEL");
    streams[0].1.send(b"hello");
    std::thread::scope(|threads| {
        let waiters = [(); 2].map(|()| threads.spawn(|| reported(&epoll, -1)));
        until_asleep(&streams[1].0);
        streams[2].1.send(b"hello");
        for waiter in waiters {
            assert_eq!(waiter.join().expect("a waiter"), [2]);
        }
    });
}

/// As `epoll` of the kernel answers the same calls on TCP sockets.
#[test]
fn an_added_stream_goes_behind_those_that_are_ready_and_a_modified_one_keeps_its_place() {
    let (epoll, [(a, peer_a), (b, peer_b), (c, peer_c)]) = three();
    let send = |peers: &[&Peer]| peers.iter().for_each(|peer| assert_eq!(peer.send(b"hello"), 5));
    let receive = || [&a, &b, &c].map(Stream::receive);
    let add_again = |stream: &Stream, data| {
        epoll.remove(stream.0).expect("EPOLL_CTL_DEL");
        epoll.add(stream.0, IN, data);
    };
    // The last that was reported is ready first until a wait has found it unready.
    send(&[&peer_a, &peer_b, &peer_c]);
    add_again(&a, 0);
    epoll.modify(b.0, IN, 1);
    assert_eq!(reported(&epoll, 0), [2, 1, 0]);
    receive();
    epoll.modify(a.0, IN, 0);
    add_again(&b, 1);
    send(&[&peer_c, &peer_b, &peer_a]);
    assert_eq!(reported(&epoll, 0), [2, 0, 1]);
    receive();
    // From here on none is ready, so the bytes decide.
    assert_eq!(reported(&epoll, 0), [0; 0]);
    epoll.modify(a.0, IN, 0);
    add_again(&b, 1);
    send(&[&peer_c, &peer_b, &peer_a]);
    assert_eq!(reported(&epoll, 0), [2, 1, 0]);
    receive();
    assert_eq!(reported(&epoll, 0), [0; 0]);
    // Room counts from the change on.
    send(&[&peer_c]);
    epoll.modify(a.0, IN | OUT, 0);
    send(&[&peer_b]);
    assert_eq!(reported(&epoll, 0), [2, 0, 1]);
}

#[test]
fn a_one_shot_that_was_reported_is_due_again_after_it_was_added_again() {
    let (epoll, streams) = three();
    let (stream, peer) = &streams[2];
    peer.send(b"hello");
    for _ in 0..3 {
        epoll.modify(stream.0, IN | ONCE, 2);
        assert_eq!(reported(&epoll, 0), [2]);
        assert_eq!(reported(&epoll, 0), [0; 0]);
        epoll.remove(stream.0).expect("EPOLL_CTL_DEL");
        epoll.add(stream.0, IN | ONCE, 2);
        assert_eq!(reported(&epoll, 5), [2]);
        assert_eq!(reported(&epoll, 5), [0; 0]);
    }
}
