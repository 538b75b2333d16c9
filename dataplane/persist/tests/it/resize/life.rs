//! An application whose area changes size under it, and what a crash may do to it.
//!
//! Record `n` follows from `n`; a snapshot says the state after record `n`. So whatever recovery
//! delivers can be judged alone.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use sietch_disk::{Completion, DiskQueue, Operation, Priority, SubmitError};
use sietch_persist::{
    AppendError, Durability, Entry, FormatOptions, Log, OpenError, Options, ResizeError, SnapshotError,
};

use crate::disk::{CrashDisk, Media, Phase, Random};

/// Where the first segment begins, and how large segments are.
pub(super) const START: u64 = 16384;
pub(super) const SEGMENT: u64 = 16384;
/// Bytes of an area at most, and at first.
pub(super) const MOST: u64 = START + 44 * SEGMENT;
const FIRST: u64 = START + 18 * SEGMENT;

/// A violation of the promise, in words.
pub(super) type Verdict = Result<(), String>;

/// A queue that reaches only the first bytes of the medium.
pub(super) struct Sized {
    disk: CrashDisk,
    capacity: u64,
}

impl DiskQueue for Sized {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn block_size(&self) -> usize {
        self.disk.block_size()
    }

    fn physical_block_size(&self) -> usize {
        self.disk.physical_block_size()
    }

    fn depth(&self) -> usize {
        self.disk.depth()
    }

    fn submit_with(
        &mut self,
        token: u64,
        operation: Operation,
        priority: Priority,
    ) -> Result<(), SubmitError> {
        assert!(operation.is_within(self.capacity, self.block_size()), "outside of the area: {operation:?}");
        self.disk.submit_with(token, operation, priority)
    }

    fn notify(&mut self) -> io::Result<()> {
        self.disk.notify()
    }

    fn complete(&mut self, out: &mut Vec<Completion>) -> usize {
        self.disk.complete(out)
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        self.disk.wait(timeout)
    }

    fn in_flight(&self) -> usize {
        self.disk.in_flight()
    }
}

/// The content of record `n`.
pub(super) fn payload(n: u64) -> Vec<u8> {
    let mut random = Random::new(n + 1);
    let length = [40, 700, 3000, 9000, 20_000][random.below(5) as usize % 5];
    let mut bytes = n.to_le_bytes().to_vec();
    bytes.extend((0..random.below(length)).map(|_| random.next() as u8));
    bytes
}

/// Opens a log and tells the number of its last record.
pub(super) fn recover<D: DiskQueue>(disk: D, durability: Durability) -> Result<(Log<D>, u64), OpenError> {
    let mut last = 0;
    let options = Options { durability, in_flight: 3 };
    let (log, _) = Log::open(disk, options, &mut |entry| {
        let (Entry::Snapshot(bytes) | Entry::Record(_, bytes)) = entry;
        let n = u64::from_le_bytes(bytes[..8].try_into()?);
        let fits = match entry {
            Entry::Snapshot(_) => last == 0,
            Entry::Record(..) => n == last + 1 || last == 0,
        };
        if !fits || bytes != payload(n) {
            return Err(format!("{n} after {last}").into());
        }
        last = n;
        Ok(())
    })?;
    Ok((log, last))
}

/// One application and its area.
pub(super) struct Life {
    pub media: Rc<RefCell<Media>>,
    random: Random,
    durability: Durability,
    pub formatted: bool,
    pub acknowledged: u64,
    appended: u64,
    waiting: VecDeque<(u64, u64)>,
    /// Bytes of the area now.
    pub area: u64,
    pub grown: u64,
    pub shrunk: u64,
    /// The size that it shrinks to.
    goal: Option<u64>,
}

impl Life {
    pub(super) fn new(media: Rc<RefCell<Media>>, seed: u64) -> Self {
        let durability = if seed.is_multiple_of(3) { Durability::Deferred } else { Durability::Always };
        Self {
            media,
            random: Random::new(seed),
            durability,
            formatted: false,
            acknowledged: 0,
            appended: 0,
            waiting: VecDeque::new(),
            area: FIRST,
            grown: 0,
            shrunk: 0,
            goal: None,
        }
    }

    fn queue(&self) -> Sized {
        Sized { disk: CrashDisk::new(&self.media), capacity: self.area }
    }

    /// What is wrong with a state that recovery found.
    pub(super) fn judge(&self, found: u64) -> Verdict {
        if found < self.acknowledged || found > self.appended {
            return Err(format!(
                "{found} records, acknowledged {}, appended {}",
                self.acknowledged, self.appended
            ));
        }
        Ok(())
    }

    /// `None`: the disk died.
    pub(super) fn format(&mut self) -> Option<()> {
        self.media.borrow_mut().phase = Phase::Format;
        let options = FormatOptions { identity: 5, segment_bytes: Some(SEGMENT as u32) };
        Log::format(&mut self.queue(), options).ok()?;
        self.formatted = true;
        Some(())
    }

    /// Opens and works. `None`: the disk died.
    pub(super) fn run(&mut self, steps: u64) -> Option<()> {
        self.media.borrow_mut().phase = Phase::Open;
        let (mut log, found) = match recover(self.queue(), self.durability) {
            Ok(opened) => opened,
            Err(OpenError::Failed(_)) => return None,
            Err(other) => panic!("a disk that works: {other}"),
        };
        self.judge(found).unwrap_or_else(|wrong| panic!("{wrong}"));
        (self.acknowledged, self.appended, self.goal) = (found, found, None);
        self.waiting.clear();
        self.media.borrow_mut().phase = Phase::Run;
        for _ in 0..steps {
            self.step(&mut log)?;
            self.read_back(&mut log)?;
        }
        Some(())
    }

    fn step(&mut self, log: &mut Log<Sized>) -> Option<()> {
        match self.random.below(24) {
            0..=9 => {
                let n = self.appended + 1;
                match log.append(&payload(n)) {
                    Ok(sequence) => {
                        self.appended = n;
                        self.waiting.push_back((sequence, n));
                    }
                    Err(AppendError::Full { .. } | AppendError::Busy { .. }) => {}
                    Err(_) => return None,
                }
            }
            10..=12 => log.submit().ok()?,
            13 => log.flush().ok()?,
            14 | 15 if log.should_compact() || self.random.chance(20) => self.compact(log)?,
            16 if self.goal.is_none() && !log.is_resizing() && self.area < MOST => {
                self.area = (self.area + self.random.below(9) * SEGMENT).min(MOST);
                log.replace_disk(self.queue()).ok()?;
                let before = log.area_bytes();
                match log.grow(self.area) {
                    Ok(()) => self.grown += u64::from(self.area > before),
                    Err(ResizeError::Failed(_)) => return None,
                    Err(other) => panic!("{other}"),
                }
            }
            17 if self.goal.is_none() && !log.is_resizing() => {
                let goal = START + (16 + self.random.below(20)) * SEGMENT;
                match log.shrink_to(goal) {
                    Ok(()) => self.goal = (goal < log.area_bytes()).then_some(goal),
                    Err(ResizeError::Failed(_)) => return None,
                    Err(_) => {}
                }
            }
            18 if self.goal.is_some() && self.random.chance(10) && log.keep_size() => self.goal = None,
            _ => {
                let durable = log.poll().ok()?;
                while let Some(&(sequence, n)) = self.waiting.front()
                    && sequence <= durable
                {
                    self.waiting.pop_front();
                    self.acknowledged = n;
                }
            }
        }
        Some(())
    }

    /// A snapshot of the state as it is.
    fn compact(&mut self, log: &mut Log<Sized>) -> Option<()> {
        match log.begin_snapshot() {
            Ok(_) => {}
            Err(SnapshotError::Failed(_)) => return None,
            Err(_) => return Some(()),
        }
        if self.appended > 0 && log.snapshot_append(&payload(self.appended)).is_err() {
            log.abort_snapshot();
            return Some(());
        }
        log.finish_snapshot().ok()
    }

    /// The area follows when the log has shrunk.
    fn read_back(&mut self, log: &mut Log<Sized>) -> Option<()> {
        if let Some(goal) = self.goal
            && !log.is_resizing()
        {
            assert_eq!(log.area_bytes(), goal);
            (self.goal, self.area) = (None, goal);
            self.shrunk += 1;
            log.replace_disk(self.queue()).ok()?;
        }
        Some(())
    }
}
