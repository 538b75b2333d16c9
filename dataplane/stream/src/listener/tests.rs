//! A listener whose placeholder the test holds, in place of a service.

use rustix::net::{SendFlags, Shutdown, socketpair};
use sietch_protocol::socket_service::{Arrival, ArrivalKind, send_message};

use super::*;
use crate::connection::Path;

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
