//! Ports of the host that lead to a listener: one `accept` for all, free with the listener.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, OwnedFd};

use rustix::io::Errno;
use rustix::net::RecvFlags;
use sietch_protocol::socket_service::{
    ArrivalKind, Descriptors, Incoming, REJOIN, Reply, ReplyKind, RequestKind, receive_arrival,
};
use sietch_service::sockets::Listing;
use sietch_service::sockets::{Rules, limits};

use crate::sockets_fixture::{TestService, arrival, bind_when_free, connect, request};

fn bound(address: &str) -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind(address).expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    (listener, address)
}

/// A listener with published ports: what was answered, the placeholder, and the names, its own
/// first.
fn publish(service: &TestService, published: &[&str]) -> (Reply, Option<OwnedFd>, Vec<SocketAddr>) {
    let (own, name) = bound("127.0.0.1:0");
    let others: Vec<_> = published.iter().map(|address| bound(address)).collect();
    let names = std::iter::once(name).chain(others.iter().map(|(_, name)| *name)).collect();
    let mut query = request(RequestKind::Listen);
    query.backlog = 200;
    let sent: Vec<_> =
        std::iter::once(&own).chain(others.iter().map(|(other, _)| other)).map(|fd| fd.as_fd()).collect();
    let (reply, mut received) = service.call(&query, &sent).expect("an answer");
    (reply, received[0].take(), names)
}

#[test]
fn kernel_and_memory_arrive_at_one_accept_with_the_name_that_they_asked_for() {
    let service = TestService::new();
    let (reply, placeholder, names) = publish(&service, &["127.0.0.1:0", "127.0.0.1:0"]);
    assert_eq!(reply.kind(), ReplyKind::Listening);
    let placeholder = placeholder.unwrap();
    for name in &names {
        let client = TcpStream::connect(name).unwrap();
        let (found, _) = arrival(&placeholder);
        assert_eq!((found.kind(), found.local.address()), (ArrivalKind::Kernel, Some(*name)));
        assert_eq!(found.peer.address(), client.local_addr().ok());
        let (reply, _ends) = connect(&service, *name);
        assert_eq!(reply.kind(), ReplyKind::Connected);
        let (found, _) = arrival(&placeholder);
        assert_eq!((found.kind(), found.local.address()), (ArrivalKind::Stream, Some(*name)));
    }
    let shown = service.until_by_itself(|shown| shown.counters.kernel_accepted == 3);
    assert_eq!((shown.listeners, shown.counters.published), (3, 2));
    // One listener has both: no part of the service refuses a message over its placeholder.
    sietch_protocol::socket_service::change_backlog(placeholder.as_fd(), 100).unwrap();
    assert_eq!(service.shown().counters.malformed, 0);
    drop(placeholder);
    service.until(|shown| shown.listeners == 0);
    for name in names {
        drop(bind_when_free(name));
    }
}

#[test]
fn a_stopped_program_fills_its_backlog_by_a_published_port_too_and_loses_no_client() {
    let service = TestService::new();
    let (_, placeholder, names) = publish(&service, &["127.0.0.1:0"]);
    let placeholder = placeholder.unwrap();
    let clients: Vec<TcpStream> =
        (0..150).map(|at: usize| TcpStream::connect(names[at % names.len()]).unwrap()).collect();
    // Connections to different ports may come from the same one.
    let arrived: Vec<_> = clients.iter().map(|_| arrival(&placeholder)).collect();
    let mut found: Vec<_> = arrived
        .iter()
        .map(|(arrival, _)| (arrival.peer.address().unwrap(), arrival.local.address().unwrap()))
        .collect();
    let mut expected: Vec<_> =
        clients.iter().map(|client| (client.local_addr().unwrap(), client.peer_addr().unwrap())).collect();
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
}

#[test]
fn a_listener_with_many_clients_in_one_iteration_has_some_of_them_and_then_another_has_its_own() {
    let service = TestService::new();
    // Both lead into one pair, in the order in which the loop finds them: the published one first.
    let (own, name) = bound("127.0.0.1:0");
    let (published, crowded) = bound("127.0.0.1:0");
    let many = limits::IN_PAIR as usize - 4;
    assert!(many > limits::BATCH);
    let crowd: Vec<_> = (0..many).map(|_| TcpStream::connect(crowded).unwrap()).collect();
    let single = TcpStream::connect(name).unwrap();
    let mut query = request(RequestKind::Listen);
    query.backlog = 200;
    let (reply, mut received) = service.call(&query, &[own.as_fd(), published.as_fd()]).unwrap();
    assert_eq!(reply.kind(), ReplyKind::Listening);
    let placeholder = received[0].take().unwrap();
    let arrived: Vec<_> = (0..=many).map(|_| arrival(&placeholder).0.local.address()).collect();
    let at = arrived.iter().position(|found| *found == Some(name)).expect("it arrives");
    assert!(at <= limits::BATCH, "{at} of {many} came before it");
    drop((crowd, single));
}

#[test]
fn all_ports_are_published_or_none() {
    let service = TestService::new();
    let (own, _) = bound("127.0.0.1:0");
    let (good, name) = bound("127.0.0.1:0");
    let connected = TcpStream::connect(name).unwrap();
    let file = std::fs::File::open("/dev/null").unwrap();
    for wrong in [connected.as_fd(), file.as_fd()] {
        let sent = [own.as_fd(), good.as_fd(), wrong];
        let (reply, _) = service.call(&request(RequestKind::Listen), &sent).unwrap();
        assert_eq!((reply.kind(), reply.error()), (ReplyKind::Refused, Errno::INVAL));
        assert_eq!(service.shown().listeners, 0);
    }
    // A program that registers an existing listener again has nothing to publish.
    let mut again = request(RequestKind::Listen);
    again.flags = REJOIN;
    let (reply, _) = service.call(&again, &[own.as_fd(), good.as_fd()]).unwrap();
    assert_eq!(reply.error(), Errno::INVAL);
    let (reply, _) = service.call(&request(RequestKind::Connect), &[own.as_fd(), good.as_fd()]).unwrap();
    assert_eq!(reply.error(), Errno::INVAL);
}

#[test]
fn rules_hold_for_published_ports() {
    let (good, name) = bound("127.0.0.1:0");
    let deny = format!("deny listen port {}", name.port()).parse().unwrap();
    let service = TestService::with(Rules(vec![deny]));
    let (own, _) = bound("127.0.0.1:0");
    let (reply, _) = service.call(&request(RequestKind::Listen), &[own.as_fd(), good.as_fd()]).unwrap();
    assert_eq!(reply.error(), Errno::ACCESS);
    assert_eq!(service.until_by_itself(|shown| shown.counters.denied == 1).listeners, 0);
}

#[test]
fn a_successor_has_published_ports_too_and_a_revoked_application_has_none() {
    let mut service = TestService::new();
    let (_, placeholder, names) = publish(&service, &["127.0.0.1:0"]);
    let placeholder = placeholder.unwrap();
    service.succeed();
    let list = || {
        let (_, received) = service.administer(&request(RequestKind::List)).unwrap();
        let file = received.into_iter().flatten().next().unwrap();
        serde_json::from_slice::<Listing>(&sietch_protocol::sealed::read(file, 1 << 20).unwrap()).unwrap()
    };
    let listed = list().listeners;
    let leads: Vec<_> = listed.iter().filter_map(|found| found.leads_to.clone()).collect();
    assert_eq!((listed.len(), leads), (2, vec![names[0].to_string()]));
    let _client = TcpStream::connect(names[1]).unwrap();
    assert_eq!(arrival(&placeholder).0.local.address(), Some(names[1]));
    service.administer(&request(RequestKind::Revoke)).unwrap();
    assert!(list().listeners.is_empty());
    let found = receive_arrival(placeholder.as_fd(), RecvFlags::empty(), &mut Descriptors::default());
    assert!(matches!(found, Ok(Incoming::Closed)), "{found:?}");
    for name in names {
        drop(bind_when_free(name));
    }
}
