//! `sietch kv check`: verifies the log of a store's area without starting the store.
//!
//! 1. The log is read as recovery reads it ([`persist::verify`]), and every record is replayed into
//!    a store in memory, which takes as much of it as the store itself. What recovery would refuse
//!    is refused here, for the same reason; nothing is written. The log does not know how many
//!    shards the store has, and one shard reads it whatever their number.
//! 2. The first thing that is wrong is a [`Finding`]: where it is, what is wrong, what that means
//!    for data that was acknowledged, and what to do.
//! 3. A log that ends in an append that was cut short is good: a crash leaves that, and nothing on
//!    the disk says that it was acknowledged.
//! 4. An area that is shorter than its log was laid out for is damaged, though what is missing may
//!    hold nothing that the log names.
//! 5. An area that was written by a newer program, or holds something else, or cannot be read for
//!    another reason than the medium, is neither good nor damaged: [`Verdict::Unknown`].

use std::hash::{BuildHasher as _, RandomState};
use std::io::ErrorKind;

use sietch::disk::DiskQueue;
use sietch::persist::{self, Failure, OpenError, RecoveryReport};

use crate::data::journal::ReplayError;
use crate::foundation::settings::Settings;
use crate::shard::{Now, Shard, most_replayed, replay_entries};

/// Whether acknowledged writes are lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// Some are.
    Acknowledged,
    /// None are.
    Nothing,
    /// The log does not show it.
    Unclear,
}

impl Loss {
    /// The meaning, in words.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Acknowledged => {
                "writes that were acknowledged are lost, and the store refuses to start rather than to forget them"
            }
            Self::Nothing => "no acknowledged write is lost",
            Self::Unclear => "the records that were read do not show whether acknowledged writes are lost",
        }
    }
}

/// The first fault of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Where, in bytes from the start of the area.
    pub offset: Option<u64>,
    /// Sequence of the record there.
    pub sequence: Option<u64>,
    /// The fault.
    pub what: String,
    /// The consequence for acknowledged writes.
    pub loss: Loss,
    /// The recommended action.
    pub fix: &'static str,
}

/// The content of an area.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    /// What the log says.
    pub log: RecoveryReport,
    /// Effects in its records, and in those of the snapshot.
    pub effects: u64,
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The store would recover all of it.
    Good(Content),
    /// Something that was there is not, or is not as it was written.
    Damaged(Finding),
    /// The area is neither good nor known to be damaged.
    Unknown(Finding),
}

const RESTORE: &str = "restore the area from a backup; keep a copy of the area as it is, because what is before that place can still be read";
const SAME_PROGRAM: &str = "check it with the program that wrote it, or with a newer one";
const OTHER_AREA: &str =
    "name the area of a store (`sietch vsa list` shows all areas); `sietch up` makes one that is missing";
const COPY_WHOLE: &str =
    "if this is a copy, copy all of the area; an area is shortened by `sietch vsa resize` alone";
const LOOK_AT_DISK: &str =
    "look at the disk (`dmesg`, SMART), copy the area to a good one, and check the copy";

/// Checks the log on `disk`; see the module documentation.
pub fn check<D: DiskQueue>(disk: &mut D) -> Verdict {
    // The seed must be unpredictable to the author of a hostile log.
    let seed = RandomState::new().hash_one(std::process::id());
    let mut shard = Shard::new(Settings::default(), seed);
    shard.limit_replay(most_replayed(disk.capacity()));
    let (outcome, refused) = replay_entries(
        |entry| shard.replay_entry(entry, Now::default()),
        |apply| persist::verify(disk, apply),
    );
    match outcome {
        Ok(log) => match shard.finish_recovery() {
            Ok(()) if log.area < log.formatted => shortened(&log),
            Ok(()) => Verdict::Good(Content { log, effects: shard.metrics().replayed }),
            Err(cause) => undecodable(Some(cause.clone()), cause.sequence(), None),
        },
        Err(OpenError::Rejected { sequence, offset, .. }) if refused.is_some() => {
            undecodable(refused, sequence, Some(offset))
        }
        Err(cause) => unreadable(&cause),
    }
}

/// The end of the area is missing. All data that the log names is before it.
fn shortened(log: &RecoveryReport) -> Verdict {
    let what =
        format!("the area ends after {} bytes, and the log was laid out over {}", log.area, log.formatted);
    let (offset, sequence) = (Some(log.area), None);
    Verdict::Damaged(Finding { offset, sequence, what, loss: Loss::Nothing, fix: COPY_WHOLE })
}

/// A record with a valid checksum and invalid content: it was written so.
fn undecodable(cause: Option<ReplayError>, sequence: u64, offset: Option<u64>) -> Verdict {
    let what = cause.as_ref().map(ToString::to_string).unwrap_or_default();
    let sequence = Some(sequence);
    match cause {
        Some(ReplayError::Truncated { .. }) | None => {
            Verdict::Damaged(Finding { offset, sequence, what, loss: Loss::Unclear, fix: RESTORE })
        }
        Some(ReplayError::Refused { .. }) => {
            Verdict::Damaged(Finding { offset, sequence, what, loss: Loss::Acknowledged, fix: RESTORE })
        }
        Some(
            ReplayError::Kind { .. }
            | ReplayError::Command { .. }
            | ReplayError::Database { .. }
            | ReplayError::TooLarge { .. },
        ) => Verdict::Unknown(Finding { offset, sequence, what, loss: Loss::Nothing, fix: SAME_PROGRAM }),
    }
}

/// The log itself.
fn unreadable(cause: &OpenError) -> Verdict {
    let what = cause.to_string();
    let damaged = |offset, sequence, loss| {
        Verdict::Damaged(Finding { offset, sequence, what: what.clone(), loss, fix: RESTORE })
    };
    let unknown =
        |loss, fix| Verdict::Unknown(Finding { offset: None, sequence: None, what: what.clone(), loss, fix });
    match cause {
        OpenError::Corrupt { sequence, offset, .. } => {
            damaged(Some(*offset), Some(*sequence), Loss::Acknowledged)
        }
        OpenError::SuperblockOutdated { offset, .. } => damaged(Some(*offset), None, Loss::Acknowledged),
        OpenError::Superblocks => damaged(Some(0), None, Loss::Acknowledged),
        OpenError::Rejected { sequence, offset, .. } => {
            damaged(Some(*offset), Some(*sequence), Loss::Unclear)
        }
        OpenError::AreaTooSmall { capacity, .. } => damaged(Some(*capacity), None, Loss::Acknowledged),
        OpenError::Failed(failure) => failed(failure, what),
        OpenError::NotFormatted => unknown(Loss::Unclear, OTHER_AREA),
        OpenError::Content { .. } => unknown(Loss::Unclear, OTHER_AREA),
        OpenError::Version { .. } | OpenError::ContentVersion { .. } => unknown(Loss::Nothing, SAME_PROGRAM),
        // The log of another device, or one opened more often than its format can count: the
        // message says what to do.
        _ => unknown(Loss::Unclear, RESTORE),
    }
}

/// A read that failed: the medium, or the way to it.
fn failed(failure: &Failure, what: String) -> Verdict {
    const EIO: i32 = 5;
    let finding =
        |loss| Finding { offset: Some(failure.offset), sequence: None, what, loss, fix: LOOK_AT_DISK };
    // A read that ends early is reported like this by the `area` and `blocking` queues; it is a
    // fault of the medium, too.
    if failure.source.raw_os_error() == Some(EIO) || failure.source.kind() == ErrorKind::UnexpectedEof {
        Verdict::Damaged(finding(Loss::Acknowledged))
    } else {
        Verdict::Unknown(finding(Loss::Unclear))
    }
}

#[cfg(test)]
mod tests;
