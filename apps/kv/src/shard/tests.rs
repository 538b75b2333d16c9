//! What a client, or the event loop, would miss.
//!
//! All tests run twice: with the keys in one partition, and spread over three, of which two are
//! guests of the shard all the time (`partitions.rs`).

use std::cell::Cell;
use std::net::SocketAddr;

use super::peers::Peers;
use super::*;

mod access;
mod durability;
mod limits;
mod memory;
mod observation;
mod partitions;
mod protocol;
mod recovery;
mod rights;
mod sessions;
mod slices;

/// The environment's variable that says over how many partitions the keys of a bench are spread.
const PARTITIONS: &str = "KV_TEST_PARTITIONS";

/// A shard with the event loop's part played by the test: without a log every reply leaves at once.
struct Bench {
    shard: Shard,
    now: Now,
    sequence: u64,
    /// The shards whose partitions are guests of `shard`.
    others: Vec<Shard>,
    /// How many of the shards have dumped all their keys.
    dumped: usize,
}

impl Bench {
    fn new() -> Self {
        Self::with(Settings::default())
    }

    fn with(settings: Settings) -> Self {
        let partitions = std::env::var(PARTITIONS).ok().and_then(|text| text.parse().ok());
        Self::spread(settings, partitions.unwrap_or(1))
    }

    /// A shard that holds so many partitions all the time.
    fn spread(settings: Settings, partitions: usize) -> Self {
        let now = Now { monotonic_ns: 1_000_000_000, unix_ms: 1_700_000_000_000 };
        let totals = Arc::new(Totals::new(partitions));
        let make = |own| {
            let placement = Placement::new(own, partitions);
            Shard::with_placement(settings.clone(), 42 + own as u64, placement, Arc::clone(&totals))
        };
        // Partitions before and behind the own one.
        let own = partitions / 2;
        let others = (0..partitions).filter(|&other| other != own).map(make).collect();
        let mut bench = Self { shard: make(own), now, sequence: 0, others, dumped: 0 };
        // It has all keys, so it runs all commands itself; and it has all clients.
        bench.shard.peers = Peers::default();
        bench.shard.clients = Clients::new(0, 1);
        bench.shard.observe();
        bench.host();
        bench
    }

    fn host(&mut self) {
        let taken = |other: &mut Shard| (other.store.placement().own(), other.store.take_partition());
        let guests = self.others.iter_mut().map(taken).collect();
        self.shard.store.host(guests);
    }

    /// Does `work` while every shard has its own partition.
    fn apart<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> T {
        for (owner, partition) in self.shard.store.release_guests() {
            let other = self.others.iter_mut().find(|other| other.store.placement().own() == owner);
            other.expect("its partition was taken").store.put_partition(partition);
        }
        let result = work(self);
        self.host();
        result
    }

    fn begin_snapshot(&mut self) {
        self.dumped = 0;
        self.apart(|bench| {
            bench.shard.begin_snapshot();
            bench.others.iter_mut().for_each(Shard::begin_snapshot);
        });
    }

    /// As [`Shard::snapshot_slice`], of one shard after the other.
    fn snapshot_slice(&mut self, as_of: u64, budget: usize, out: &mut dyn FnMut(&[u8])) -> bool {
        self.apart(|bench| {
            let (large_value, largest_record) = (bench.shard.large_value, bench.shard.largest_record);
            let mut left = budget;
            let shards = [&mut bench.shard].into_iter().chain(&mut bench.others);
            for shard in shards.skip(bench.dumped) {
                (shard.large_value, shard.largest_record) = (large_value, largest_record);
                let complete = left > 0
                    && shard.snapshot_slice(as_of, left, &mut |record| {
                        left = left.saturating_sub(record.len());
                        out(record);
                    });
                if !complete {
                    return false;
                }
                bench.dumped += 1;
            }
            true
        })
    }

    fn snapshot_aborted(&mut self) -> bool {
        self.apart(|bench| bench.shard.snapshot_aborted() || bench.others.iter().any(Shard::snapshot_aborted))
    }

    fn connect(&mut self) -> ClientId {
        let address = SocketAddr::from(([127, 0, 0, 1], 40_000));
        self.shard.connect(address, address, self.now).expect("fewer than maxclients")
    }

    /// A shard whose clock advances by `step` nanoseconds whenever it is read, and by the whole
    /// time of a sleep.
    fn timed(step: u64) -> Self {
        thread_local!(static CLOCK: Cell<(u64, u64)> = const { Cell::new((0, 0)) });
        CLOCK.set((0, step));
        let mut bench = Self::new();
        bench.shard.measure_with(TimeSource {
            monotonic_ns: || {
                let (now, step) = CLOCK.get();
                CLOCK.set((now + step, step));
                now
            },
            sleep: |time| CLOCK.set((CLOCK.get().0 + time.as_nanos() as u64, CLOCK.get().1)),
        });
        bench
    }

    /// Lets time pass and the shard tick.
    fn pass(&mut self, milliseconds: u64) {
        self.now.monotonic_ns += milliseconds * 1_000_000;
        self.now.unix_ms += milliseconds;
        self.shard.tick(self.now);
    }

    /// Everything a client has been sent since the last call.
    fn output(&mut self, id: ClientId) -> String {
        self.sequence += 1;
        self.shard.seal(self.sequence);
        self.shard.durable(self.sequence);
        let text = String::from_utf8_lossy(self.shard.output(id)).into_owned();
        let length = self.shard.output(id).len();
        self.shard.consumed(id, length);
        text
    }

    /// Sends an inline command and returns the reply.
    fn request(&mut self, id: ClientId, command: &str) -> String {
        self.shard.feed(id, format!("{command}\r\n").as_bytes(), self.now);
        self.output(id)
    }
}

#[test]
fn a_difference_has_the_encoding_that_redis_gives_it() {
    let mut bench = Bench::new();
    let client = bench.connect();
    bench.request(client, "SADD many a 1 2 3 4 5 6 7");
    bench.request(client, "SADD few a");
    bench.request(client, "SADD same a 8 9 10 11 12 13 14 15");
    // Small sets are removed from a copy of a large one, which was no set of integers.
    assert_eq!(bench.request(client, "SDIFFSTORE to many few few"), ":7\r\n");
    assert_eq!(bench.request(client, "OBJECT ENCODING to"), "$9\r\nhashtable\r\n");
    // Else what is left is found one by one.
    assert_eq!(bench.request(client, "SDIFFSTORE to many few"), ":7\r\n");
    assert_eq!(bench.request(client, "OBJECT ENCODING to"), "$6\r\nintset\r\n");
    assert_eq!(bench.request(client, "SDIFFSTORE to many same few"), ":7\r\n");
    assert_eq!(bench.request(client, "OBJECT ENCODING to"), "$6\r\nintset\r\n");
    assert_eq!(bench.request(client, "SDIFFSTORE to many few many"), ":0\r\n");
    assert_eq!(bench.request(client, "EXISTS to"), ":0\r\n");
}

#[test]
fn strings_are_set_and_read() {
    let mut bench = Bench::new();
    let client = bench.connect();
    assert_eq!(bench.request(client, "PING"), "+PONG\r\n");
    assert_eq!(bench.request(client, "SET key value"), "+OK\r\n");
    assert_eq!(bench.request(client, "get key"), "$5\r\nvalue\r\n");
    assert_eq!(bench.request(client, "GET other"), "$-1\r\n");
    assert_eq!(bench.request(client, "INCR n"), ":1\r\n");
    assert_eq!(
        bench.request(client, "NOPE a b"),
        "-ERR unknown command 'NOPE', with args beginning with: 'a' 'b' \r\n"
    );
}
