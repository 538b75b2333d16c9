//! Requests to a service whose loop does not run: the test says when sockets are closed.

use std::net::{TcpListener, TcpStream};

use sietch_protocol::socket_service::Rules;
use sietch_ring::stream::RegionSizes;

use super::*;

const CALLER: Caller = Caller { uid: 1000, pid: 0, administers: false };

fn service() -> SocketService {
    let (socket, _) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .expect("descriptors");
    SocketService::new(socket, None, Rules::default(), RegionSizes::default()).expect("a service")
}

fn answer(service: &mut SocketService, request: &Request, kind: RequestKind, sent: OwnedFd) -> Answer {
    let mut descriptors = Descriptors::default();
    descriptors[0] = Some(sent);
    service.answer(CALLER, request, kind, descriptors)
}

/// A listener at a free port: its placeholder and address.
fn listen(service: &mut SocketService, address: &str) -> (OwnedFd, SocketAddr) {
    let kernel = TcpListener::bind(address).expect("a free port");
    let address = kernel.local_addr().expect("bound");
    let request = Request { backlog: 5, ..Request::new(RequestKind::Listen, [7; 16]) };
    let mut answer = answer(service, &request, RequestKind::Listen, kernel.into());
    assert_eq!(answer.reply.kind(), ReplyKind::Listening);
    (answer.own[0].take().expect("a placeholder"), address)
}

/// The kind and the error number of the answer to a connect.
fn connect(service: &mut SocketService, to: SocketAddr) -> (ReplyKind, u32) {
    let request = Request { remote: to.into(), ..Request::new(RequestKind::Connect, [7; 16]) };
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let client = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    let answer = answer(service, &request, RequestKind::Connect, client.expect("a descriptor"));
    (answer.reply.kind(), answer.reply.errno)
}

const BUSY: (ReplyKind, u32) = (ReplyKind::UseKernel, Errno::BUSY.raw_os_error().cast_unsigned());

/// No program may be sent to the kernel while the kernel would connect it to the socket of a
/// listener that has no holder.
#[test]
fn a_name_is_busy_from_the_last_close_of_its_listener_to_that_of_the_kernels_socket() {
    for at in ["127.0.0.1:0", "0.0.0.0:0", "[::1]:0", "[::]:0"] {
        let mut service = service();
        let (placeholder, mut address) = listen(&mut service, at);
        if address.ip().is_unspecified() {
            // Found by its wildcard.
            address.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
        }
        let other = placeholder.try_clone().expect("descriptors");
        drop(placeholder);
        assert_eq!(connect(&mut service, address), (ReplyKind::Connected, 0), "{at}: it has a holder");
        drop(other);
        // The loop has not read the hang-up.
        assert_eq!(connect(&mut service, address), BUSY, "{at}");
        assert!(service.listeners.is_empty(), "{at}: it is closed here");
        // The listener is closed, and the kernel's socket is not.
        assert_eq!(connect(&mut service, address), BUSY, "{at}");
        drop(TcpStream::connect(address).expect("the kernel's socket is open"));
        service.close_freed();
        while service.closer.waiting() > 0 {
            std::thread::yield_now();
        }
        assert_eq!(connect(&mut service, address), (ReplyKind::UseKernel, 0), "{at}");
        assert!(TcpStream::connect(address).is_err(), "{at}: no socket listens there");
    }
}

/// Only the name of the closed listener is busy, and only if its kernel's socket has no other.
#[test]
fn a_closed_listener_disturbs_no_other_name() {
    let mut service = service();
    let (placeholder, address) = listen(&mut service, "127.0.0.1:0");
    let (other, other_address) = listen(&mut service, "127.0.0.1:0");
    drop(placeholder);
    assert_eq!(connect(&mut service, address), BUSY);
    assert_eq!(connect(&mut service, other_address), (ReplyKind::Connected, 0));
    let beside = SocketAddr::new([127, 0, 0, 9].into(), address.port());
    assert_eq!(connect(&mut service, beside), (ReplyKind::UseKernel, 0));
    drop(other);
}
