//! The format as it was released: what earlier versions wrote opens, what later ones write is
//! refused by name.

use sietch_disk::MemoryQueue;
use sietch_volume::limits::{BLOCK, MAX_AREAS, MAX_EXTENTS};
use sietch_volume::{FormatOptions, OpenError, Volume, VolumeError};

const CAPACITY: u64 = 64 * BLOCK;

fn disk() -> MemoryQueue {
    MemoryQueue::new(CAPACITY as usize)
}

/// A volume with two areas, one in two pieces, and one that was deleted.
fn example() -> MemoryQueue {
    let mut disk = disk();
    let options = FormatOptions { identity: 0x0123_4567_89ab_cdef, half_bytes: Some(4 * BLOCK) };
    Volume::format(&mut disk, options).expect("room");
    let mut volume = Volume::open(&mut disk).expect("just formatted");
    volume.create(&mut disk, "first", 1000, 3 * BLOCK).expect("room");
    volume.create(&mut disk, "gone", 1001, BLOCK).expect("room");
    volume.resize(&mut disk, "first", 5 * BLOCK).expect("room");
    volume.delete(&mut disk, "gone").expect("there");
    volume.create(&mut disk, "second", 1002, 2 * BLOCK).expect("room");
    disk
}

/// The metadata of the example: what is not zero, as `offset: hexadecimal` lines of 32 bytes.
fn dump(disk: &MemoryQueue) -> String {
    let mut text = String::new();
    for (index, line) in disk.bytes()[..12 * BLOCK as usize].chunks(32).enumerate() {
        if line.iter().any(|&byte| byte != 0) {
            let hex: String = line.iter().map(|byte| format!("{byte:02x}")).collect();
            text.push_str(&format!("{:05x}: {hex}\n", index * 32));
        }
    }
    text
}

fn undump(text: &str) -> MemoryQueue {
    let mut bytes = vec![0; CAPACITY as usize];
    for line in text.lines() {
        let (offset, hex) = line.split_once(": ").expect("a line of the dump");
        let at = usize::from_str_radix(offset, 16).expect("an offset");
        for (index, pair) in hex.as_bytes().chunks(2).enumerate() {
            let pair = std::str::from_utf8(pair).expect("ASCII");
            bytes[at + index] = u8::from_str_radix(pair, 16).expect("a byte");
        }
    }
    MemoryQueue::from_bytes(bytes)
}

const GOLDEN: &str = include_str!("../golden/version-1.txt");

#[test]
fn version_1_is_written_as_it_was_released() {
    let now = dump(&example());
    if std::env::var_os("SIETCH_WRITE_GOLDEN").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/version-1.txt");
        std::fs::write(path, &now).expect("a writable tree");
    }
    assert_eq!(now, GOLDEN, "the format has changed: that takes a new version and a new golden file");
}

#[test]
fn a_volume_of_version_1_opens() {
    let mut disk = undump(GOLDEN);
    let volume = Volume::open(&mut disk).expect("every later version opens it");
    let found: Vec<_> =
        volume.areas().map(|area| (area.name.as_str(), area.uid, area.size(), area.extents.len())).collect();
    assert_eq!(found, [("first", 1000, 5 * BLOCK, 2), ("second", 1002, 2 * BLOCK, 1)]);
}

#[test]
fn another_version_is_refused_by_its_number() {
    let mut disk = example();
    let mut bytes = std::mem::replace(&mut disk, MemoryQueue::new(0)).into_bytes();
    for copy in 0..4 {
        let block = &mut bytes[copy * BLOCK as usize..][..BLOCK as usize];
        block[12] = 9;
        let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &block[12..]) as u32;
        block[8..12].copy_from_slice(&sum.to_le_bytes());
    }
    let refused = Volume::open(&mut MemoryQueue::from_bytes(bytes)).expect_err("an unknown version");
    assert!(matches!(refused, OpenError::Version { found: 9, known: 1 }), "{refused}");
    assert!(refused.to_string().contains("version 9"), "{refused}");
}

#[test]
fn a_file_without_a_volume_is_refused() {
    assert!(matches!(Volume::open(&mut disk()), Err(OpenError::NotFormatted)));
    let mut noise = MemoryQueue::from_bytes(vec![0x5a; CAPACITY as usize]);
    assert!(matches!(Volume::open(&mut noise), Err(OpenError::Damaged { .. })));
    let mut short = MemoryQueue::from_bytes(example().into_bytes()[..48 * BLOCK as usize].to_vec());
    let refused = Volume::open(&mut short).expect_err("half a volume");
    assert!(matches!(refused, OpenError::TooShort { .. }), "{refused}");
}

#[test]
fn invalid_and_oversized_requests_are_refused_and_change_nothing() {
    let mut disk = example();
    let mut volume = Volume::open(&mut disk).expect("a volume");
    let free = volume.free();
    let full = volume.create(&mut disk, "big", 1, free + BLOCK).expect_err("too large");
    assert!(
        matches!(full, VolumeError::Full { requested, free: reported } if requested == free + BLOCK && reported == free)
    );
    let full = volume.resize(&mut disk, "first", 5 * BLOCK + free + BLOCK).expect_err("too large");
    assert!(matches!(full, VolumeError::Full { .. }), "{full}");
    assert!(matches!(volume.create(&mut disk, "first", 1, BLOCK), Err(VolumeError::Exists)));
    for size in [0, 1, u64::MAX] {
        assert!(matches!(volume.create(&mut disk, "x", 1, size), Err(VolumeError::Invalid { .. })));
    }
    for (offset, length) in [(0, 6 * BLOCK), (5 * BLOCK, BLOCK), (u64::MAX - 4095, 4096), (1, BLOCK), (0, 0)]
    {
        assert!(
            matches!(volume.range("first", offset, length), Err(VolumeError::Invalid { .. })),
            "{offset} {length}"
        );
    }
    assert!(matches!(volume.delete(&mut disk, "x"), Err(VolumeError::Unknown)));
    assert_eq!(volume.free(), free);
}

#[test]
fn an_area_grows_in_place_if_possible_and_else_in_pieces() {
    let mut disk = MemoryQueue::new(2048 * BLOCK as usize);
    Volume::format(&mut disk, FormatOptions { identity: 1, half_bytes: None }).expect("room");
    let mut volume = Volume::open(&mut disk).expect("just formatted");
    volume.create(&mut disk, "a", 1, BLOCK).expect("room");
    volume.resize(&mut disk, "a", 4 * BLOCK).expect("room behind it");
    assert_eq!(volume.find("a").map(|area| area.extents.len()), Some(1));
    // Single free blocks between others.
    for index in 0..600 {
        volume.create(&mut disk, &format!("x{index}"), 1, BLOCK).expect("room");
    }
    let rest = volume.free();
    volume.create(&mut disk, "rest", 1, rest).expect("everything");
    for index in (0..600).step_by(2) {
        volume.delete(&mut disk, &format!("x{index}")).expect("there");
    }
    volume.resize(&mut disk, "a", 200 * BLOCK).expect("in pieces");
    assert!(
        volume.find("a").is_some_and(|area| area.extents.len() > 100 && area.extents.len() <= MAX_EXTENTS)
    );
    let refused = volume.resize(&mut disk, "a", 290 * BLOCK).expect_err("too many pieces");
    assert!(matches!(refused, VolumeError::Fragmented { .. }), "{refused}");
    let before: Vec<_> = volume.areas().cloned().collect();
    let again = Volume::open(&mut disk).expect("a volume");
    assert!(again.areas().eq(before.iter()));
    assert_eq!(again.free(), volume.free());
}

/// Opening reads only the superblocks and the two halves, whatever the other blocks contain.
#[test]
fn mounting_reads_the_same_bytes_of_a_large_volume_as_of_a_small_one() {
    struct Counting(MemoryQueue, u64);
    impl sietch_disk::DiskQueue for Counting {
        fn capacity(&self) -> u64 {
            self.0.capacity()
        }
        fn block_size(&self) -> usize {
            self.0.block_size()
        }
        fn physical_block_size(&self) -> usize {
            self.0.physical_block_size()
        }
        fn depth(&self) -> usize {
            self.0.depth()
        }
        fn submit_with(
            &mut self,
            token: u64,
            operation: sietch_disk::Operation,
            priority: sietch_disk::Priority,
        ) -> Result<(), sietch_disk::SubmitError> {
            if let sietch_disk::Operation::Read { length, .. } = &operation {
                self.1 += *length as u64;
            }
            self.0.submit_with(token, operation, priority)
        }
        fn notify(&mut self) -> std::io::Result<()> {
            self.0.notify()
        }
        fn complete(&mut self, out: &mut Vec<sietch_disk::Completion>) -> usize {
            self.0.complete(out)
        }
        fn wait(&mut self, timeout: std::time::Duration) -> std::io::Result<()> {
            self.0.wait(timeout)
        }
        fn in_flight(&self) -> usize {
            self.0.in_flight()
        }
    }
    let reads: Vec<u64> = [32 << 20, 256 << 20]
        .into_iter()
        .map(|capacity| {
            let mut disk = Counting(MemoryQueue::new(capacity), 0);
            Volume::format(&mut disk, FormatOptions { identity: 1, half_bytes: None }).expect("room");
            disk.1 = 0;
            Volume::open(&mut disk).expect("just formatted");
            disk.1
        })
        .collect();
    assert_eq!(reads[0], reads[1]);
}

/// As many areas as a volume may have, with the longest names, and one of as many extents as a
/// record holds: written, and read back.
#[test]
fn the_largest_volume_is_read_back() {
    let mut disk = MemoryQueue::new(24 << 20);
    let options = FormatOptions { identity: u128::MAX, half_bytes: Some(1 << 20) };
    Volume::format(&mut disk, options).expect("room");
    let mut volume = Volume::open(&mut disk).expect("just formatted");
    // Every other block is free: what is made of those has an extent for each.
    let name = |kind: &str, number: usize| format!("{kind:x<28}{number:04}");
    for number in 0..MAX_EXTENTS {
        volume.create(&mut disk, &name("kept", number), u32::MAX, BLOCK).expect("room");
        volume.create(&mut disk, &name("gap", number), 0, BLOCK).expect("room");
    }
    let rest = volume.free() - BLOCK;
    volume.create(&mut disk, "rest", 1, rest).expect("room");
    for number in 0..MAX_EXTENTS - 1 {
        volume.delete(&mut disk, &name("gap", number)).expect("it is there");
    }
    volume.create(&mut disk, &name("scattered", 0), 2, MAX_EXTENTS as u64 * BLOCK).expect("room");
    let pieces = volume.find(&name("scattered", 0)).expect("just made").extents.len();
    assert_eq!(pieces, MAX_EXTENTS);
    volume.resize(&mut disk, "rest", BLOCK).expect("it is longer");
    let made = volume.areas().count();
    for number in made..MAX_AREAS {
        volume.create(&mut disk, &name("more", number), 3, BLOCK).expect("room");
    }
    let one_more = volume.create(&mut disk, "one more", 3, BLOCK);
    assert!(matches!(one_more, Err(VolumeError::MetadataFull { .. })), "{one_more:?}");
    let expected: Vec<_> = volume.areas().cloned().collect();
    let again = Volume::open(&mut disk).expect("what the writer wrote");
    assert!(again.areas().eq(&expected), "{} areas of {}", again.areas().count(), expected.len());
}
