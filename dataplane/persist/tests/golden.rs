//! Golden files: what earlier versions wrote still opens, and a version that nobody knows is refused by name.
//!
//! 1. A golden file holds the sectors of an area that are not zero: `offset u32, 512 bytes` each.
//! 2. With `SIETCH_WRITE_GOLDEN=1` a missing file is written by the code at hand. One that exists is never changed.

use std::path::PathBuf;

use sietch_disk::MemoryQueue;
use sietch_persist::{Entry, FormatOptions, Log, OpenError, Options};

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

/// The area of that name; `make` writes it where it does not exist and writing is asked for.
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

/// Three owners: one that compacted, one that was killed, one that wrote a record of many fragments and closed in order.
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
    let error = error.map(|_| ()).expect_err("nobody knows it");
    assert!(matches!(error, OpenError::Version { found: 7, known: 1 }), "{error}");
    assert!(error.to_string().contains("version 7"), "{error}");
}
