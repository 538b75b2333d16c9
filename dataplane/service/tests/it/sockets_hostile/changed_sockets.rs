//! Listeners whose program changes the kernel's socket that it has sent.

use super::*;

/// A listener whose pair and whose kernel's queue are full, its kernel's socket, and its clients.
fn full_listener(service: &TestService) -> (OwnedFd, TcpListener, Vec<TcpStream>) {
    let kernel = TcpListener::bind("127.0.0.1:0").expect("a free port");
    rustix::net::listen(&kernel, 256).expect("it listens already");
    let address = kernel.local_addr().expect("bound");
    let placeholder = service.listen_on(&kernel, 256);
    let clients: Vec<_> =
        (0..200).map(|_| TcpStream::connect(address).expect("the kernel has room")).collect();
    let taken = u64::from(limits::IN_PAIR) / 2;
    service.until(|shown| shown.counters.kernel_accepted >= taken);
    (placeholder, kernel, clients)
}

#[test]
fn a_listener_that_was_shut_down_with_full_queues_gets_nothing_of_its_successor() {
    let service = TestService::new();
    let (thief, kernel, _clients) = full_listener(&service);
    let address = kernel.local_addr().expect("bound");
    rustix::net::shutdown(&kernel, rustix::net::Shutdown::Both).expect("it listens");
    // Both have SO_REUSEADDR, and one of them does not listen: the kernel lets both have the name.
    let next = bind_when_free(address);
    let owner = service.listen_on(&next, 64);
    for _ in 0..40 {
        let (reply, _own) = connect(&service, address);
        assert_eq!(reply.kind(), ReplyKind::Connected);
        assert_eq!(arrival(&owner).0.peer, reply.local, "it came to the present listener");
    }
    service.until(|shown| shown.listeners == 1);
    drop(thief);
}

#[test]
fn a_listener_that_was_bound_again_gets_nothing_at_its_old_name() {
    let service = TestService::new();
    let kernel = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = kernel.local_addr().expect("bound");
    let thief = service.listen_on(&kernel, 16);
    let elsewhere = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let away = elsewhere.local_addr().expect("bound");
    rustix::net::shutdown(&kernel, rustix::net::Shutdown::Both).expect("it listens");
    let _ = rustix::net::connect(&kernel, &away);
    let next = bind_when_free(address);
    let owner = service.listen_on(&next, 64);
    for _ in 0..4 {
        let (reply, _own) = connect(&service, address);
        assert_eq!(reply.kind(), ReplyKind::Connected);
        assert_eq!(arrival(&owner).0.peer, reply.local, "it came to the present listener");
    }
    drop(thief);
}

/// A socket of both families that listens at a port which the kernel chose: the port is free when
/// the socket is disconnected.
fn of_both_families() -> OwnedFd {
    let socket = client(AddressFamily::INET6);
    rustix::net::sockopt::set_ipv6_v6only(&socket, false).expect("it is unbound");
    rustix::net::listen(&socket, 16).expect("a free port");
    socket
}

fn port_of(socket: &OwnedFd) -> u16 {
    let name = rustix::net::getsockname(socket).expect("it is bound");
    SocketAddr::try_from(name).expect("an internet address").port()
}

/// Makes such a socket listen at the same name again, without IPv4. Fails if another process had
/// the port meanwhile.
fn leave_ipv4(socket: &OwnedFd) -> rustix::io::Result<()> {
    let name = SocketAddr::from((std::net::Ipv6Addr::UNSPECIFIED, port_of(socket)));
    rustix::net::connect_unspec(socket)?;
    rustix::net::sockopt::set_ipv6_v6only(socket, true)?;
    rustix::net::bind(socket, &name)?;
    rustix::net::listen(socket, 16)
}

/// Such a socket is a listener, or published for one; the service has or has not a successor.
#[test]
fn a_listener_that_no_longer_takes_ipv4_gets_none() {
    for (published, succeeds) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut service = TestService::new();
        let tried = (0..1000).find_map(|_| {
            let socket = of_both_families();
            let own = TcpListener::bind("127.0.0.1:0").expect("a free port");
            let sent = if published { vec![own.as_fd(), socket.as_fd()] } else { vec![socket.as_fd()] };
            let mut query = request(RequestKind::Listen);
            query.backlog = 16;
            let (reply, received) = service.call(&query, &sent).expect("it serves");
            assert_eq!(reply.kind(), ReplyKind::Listening);
            if succeeds {
                service.succeed();
            }
            let changed = leave_ipv4(&socket).is_ok();
            // The service may have seen that the socket did not listen.
            let is_unseen = service.shown().listeners == sent.len();
            (changed && is_unseen).then_some((socket, received))
        });
        let (socket, received) = tried.expect("the service does not see each change");
        let address = SocketAddr::from(([127, 0, 0, 1], port_of(&socket)));
        let _other = TcpListener::bind(("0.0.0.0", address.port())).expect("the kernel gives it the name");
        let (reply, _own) = connect(&service, address);
        assert_eq!(reply.kind(), ReplyKind::UseKernel, "published {published}, succession {succeeds}");
        assert_eq!(service.shown().listeners, usize::from(published));
        drop(received);
    }
}

#[test]
fn a_listener_that_is_shut_down_with_full_queues_is_closed_without_a_connection() {
    let service = TestService::new();
    let (placeholder, kernel, _clients) = full_listener(&service);
    rustix::net::shutdown(&kernel, rustix::net::Shutdown::Both).expect("it listens");
    // The kernel reports the shutdown while the socket is watched.
    service.until_by_itself(|shown| shown.listeners == 0);
    drop(placeholder);
}
