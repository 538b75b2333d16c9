//! Recovery: replays the log of an area into a shard, and formats an area that was never used.

use sietch::disk::DiskQueue;
use sietch::persist::{self, Entry, FormatOptions, Log, RecoveryReport};

use super::Error;
use super::log_writer::LogWriter;
use crate::foundation::settings::Durability;
use crate::shard::{Now, ReplayError, Shard};

/// Writes of the log in flight together. Effects of that time are batched into the next write. With
/// 50 clients, two are faster than four and use a quarter less processor time a request, because
/// each write costs an interrupt and a kernel wake-up.
const WRITES_IN_FLIGHT: usize = 2;

/// Opens the log on `disk`, replays it into `shard`, and returns it ready for appends. `identity`
/// marks the log if the area is new.
///
/// # Errors
/// The area is damaged, or holds something else. It is not changed then.
pub fn recover<D: DiskQueue>(
    name: &str,
    mut disk: D,
    shard: &mut Shard,
    durability: Durability,
    identity: u128,
    now: Now,
) -> Result<(LogWriter<D>, RecoveryReport), Error> {
    let area = || name.to_owned();
    match persist::is_formatted(&mut disk) {
        Ok(true) => {}
        Ok(false) => Log::format(&mut disk, FormatOptions::new(identity))
            .map_err(|cause| Error::Format { name: area(), cause })?,
        Err(cause) => return Err(Error::Log { name: area(), cause }),
    }
    let options = persist::Options {
        durability: match durability {
            Durability::Always => persist::Durability::Always,
            Durability::Interval | Durability::Never | Durability::None => persist::Durability::Deferred,
        },
        in_flight: WRITES_IN_FLIGHT,
    };
    let mut foreign: Option<ReplayError> = None;
    let opened = Log::open(disk, options, &mut |entry| {
        let replayed = match entry {
            Entry::Snapshot(payload) => shard.replay_snapshot(payload),
            Entry::Record(sequence, payload) => shard.replay(sequence, payload, now),
        };
        replayed.map_err(|cause| {
            let text = cause.to_string();
            foreign = Some(cause);
            text.into()
        })
    });
    match (opened, foreign) {
        (_, Some(cause)) => Err(Error::Replay { name: area(), cause }),
        (Err(cause), None) => Err(Error::Log { name: area(), cause }),
        (Ok((mut log, report)), None) => {
            // The area may have been made larger since. If growing fails, the log fails at its
            // first write.
            let _ = log.grow(report.area);
            shard.finish_recovery().map_err(|cause| Error::Replay { name: area(), cause })?;
            shard.enable_journal(true);
            Ok((LogWriter::new(log, durability), report))
        }
    }
}
