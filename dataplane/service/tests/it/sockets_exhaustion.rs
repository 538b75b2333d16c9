//! A service without descriptors: connections wait, and none is lost.
//!
//! The limit is that of the whole process, so the test runs in a process of its own ([`isolated`]).

use std::net::TcpStream;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use rustix::time::{ClockId, clock_gettime};
use sietch_protocol::socket_service::{Descriptors, ReplyKind, RequestKind, call_on, send_message};

use crate::isolated;
use crate::sockets_fixture::{TestService, arrival, client, listen, request};

/// Waits until the service has closed the connection of the request. With one free descriptor the
/// service would never run out.
fn settle(service: &TestService) {
    let socket = service.open();
    let mut received = Descriptors::default();
    call_on(socket.as_fd(), &request(RequestKind::Hello), &[], &mut received).expect("it answers");
    let (_, length) = rustix::net::recv(&socket, &mut [0; 1][..], RecvFlags::empty()).expect("an end");
    assert_eq!(length, 0, "it has closed its end");
}

#[test]
fn clients_of_the_kernel_wait_until_there_are_descriptors_again() {
    if isolated::passes("clients_of_the_kernel_wait_until_there_are_descriptors_again") {
        return;
    }
    let service = TestService::new();
    let (placeholder, address) = listen(&service, "127.0.0.1:0", 64);
    let clients: Vec<_> = (0..20).map(|_| client(AddressFamily::INET)).collect();
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // The service has accepted this connection by then, and waits for its request.
    let early = service.open();
    settle(&service);
    // All lower descriptor numbers are in use: the clients have the highest.
    let next = std::fs::File::open("/dev/null").unwrap().as_raw_fd();
    let limit = u64::try_from(next).unwrap();
    setrlimit(Resource::Nofile, Rlimit { current: Some(limit), maximum }).unwrap();
    for client in &clients {
        rustix::net::connect(client, &address).unwrap();
    }
    while service.noted().counters.exhausted == 0 {
        std::thread::yield_now();
    }
    // The descriptors of a request do not arrive. The service leaves its sender to the kernel, and
    // sends it no other event.
    let mut query = request(RequestKind::Connect);
    query.remote = address.into();
    let mut received = Descriptors::default();
    let reply = call_on(early.as_fd(), &query, &[clients[0].as_fd()], &mut received).expect("an answer");
    assert_eq!(reply.kind(), ReplyKind::UseKernel);
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
    let mut arrived: Vec<_> =
        clients.iter().map(|_| arrival(&placeholder).0.peer.address().unwrap()).collect();
    let mut expected: Vec<_> =
        clients.into_iter().map(|client| TcpStream::from(client).local_addr().unwrap()).collect();
    arrived.sort();
    expected.sort();
    assert_eq!(arrived, expected);
    service.until_by_itself(|shown| shown.counters.kernel_accepted == 20);
}

/// The processor time of this process.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).expect("it is positive")
}

#[test]
fn a_connection_waits_in_pauses_while_too_many_descriptors_are_in_flight() {
    if isolated::passes("a_connection_waits_in_pauses_while_too_many_descriptors_are_in_flight") {
        return;
    }
    // The kernel sets a privileged thread no limit. The service's thread inherits this.
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
        .expect("every thread may give up its capabilities");
    let service = TestService::new();
    let (placeholder, address) = listen(&service, "127.0.0.1:0", 64);
    // This process alone has more descriptors in flight, 200, than it may then have open. Those of
    // the user's other processes, which also count, come and go.
    let (sender, _receiver) = UnixStream::pair().unwrap();
    let send = || send_message(sender.as_fd(), b"x", &[sender.as_fd(); 4], SendFlags::DONTWAIT);
    (0..50).for_each(|_| send().expect("there is room"));
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(100), ..before }).unwrap();
    assert_eq!(send(), Err(Errno::TOOMANYREFS));
    let client = client(AddressFamily::INET);
    rustix::net::connect(&client, &address).unwrap();
    service.until_by_itself(|shown| shown.counters.kernel_accepted == 1);
    let begin = processor_time();
    std::thread::sleep(Duration::from_secs(1));
    let used = processor_time() - begin;
    // 20 attempts.
    assert!(used < Duration::from_millis(50), "the service used {used:?} of a second");
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::new(&placeholder, PollFlags::IN)], Some(&at_once)), Ok(0));
    setrlimit(Resource::Nofile, before).unwrap();
    let own = TcpStream::from(client).local_addr().unwrap();
    assert_eq!(arrival(&placeholder).0.peer.address(), Some(own));
}
