//! Reading a log back while it continues, following it from another process, giving its head up,
//! and being notified.

use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};

use sietch_disk::uring::UringOptions;
use sietch_disk::{
    BlockingQueue, Completion, DiskQueue, MemoryQueue, Operation, Priority, SubmitError, UringQueue, area,
};
use sietch_persist::{
    Durability, Entry, FollowError, Follower, FormatOptions, Log, Options, Read, ReadError, Record,
    TruncateError, TypeError, Waiter, read_record,
};
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const SEGMENT: u32 = 16384;

fn area_of(segments: usize) -> MemoryQueue {
    let mut disk = MemoryQueue::new(16384 + segments * SEGMENT as usize);
    Log::format(&mut disk, FormatOptions { identity: 5, segment_bytes: Some(SEGMENT) })
        .expect("large enough");
    disk
}

fn open(disk: MemoryQueue) -> (Log<MemoryQueue>, Vec<(u64, Vec<u8>)>) {
    let mut found = Vec::new();
    let (log, _) = Log::open(disk, Options::default(), &mut |entry| {
        if let Entry::Record(sequence, payload) = entry {
            found.push((sequence, payload.to_vec()));
        }
        Ok(())
    })
    .expect("an undamaged log");
    (log, found)
}

fn settle(log: &mut Log<MemoryQueue>) {
    while !log.is_idle() {
        log.submit().expect("a disk that works");
        log.poll().expect("a disk that works");
    }
}

fn payload(n: usize) -> Vec<u8> {
    vec![n as u8; if n % 11 == 5 { 20_000 } else { n * 97 % 2000 }]
}

/// Everything that a cursor reads from `from` on.
fn read_from(log: &mut Log<MemoryQueue>, from: u64) -> Vec<(u64, Vec<u8>)> {
    let mut cursor = log.cursor(from).expect("it is there");
    let mut found = Vec::new();
    loop {
        match log.read(&mut cursor).expect("whole") {
            Read::Record(sequence, payload) => found.push((sequence, payload.to_vec())),
            Read::Waiting => {
                log.poll().expect("a disk that works");
            }
            Read::End => return found,
        }
    }
}

/// Several owners, each with records of all sizes: what cursors from any place read is what was
/// appended.
#[test]
fn a_cursor_reads_appended_records_across_owners() {
    let (mut log, _) = open(area_of(64));
    let mut appended: Vec<(u64, Vec<u8>)> = Vec::new();
    for n in 0..60 {
        appended.push((log.append(&payload(n)).expect("room"), payload(n)));
        if n % 3 == 0 {
            log.submit().expect("a disk that works");
        }
        if n % 17 == 16 {
            settle(&mut log);
            let (next, found) = open(log.into_disk());
            assert!(found == appended, "after {n}");
            log = next;
        }
    }
    settle(&mut log);
    for place in 0..appended.len() {
        assert!(read_from(&mut log, appended[place].0) == appended[place..], "from record {place}");
    }
    let end = log.last() + 1;
    assert!(read_from(&mut log, end).is_empty());
    // A cursor at the end continues when more is written.
    let mut cursor = log.cursor(log.last() + 1).expect("the end is a place");
    assert!(matches!(log.read(&mut cursor), Ok(Read::End)));
    let sequence = log.append(b"more").expect("room");
    assert!(matches!(log.read(&mut cursor), Ok(Read::End)));
    settle(&mut log);
    loop {
        match log.read(&mut cursor).expect("whole") {
            Read::Record(found, payload) => break assert_eq!((found, payload), (sequence, &b"more"[..])),
            Read::Waiting => log.poll().map(|_| ()).expect("a disk that works"),
            Read::End => panic!("it was written"),
        }
    }
}

/// A queue that returns one bit wrong.
struct Rotten {
    inner: MemoryQueue,
    at: Arc<Mutex<Option<u64>>>,
}

impl DiskQueue for Rotten {
    fn capacity(&self) -> u64 {
        self.inner.capacity()
    }

    fn block_size(&self) -> usize {
        self.inner.block_size()
    }

    fn physical_block_size(&self) -> usize {
        self.inner.physical_block_size()
    }

    fn depth(&self) -> usize {
        self.inner.depth()
    }

    fn submit_with(
        &mut self,
        token: u64,
        mut operation: Operation,
        priority: Priority,
    ) -> Result<(), SubmitError> {
        if let (Operation::Read { offset, length, .. }, Some(at)) =
            (&mut operation, *self.at.lock().expect("alone"))
            && (*offset..*offset + *length as u64).contains(&at)
        {
            // What is at the start of the area is no record.
            *offset = 0;
        }
        self.inner.submit_with(token, operation, priority)
    }

    fn notify(&mut self) -> std::io::Result<()> {
        self.inner.notify()
    }

    fn complete(&mut self, out: &mut Vec<Completion>) -> usize {
        self.inner.complete(out)
    }

    fn wait(&mut self, timeout: std::time::Duration) -> std::io::Result<()> {
        self.inner.wait(timeout)
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }
}

#[test]
fn a_record_that_rots_while_the_log_is_open_is_named_and_the_log_goes_on() {
    let at = Arc::new(Mutex::new(None));
    let disk = Rotten { inner: area_of(32), at: Arc::clone(&at) };
    let (mut log, _) = Log::open(disk, Options::default(), &mut |_| Ok(())).expect("formatted");
    for n in 0..10u8 {
        let last = log.append(&[n; 700]).expect("room");
        log.submit().expect("a disk that works");
        while log.poll().expect("a disk that works") < last {}
    }
    let bytes = log.disk().inner.bytes();
    let offset = bytes.windows(700).position(|w| w == [0; 700].map(|_: u8| 5)).expect("it was written");
    *at.lock().expect("alone") = Some(offset as u64);
    let mut cursor = log.cursor(1).expect("it is there");
    let error = loop {
        match log.read(&mut cursor) {
            Ok(Read::Record(..)) => {}
            Ok(Read::Waiting) => drop(log.poll().expect("a disk that works")),
            Ok(Read::End) => panic!("the rot was not seen"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, ReadError::Damaged { .. }), "{error}");
    let last = log.append(b"goes on").expect("room");
    log.submit().expect("a disk that works");
    while log.poll().expect("a disk that works") < last {}
}

/// Truncating again and again, the log lives for many laps of the area without a snapshot; restarts
/// keep the head exactly.
#[test]
fn a_truncated_log_never_fills_and_begins_at_the_requested_record() {
    let (mut log, _) = open(area_of(16));
    let mut kept: Vec<(u64, Vec<u8>)> = Vec::new();
    for n in 0..3000 {
        let bytes = vec![n as u8; n * 31 % 900];
        kept.push((log.append(&bytes).expect("room"), bytes));
        settle(&mut log);
        if kept.len() > 20 {
            let keep = kept[kept.len() - 5].0;
            log.truncate(keep).expect("nothing else is on its way");
            assert!(log.is_truncating());
            assert!(matches!(log.truncate(keep + 1), Err(TruncateError::InProgress)));
            settle(&mut log);
            kept.retain(|(sequence, _)| *sequence >= keep);
            assert_eq!(log.head(), keep);
            let given_up = log.cursor(keep - 1).map(|_| ());
            assert!(matches!(given_up, Err(ReadError::GivenUp { head, .. }) if head == keep));
            assert!(read_from(&mut log, keep) == kept, "after {n}");
        }
        if n % 211 == 0 {
            let (next, found) = open(log.into_disk());
            assert!(found == kept, "after {n}: {} of {}", found.len(), kept.len());
            log = next;
        }
    }
    assert!(log.metrics().truncations > 1, "{:?}", log.metrics());
    // All of it.
    let last = log.last();
    assert!(matches!(log.truncate(last + 2), Err(TruncateError::Beyond { .. })));
    log.truncate(last + 1).expect("idle");
    settle(&mut log);
    let (mut log, found) = open(log.into_disk());
    assert!(found.is_empty() && log.last() == last, "{} records, last {}", found.len(), log.last());
    let sequence = log.append(b"next").expect("room");
    assert!(sequence > last);
    settle(&mut log);
    assert_eq!(open(log.into_disk()).1, [(sequence, b"next".to_vec())]);
}

/// More restarts than a superblock can name: truncating alone makes the log usable again.
#[test]
fn truncating_makes_room_for_runs() {
    let (mut log, _) = open(area_of(600));
    let mut last = 0;
    loop {
        match log.append(b"x") {
            Ok(sequence) => last = sequence,
            Err(error) => break assert!(error.to_string().contains("full"), "{error}"),
        }
        settle(&mut log);
        log = open(log.into_disk()).0;
    }
    log.truncate(last).expect("idle");
    settle(&mut log);
    let sequence = log.append(b"y").expect("room again");
    settle(&mut log);
    let (_, found) = open(log.into_disk());
    assert_eq!(found, [(last, b"x".to_vec()), (sequence, b"y".to_vec())]);
}

#[test]
fn a_cursor_that_the_head_overtakes_gets_an_error() {
    let (mut log, _) = open(area_of(16));
    let first = log.append(&[1; 3000]).expect("room");
    let mut cursor = log.cursor(first).expect("it is there");
    let mut last = first;
    for _ in 0..8 {
        last = log.append(&[2; 3000]).expect("room");
    }
    settle(&mut log);
    log.truncate(last).expect("idle");
    settle(&mut log);
    assert!(matches!(log.read(&mut cursor), Err(ReadError::GivenUp { head, .. }) if head == last));
}

/// Cursors that are dropped with their reads in flight cost nothing.
#[test]
fn dropped_cursors_leave_nothing_behind() {
    let (mut log, _) = open(area_of(16));
    log.append(&[1; 3000]).expect("room");
    settle(&mut log);
    for _ in 0..100 {
        let mut cursor = log.cursor(1).expect("it is there");
        assert!(matches!(log.read(&mut cursor), Ok(Read::Waiting)));
        drop(cursor);
        log.poll().expect("a disk that works");
    }
    assert_eq!(read_from(&mut log, 1).len(), 1);
}

#[test]
fn a_batch_is_appended_whole_or_not_at_all() {
    let (mut log, _) = open(area_of(16));
    let payloads: Vec<Vec<u8>> = (0..30).map(payload).filter(|p| p.len() < 2000).collect();
    let slices: Vec<&[u8]> = payloads.iter().map(Vec::as_slice).collect();
    let mut batches = 0;
    let refused = loop {
        match log.append_batch(&slices) {
            Ok(last) => assert_eq!(last, log.last()),
            Err(error) => break error,
        }
        settle(&mut log);
        batches += 1;
    };
    assert!(refused.to_string().contains("full"), "{refused}");
    let (_, found) = open(log.into_disk());
    assert!(batches > 0 && found.len() == batches * payloads.len(), "{batches} batches, {}", found.len());
}

struct Count(Mutex<u32>);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        *self.0.lock().expect("no thread panics") += 1;
    }
}

#[test]
fn a_waiter_is_notified_when_its_record_is_durable() {
    let (disk, options) = (area_of(16), Options { durability: Durability::Deferred, in_flight: 2 });
    let (mut log, _) = Log::open(disk, options, &mut |_| Ok(())).expect("formatted");
    let woken = Arc::new(Count(Mutex::new(0)));
    let called = Arc::new(Mutex::new(Vec::new()));
    let mut last = 0;
    for n in 0..5 {
        last = log.append(&[n; 100]).expect("room");
        log.when_durable(last, Waiter::Wake(Waker::from(Arc::clone(&woken))));
        let called = Arc::clone(&called);
        log.when_durable(
            last,
            Waiter::call(move |result| called.lock().expect("alone").push(result.is_ok())),
        );
    }
    log.submit().expect("a disk that works");
    log.poll().expect("a disk that works");
    assert_eq!(*woken.0.lock().expect("alone"), 0, "written is not durable");
    log.flush().expect("a disk that works");
    while log.poll().expect("a disk that works") < last {}
    assert_eq!((*woken.0.lock().expect("alone"), called.lock().expect("alone").len()), (5, 5));
    // Of what is durable already, at once.
    log.when_durable(last, Waiter::Wake(Waker::from(Arc::clone(&woken))));
    assert_eq!(*woken.0.lock().expect("alone"), 6);
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Deposit {
    account: U64,
    amount: U64,
}

impl Record for Deposit {
    const NAME: &'static str = "deposit";
    const TYPE: u32 = 0x0d;
    const VERSION: u16 = 3;
}

#[test]
fn typed_records_come_back_typed_and_unknown_types_are_named() {
    let (mut log, _) = open(area_of(16));
    log.append_record(&Deposit { account: 7.into(), amount: 100.into() }, b"tail").expect("room");
    settle(&mut log);
    let (_, found) = open(log.into_disk());
    let (deposit, tail) = read_record::<Deposit>(&found[0].1).expect("one of ours");
    assert_eq!((deposit.account.get(), deposit.amount.get(), tail), (7, 100, &b"tail"[..]));
    let mut newer = found[0].1.clone();
    newer[4] = 4;
    let error = read_record::<Deposit>(&newer).map(|_| ()).expect_err("a later version");
    assert_eq!(error, TypeError::Version { name: "deposit", found: 4, known: 3 });
    assert!(error.to_string().contains("deposit of version 4"), "{error}");
    newer[0] = 9;
    assert!(matches!(read_record::<Deposit>(&newer), Err(TypeError::Type { found: 9, .. })));
    for length in 0..24 {
        assert!(matches!(read_record::<Deposit>(&found[0].1[..length]), Err(TypeError::Short { .. })));
    }
}

/// A second owner's view through a second queue over the same file, io_uring where there is one.
#[test]
fn a_follower_sees_written_records_and_never_writes() {
    let directory = std::env::temp_dir().join(format!("sietch-follow-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a writable temporary directory");
    let path = directory.join("area");
    let size = 4 << 20;
    area::create(&path, size, &mut |_| {}).expect("room");
    let mut disk = BlockingQueue::open(area::open(&path, size).expect("ours"), size).expect("a file");
    Log::format(&mut disk, FormatOptions::new(9)).expect("large enough");
    let (mut log, _) = Log::open(disk, Options::default(), &mut |_| Ok(())).expect("formatted");
    let reading = || std::fs::File::open(&path).expect("it is there").into();
    let mut seen = Vec::new();
    let mut remember = |entry: Entry<'_>| {
        match entry {
            Entry::Record(sequence, payload) => seen.push((sequence, payload.to_vec())),
            Entry::Snapshot(payload) => seen.push((0, payload.to_vec())),
        }
        Ok(())
    };
    let mut follower = Follower::open(BlockingQueue::open(reading(), size).expect("a file")).expect("a log");
    let mut expected = Vec::new();
    for n in 0..200 {
        expected.push((log.append(&payload(n % 40)).expect("room"), payload(n % 40)));
        log.submit().expect("a disk that works");
        if n % 5 == 0 {
            while log.wait(std::time::Duration::from_secs(1)).expect("a disk that works") < log.last() {}
            follower.poll(&mut remember).expect("an undamaged log");
            assert_eq!(follower.delivered(), log.last());
            assert!(follower.proven() < log.last(), "no superblock says so yet");
        }
        if n % 70 == 69 {
            let disk = BlockingQueue::open(
                {
                    drop(log.close().expect("a disk that works"));
                    area::open(&path, size).expect("free again")
                },
                size,
            )
            .expect("a file");
            log = Log::open(disk, Options::default(), &mut |_| Ok(())).expect("whole").0;
        }
        if n == 100 {
            log.truncate(expected[90].0).expect("idle");
        }
    }
    while log.wait(std::time::Duration::from_secs(1)).expect("a disk that works") < log.last() {}
    follower.poll(&mut remember).expect("an undamaged log");
    assert!(seen == expected, "{} of {}", seen.len(), expected.len());
    // One that comes later finds what is left.
    if let Ok(queue) = UringQueue::open(reading(), size, UringOptions::default()) {
        let mut late = Vec::new();
        let mut follower = Follower::open(queue).expect("a log");
        let count = follower
            .poll(&mut |entry| {
                if let Entry::Record(sequence, _) = entry {
                    late.push(sequence);
                }
                Ok(())
            })
            .expect("an undamaged log");
        assert_eq!((count as usize, late.first()), (110, Some(&expected[90].0)));
    }
    drop(std::fs::remove_dir_all(&directory));
}

fn follow(bytes: &[u8]) -> (Result<u64, FollowError>, Vec<u64>) {
    let mut follower = Follower::open(MemoryQueue::from_bytes(bytes.to_vec())).expect("a log");
    let mut seen = Vec::new();
    let result = follower.poll(&mut |entry| {
        if let Entry::Record(sequence, _) = entry {
            seen.push(sequence);
        }
        Ok(())
    });
    (result, seen)
}

/// Every prefix of a history of writes is a state that a follower may meet: it delivers a prefix of
/// the records.
#[test]
fn a_follower_that_meets_half_written_states_delivers_a_prefix() {
    let (mut log, _) = open(area_of(16));
    let mut images = vec![log.disk().bytes().to_vec()];
    let mut appended = Vec::new();
    for n in 0..40 {
        appended.push(log.append(&vec![n as u8; n * 53 % 1500]).expect("room"));
        settle(&mut log);
        if n % 10 == 9 {
            let keep = log.last() - 3;
            log.truncate(keep).expect("idle");
            settle(&mut log);
        }
        images.push(log.disk().bytes().to_vec());
    }
    for pair in images.windows(2) {
        let changed: Vec<usize> = (0..pair[0].len() / 512)
            .filter(|s| pair[0][s * 512..][..512] != pair[1][s * 512..][..512])
            .collect();
        for cut in 0..=changed.len() {
            let mut image = pair[0].clone();
            for sector in &changed[..cut] {
                let range = sector * 512..(sector + 1) * 512;
                image[range.clone()].copy_from_slice(&pair[1][range]);
            }
            let (result, seen) = follow(&image);
            result.expect("either state is whole");
            let from = appended.iter().position(|s| Some(s) == seen.first()).unwrap_or_default();
            assert_eq!(seen, appended[from..][..seen.len()]);
        }
    }
}

#[test]
fn a_follower_that_fell_behind_gets_an_error_to_open_anew() {
    let directory = std::env::temp_dir().join(format!("sietch-behind-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a writable temporary directory");
    let path = directory.join("area");
    let size = 16384 + 16 * 16384;
    area::create(&path, size, &mut |_| {}).expect("room");
    let mut disk = BlockingQueue::open(area::open(&path, size).expect("ours"), size).expect("a file");
    Log::format(&mut disk, FormatOptions::new(9)).expect("large enough");
    let (mut log, _) = Log::open(disk, Options::default(), &mut |_| Ok(())).expect("formatted");
    let reading = std::fs::File::open(&path).expect("it is there").into();
    let mut follower = Follower::open(BlockingQueue::open(reading, size).expect("a file")).expect("a log");
    assert_eq!(follower.poll(&mut |_| Ok(())).expect("empty"), 0);
    for _ in 0..100 {
        let sequence = log.append(&[7; 3000]).expect("room");
        log.submit().expect("a disk that works");
        while log.wait(std::time::Duration::from_secs(1)).expect("a disk that works") < sequence {}
        log.truncate(sequence).expect("idle");
        while log.is_truncating() {
            log.wait(std::time::Duration::from_secs(1)).expect("a disk that works");
        }
    }
    let error = follower.poll(&mut |_| Ok(())).expect_err("its records were given up");
    assert!(matches!(error, FollowError::Behind { next: 1, .. }), "{error}");
    drop(std::fs::remove_dir_all(&directory));
}
