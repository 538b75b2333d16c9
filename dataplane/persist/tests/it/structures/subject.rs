//! The structures under test behind one face: what is done to them is drawn from one set of
//! operations.

use std::collections::BTreeMap;

use sietch_disk::DiskQueue;
use sietch_persist::{
    AppendError, Durability, Failure, FormatError, FormatOptions, Log, Map, OpenError, Options, Queue,
    QueueError, QueueOptions, Receipt,
};

use crate::disk::Random;
use crate::history::{Change, History, State};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Queue,
    Map,
}

/// What can be done.
#[derive(Clone, Copy, Debug)]
pub(super) enum Operation {
    Send,
    Receive,
    Acknowledge,
    GiveBack,
    Release,
    /// Lets time pass.
    Wait,
    Put,
    Delete,
    Flush,
    Poll,
}

impl Operation {
    pub(super) fn draw(kind: Kind, random: &mut Random) -> Self {
        match (kind, random.below(20)) {
            (Kind::Queue, 0..=4) => Self::Send,
            (Kind::Queue, 5..=8) => Self::Receive,
            (Kind::Queue, 9..=11) => Self::Acknowledge,
            (Kind::Queue, 12) => Self::GiveBack,
            (Kind::Queue, 13) if random.chance(20) => Self::Release,
            (Kind::Queue, 13) => Self::Wait,
            (Kind::Map, 0..=7) => Self::Put,
            (Kind::Map, 8..=10) => Self::Delete,
            (_, 14) => Self::Flush,
            _ => Self::Poll,
        }
    }
}

enum Opened<D: DiskQueue> {
    Queue(Box<Queue<D>>),
    Map(Box<Map<D>>),
}

/// What a test expects of a structure beside its state.
#[derive(Clone, Default)]
pub(super) struct Knowledge {
    pub history: History,
    /// Deliveries of each entry, at most.
    deliveries: BTreeMap<u64, u32>,
    count: u64,
    pub truncations: u64,
    pub snapshots: u64,
    /// It was closed in order.
    pub closed: bool,
}

/// An open structure.
pub(super) struct Subject<D: DiskQueue> {
    opened: Opened<D>,
    durability: Durability,
    /// It knows that it was closed in order.
    clean: bool,
    held: Vec<Receipt>,
    now: u64,
}

pub(super) fn format<D: DiskQueue>(kind: Kind, disk: &mut D, identity: u128) -> Result<(), FormatError> {
    match kind {
        Kind::Queue => Queue::format(disk, FormatOptions::new(identity)),
        Kind::Map => Map::format(disk, FormatOptions::new(identity)),
    }
}

fn full(error: AppendError) -> Result<(), Failure> {
    match error {
        AppendError::Full { .. } | AppendError::Busy { .. } => Ok(()),
        AppendError::Failed(failure) => Err(failure),
        AppendError::TooLarge { .. } => panic!("{error}"),
    }
}

impl<D: DiskQueue> Subject<D> {
    pub(super) fn open(kind: Kind, disk: D, durability: Durability) -> Result<Self, OpenError> {
        let log = Options { durability, in_flight: 3 };
        let (opened, report) = match kind {
            Kind::Queue => {
                let options = QueueOptions { log, memory: 80_000 };
                let (queue, report) = Queue::open(disk, options)?;
                (Opened::Queue(Box::new(queue)), report)
            }
            Kind::Map => {
                let (map, report) = Map::open(disk, log)?;
                (Opened::Map(Box::new(map)), report)
            }
        };
        Ok(Self { opened, durability, clean: report.clean, held: Vec::new(), now: 0 })
    }

    pub(super) fn log(&self) -> &Log<D> {
        match &self.opened {
            Opened::Queue(queue) => queue.log(),
            Opened::Map(map) => map.log(),
        }
    }

    pub(super) fn state(&self) -> State {
        match &self.opened {
            Opened::Queue(queue) => {
                queue.iter().map(|(id, payload, _)| (id.to_be_bytes().to_vec(), payload.to_vec())).collect()
            }
            Opened::Map(map) => map.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect(),
        }
    }

    /// What is wrong with the structure as it was opened.
    pub(super) fn judge(&self, known: &Knowledge) -> Result<(), String> {
        known.history.judge(&self.state())?;
        if known.closed && !self.clean {
            return Err("closed in order, but does not know it".into());
        }
        if let Opened::Queue(queue) = &self.opened {
            for (id, _, count) in queue.iter() {
                let most = known.deliveries.get(&id).copied().unwrap_or_default();
                if count > most {
                    return Err(format!("entry {id} was delivered {count} times, not {most}"));
                }
            }
        }
        if let Opened::Map(map) = &self.opened {
            for (key, value) in map.iter() {
                if map.get(key) != Some(value) {
                    return Err("a key of the map is not found in it".into());
                }
            }
        }
        Ok(())
    }

    pub(super) fn step(
        &mut self,
        operation: Operation,
        known: &mut Knowledge,
        random: &mut Random,
    ) -> Result<(), Failure> {
        known.count += 1;
        let mut value = known.count.to_le_bytes().to_vec();
        value.resize(
            8 + [700, 40, 2000, 3000, 9000][random.below(60).min(99) as usize % 25 % 5],
            known.count as u8,
        );
        let durable = match &mut self.opened {
            Opened::Queue(queue) => {
                Self::queue(queue, &mut self.held, &mut self.now, operation, known, random, value)?
            }
            Opened::Map(map) => Self::map(map, operation, known, random, value)?,
        };
        if let Some(durable) = durable {
            known.history.advance(durable);
        }
        let metrics = self.log().metrics();
        known.truncations = known.truncations.max(metrics.truncations);
        known.snapshots = known.snapshots.max(metrics.snapshots);
        Ok(())
    }

    fn queue(
        queue: &mut Queue<D>,
        held: &mut Vec<Receipt>,
        now: &mut u64,
        operation: Operation,
        known: &mut Knowledge,
        random: &mut Random,
        value: Vec<u8>,
    ) -> Result<Option<u64>, Failure> {
        match operation {
            Operation::Send => match queue.send(&value) {
                Ok(id) => known.history.note(id, vec![Change::Put(id.to_be_bytes().to_vec(), value)]),
                Err(QueueError::Append(error)) => full(error)?,
                Err(QueueError::Full { .. }) => {}
                Err(other) => panic!("{other}"),
            },
            Operation::Receive => {
                if let Some(delivery) = queue.receive(random.below(3), *now, 50) {
                    let id = delivery.receipt.id;
                    let sent = known.history.state().get(&id.to_be_bytes().to_vec()).map(Vec::as_slice);
                    assert_eq!(sent, Some(delivery.payload), "entry {id}");
                    known.deliveries.insert(id, delivery.deliveries);
                    held.push(delivery.receipt);
                }
            }
            Operation::Acknowledge => {
                // Now and then nearly all: then the head can go.
                let keep = if random.chance(70) { held.len().saturating_sub(2) } else { 0 };
                let receipts = held.split_off(keep);
                match queue.acknowledge(&receipts) {
                    Ok(sequence) => {
                        let deleted = receipts.iter().map(|r| Change::Delete(r.id.to_be_bytes().to_vec()));
                        known.history.note(sequence, deleted.collect());
                    }
                    Err(QueueError::Append(error)) => full(error)?,
                    Err(QueueError::Stale { .. }) => {}
                    Err(other) => panic!("{other}"),
                }
            }
            Operation::GiveBack => {
                if let Some(receipt) = held.pop() {
                    // Stale receipts are none of ours any more.
                    let _ = queue.give_back(receipt, *now, random.below(3) * 20);
                }
            }
            Operation::Release => drop(queue.release(random.below(3))),
            Operation::Wait => *now += 20,
            Operation::Flush => queue.flush()?,
            _ => return queue.poll(*now).map(Some),
        }
        Ok(None)
    }

    fn map(
        map: &mut Map<D>,
        operation: Operation,
        known: &mut Knowledge,
        random: &mut Random,
        value: Vec<u8>,
    ) -> Result<Option<u64>, Failure> {
        let key = format!("key {}", random.below(24)).into_bytes();
        assert_eq!(map.get(&key), known.history.state().get(&key).map(Vec::as_slice));
        match operation {
            Operation::Put => match map.put(&key, &value) {
                Ok(sequence) => known.history.note(sequence, vec![Change::Put(key, value)]),
                Err(error) => full(error)?,
            },
            Operation::Delete => match map.delete(&key) {
                Ok(Some(sequence)) => known.history.note(sequence, vec![Change::Delete(key)]),
                Ok(None) => assert!(!known.history.state().contains_key(&key)),
                Err(error) => full(error)?,
            },
            Operation::Flush => map.flush()?,
            _ => return map.poll().map(Some),
        }
        Ok(None)
    }

    /// Polls until everything is done, the compaction that is due included.
    pub(super) fn settle(&mut self, known: &mut Knowledge) -> Result<(), Failure> {
        // A real disk takes its time.
        for _ in 0..1_000_000 {
            if self.durability == Durability::Deferred && self.log().is_idle() {
                match &mut self.opened {
                    Opened::Queue(queue) => queue.flush()?,
                    Opened::Map(map) => map.flush()?,
                }
            }
            let durable = match &mut self.opened {
                Opened::Queue(queue) => queue.poll(self.now)?,
                Opened::Map(map) => map.poll()?,
            };
            known.history.advance(durable);
            let log = self.log();
            let done = log.is_idle() && log.queued() == 0 && !log.is_snapshotting();
            if done && log.durable() == log.last() {
                return Ok(());
            }
        }
        panic!("it never settles");
    }

    pub(super) fn close(self, known: &mut Knowledge) -> Result<D, Failure> {
        let disk = match self.opened {
            Opened::Queue(queue) => queue.close(self.now)?,
            Opened::Map(map) => map.close()?,
        };
        known.history.advance(u64::MAX);
        known.closed = true;
        Ok(disk)
    }

    pub(super) fn into_disk(self) -> D {
        match self.opened {
            Opened::Queue(queue) => queue.into_disk(),
            Opened::Map(map) => map.into_disk(),
        }
    }
}
