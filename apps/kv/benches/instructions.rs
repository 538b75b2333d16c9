//! Instructions of a pipelined command in the shard, counted by callgrind: repeatable where time is
//! not.
//!
//! Fifty clients send pipelines for random keys among many, without a log. The count covers all
//! calls of the event loop for [`COMMANDS`] commands: input is fed, replies are sealed, taken and
//! consumed. Set-up is not counted. The limits are the measured counts plus 3 %. What the compiler
//! inlines moves the counts by up to 5 % between builds of nearly the same code; a change that
//! exceeds them must change them here. A key is hashed with a keyed hash (SipHash-1-3), some 110
//! instructions, and twice in a pipeline, where the memory that it needs is prefetched.
#![allow(missing_docs, reason = "gungraun's macros make public items")]

use std::hint::black_box;
use std::net::SocketAddr;

use gungraun::{
    Callgrind, EventKind, LibraryBenchmarkConfig, library_benchmark, library_benchmark_group, main,
};
use sietch_kv::settings::{Durability, Settings};
use sietch_kv::shard::ClientId;
use sietch_kv::shard::{Now, Shard};
use sietch_structures::XorShift64;

/// Commands that a measurement counts.
const COMMANDS: usize = 3200;

const CLIENTS: usize = 50;

/// Keys: those of `bench load` are more, which changes the misses and not the instructions.
const KEYS: u64 = 10_000;

/// Bytes of a value.
const VALUE: usize = 64;

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

fn request(out: &mut Vec<u8>, set: bool, key: u64) {
    let value = "x".repeat(VALUE);
    let text = if set {
        format!("*3\r\n$3\r\nSET\r\n$16\r\nkey:{key:012}\r\n${VALUE}\r\n{value}\r\n")
    } else {
        format!("*2\r\n$3\r\nGET\r\n$16\r\nkey:{key:012}\r\n")
    };
    out.extend_from_slice(text.as_bytes());
}

fn scene(set: bool, pipeline: usize) -> Scene {
    let mut scene = Scene::new();
    let mut generator = XorShift64::new(0x9e37_79b9_7f4a_7c15);
    let mut random = move || generator.word() % KEYS;
    let mut pipelines = |set: bool| -> Vec<Vec<u8>> {
        let one = |_| {
            let mut bytes = Vec::new();
            (0..pipeline).for_each(|_| request(&mut bytes, set, random()));
            bytes
        };
        (0..COMMANDS / pipeline).map(one).collect()
    };
    let all = (0..KEYS).map(|key| {
        let mut bytes = Vec::new();
        request(&mut bytes, true, key);
        bytes
    });
    // Afterwards every key exists, and every buffer has its final size.
    for warm in [all.collect(), pipelines(set)] {
        scene.pipelines = warm;
        scene.iterate();
    }
    scene.pipelines = pipelines(set);
    scene
}

fn limit(instructions: u64) -> LibraryBenchmarkConfig {
    let limit = instructions * COMMANDS as u64 * 103 / 100;
    LibraryBenchmarkConfig::default().tool(Callgrind::default().hard_limits([(EventKind::Ir, limit)])).clone()
}

#[library_benchmark]
#[bench::get(args = (false, 1), setup = scene, config = limit(1784))]
#[bench::get_pipelined(args = (false, 16), setup = scene, config = limit(1238))]
#[bench::set(args = (true, 1), setup = scene, config = limit(1813))]
#[bench::set_pipelined(args = (true, 16), setup = scene, config = limit(1254))]
fn command(mut scene: Scene) -> Scene {
    black_box(&mut scene).iterate();
    scene
}

library_benchmark_group!(name = shard; benchmarks = command);
main!(library_benchmark_groups = shard);
