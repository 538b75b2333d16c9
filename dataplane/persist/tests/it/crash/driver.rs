//! An application whose state is checked by itself, and what a crash may do to it.
//!
//! Record `n` has a content and a length that follow from `n`. The state after record `n` is `n`: a
//! snapshot says it, with some filling. So recovery can be judged alone: whatever it delivers must
//! be a snapshot of some `n` and then `n + 1`, `n + 2`, ...

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use sietch_disk::DiskQueue;
use sietch_persist::{Applied, Durability, Entry, FormatOptions, Log, OpenError, Options, RecoveryReport};

use crate::disk::{CrashDisk, Media, Phase, Random};

pub(super) const CAPACITY: usize = 16384 + 16 * 16384;
const SNAPSHOT_RECORDS: u64 = 3;

/// The content of record `n`.
pub(super) fn payload(n: u64) -> Vec<u8> {
    let mut random = Random::new(n + 1);
    let length = match random.below(40) {
        0..=2 => 9000 + random.below(14000),
        3..=6 => random.below(3000),
        _ => random.below(120),
    };
    let mut bytes = n.to_le_bytes().to_vec();
    bytes.extend((0..length.div_ceil(8)).flat_map(|_| random.next().to_le_bytes()));
    bytes.truncate(8 + length as usize);
    bytes
}

fn snapshot_payload(n: u64, part: u64) -> Vec<u8> {
    let mut bytes = payload(n ^ part << 40);
    bytes[..8].copy_from_slice(&n.to_le_bytes());
    bytes.truncate(2000);
    bytes
}

/// The state, rebuilt from what recovery delivers. Records before the first one may have been given
/// up.
#[derive(Default)]
pub(super) struct Rebuilt {
    pub n: u64,
    parts: u64,
    /// The first record, by its number.
    pub first: Option<u64>,
}

impl Rebuilt {
    pub(super) fn apply(&mut self, entry: Entry<'_>) -> Applied {
        match entry {
            Entry::Snapshot(bytes) => {
                let n = u64::from_le_bytes(bytes[..8].try_into()?);
                if self.parts > 0 && self.n != n || bytes != snapshot_payload(n, self.parts) {
                    return Err("an invented snapshot".into());
                }
                self.n = n;
                self.parts += 1;
            }
            Entry::Record(_, bytes) => {
                let n = u64::from_le_bytes(bytes[..8].try_into()?);
                let fits = n == self.n + 1 || self.first.is_none() && n > self.n;
                if !fits || bytes != payload(n) {
                    return Err(format!("not record {}", self.n + 1).into());
                }
                self.first.get_or_insert(n);
                self.n = n;
            }
        }
        Ok(())
    }
}

/// Opens a log and rebuilds the state.
pub(super) fn recover<D: DiskQueue>(
    disk: D,
    durability: Durability,
) -> Result<(Log<D>, Rebuilt, RecoveryReport), OpenError> {
    let mut rebuilt = Rebuilt::default();
    let options = Options { durability, in_flight: 3 };
    let (log, report) = Log::open(disk, options, &mut |entry| rebuilt.apply(entry))?;
    assert!(rebuilt.parts == 0 || rebuilt.parts == SNAPSHOT_RECORDS, "half a snapshot");
    Ok((log, rebuilt, report))
}

/// What the application can expect of its records when the disk dies.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    pub formatted: bool,
    pub closed: bool,
    pub acknowledged: u64,
    pub appended: u64,
    /// Records before this one may have been given up, and those before that one have been.
    pub keep: u64,
    pub kept: u64,
    /// Up to this sequence the superblock proves that everything was durable.
    pub proven: u64,
}

impl Known {
    /// What is wrong with a state that recovery found.
    pub(super) fn judge(&self, found: &Rebuilt) -> Result<(), String> {
        let n = found.n;
        if n < self.acknowledged || n > self.appended {
            return Err(format!("found {n} records with {self:?}"));
        }
        match found.first {
            Some(first) if found.parts == 0 && first > self.keep.max(1) => {
                Err(format!("begins with {first} with {self:?}"))
            }
            Some(first) if first < self.kept => Err(format!("{first} was given up with {self:?}")),
            _ => Ok(()),
        }
    }
}

/// One life of the application, from open to the death of the disk or the end of its steps.
pub(super) struct Life {
    pub known: Known,
    waiting: VecDeque<(u64, u64)>,
    snapshot_left: u64,
    snapshot_n: u64,
    pub snapshots: u64,
    /// Whether it makes snapshots at all.
    pub compacts: bool,
    /// Whether it gives most of them up: that goes round the segments quickly.
    pub aborts: bool,
    /// Whether it gives up the head of the log.
    pub truncates: bool,
    /// Whether it proves now and then how far the log is durable.
    pub proofs: bool,
    pub truncations: u64,
    truncating: Option<u64>,
    /// The newest records of this life: sequence and number.
    recent: VecDeque<(u64, u64)>,
}

impl Life {
    pub(super) fn new(known: Known) -> Self {
        Self {
            known,
            waiting: VecDeque::new(),
            snapshot_left: 0,
            snapshot_n: 0,
            snapshots: 0,
            compacts: true,
            aborts: false,
            truncates: true,
            proofs: true,
            truncations: 0,
            truncating: None,
            recent: VecDeque::new(),
        }
    }

    /// The life after `last`, which knows what that one knew.
    pub(super) fn next(last: &Self) -> Self {
        Self {
            snapshots: last.snapshots,
            compacts: last.compacts,
            aborts: last.aborts,
            truncates: last.truncates,
            proofs: last.proofs,
            truncations: last.truncations,
            ..Self::new(last.known)
        }
    }

    /// Formats, if that was not done. `None`: the disk died.
    pub(super) fn format(&mut self, media: &Rc<RefCell<Media>>, identity: u128) -> Option<()> {
        media.borrow_mut().phase = Phase::Format;
        Log::format(&mut CrashDisk::new(media), FormatOptions::new(identity)).ok()?;
        self.known.formatted = true;
        Some(())
    }

    /// Opens, works, and perhaps closes. `None`: the disk died.
    pub(super) fn run(
        &mut self,
        media: &Rc<RefCell<Media>>,
        durability: Durability,
        steps: u64,
        random: &mut Random,
    ) -> Option<()> {
        media.borrow_mut().phase = Phase::Open;
        self.known.closed = false;
        let (mut log, found, _) = match recover(CrashDisk::new(media), durability) {
            Ok(opened) => opened,
            Err(OpenError::Failed(_)) => return None,
            Err(other) => panic!("a disk that works: {other}"),
        };
        self.known.judge(&found).unwrap_or_else(|wrong| panic!("{wrong}"));
        let n = found.n;
        // What an opening delivers is durable: the application may act on it.
        self.known.acknowledged = n;
        self.known.appended = n;
        self.known.proven = log.proven();
        media.borrow_mut().phase = Phase::Run;
        for _ in 0..steps {
            self.step(&mut log, random)?;
            if !log.is_truncating()
                && let Some(n) = self.truncating.take()
            {
                self.known.kept = self.known.kept.max(n);
            }
            self.truncations = self.truncations.max(log.metrics().truncations);
        }
        if random.chance(50) {
            while log.is_truncating() {
                log.poll().ok()?;
            }
            media.borrow_mut().phase = Phase::Close;
            let last = self.known.appended;
            log.close().ok()?;
            self.known.acknowledged = last;
            self.known.closed = true;
        }
        Some(())
    }

    fn step(&mut self, log: &mut Log<CrashDisk>, random: &mut Random) -> Option<()> {
        match random.below(21) {
            0..=8 => {
                let n = self.known.appended + 1;
                match log.append(&payload(n)) {
                    Ok(sequence) => {
                        self.known.appended = n;
                        self.waiting.push_back((sequence, n));
                        self.recent.push_back((sequence, n));
                        if self.recent.len() > 12 {
                            self.recent.pop_front();
                        }
                    }
                    Err(sietch_persist::AppendError::Full { .. }) => {}
                    Err(_) => return None,
                }
            }
            9..=11 => log.submit().ok()?,
            // A truncation has a flush of its own.
            12 if !log.is_truncating() => log.flush().ok()?,
            20 if self.truncates && !log.is_snapshotting() && !log.is_truncating() => {
                let Some(newest) = self.recent.len().checked_sub(1) else { return Some(()) };
                let place = newest - random.below(newest.min(3) as u64 + 1) as usize;
                let (sequence, n) = self.recent[place];
                self.known.keep = self.known.keep.max(n);
                self.truncating = Some(n);
                log.truncate(sequence).ok()?;
            }
            19 if self.proofs => log.write_proof().ok()?,
            13 if self.compacts && !log.is_snapshotting() => {
                if log.begin_snapshot().is_ok() {
                    self.snapshot_left = SNAPSHOT_RECORDS;
                    self.snapshot_n = self.known.appended;
                }
            }
            13 if random.chance(10) => {
                log.abort_snapshot();
                self.snapshot_left = 0;
            }
            14 | 15 if self.snapshot_left > 0 => {
                let part = SNAPSHOT_RECORDS - self.snapshot_left;
                let appended = log.snapshot_append(&snapshot_payload(self.snapshot_n, part));
                if appended.is_err() || self.aborts && random.chance(60) {
                    log.abort_snapshot();
                    self.snapshot_left = 0;
                } else {
                    self.snapshot_left -= 1;
                    if self.snapshot_left == 0 {
                        log.finish_snapshot().ok()?;
                    }
                }
            }
            _ => {
                let durable = log.poll().ok()?;
                self.known.proven = log.proven();
                self.snapshots = self.snapshots.max(log.metrics().snapshots);
                while let Some(&(sequence, n)) = self.waiting.front()
                    && sequence <= durable
                {
                    self.waiting.pop_front();
                    self.known.acknowledged = n;
                }
            }
        }
        Some(())
    }
}
