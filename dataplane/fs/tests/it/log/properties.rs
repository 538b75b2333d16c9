use sietch_disk::nvm::{Mapped, Medium};
use sietch_sim::Memory;
use sietch_structures::Random;

use crate::log::changes::{IDENTITY, KINDS, Kept, Owned};
use sietch_fs::limits::MAX_RECORD_DATA;
use sietch_fs::log::{AppendError, Durability, LINE, LogDamage, LogIdentity, LogReader, LogWriter, MIN_RING};

fn writer(bytes: usize) -> LogWriter<Mapped> {
    let medium = Mapped::anonymous(bytes).expect("memory");
    LogWriter::new(medium, IDENTITY, Durability::Operation).expect("a ring")
}

#[test]
fn every_kind_of_change_is_read_as_it_was_appended() {
    let mut dice = Random::new(1);
    let mut writer = writer(4 << 20);
    for round in 0..300 {
        for kind in 0..KINDS {
            let most = if round % 50 == 0 { MAX_RECORD_DATA } else { 5000 };
            let owned = Owned::new(&mut dice, kind, most);
            let (position, sequence) = (writer.next_position(), writer.next_sequence());
            let appended = owned.append(&mut writer).expect("room");
            let mut reader = LogReader::new(writer.medium(), IDENTITY, position, sequence).expect("a ring");
            let record = reader.next().expect("no damage").expect("a record");
            assert_eq!(Kept::of(&record), owned.kept(sequence));
            assert_eq!((record.position.clone(), record.data.0), (appended.position.clone(), appended.data));
            let mut data = vec![0; record.data.1.len()];
            writer.read(appended.data, &mut data).expect("there");
            assert_eq!(data, record.data.1);
            writer.reclaim(appended.position.end);
        }
    }
}

#[test]
fn a_reader_follows_many_laps_with_reclaim() {
    for seed in 0..20 {
        let mut dice = Random::new(seed);
        let mut writer = writer(128 << 10);
        let mut expected = std::collections::VecDeque::new();
        let (mut position, mut sequence) = (0, 1);
        let mut refused = 0;
        while writer.next_position() < 20 * writer.capacity() {
            let most = writer.max_data();
            let owned = Owned::random(&mut dice, most.min(20_000));
            match owned.append(&mut writer) {
                Ok(appended) => {
                    assert!(appended.position.end <= writer.reclaimed() + writer.capacity());
                    expected.push_back(owned.kept(appended.sequence));
                }
                Err(AppendError::Full) => {
                    refused += 1;
                    let mut reader =
                        LogReader::new(writer.medium(), IDENTITY, position, sequence).expect("a ring");
                    for _ in 0..dice.between(1, 40) {
                        let Some(record) = reader.next().expect("no damage") else { break };
                        assert_eq!(Some(Kept::of(&record)), expected.pop_front());
                    }
                    (position, sequence) = (reader.position(), reader.sequence());
                    writer.reclaim(position);
                }
                Err(AppendError::Invalid(cause)) => panic!("{cause}: {owned:?}"),
            }
        }
        assert!(refused > 20, "the log was never full");
    }
}

/// A log with one record of each kind, and where each begins.
fn log_of_every_kind() -> (Memory, Vec<std::ops::Range<u64>>) {
    let memory = Memory::new(MIN_RING as usize);
    let mut writer = LogWriter::new(memory.clone(), IDENTITY, Durability::Operation).expect("a ring");
    let mut dice = Random::new(3);
    let positions = (0..KINDS)
        .map(|kind| Owned::new(&mut dice, kind, 200).append(&mut writer).expect("room").position)
        .collect();
    (memory, positions)
}

#[test]
fn a_record_with_a_flipped_bit_is_not_accepted() {
    let (mut memory, positions) = log_of_every_kind();
    for (index, range) in positions.iter().enumerate() {
        for byte in range.start as usize..range.end as usize {
            for mask in [1 << (byte % 8), 0xff] {
                let mut line = [0; LINE];
                let place = byte / LINE * LINE;
                memory.load(place, &mut line);
                let before = line;
                line[byte % LINE] ^= mask;
                memory.store(place, &line);
                let mut reader =
                    LogReader::new(&memory, IDENTITY, range.start, index as u64 + 1).expect("a ring");
                match reader.next() {
                    Ok(None) => assert_eq!(index + 1, positions.len(), "byte {byte}: not the end"),
                    Err(LogDamage::Missing { sequence, position, found, .. }) => {
                        assert_eq!(
                            (sequence, position, found),
                            (index as u64 + 1, range.start, sequence + 1)
                        );
                    }
                    other => panic!("byte {byte} of record {index}: {other:?}"),
                }
                memory.store(place, &before);
            }
        }
    }
}

#[test]
fn records_of_another_log_epoch_seed_or_place_are_not_accepted() {
    let (memory, positions) = log_of_every_kind();
    let others = [
        LogIdentity { log: 8, ..IDENTITY },
        LogIdentity { epoch: 4, ..IDENTITY },
        LogIdentity { seed: 1, ..IDENTITY },
    ];
    for identity in others {
        let mut reader = LogReader::new(&memory, identity, 0, 1).expect("a ring");
        assert_eq!(reader.next(), Ok(None));
    }
    // The same place one lap later.
    let lap = memory.len() as u64;
    let mut reader = LogReader::new(&memory, IDENTITY, lap, 1).expect("a ring");
    assert_eq!(reader.next(), Ok(None));
    assert_eq!(reader.verify_end(usize::MAX), Ok(true));
    // Copied to another place.
    let mut moved = Memory::new(memory.len());
    let mut bytes = vec![0; positions[0].end as usize];
    memory.load(0, &mut bytes);
    moved.store(LINE, &bytes);
    let mut reader = LogReader::new(&moved, IDENTITY, LINE as u64, 1).expect("a ring");
    assert_eq!(reader.next(), Ok(None));
}
