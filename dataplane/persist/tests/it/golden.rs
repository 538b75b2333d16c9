//! Golden files: what earlier versions wrote still opens, and an unknown version is refused by
//! name.
//!
//! 1. A golden file holds the sectors of an area that are not zero: `offset u32, 512 bytes` each.
//! 2. With `SIETCH_WRITE_GOLDEN=1` a missing file is written by the code at hand. One that exists
//!    is never changed.

use std::path::PathBuf;

use sietch_disk::MemoryQueue;
use sietch_persist::{Entry, FormatOptions, Log, Map, OpenError, Options, Queue, QueueOptions, check};

const SECTOR: usize = 512;
const CAPACITY: usize = 16384 + 24 * 16384;

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn pack(area: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for (index, sector) in area.chunks(SECTOR).enumerate() {
        if sector.iter().any(|byte| *byte != 0) {
            out.extend(((index * SECTOR) as u32).to_le_bytes());
            out.extend(sector);
        }
    }
    out
}

fn unpack(packed: &[u8]) -> Vec<u8> {
    let mut area = vec![0; CAPACITY];
    for sector in packed.chunks(4 + SECTOR) {
        let at = u32::from_le_bytes([sector[0], sector[1], sector[2], sector[3]]) as usize;
        area[at..at + SECTOR].copy_from_slice(&sector[4..]);
    }
    area
}

/// The area of that name; `make` writes it where it does not exist and writing is requested.
fn golden(name: &str, make: impl FnOnce() -> Vec<u8>) -> Vec<u8> {
    let path = path(name);
    if !path.exists() && std::env::var_os("SIETCH_WRITE_GOLDEN").is_some() {
        std::fs::write(&path, pack(&make())).expect("a writable directory");
    }
    let packed = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    unpack(&packed)
}

fn payload(n: u32) -> Vec<u8> {
    let mut bytes = n.to_le_bytes().to_vec();
    bytes.resize(4 + (n as usize * 531) % 1200, n as u8);
    bytes
}

fn short(n: u32) -> Vec<u8> {
    let mut bytes = payload(n);
    bytes.truncate(300);
    bytes
}

fn settle(log: &mut Log<MemoryQueue>) {
    while !log.is_idle() {
        log.submit().expect("a disk that works");
        log.poll().expect("a disk that works");
    }
}

fn open_log(disk: MemoryQueue) -> (Log<MemoryQueue>, Vec<(u64, Vec<u8>)>) {
    let mut found = Vec::new();
    let (log, _) = Log::open(disk, Options::default(), &mut |entry| {
        match entry {
            Entry::Snapshot(payload) => found.push((0, payload.to_vec())),
            Entry::Record(sequence, payload) => found.push((sequence, payload.to_vec())),
        }
        Ok(())
    })
    .expect("it opens");
    (log, found)
}

/// Three owners: one that compacted, one that was killed, one that wrote a record of many fragments
/// and closed in order.
fn make_log() -> Vec<u8> {
    let mut disk = MemoryQueue::new(CAPACITY);
    Log::format(&mut disk, FormatOptions::new(0x5157_4348)).expect("large enough");
    let (mut log, _) = open_log(disk);
    for n in 0..20 {
        log.append(&payload(n)).expect("room");
    }
    settle(&mut log);
    log.begin_snapshot().expect("room");
    for n in 100..103 {
        log.snapshot_append(&payload(n)).expect("room");
    }
    log.finish_snapshot().expect("a disk that works");
    settle(&mut log);
    log.append(&payload(20)).expect("room");
    settle(&mut log);
    let (mut log, _) = open_log(log.into_disk());
    log.append(&payload(21)).expect("room");
    settle(&mut log);
    let (mut log, _) = open_log(log.into_disk());
    log.append(&[22; 20_000]).expect("room");
    log.close().expect("a disk that works").into_bytes()
}

#[test]
fn a_log_of_version_1_opens() {
    let area = golden("log-v1", make_log);
    let report = check(&mut MemoryQueue::from_bytes(area.clone())).expect("whole");
    assert!(report.clean, "it was closed in order before there was a field for that");
    let (_, found) = open_log(MemoryQueue::from_bytes(area));
    let mut expected: Vec<Vec<u8>> = (100..103).chain(20..22).map(payload).collect();
    expected.push(vec![22; 20_000]);
    assert_eq!(found.len(), expected.len());
    for ((_, found), expected) in found.iter().zip(&expected) {
        assert!(found == expected, "a payload of {} bytes reads as one of {}", expected.len(), found.len());
    }
    let sequences: Vec<u64> = found.iter().map(|(sequence, _)| *sequence).filter(|s| *s > 0).collect();
    assert!(sequences.windows(2).all(|w| w[0] < w[1]), "{sequences:?}");
}

/// A log that was killed after it had proven how far it was durable.
fn make_marked_log() -> Vec<u8> {
    let mut disk = MemoryQueue::new(CAPACITY);
    Log::format(&mut disk, FormatOptions::new(0x5157_434b)).expect("large enough");
    let (mut log, _) = open_log(disk);
    for n in 0..5 {
        log.append(&payload(n)).expect("room");
        settle(&mut log);
    }
    log.write_proof().expect("a disk that works");
    settle(&mut log);
    log.append(&payload(5)).expect("room");
    settle(&mut log);
    log.into_disk().into_bytes()
}

#[test]
fn a_marked_log_of_version_1_opens() {
    let area = golden("log-v1-marked", make_marked_log);
    let report = check(&mut MemoryQueue::from_bytes(area.clone())).expect("whole");
    assert_eq!((report.proven, report.last_sequence), (5, 6));
    let (_, found) = open_log(MemoryQueue::from_bytes(area));
    assert!(found.iter().map(|(_, bytes)| bytes).eq(&(0..6).map(payload).collect::<Vec<_>>()));
}

#[test]
fn an_unknown_version_is_refused_by_name() {
    let mut area = golden("log-v1", make_log);
    for copy in 0..4 {
        let at = copy * 4096;
        area[at + 12..at + 16].copy_from_slice(&7u32.to_le_bytes());
        let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &area[at + 12..at + 4096]) as u32;
        area[at + 8..at + 12].copy_from_slice(&crc.to_le_bytes());
    }
    let error = Log::open(MemoryQueue::from_bytes(area), Options::default(), &mut |_| Ok(()));
    let error = error.map(|_| ()).expect_err("an unknown version");
    assert!(matches!(error, OpenError::Version { found: 7, known: 1 }), "{error}");
    assert!(error.to_string().contains("version 7"), "{error}");
}

fn poll_queue(queue: &mut Queue<MemoryQueue>) {
    for _ in 0..20 {
        queue.poll(0).expect("a disk that works");
    }
}

/// Entries sent, delivered, acknowledged and left, before a snapshot and after it.
fn make_queue() -> Vec<u8> {
    let mut disk = MemoryQueue::new(CAPACITY);
    Queue::format(&mut disk, FormatOptions::new(0x5157_4349)).expect("large enough");
    let (mut queue, _) = Queue::open(disk, QueueOptions::default()).expect("formatted");
    for n in 0..120u32 {
        queue.send(&short(n)).expect("room");
        poll_queue(&mut queue);
        if n % 10 != 3 {
            // Entry 3, 13, ... are returned and stay.
            while let Some(delivery) = queue.receive(1, 0, 100) {
                let receipt = delivery.receipt;
                if delivery.payload[..4] == n.to_le_bytes() {
                    queue.acknowledge(&[receipt]).expect("it is ours");
                    break;
                }
            }
            queue.release(1);
        }
    }
    poll_queue(&mut queue);
    assert!(queue.log().metrics().snapshots > 0, "no snapshot in it");
    queue.send(b"last").expect("room");
    poll_queue(&mut queue);
    queue.into_disk().into_bytes()
}

#[test]
fn a_queue_of_version_1_opens() {
    let area = golden("queue-v1", make_queue);
    let (queue, report) =
        Queue::open(MemoryQueue::from_bytes(area), QueueOptions::default()).expect("it opens");
    assert!(report.snapshot_records > 0 && report.records > 0);
    let found: Vec<(Vec<u8>, u32)> = queue.iter().map(|(_, bytes, count)| (bytes.to_vec(), count)).collect();
    let mut expected: Vec<Vec<u8>> = (0..12).map(|n| short(n * 10 + 3)).collect();
    expected.push(b"last".to_vec());
    assert!(found.iter().map(|(payload, _)| payload).eq(&expected), "{} entries", found.len());
    assert!(found.windows(2).all(|w| w[0].1 > w[1].1), "the oldest were delivered most often");
}

/// Values put, put again and deleted, before a snapshot and after it.
fn make_map() -> Vec<u8> {
    let mut disk = MemoryQueue::new(CAPACITY);
    Map::format(&mut disk, FormatOptions::new(0x5157_434a)).expect("large enough");
    let (mut map, _) = Map::open(disk, Options::default()).expect("formatted");
    for n in 0..200u32 {
        map.put(format!("key {}", n % 30).as_bytes(), &short(n)).expect("room");
        map.poll().expect("a disk that works");
    }
    for _ in 0..20 {
        map.poll().expect("a disk that works");
    }
    assert!(map.log().metrics().snapshots > 0, "no snapshot in it");
    for n in [4, 25] {
        map.delete(format!("key {n}").as_bytes()).expect("room");
    }
    map.put(b"", b"an empty key").expect("room");
    map.put(b"empty", b"").expect("room");
    for _ in 0..20 {
        map.poll().expect("a disk that works");
    }
    map.into_disk().into_bytes()
}

#[test]
fn a_map_of_version_1_opens() {
    let area = golden("map-v1", make_map);
    let (map, report) = Map::open(MemoryQueue::from_bytes(area), Options::default()).expect("it opens");
    assert!(report.snapshot_records > 0 && report.records > 0);
    for n in 0..30u32 {
        let last = if n < 20 { 180 + n } else { 150 + n };
        let expected = (n != 4 && n != 25).then(|| short(last));
        assert_eq!(
            map.get(format!("key {n}").as_bytes()).map(<[u8]>::len),
            expected.map(|p| p.len()),
            "key {n}"
        );
    }
    assert_eq!((map.get(b""), map.get(b"empty")), (Some(&b"an empty key"[..]), Some(&b""[..])));
    assert_eq!(map.len(), 30);
}

#[test]
fn an_unknown_version_of_a_structure_is_refused_by_name() {
    let mut area = golden("map-v1", make_map);
    for copy in 0..4 {
        let at = copy * 4096;
        area[at + 3948] = 9;
        let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &area[at + 12..at + 4096]) as u32;
        area[at + 8..at + 12].copy_from_slice(&crc.to_le_bytes());
    }
    let error = Map::open(MemoryQueue::from_bytes(area), Options::default());
    let error = error.map(|_| ()).expect_err("an unknown version").to_string();
    assert!(error.contains("map") && error.contains("version 9"), "{error}");
}
