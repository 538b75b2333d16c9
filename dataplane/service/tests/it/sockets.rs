//! The socket service with the kernel's sockets and its own messages: what a program under Sietch
//! sees of it.

mod shared;
mod vnics;

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd as _, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType};
use sietch_protocol::socket_service::{
    ArrivalKind, Descriptors, Incoming, Name, REJOIN, REPLY_BYTES, Reply, ReplyKind, RequestKind,
    receive_arrival, receive_message, take_kernel_socket,
};
use sietch_ring::stream::Endpoint;
use zerocopy::IntoBytes as _;

use crate::isolated;
use crate::sockets_fixture::{TestService, arrival, bind_when_free, client, connect, listen, open, request};
use sietch_service::sockets::{Command, limits};

#[test]
fn hello_is_answered_with_the_limit() {
    let service = TestService::new();
    let (reply, _) = service.call(&request(RequestKind::Hello), &[]).unwrap();
    assert_eq!(reply.kind(), ReplyKind::Welcome);
    assert!(reply.limit > 1000);
}

#[test]
fn a_client_of_the_kernel_arrives_as_its_own_socket() {
    let service = TestService::new();
    let (placeholder, address) = listen(&service, "127.0.0.1:0", 16);
    let mut client = TcpStream::connect(address).unwrap();
    let (arrival, mut descriptors) = arrival(&placeholder);
    assert_eq!(arrival.kind(), ArrivalKind::Kernel);
    assert_eq!(arrival.peer.address(), Some(client.local_addr().unwrap()));
    assert_eq!(arrival.local.address(), Some(address));
    let mut accepted = TcpStream::from(take_kernel_socket(&arrival, &mut descriptors).unwrap());
    accepted.write_all(b"hello").unwrap();
    drop(accepted);
    let mut text = String::new();
    client.read_to_string(&mut text).unwrap();
    assert_eq!(text, "hello");
}

#[test]
fn clients_of_the_kernel_that_no_program_accepted_are_reset() {
    let service = TestService::new();
    let (placeholder, address) = listen(&service, "127.0.0.1:0", 4096);
    // The pair is full, and two wait in the kernel's queue.
    let in_pair = limits::IN_PAIR as usize;
    let clients: Vec<_> = (0..in_pair + 2).map(|_| TcpStream::connect(address).unwrap()).collect();
    service.until(|report| report.counters.kernel_accepted == in_pair as u64);
    drop(placeholder);
    for mut client in clients {
        let error = client.read(&mut [0; 1]).expect_err("it was not accepted");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
    // A setting of the program's own is left alone.
    let kernel = TcpListener::bind("127.0.0.1:0").unwrap();
    let lingers = Some(std::time::Duration::from_secs(7));
    rustix::net::sockopt::set_socket_linger(&kernel, lingers).unwrap();
    let _client = TcpStream::connect(kernel.local_addr().unwrap()).unwrap();
    let placeholder = service.listen_on(kernel, 16);
    let (arrival, mut descriptors) = arrival(&placeholder);
    let accepted = take_kernel_socket(&arrival, &mut descriptors).unwrap();
    assert_eq!(rustix::net::sockopt::socket_linger(&accepted), Ok(lingers));
}

#[test]
fn two_programs_under_sietch_share_memory_and_see_each_others_names() {
    let service = TestService::new();
    let (placeholder, address) = listen(&service, "127.0.0.1:0", 16);
    let (reply, mut own) = connect(&service, address);
    assert_eq!(reply.kind(), ReplyKind::Connected);
    let (arrival, mut theirs) = arrival(&placeholder);
    assert_eq!(arrival.kind(), ArrivalKind::Stream);
    assert_eq!((arrival.peer, arrival.local), (reply.local, reply.remote));
    assert_eq!(reply.remote.address(), Some(address));
    let take = |from: &mut Descriptors| [0, 1, 2].map(|at| from[at].take().unwrap());
    let ([a, common_a, page_a], [b, common_b, page_b]) = (take(&mut own), take(&mut theirs));
    let first = Endpoint::attach(common_a.as_fd(), page_a.as_fd()).unwrap();
    let second = Endpoint::attach(common_b.as_fd(), page_b.as_fd()).unwrap();
    assert_eq!(first.send().expect("no other holder of the lock").write(b"ping"), 4);
    let mut bytes = [0; 8];
    assert_eq!(second.receive().expect("no other holder of the lock").read(&mut bytes), 4);
    assert_eq!(&bytes[..4], b"ping");
    assert_eq!(second.names().local[..], first.names().peer[..]);
    // The placeholders are the two ends of one pair: a byte on one wakes the other, and so does the
    // close of one.
    rustix::net::send(&a, &[0], SendFlags::empty()).unwrap();
    assert_eq!(rustix::net::recv(&b, &mut [0; 4][..], RecvFlags::DONTWAIT).unwrap().1, 1);
    drop(a);
    assert_eq!(rustix::net::recv(&b, &mut [0; 4][..], RecvFlags::empty()).unwrap().1, 0);
}

#[test]
fn a_connection_that_its_program_cannot_map_goes_on_through_a_kernels_socket() {
    let service = TestService::new();
    let (listener, address) = listen(&service, "127.0.0.1:0", 16);
    let relay = |sockets: &[&OwnedFd]| {
        let sockets: Vec<_> = sockets.iter().map(|socket| socket.as_fd()).collect();
        service.call(&request(RequestKind::Relay), &sockets).unwrap().0
    };
    let (reply, mut own) = connect(&service, address);
    let [common, page] = [1, 2].map(|at| own[at].take().unwrap());
    let end = Endpoint::attach(common.as_fd(), page.as_fd()).unwrap();
    let client = own[0].take().unwrap();
    assert_eq!(end.send().expect("no other user").write(b"before"), 6);
    let (_, mut theirs) = arrival(&listener);
    let placeholder = theirs[0].take().unwrap();
    // The end that connected, what is no listener, and too few or too many sockets.
    for wrong in [&[&client, &listener][..], &[&placeholder, &client], &[&placeholder], &[&placeholder; 3]] {
        assert_eq!(relay(wrong).error(), Errno::INVAL);
    }
    assert_eq!(relay(&[&placeholder, &listener]).kind(), ReplyKind::Done);
    drop((placeholder, theirs));
    let (arrived, mut descriptors) = arrival(&listener);
    assert_eq!(
        (arrived.kind(), arrived.peer, arrived.local),
        (ArrivalKind::Kernel, reply.local, reply.remote)
    );
    let mut accepted = TcpStream::from(take_kernel_socket(&arrived, &mut descriptors).unwrap());
    let mut bytes = [0; 6];
    accepted.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"before");
    accepted.write_all(b"after").unwrap();
    drop(accepted);
    let mut back = Vec::new();
    while back.len() < 5 || !end.ended() {
        let mut some = [0; 8];
        let got = end.receive().expect("no other user").read(&mut some);
        back.extend_from_slice(&some[..got]);
        std::thread::yield_now();
    }
    assert_eq!(back, b"after");
    assert_eq!(connect(&service, address).0.kind(), ReplyKind::UseKernel, "later clients");
    assert_eq!(service.shown().counters.relayed, 1);
}

#[test]
fn a_connection_is_relayed_once_and_to_the_listener_at_which_it_arrived() {
    let service = TestService::new();
    let relay = |end: &OwnedFd, listener: &OwnedFd| {
        service.call(&request(RequestKind::Relay), &[end.as_fd(), listener.as_fd()]).unwrap().0
    };
    let kernels = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let [(listener, address), (other, _)] =
        kernels.each_ref().map(|kernel| (service.listen_on(kernel, 16), kernel.local_addr().unwrap()));
    let clients = [(); 2].map(|()| connect(&service, address));
    let [end, late] = [(); 2].map(|()| arrival(&listener).1[0].take().unwrap());
    // The service would connect to the other one, by the rights of its own user.
    assert_eq!(relay(&end, &other).error(), Errno::INVAL);
    assert_eq!(relay(&end, &listener).kind(), ReplyKind::Done);
    assert_eq!(relay(&end, &listener).error(), Errno::INVAL, "it is relayed");
    // By now another program may listen at that name.
    rustix::net::shutdown(&kernels[0], rustix::net::Shutdown::Both).unwrap();
    let refused = relay(&late, &listener).error();
    // Perhaps the service has already seen that it no longer listens.
    assert!([Errno::CONNREFUSED, Errno::INVAL].contains(&refused), "{refused:?}");
    assert_eq!(service.shown().counters.relayed, 1);
    drop(clients);
}

#[test]
fn relays_of_a_user_are_bounded() {
    let service = TestService::new();
    let (listener, address) = listen(&service, "127.0.0.1:0", 4096);
    let clients: Vec<_> = (0..=limits::RELAYS_PER_USER).map(|_| connect(&service, address)).collect();
    let kinds: Vec<_> = clients
        .iter()
        .map(|_| {
            let (_, theirs) = arrival(&listener);
            let sockets = [theirs[0].as_ref().unwrap().as_fd(), listener.as_fd()];
            service.call(&request(RequestKind::Relay), &sockets).unwrap().0
        })
        .collect();
    let (last, others) = kinds.split_last().unwrap();
    assert!(others.iter().all(|reply| reply.kind() == ReplyKind::Done), "{others:?}");
    assert_eq!(last.error(), Errno::NOBUFS);
}

#[test]
fn the_holder_of_a_placeholder_gets_its_stream_and_others_get_nothing() {
    let service = TestService::new();
    let (placeholder, address) = listen(&service, "127.0.0.1:0", 16);
    let (_, mut own) = connect(&service, address);
    let (_, mut theirs) = arrival(&placeholder);
    let (a, b) = (own[0].take().unwrap(), theirs[0].take().unwrap());
    for (end, socket) in [(0, &a), (1, &b)] {
        let (reply, mut found) = service.call(&request(RequestKind::Adopt), &[socket.as_fd()]).unwrap();
        assert_eq!(reply.kind(), ReplyKind::Stream);
        let [common, page] = [0, 1].map(|at| found[at].take().unwrap());
        let attached = Endpoint::attach(common.as_fd(), page.as_fd()).unwrap();
        let expected = if end == 0 { reply.local } else { reply.remote };
        assert_eq!(
            Name { bytes: attached.names().local, length: 16 },
            if end == 0 { expected } else { reply.local }
        );
        assert_eq!(attached.names().peer_length, 16);
    }
    let (reply, _) = service.call(&request(RequestKind::Adopt), &[placeholder.as_fd()]).unwrap();
    assert_eq!((reply.kind(), reply.local.address()), (ReplyKind::Listener, Some(address)));
    assert_eq!(reply.limit, 17, "its backlog, and one");
    let (foreign, _) = std::os::unix::net::UnixStream::pair().unwrap();
    let (reply, _) = service.call(&request(RequestKind::Adopt), &[foreign.as_fd()]).unwrap();
    assert_eq!(reply.kind(), ReplyKind::Unknown);
}

#[test]
fn a_connection_without_a_listener_here_goes_to_the_kernel() {
    let service = TestService::new();
    let kernels = TcpListener::bind("127.0.0.1:0").unwrap();
    let (reply, _) = connect(&service, kernels.local_addr().unwrap());
    assert_eq!(reply.kind(), ReplyKind::UseKernel);
}

#[test]
fn a_port_is_free_when_the_last_holder_of_its_listener_closes_it() {
    let service = TestService::new();
    let (placeholder, address) = listen(&service, "127.0.0.1:0", 16);
    let (_, mut waiting) = connect(&service, address);
    let other = placeholder.try_clone().unwrap();
    drop(placeholder);
    assert_eq!(connect(&service, address).0.kind(), ReplyKind::Connected);
    drop(other);
    service.until(|shown| shown.listeners == 0);
    assert_eq!(connect(&service, address).0.kind(), ReplyKind::UseKernel);
    settle(&service, address);
    let again = bind_when_free(address);
    drop(again);
    // A client that waited to be accepted gets a reset.
    let waiting = waiting[0].take().unwrap();
    assert_eq!(rustix::net::recv(&waiting, &mut [0; 4][..], RecvFlags::empty()).unwrap().1, 0);
}

#[test]
fn a_listener_found_by_its_wildcard_has_the_address_that_was_asked_for() {
    let service = TestService::new();
    let (placeholder, address) = listen(&service, "0.0.0.0:0", 16);
    let to = std::net::SocketAddr::new([127, 0, 0, 9].into(), address.port());
    let (reply, _) = connect(&service, to);
    assert_eq!(reply.remote.address(), Some(to));
    assert_eq!(reply.local.address().unwrap().ip(), std::net::Ipv4Addr::LOCALHOST);
    assert_eq!(arrival(&placeholder).0.local.address(), Some(to));
    // No connection comes from an address that the host does not have.
    let far = std::net::SocketAddr::new([192, 0, 2, 1].into(), address.port());
    assert_eq!(connect(&service, far).0.kind(), ReplyKind::UseKernel);
}

#[test]
fn a_bound_client_keeps_its_name() {
    let service = TestService::new();
    let (placeholder, address) = listen(&service, "127.0.0.1:0", 16);
    let socket = client(AddressFamily::INET);
    rustix::net::bind(&socket, &"127.0.0.3:0".parse::<std::net::SocketAddr>().unwrap()).unwrap();
    let name = std::net::SocketAddr::try_from(rustix::net::getsockname(&socket).unwrap()).unwrap();
    let mut query = request(RequestKind::Connect);
    query.remote = address.into();
    let (reply, _) = service.call(&query, &[socket.as_fd()]).unwrap();
    assert_eq!(reply.local.address(), Some(name));
    assert_eq!(arrival(&placeholder).0.peer.address(), Some(name));
}

#[test]
fn beyond_the_backlog_clients_go_to_the_kernel_and_those_before_are_served_in_order() {
    let service = TestService::new();
    let (placeholder, address) = listen(&service, "127.0.0.1:0", 100);
    let mut made = Vec::new();
    loop {
        let (reply, descriptors) = connect(&service, address);
        if reply.kind() == ReplyKind::UseKernel {
            break;
        }
        made.push((reply, descriptors));
    }
    // The last two of the 101 places are in the kernel's queue.
    assert_eq!(made.len(), 99);
    for (reply, _) in &made {
        let mut received = Descriptors::default();
        let Incoming::Arrived(arrival) =
            receive_arrival(placeholder.as_fd(), RecvFlags::empty(), &mut received).unwrap()
        else {
            panic!("an arrival is missing");
        };
        assert_eq!(arrival.peer, reply.local);
    }
    assert_eq!(connect(&service, address).0.kind(), ReplyKind::Connected);
}

/// How long a connection may take if there is room: the kernel may drop a SYN meanwhile, which is
/// then retransmitted.
const ROOM: std::time::Duration = std::time::Duration::from_secs(20);
/// How long to wait for a connection if there is no room. With room it would come at once.
const NO_ROOM: std::time::Duration = std::time::Duration::from_millis(300);

#[test]
fn as_many_connections_wait_at_a_listener_as_at_one_of_the_kernel() {
    for (backlog, ours) in
        [(1, true), (1, false), (2, true), (5, true), (5, false), (128, true), (128, false)]
    {
        assert!((0..4).any(|_| so_many_wait(backlog, ours)), "{backlog} {ours}: too many, again and again");
    }
}

/// Returns whether as many connections wait as the backlog allows, in order. False if a client has
/// raced with the service (see below); with a long backlog a few races are tolerated.
fn so_many_wait(backlog: i32, ours: bool) -> bool {
    let service = TestService::new();
    let kernel = TcpListener::bind("127.0.0.1:0").expect("a free port");
    rustix::net::listen(&kernel, backlog).expect("it listens already");
    let address = kernel.local_addr().expect("bound");
    let placeholder = service.listen_on(&kernel, backlog.cast_unsigned());
    let mut expected = Vec::new();
    let mut held = Vec::new();
    if ours {
        loop {
            let (reply, descriptors) = connect(&service, address);
            if reply.kind() == ReplyKind::UseKernel {
                break;
            }
            expected.push(reply.local.address().expect("a name"));
            held.push(descriptors);
        }
    }
    // A connection that its client has closed still waits to be accepted.
    held.clear();
    assert!(!ours || !expected.is_empty(), "{backlog}: some are ours");
    let mut clients = Vec::new();
    while expected.len() < backlog as usize + 1 {
        let client = TcpStream::connect_timeout(&address, ROOM).expect("there is room");
        expected.push(client.local_addr().expect("bound"));
        clients.push(client);
    }
    // The race: the last ACK of a client arrives while the service accepts others from the kernel's
    // queue. That client counts as connected, but the kernel queues it only after it has
    // retransmitted its SYN-ACK. Meanwhile another client finds room, and may arrive earlier.
    let mut raced = Vec::new();
    while let Ok(client) = TcpStream::connect_timeout(&address, NO_ROOM) {
        expected.push(client.local_addr().expect("bound"));
        raced.push(client);
        if backlog < 128 {
            return false;
        }
        assert!(raced.len() < 8, "{ours}: {} too many", raced.len());
    }
    assert_eq!(connect(&service, address).0.kind(), ReplyKind::UseKernel, "{backlog} {ours}");
    let mut arrived: Vec<_> =
        expected.iter().filter_map(|_| arrival(&placeholder).0.peer.address()).collect();
    let in_order = arrived == expected;
    arrived.sort_unstable();
    expected.sort_unstable();
    assert_eq!(arrived, expected, "{backlog} {ours}");
    if raced.is_empty() && !in_order {
        // A client has raced, and no other took its place.
        return false;
    }
    // There is room again, for clients of the kernel and for others.
    TcpStream::connect_timeout(&address, ROOM).expect("there is room");
    arrival(&placeholder);
    assert_eq!(connect(&service, address).0.kind(), ReplyKind::Connected, "{backlog} {ours}");
    true
}

#[test]
fn connections_that_one_process_leaves_go_to_another() {
    let service = TestService::new();
    let kernel = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = kernel.local_addr().expect("bound");
    let sleeper = service.listen_on(&kernel, 16);
    let worker = service.listen_on(&kernel, 16);
    // The sleeper gets the first one, and the worker all others, of both kinds and in order.
    let mut ours = Vec::new();
    for _ in 0..4 {
        ours.push(connect(&service, address));
    }
    let kernels: Vec<_> =
        (0..4).map(|_| TcpStream::connect_timeout(&address, ROOM).expect("there is room")).collect();
    let name = |(reply, _): &(Reply, Descriptors)| reply.local.address().expect("a name");
    let kernel_names = kernels.iter().map(|one| one.local_addr().expect("bound"));
    let names: Vec<_> = ours.iter().map(name).chain(kernel_names).collect();
    for expected in &names[1..] {
        assert_eq!(arrival(&worker).0.peer.address(), Some(*expected), "all but the first");
    }
    // A process that ends loses the connection that it was given; waiting ones go to the other.
    let (_given, later) = (connect(&service, address), connect(&service, address));
    drop(worker);
    service.until(|shown| shown.listeners == 1);
    assert_eq!(arrival(&sleeper).0.peer.address(), Some(names[0]));
    assert_eq!(arrival(&sleeper).0.peer.address(), Some(name(&later)));
    // A socket may have that many listeners, and no more.
    let more = || service.call(&request(RequestKind::Listen), &[kernel.as_fd()]).expect("an answer");
    let all: Vec<_> = (1..limits::LISTENERS_OF_ONE_SOCKET).map(|_| more()).collect();
    assert!(all.iter().all(|(reply, _)| reply.kind() == ReplyKind::Listening));
    assert_eq!((more().0.kind(), more().0.error()), (ReplyKind::Refused, Errno::NOBUFS));
}

#[test]
fn processes_that_listen_on_one_socket_take_turns() {
    let service = TestService::new();
    let kernel = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = kernel.local_addr().unwrap();
    let one = service.listen_on(&kernel, 16);
    let other = service.listen_on(&kernel, 16);
    let _clients: Vec<_> = (0..4).map(|_| connect(&service, address)).collect();
    for placeholder in [&one, &other, &one, &other] {
        arrival(placeholder);
    }
    // A process that has only the name of the listening socket joins as well.
    let mut query = request(RequestKind::Listen);
    (query.flags, query.local, query.backlog) = (REJOIN, address.into(), 16);
    let any = client(AddressFamily::INET);
    let (reply, mut joined) = service.call(&query, &[any.as_fd()]).unwrap();
    assert_eq!(reply.kind(), ReplyKind::Listening);
    drop((one, other, kernel));
    service.until(|shown| shown.listeners == 1);
    let joined: OwnedFd = joined[0].take().unwrap();
    let _kernels = TcpStream::connect(address).unwrap();
    assert_eq!(arrival(&joined).0.kind(), ArrivalKind::Kernel);
}

#[test]
fn closed_connections_are_removed_with_their_memory() {
    let service = TestService::new();
    let (placeholder, address) = listen(&service, "127.0.0.1:0", 16);
    let kept = (connect(&service, address), arrival(&placeholder));
    for _ in 0..2500 {
        let (reply, _own) = connect(&service, address);
        assert_eq!(reply.kind(), ReplyKind::Connected);
        arrival(&placeholder);
    }
    assert!(service.shown().connections < 2500, "{:?}", service.shown());
    let (reply, _) =
        service.call(&request(RequestKind::Adopt), &[kept.0.1[0].as_ref().unwrap().as_fd()]).unwrap();
    assert_eq!(reply.kind(), ReplyKind::Stream);
}

#[test]
fn the_descriptors_of_a_connection_are_free_when_its_second_end_closes() {
    let service = TestService::new();
    let (placeholder, address) = listen(&service, "127.0.0.1:0", 16);
    let (reply, mut own) = connect(&service, address);
    let (_, mut theirs) = arrival(&placeholder);
    let held = theirs[0].as_ref().unwrap().try_clone().unwrap();
    let (own, theirs) = (own[0].take(), theirs[0].take());
    drop((own, theirs));
    // One is closed, the other is held: by another process, or by a message in flight.
    assert_eq!(connect_from(&service, reply.local, address), ReplyKind::Refused, "the name is taken");
    service.until_by_itself(|shown| shown.connections == 1 && shown.counters.swept == 0);
    drop(held);
    // A request that needs the name gets it at once, and no command requests a sweep.
    assert_eq!(connect_from(&service, reply.local, address), ReplyKind::Connected, "the name is free");
    arrival(&placeholder);
    service.until_by_itself(|shown| shown.connections == 0);
}

/// Connects from a name.
fn connect_from(service: &TestService, from: Name, to: std::net::SocketAddr) -> ReplyKind {
    let socket = client(AddressFamily::INET);
    rustix::net::sockopt::set_socket_reuseaddr(&socket, true).expect("a socket");
    rustix::net::bind(&socket, &from.address().expect("a name")).expect("no kernel socket has it");
    let mut query = request(RequestKind::Connect);
    query.remote = to.into();
    service.call(&query, &[socket.as_fd()]).expect("an answer").0.kind()
}

#[test]
fn a_name_that_has_a_connection_is_refused_in_any_state_of_its_listener() {
    let service = TestService::new();
    let (placeholder, address) = listen(&service, "127.0.0.1:0", 2);
    let (reply, _own) = connect(&service, address);
    let _accepted = arrival(&placeholder);
    let mut held = Vec::new();
    loop {
        let (reply, own) = connect(&service, address);
        held.push(own);
        if reply.kind() != ReplyKind::Connected {
            break;
        }
    }
    // The kernel's own connect would make a second connection of these two names.
    assert_eq!(connect_from(&service, reply.local, address), ReplyKind::Refused, "its queue is full");
    drop(placeholder);
    service.until(|shown| shown.listeners == 0);
    let _kernels = bind_when_free(address);
    assert_eq!(connect_from(&service, reply.local, address), ReplyKind::Refused, "another listens there");
}

#[test]
fn a_bound_clients_name_is_taken_while_its_connection_lives() {
    let mut service = TestService::new();
    let (placeholder, address) = listen(&service, "127.0.0.1:0", 16);
    let reusing = |name: std::net::SocketAddr| {
        let socket = client(AddressFamily::INET);
        rustix::net::sockopt::set_socket_reuseaddr(&socket, true).expect("a socket");
        rustix::net::bind(&socket, &name).expect("both say that they share it");
        socket
    };
    let first = reusing("127.0.0.3:0".parse().expect("a name"));
    let name = std::net::SocketAddr::try_from(rustix::net::getsockname(&first).expect("a socket"));
    let name = name.expect("it is bound");
    let mut query = request(RequestKind::Connect);
    query.remote = address.into();
    let (reply, own) = service.call(&query, &[first.as_fd()]).expect("an answer");
    assert_eq!(reply.kind(), ReplyKind::Connected);
    // The program uses its placeholder in place of the socket.
    drop(first);
    let accepted = arrival(&placeholder);
    let strict = || rustix::net::bind(client(AddressFamily::INET), &name);
    for _ in 0..2 {
        assert_eq!(strict(), Err(Errno::ADDRINUSE));
        let (reply, _) = service.call(&query, &[reusing(name).as_fd()]).expect("an answer");
        assert_eq!((reply.kind(), reply.error()), (ReplyKind::Refused, Errno::ADDRNOTAVAIL));
        // The same after another service has taken over.
        service.succeed();
    }
    drop((own, accepted));
    settle(&service, name);
    assert_eq!(strict(), Ok(()), "the name is free with the connection");
}

/// Makes the service release a name whose holder has closed it.
fn settle(service: &TestService, name: std::net::SocketAddr) {
    let mut query = request(RequestKind::Hello);
    query.local = name.into();
    // EBUSY: the service has not released it yet.
    while service.call(&query, &[]).expect("an answer").0.errno != 0 {}
}

#[test]
fn a_listeners_name_is_free_for_the_next_request_after_its_close() {
    let service = TestService::new();
    // An address of this process, and a port that the kernel chooses for no other socket: other
    // tests would take a port that is free between two iterations.
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let name = std::net::SocketAddr::from(([127, 77, high, low], 20_077));
    for _ in 0..300 {
        let kernel = client(AddressFamily::INET);
        rustix::net::bind(&kernel, &name).expect("the name is free");
        rustix::net::listen(&kernel, 5).expect("it is bound");
        let placeholder = service.listen_on(&kernel, 5);
        drop(kernel);
        drop(placeholder);
        settle(&service, name);
    }
}

#[test]
fn a_socket_that_returns_to_its_program_is_unchanged() {
    use rustix::net::sockopt;
    let service = TestService::new();
    let kernels = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let (_placeholder, ours) = listen(&service, "0.0.0.0:0", 16);
    let far = std::net::SocketAddr::new([192, 0, 2, 1].into(), ours.port());
    let near = std::net::SocketAddr::new([127, 0, 0, 1].into(), ours.port());
    let mut query = request(RequestKind::Connect);
    for (remote, kind) in [
        (kernels.local_addr().expect("bound"), ReplyKind::UseKernel),
        (far, ReplyKind::UseKernel),
        (near, ReplyKind::Connected),
    ] {
        let socket = client(AddressFamily::INET);
        let linger = Some(std::time::Duration::from_secs(7));
        sockopt::set_socket_linger(&socket, linger).expect("a socket");
        let state = || {
            let name = rustix::net::getsockname(&socket).expect("a socket");
            let flags = rustix::fs::fcntl_getfl(&socket).expect("a socket");
            (std::net::SocketAddr::try_from(name).expect("a name"), flags)
        };
        let before = state();
        query.remote = remote.into();
        assert_eq!(service.call(&query, &[socket.as_fd()]).expect("an answer").0.kind(), kind);
        assert_eq!(sockopt::socket_linger(&socket), Ok(linger));
        assert_eq!(state(), before, "neither bound nor made one that does not wait");
    }
}

#[test]
fn no_copy_of_a_sent_socket_outlives_the_answer() {
    // A child of another test has a copy of every descriptor between fork and exec.
    if isolated::passes("no_copy_of_a_sent_socket_outlives_the_answer") {
        return;
    }
    let service = TestService::new();
    for _ in 0..1000 {
        let (sent, kept) = std::os::unix::net::UnixStream::pair().expect("descriptors");
        let (reply, _) = service.call(&request(RequestKind::Adopt), &[sent.as_fd()]).expect("an answer");
        assert_eq!(reply.kind(), ReplyKind::Unknown);
        drop(sent);
        kept.set_nonblocking(true).expect("a socket");
        assert_eq!((&kept).read(&mut [0]).expect("the end is there at once"), 0);
    }
    // The same with a known socket: a placeholder.
    let (placeholder, address) = listen(&service, "127.0.0.1:0", 16);
    for _ in 0..100 {
        let (_, mut own) = connect(&service, address);
        let (_, theirs) = arrival(&placeholder);
        let own = own[0].take().expect("a placeholder");
        drop(service.call(&request(RequestKind::Adopt), &[own.as_fd()]).expect("an answer"));
        drop(own);
        let end = rustix::net::recv(
            theirs[0].as_ref().expect("a placeholder"),
            &mut [0; 4][..],
            RecvFlags::DONTWAIT,
        );
        assert_eq!(end.expect("the end is there at once").1, 0);
    }
}

#[test]
fn short_connections_one_after_the_other_never_pile_up() {
    let service = TestService::new();
    let (placeholder, address) = listen(&service, "127.0.0.1:0", 16);
    let mut most = 0;
    for round in 0..3000 {
        let (reply, _own) = connect(&service, address);
        assert_eq!(reply.kind(), ReplyKind::Connected);
        arrival(&placeholder);
        if round % 50 == 0 {
            most = most.max(service.shown().connections);
        }
    }
    assert!(most < 1000, "{most} were kept");
    service.until_by_itself(|shown| shown.connections == 0);
}

#[test]
fn ipv6_and_ipv4_clients_come_to_one_listener() {
    let service = TestService::new();
    let (placeholder, address) = listen(&service, "[::]:0", 16);
    for (to, family) in [("127.0.0.1", AddressFamily::INET), ("::1", AddressFamily::INET6)] {
        let to = std::net::SocketAddr::new(to.parse().unwrap(), address.port());
        let socket = client(family);
        let mut query = request(RequestKind::Connect);
        query.remote = to.into();
        let (reply, _) = service.call(&query, &[socket.as_fd()]).unwrap();
        assert_eq!(reply.kind(), ReplyKind::Connected);
        let (arrival, _) = arrival(&placeholder);
        assert!(arrival.peer.address().unwrap().is_ipv6());
        assert_eq!(arrival.peer.canonical(), reply.local.canonical());
    }
    assert_eq!(rustix::net::sockopt::socket_type(&placeholder), Ok(SocketType::SEQPACKET));
}

#[test]
fn a_revocation_that_waits_behind_a_handover_is_the_successors() {
    let mut service = TestService::new();
    let (placeholder, address) = listen(&service, "127.0.0.1:0", 16);
    let (_, own) = connect(&service, address);
    let mut waiting = None;
    service.succeed_after(|administrators| {
        let socket = open(administrators);
        let revocation = request(RequestKind::Revoke);
        rustix::net::send(&socket, revocation.as_bytes(), SendFlags::empty()).expect("it has room");
        waiting = Some(socket);
    });
    let mut received = Descriptors::default();
    let mut bytes = [0; REPLY_BYTES];
    let socket = waiting.expect("it was opened");
    receive_message(socket.as_fd(), &mut bytes, &mut received, RecvFlags::empty()).expect("an answer");
    let reply = Reply::parse(&bytes).expect("a reply");
    assert_eq!(reply.kind(), ReplyKind::Listed);
    // The service that answers now knows of it.
    let again = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let (reply, _) = service.call(&request(RequestKind::Listen), &[again.as_fd()]).expect("an answer");
    assert_eq!((reply.kind(), reply.error()), (ReplyKind::Refused, Errno::ACCESS));
    assert_eq!(service.shown().listeners, 0);
    drop((own, placeholder));
    service.until_by_itself(|shown| shown.connections == 0);
}

#[test]
fn a_successor_knows_which_ends_were_closed_before_it() {
    let mut service = TestService::new();
    let (placeholder, address) = listen(&service, "127.0.0.1:0", 16);
    let (_, own) = connect(&service, address);
    let accepted = arrival(&placeholder);
    drop(own);
    // The service reads the report of the close.
    service.send(Command::Sweep);
    for _ in 0..2 {
        service.succeed();
        service.send(Command::Sweep);
        assert_eq!(service.shown().counters.sweeps, 0, "no connection is without a watch");
    }
    drop(accepted);
    let shown = service.until_by_itself(|shown| shown.connections == 0);
    assert_eq!(shown.counters.sweeps, 0);
}

#[test]
fn a_successor_takes_everything_over_and_no_request_is_refused() {
    let mut service = TestService::new();
    let (placeholder, address) = listen(&service, "127.0.0.1:0", 300);
    // More than a pair holds, so that some wait in the service, of both kinds.
    let clients: Vec<_> = (0..120).map(|_| connect(&service, address)).collect();
    assert!(clients.iter().all(|(reply, _)| reply.kind() == ReplyKind::Connected));
    let kernels = TcpStream::connect(address).unwrap();
    service.succeed();
    // The successor has the established connections, delivers the waiting ones in order, and serves
    // new ones.
    let own = clients[7].1[0].as_ref().unwrap();
    let (reply, _) = service.call(&request(RequestKind::Adopt), &[own.as_fd()]).unwrap();
    assert_eq!((reply.kind(), reply.local), (ReplyKind::Stream, clients[7].0.local));
    for (reply, _) in &clients {
        assert_eq!(arrival(&placeholder).0.peer, reply.local);
    }
    assert_eq!(arrival(&placeholder).0.peer.address(), kernels.local_addr().ok());
    let (reply, _later) = connect(&service, address);
    assert_eq!(reply.kind(), ReplyKind::Connected);
    assert!(clients.iter().all(|(earlier, _)| earlier.local != reply.local));
    arrival(&placeholder);
    drop((clients, placeholder));
    service.until(|shown| shown.listeners == 0 && shown.connections <= 1);
}
