//! Areas with numbers at the edges of their types and right checksums, as an attacker writes them.
//! Whatever reads such an area ends, with a result or an error: a debug build panics where
//! arithmetic overflows.

use crc_fast::{CrcAlgorithm, Digest, checksum};
use sietch_disk::MemoryQueue;
use sietch_persist::{
    Follower, FormatOptions, Log, Map, OpenError, Options, Queue, QueueOptions, check, expected_records,
    is_formatted, verify,
};

const SEGMENT: usize = 16384;
const CAPACITY: usize = 16384 + 24 * SEGMENT;
const IDENTITY: u128 = 7;

/// Bytes 8 to 11 of a superblock are its checksum: it covers what follows.
const COPIES: [usize; 4] = [0, 4096, 8192, 12288];
const SNAPSHOT_LAST: usize = 88;
const RUN_COUNT: usize = 84;
const FIRST_OF_RUN: usize = 104;

const EDGES: [u64; 10] =
    [0, 1, 2, u64::MAX, u64::MAX - 1, u64::MAX - 9, 1 << 63, (1 << 63) - 1, 1 << 32, u32::MAX as u64];

/// Writes the low bytes of `value` at byte `at` of every superblock.
fn forge_superblocks(area: &mut [u8], at: usize, width: usize, value: u64) {
    for copy in COPIES {
        let superblock = &mut area[copy..copy + 4096];
        superblock[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
        let crc = checksum(CrcAlgorithm::Crc32Iscsi, &superblock[12..]) as u32;
        superblock[8..12].copy_from_slice(&crc.to_le_bytes());
    }
}

/// Writes the low bytes of `value` at byte `at` of the record at `offset`.
fn forge_record(area: &mut [u8], offset: usize, at: usize, width: usize, value: u64) {
    let record = &mut area[offset..];
    record[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
    let length = u32::from_le_bytes(record[8..12].try_into().expect("four bytes")) as usize;
    let Some(checked) = record.get(8..40 + length) else { return };
    let seed = checksum(CrcAlgorithm::Crc32Iscsi, &IDENTITY.to_le_bytes());
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, seed ^ (offset as u64 >> 3));
    digest.update(checked);
    let crc = digest.finalize() as u32;
    record[4..8].copy_from_slice(&crc.to_le_bytes());
}

/// Where records begin.
fn records(area: &[u8]) -> Vec<usize> {
    (SEGMENT..area.len() - 40).step_by(8).filter(|&at| area[at..].starts_with(b"SREC")).collect()
}

fn format() -> FormatOptions {
    FormatOptions { identity: IDENTITY, segment_bytes: Some(SEGMENT as u32) }
}

fn open(area: Vec<u8>) -> Result<Log<MemoryQueue>, OpenError> {
    Log::open(MemoryQueue::from_bytes(area), Options::default(), &mut |_| Ok(())).map(|(log, _)| log)
}

/// As often as any step here needs: a forged log may never be done.
fn settle(log: &mut Log<MemoryQueue>) {
    for _ in 0..8 {
        let _ = log.submit();
        let _ = log.poll();
    }
}

/// A log with records, a snapshot, and records of two openings.
fn log() -> Vec<u8> {
    let mut disk = MemoryQueue::new(CAPACITY);
    Log::format(&mut disk, format()).expect("large enough");
    let mut area = disk.into_bytes();
    for opening in 0..2 {
        let mut log = open(area).expect("what the writer wrote");
        log.append(&[1; 100]).expect("room");
        if opening == 0 {
            log.begin_snapshot().expect("room");
            log.snapshot_append(&[2; 30]).expect("room");
            log.snapshot_append(&[3; 5000]).expect("room");
            log.finish_snapshot().expect("a disk that works");
            settle(&mut log);
        }
        log.append(&[4; 20_000]).expect("room");
        log.append(&[5]).expect("room");
        settle(&mut log);
        area = log.into_disk().into_bytes();
    }
    area
}

/// Everything that reads an area, and what a log does next.
fn use_log(area: &[u8]) {
    let disk = || MemoryQueue::from_bytes(area.to_vec());
    let _ = is_formatted(&mut disk());
    let _ = expected_records(&mut disk());
    let _ = check(&mut disk());
    let _ = verify(&mut disk(), &mut |_| Ok(()));
    let _ = Follower::open(disk()).map(|mut follower| drop(follower.poll(&mut |_| Ok(()))));
    let Ok(mut log) = open(area.to_vec()) else { return };
    let _ = log.append(&[6; 300]);
    settle(&mut log);
    for _ in 0..12 {
        let _ = log.write_proof();
        settle(&mut log);
    }
    let _ = log.cursor(log.head()).map(|mut cursor| drop(log.read(&mut cursor)));
    if log.begin_snapshot().is_ok() {
        let _ = log.snapshot_append(&[7; 3000]);
        let _ = log.finish_snapshot();
        settle(&mut log);
    }
    let _ = log.truncate(log.last());
    settle(&mut log);
    let _ = log.close().map(|disk| open(disk.into_bytes()).map(drop));
}

#[test]
fn no_number_of_a_superblock_does_harm() {
    let area = log();
    for at in (12..168).chain(3936..3968) {
        for (width, value) in [4, 8].into_iter().flat_map(|width| EDGES.map(|value| (width, value))) {
            if at % width == 0 {
                let mut forged = area.clone();
                forge_superblocks(&mut forged, at, width, value);
                println!("{width} bytes at {at} are {value}");
                use_log(&forged);
            }
        }
    }
}

#[test]
fn no_number_of_a_record_does_harm() {
    let area = log();
    for offset in records(&area) {
        for (at, width) in [(8, 4), (12, 4), (16, 8), (20, 4), (24, 8), (32, 8), (40, 4)] {
            for value in EDGES {
                let mut forged = area.clone();
                forge_record(&mut forged, offset, at, width, value);
                println!("{width} bytes at {at} of the record at {offset} are {value}");
                use_log(&forged);
            }
        }
    }
}

#[test]
fn sequences_at_the_edge_are_refused_wherever_they_are_read() {
    let area = log();
    let refused = |forged: Vec<u8>| {
        let disk = || MemoryQueue::from_bytes(forged.clone());
        let errors = [
            check(&mut disk()).map(drop),
            verify(&mut disk(), &mut |_| Ok(())).map(drop),
            open(forged.clone()).map(drop),
            expected_records(&mut disk()).map(drop),
        ];
        for error in errors {
            let error = error.expect_err("no log counts so far");
            assert!(matches!(error, OpenError::Superblocks), "{error}");
        }
        assert!(Follower::open(disk()).is_err());
    };
    let mut forged = area.clone();
    forge_superblocks(&mut forged, SNAPSHOT_LAST, 8, u64::MAX);
    refused(forged);
    // Both the superblock and the record that it names.
    let mut forged = area.clone();
    forge_superblocks(&mut forged, FIRST_OF_RUN, 8, u64::MAX);
    forge_superblocks(&mut forged, RUN_COUNT, 4, 1);
    for offset in records(&area) {
        forge_record(&mut forged, offset, 24, 8, u64::MAX);
    }
    refused(forged);
}

/// Each number of the records of a structure, its own and those of the log.
fn forge_each(area: &[u8], mut uses: impl FnMut(Vec<u8>)) {
    for offset in records(area) {
        for (at, width) in [(40, 4), (44, 4), (48, 4), (48, 8), (52, 4), (56, 4), (56, 8)] {
            let length = u32::from_le_bytes(area[offset + 8..offset + 12].try_into().expect("four bytes"));
            for value in EDGES.into_iter().filter(|_| at + width <= 40 + length as usize) {
                let mut forged = area.to_vec();
                forge_record(&mut forged, offset, at, width, value);
                println!("{width} bytes at {at} of the record at {offset} are {value}");
                uses(forged);
            }
        }
    }
}

fn poll_queue(queue: &mut Queue<MemoryQueue>) {
    for _ in 0..6 {
        let _ = queue.poll(0);
    }
}

#[test]
fn no_number_of_a_queue_does_harm() {
    let mut disk = MemoryQueue::new(CAPACITY);
    Queue::format(&mut disk, format()).expect("large enough");
    let (mut queue, _) = Queue::open(disk, QueueOptions::default()).expect("formatted");
    // Enough for a compaction.
    for _ in 0..40 {
        for _ in 0..4 {
            queue.send(&[1; 1200]).expect("room");
        }
        poll_queue(&mut queue);
        let delivery = queue.receive(1, 0, 10).expect("an entry");
        let receipt = delivery.receipt;
        queue.acknowledge(&[receipt]).expect("it is ours");
        while queue.len() > 5 {
            let Some(delivery) = queue.receive(1, 0, 10) else { break };
            let receipt = delivery.receipt;
            queue.acknowledge(&[receipt]).expect("it is ours");
        }
        queue.receive(1, 0, 10);
        poll_queue(&mut queue);
    }
    let area = queue.into_disk().into_bytes();
    let (_, report) =
        Queue::open(MemoryQueue::from_bytes(area.clone()), QueueOptions::default()).expect("whole");
    assert!(report.snapshot_records > 0 && report.records > 0, "{report:?}");
    forge_each(&area, |forged| {
        let options = QueueOptions { memory: 1500, ..QueueOptions::default() };
        let Ok((mut queue, _)) = Queue::open_stored(MemoryQueue::from_bytes(forged), options) else { return };
        for _ in 0..4 {
            let _ = queue.send(&[2; 500]);
            poll_queue(&mut queue);
            let receipt = queue.receive(u64::MAX, u64::MAX, u64::MAX).map(|delivery| delivery.receipt);
            let _ = receipt.map(|receipt| queue.acknowledge(&[receipt]));
        }
    });
}

#[test]
fn no_number_of_a_map_does_harm() {
    let mut disk = MemoryQueue::new(CAPACITY);
    Map::format(&mut disk, format()).expect("large enough");
    let (mut map, _) = Map::open(disk, Options::default()).expect("formatted");
    for round in 0..60 {
        map.put(b"key", &[round; 2500]).expect("room");
        map.put(&[round], &[1; 500]).expect("room");
        map.delete(&[round]).expect("room");
        for _ in 0..6 {
            map.poll().expect("a disk that works");
        }
    }
    let area = map.into_disk().into_bytes();
    forge_each(&area, |forged| {
        let Ok((mut map, _)) = Map::open(MemoryQueue::from_bytes(forged), Options::default()) else { return };
        let _ = map.get(b"key");
        let _ = map.put(b"key", &[2; 500]);
        let _ = map.poll();
    });
}
