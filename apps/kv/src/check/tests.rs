//! A check reports of an area what recovery would do with it, and names the damaged place.
//!
//! Each test writes a log through the store, damages its image, and compares the verdict of the
//! check with the outcome of a start on the same image.

use std::net::SocketAddr;

use proptest::prelude::*;
use sietch::disk::MemoryQueue;
use sietch::persist::{Entry, FormatOptions, HEADER, Log, Options};

use super::*;
use crate::foundation::client_id::ClientId;
use crate::foundation::settings::{Durability, Settings};
use crate::server::{LogWriter, recover};
use crate::shard::{Now, Shard};

const AREA: usize = 1 << 20;

/// A store on an area in memory.
struct Store {
    shard: Shard,
    log_writer: LogWriter<MemoryQueue>,
    client: ClientId,
    now: Now,
}

impl Store {
    fn start(image: Vec<u8>) -> Result<Self, crate::Error> {
        let now = Now { monotonic_ns: 1_000_000_000, unix_ms: 1_700_000_000_000 };
        let mut shard = Shard::new(Settings::default(), 42);
        let disk = MemoryQueue::from_bytes(image);
        let (log_writer, _) = recover("kv", disk, &mut shard, Durability::Always, 7, now)?;
        let address = SocketAddr::from(([127, 0, 0, 1], 40_000));
        let client = shard.connect(address, address, now).expect("fewer than maxclients");
        Ok(Self { shard, log_writer, client, now })
    }

    fn run(&mut self, command: &str) {
        self.shard.feed(self.client, format!("{command}\r\n").as_bytes(), self.now);
        for _ in 0..4 {
            self.log_writer.iterate(&mut self.shard, self.now);
        }
        let length = self.shard.output(self.client).len();
        assert!(length > 0, "{command} is not answered");
        self.shard.consumed(self.client, length);
    }

    fn sets(&mut self, from: usize, to: usize) {
        for number in from..to {
            self.run(&format!("SET key{number} {}", "v".repeat(100 + number % 900)));
        }
    }

    /// All keys and values.
    fn state(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        self.shard.begin_snapshot();
        self.shard.snapshot_slice(0, usize::MAX, &mut |record| all.extend_from_slice(record));
        all
    }
}

/// The image of an area with a snapshot, two runs and a tail; `clean`: closed in order, else as a
/// crash leaves it.
fn image(clean: bool) -> Vec<u8> {
    let mut store = Store::start(vec![0; AREA]).expect("it is new");
    store.sets(0, 100);
    store.run("BGREWRITEAOF");
    for _ in 0..20 {
        store.log_writer.iterate(&mut store.shard, store.now);
    }
    assert_eq!(store.shard.persistence().compactions, 1);
    store.sets(50, 150);
    let disk = store.log_writer.into_log().into_disk();
    let mut store = Store::start(disk.into_bytes()).expect("its own log");
    store.run("DEL key3 key4");
    store.sets(140, 200);
    let log = store.log_writer.into_log();
    if clean { log.close().expect("memory does not fail").into_bytes() } else { log.into_disk().into_bytes() }
}

fn checked(image: &[u8]) -> Verdict {
    check(&mut MemoryQueue::from_bytes(image.to_vec()))
}

/// What the store makes of it.
fn recovered(image: &[u8]) -> Result<Vec<u8>, String> {
    let mut store = Store::start(image.to_vec()).map_err(|cause| cause.to_string())?;
    Ok(store.state())
}

/// The records of the log that recovery delivers: offset, bytes and sequence.
fn live(image: &[u8]) -> Vec<(usize, usize, u64)> {
    let mut delivered = std::collections::HashMap::new();
    let mut disk = MemoryQueue::from_bytes(image.to_vec());
    persist::verify(&mut disk, &mut |entry| {
        if let Entry::Record(sequence, payload) = entry {
            delivered.insert(sequence, payload.to_vec());
        }
        Ok(())
    })
    .expect("it is whole");
    let word = |at: usize| u64::from_le_bytes(*image[at..].first_chunk::<8>().expect("inside"));
    let mut found = Vec::new();
    for at in (16_384..image.len() - HEADER).step_by(8) {
        if &image[at..at + 4] != b"SREC" || image[at + 12] != 1 {
            continue;
        }
        let (length, sequence) = ((word(at + 8) & 0xffff_ffff) as usize, word(at + 24));
        let payload = image.get(at + HEADER..at + HEADER + length);
        if delivered.get(&sequence).map(Vec::as_slice) == payload {
            found.push((at, HEADER + length, sequence));
        }
    }
    assert_eq!(found.len(), delivered.len());
    found.sort_by_key(|(_, _, sequence)| *sequence);
    found
}

#[test]
fn a_whole_log_is_good_and_its_content_is_counted() {
    for clean in [true, false] {
        let image = image(clean);
        let Verdict::Good(content) = checked(&image) else { panic!("{:?}", checked(&image)) };
        assert_eq!(content.log.clean, clean);
        assert_eq!(content.log.torn_tail, None);
        assert!(content.effects >= 100 + 100 + 62, "{} effects", content.effects);
        assert!(recovered(&image).is_ok());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_flipped_bit_is_harmless_or_named_where_it_is(place in any::<prop::sample::Index>(), bit in 0..8u8, inside in any::<bool>()) {
        let mut image = image(true);
        let whole = recovered(&image);
        let records = live(&image);
        let (record, at) = if inside {
            let record = records[place.index(records.len())];
            (Some(record), record.0 + place.index(record.1))
        } else {
            (None, place.index(image.len()))
        };
        image[at] ^= 1 << bit;
        match checked(&image) {
            Verdict::Good(_) => {
                prop_assert_eq!(recovered(&image), whole);
                prop_assert_eq!(record, None);
            }
            Verdict::Damaged(finding) => {
                prop_assert!(recovered(&image).is_err());
                prop_assert_eq!(finding.loss, Loss::Acknowledged);
                if let Some((start, _, sequence)) = record {
                    prop_assert_eq!((finding.offset, finding.sequence), (Some(start as u64), Some(sequence)));
                }
            }
            other => prop_assert!(false, "{:?}", other),
        }
    }

    #[test]
    fn after_a_crash_only_the_very_end_can_go_unnoticed_and_is_named_as_torn(place in any::<prop::sample::Index>(), bit in 0..8u8) {
        let mut image = image(false);
        let whole = recovered(&image);
        let records = live(&image);
        let (start, length, sequence) = records[place.index(records.len())];
        image[start + place.index(length)] ^= 1 << bit;
        match checked(&image) {
            Verdict::Good(content) => {
                prop_assert_eq!(sequence, records.last().expect("some").2);
                let torn = content.log.torn_tail;
                // A first byte that is gone leaves nothing to be recognized by.
                prop_assert!(torn.is_none_or(|torn| torn.offset == start as u64 && torn.sequence == sequence));
                prop_assert!(recovered(&image).is_ok_and(|state| Ok(state) != whole));
            }
            Verdict::Damaged(finding) => {
                prop_assert!(recovered(&image).is_err());
                prop_assert_eq!((finding.offset, finding.sequence), (Some(start as u64), Some(sequence)));
            }
            other => prop_assert!(false, "{:?}", other),
        }
    }
}

#[test]
fn a_write_that_was_lost_is_named_by_the_record_that_it_held() {
    let mut image = image(true);
    let records = live(&image);
    let (start, length, sequence) = records[records.len() / 2];
    image[start..start + length].fill(0);
    let Verdict::Damaged(finding) = checked(&image) else { panic!("{:?}", checked(&image)) };
    assert_eq!((finding.offset, finding.sequence), (Some(start as u64), Some(sequence)));
    assert!(recovered(&image).is_err());
}

#[test]
fn a_misplaced_write_is_named() {
    let mut image = image(true);
    let records = live(&image);
    let (from, length, _) = records[10];
    let (to, _, sequence) = records[20];
    image.copy_within(from..from + length, to);
    let Verdict::Damaged(finding) = checked(&image) else { panic!("{:?}", checked(&image)) };
    assert_eq!((finding.offset, finding.sequence), (Some(to as u64), Some(sequence)));
    assert!(recovered(&image).is_err());
}

#[test]
fn rotten_superblocks_are_good_while_one_of_the_newest_is_left() {
    let whole = image(true);
    let state = recovered(&whole);
    for copy in 0..4 {
        let mut image = whole.clone();
        image[copy * 4096 + 60] ^= 1;
        let Verdict::Good(content) = checked(&image) else { panic!("{:?}", checked(&image)) };
        assert_eq!(content.log.damaged_superblocks, [copy as u64 * 4096]);
        assert_eq!(recovered(&image), state);
    }
    let mut image = whole.clone();
    for copy in 0..4 {
        image[copy * 4096 + 60] ^= 1;
    }
    let Verdict::Damaged(finding) = checked(&image) else { panic!("{:?}", checked(&image)) };
    assert_eq!((finding.offset, finding.loss), (Some(0), Loss::Acknowledged));
    assert!(recovered(&image).is_err());
}

#[test]
fn erased_first_blocks_are_damage_and_no_empty_store() {
    let mut erased = image(true);
    for bytes in [16 << 10, 20 << 10, 100 << 10] {
        erased[..bytes].fill(0);
        assert!(recovered(&erased).is_err(), "{bytes} bytes were erased, and the store began anew");
        let Verdict::Damaged(finding) = checked(&erased) else { panic!("{:?}", checked(&erased)) };
        assert_eq!(finding.loss, Loss::Acknowledged);
    }
}

#[test]
fn an_area_that_was_cut_is_not_called_good() {
    let whole = image(true);
    assert!(matches!(checked(&whole), Verdict::Good(_)));
    // Nothing that the log names is in its last segments, so the store would open it.
    let Verdict::Damaged(finding) = checked(&whole[..AREA - 8192]) else { panic!("it is 8 KiB short") };
    assert_eq!((finding.offset, finding.loss), (Some(AREA as u64 - 8192), Loss::Nothing));
    assert!(finding.what.contains(&AREA.to_string()), "{}", finding.what);
}

#[test]
fn an_area_that_was_cut_within_its_log_is_damaged() {
    let whole = image(true);
    let (start, length, _) = *live(&whole).last().expect("records");
    let cut = &whole[..(start + length).next_multiple_of(4096) - 16_384];
    assert!(recovered(cut).is_err());
    let verdict = checked(cut);
    let Verdict::Damaged(finding) = &verdict else { panic!("{verdict:?}") };
    assert_eq!((finding.offset, finding.loss), (Some(cut.len() as u64), Loss::Acknowledged));
    assert!(finding.what.contains("cut short"), "{}", finding.what);
}

/// A store that was idle for a while has proven what it acknowledged, and damage to its last
/// records is named.
#[test]
fn records_acknowledged_before_a_pause_are_missed() {
    let mut store = Store::start(vec![0; AREA]).expect("it is new");
    store.sets(0, 20);
    let deadline = store.log_writer.next_deadline().expect("the mark is due");
    store.now.monotonic_ns = deadline;
    for _ in 0..4 {
        store.log_writer.iterate(&mut store.shard, store.now);
    }
    assert_eq!(store.log_writer.next_deadline(), None);
    let image = store.log_writer.into_log().into_disk().into_bytes();
    let (place, length, _) = *live(&image).last().expect("records");
    let mut rotten = image;
    rotten[place..place + length].fill(0);
    let Verdict::Damaged(finding) = checked(&rotten) else { panic!("the last record is gone") };
    assert_eq!(finding.loss, Loss::Acknowledged);
}

#[test]
fn an_area_without_a_store_is_not_called_good() {
    for bytes in [vec![0; AREA], vec![0xa5; AREA], vec![0; 4096]] {
        assert!(!matches!(checked(&bytes), Verdict::Good(_)), "{} bytes", bytes.len());
    }
    let mut disk = MemoryQueue::new(AREA);
    sietch::persist::Queue::format(&mut disk, FormatOptions::new(1)).expect("large enough");
    let verdict = check(&mut disk);
    assert!(matches!(&verdict, Verdict::Unknown(finding) if finding.what.contains("queue")), "{verdict:?}");
}

/// An area whose log holds one good record and `payload` behind it.
fn foreign(payload: &[u8]) -> Verdict {
    let mut disk = MemoryQueue::new(AREA);
    Log::<MemoryQueue>::format(&mut disk, FormatOptions::new(1)).expect("large enough");
    let (mut log, _) = Log::open(disk, Options::default(), &mut |_| Ok(())).expect("just formatted");
    let mut good = vec![crate::data::journal::EFFECTS];
    crate::data::journal::encode(&mut good, 0, &[b"SET", b"key", b"value"]);
    log.append(&good).expect("there is room");
    log.append(payload).expect("there is room");
    let disk = log.close().expect("memory does not fail");
    check(&mut MemoryQueue::from_bytes(disk.into_bytes()))
}

#[test]
fn whole_records_without_meaning_are_named() {
    let effect = |database: usize, arguments: &[&[u8]]| {
        let mut record = vec![crate::data::journal::EFFECTS];
        crate::data::journal::encode(&mut record, database, arguments);
        record
    };
    // The first record takes 40 bytes of header and 18 of payload, and a record begins at a
    // multiple of 8.
    let place = |verdict: &Verdict| match verdict {
        Verdict::Damaged(finding) | Verdict::Unknown(finding) => (finding.offset, finding.sequence),
        Verdict::Good(_) => (None, None),
    };
    for payload in [b"\x09what".to_vec(), effect(0, &[b"GET", b"key"]), effect(99, &[b"DEL", b"key"])] {
        let verdict = foreign(&payload);
        assert!(
            matches!(&verdict, Verdict::Unknown(finding) if finding.loss == Loss::Nothing),
            "{verdict:?}"
        );
        assert_eq!(place(&verdict), (Some(16_384 + 64), Some(2)), "{verdict:?}");
    }
    let mut cut = effect(0, &[b"SET", b"key", b"value"]);
    cut.pop();
    let verdict = foreign(&cut);
    assert!(matches!(verdict, Verdict::Damaged(_)), "{verdict:?}");
    assert_eq!(place(&verdict), (Some(16_384 + 64), Some(2)));
    let verdict = foreign(&effect(0, &[b"RPUSH", b"key", b"element"]));
    let Verdict::Damaged(finding) = verdict else { panic!("{verdict:?}") };
    assert_eq!((finding.loss, finding.sequence), (Loss::Acknowledged, Some(2)));
    assert!(finding.what.contains("RPUSH"), "{}", finding.what);
    let verdict = foreign(&effect(0, &[b"LSET", b"absent", b"7", b"x"]));
    let Verdict::Damaged(finding) = verdict else { panic!("{verdict:?}") };
    assert_eq!((finding.loss, finding.offset), (Loss::Acknowledged, Some(16_384 + 64)));
    assert!(matches!(foreign(&effect(0, &[b"DEL", b"key"])), Verdict::Good(content) if content.effects == 2));
}

#[test]
fn a_store_uses_blocks_added_to_its_area() {
    let mut store = Store::start(vec![0; AREA]).expect("an area never used");
    store.sets(0, 20);
    let state = store.state();
    let mut image = store.log_writer.into_log().into_disk().into_bytes();
    image.resize(4 * AREA, 0);
    let mut store = Store::start(image).expect("a larger area is no damage");
    assert_eq!(store.state(), state);
    store.sets(20, 30);
    assert_eq!(store.log_writer.log().area_bytes(), 4 * AREA as u64);
    let state = store.state();
    let image = store.log_writer.into_log().into_disk().into_bytes();
    assert_eq!(Store::start(image).expect("nothing is wrong with it").state(), state);
}
