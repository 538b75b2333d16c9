//! Random programs of commands on few keys, of which one in twelve is huge, in an area that is soon
//! full: whatever was answered is there after a restart at any point, and the log never fails.
//!
//! The programs are the same each time, or others with `SIETCH_SIM_FRESH=1` (`cargo xtask soak
//! fresh`); `KV_PROGRAMS=n` runs more or fewer.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};

use sietch_structures::XorShift64Star;

use super::*;
use crate::server::recover;

/// Programs in one run unless the environment says otherwise.
const PROGRAMS: u64 = 12;
/// Commands of each.
const COMMANDS: usize = 250;
/// Bytes of the area: log and snapshot may have a little less than half of it.
const AREA: usize = 4 << 20;

struct Store {
    shard: Shard,
    log_writer: LogWriter<MemoryQueue>,
    client: ClientId,
    now: Now,
}

impl Store {
    fn start(disk: MemoryQueue, now: Now) -> Self {
        let mut shard = Shard::new(Settings::default(), now.monotonic_ns);
        let (log_writer, _) =
            recover("kv", disk, &mut shard, Durability::Always, 7, now).expect("nothing is damaged");
        log_writer.initialize(&mut shard);
        let address = SocketAddr::from(([127, 0, 0, 1], 40_000));
        let client = shard.connect(address, address, now).expect("the first");
        Self { shard, log_writer, client, now }
    }

    fn restarted(self) -> Self {
        Self::start(self.log_writer.into_log().into_disk(), self.now)
    }

    /// Runs one command as the loop does: nothing more while the log is held.
    fn request(&mut self, command: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = format!("*{}\r\n", command.len()).into_bytes();
        for word in command {
            bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            bytes.extend_from_slice(word);
            bytes.extend_from_slice(b"\r\n");
        }
        while self.log_writer.is_blocked() || self.log_writer.is_compacting_for_room() {
            self.iterate();
        }
        self.shard.feed(self.client, &bytes, self.now);
        for _ in 0..20_000 {
            self.iterate();
            let reply = self.shard.output(self.client).to_vec();
            if !reply.is_empty() && !self.log_writer.is_blocked() {
                self.shard.consumed(self.client, reply.len());
                return reply;
            }
        }
        panic!("no reply to {}", String::from_utf8_lossy(&command[0]));
    }

    fn iterate(&mut self) {
        self.now.monotonic_ns += 1_000_000;
        self.log_writer.iterate(&mut self.shard, self.now);
    }

    /// All keys with their values and expiries.
    fn state(&self) -> BTreeMap<(usize, Vec<u8>), Vec<Vec<u8>>> {
        let mut all = BTreeMap::new();
        for (number, database) in self.shard.store().own().databases().iter().enumerate() {
            for entry in database.index().iter() {
                let mut parts: Vec<Vec<u8>> = Vec::new();
                entry.rebuild(&mut |command| {
                    let pair = if matches!(command[0], b"HSET" | b"ZADD") { 2 } else { 1 };
                    parts.extend(command[2..].chunks(pair).map(|part| part.join(&b' ')));
                });
                if !matches!(entry.value().type_name(), "list" | "string") {
                    parts.sort();
                }
                all.insert((number, crate::data::index::Keyed::key(entry).to_vec()), parts);
            }
        }
        all
    }
}

fn words(text: &str) -> Vec<Vec<u8>> {
    text.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

/// One command: of these sizes, or a hundred thousand times them.
fn command(random: &mut XorShift64Star) -> Vec<Vec<u8>> {
    let huge = random.word().is_multiple_of(12);
    let mut below = |limit: u64| random.word() % limit;
    let types = ["s", "l", "e", "h", "z"];
    let (a, b) = (below(3), below(3));
    let size = if huge { 100_000 + below(1_500_000) } else { 1 + below(40) };
    let number = below(1000);
    let many = if huge { 1000 + below(20_000) } else { 1 + below(5) };
    let mut made = match below(30) {
        0 => words(&format!("SETRANGE s{a} {size} tail")),
        1 => words(&format!("SETBIT s{a} {} 1", 8 * size)),
        2 => words(&format!("BITFIELD s{a} SET u8 #{size} 1 OVERFLOW FAIL INCRBY i5 3 9")),
        3 => words(&format!("COPY s{a} s{b} REPLACE")),
        4 => words(&format!("RENAME {0}{a} {0}{b}", types[number as usize % 5])),
        5 => words(&format!("BITOP NOT s{a} s{b}")),
        6 => words(&format!("SPOP e{a} {many}")),
        7 => words(&format!("ZPOPMIN z{a} {many}")),
        8 => words(&format!("LPOP l{a} {many}")),
        9 => words(&format!("LTRIM l{a} 0 {many}")),
        10 => words(&format!("ZREMRANGEBYRANK z{a} {a} {many}")),
        11 => words(&format!("SUNIONSTORE e{a} e{a} e{b}")),
        12 => words(&format!("ZUNIONSTORE z{a} 2 z{a} z{b}")),
        13 => words(&format!("SORT l{a} ALPHA STORE l{b}")),
        14 => words(&format!("DEL {0}{a} {0}{b}", types[number as usize % 5])),
        15 => words(&format!("PEXPIREAT {}{a} {}", types[number as usize % 5], 1_900_000_000_000 + number)),
        16 => words(&format!("LSET l{a} {b} x")),
        17 => words(&format!("HINCRBYFLOAT h{a} n{b} 1.25")),
        18 => words(&format!("INCR n{a}")),
        19 => words(&format!("MOVE {}{a} 1", types[number as usize % 5])),
        20 if huge => words("FLUSHDB"),
        21 => words(&format!("LMOVE l{a} l{b} LEFT RIGHT")),
        22 | 23 => words(&format!("APPEND s{a}")),
        24 | 25 => words(&format!("RPUSH l{a}")),
        26 => words(&format!("SADD e{a}")),
        27 => words(&format!("HSET h{a}")),
        28 => words(&format!("ZADD z{a}")),
        _ => words(&format!("SET s{a}")),
    };
    let name = made[0].clone();
    match &*name {
        b"SET" | b"APPEND" => made.push(vec![b'v'; size as usize]),
        b"RPUSH" | b"SADD" | b"HSET" | b"ZADD" => {
            for element in 0..many {
                if name == b"ZADD" {
                    made.push((below(100) as f64 / 8.0).to_string().into_bytes());
                } else if name == b"HSET" {
                    made.push(format!("f{}", below(50) + element).into_bytes());
                }
                made.push(format!("{}", number + element).into_bytes());
            }
        }
        _ => {}
    }
    made
}

#[test]
fn acknowledged_writes_survive_a_restart_at_any_point() {
    let programs = std::env::var("KV_PROGRAMS").ok().and_then(|text| text.parse().ok()).unwrap_or(PROGRAMS);
    let fresh = std::env::var_os("SIETCH_SIM_FRESH").is_some();
    let first = if fresh { RandomState::new().hash_one(programs) >> 1 } else { 1 };
    let (mut refused, mut restarts) = (0, 0);
    for seed in first..first + programs {
        let mut random = XorShift64Star::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let now = Now { monotonic_ns: SECOND, unix_ms: 1_700_000_000_000 };
        let mut store = Store::start(MemoryQueue::new(AREA), now);
        for step in 0..COMMANDS {
            let together = random.word().is_multiple_of(20);
            let mut program = vec![command(&mut random)];
            if together {
                program.insert(0, words("MULTI"));
                program.extend((0..3).map(|_| command(&mut random)));
                program.push(words("EXEC"));
            }
            for command in &program {
                let reply = store.request(command);
                refused += usize::from(reply.starts_with(b"-MISCONF"));
                let name = String::from_utf8_lossy(&command[0]);
                assert!(
                    !store.log_writer.has_failed(),
                    "seed {seed}, step {step}, {name}: the log has failed"
                );
            }
            if random.word().is_multiple_of(50) {
                let state = store.state();
                store = store.restarted();
                restarts += 1;
                assert!(store.state() == state, "seed {seed}, step {step}: a restart changes the data set");
            }
        }
        // An area that is full can be emptied.
        assert_eq!(store.request(&words("DEL s0 s1 s2 l0 l1 l2")).first(), Some(&b':'), "seed {seed}");
    }
    assert!(restarts > programs && refused > 0, "{restarts} restarts, {refused} refusals");
}
