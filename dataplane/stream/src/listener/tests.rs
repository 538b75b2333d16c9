//! A listener whose placeholder the test holds, in place of a service.

use std::io::Write as _;

use rustix::net::{SendFlags, Shutdown, socketpair};
use sietch_protocol::socket_service::{Arrival, ArrivalKind, send_message};

use super::*;
use crate::connection::Path;
use crate::poller::{Event, Interest, Poller, SleepLimit};

fn on_kernel() -> Listener {
    let service = Rc::new(DirectService::new("/nonexistent/sockets.sock", [7; 16]));
    Listener::bind(&service, ([127, 0, 0, 1], 0).into(), 8).expect("a free port")
}

#[test]
fn connections_that_wait_when_the_service_ends_are_accepted() {
    let listener = on_kernel();
    let (service, placeholder) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("sockets");
    *listener.source.borrow_mut() = Source::Service(Rc::new(placeholder));
    let clients: Vec<_> = (0..2)
        .map(|_| {
            let client =
                std::net::TcpStream::connect(listener.address().expect("its name")).expect("it listens");
            let accepted =
                rustix::net::accept_with(&*listener.kernel, SocketFlags::CLOEXEC).expect("a client");
            let arrival = Arrival::new(ArrivalKind::Kernel, listener.name, Name::NONE);
            let bytes = zerocopy::IntoBytes::as_bytes(&arrival);
            send_message(service.as_fd(), bytes, &[accepted.as_fd()], SendFlags::empty()).expect("it fits");
            client
        })
        .collect();
    drop(service);

    listener.hung_up();
    for client in &clients {
        let accepted = listener.try_accept().expect("it arrived before the end");
        assert_eq!(accepted.path(), Path::Kernel);
        assert_eq!(accepted.peer(), client.local_addr().ok());
    }
    // Behind them the kernel's socket serves.
    assert_eq!(listener.try_accept().expect_err("none waits").kind(), io::ErrorKind::WouldBlock);
    assert!(!listener.is_registered());
    assert!(listener.retry_slice().is_some());
}

#[test]
fn a_socket_that_listens_no_more_ends_the_listener() {
    let listener = on_kernel();
    rustix::net::shutdown(&*listener.kernel, Shutdown::Both).expect("it listens");
    for _ in 0..2 {
        assert_eq!(listener.try_accept().expect_err("it has ended").kind(), io::ErrorKind::PermissionDenied);
    }
    assert_eq!(listener.retry_slice(), None, "the service is not asked for ever");
    assert!(listener.watched().is_none());
}

#[test]
fn a_program_that_accepts_the_kernels_clients_itself_gets_the_services_alone() {
    let listener = on_kernel();
    let socket = listener.split_kernel().expect("a descriptor");
    assert!(listener.watched().is_none(), "without a service nothing arrives here");
    let client = std::net::TcpStream::connect(listener.address().expect("its name")).expect("it listens");
    assert_eq!(listener.try_take().expect_err("it is the program's").kind(), io::ErrorKind::WouldBlock);
    let accepted = std::net::TcpListener::from(socket).accept().expect("it waits there");
    assert_eq!(Some(accepted.1), client.local_addr().ok());

    // What the service was faster to accept arrives as its socket.
    let (service, placeholder) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("sockets");
    *listener.source.borrow_mut() = Source::Service(Rc::new(placeholder));
    let arrival = Arrival::new(ArrivalKind::Kernel, listener.name, Name::NONE);
    let bytes = zerocopy::IntoBytes::as_bytes(&arrival);
    send_message(service.as_fd(), bytes, &[accepted.0.as_fd()], SendFlags::empty()).expect("it fits");
    let Arrived::Kernel(socket) = listener.try_take().expect("it arrived") else { panic!("not a socket") };
    assert_eq!(std::net::TcpStream::from(socket).peer_addr().ok(), client.local_addr().ok());
}

#[test]
fn a_service_that_does_not_answer_delays_no_poll() {
    // It accepts requests and answers none of them.
    let path = std::env::temp_dir().join(format!("sietch-stopped-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let listener = on_kernel();
    let name = rustix::net::SocketAddrUnix::new(&path).expect("a short path");
    let flags = SocketFlags::CLOEXEC;
    let stopped = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .and_then(|socket| rustix::net::bind(&socket, &name).map(|()| socket))
        .expect("a socket");
    rustix::net::listen(&stopped, 8).expect("it is bound");
    let bytes = std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str()).to_vec();
    let listener = Listener { service: Rc::new(DirectService::new(bytes, [7; 16])), ..listener };

    listener.retry(1 << 40);
    let request = rustix::net::accept(&stopped).expect("the offer is made");
    assert!(!listener.is_registered(), "and not answered yet");
    listener.retry(2 << 40);
    assert!(listener.offer.borrow().is_some(), "one offer at a time");
    drop((request, stopped));
    // It has ended: the offer fails, and the next one is due.
    while listener.offer.borrow().is_some() {
        listener.retry(3 << 40);
        std::thread::yield_now();
    }
    assert!(!listener.is_registered());
    assert!(listener.retry_slice().is_some());
    std::fs::remove_file(&path).expect("it was made");
}

/// What epoll refuses to watch, as it refuses everything at the user's limit of watches.
fn unwatchable() -> OwnedFd {
    rustix::fs::memfd_create("unwatchable", rustix::fs::MemfdFlags::CLOEXEC).expect("a descriptor")
}

#[test]
fn a_placeholder_that_the_kernel_does_not_watch_keeps_nothing_else_waiting() {
    let listener = Rc::new(on_kernel());
    let mut poller = Poller::new().expect("a descriptor");
    poller.add_listener(&listener).expect("it is watched");
    let mut client = std::net::TcpStream::connect(listener.address().expect("its name")).expect("it listens");
    let accepted = Rc::new(listener.try_accept().expect("a client"));
    let token = poller.add_connection(&accepted).expect("it is watched");
    assert_eq!(accepted.try_read(&mut [0]).expect_err("no bytes").kind(), io::ErrorKind::WouldBlock);
    poller.want(token, Interest::DATA, 0);
    let mut events = Vec::new();
    poller.poll(0, &mut events).expect("the kernel is asked");
    assert_eq!(events, []);

    *listener.source.borrow_mut() = Source::Service(Rc::new(unwatchable()));
    client.write_all(b"x").expect("there is room");
    for now in 1..1_000 {
        poller.poll(now * 1_000_000, &mut events).expect("the connection is served");
        if !events.is_empty() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(events, [Event { token, ready: Interest::DATA }]);
    let limit = poller.prepare_sleep();
    assert!(matches!(limit, SleepLimit::Nanoseconds(_)), "it is tried again: {limit:?}");

    // Once the kernel watches it, the sleep has no limit.
    let (_service, placeholder) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("sockets");
    *listener.source.borrow_mut() = Source::Service(Rc::new(placeholder));
    poller.poll(1_000_000_000, &mut Vec::new()).expect("the kernel is asked");
    assert_eq!(poller.prepare_sleep(), SleepLimit::Unlimited);
}

#[test]
fn a_service_that_answers_with_no_placeholder_counts_as_lost() {
    let listener = on_kernel();
    *listener.source.borrow_mut() = Source::Service(Rc::new(unwatchable()));
    assert_eq!(listener.try_accept().expect_err("none waits").kind(), io::ErrorKind::WouldBlock);
    assert!(!listener.is_registered() && listener.retry_slice().is_some());
}
