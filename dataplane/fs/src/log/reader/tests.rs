use sietch_disk::nvm::Medium;
use sietch_sim::Memory;

use super::*;
use crate::change::Change;
use crate::inode::{InodeNumber, Timestamp};
use crate::log::record::Stamp;
use crate::log::ring::MIN_RING;

const IDENTITY: LogIdentity = LogIdentity { log: 1, epoch: 1, seed: 5 };

fn stamp(sequence: u64) -> Stamp {
    Stamp { sequence, unproven: 0, time: Timestamp::default() }
}

/// Stores a pad as who knows the seed can make it; `edit` changes its line before it is sealed.
fn pad(memory: &mut Memory, position: u64, skipped: u32, edit: impl Fn(&mut [u8; LINE])) {
    let mut line = record::encode_pad(&IDENTITY, position, stamp(1), skipped);
    edit(&mut line);
    let checksum = sietch_structures::crc32c(&line);
    record::finish(&mut line, checksum);
    memory.store((position % MIN_RING) as usize, &line);
}

/// Stores a record that frees an inode, which may be none.
fn free(memory: &mut Memory, position: u64, sequence: u64, inode: u64) {
    let mut line = [0; LINE];
    let change = Change::Free { inode: InodeNumber(inode) };
    record::encode_front(&IDENTITY, position, stamp(sequence), &change, 0, &mut line);
    let checksum = sietch_structures::crc32c(&line);
    record::finish(&mut line, checksum);
    memory.store((position % MIN_RING) as usize, &line);
}

fn reader(memory: &Memory, position: u64) -> LogReader<'_, Memory> {
    LogReader::new(memory, IDENTITY, position, 1).expect("a ring")
}

#[test]
fn as_many_pads_as_a_writer_makes_are_passed() {
    for pads in 0..=MAX_PADS as u64 + 1 {
        let mut memory = Memory::new(MIN_RING as usize);
        for index in 0..pads {
            pad(&mut memory, index * 128, 64, |_| ());
        }
        free(&mut memory, pads * 128, 1, 9);
        let mut reader = reader(&memory, 0);
        match reader.next() {
            Ok(Some(record)) => {
                assert_eq!(record.position, pads * 128..pads * 128 + 64);
                assert!(pads <= MAX_PADS as u64, "{pads} pads are passed in one call");
            }
            Err(LogDamage::Invalid { sequence: 1, .. }) => assert_eq!(pads, MAX_PADS as u64 + 1),
            other => panic!("{pads} pads: {other:?}"),
        }
    }
}

#[test]
fn a_pad_that_says_something_is_invalid() {
    for (byte, value) in
        [(8, 1), (13, 1), (14, 2), (15, 1), (32, 1), (40, 1), (44, 1), (45, 1), (48, 1), (56, 1)]
    {
        let mut memory = Memory::new(MIN_RING as usize);
        pad(&mut memory, 64, 64, |line| line[byte] = value);
        let mut reader = reader(&memory, 64);
        let outcome = reader.next();
        assert!(
            matches!(outcome, Err(LogDamage::Invalid { sequence: 1, position: 64, .. })),
            "byte {byte}: {outcome:?}"
        );
        assert_eq!(reader.position(), 64);
    }
}

#[test]
fn a_pad_around_the_end_of_the_ring_is_none() {
    let position = MIN_RING - 128;
    for (skipped, passes) in [(64, true), (128, false), (256, false), (1 << 20, false)] {
        let mut memory = Memory::new(MIN_RING as usize);
        pad(&mut memory, position, skipped, |_| ());
        free(&mut memory, position + 64 + u64::from(skipped), 1, 9);
        let mut reader = reader(&memory, position);
        assert_eq!(reader.next().expect("no damage").is_some(), passes, "{skipped}");
        assert!(passes || reader.position() == position, "{skipped}");
    }
}

#[test]
fn a_record_that_no_log_may_contain_is_named_and_not_passed() {
    let mut memory = Memory::new(MIN_RING as usize);
    free(&mut memory, 0, 1, 9);
    free(&mut memory, 64, 2, 0);
    free(&mut memory, 128, 3, 9);
    let mut reader = reader(&memory, 0);
    assert!(reader.next().expect("no damage").is_some());
    for _ in 0..3 {
        let damage = reader.next().expect_err("inode 0");
        assert!(matches!(damage, LogDamage::Invalid { sequence: 2, position: 64, .. }), "{damage}");
    }
    assert_eq!((reader.position(), reader.sequence()), (64, 2));
}
