//! `used_memory` is what the allocator gives.
//!
//! The tests run themselves in a process of their own for each shape, where nothing else allocates.
//! They compare the growth of `used_memory` with that of the process' resident bytes, and see these
//! fall when the data are gone.

use std::net::SocketAddr;
use std::process::Command;

use sietch_kv::settings::{Durability, Settings};
use sietch_kv::shard::{ClientId, Now, Shard};
use sietch_kv_programs::connection::encode;

/// Keys, or elements of one big collection: some ten megabytes, beside which pages that are touched
/// by chance do not matter.
const COUNT: usize = 150_000;

/// Most that the resident bytes may differ from those in use, in percent: chunks that wait to be
/// reused, and tops of arenas.
const TOLERANCE: f64 = 8.0;

/// The same for small collections that grow field by field: reallocations leave chunks.
const TOLERANCE_OF_SMALL: f64 = 18.0;

/// The same for tables: the vectors of all segments grow at the same time, and the chunks that they
/// leave fit none of them until the next split.
const TOLERANCE_OF_TABLES: f64 = 40.0;

/// Names the shape for the process that fills it.
const SHAPE: &str = "SIETCH_KV_MEMORY_SHAPE";

/// The command for element `number` of each shape.
fn command(shape: usize, number: usize) -> Option<String> {
    Some(match shape {
        0 => format!("SET key:{number:012} {}", "v".repeat(64)),
        1 => format!("SET key:{number:012} {number}"),
        2 => {
            format!("SET key:{number:012} {} PXAT {}", "v".repeat(64), 4_000_000_000_000_u64 + number as u64)
        }
        3 => format!("HSET key:{number:012} f1 {number} f2 value f3 {number} f4 x f5 {number:08}"),
        4 => format!("HSET hash f{number:07} v{number:07}"),
        5 => format!("RPUSH list e{number:07}"),
        6 => format!("SADD set e{number:07}"),
        7 => format!("ZADD zset {} e{number:07}", number * 7919 % COUNT),
        _ => return None,
    })
}

fn resident() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc is there");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a process has memory");
    let kilobytes: f64 = line.trim().split(' ').next().and_then(|word| word.parse().ok()).expect("a number");
    kilobytes * 1024.0
}

/// A shard with one client.
struct Filled {
    shard: Shard,
    client: ClientId,
    now: Now,
}

impl Filled {
    fn new() -> Self {
        let mut settings = Settings::default();
        settings.durability = Durability::None;
        let now = Now { monotonic_ns: 1_000_000_000, unix_ms: 1_700_000_000_000 };
        let mut shard = Shard::new(settings, 7);
        let address = SocketAddr::from(([127, 0, 0, 1], 40_000));
        let client = shard.connect(address, address, now).expect("the first client");
        Self { shard, client, now }
    }

    fn request(&mut self, line: &str) {
        let words: Vec<String> = line.split(' ').map(String::from).collect();
        self.shard.feed(self.client, &encode(&words), self.now);
        self.shard.seal(0);
        let length = self.shard.output(self.client).len();
        self.shard.consumed(self.client, length);
    }
}

/// Fills a shape and prints how much used and resident bytes have grown.
fn fill(shape: usize) {
    let mut filled = Filled::new();
    let mut before = (0.0, 0.0);
    for number in 0..COUNT {
        filled.request(&command(shape, number).expect("a known shape"));
        if number == 1000 {
            before = (filled.shard.used_memory() as f64, resident());
        }
    }
    println!("grown: {} {}", filled.shard.used_memory() as f64 - before.0, resident() - before.1);
}

/// Fills a shape, empties the store again, and prints how much of the growth is still resident.
fn empty(shape: usize) {
    let mut filled = Filled::new();
    filled.request("SET other x");
    let before = resident();
    (0..COUNT).for_each(|number| filled.request(&command(shape, number).expect("a known shape")));
    let full = resident();
    filled.request("FLUSHALL");
    while filled.shard.next_deadline().is_some_and(|at| at <= filled.now.monotonic_ns) {
        filled.shard.tick(filled.now);
    }
    filled.request("MEMORY PURGE");
    println!("grown: {} {}", full - before, resident() - before);
}

/// What a test of this program prints in a process of its own.
fn figures(test: &str, shape: usize) -> (f64, f64) {
    let program = std::env::current_exe().expect("this program has a path");
    let output = Command::new(program)
        .args(["--exact", test, "--nocapture"])
        .env(SHAPE, shape.to_string())
        .output()
        .expect("this program runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find_map(|line| line.split_once("grown: ")).expect("it printed its figures").1;
    let numbers: Vec<f64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
    (numbers[0], numbers[1])
}

#[test]
fn memory_goes_back_to_the_system_when_the_data_are_gone() {
    if let Ok(shape) = std::env::var(SHAPE) {
        return empty(shape.parse().expect("the number of a shape"));
    }
    if !cfg!(target_env = "gnu") {
        eprintln!("SKIPPED memory_goes_back_to_the_system_when_the_data_are_gone: needs glibc");
        return;
    }
    for shape in [0, 3, 6] {
        let (grown, left) = figures("memory::memory_goes_back_to_the_system_when_the_data_are_gone", shape);
        let name = command(shape, 1).unwrap_or_default();
        assert!(grown > 5e6 && left < grown / 5.0, "{name}: {left} of {grown} bytes are still resident");
    }
}

#[test]
fn used_memory_is_what_the_allocator_gives() {
    if let Ok(shape) = std::env::var(SHAPE) {
        return fill(shape.parse().expect("the number of a shape"));
    }
    for shape in (0..).take_while(|&shape| command(shape, 0).is_some()) {
        let (used, resident) = figures("memory::used_memory_is_what_the_allocator_gives", shape);
        let percent = (resident / used - 1.0) * 100.0;
        let name = command(shape, 1).unwrap_or_default();
        let tolerance = match shape {
            3 => TOLERANCE_OF_SMALL,
            4 | 6 | 7 => TOLERANCE_OF_TABLES,
            _ => TOLERANCE,
        };
        assert!(
            percent.abs() < tolerance,
            "{name}: {used} bytes in use, {resident} resident: {percent:.1} %"
        );
    }
}
