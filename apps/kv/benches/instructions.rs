//! Instructions of a command in the shard, counted by callgrind: repeatable where time is not.
//!
//! Fifty clients send commands for random keys among many, one at a time or pipelined, without a
//! log. The count covers all calls of the event loop for [`COMMANDS`] commands: input is fed,
//! replies are sealed, taken and consumed. Set-up is not counted. The limits are the measured
//! counts plus 3 %. What the compiler inlines moves the counts by up to 5 % between builds of
//! nearly the same code; a change that exceeds them must change them here. A key is hashed with a
//! keyed hash (SipHash-1-3), some 110 instructions, and twice in a pipeline, where the memory that
//! it needs is prefetched.
#![allow(missing_docs, reason = "gungraun's macros make public items")]

use std::hint::black_box;
use std::net::SocketAddr;
use std::ops::Range;

use gungraun::{
    Callgrind, EventKind, LibraryBenchmarkConfig, library_benchmark, library_benchmark_group, main,
};
use sietch_kv::settings::{Durability, Settings};
use sietch_kv::shard::ClientId;
use sietch_kv::shard::{Now, Shard};
use sietch_kv_programs::connection::encode;
use sietch_structures::XorShift64;

/// Commands that a measurement counts.
const COMMANDS: usize = 3200;

const CLIENTS: usize = 50;

/// Keys: those of `bench load` are more, which changes the misses and not the instructions.
const KEYS: u64 = 10_000;

/// Bytes of a value.
const VALUE: usize = 64;

/// Elements of a collection before.
const ELEMENTS: usize = 8;

/// A shard with clients, and the pipelines that they will send.
struct Scene {
    shard: Shard,
    clients: Vec<ClientId>,
    ready: Vec<ClientId>,
    now: Now,
    pipelines: Vec<Vec<u8>>,
}

impl Scene {
    fn new() -> Self {
        let mut settings = Settings::default();
        settings.durability = Durability::None;
        let mut shard = Shard::new(settings, 42);
        let now = Now { monotonic_ns: 1_000_000_000, unix_ms: 1_700_000_000_000 };
        let address = SocketAddr::from(([127, 0, 0, 1], 40_000));
        let connect = |_| shard.connect(address, address, now).expect("fewer than maxclients");
        let clients = (0..CLIENTS).map(connect).collect();
        Self { shard, clients, ready: Vec::new(), now, pipelines: Vec::new() }
    }

    /// The calls of the event loop for the input of all clients, until all pipelines are done.
    fn iterate(&mut self) {
        for inputs in self.pipelines.chunks(CLIENTS) {
            self.now.monotonic_ns += 1000;
            for (client, bytes) in self.clients.iter().zip(inputs) {
                self.shard.feed(*client, bytes, self.now);
            }
            self.shard.seal(0);
            self.shard.take_ready(&mut self.ready);
            for client in self.ready.drain(..) {
                let length = black_box(self.shard.output(client)).len();
                self.shard.consumed(client, length);
            }
        }
    }
}

/// A command that is counted. A collection has [`ELEMENTS`] elements before.
#[derive(Clone, Copy)]
enum Counted {
    Get,
    Set,
    Lpush,
    Lpop,
    Hset,
    Sadd,
    Zadd,
}

impl Counted {
    /// The command for a key, and the elements that it adds to a collection.
    fn request(self, key: u64, elements: Range<usize>) -> Vec<u8> {
        let key = format!("key:{key:012}");
        let elements = elements.map(|element| format!("element:{element:04}"));
        let each = |name: &str, words: fn(String) -> Vec<String>| {
            let head = [name.to_owned(), key.clone()];
            encode(&head.into_iter().chain(elements.flat_map(words)).collect::<Vec<_>>())
        };
        match self {
            Self::Get => encode(&["GET", &key]),
            Self::Set => encode(&["SET", &key, &"x".repeat(VALUE)]),
            Self::Lpush => each("LPUSH", |element| vec![element]),
            Self::Lpop => encode(&["LPOP", &key]),
            Self::Hset => each("HSET", |element| vec![element, "value".to_owned()]),
            Self::Sadd => each("SADD", |element| vec![element]),
            Self::Zadd => each("ZADD", |element| vec!["17".to_owned(), element]),
        }
    }

    /// The command that creates a key of the type.
    fn fill(self) -> Self {
        match self {
            Self::Get => Self::Set,
            Self::Lpop => Self::Lpush,
            _ => self,
        }
    }
}

fn scene(counted: Counted, pipeline: usize) -> Scene {
    let mut scene = Scene::new();
    let mut generator = XorShift64::new(0x9e37_79b9_7f4a_7c15);
    let mut random = move || generator.word() % KEYS;
    let mut element = ELEMENTS;
    let mut pipelines = || -> Vec<Vec<u8>> {
        let mut next = |_| {
            element += 1;
            counted.request(random(), element..element + 1)
        };
        (0..COMMANDS / pipeline).map(|_| (0..pipeline).flat_map(&mut next).collect()).collect()
    };
    // Afterwards every key exists, and every buffer has its final size.
    let all = (0..KEYS).map(|key| counted.fill().request(key, 0..ELEMENTS));
    for warm in [all.collect(), pipelines()] {
        scene.pipelines = warm;
        scene.iterate();
    }
    scene.pipelines = pipelines();
    scene
}

fn limit(instructions: u64) -> LibraryBenchmarkConfig {
    let limit = instructions * COMMANDS as u64 * 103 / 100;
    LibraryBenchmarkConfig::default().tool(Callgrind::default().hard_limits([(EventKind::Ir, limit)])).clone()
}

#[library_benchmark]
#[bench::get(args = (Counted::Get, 1), setup = scene, config = limit(1575))]
#[bench::get_pipelined(args = (Counted::Get, 16), setup = scene, config = limit(1224))]
#[bench::set(args = (Counted::Set, 1), setup = scene, config = limit(1622))]
#[bench::set_pipelined(args = (Counted::Set, 16), setup = scene, config = limit(1271))]
#[bench::lpush(args = (Counted::Lpush, 1), setup = scene, config = limit(3189))]
#[bench::lpop(args = (Counted::Lpop, 1), setup = scene, config = limit(3134))]
#[bench::hset(args = (Counted::Hset, 1), setup = scene, config = limit(4141))]
#[bench::sadd(args = (Counted::Sadd, 1), setup = scene, config = limit(3741))]
#[bench::zadd(args = (Counted::Zadd, 1), setup = scene, config = limit(6816))]
fn command(mut scene: Scene) -> Scene {
    black_box(&mut scene).iterate();
    scene
}

library_benchmark_group!(name = shard; benchmarks = command);
main!(library_benchmark_groups = shard);
