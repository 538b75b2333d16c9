//! Messages: an encoded message is read back, any other is refused and leaks no descriptor.

use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};

use proptest::prelude::*;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair};
use zerocopy::IntoBytes as _;

use super::*;

fn pair() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

fn addresses() -> impl Strategy<Value = SocketAddr> {
    prop_oneof![
        (any::<[u8; 4]>(), any::<u16>()).prop_map(SocketAddr::from),
        (any::<[u8; 16]>(), any::<u16>()).prop_map(SocketAddr::from),
    ]
}

proptest! {
    #[test]
    fn a_name_is_read_back(address in addresses()) {
        prop_assert_eq!(Name::from(address).address(), Some(address));
    }

    #[test]
    fn any_bytes_are_a_request_with_sound_names_or_refused(
        mut bytes in prop::collection::vec(any::<u8>(), 0..400), begin in any::<bool>(),
    ) {
        if begin && bytes.len() >= 8 {
            bytes[..8].copy_from_slice(&Request::new(RequestKind::Connect, [0; 16]).as_bytes()[..8]);
        }
        if let Ok((request, _)) = Request::parse(&bytes) {
            prop_assert!(request.local.is_valid() && request.remote.is_valid());
        }
        let _ = (Reply::parse(&bytes), Arrival::parse(&bytes), BacklogChange::parse(&bytes));
        if let Some((_, Some(build))) = Build::of_reply(&bytes) {
            prop_assert!(build.to_string().is_ascii());
        }
    }
}

#[test]
fn the_kernel_understands_a_name() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let name = Name::from(listener.local_addr().unwrap());
    let expected = libc_bytes(listener.local_addr().unwrap().port());
    assert_eq!(name.bytes[..8], expected);
    assert_eq!(name.length, 16);
}

/// The beginning of a `sockaddr_in` of 127.0.0.1, by hand.
fn libc_bytes(port: u16) -> [u8; 8] {
    let (family, port) = (2_u16.to_ne_bytes(), port.to_be_bytes());
    [family[0], family[1], port[0], port[1], 127, 0, 0, 1]
}

#[test]
fn each_kind_of_damage_has_its_own_error() {
    let good = Request::new(RequestKind::Hello, [7; 16]);
    assert_eq!(Request::parse(good.as_bytes()).unwrap().1, RequestKind::Hello);
    assert_eq!(Request::parse(&good.as_bytes()[..255]).unwrap_err(), Malformed::Length);
    assert_eq!(Request::parse(Request { magic: 1, ..good }.as_bytes()).unwrap_err(), Malformed::Magic);
    assert_eq!(Request::parse(Request { version: 9, ..good }.as_bytes()).unwrap_err(), Malformed::Version);
    assert_eq!(Request::parse(Request { kind: 99, ..good }.as_bytes()).unwrap_err(), Malformed::Kind);
    let name = Name { bytes: [1; 28], length: 12 };
    assert_eq!(Request::parse(Request { local: name, ..good }.as_bytes()).unwrap_err(), Malformed::Name);
}

#[test]
fn a_call_gets_its_answer_with_descriptors_that_exec_closes() {
    let (client, service) = pair();
    let answer = std::thread::spawn(move || {
        let mut received = Descriptors::default();
        let mut bytes = [0; REQUEST_BYTES];
        let (length, complete) =
            receive_message(service.as_fd(), &mut bytes, &mut received, RecvFlags::empty()).unwrap();
        assert!(complete && received[0].is_some() && received[1].is_none());
        let (request, kind) = Request::parse(&bytes[..length]).unwrap();
        assert_eq!((kind, request.vnic()), (RequestKind::Listen, Some("web")));
        let reply = Reply::new(ReplyKind::Listening);
        let descriptor = received[0].take().unwrap();
        send_message(service.as_fd(), reply.as_bytes(), &[descriptor.as_fd()], SendFlags::empty()).unwrap();
    });
    let mut request = Request::new(RequestKind::Listen, [3; 16]);
    request.set_vnic("web");
    let mut received = Descriptors::default();
    let reply = call_on(client.as_fd(), &request, &[client.as_fd()], &mut received).unwrap();
    assert_eq!(reply.kind(), ReplyKind::Listening);
    let flags = rustix::io::fcntl_getfd(received[0].as_ref().unwrap()).unwrap();
    assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    answer.join().unwrap();
}

#[test]
fn an_answer_with_other_descriptors_than_its_kind_has_is_no_answer() {
    let (client, service) = pair();
    let reply = Reply::new(ReplyKind::Connected);
    send_message(service.as_fd(), reply.as_bytes(), &[service.as_fd()], SendFlags::empty()).unwrap();
    let mut received = Descriptors::default();
    let request = Request::new(RequestKind::Connect, [0; 16]);
    let error = call_on(client.as_fd(), &request, &[], &mut received).unwrap_err();
    assert_eq!(error, rustix::io::Errno::PROTO);
    assert!(received.iter().all(Option::is_none));
}

#[test]
fn a_service_that_is_not_there_is_an_error_number() {
    let request = Request::new(RequestKind::Hello, [0; 16]);
    let error = call(b"/nonexistent/sockets.sock", &request, &[], &mut Descriptors::default()).unwrap_err();
    assert_eq!(error, rustix::io::Errno::NOENT);
    let long = [b'x'; 300];
    assert!(call(&long, &request, &[], &mut Descriptors::default()).is_err());
}

#[test]
fn arrivals_come_one_by_one_and_the_end_differs_from_none() {
    let (service, placeholder) = pair();
    let mut received = Descriptors::default();
    let none = receive_arrival(placeholder.as_fd(), RecvFlags::DONTWAIT, &mut received).unwrap_err();
    assert_eq!(none, rustix::io::Errno::AGAIN);
    let name = Name::from(SocketAddr::from(([127, 0, 0, 1], 80)));
    let arrival = Arrival::new(ArrivalKind::Kernel, name, name);
    send_message(service.as_fd(), arrival.as_bytes(), &[service.as_fd()], SendFlags::empty()).unwrap();
    send_message(service.as_fd(), arrival.as_bytes(), &[], SendFlags::empty()).unwrap();
    send_message(service.as_fd(), b"nonsense", &[], SendFlags::empty()).unwrap();
    let take = |received: &mut Descriptors| {
        receive_arrival(placeholder.as_fd(), RecvFlags::DONTWAIT, received).unwrap()
    };
    assert!(matches!(take(&mut received), Incoming::Arrived(arrival) if arrival.local == name));
    assert!(received[0].is_some());
    assert!(matches!(take(&mut received), Incoming::Damaged));
    assert!(received.iter().all(Option::is_none));
    assert!(matches!(take(&mut received), Incoming::Damaged));
    change_backlog(placeholder.as_fd(), 77).unwrap();
    let mut bytes = [0; 64];
    let (length, _) =
        receive_message(service.as_fd(), &mut bytes, &mut received, RecvFlags::empty()).unwrap();
    assert_eq!(BacklogChange::parse(&bytes[..length]).unwrap().backlog, 77);
    drop(service);
    assert!(matches!(take(&mut received), Incoming::Closed));
}

#[test]
fn the_sender_of_a_hello_reply_is_known_in_every_version() {
    let (own, other) = (Build::own(1), Build::own(2));
    assert!(own.fits(&Build::own(1)) && !own.fits(&other) && !own.name().is_empty());
    let mut reply = Reply::refused(rustix::io::Errno::PROTO).from_build(&other);
    reply.version = VERSION + 1;
    assert!(Reply::parse(reply.as_bytes()).is_err());
    assert_eq!(Build::of_reply(reply.as_bytes()), Some((VERSION + 1, Some(other))));
    assert_eq!(Build::of_reply(Reply::new(ReplyKind::Welcome).as_bytes()), Some((VERSION, None)));
    assert_eq!(Build::of_reply(b"something else entirely"), None);
    let here = Reply::welcome(5, &own);
    assert_eq!((Reply::parse(here.as_bytes()).unwrap().limit, here.kind()), (5, ReplyKind::Welcome));
    assert_eq!(own.as_bytes().len(), BUILD_BYTES);
}
