//! `sietch kv backup` and `sietch kv restore`: the data of a store in one file or pipe.
//!
//! 1. A backup reads the log beside the store that writes it ([`persist::Follower`]), and replays
//!    it into a store in memory, up to where the log ends at some moment after the backup began.
//!    What it then has is a prefix of the log: the data set as it was at one moment, as after a
//!    crash. The store is not asked, and does not notice. Reading ends beside any store: what was
//!    in the area at that moment is no more than the area holds.
//! 2. What is in memory is written as records of a snapshot, each with a checksum that includes the
//!    one before ([`mod@format`]). So however slowly a pipe is read, it holds that moment.
//! 3. A restore reads a backup to its end before it touches the area. Whatever is wrong with it,
//!    the area stays as it was. Only the commands that build a key in an empty data set are
//!    accepted, in the number of bytes that they carry: memory grows with what is read, not with
//!    what it claims.
//! 4. Into the area goes a snapshot, which takes the place of what was there in one step: a crash
//!    leaves the former content, or all of the backup.
//!
//! The format is described in `docs/spec/kv-backup.md`.

use std::hash::{BuildHasher as _, RandomState};
use std::io::{Read, Write};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sietch::disk::DiskQueue;
use sietch::persist::{self, Entry, FollowError, Follower, FormatOptions, Log, SnapshotError};

use crate::foundation::settings::Settings;
use crate::shard::{Now, Shard, most_replayed, replay_entries};

mod error;
mod format;

pub use error::BackupError;
pub use format::Header;

use format::{Reader, Writer};

/// A store that does not flush each reply writes its records within 20 ms, unless it gets no
/// processor or its disk is slow. The backup has every record that was written by then.
const SETTLED: Duration = Duration::from_millis(100);

/// Between two looks at a log that has ended for now.
const PAUSE: Duration = Duration::from_millis(5);

/// Attempts to read a log whose owner drops records before they are read. Each reads from the
/// newest snapshot on, faster than a store writes.
const ATTEMPTS: u32 = 20;

/// How long the device may take for any step of a restore.
const PATIENCE: Duration = Duration::from_secs(120);

/// A data set at one moment.
pub struct Image {
    shard: Shard,
    /// The last record of the log that it includes.
    pub sequence: u64,
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Image").field("keys", &self.keys()).finish_non_exhaustive()
    }
}

impl Image {
    fn empty() -> Self {
        // The seed must be unpredictable to the author of a hostile backup.
        let seed = RandomState::new().hash_one(std::process::id());
        Self { shard: Shard::new(Settings::default(), seed), sequence: 0 }
    }

    /// Keys in it.
    pub fn keys(&self) -> u64 {
        self.shard.keys() as u64
    }

    /// Reads the log of a store that may be running. `open` opens a queue that reads its area; it
    /// is called again when the store has dropped what was to be read next.
    ///
    /// # Errors
    /// The area is damaged or holds something else, or the store is too fast.
    pub fn of_log<D: DiskQueue>(
        open: &mut dyn FnMut() -> Result<D, BackupError>,
    ) -> Result<Self, BackupError> {
        let begun = Instant::now();
        for _ in 0..ATTEMPTS {
            let mut image = Self::empty();
            match image.follow(open()?, begun) {
                Err(BackupError::Follow(FollowError::Behind { .. } | FollowError::Grown { .. })) => {}
                outcome => return outcome.map(|()| image),
            }
        }
        Err(BackupError::TooFast { attempts: ATTEMPTS })
    }

    /// Reads up to the end of the log. Beside a store that writes as fast as this reads, there is
    /// none: but what was in the area when the time was over is no more than the area holds.
    fn follow<D: DiskQueue>(&mut self, disk: D, begun: Instant) -> Result<(), BackupError> {
        let mut left = disk.capacity();
        self.shard.limit_replay(most_replayed(left));
        let mut follower = Follower::open(disk).map_err(BackupError::Follow)?;
        loop {
            let settled = begun.elapsed() >= SETTLED;
            let (polled, refused) = replay_entries(
                |entry| self.shard.replay_entry(entry, Now::default()),
                |apply| {
                    follower.poll(&mut |entry| {
                        if let Entry::Record(_, payload) = &entry
                            && (settled || begun.elapsed() >= SETTLED)
                        {
                            let length = payload.len() as u64;
                            left = left.checked_sub(length).ok_or("the rest is of a later time")?;
                        }
                        apply(entry)
                    })
                },
            );
            match (polled, refused) {
                (_, Some(cause)) => return Err(BackupError::Replay(cause)),
                (Ok(_), None) if settled => break,
                (Ok(_), None) => std::thread::sleep(PAUSE),
                (Err(FollowError::Rejected { .. }), None) => break,
                (Err(cause), None) => return Err(BackupError::Follow(cause)),
            }
        }
        self.sequence = follower.delivered();
        self.shard.finish_recovery().map_err(BackupError::Replay)
    }

    /// Writes it as a backup.
    ///
    /// # Errors
    /// `out` cannot be written.
    pub fn write(&mut self, out: &mut dyn Write) -> Result<(), BackupError> {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let created_ms = u64::try_from(unix.as_millis()).unwrap_or(u64::MAX);
        let mut writer = Writer::begin(out, Header { created_ms, keys: self.keys() })?;
        let mut written = Ok(());
        self.shard.dump_whole(0, format::MOST, &mut |record| {
            if written.is_ok() {
                written = writer.record(record);
            }
        });
        written?;
        writer.end()
    }

    /// Reads a backup to its end.
    ///
    /// # Errors
    /// It is damaged or no backup, or ends early.
    pub fn read(input: &mut dyn Read) -> Result<(Header, Self), BackupError> {
        let mut image = Self::empty();
        let mut reader = Reader::begin(input)?;
        let header = reader.header();
        let mut last = 0;
        while let Some((offset, record)) = reader.record()? {
            last = offset;
            let foreign = |cause| BackupError::Content { offset, cause };
            image.shard.replay_dump(record).map_err(foreign)?;
        }
        // The last record may be a part of a larger one.
        let foreign = |cause| BackupError::Content { offset: last, cause };
        image.shard.finish_recovery().map_err(foreign)?;
        match image.keys() {
            found if found == header.keys => Ok((header, image)),
            found => Err(BackupError::Keys { found, promised: header.keys }),
        }
    }

    /// Makes it the content of the area on `disk`, which is empty or is to be `replaced`.
    /// `identity` marks a log that is made anew: random.
    ///
    /// # Errors
    /// The area has keys, or no room, or cannot be written. It is as it was then, unless it was
    /// damaged before.
    pub fn restore<D: DiskQueue>(
        mut self,
        disk: D,
        identity: u128,
        replaced: bool,
    ) -> Result<(), BackupError> {
        let mut log = open(disk, identity, replaced)?;
        log.begin_snapshot().map_err(|cause| full(cause, &log))?;
        let as_of = log.last();
        let mut appended = Ok(());
        self.shard.dump_whole(as_of, persist::MAX_RECORD, &mut |record| {
            if appended.is_ok() {
                appended = append(&mut log, record);
            }
        });
        appended?;
        log.finish_snapshot().map_err(|cause| full(cause, &log))?;
        advance(&mut log, Log::is_snapshotting)?;
        log.close().map_err(BackupError::Close)?;
        Ok(())
    }
}

/// Opens the log of an area for a new content.
fn open<D: DiskQueue>(mut disk: D, identity: u128, replaced: bool) -> Result<Log<D>, BackupError> {
    let format = |disk: &mut D| Log::format(disk, FormatOptions::new(identity)).map_err(BackupError::Format);
    match persist::is_formatted(&mut disk) {
        Ok(false) => format(&mut disk)?,
        Ok(true) if replaced => {}
        Ok(true) => {
            // A store that has run without being used leaves an empty log.
            let mut image = Image::empty();
            image.verify(&mut disk)?;
            if image.keys() > 0 {
                return Err(BackupError::NotEmpty { keys: image.keys() });
            }
        }
        Err(_) if replaced => {}
        Err(cause) => return Err(BackupError::Damaged(cause)),
    }
    if replaced && persist::verify(&mut disk, &mut |_| Ok(())).is_err() {
        // What is damaged cannot be kept until the new content is there.
        format(&mut disk)?;
    }
    let (mut log, report) =
        Log::open(disk, persist::Options::default(), &mut |_| Ok(())).map_err(BackupError::Damaged)?;
    log.grow(report.area).map_err(|cause| BackupError::Area(cause.to_string()))?;
    advance(&mut log, Log::is_resizing)?;
    Ok(log)
}

impl Image {
    /// Reads the log of an area that no store has open.
    fn verify<D: DiskQueue>(&mut self, disk: &mut D) -> Result<(), BackupError> {
        self.shard.limit_replay(most_replayed(disk.capacity()));
        let (read, refused) = replay_entries(
            |entry| self.shard.replay_entry(entry, Now::default()),
            |apply| persist::verify(disk, apply),
        );
        if let Some(cause) = refused {
            return Err(BackupError::Replay(cause));
        }
        read.map_err(BackupError::Damaged)?;
        self.shard.finish_recovery().map_err(BackupError::Replay)
    }
}

fn full<D: DiskQueue>(cause: SnapshotError, log: &Log<D>) -> BackupError {
    match cause {
        SnapshotError::NoRoom => BackupError::NoRoom { capacity: log.capacity() },
        other => BackupError::Area(other.to_string()),
    }
}

/// Appends a record, and lets the device take what waits before it.
fn append<D: DiskQueue>(log: &mut Log<D>, record: &[u8]) -> Result<(), BackupError> {
    let begun = Instant::now();
    loop {
        match log.snapshot_append(record) {
            Err(SnapshotError::Busy { .. }) if begun.elapsed() < PATIENCE => step(log)?,
            outcome => return outcome.map_err(|cause| full(cause, log)),
        }
    }
}

fn step<D: DiskQueue>(log: &mut Log<D>) -> Result<(), BackupError> {
    let area = |cause: &dyn std::fmt::Display| BackupError::Area(cause.to_string());
    log.poll().map_err(|cause| area(&cause))?;
    log.wait(PAUSE).map_err(|cause| area(&cause)).map(drop)
}

/// Drives the log while `busy`.
fn advance<D: DiskQueue>(log: &mut Log<D>, busy: fn(&Log<D>) -> bool) -> Result<(), BackupError> {
    let begun = Instant::now();
    while busy(log) {
        if begun.elapsed() > PATIENCE {
            return Err(BackupError::Area("the device does not answer".to_owned()));
        }
        step(log)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
