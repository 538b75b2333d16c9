//! The thread that digests a log.
//!
//! 1. It sleeps until the client has logged up to a position that it has asked for
//!    ([`Shared::wake_at`]). An idle file system therefore costs nothing, and a client that logs
//!    pays one comparison.
//! 2. After the first record it lets others gather for [`LINGER`], or until a quarter of the log is
//!    full, or until a client waits; half of it where many records become pointless. The less room
//!    the log has, the smaller are the batches: a client that is [paced](super::pacing) has room
//!    until the batch is done. Where many records become pointless, batches stay large.
//! 3. After each commit, of whatever, it publishes position and root. Blocks that the commit
//!    replaced are used again when the client has taken notice: so it must be able to. When nothing
//!    is left to digest, a commit gives back blocks for nodes that the last batches needed
//!    meanwhile: what a program removed is room for data without a further change.
//! 4. If a medium fails, or the log has an invalid record or lacks one, it publishes that and ends:
//!    the client gets an error for whatever needs the digest.
//! 5. It owns the pool, and does for the mover what changes it ([`requests`](super::requests)),
//!    when it has nothing else to do.
//! 6. It reads the log, not what the client says of it, and so may be ahead of the client: it has
//!    digested a record whose append has not returned.
//!
//! What it must never do: sleep while a client waits for it; end and leave a client waiting.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use sietch_disk::AreaQueue;
use sietch_disk::nvm::{Mapped, Medium as _};
use sietch_fs::digest::{Batch, Digest, DigestError};
use sietch_fs::mover::Moves;
use sietch_fs::pool::{FreeBlocks, MediumUse, Root};
use sietch_fs::{Fault, digest};

use super::logs::Noted;
use super::pacing::Speed;
use super::requests::{Digesting, Requests};

/// How long records gather: long enough for a file that is written, synchronised and removed.
const LINGER: Duration = Duration::from_millis(500);
/// The part of the log at which the digest begins at once. The room that is left is the writer's
/// while the digest works.
const FULL_ENOUGH: u64 = 4;
/// That part where data become pointless: later, fewer of them are left.
const HALF_FULL: u64 = 2;
/// A batch takes this part of the room that the log has left. So it is done before a client that
/// logs three times as fast as the digest is out of room.
const ROOM_PART: u64 = 3;
/// Bytes of a batch, at most, if its data are not pointless. A client drops from its overlay what a
/// batch had, all at once, and no operation goes on meanwhile.
const BATCH: u64 = 16 << 20;
/// Where later records make this part of the data pointless, a large batch is less work than many
/// small ones. It takes this part of the log also where there is no room.
const POINTLESS: f64 = 0.125;
const LARGE_PART: u64 = 2;
/// Bytes of such a batch, at most: where a client may be out of room before it is done, and where
/// the log has this part of itself left.
const LARGE_BATCH: (u64, u64) = (32 << 20, 64 << 20);
const ROOMY_PART: u64 = 4;
/// What a batch counts in the average of what was pointless.
const WEIGHT: f64 = 0.125;
/// Bytes of a record whose place in the log takes as long to digest as the record itself.
const SMALL_RECORD: u64 = 512;
/// Bytes of a batch where there is no room: a client that waits goes on after some milliseconds.
const LEAST_BATCH: u64 = 4 << 20;
/// Inode numbers that the client gets at a time. A crash wastes them; there are 2^64.
const NUMBERS: u64 = 1 << 16;
/// Steps of removing freed files before the log is looked at again.
const REAP_STEPS: usize = 4;
/// How long the digester waits for a client that still reads blocks which it needs.
const HELD_PAUSE: Duration = Duration::from_millis(2);

/// The sums of what was digested.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Batches.
    pub batches: u64,
    /// Records.
    pub records: u64,
    /// Data bytes of those records.
    pub data: u64,
    /// Records that later ones made pointless.
    pub records_saved: u64,
    /// Data bytes that later records made pointless.
    pub data_saved: u64,
    /// Blocks of data that were written.
    pub blocks_written: u64,
    /// What the mover did.
    pub moves: Moves,
    /// How full each medium is, the home first.
    pub media: Vec<MediumUse>,
}

/// What client and digester share.
pub(super) struct Shared {
    /// The log has records up to here.
    logged: AtomicU64,
    /// The digester sleeps until the log has records up to here.
    wake_at: AtomicU64,
    /// Generation of the root that [`State`] has, to be read without its lock.
    generation: AtomicU64,
    /// The generation of the pool that the client reads.
    reader: AtomicU64,
    /// The digester sleeps until the client reads a newer generation.
    awaits_reader: AtomicBool,
    /// What [`State`] has, to be read without its lock.
    digested: AtomicU64,
    /// Nanoseconds that the digest takes for a MiB of the log.
    speed: AtomicU64,
    state: Mutex<State>,
    /// Something was published.
    published: Condvar,
    /// The digester is wanted.
    wanted: Condvar,
    /// What the mover wants.
    requests: Requests,
}

struct State {
    digested: u64,
    /// The log has no record before this position that is not digested.
    read: u64,
    root: Root,
    /// Freed files may still have blocks.
    has_freed: bool,
    failure: Option<Failure>,
    has_ended: bool,
    is_waited_for: bool,
    is_ending: bool,
    wants_numbers: bool,
    numbers: Option<std::ops::Range<u64>>,
    totals: Totals,
}

/// Why nothing is digested any more.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Failure {
    errno: Errno,
    cause: String,
}

impl State {
    /// Nothing comes any more from a thread that failed or has ended.
    fn check_going(&self) -> Result<(), Errno> {
        match &self.failure {
            Some(failure) => Err(failure.errno),
            None if self.has_ended => Err(Errno::IO),
            None => Ok(()),
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The log has records up to `position`.
    pub(super) fn log(&self, position: u64) {
        self.logged.store(position, Ordering::SeqCst);
        if position >= self.wake_at.load(Ordering::SeqCst) {
            drop(self.state());
            self.wanted.notify_one();
        }
    }

    /// Position and root that were published last, if the root is not that of generation `known`.
    pub(super) fn progress(&self, known: u64) -> Option<(u64, Root)> {
        if self.generation.load(Ordering::Acquire) == known {
            return None;
        }
        let state = self.state();
        Some((state.digested, state.root))
    }

    /// Waits for a root after generation `known`; `None` when everything is digested, and all room
    /// that it freed is there.
    pub(super) fn wait(&self, known: u64) -> Result<Option<(u64, Root)>, Errno> {
        let mut state = self.state();
        loop {
            if state.root.generation != known {
                return Ok(Some((state.digested, state.root)));
            }
            state.check_going()?;
            if state.read >= self.logged.load(Ordering::SeqCst) && !state.has_freed {
                return Ok(None);
            }
            state.is_waited_for = true;
            self.wanted.notify_one();
            state = self.published.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// As [`Shared::wait`], for one that does not wait: whether there is nothing to wait for.
    pub(super) fn is_complete(&self) -> Result<bool, Errno> {
        let state = self.state();
        state.check_going()?;
        Ok(state.read >= self.logged.load(Ordering::SeqCst) && !state.has_freed)
    }

    /// The log is digested up to this position, a MiB in so many nanoseconds.
    pub(super) fn pace(&self) -> (u64, u64) {
        (self.digested.load(Ordering::Acquire), self.speed.load(Ordering::Relaxed))
    }

    /// Waits for `time`, or until the log is digested beyond `digested`.
    pub(super) fn pause(&self, digested: u64, time: Duration) {
        let mut state = self.state();
        let end = Instant::now() + time;
        while state.digested == digested && state.check_going().is_ok() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = match self.published.wait_timeout(state, left) {
                Ok((state, _)) => state,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }

    /// Numbers for new inodes.
    pub(super) fn numbers(&self) -> Result<std::ops::Range<u64>, Errno> {
        let mut state = self.state();
        loop {
            if let Some(numbers) = state.numbers.take() {
                return Ok(numbers);
            }
            state.check_going()?;
            state.wants_numbers = true;
            self.wanted.notify_one();
            state = self.published.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The client reads this generation from now on.
    pub(super) fn reads(&self, generation: u64) {
        self.reader.store(generation, Ordering::SeqCst);
        if self.awaits_reader.swap(false, Ordering::SeqCst) {
            self.wake();
        }
    }
}

impl Digesting for Shared {
    fn requests(&self) -> &Requests {
        &self.requests
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn wake(&self) {
        drop(self.state());
        self.wanted.notify_one();
    }
}

/// The handle of the thread.
pub struct Digester {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Digest<AreaQueue>>>,
    noted: Option<Noted>,
}

impl Digester {
    /// Starts the thread. `log` is the memory of the log, whose number is `number`; the client
    /// reads the current generation of the pool.
    pub(super) fn start(
        digest: Digest<AreaQueue>,
        log: Arc<Mapped>,
        identity: (u32, u64),
    ) -> Result<(Self, Arc<Shared>), DigestError> {
        let mut work = Work::new(digest, log, identity)?;
        let shared = Arc::clone(&work.shared);
        let thread = std::thread::Builder::new()
            .name("sietch-digest".to_owned())
            .spawn(move || {
                let notice = Notice(Arc::clone(&work.shared));
                work.run();
                drop(notice);
                work.digest
            })
            .map_err(|source| {
                DigestError::Fault(Fault::Medium {
                    medium: "the digester".to_owned(),
                    action: "start",
                    offset: 0,
                    length: 0,
                    source,
                })
            })?;
        Ok((Self { shared: Arc::clone(&shared), thread: Some(thread), noted: None }, shared))
    }

    /// The sums of what was digested.
    pub fn totals(&self) -> Totals {
        let totals = self.shared.state().totals.clone();
        Totals { moves: self.shared.requests.moves(), ..totals }
    }

    /// Whether everything that the client has logged is digested, and what it removed is free.
    pub fn is_idle(&self) -> bool {
        let state = self.shared.state();
        state.read >= self.shared.logged.load(Ordering::SeqCst) && !state.has_freed
    }

    /// For a thread that looks after the client while no operation runs.
    pub fn publications(&self) -> Publications {
        Publications { shared: Arc::clone(&self.shared), seen: 0 }
    }

    /// Why nothing is digested any more.
    pub fn failure(&self) -> Option<String> {
        self.shared.state().failure.as_ref().map(|failure| failure.cause.clone())
    }

    /// Digests what is left of the log, and ends. The client must have ended.
    ///
    /// # Errors
    /// Why not everything could be digested; it is still in the log.
    pub fn end(mut self) -> Result<(), String> {
        self.shared.reads(u64::MAX);
        self.stop();
        self.failure().map_or(Ok(()), Err)?;
        self.noted.take().into_iter().for_each(Noted::digested);
        Ok(())
    }

    /// Has the end noted, if everything is digested then.
    pub(super) fn note_end(&mut self, noted: Option<Noted>) {
        self.noted = noted;
    }

    fn stop(&mut self) {
        self.shared.requests.end_mover();
        self.shared.state().is_ending = true;
        self.shared.wanted.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic was reported by its hook, and published.
            drop(thread.join());
        }
    }
}

impl Drop for Digester {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Waits for what the digester publishes. Where no operation runs, the client's `advance` is to be
/// called after each wait: blocks that a commit replaced are free when the client has advanced.
pub struct Publications {
    shared: Arc<Shared>,
    seen: u64,
}

impl Publications {
    /// Waits for a commit after the one of the last call; `false`: the digester has ended.
    pub fn wait(&mut self) -> bool {
        let mut state = self.shared.state();
        loop {
            if state.has_ended {
                return false;
            }
            if state.root.generation != self.seen {
                self.seen = state.root.generation;
                return true;
            }
            state = self.shared.published.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Publishes that the thread has ended, whatever ended it.
struct Notice(Arc<Shared>);

impl Drop for Notice {
    fn drop(&mut self) {
        let mut state = self.0.state();
        let is_done = state.is_ending && !std::thread::panicking();
        state.has_ended = true;
        if state.failure.is_none() && !is_done {
            let cause = "the thread that digests has ended; start the file system again".to_owned();
            state.failure = Some(Failure { errno: Errno::IO, cause });
        }
        self.0.published.notify_all();
        drop(state);
        self.0.requests.close();
    }
}

/// The state of the thread.
struct Work {
    shared: Arc<Shared>,
    digest: Digest<AreaQueue>,
    log: Arc<Mapped>,
    number: u32,
    seed: u64,
    /// The log has no record before this position that is not digested.
    read: u64,
    /// Files that were freed may still have blocks.
    has_freed: bool,
    /// The part of the data that later records made pointless, on average of the last batches.
    pointless: f64,
    /// How fast the log is digested.
    speed: Speed,
    /// Removing them needs blocks that the client may still read: a client that waits does not.
    is_held: bool,
    /// Blocks for nodes are spare when the client reads the newest generation.
    has_spare: bool,
    /// Since when the oldest record that is not digested waits for others.
    gathering_since: Option<Instant>,
    /// What happens right after a digest lacked blocks that are read.
    #[cfg(test)]
    when_held: Option<fn(&Shared)>,
}

/// Why the thread woke up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wake {
    /// Records are to be digested, or a client waits.
    Work,
    /// The mover asks for something.
    Request,
    /// The thread is to end.
    End,
}

impl Work {
    fn new(
        mut digest: Digest<AreaQueue>,
        log: Arc<Mapped>,
        (number, seed): (u32, u64),
    ) -> Result<Self, DigestError> {
        let root = digest.root();
        let digested = digest.log_state(number)?.position;
        let shared = Arc::new(Shared {
            logged: AtomicU64::new(digested),
            wake_at: AtomicU64::new(u64::MAX),
            generation: AtomicU64::new(root.generation),
            reader: AtomicU64::new(root.generation),
            awaits_reader: AtomicBool::new(false),
            digested: AtomicU64::new(digested),
            speed: AtomicU64::new(Speed::default().nanos()),
            state: Mutex::new(State {
                digested,
                read: digested,
                root,
                has_freed: true,
                failure: None,
                has_ended: false,
                is_waited_for: false,
                is_ending: false,
                wants_numbers: true,
                numbers: None,
                totals: Totals::default(),
            }),
            published: Condvar::new(),
            wanted: Condvar::new(),
            requests: Requests::default(),
        });
        Ok(Self {
            shared,
            digest,
            log,
            number,
            seed,
            read: digested,
            has_freed: true,
            is_held: false,
            has_spare: false,
            pointless: 0.0,
            speed: Speed::default(),
            gathering_since: None,
            #[cfg(test)]
            when_held: None,
        })
    }

    fn run(&mut self) {
        loop {
            let is_ending = match self.sleep() {
                Wake::Request => {
                    self.serve();
                    continue;
                }
                Wake::Work => false,
                Wake::End => true,
            };
            self.gathering_since = None;
            if let Err(failure) = self.work(is_ending) {
                tracing::error!("nothing is digested any more: {}", failure.cause);
                self.shared.state().failure = Some(failure);
                return;
            }
            if is_ending {
                return;
            }
        }
    }

    /// Sleeps until there is something to do.
    fn sleep(&mut self) -> Wake {
        let shared = &self.shared;
        let part = if self.pointless > POINTLESS { HALF_FULL } else { FULL_ENOUGH };
        let threshold = self.log.len() as u64 / part;
        let mut deadline = self.gathering_since.map(|since| since + LINGER);
        shared.requests.set_busy(false);
        let mut state = shared.state();
        loop {
            // A client that advances after this store wakes the thread.
            let awaits_reader = (self.has_freed && self.is_held) || self.has_spare;
            shared.awaits_reader.store(awaits_reader, Ordering::SeqCst);
            let has_advanced = shared.reader.load(Ordering::SeqCst) >= state.root.generation;
            let has_freed =
                (self.has_freed && (!self.is_held || has_advanced)) || (self.has_spare && has_advanced);
            if state.is_ending || state.is_waited_for || state.wants_numbers || has_freed {
                break;
            }
            let waiting = shared.logged.load(Ordering::SeqCst).saturating_sub(self.read);
            let now = Instant::now();
            if waiting > 0 && deadline.is_none() {
                self.gathering_since = Some(now);
                deadline = Some(now + LINGER);
            }
            if waiting >= threshold || deadline.is_some_and(|deadline| deadline <= now) {
                break;
            }
            if shared.requests.is_waiting() {
                shared.wake_at.store(u64::MAX, Ordering::SeqCst);
                return Wake::Request;
            }
            let wake_at = self.read + if waiting > 0 { threshold } else { 1 };
            shared.wake_at.store(wake_at, Ordering::SeqCst);
            // A record that was logged before this store is seen here, one after it rings.
            if shared.logged.load(Ordering::SeqCst) >= wake_at {
                continue;
            }
            let wait = deadline.map_or(Duration::MAX, |deadline| deadline - now);
            state = match shared.wanted.wait_timeout(state, wait) {
                Ok((state, _)) => state,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
        shared.wake_at.store(u64::MAX, Ordering::SeqCst);
        let logged = shared.logged.load(Ordering::SeqCst).saturating_sub(self.read);
        shared.requests.set_busy(state.is_waited_for || logged >= threshold);
        state.is_waited_for = false;
        if state.is_ending { Wake::End } else { Wake::Work }
    }

    /// Digests until nothing is left that is old or that a client waits for.
    fn work(&mut self, is_ending: bool) -> Result<(), Failure> {
        self.give_numbers()?;
        let end = self.shared.logged.load(Ordering::SeqCst);
        while self.read < end || is_ending {
            // Client and mover are gone before this is so, and hold nothing in what follows.
            let is_last = is_ending || self.shared.state().is_ending;
            self.read_by();
            let bytes = self.batch_bytes();
            self.digest.set_batch_bytes(bytes);
            self.digest.set_batch_records(bytes / SMALL_RECORD);
            let (from, begun) = (self.read, Instant::now());
            let batch = match self.digest.digest(&*self.log, self.number, self.seed) {
                Ok(batch) => batch,
                Err(DigestError::Held) => {
                    #[cfg(test)]
                    self.when_held.iter().for_each(|happens| happens(&self.shared));
                    self.wait_for_reader(is_last)?;
                    continue;
                }
                Err(error) => return Err(failed(&error)),
            };
            self.read = batch.read;
            self.speed.took(self.read.saturating_sub(from), begun.elapsed());
            self.shared.speed.store(self.speed.nanos(), Ordering::Relaxed);
            if batch.data > 0 {
                let pointless = batch.data_saved as f64 / batch.data as f64;
                self.pointless += WEIGHT * (pointless - self.pointless);
            }
            for damage in &batch.damage {
                tracing::error!("{damage}");
            }
            // Before a client sees the root: it waits for what it freed.
            self.has_freed |= batch.records > 0;
            self.publish(Some(&batch));
            if self.shared.requests.is_pressed() {
                self.serve();
            }
            if let Some(invalid) = batch.invalid {
                let cause = format!("the record of the log at {}: {}", invalid.position, invalid.cause);
                return Err(Failure { errno: Errno::IO, cause });
            }
            if batch.records == 0 {
                if self.read < end {
                    let cause =
                        format!("the log lost the record at {}; it has records up to {end}", self.read);
                    return Err(Failure { errno: Errno::IO, cause });
                }
                break;
            }
        }
        self.reap()
    }

    /// How much of the log the next batch takes. A large one coalesces more, and makes a client
    /// wait longer that has no room.
    fn batch_bytes(&self) -> u64 {
        let used = self.shared.logged.load(Ordering::SeqCst).saturating_sub(self.read);
        let log = self.log.len() as u64;
        let room = log.saturating_sub(used);
        let large = if room < log / ROOMY_PART { LARGE_BATCH.0 } else { LARGE_BATCH.1 };
        let least = if self.pointless > POINTLESS { (log / LARGE_PART).min(large) } else { 0 };
        (room / ROOM_PART).min(BATCH).max(least).clamp(LEAST_BATCH, digest::MAX_BATCH_BYTES)
    }

    /// Removes some of what was freed.
    fn reap(&mut self) -> Result<(), Failure> {
        (self.has_freed, self.is_held, self.has_spare) = (true, false, false);
        for _ in 0..REAP_STEPS {
            self.read_by();
            match self.digest.reap() {
                Ok(has_freed) => self.has_freed = has_freed,
                Err(DigestError::Held) => {
                    self.is_held = true;
                    self.let_mover_go_on();
                }
                Err(error) => return Err(failed(&error)),
            }
            self.publish(None);
            if !self.has_freed || self.is_held {
                break;
            }
        }
        self.give_nodes_back()
    }

    /// Blocks are held. If the client reads the newest generation, or is gone, it is the mover that
    /// holds them: it gives them back after what it asks for.
    fn let_mover_go_on(&mut self) {
        self.shared.requests.want_blocks();
        if self.shared.reader.load(Ordering::SeqCst) >= self.digest.root().generation {
            self.serve();
            std::thread::sleep(HELD_PAUSE);
        }
    }

    /// Gives room for data back that nodes needed for a while. Not while records wait: their batch
    /// would take it again.
    fn give_nodes_back(&mut self) -> Result<(), Failure> {
        if self.has_freed || self.shared.logged.load(Ordering::SeqCst) > self.read {
            return Ok(());
        }
        self.read_by();
        if self.digest.give_nodes_back().map_err(|error| failed(&error))? {
            self.publish(None);
        }
        // Where the mover alone reads an older generation, a later batch gives back.
        let is_behind = self.shared.reader.load(Ordering::SeqCst) < self.digest.root().generation;
        self.has_spare = is_behind && self.digest.pool().has_spare_chunks(FreeBlocks::OnceRead);
        Ok(())
    }

    /// Does what the mover asks for.
    fn serve(&mut self) {
        self.read_by();
        if self.shared.requests.serve(&mut self.digest) {
            self.publish(None);
        }
    }

    /// Takes notice of what the client reads.
    fn read_by(&mut self) {
        let generation = self.shared.reader.load(Ordering::Acquire);
        self.digest.pool().readers_at(generation);
    }

    /// Waits until the client reads a newer generation, which it does with its next operation. It
    /// needs numbers for that, maybe. `is_last`: client and mover had ended before the digest was
    /// tried.
    fn wait_for_reader(&mut self, is_last: bool) -> Result<(), Failure> {
        self.give_numbers()?;
        self.shared.requests.want_blocks();
        self.serve();
        if is_last {
            let cause = "the file system ends while a client reads blocks that the digest needs".to_owned();
            return Err(Failure { errno: Errno::IO, cause });
        }
        std::thread::sleep(HELD_PAUSE);
        Ok(())
    }

    fn give_numbers(&mut self) -> Result<(), Failure> {
        if !self.shared.state().wants_numbers {
            return Ok(());
        }
        let numbers = self.digest.inode_numbers(NUMBERS).map_err(|error| failed(&error))?;
        let mut state = self.shared.state();
        state.numbers = Some(numbers);
        state.wants_numbers = false;
        drop(state);
        self.publish(None);
        Ok(())
    }

    /// Publishes what was committed, and what a batch did.
    fn publish(&mut self, batch: Option<&Batch>) {
        let media = self.digest.pool().media_usage();
        self.shared.requests.set_pressed(media.iter().any(MediumUse::is_near_hard));
        let mut state = self.shared.state();
        state.root = self.digest.root();
        state.read = self.read;
        state.has_freed = self.has_freed;
        state.totals.media = media;
        if let Some(batch) = batch {
            state.digested = batch.state.position;
            let totals = &mut state.totals;
            totals.batches += 1;
            totals.records += batch.records;
            totals.data += batch.data;
            totals.records_saved += batch.records_saved;
            totals.data_saved += batch.data_saved;
            totals.blocks_written += batch.blocks_written;
        }
        self.shared.digested.store(state.digested, Ordering::Release);
        self.shared.generation.store(state.root.generation, Ordering::Release);
        self.shared.published.notify_all();
    }
}

fn failed(error: &digest::DigestError) -> Failure {
    let is_full = matches!(error, DigestError::Fault(Fault::Full { .. }));
    Failure { errno: if is_full { Errno::NOSPC } else { Errno::IO }, cause: error.to_string() }
}

#[cfg(test)]
mod tests;
