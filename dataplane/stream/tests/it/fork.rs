//! A child of a fork drops what its parent uses.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::AsFd as _;
use std::rc::Rc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sietch_ring::stream::Endpoint;
use sietch_stream::peer::notify_data;
use sietch_stream::placeholder::Direct;
use sietch_stream::poller::{Interest, Poller, SleepLimit};
use sietch_stream::{Connection, Listener};

use crate::played_service::{PlayedService, arrive};

/// Runs `act` in a child of a fork.
fn in_child(act: impl FnOnce()) {
    // SAFETY: the allocator is usable in a child; the child takes no other lock of this process.
    let child = unsafe { libc::fork() };
    if child == 0 {
        act();
        // SAFETY: ends the child, without what the parent would run at its end.
        unsafe { libc::_exit(0) };
    }
    let mut status = -1;
    // SAFETY: the child of above.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
}

#[test]
fn a_child_that_drops_everything_leaves_the_parents_connections_watched_and_open() {
    let service = PlayedService::start();
    let listener = Rc::new(Listener::bind(&service.direct(), ([127, 0, 0, 1], 0).into(), 8).unwrap());
    let arriving = service.listeners.recv().unwrap();
    let [client, common, private] = arrive(arriving.as_fd());
    let in_memory = Rc::new(listener.try_accept().unwrap());
    let end = Endpoint::attach(common.as_fd(), private.as_fd()).unwrap();
    let kernel = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let over_kernel = Rc::new(Connection::connect(&*service.direct(), kernel.local_addr().unwrap()).unwrap());
    let (mut peer, _) = kernel.accept().unwrap();
    // Bytes that it has taken from the kernel, and not used: a reset if it were closed.
    peer.write_all(b"unread").unwrap();
    while over_kernel.available() == 0 {
        over_kernel.try_connected().unwrap();
        let _ = over_kernel.try_read_with(|_| 0);
    }

    let mut poller = Poller::new().unwrap();
    let tokens = [
        poller.add_connection(&in_memory).unwrap(),
        poller.add_connection(&over_kernel).unwrap(),
        poller.add_listener(&listener).unwrap(),
    ];
    poller.want(tokens[0], Interest::DATA, 0);
    poller.want(tokens[1], Interest::DATA, 6);
    poller.want(tokens[2], Interest::DATA, 0);
    let mut events = Vec::new();
    poller.poll(0, &mut events).unwrap();
    // What is there is known to be all.
    assert!(over_kernel.try_more_than(6).is_err());
    poller.want(tokens[1], Interest::DATA, 6);
    poller.want(tokens[2], Interest::DATA, 0);
    while listener.try_accept().is_ok() {}
    assert_ne!(poller.prepare_sleep(), SleepLimit::None);

    let everything = (poller, in_memory, over_kernel, listener);
    let mut everything = Some(everything);
    in_child(|| {
        let (mut poller, in_memory, over_kernel, listener) = everything.take().unwrap();
        assert_eq!(listener.try_accept().unwrap_err().kind(), std::io::ErrorKind::Unsupported);
        tokens.into_iter().for_each(|token| poller.remove(token));
        drop((poller, in_memory, over_kernel, listener));
    });
    let (mut poller, in_memory, over_kernel, listener) = everything.unwrap();

    // Each of them still wakes the parent's sleep.
    let is_woken = |poller: &Poller| {
        let mut entry = [PollFd::new(poller, PollFlags::IN)];
        poll(&mut entry, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1)
    };
    let mut now = 0;
    let mut report = |poller: &mut Poller, token| {
        assert!(is_woken(poller), "{token:?}");
        now += 1_000_000_000;
        events.clear();
        poller.poll(now, &mut events).unwrap();
        assert!(events.iter().any(|event| event.token == token), "{token:?} of {events:?}");
        poller.prepare_sleep();
    };
    end.send().unwrap().write(b"word");
    notify_data(Direct(client.as_fd()), &end);
    report(&mut poller, tokens[0]);
    assert_eq!(in_memory.try_read(&mut [0; 10]).unwrap(), 4);
    peer.write_all(b"more").unwrap();
    report(&mut poller, tokens[1]);
    drop(arrive(arriving.as_fd()));
    report(&mut poller, tokens[2]);
    drop(listener.try_accept().unwrap());

    // And its end is a normal one.
    let mut bytes = [0; 10];
    let mut got = 0;
    while got < 10 {
        got += over_kernel.try_read(&mut bytes[got..]).unwrap();
    }
    drop((poller, over_kernel));
    assert_eq!(peer.read(&mut bytes).unwrap(), 0);
}
