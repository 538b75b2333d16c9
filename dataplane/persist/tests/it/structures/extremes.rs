//! The largest and the strangest that each format may hold is written, and read back: no reader has
//! a limit that its writer does not obey.

use proptest::prelude::*;
use sietch_disk::MemoryQueue;
use sietch_persist::{
    AppendError, BATCH, Entry, FormatOptions, HEADER, Log, MAX_RECORD, Map, Options, Queue, QueueOptions,
    check,
};

const AREA: usize = 32 << 20;

/// Lengths at which something changes: a header fits or not, a block, a batch or a segment is full.
const EDGES: [usize; 9] = [0, 8, 512, 4096, 16_384, 32_768, BATCH, 2 * BATCH, 3 * BATCH];

fn edge() -> impl Strategy<Value = usize> {
    (prop::sample::select(&EDGES[..]), -2 * HEADER as i64..2 * HEADER as i64)
        .prop_map(|(edge, by)| (edge as i64 + by).max(0) as usize)
}

fn bytes(length: usize, seed: u8) -> Vec<u8> {
    // Headers of records in a payload are no records.
    (0..length).map(|at| b"SREC"[at % 4].wrapping_add(if at % 61 == 0 { seed } else { 0 })).collect()
}

fn open_log(disk: MemoryQueue) -> (Log<MemoryQueue>, Vec<Vec<u8>>) {
    let mut found = Vec::new();
    let (log, _) = Log::open(disk, Options::default(), &mut |entry| {
        let (Entry::Snapshot(payload) | Entry::Record(_, payload)) = entry;
        found.push(payload.to_vec());
        Ok(())
    })
    .expect("what the writer wrote");
    (log, found)
}

fn settle(log: &mut Log<MemoryQueue>) {
    while !log.is_idle() {
        log.submit().expect("a disk that works");
        log.poll().expect("a disk that works");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Records and snapshots of lengths at every edge, and one that takes all the room that the log
    /// says it has.
    #[test]
    fn log_records(lengths in prop::collection::vec(edge(), 1..8), snapshot in prop::collection::vec(edge(), 0..3)) {
        let mut disk = MemoryQueue::new(AREA);
        Log::format(&mut disk, FormatOptions::new(3)).expect("large enough");
        let (mut log, _) = open_log(disk);
        let mut expected = Vec::new();
        if !snapshot.is_empty() {
            log.begin_snapshot().expect("room");
            for (index, &length) in snapshot.iter().enumerate() {
                let payload = bytes(length, index as u8);
                log.snapshot_append(&payload).expect("room");
                expected.push(payload);
            }
            log.finish_snapshot().expect("a disk that works");
            settle(&mut log);
        }
        for (index, &length) in lengths.iter().enumerate() {
            let payload = bytes(length, index as u8);
            log.append(&payload).expect("room");
            expected.push(payload);
        }
        settle(&mut log);
        let all = bytes(log.room() as usize, 99);
        log.append_shrinking(&all).expect("it said that there is room");
        expected.push(all);
        settle(&mut log);
        let disk = log.into_disk();
        let (log, found) = open_log(disk);
        prop_assert!(found == expected, "{} payloads of {}", found.len(), expected.len());
        check(&mut log.into_disk()).expect("good");
    }

    /// Keys and values of any bytes and of lengths at every edge, empty ones too.
    #[test]
    fn map(pairs in prop::collection::vec((edge(), edge(), any::<u8>()), 1..6)) {
        let mut disk = MemoryQueue::new(AREA);
        Map::format(&mut disk, FormatOptions::new(3)).expect("large enough");
        let (mut map, _) = Map::open(disk, Options::default()).expect("formatted");
        let mut expected = std::collections::BTreeMap::new();
        for (key, value, seed) in pairs {
            let (key, value) = (bytes(key, seed), bytes(value, !seed));
            map.put(&key, &value).expect("room");
            expected.insert(key, value);
            for _ in 0..8 {
                map.poll().expect("a disk that works");
            }
        }
        map.put(b"", b"").expect("room");
        expected.insert(Vec::new(), Vec::new());
        let last = map.put(b"deleted", b"x").expect("room");
        let deleted = map.delete(b"deleted").expect("room").unwrap_or(last);
        while map.poll().expect("a disk that works") < deleted {}
        let (map, _) = Map::open(map.into_disk(), Options::default()).expect("what the writer wrote");
        let found: std::collections::BTreeMap<_, _> =
            map.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
        prop_assert!(found == expected, "{} of {}", found.len(), expected.len());
    }

    /// Entries of lengths at every edge, delivered many times and all acknowledged in one record.
    #[test]
    fn queue(lengths in prop::collection::vec(edge(), 1..6), short in 1..3000_usize) {
        let mut disk = MemoryQueue::new(AREA);
        Queue::format(&mut disk, FormatOptions::new(3)).expect("large enough");
        let (mut queue, _) = Queue::open(disk, QueueOptions::default()).expect("formatted");
        let mut last = 0;
        for _ in 0..short {
            last = queue.send(b"").expect("room");
        }
        for (index, &length) in lengths.iter().enumerate() {
            last = queue.send(&bytes(length, index as u8)).expect("room");
        }
        while queue.poll(0).expect("a disk that works") < last {}
        let mut receipts = Vec::new();
        while receipts.len() < short
            && let Some(delivery) = queue.receive(u64::MAX, 0, u64::MAX)
        {
            receipts.push(delivery.receipt);
        }
        prop_assert_eq!(receipts.len(), short);
        let done = queue.acknowledge(&receipts).expect("they are ours");
        while queue.poll(0).expect("a disk that works") < done {}
        let (queue, _) =
            Queue::open(queue.into_disk(), QueueOptions::default()).expect("what the writer wrote");
        let found: Vec<Vec<u8>> = queue.iter().map(|(_, payload, _)| payload.to_vec()).collect();
        let expected: Vec<Vec<u8>> =
            lengths.iter().enumerate().map(|(index, &length)| bytes(length, index as u8)).collect();
        prop_assert!(found == expected, "{} of {}", found.len(), expected.len());
    }
}

/// A superblock with as many runs as it can name: each opening adds one, and the one after the last
/// refuses records until a snapshot.
#[test]
fn superblock() {
    let mut disk = MemoryQueue::new(AREA);
    Log::format(&mut disk, FormatOptions { identity: u128::MAX, segment_bytes: Some(16_384) })
        .expect("large enough");
    let mut expected = Vec::new();
    let mut refused = 0;
    for n in 0..200_u8 {
        let (mut log, found) = open_log(disk);
        assert_eq!(found, expected, "opening {n}");
        match log.append(&[n]) {
            Ok(_) => expected.push(vec![n]),
            Err(AppendError::Full { .. }) => refused += 1,
            Err(other) => panic!("{other}"),
        }
        settle(&mut log);
        log.write_proof().expect("a disk that works");
        settle(&mut log);
        disk = log.into_disk();
    }
    assert_eq!((expected.len(), refused), (160, 40));
    let (mut log, _) = open_log(disk);
    assert!(log.should_compact());
    log.begin_snapshot().expect("room");
    log.snapshot_append(b"all").expect("room");
    log.finish_snapshot().expect("a disk that works");
    settle(&mut log);
    log.append(b"more").expect("room");
    settle(&mut log);
    assert_eq!(open_log(log.into_disk()).1, [b"all".to_vec(), b"more".to_vec()]);
}

/// What is larger than a reader takes is refused before anything of it is written.
#[test]
fn a_record_that_no_reader_would_take_is_refused() {
    let mut disk = MemoryQueue::new(AREA);
    Log::format(&mut disk, FormatOptions::new(3)).expect("large enough");
    let (mut log, _) = open_log(disk);
    let part = vec![0; 1 << 20];
    let parts: Vec<&[u8]> = vec![&part; (MAX_RECORD >> 20) + 1];
    assert!(matches!(log.append_parts(&parts), Err(AppendError::TooLarge { .. })));
    assert_eq!(log.last(), 0);
}
