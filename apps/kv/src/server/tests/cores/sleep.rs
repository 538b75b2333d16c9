//! How a core sleeps while another has its shard.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use sietch::VnicQueue;
use sietch::disk::AreaQueue;
use sietch_socket::{Choice, SocketQueue};

use super::{SECOND, shards};
use crate::foundation::settings::Durability;
use crate::server::Reactor;
use crate::server::cores::channels::Channels;
use crate::server::cores::links::Links as _;
use crate::server::cores::message::Message;
use crate::server::log_writer::Progress;
use crate::shard::{Now, Placement};

/// What a reactor watches its doorbell by.
const TOKEN: u64 = 9;
/// Longer than a wake-up takes.
const PAUSE: Duration = Duration::from_millis(30);

#[test]
fn input_does_not_end_a_sleep_without_the_shard() {
    let now = Now { monotonic_ns: SECOND, unix_ms: 1_700_000_000_000 };
    let mut channels = Channels::connect(2).expect("descriptors");
    let (ours, mut coordinator) = (channels.pop().expect("two"), channels.pop().expect("two"));
    let mut sockets = SocketQueue::open(Choice::Automatic).expect("a queue");
    let doorbell = ours.doorbell().as_fd().try_clone_to_owned().expect("a descriptor");
    sockets.watch(doorbell, TOKEN).expect("an eventfd");
    let address = sockets.listen(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
    let shard = shards(2, Durability::None, 1).pop().expect("two");
    let mut reactor: Reactor<VnicQueue, AreaQueue> = Reactor::new(shard, None, None, Some(sockets));
    reactor.join(Placement::new(1, 2), Box::new(ours));
    let mut client = TcpStream::connect(address).expect("it listens");
    while reactor.shard().is_some_and(|shard| shard.clients() == 0) {
        reactor.iterate(now).expect("nothing fails");
    }
    let asleep = |reactor: &mut Reactor<VnicQueue, AreaQueue>| {
        let begin = Instant::now();
        reactor.sleep(Some(PAUSE)).expect("nothing fails");
        begin.elapsed()
    };
    coordinator.send(1, Message::Lend);
    coordinator.flush();
    while reactor.shard().is_some() {
        reactor.iterate(now).expect("nothing fails");
    }
    client.write_all(b"PING\r\n").expect("it is connected");
    for _ in 0..3 {
        assert!(!reactor.iterate(now).expect("nothing fails").busy);
        assert!(asleep(&mut reactor) >= PAUSE, "input has ended the sleep");
    }
    // A message ends it, once.
    let wakes = std::thread::spawn(move || {
        std::thread::sleep(PAUSE / 3);
        coordinator.send(1, Message::Progress(Progress::default()));
        coordinator.flush();
        coordinator
    });
    reactor.sleep(Some(Duration::from_secs(10))).expect("nothing fails");
    let mut coordinator = wakes.join().expect("it does not panic");
    reactor.iterate(now).expect("nothing fails");
    assert!(asleep(&mut reactor) >= PAUSE, "the doorbell is still readable");
    let Some((1, Message::Shard { shard, number })) = coordinator.receive() else { panic!("the shard") };
    coordinator.send(1, Message::Returned { shard, number });
    coordinator.flush();
    reactor.iterate(now).expect("nothing fails");
    assert_eq!(reactor.shard().map(|shard| shard.metrics().commands), Some(1), "the input is taken");
}
