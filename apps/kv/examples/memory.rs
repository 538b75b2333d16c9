//! Bytes that a key, or an element of one big collection, takes here and in redis-server.
//!
//! `cargo run --release -p sietch-kv --example memory` prints a table of twelve shapes. An argument
//! is the number of elements of each shape (1,000,000 if there is none).
//!
//! 1. Each shape is filled into a new process for each side: a shard of this store without clients'
//!    sockets, and a redis-server 7.0 on a Unix socket, if there is one.
//! 2. *used* is the difference of `used_memory` before and after, *rss* that of the process'
//!    resident bytes, both divided by the number of keys or elements. The resident bytes include
//!    what the allocator keeps and does not use.

use std::io::{Error, Result};
use std::net::SocketAddr;
use std::process::{Command, ExitCode};

use sietch_kv::settings::{Durability, Settings};
use sietch_kv::shard::{ClientId, Now, Shard};
use sietch_kv_programs::connection::encode;
use sietch_kv_programs::oracle::Oracle;
use sietch_kv_programs::reply::Reply;

/// Elements of a shape unless an argument says otherwise.
const ELEMENTS: usize = 1_000_000;

/// Commands that redis-server gets at a time.
const BATCH: usize = 1000;

/// Elements in one command.
const ELEMENTS_AT_ONCE: usize = 50;

type Words = Vec<Vec<u8>>;

/// A shape of data.
struct Shape {
    name: &'static str,
    /// Elements of a key; 0: one key has all.
    size: usize,
    /// The command, and the words of element `n`.
    command: &'static str,
    element: fn(usize) -> Words,
}

fn text(prefix: &str, number: usize, length: usize) -> Vec<u8> {
    format!("{prefix}{number:0width$}", width = length - prefix.len()).into_bytes()
}

const SHAPES: [Shape; 12] = [
    Shape { name: "string of 64 bytes", size: 1, command: "SET", element: |_| vec![vec![b'v'; 64]] },
    Shape {
        name: "string, with expiry",
        size: 1,
        command: "SET",
        element: |n| {
            let deadline = 4_000_000_000_000 + n * 7919 % 1_000_000_007;
            vec![vec![b'v'; 64], b"PXAT".to_vec(), deadline.to_string().into_bytes()]
        },
    },
    Shape { name: "integer", size: 1, command: "SET", element: |n| vec![(1_000_000 + n).to_string().into()] },
    Shape { name: "hash of 5 fields", size: 5, command: "HSET", element: field },
    Shape { name: "hash of 50 fields", size: 50, command: "HSET", element: field },
    Shape { name: "big hash", size: 0, command: "HSET", element: field },
    Shape { name: "list of 10", size: 10, command: "RPUSH", element: |n| vec![text("e", n, 8)] },
    Shape { name: "big list", size: 0, command: "RPUSH", element: |n| vec![text("e", n, 8)] },
    Shape { name: "set of 10 integers", size: 10, command: "SADD", element: |n| vec![n.to_string().into()] },
    Shape { name: "big set", size: 0, command: "SADD", element: |n| vec![text("e", n, 8)] },
    Shape { name: "sorted set of 10", size: 10, command: "ZADD", element: member },
    Shape { name: "big sorted set", size: 0, command: "ZADD", element: member },
];

fn field(number: usize) -> Words {
    vec![text("f", number, 8), text("v", number, 8)]
}

fn member(number: usize) -> Words {
    vec![number.to_string().into(), text("e", number, 8)]
}

impl Shape {
    /// What the figures are divided by.
    fn divisor(&self, elements: usize) -> usize {
        elements.checked_div(self.size).unwrap_or(elements)
    }

    /// Calls `run` with each command that fills the shape.
    fn fill(&self, elements: usize, run: &mut dyn FnMut(Words)) {
        let size = if self.size == 0 { elements } else { self.size };
        for first in (0..elements).step_by(size) {
            let key = text("key:", first / size, 16);
            for start in (first..first + size).step_by(ELEMENTS_AT_ONCE.min(size)) {
                let mut words: Words = vec![self.command.into(), key.clone()];
                for number in start..(start + ELEMENTS_AT_ONCE).min(first + size) {
                    words.extend((self.element)(number));
                }
                run(words);
            }
        }
    }
}

/// Bytes in use and resident bytes.
#[derive(Clone, Copy)]
struct Figures {
    used: f64,
    resident: f64,
}

impl Figures {
    fn each(self, before: Self, divisor: usize) -> Self {
        let each = |after: f64, before: f64| (after - before) / divisor as f64;
        Self { used: each(self.used, before.used), resident: each(self.resident, before.resident) }
    }
}

/// The resident bytes of this process.
fn resident() -> Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().split(' ').next()?.parse::<f64>().ok());
    Ok(kilobytes.ok_or_else(|| Error::other("/proc/self/status has no VmRSS"))? * 1024.0)
}

/// A shard with one client.
struct Store {
    shard: Shard,
    client: ClientId,
    now: Now,
}

impl Store {
    fn new() -> Result<Self> {
        let mut settings = Settings::default();
        settings.durability = Durability::None;
        let mut shard = Shard::new(settings, 42);
        let now = Now { monotonic_ns: 1_000_000_000, unix_ms: 1_700_000_000_000 };
        let address = SocketAddr::from(([127, 0, 0, 1], 40_000));
        let client = shard.connect(address, address, now).map_err(|_| Error::other("no client fits"))?;
        Ok(Self { shard, client, now })
    }

    fn ask(&mut self, command: &Words) -> Result<()> {
        self.shard.feed(self.client, &encode(command), self.now);
        self.shard.seal(0);
        let output = self.shard.output(self.client);
        if output.first().is_none_or(|&first| first == b'-') {
            return Err(Error::other(String::from_utf8_lossy(output).into_owned()));
        }
        let length = output.len();
        self.shard.consumed(self.client, length);
        Ok(())
    }

    fn figures(&self) -> Result<Figures> {
        Ok(Figures { used: self.shard.used_memory() as f64, resident: resident()? })
    }
}

/// Fills a shape here, in a process of its own, and prints the figures.
fn measure_here(shape: &Shape, elements: usize) -> Result<()> {
    let mut store = Store::new()?;
    let before = store.figures()?;
    let mut failed = None;
    shape.fill(elements, &mut |command| {
        if failed.is_none() {
            failed = store.ask(&command).err();
        }
    });
    if let Some(error) = failed {
        return Err(error);
    }
    let each = store.figures()?.each(before, shape.divisor(elements));
    println!("{} {}", each.used, each.resident);
    Ok(())
}

fn here(number: usize, elements: usize) -> Result<Figures> {
    let program = std::env::current_exe()?;
    let output = Command::new(program).args([elements.to_string(), number.to_string()]).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut words = text.split_whitespace().map(str::parse::<f64>);
    match (words.next(), words.next()) {
        (Some(Ok(used)), Some(Ok(resident))) => Ok(Figures { used, resident }),
        _ => Err(Error::other(format!("no figures: {text}{}", String::from_utf8_lossy(&output.stderr)))),
    }
}

fn redis_figures(oracle: &mut Oracle) -> Result<Figures> {
    let Reply::Bulk(reply) = oracle.connection.request(&["INFO", "memory"])? else {
        return Err(Error::other("INFO is no bulk string"));
    };
    let reply = String::from_utf8_lossy(&reply).into_owned();
    let number = |name: &str| {
        let at = reply.find(name)? + name.len();
        let digits = reply[at..].split(|other: char| !other.is_ascii_digit()).next()?;
        digits.parse::<f64>().ok()
    };
    match (number("used_memory:"), number("used_memory_rss:")) {
        (Some(used), Some(resident)) => Ok(Figures { used, resident }),
        _ => Err(Error::other(format!("INFO has no figures: {reply}"))),
    }
}

/// Fills a shape into a redis-server; `None` if there is none of version 7.0.
fn redis(shape: &Shape, elements: usize) -> Result<Option<Figures>> {
    let Some(mut oracle) = Oracle::start() else { return Ok(None) };
    let before = redis_figures(&mut oracle)?;
    let mut batch: Vec<Words> = Vec::new();
    let mut outcome = Ok(());
    let send = |batch: &mut Vec<Words>, oracle: &mut Oracle| -> Result<()> {
        let commands: Vec<&[Vec<u8>]> = batch.iter().map(Vec::as_slice).collect();
        for reply in oracle.connection.request_all(&commands)? {
            if let Reply::Error(error) = reply {
                return Err(Error::other(format!("redis-server: {error:?}")));
            }
        }
        batch.clear();
        Ok(())
    };
    shape.fill(elements, &mut |command| {
        batch.push(command);
        if batch.len() == BATCH && outcome.is_ok() {
            outcome = send(&mut batch, &mut oracle);
        }
    });
    outcome?;
    send(&mut batch, &mut oracle)?;
    Ok(Some(redis_figures(&mut oracle)?.each(before, shape.divisor(elements))))
}

fn run() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let parse = |word: String| word.parse::<usize>().map_err(|_| Error::other(format!("{word}: no number")));
    let elements = words.next().map_or(Ok(ELEMENTS), parse)?;
    // Whole keys only.
    let elements = (elements / 50).max(1) * 50;
    if let Some(number) = words.next() {
        let shape = SHAPES.get(parse(number)?).ok_or_else(|| Error::other("there is no such shape"))?;
        return measure_here(shape, elements);
    }
    println!("| shape | keys | used here | used in Redis | rss here | rss in Redis |");
    println!("| --- | --- | --- | --- | --- | --- |");
    for (number, shape) in SHAPES.iter().enumerate() {
        let sietch = here(number, elements)?;
        let keys = elements.checked_div(shape.size).unwrap_or(1);
        let (used, resident) = match redis(shape, elements)? {
            Some(redis) => (format!("{:.1}", redis.used), format!("{:.1}", redis.resident)),
            None => ("-".into(), "-".into()),
        };
        println!(
            "| {} | {keys} | {:.1} | {used} | {:.1} | {resident} |",
            shape.name, sietch.used, sietch.resident
        );
    }
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("memory: {error}");
            ExitCode::FAILURE
        }
    }
}
