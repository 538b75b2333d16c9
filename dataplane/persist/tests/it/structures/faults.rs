//! What queues and maps do when the disk misbehaves.
//!
//! | fault | outcome |
//! | --- | --- |
//! | EIO, ENOSPC | that operation and all later ones fail with the reason; durable data stays |
//! | bit rot, a lost or misdirected write | opening names what is missing, or the state is right |
//! | a slow disk | everything is done in the end |
//! | a full area | refused, nothing has changed, and removing makes room |

use sietch_disk::MemoryQueue;
use sietch_persist::{
    AppendError, Durability, FormatOptions, Map, OpenError, Options, Queue, QueueError, QueueOptions,
};
use sietch_sim::disk::{Fault, Options as DiskOptions};
use sietch_sim::{Crash, Media};

use super::CAPACITY;
use super::subject::{Kind, Knowledge, Operation, Subject, format};
use crate::disk::Random;

fn media(kind: Kind, seed: u64, patience: u64) -> Media {
    let options = DiskOptions { patience, ..DiskOptions::new(CAPACITY) };
    let media = Media::new(options, sietch_sim::Random::new(seed));
    let mut disk = media.open();
    format(kind, &mut disk, u128::from(seed)).expect("large enough");
    media
}

/// Works until the disk fails or `steps` are done; the fault hits the `nth` write after opening.
fn work(
    kind: Kind,
    seed: u64,
    nth: u64,
    fault: Option<Fault>,
    known: &mut Knowledge,
) -> (Media, Option<String>) {
    let media = media(kind, seed, 3);
    let mut subject = Subject::open(kind, media.open(), Durability::Always).expect("formatted");
    if let Some(fault) = fault {
        media.inject(nth, fault);
    }
    let mut random = Random::new(seed);
    for _ in 0..400 {
        // Not much is written after the fault: compaction would make it harmless.
        if fault.is_some() && subject.log().metrics().writes > nth + 3 {
            break;
        }
        let operation = Operation::draw(kind, &mut random);
        if let Err(failure) = subject.step(operation, known, &mut random) {
            let again = subject.step(Operation::Poll, known, &mut random).expect_err("failed for good");
            assert_eq!(again.to_string(), failure.to_string());
            return (media, Some(failure.to_string()));
        }
    }
    // Closing proves that even the very last write was durable.
    let closed = subject.settle(known).and_then(|()| subject.close(known));
    (media, closed.err().map(|failure| failure.to_string()))
}

#[test]
fn a_disk_that_fails_stops_the_structure_and_loses_nothing() {
    let mut stopped = 0;
    for kind in [Kind::Queue, Kind::Map] {
        for nth in 1..60 {
            let mut known = Knowledge::default();
            let errno = if nth % 2 == 0 { 5 } else { 28 };
            let (media, failure) = work(kind, nth, nth, Some(Fault::Error(errno)), &mut known);
            if let Some(failure) = failure {
                assert!(failure.contains(&format!("os error {errno}")), "{failure}");
                stopped += 1;
            } else {
                continue;
            }
            media.crash(Crash::Random(sietch_sim::Random::new(nth)));
            let subject = Subject::open(kind, media.open(), Durability::Always).expect("it opens again");
            subject.judge(&known).unwrap_or_else(|wrong| panic!("{kind:?}, write {nth}: {wrong}"));
        }
    }
    assert!(stopped > 60, "{stopped}");
}

#[test]
fn silent_faults_are_named_or_harmless() {
    let mut named = 0;
    for kind in [Kind::Queue, Kind::Map] {
        for nth in 1..50 {
            for fault in [Fault::BitRot, Fault::Lost, Fault::Misdirected(512), Fault::Misdirected(40_960)] {
                let mut known = Knowledge::default();
                let (media, failure) = work(kind, nth, nth, Some(fault), &mut known);
                assert_eq!(failure, None);
                media.crash(Crash::Nothing);
                match Subject::open(kind, media.open(), Durability::Always) {
                    Ok(subject) => {
                        subject
                            .judge(&known)
                            .unwrap_or_else(|e| panic!("{kind:?}, write {nth}, {fault:?}: {e}"));
                    }
                    Err(error) => {
                        named += 1;
                        assert!(error.to_string().contains("offset"), "{error}");
                    }
                }
            }
        }
    }
    assert!(named > 100, "{named}");
}

#[test]
fn rot_at_rest_is_named_or_harmless() {
    let mut named = 0;
    for kind in [Kind::Queue, Kind::Map] {
        let mut known = Knowledge::default();
        let (media, _) = work(kind, 7, 0, None, &mut known);
        media.crash(Crash::Everything);
        let closed = media.image();
        let mut random = Random::new(3);
        for _ in 0..400 {
            let mut rotten = closed.clone();
            rotten[random.below(CAPACITY as u64) as usize] ^= 1 << random.below(8);
            match Subject::open(kind, MemoryQueue::from_bytes(rotten), Durability::Always) {
                Ok(subject) => assert_eq!(subject.state(), *known.history.state(), "{kind:?}"),
                Err(error) => {
                    named += 1;
                    assert!(error.to_string().contains("offset"), "{error}");
                }
            }
        }
    }
    assert!(named > 50, "{named}");
}

#[test]
fn a_slow_disk_is_waited_for() {
    for kind in [Kind::Queue, Kind::Map] {
        let media = media(kind, 5, 60);
        let mut subject = Subject::open(kind, media.open(), Durability::Always).expect("formatted");
        let (mut known, mut random) = (Knowledge::default(), Random::new(5));
        for _ in 0..500 {
            let operation = Operation::draw(kind, &mut random);
            subject.step(operation, &mut known, &mut random).expect("slow, not broken");
        }
        subject.settle(&mut known).expect("slow, not broken");
        media.crash(Crash::Nothing);
        let subject = Subject::open(kind, media.open(), Durability::Always).expect("whole");
        assert_eq!(subject.state(), *known.history.state());
    }
}

fn settle_queue(queue: &mut Queue<MemoryQueue>) {
    for _ in 0..60 {
        queue.poll(0).expect("a disk that works");
    }
}

#[test]
fn a_full_queue_refuses_and_drains() {
    let mut disk = MemoryQueue::new(CAPACITY);
    Queue::format(&mut disk, FormatOptions::new(3)).expect("large enough");
    let (mut queue, _) = Queue::open(disk, QueueOptions::default()).expect("formatted");
    for round in 0..20 {
        let mut sent = 0;
        let refused = loop {
            match queue.send(&[round; 1500]) {
                Ok(_) => sent += 1,
                Err(error) => break error,
            }
            queue.poll(0).expect("a disk that works");
        };
        assert!(matches!(refused, QueueError::Append(AppendError::Full { .. })), "{refused}");
        assert!(sent > 10, "round {round}: only {sent}");
        settle_queue(&mut queue);
        let mut receipts = Vec::new();
        while let Some(delivery) = queue.receive(1, 0, 10) {
            assert_eq!(delivery.payload, [round; 1500]);
            receipts.push(delivery.receipt);
        }
        assert_eq!(receipts.len(), sent);
        for receipt in receipts {
            queue.acknowledge(&[receipt]).expect("acknowledging has room");
            queue.poll(0).expect("a disk that works");
        }
        settle_queue(&mut queue);
        assert!(queue.is_empty());
    }
    // And of memory.
    let options = QueueOptions { memory: 10_000, ..QueueOptions::default() };
    let (mut queue, _) = Queue::open(queue.into_disk(), options).expect("whole");
    let refused = (0..20).find_map(|_| queue.send(&[1; 1500]).err()).expect("memory is bounded");
    assert!(matches!(refused, QueueError::Full { entries: 6, bytes: 9000, limit: 10_000 }), "{refused}");
}

#[test]
fn a_full_map_refuses_and_deletes() {
    let mut disk = MemoryQueue::new(CAPACITY);
    Map::format(&mut disk, FormatOptions::new(3)).expect("large enough");
    let (mut map, _) = Map::open(disk, Options::default()).expect("formatted");
    for round in 0..10u8 {
        let mut keys = 0u32;
        let refused = loop {
            match map.put(&keys.to_le_bytes(), &[round; 1500]) {
                Ok(_) => keys += 1,
                Err(error) => break error,
            }
            map.poll().expect("a disk that works");
        };
        assert!(matches!(refused, AppendError::Full { .. }) && keys > 10, "round {round}, {keys}: {refused}");
        for key in 0..keys {
            assert_eq!(map.get(&key.to_le_bytes()), Some(&[round; 1500][..]));
            assert!(map.delete(&key.to_le_bytes()).expect("deleting has room").is_some());
            map.poll().expect("a disk that works");
        }
        for _ in 0..60 {
            map.poll().expect("a disk that works");
        }
        assert!(map.is_empty() && map.bytes() == 0);
    }
}

/// An entry that is never acknowledged does not hold the area.
#[test]
fn an_old_entry_does_not_hold_the_head() {
    let mut disk = MemoryQueue::new(CAPACITY);
    Queue::format(&mut disk, FormatOptions::new(3)).expect("large enough");
    let (mut queue, _) = Queue::open(disk, QueueOptions::default()).expect("formatted");
    let old = queue.send(b"old").expect("room");
    while queue.poll(0).expect("a disk that works") < old {}
    assert_eq!(queue.receive(7, 0, u64::MAX).map(|delivery| delivery.receipt.id), Some(old));
    for n in 0..2000u32 {
        let id = queue.send(&[n as u8; 900]).unwrap_or_else(|e| panic!("entry {n}: {e}"));
        while queue.poll(0).expect("a disk that works") < id {}
        let receipt = queue.receive(1, 0, 10).expect("it is durable").receipt;
        assert_eq!(receipt.id, id);
        queue.acknowledge(&[receipt]).expect("room");
    }
    let (mut queue, _) = Queue::open(queue.into_disk(), QueueOptions::default()).expect("whole");
    let delivery = queue.receive(1, 0, 10).expect("it was never acknowledged");
    assert_eq!((delivery.receipt.id, delivery.payload, delivery.deliveries), (old, &b"old"[..], 2));
}

/// A consumer that takes everything down with it is counted, across crashes.
#[test]
fn deliveries_are_counted_across_restarts() {
    let mut disk = MemoryQueue::new(CAPACITY);
    Queue::format(&mut disk, FormatOptions::new(3)).expect("large enough");
    for count in 1..10 {
        let (mut queue, _) = Queue::open(disk, QueueOptions::default()).expect("whole");
        if count == 1 {
            queue.send(b"poison").expect("room");
            settle_queue(&mut queue);
        }
        let delivery = queue.receive(1, 0, 10).expect("it was never acknowledged");
        assert_eq!(delivery.deliveries, count);
        settle_queue(&mut queue);
        disk = queue.into_disk();
    }
}

#[test]
fn an_area_opens_only_as_the_structure_that_it_holds() {
    let mut disk = MemoryQueue::new(CAPACITY);
    Queue::format(&mut disk, FormatOptions::new(3)).expect("large enough");
    let error = Map::open(disk, Options::default()).map(|_| ()).expect_err("it is a queue");
    assert!(
        matches!(&error, OpenError::Content { found, wanted } if found == "queue" && wanted == "map"),
        "{error}"
    );
}
