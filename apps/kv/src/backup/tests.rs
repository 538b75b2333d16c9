use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sietch::disk::{BlockingQueue, Completion, Operation, Priority, SubmitError};
use sietch_sim::Random;

use super::*;
use crate::check::{Verdict, check};
use crate::data::journal::{self, EFFECTS, PART, ReplayError, SNAPSHOT};
use crate::server::LogWriter;
use crate::settings::Durability;
use crate::shard::ClientId;

const NOWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 1);
const NOW: Now = Now { monotonic_ns: 1_000_000_000, unix_ms: 1_800_000_000_000 };

/// A store that runs commands.
fn store(commands: &[&str]) -> Image {
    let mut image = Image::empty();
    let client = image.shard.connect(NOWHERE, NOWHERE, NOW).expect("it is alone");
    commands.iter().for_each(|command| drop(run(&mut image.shard, client, command)));
    image
}

fn run(shard: &mut Shard, client: ClientId, command: &str) -> String {
    shard.feed(client, format!("{command}\r\n").as_bytes(), NOW);
    shard.seal(0);
    let reply = String::from_utf8_lossy(shard.output(client)).into_owned();
    shard.consumed(client, reply.len());
    reply
}

fn sample() -> Image {
    store(&[
        "SET text spice",
        "SET brief x PXAT 1800000100000",
        "RPUSH list a b c a",
        "SADD set one two",
        "HSET hash field value other 7",
        "ZADD scores 1.5 low 2.5 high",
        "SETRANGE large 2000000 x",
        "SELECT 3",
        "SET elsewhere 1",
    ])
}

/// Elements of a key by their command; those without an order are sorted.
type Contents = BTreeMap<(u64, Vec<u8>), BTreeMap<Vec<u8>, Vec<Vec<u8>>>>;

fn contents(image: &mut Image) -> Contents {
    let mut contents = Contents::new();
    let mut whole = Vec::new();
    image.shard.dump_whole(0, persist::MAX_RECORD, &mut |record| whole.push(record.to_vec()));
    for record in whole {
        let mut reader = journal::Reader::new(&record, SNAPSHOT, 0).expect("a record of a snapshot");
        reader.number().expect("its sequence");
        let mut arguments = Vec::new();
        while let Some(database) = reader.effect(&mut arguments).expect("an effect") {
            let key = contents.entry((database, arguments[1].to_vec())).or_default();
            let size = if [&b"HSET"[..], b"ZADD"].contains(&arguments[0]) { 2 } else { 1 };
            let elements = arguments[2..].chunks(size).map(<[&[u8]]>::concat);
            key.entry(arguments[0].to_vec()).or_default().extend(elements);
        }
    }
    for commands in contents.values_mut() {
        for (_, elements) in commands.iter_mut().filter(|(command, _)| **command != b"RPUSH") {
            elements.sort();
        }
    }
    contents
}

fn written(image: &mut Image) -> Vec<u8> {
    let mut bytes = Vec::new();
    image.write(&mut bytes).expect("memory takes everything");
    bytes
}

fn read(bytes: &[u8]) -> Result<Image, BackupError> {
    Image::read(&mut &bytes[..]).map(|(_, image)| image)
}

/// A file that is an area.
struct Scratch(PathBuf);

impl Scratch {
    /// An area of zeros.
    fn new(size: u64) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("sietch-backup-{}-{number}", std::process::id()));
        std::fs::File::create(&path).expect("create").set_len(size).expect("a sparse file");
        Self(path)
    }

    /// An area with a log of these keys.
    fn with(keys: usize, size: u64) -> Self {
        let scratch = Self::new(size);
        let mut disk = scratch.open(true);
        Log::format(&mut disk, FormatOptions::new(7)).expect("large enough");
        let (mut log, _) = Log::open(disk, persist::Options::default(), &mut |_| Ok(())).expect("a log");
        for number in 0..keys {
            let mut record = vec![EFFECTS];
            journal::encode(&mut record, 0, &[b"SET", format!("old{number}").as_bytes(), b"1"]);
            log.append(&record).expect("there is room");
        }
        log.close().expect("the disk is whole");
        scratch
    }

    fn open(&self, write: bool) -> BlockingQueue {
        let file = std::fs::File::options().read(true).write(write).open(&self.0).expect("open");
        let size = file.metadata().expect("there").len();
        BlockingQueue::open(file.into(), size).expect("a file")
    }

    fn image(&self) -> Image {
        let mut image = Image::empty();
        image.verify(&mut self.open(false)).expect("a whole log");
        image
    }

    fn bytes(&self) -> Vec<u8> {
        std::fs::read(&self.0).expect("read")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn what_is_backed_up_is_restored_into_an_empty_area() {
    let mut image = sample();
    let expected = contents(&mut image);
    let backup = written(&mut image);
    let (header, mut again) = Image::read(&mut &backup[..]).expect("its own backup");
    assert_eq!((header.keys, again.keys()), (8, 8));
    assert!(header.created_ms > 1_700_000_000_000);
    assert_eq!(contents(&mut again), expected);
    // One that no store has had, and one that a store left empty.
    for area in [Scratch::new(16 << 20), Scratch::with(0, 16 << 20)] {
        read(&backup).expect("whole").restore(area.open(true), 9, false).expect("it is empty");
        assert_eq!(contents(&mut area.image()), expected);
        // The log goes on behind it.
        let options = persist::Options::default();
        let (mut log, report) = Log::open(area.open(true), options, &mut |_| Ok(())).expect("a log");
        assert!(report.clean);
        let mut record = vec![EFFECTS];
        journal::encode(&mut record, 0, &[b"DEL", b"text"]);
        log.append(&record).expect("there is room");
        log.close().expect("the disk is whole");
        assert_eq!(area.image().keys(), 7);
    }
}

#[test]
fn an_area_with_data_is_refused_and_replaced_only_on_request() {
    let backup = written(&mut sample());
    let restore =
        |area: &Scratch, replaced| read(&backup).expect("whole").restore(area.open(true), 9, replaced);
    let area = Scratch::with(3, 16 << 20);
    let before = area.bytes();
    let refused = restore(&area, false);
    assert!(matches!(refused, Err(BackupError::NotEmpty { keys: 3 })), "{refused:?}");
    assert!(area.bytes() == before, "a refusal changes nothing");
    restore(&area, true).expect("it was requested");
    assert_eq!(area.image().keys(), 8);
    // Too small: what is there stays.
    let area = Scratch::with(3, 512 << 10);
    let refused = restore(&area, true);
    assert!(matches!(refused, Err(BackupError::NoRoom { .. })), "{refused:?}");
    assert_eq!(area.image().keys(), 3);
    // A damaged one, which `kv check` refuses, is what a backup is for.
    let area = Scratch::with(3, 16 << 20);
    let mut bytes = area.bytes();
    bytes[..16384].fill(0xee);
    std::fs::write(&area.0, bytes).expect("write");
    let refused = restore(&area, false);
    assert!(matches!(refused, Err(BackupError::Damaged(_))), "{refused:?}");
    restore(&area, true).expect("it was requested");
    assert_eq!(area.image().keys(), 8);
}

#[test]
fn damaged_and_truncated_backups_are_refused() {
    let backup = written(&mut store(&["SET a 1", "RPUSH b 1 2 3", "SADD c x", "PEXPIREAT a 1900000000000"]));
    for length in 0..backup.len() {
        assert!(read(&backup[..length]).is_err(), "cut to {length}");
    }
    for place in 0..backup.len() {
        let mut damaged = backup.clone();
        damaged[place] ^= 1 << (place % 8);
        assert!(read(&damaged).is_err(), "a bit at {place}");
    }
    let refused = read(&[&backup[..], b"x"].concat());
    assert!(matches!(refused, Err(BackupError::Trailing { .. })), "{refused:?}");
    let refused = read(&[&backup[..], &backup[..]].concat());
    assert!(matches!(refused, Err(BackupError::Trailing { .. })), "{refused:?}");
    for other in [&b""[..], b"REDIS0011\xfa\x09redis-ver\x057.0.15\xfa\x0aredis-bits\xc0\x40"] {
        let refused = read(other);
        assert!(matches!(refused, Err(BackupError::NoBackup)), "{refused:?}");
    }
}

/// A backup with right checksums of these records.
fn forged(keys: u64, records: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = Writer::begin(&mut bytes, Header { created_ms: 0, keys }).expect("memory");
    records.iter().for_each(|record| writer.record(record).expect("memory"));
    writer.end().expect("memory");
    bytes
}

fn effects(database: usize, effects: &[&[&[u8]]]) -> Vec<u8> {
    let mut record = vec![SNAPSHOT, 0];
    effects.iter().for_each(|arguments| journal::encode(&mut record, database, arguments));
    record
}

#[test]
fn what_no_store_would_write_is_refused_although_its_checksums_are_right() {
    let good = effects(0, &[&[b"SET", b"a", b"1"]]);
    assert_eq!(read(&forged(1, std::slice::from_ref(&good))).expect("as a store writes it").keys(), 1);
    let mut cut = good.clone();
    cut.pop();
    let hostile = [
        // Memory for bytes that it does not have.
        effects(0, &[&[b"SETRANGE", b"a", b"536870000", b"x"]]),
        effects(0, &[&[b"SETBIT", b"a", b"4294967295", b"1"]]),
        effects(0, &[&[b"APPEND", b"a", b"1"]]),
        effects(0, &[&[b"SET", b"a", b"1"], &[b"COPY", b"a", b"b"]]),
        effects(0, &[&[b"FLUSHALL"]]),
        effects(0, &[&[b"SHUTDOWN"]]),
        effects(0, &[&[b"SET"]]),
        effects(99, &[&[b"SET", b"a", b"1"]]),
        effects(0, &[&[b"SET", b"a", b"1"], &[b"RPUSH", b"a", b"1"]]),
        effects(0, &[&[b"ZADD", b"a", b"nan", b"1"]]),
        effects(0, &[&[b"HSET", b"a", b"field"]]),
        vec![EFFECTS, 0],
        vec![9, 9, 9],
        vec![PART, 1, 2, 3],
        cut,
    ];
    for record in hostile {
        let refused = read(&forged(1, std::slice::from_ref(&record)));
        assert!(refused.is_err(), "{record:?}");
    }
    // The error names the place in the file, and says nothing of a log.
    for record in [vec![PART, 1, 2, 3], effects(0, &[&[b"SHUTDOWN"]])] {
        let refused = read(&forged(2, &[good.clone(), record])).expect_err("hostile").to_string();
        let place = format!("the backup holds at offset {} ", 32 + 8 + good.len());
        assert!(refused.starts_with(&place) && !refused.contains("log"), "{refused}");
    }
    // A length takes no memory before its bytes are there.
    let mut long = forged(1, &[]);
    long[32..36].copy_from_slice(&(1_u32 << 30).to_le_bytes());
    assert!(matches!(read(&long), Err(BackupError::Checksum { offset: 32 })));
    let refused = read(&forged(2, std::slice::from_ref(&good)));
    assert!(matches!(refused, Err(BackupError::Keys { found: 1, promised: 2 })), "{refused:?}");
    // Frames that are left out, repeated or exchanged have right checksums of their own.
    let two = forged(2, &[good.clone(), effects(0, &[&[b"SET", b"b", b"2"]])]);
    let frame = 8 + good.len();
    let [head, first, second, end] =
        [0..32, 32..32 + frame, 32 + frame..32 + 2 * frame, 32 + 2 * frame..two.len()];
    let of = |parts: &[std::ops::Range<usize>]| -> Vec<u8> {
        parts.iter().flat_map(|part| two[part.clone()].to_vec()).collect()
    };
    assert!(read(&of(&[head.clone(), first.clone(), second.clone(), end.clone()])).is_ok());
    for parts in [
        [head.clone(), second.clone(), first.clone(), end.clone()].as_slice(),
        &[head.clone(), first.clone(), end.clone()],
        &[head.clone(), first.clone(), first.clone(), second.clone(), end.clone()],
        &[head, end],
    ] {
        assert!(read(&of(parts)).is_err(), "{parts:?}");
    }
}

#[test]
fn hostile_bytes_never_panic() {
    let backup = written(&mut sample());
    let mut random = Random::new(17);
    for _ in 0..2000 {
        let mut bytes = backup[..random.index(backup.len().min(4096))].to_vec();
        for _ in 0..random.index(8) {
            if !bytes.is_empty() {
                let at = random.index(bytes.len());
                bytes[at] = random.index(256) as u8;
            }
        }
        // Behind a right header, too.
        let _ = read(&bytes);
        let _ = read(&forged(1, &[bytes]));
    }
}

/// A random command; `number` is what the store then has in `n`, by the same transaction.
fn command(random: &mut Random, number: u64) -> String {
    let key = random.index(40);
    let value = "v".repeat(random.index(300));
    let change = match random.index(12) {
        0 | 1 => format!("SET s{key} {number}{value}"),
        2 => format!("APPEND s{key} {number}"),
        3 => format!("RPUSH l{key} {number} {value}x"),
        4 => format!("LPOP l{key}"),
        5 => format!("SADD m{key} {number}"),
        6 => format!("SREM m{key} {}", number.saturating_sub(50)),
        7 => format!("HSET h{key} {} {value}y", number % 30),
        8 => format!("ZADD z{key} {number} {}", number % 40),
        9 => format!("DEL s{key} l{key} h{key}"),
        10 => format!("PEXPIREAT s{key} {}", 1_900_000_000_000 + number),
        _ => format!("RENAME s{key} s{}", (key + 1) % 40),
    };
    format!("MULTI\r\n{change}\r\nSET n {number}\r\nEXEC")
}

/// Random commands run beside backups, in an area so small that the log is compacted all the time.
/// Each backup is the state after some command. That command is no earlier than the last one whose
/// record was written within [`SETTLED`] of the beginning, and no later than the last one that had
/// begun when the backup ended.
#[test]
fn a_backup_beside_random_commands_is_the_state_at_one_moment_of_its_own_time() {
    const BACKUPS: usize = 12;
    const COMPACTIONS: u64 = 2;
    for (durability, seed) in [(Durability::Always, 1), (Durability::Never, 2)] {
        let scratch = Scratch::new(1 << 20);
        let mut disk = scratch.open(true);
        Log::format(&mut disk, FormatOptions::new(11)).expect("large enough");
        let (issued, compactions) = (AtomicU64::new(0), AtomicU64::new(0));
        let over = AtomicBool::new(false);
        let mut backups = Vec::new();
        let writes = std::thread::scope(|scope| {
            let store = scope.spawn(|| {
                let (log, _) = Log::open(disk, persist::Options::default(), &mut |_| Ok(())).expect("a log");
                serve(log, durability, seed, [&issued, &compactions], &over)
            });
            let guard = Stop(&over);
            let (mut before, mut progress) = (0, Instant::now());
            while backups.len() < BACKUPS || compactions.load(Ordering::SeqCst) < COMPACTIONS {
                assert!(!store.is_finished() && progress.elapsed() < PATIENCE, "it stands still at {before}");
                let settled = Instant::now() + SETTLED;
                let mut image = Image::of_log(&mut || Ok(scratch.open(false))).expect("a running store");
                let number = issued.load(Ordering::SeqCst);
                if number > before {
                    (before, progress) = (number, Instant::now());
                }
                let copy = read(&written(&mut image)).expect("its own backup");
                backups.push((settled, copy, before));
            }
            drop(guard);
            store.join().expect("the store ends when it is to")
        });
        let mut model = store(&[]);
        let client = model.shard.connect(NOWHERE, NOWHERE, NOW).expect("there is room");
        let (mut random, mut done) = (Random::new(seed), 0);
        for (settled, mut copy, before) in backups {
            let number = copy_number(&mut copy);
            let written = writes.iter().take_while(|(seen, _)| *seen < settled).last();
            let after = written.map_or(0, |(_, number)| *number);
            assert!((after..=before).contains(&number), "{durability:?}: {after}, {number}, {before}");
            while done < number {
                done += 1;
                run(&mut model.shard, client, &command(&mut random, done));
            }
            assert!(contents(&mut copy) == contents(&mut model), "{durability:?}: after command {number}");
        }
    }
}

/// Ends the store also if a backup fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn copy_number(image: &mut Image) -> u64 {
    let elements: BTreeSet<Vec<u8>> = contents(image)
        .remove(&(0, b"n".to_vec()))
        .into_iter()
        .flat_map(|mut key| key.remove(&b"SET"[..]))
        .flatten()
        .collect();
    elements.first().map_or(0, |text| String::from_utf8_lossy(text).parse().expect("a number"))
}

/// Runs random commands, one after the other, until it is to stop. Returns which commands had been
/// written, and when that was seen.
fn serve(
    log: Log<BlockingQueue>,
    durability: Durability,
    seed: u64,
    [issued, compactions]: [&AtomicU64; 2],
    over: &AtomicBool,
) -> Vec<(Instant, u64)> {
    let mut shard = Shard::new(Settings { durability, ..Settings::default() }, seed);
    shard.enable_journal(true);
    let client = shard.connect(NOWHERE, NOWHERE, NOW).expect("it is alone");
    let mut log_writer = LogWriter::new(log, durability);
    log_writer.initialize(&mut shard);
    let (mut random, mut number, begun) = (Random::new(seed), 0, Instant::now());
    // The clock of keys stands still: nothing expires here.
    let now = || Now { monotonic_ns: 1 + begun.elapsed().as_nanos() as u64, ..NOW };
    // Commands whose records may wait to be written, each with the log's last record then.
    let mut unwritten = VecDeque::new();
    let mut writes = Vec::new();
    while !over.load(Ordering::SeqCst) {
        number += 1;
        issued.store(number, Ordering::SeqCst);
        shard.feed(client, format!("{}\r\n", command(&mut random, number)).as_bytes(), now());
        loop {
            log_writer.iterate(&mut shard, now());
            let reply = String::from_utf8_lossy(shard.output(client)).into_owned();
            assert!(!reply.contains("MISCONF"), "{reply}");
            let ended = reply.ends_with("+OK\r\n") && reply.contains("*2\r\n");
            if ended || over.load(Ordering::SeqCst) {
                shard.consumed(client, reply.len());
                break;
            }
        }
        // A reply leaves behind the append of its record. With `always` that is durable, too.
        unwritten.push_back((log_writer.log().last(), number));
        compactions.store(log_writer.log().metrics().snapshots, Ordering::SeqCst);
        let written = log_writer.log().written();
        let mut seen = None;
        while let Some((_, number)) = unwritten.pop_front_if(|(last, _)| *last <= written) {
            seen = Some(number);
        }
        writes.extend(seen.map(|number| (Instant::now(), number)));
        let acknowledged = unwritten.is_empty() || durability != Durability::Always;
        assert!(acknowledged || over.load(Ordering::SeqCst), "command {number} was not written");
    }
    writes
}

/// A store that writes while it is read.
struct Busy {
    shard: Shard,
    client: ClientId,
    log_writer: LogWriter<BlockingQueue>,
    begun: Instant,
    /// Commands that were acknowledged.
    number: u64,
    /// Bytes that were written and read.
    written: usize,
    read: usize,
}

impl Busy {
    fn new(disk: BlockingQueue) -> Self {
        let (log, _) = Log::open(disk, persist::Options::default(), &mut |_| Ok(())).expect("a log");
        let mut shard = Shard::new(Settings::default(), 3);
        shard.enable_journal(true);
        let client = shard.connect(NOWHERE, NOWHERE, NOW).expect("it is alone");
        let log_writer = LogWriter::new(log, Durability::Always);
        log_writer.initialize(&mut shard);
        Self { shard, client, log_writer, begun: Instant::now(), number: 0, written: 0, read: 0 }
    }

    /// Writes until the log is longer than what was read, by the bytes of some reads.
    fn keep_ahead(&mut self, read: usize) {
        const AHEAD: usize = 1 << 20;
        const VALUE: usize = 10_000;
        self.read += read;
        while self.written < self.read + AHEAD {
            self.number += 1;
            let (number, value) = (self.number, "v".repeat(VALUE));
            let command = format!("MULTI\r\nSET large {value}\r\nSET n {number}\r\nEXEC\r\n");
            self.shard.feed(self.client, command.as_bytes(), NOW);
            while !self.shard.output(self.client).ends_with(b"+OK\r\n+OK\r\n") {
                let monotonic_ns = 1 + self.begun.elapsed().as_nanos() as u64;
                self.log_writer.iterate(&mut self.shard, Now { monotonic_ns, ..NOW });
            }
            let length = self.shard.output(self.client).len();
            self.shard.consumed(self.client, length);
            self.written += VALUE;
        }
    }
}

/// Reads the area of such a store, and has it write before each read.
struct Chased<'a>(BlockingQueue, &'a RefCell<Busy>);

impl DiskQueue for Chased<'_> {
    fn capacity(&self) -> u64 {
        self.0.capacity()
    }

    fn block_size(&self) -> usize {
        self.0.block_size()
    }

    fn depth(&self) -> usize {
        self.0.depth()
    }

    fn submit_with(
        &mut self,
        token: u64,
        operation: Operation,
        priority: Priority,
    ) -> Result<(), SubmitError> {
        let length = if let Operation::Read { length, .. } = &operation { *length } else { 0 };
        let mut store = self.1.borrow_mut();
        store.keep_ahead(length);
        assert!((store.read as u64) < 100 * self.capacity(), "it reads for as long as the store writes");
        self.0.submit_with(token, operation, priority)
    }

    fn notify(&mut self) -> io::Result<()> {
        self.0.notify()
    }

    fn complete(&mut self, out: &mut Vec<Completion>) -> usize {
        self.0.complete(out)
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        self.0.wait(timeout)
    }

    fn in_flight(&self) -> usize {
        self.0.in_flight()
    }
}

#[test]
fn a_backup_ends_beside_a_store_that_writes_as_fast_as_it_reads() {
    let scratch = Scratch::new(8 << 20);
    let mut disk = scratch.open(true);
    Log::format(&mut disk, FormatOptions::new(11)).expect("large enough");
    let store = RefCell::new(Busy::new(disk));
    let acknowledged = store.borrow().number;
    let mut image = Image::of_log(&mut || Ok(Chased(scratch.open(false), &store))).expect("a running store");
    let number = copy_number(&mut image);
    assert!((acknowledged..=store.borrow().number).contains(&number), "{acknowledged}, {number}");
    assert_eq!(copy_number(&mut read(&written(&mut image)).expect("its own backup")), number);
}

/// Each effect has a few bytes and builds a large value.
#[test]
fn a_log_that_builds_more_than_its_area_holds_is_refused() {
    let scratch = Scratch::with(1, 4 << 20);
    let (mut log, _) =
        Log::open(scratch.open(true), persist::Options::default(), &mut |_| Ok(())).expect("a log");
    let mut record = vec![EFFECTS];
    for number in 0..1000 {
        journal::encode(&mut record, 0, &[b"SETRANGE", format!("k{number}").as_bytes(), b"999999", b"x"]);
    }
    log.append(&record).expect("there is room");
    log.close().expect("the disk is whole");
    let refused = |outcome: Result<(), BackupError>| {
        let cause = outcome.expect_err("a thousand megabytes");
        assert!(matches!(cause, BackupError::Replay(ReplayError::TooLarge { .. })), "{cause}");
    };
    refused(Image::of_log(&mut || Ok(scratch.open(false))).map(drop));
    refused(Image::empty().verify(&mut scratch.open(false)));
    let verdict = check(&mut scratch.open(false));
    assert!(matches!(verdict, Verdict::Unknown(_)), "{verdict:?}");
}

/// A backup of the first version, as it was released: every later one reads it. It has a record in
/// two parts.
#[test]
fn a_backup_of_the_first_version_is_read() {
    let text: String = include_str!("../../tests/golden/backup-v1.txt").lines().collect();
    let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal");
    let bytes: Vec<u8> = (0..text.len()).step_by(2).map(byte).collect();
    let (header, mut image) = Image::read(&mut &bytes[..]).expect("a released format");
    assert_eq!(header, Header { created_ms: 1_800_000_000_000, keys: 8 });
    let contents = contents(&mut image);
    let mut expected = contents_of_sample();
    expected.insert((0, b"parts".to_vec()), one(b"SET", &[b"0123456789"]));
    assert_eq!(contents, expected);
}

fn one(command: &[u8], elements: &[&[u8]]) -> BTreeMap<Vec<u8>, Vec<Vec<u8>>> {
    BTreeMap::from([(command.to_vec(), elements.iter().map(|element| element.to_vec()).collect())])
}

fn contents_of_sample() -> Contents {
    let mut brief = one(b"SET", &[b"x"]);
    brief.extend(one(b"PEXPIREAT", &[b"1800000100000"]));
    let mut contents = Contents::from([
        ((0, b"text".to_vec()), one(b"SET", &[b"spice"])),
        ((0, b"list".to_vec()), one(b"RPUSH", &[b"a", b"b", b"c"])),
        ((0, b"set".to_vec()), one(b"SADD", &[b"one", b"two"])),
        ((0, b"hash".to_vec()), one(b"HSET", &[b"fieldvalue", b"other7"])),
        ((0, b"scores".to_vec()), one(b"ZADD", &[b"1.5low", b"2.5high"])),
        ((3, b"elsewhere".to_vec()), one(b"SET", &[b"1"])),
    ]);
    contents.insert((0, b"brief".to_vec()), brief);
    contents
}
