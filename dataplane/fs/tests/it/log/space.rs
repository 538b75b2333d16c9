//! Space of the log: what is refused, what is kept for removals, and what can be read.

use sietch_disk::MemoryQueue;
use sietch_disk::nvm::Mapped;
use sietch_fs::Change;
use sietch_fs::change::Place;
use sietch_fs::inode::{InodeNumber, Timestamp};
use sietch_fs::limits::MAX_RECORD_DATA;
use sietch_fs::log::{
    AppendError, Appended, Durability, LogReader, LogWriter, MAX_RECORD, MIN_RING, Mirror, RingError, reserve,
};
use sietch_fs::name::Cookie;
use sietch_sim::{Memory, Random};

use crate::log::changes::{IDENTITY, Owned};

const INODE: InodeNumber = InodeNumber(2);
const LONGEST: [u8; 255] = [b'n'; 255];

fn writer(bytes: usize, durability: Durability) -> LogWriter<Mapped> {
    let memory = Mapped::anonymous(bytes).expect("memory");
    LogWriter::new(memory, IDENTITY, durability).expect("a ring")
}

fn write(log: &mut LogWriter<Mapped>, length: usize) -> Result<Appended, AppendError> {
    let change = Change::Write { inode: INODE, offset: 0, length: length as u32 };
    log.append(Timestamp::default(), &change, &vec![1; length])
}

fn unlink() -> Change<'static> {
    let place = Place { directory: InodeNumber(1), cookie: Cookie(4096), name: &LONGEST };
    Change::Unlink { inode: INODE, place }
}

#[test]
fn removals_fit_a_log_that_is_full_of_data() {
    for start in (0..MIN_RING).step_by(1024) {
        for durability in [Durability::Operation, Durability::Sync { block: 4096 }] {
            let mut log = writer(MIN_RING as usize, durability);
            log.continue_at(start, 1);
            while write(&mut log, 100).is_ok() {}
            while write(&mut log, 1).is_ok() {}
            assert_eq!(write(&mut log, 1), Err(AppendError::Full));
            assert!(log.room() < 128);
            let now = Timestamp::default();
            let others = [
                Change::Free { inode: INODE },
                Change::Truncate { inode: INODE, size: 0 },
                Change::RemoveXattr { inode: INODE, name: &LONGEST },
            ];
            for other in others {
                log.append(now, &other, &[]).expect("the reserve");
            }
            let mut unlinks = 0;
            while log.append(now, &unlink(), &[]).is_ok() {
                unlinks += 1;
            }
            assert!(unlinks >= 18, "only {unlinks} names of the longest fit");
            assert_eq!(log.append(now, &unlink(), &[]), Err(AppendError::Full));
            assert!(log.next_position() <= start + MIN_RING);
            if let Durability::Sync { block } = durability {
                // A sync pads to a block of the disk: not to that in which the oldest record is.
                let mut mirror = Mirror::new(MemoryQueue::new(MIN_RING as usize), &log).expect("it fits");
                mirror.sync(&log);
                mirror.poll(&mut log).expect("a disk that works");
                let limit = (start + MIN_RING) / block as u64 * block as u64;
                assert!(log.next_position() <= limit);
            }
            // What is in the log is whole.
            let mut reader = LogReader::new(log.medium(), IDENTITY, start, 1).expect("a ring");
            while reader.next().expect("no damage").is_some() {}
            assert_eq!(reader.sequence(), log.next_sequence());
        }
    }
}

#[test]
fn a_refused_record_changes_nothing() {
    let memory = Memory::new(MIN_RING as usize);
    let mut log = LogWriter::new(memory.clone(), IDENTITY, Durability::Operation).expect("a ring");
    let write = |length| Change::Write { inode: INODE, offset: 0, length };
    let now = Timestamp::default();
    assert!(matches!(log.append(now, &write(5), &[1; 4]), Err(AppendError::Invalid(_))));
    assert!(matches!(log.append(now, &Change::Free { inode: INODE }, &[1]), Err(AppendError::Invalid(_))));
    assert!(matches!(
        log.append(now, &Change::Free { inode: InodeNumber(0) }, &[]),
        Err(AppendError::Invalid(_))
    ));
    assert_eq!(log.append(now, &write(30_000), &[1; 30_000]), Err(AppendError::Full));
    assert_eq!((memory.boundaries(), log.next_position(), log.next_sequence()), (0, 0, 1));
}

#[test]
fn the_largest_data_of_a_log_fit_wherever_it_begins() {
    for ring in [MIN_RING as usize, 100 << 10, 1 << 20, 4 << 20] {
        for durability in [Durability::Operation, Durability::Sync { block: 4096 }] {
            let most = writer(ring, durability).max_data();
            assert!(most >= ring / 4 || most == MAX_RECORD_DATA, "{most} of {ring}");
            for start in (0..ring as u64).step_by((ring / 40).next_multiple_of(64)) {
                let mut log = writer(ring, durability);
                log.continue_at(start, 1);
                write(&mut log, most).expect("an empty log");
            }
        }
    }
    assert_eq!(writer(4 << 20, Durability::Operation).max_data(), MAX_RECORD_DATA);
    const { assert!(MAX_RECORD < 2 << 20) };
}

#[test]
fn data_can_be_read_as_long_as_they_are_in_the_log() {
    let mut log = writer(MIN_RING as usize, Durability::Operation);
    let first = write(&mut log, 1000).expect("room");
    let mut bytes = vec![0; 1000];
    log.read(first.data, &mut bytes).expect("there");
    assert_eq!(bytes, [1; 1000]);
    log.read(first.data + 990, &mut bytes[..10]).expect("a part");
    assert!(log.read(first.position.end - 8, &mut bytes).is_err(), "behind the end");
    assert!(log.read(u64::MAX - 3, &mut bytes).is_err());
    log.reclaim(first.position.end);
    assert!(log.read(first.data, &mut bytes).is_err(), "it may be overwritten");
    // Around the end of the ring nothing is in one piece.
    let mut before = 0;
    while log.next_position() <= MIN_RING {
        log.reclaim(before);
        before = log.next_position();
        write(&mut log, 1000).expect("room");
    }
    assert!(log.reclaimed() < MIN_RING - 10 && log.next_position() > MIN_RING + 10);
    assert!(log.read(MIN_RING - 10, &mut bytes[..20]).is_err());
    log.read(MIN_RING - 10, &mut bytes[..10]).expect("one piece");
}

#[test]
fn reclaiming_less_than_before_changes_nothing() {
    let mut log = writer(MIN_RING as usize, Durability::Operation);
    let first = write(&mut log, 1000).expect("room");
    let second = write(&mut log, 1000).expect("room");
    log.reclaim(second.position.end);
    let room = log.room();
    log.reclaim(first.position.end);
    assert_eq!((log.room(), log.reclaimed()), (room, second.position.end));
}

#[test]
fn a_ring_that_is_too_small_or_not_whole_is_refused() {
    let new = |bytes: usize, durability| LogWriter::new(Memory::new(bytes), IDENTITY, durability).map(|_| ());
    let (least, operation) = (MIN_RING as usize, Durability::Operation);
    assert_eq!(new(least, operation), Ok(()));
    assert_eq!(new(least - 64, operation), Err(RingError::TooSmall { bytes: MIN_RING - 64 }));
    assert_eq!(new(least + 8, operation), Err(RingError::NotWhole { bytes: MIN_RING + 8, block: 64 }));
    for block in [0, 32, 4096] {
        let sync = Durability::Sync { block };
        assert!(matches!(new(least + 64, sync), Err(RingError::NotWhole { .. })), "blocks of {block}");
    }
    let memory = Memory::new(least);
    assert!(LogReader::new(&memory, IDENTITY, 63, 1).is_err());
    assert_eq!((reserve(MIN_RING), reserve(64 << 20), reserve(1 << 40)), (8192, 1 << 20, 1 << 20));
}

#[test]
fn no_record_takes_space_that_is_not_reclaimed() {
    for seed in 0..50 {
        let mut dice = Random::new(seed);
        let durability = if seed % 2 == 0 { Durability::Operation } else { Durability::Sync { block: 4096 } };
        let mut log = writer(MIN_RING as usize, durability);
        let mut appended = std::collections::VecDeque::new();
        let mut refused = 0;
        for _ in 0..2000 {
            let most = log.max_data();
            match Owned::random(&mut dice, most).append(&mut log) {
                Ok(one) => appended.push_back(one),
                Err(AppendError::Full) => {
                    refused += 1;
                    // A whole record at a time, sometimes only a part.
                    if let Some(oldest) = appended.pop_front() {
                        let position = oldest.position;
                        log.reclaim(dice.between(position.start / 64, position.end / 64) * 64);
                    } else {
                        log.reclaim(log.next_position());
                    }
                }
                Err(AppendError::Invalid(cause)) => panic!("{cause}"),
            }
            assert!(log.next_position() <= log.reclaimed() + log.capacity());
            for one in &appended {
                let ring = log.capacity();
                assert!(one.position.end.div_ceil(ring) - one.position.start / ring == 1, "around the end");
            }
        }
        assert!(refused > 10, "the log was never full");
    }
}
