//! Limits of all cores together.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use sietch::VnicQueue;
use sietch::disk::AreaQueue;
use sietch_socket::{Choice, SocketQueue};

use super::{SECOND, connect};
use crate::foundation::settings::{Durability, Settings};
use crate::server::Reactor;
use crate::server::cores::channels::Channels;
use crate::shard::{Now, Placement, Shard, Totals};

#[test]
fn a_core_that_has_slept_knows_what_the_others_have() {
    let now = Now { monotonic_ns: SECOND, unix_ms: 1_700_000_000_000 };
    let totals = Arc::new(Totals::new(2));
    let settings = || Settings { durability: Durability::None, maxmemory: 1_000_000, ..Settings::default() };
    let shard = |own| Shard::with_placement(settings(), 1, Placement::new(own, 2), Arc::clone(&totals));
    let (mut other, ours) = (shard(0), shard(1));
    let key_of = |shard: usize| {
        let placement = Placement::new(0, 2);
        let mut names = (0..).map(|number| format!("k{number}"));
        names.find(|key| placement.shard_of(key.as_bytes()) == shard).expect("one")
    };
    let mut channels = Channels::connect(2).expect("descriptors");
    let mut sockets = SocketQueue::open(Choice::Automatic).expect("a queue");
    let address = sockets.listen(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
    let mut reactor: Reactor<VnicQueue, AreaQueue> = Reactor::new(ours, None, None, Some(sockets));
    reactor.join(Placement::new(1, 2), Box::new(channels.pop().expect("two")));
    let mut client = TcpStream::connect(address).expect("it listens");
    while reactor.shard().is_some_and(|shard| shard.clients() == 0) {
        reactor.iterate(now).expect("nothing fails");
    }
    // Meanwhile another shard takes all memory.
    let id = connect(&mut other, now);
    other.feed(id, format!("SETRANGE {} 1100000 x\r\n", key_of(0)).as_bytes(), now);
    other.seal(0);
    client.write_all(format!("SET {} x\r\n", key_of(1)).as_bytes()).expect("it is connected");
    while reactor.shard().is_some_and(|shard| shard.metrics().input_bytes == 0) {
        reactor.iterate(now).expect("nothing fails");
    }
    let mut reply = [0; 4];
    client.read_exact(&mut reply).expect("a reply");
    assert_eq!(&reply, b"-OOM");
}
