//! Queues that hold more than memory does.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use sietch_disk::{DiskQueue, MemoryQueue};
use sietch_persist::{
    Durability, Failure, FormatOptions, OpenError, Options, Queue, QueueError, QueueOptions, Receipt,
};
use sietch_sim::seeds::{self, Budget};

use crate::disk::{CrashDisk, Media, Random};
use crate::history::{Change, History, State, Verdict};

const CAPACITY: usize = 16384 + 24 * 16384;
/// Bytes of payloads in memory: a few.
const WINDOW: usize = 12_000;

fn options(durability: Durability) -> QueueOptions {
    QueueOptions { log: Options { durability, in_flight: 3 }, memory: WINDOW }
}

fn open<D: DiskQueue>(disk: D, durability: Durability) -> Result<Queue<D>, OpenError> {
    Queue::open_stored(disk, options(durability)).map(|(queue, _)| queue)
}

/// Everything in the queue, by receiving it.
fn drain<D: DiskQueue>(queue: &mut Queue<D>) -> Result<State, Failure> {
    let mut state = State::new();
    let mut idle = 0;
    while state.len() < queue.len() {
        queue.poll(1)?;
        match queue.receive(9, 1, 1 << 60) {
            Some(delivery) => {
                idle = 0;
                state.insert(delivery.receipt.id.to_be_bytes().to_vec(), delivery.payload.to_vec());
            }
            None => idle += 1,
        }
        assert!(idle < 10_000, "{} of {} entries come", state.len(), queue.len());
    }
    Ok(state)
}

struct Held {
    receipts: Vec<Receipt>,
    now: u64,
    deliveries: BTreeMap<u64, u32>,
}

/// Does something; an error: the disk died.
fn step<D: DiskQueue>(
    queue: &mut Queue<D>,
    history: &mut History,
    held: &mut Held,
    random: &mut Random,
    count: u64,
) -> Result<(), Box<dyn std::error::Error>> {
    match random.below(20) {
        0..=3 => {
            let mut bytes = count.to_le_bytes().to_vec();
            let length = [20, 700, 3000, 5000][random.below(4) as usize];
            bytes.resize(8 + random.below(length) as usize, count as u8);
            match queue.send(&bytes) {
                Ok(id) => history.note(id, vec![Change::Put(id.to_be_bytes().to_vec(), bytes)]),
                Err(QueueError::Append(sietch_persist::AppendError::Failed(failure))) => {
                    return Err(failure.into());
                }
                Err(_) => {}
            }
        }
        4..=9 => {
            if let Some(delivery) = queue.receive(random.below(3), held.now, 60) {
                let id = delivery.receipt.id;
                let sent = history.state().get(&id.to_be_bytes().to_vec()).map(Vec::as_slice);
                assert_eq!(sent, Some(delivery.payload), "entry {id}");
                *held.deliveries.entry(id).or_default() += 1;
                held.receipts.push(delivery.receipt);
            }
        }
        10 | 11 => {
            let keep = if random.chance(30) { held.receipts.len().saturating_sub(2) } else { 0 };
            let receipts = held.receipts.split_off(keep);
            match queue.acknowledge(&receipts) {
                Ok(sequence) => {
                    let deleted = receipts.iter().map(|r| Change::Delete(r.id.to_be_bytes().to_vec()));
                    history.note(sequence, deleted.collect());
                }
                Err(QueueError::Append(sietch_persist::AppendError::Failed(failure))) => {
                    return Err(failure.into());
                }
                Err(_) => {}
            }
        }
        12 => {
            if let Some(receipt) = held.receipts.pop() {
                // A stale receipt belongs to another delivery.
                let _ = queue.give_back(receipt, held.now, random.below(3) * 20);
            }
        }
        13 => held.now += 20,
        14 if random.chance(20) => drop(queue.release(random.below(3))),
        15 => queue.flush()?,
        _ => {
            let durable = queue.poll(held.now)?;
            history.advance(durable);
        }
    }
    Ok(())
}

fn judge(image: Vec<u8>, history: &History) -> Verdict {
    seeds::explored(1);
    // The queue in memory says what there is.
    let memory = QueueOptions { memory: 1 << 30, ..QueueOptions::default() };
    let (plain, _) = match Queue::open(MemoryQueue::from_bytes(image), memory) {
        Ok(opened) => opened,
        Err(OpenError::NotFormatted) if !history.formatted => return Ok(()),
        Err(other) => return Err(format!("does not open: {other}")),
    };
    let found: State =
        plain.iter().map(|(id, bytes, _)| (id.to_be_bytes().to_vec(), bytes.to_vec())).collect();
    history.judge(&found)?;
    let mut queue = open(plain.into_disk(), Durability::Always).map_err(|e| format!("a second time: {e}"))?;
    let same = drain(&mut queue).map_err(|e| e.to_string())?;
    if same == found { Ok(()) } else { Err("the window shows something else".into()) }
}

/// Formats and lives three times, until event `budget`.
fn live(seed: u64, budget: usize) -> (Rc<RefCell<Media>>, History, [u64; 3], bool) {
    let block = if seed.is_multiple_of(2) { 512 } else { 4096 };
    let media = Media::new(vec![0; CAPACITY], block, seed);
    media.borrow_mut().budget = budget;
    let (mut history, mut random, mut seen) = (History::default(), Random::new(seed), [0; 3]);
    let durability = if seed.is_multiple_of(3) { Durability::Deferred } else { Durability::Always };
    let mut done = || -> Result<(), Box<dyn std::error::Error>> {
        Queue::format(&mut CrashDisk::new(&media), FormatOptions::new(9))?;
        history.formatted = true;
        for life in 0..3_u64 {
            let mut queue = match open(CrashDisk::new(&media), durability) {
                Err(OpenError::Failed(failure)) => return Err(failure.into()),
                opened => opened.expect("a disk that works"),
            };
            let found = drain(&mut queue)?;
            history.judge(&found).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
            history.restart(&found);
            queue.release(9);
            let mut held = Held { receipts: Vec::new(), now: 2, deliveries: BTreeMap::new() };
            for count in 0..300 {
                step(&mut queue, &mut history, &mut held, &mut random, life * 1000 + count)?;
            }
            let metrics = queue.log().metrics();
            let more = [metrics.snapshots, metrics.truncations, metrics.reads];
            seen.iter_mut().zip(more).for_each(|(seen, more)| *seen += more);
            assert_eq!(queue.metrics().damaged, 0, "seed {seed}");
            drop(queue);
            let left = media.borrow().budget;
            media.borrow_mut().kill();
            media.borrow_mut().budget = left;
        }
        Ok(())
    };
    let done = done().is_ok();
    (media, history, seen, done)
}

#[test]
fn power_loss_in_the_life_of_a_queue_that_holds_more_than_memory() {
    let mut all = [0; 3];
    for seed in 1..=8 {
        all.iter_mut().zip(live(seed, usize::MAX).2).for_each(|(all, seen)| *all += seen);
    }
    assert!(all[0] > 6 && all[1] > 0 && all[2] > 200, "{all:?}");
    let budget = Budget { seeds: 8, seconds: 3 };
    seeds::run("it stored::queue::power_loss_in_the_life_of_a_queue", &[1, 2, 3], budget, |seed| {
        let mut random = Random::new(seed ^ 0xc0ffee);
        let mut budget = 1;
        loop {
            let (media, history, _, survived) = live(seed, budget);
            for percent in [0, 50, 3, 97, 100] {
                let unit = [8, 64, 512][random.below(3) as usize];
                let image = media.borrow().after_power_loss(unit, || random.chance(percent));
                judge(image, &history).unwrap_or_else(|wrong| panic!("event {budget}: {wrong}"));
            }
            if survived {
                return;
            }
            budget += 1 + random.below(15) as usize;
        }
    });
}

#[test]
fn a_queue_takes_more_than_memory_and_hands_it_out_in_order() {
    let mut disk = MemoryQueue::new(64 << 20);
    Queue::format(&mut disk, FormatOptions::new(1)).expect("large enough");
    let mut queue = open(disk, Durability::Always).expect("it was formatted");
    for n in 0..2000_u32 {
        let mut payload = vec![n as u8; 4000];
        payload[..4].copy_from_slice(&n.to_le_bytes());
        queue.send(&payload).expect("room in the area");
        queue.poll(0).expect("a disk that works");
        let (_, held) = queue.bytes();
        assert!(held <= WINDOW + 2 * (256 << 10), "{held} bytes in memory");
    }
    let mut queue = open(queue.into_disk(), Durability::Always).expect("nothing is wrong");
    assert!(queue.bytes().0 == 2000 * 4000 && queue.bytes().1 <= WINDOW);
    // No consumer acknowledges for a while: delivered entries leave memory too, and come back when
    // their lease ends.
    for (round, deliveries) in [(0, 1), (1, 2)] {
        let now = round * 1000;
        let mut next = 0_u32;
        while next < 2000 {
            queue.poll(now).expect("a disk that works");
            assert!(queue.bytes().1 <= WINDOW + 8 * 4000, "{:?}", queue.bytes());
            if let Some(delivery) = queue.receive(1, now, 1000) {
                assert_eq!(delivery.payload[..4], next.to_le_bytes());
                assert_eq!((delivery.payload.len(), delivery.deliveries), (4000, deliveries));
                let receipt = delivery.receipt;
                next += 1;
                if round == 1 {
                    queue.acknowledge(&[receipt]).expect("it is ours");
                }
            }
        }
    }
    assert!(queue.is_empty());
}
