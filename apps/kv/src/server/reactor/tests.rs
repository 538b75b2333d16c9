//! A reactor on real sockets, in virtual time.

use std::net::TcpStream;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sietch::VnicQueue;
use sietch::disk::AreaQueue;
use sietch::stream::service::DirectService;
use sietch_socket::Choice;

use super::*;
use crate::foundation::settings::Settings;

fn at(monotonic_ns: u64) -> Now {
    Now { monotonic_ns, unix_ms: 1 }
}

#[test]
fn an_arrival_that_is_reported_while_the_server_is_awake_is_served_before_it_sleeps() {
    let service = DirectService::new("/nonexistent/sockets.sock", [7; 16]);
    let streams = StreamTransport::open(service, ([127, 0, 0, 1], 0).into()).expect("a free port");
    let address = streams.address().expect("it listens");
    // Epoll reports a doorbell once.
    let mut sockets = SocketQueue::open(Choice::Epoll).expect("descriptors");
    let doorbell = streams.doorbell().try_clone_to_owned().expect("a descriptor");
    sockets.watch(doorbell.try_clone().expect("a descriptor"), 1).expect("it is watched");
    let shard = Shard::new(Settings::default(), 42);
    let mut reactor = Reactor::<VnicQueue, AreaQueue>::new(shard, None, None, Some(sockets));
    reactor.attach_streams(streams);

    // The poller asks the kernel now, and then for a while not.
    let begin = 1_000_000_000;
    while reactor.iterate(at(begin)).expect("an iteration").busy {}
    let _client = TcpStream::connect(address).expect("it listens");
    let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::new(&doorbell, PollFlags::IN)], Some(&limit)), Ok(1));
    // The report comes in the same iteration, behind the poll of the streams.
    assert!(reactor.iterate(at(begin + 1)).expect("an iteration").busy);
    // An earlier report of the doorbell makes the poller ask now.
    if reactor.clients_on(ClientPath::Kernel) == 0 {
        assert!(reactor.iterate(at(begin + 2)).expect("an iteration").busy);
    }
    assert_eq!(reactor.clients_on(ClientPath::Kernel), 1);
}
