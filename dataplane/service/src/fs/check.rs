//! Checks a file system that is not open: what its pool has, and what its logs have beyond that.
//!
//! 1. The files of media and log are locked, so nothing changes meanwhile. Nothing is recovered:
//!    records that are not digested stay in the log. Opening the pool may write a copy of its
//!    superblock anew, which a loss of power had damaged.
//! 2. The pool is checked by [`sietch_fs::check`].
//! 3. The log is read from where it was applied last. Memory that is gone is read from its copy on
//!    disk, into memory of this process.

use std::path::Path;

use sietch_disk::nvm::Mapped;
use sietch_disk::open_area;
use sietch_fs::LogState;
use sietch_fs::check::{Options, Report};
use sietch_fs::log::{LogIdentity, LogReader, Mirror};
use sietch_fs::pool::{MediumUse, Pool};

use super::description::{Description, LogDescription};
use super::error::StoreError;
use super::logs::{LOG, is_taken, judge_folder, numbered};
use super::media::{self, Medium};

/// Bytes of the log that are searched at a time for what proves a loss.
const SEARCHED: usize = 1 << 20;

/// What is in the logs and not in the pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Undigested {
    /// Records that can be read.
    pub records: u64,
    /// Bytes of the logs that they take.
    pub bytes: u64,
    /// Memory of a log is gone, as after a loss of power; its copy on disk was read.
    pub from_disk: bool,
    /// Why what follows in a log cannot be read, if something follows.
    pub damage: Option<String>,
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// The pool.
    pub pool: Report,
    /// How full each medium is, by its file; the home first.
    pub media: Vec<(String, MediumUse)>,
    /// The logs: one, and one for each client that shared the file system. `None` where the file
    /// system is served: they are in use.
    pub log: Option<Undigested>,
}

impl Checked {
    /// Whether nothing is damaged.
    pub fn is_whole(&self) -> bool {
        let is_log_whole = self.log.as_ref().is_none_or(|log| log.damage.is_none());
        self.pool.findings.is_empty() && self.pool.unlisted == 0 && is_log_whole
    }
}

/// Checks the file system in `folder`; with `data`, all data are read.
///
/// # Errors
/// See [`StoreError`]: it is open, or its pool cannot be opened.
pub fn check(folder: &Path, data: bool) -> Result<Checked, StoreError> {
    let mut description = Description::read(folder)?;
    let media = media::open_all(folder, &mut description)?;
    let members = media.iter().map(Medium::member).collect::<Result<Vec<_>, _>>()?;
    let mut pool = Pool::open(members)?;
    let report = sietch_fs::check::check(&mut pool, Options { data })?;
    let names = description.media.iter().map(|medium| medium.path.display().to_string());
    let usage = names.zip(pool.media_usage()).collect();
    let mut all = Undigested::default();
    let others = report.logs.iter().map(|(number, _)| *number).filter(|number| *number != LOG);
    for number in std::iter::once(LOG).chain(others) {
        let state = report.logs.iter().find(|(log, _)| *log == number).map(|(_, state)| *state);
        let log = log(&numbered(&description.log, number), number, state.unwrap_or_default())?;
        all.records += log.records;
        all.bytes += log.bytes;
        all.from_disk |= log.from_disk;
        all.damage = all.damage.or(log.damage);
    }
    Ok(Checked { pool: report, media: usage, log: Some(all) })
}

/// What a log has that is not in the pool.
fn log(log: &LogDescription, number: u32, state: LogState) -> Result<Undigested, StoreError> {
    let path = log.memory.display();
    let Some((memory, from_disk, unreadable)) = memory(log)? else {
        let damage = format!("{path} is gone, and has no copy on disk: records that it had are lost");
        return Ok(Undigested { damage: Some(damage), ..Undigested::default() });
    };
    if !state.is_of(log.seed) {
        let damage = format!("{path}: the seed in fs.toml is not that of this log; correct the line");
        return Ok(Undigested { damage: Some(damage), ..Undigested::default() });
    }
    let identity = LogIdentity { log: number, epoch: state.epoch, seed: log.seed };
    let found = undigested(&memory, identity, state.position, state.sequence + 1)
        .map_err(|source| StoreError::Ring { path: log.memory.clone(), source })?;
    let damage = found.damage.map(|damage| format!("{path}: {damage}")).or(unreadable);
    let damage = damage.or_else(|| lost_copy(log));
    Ok(Undigested { from_disk, damage, ..found })
}

/// What is wrong if the log's copy on disk is gone: the file system does not open without it.
fn lost_copy(log: &LogDescription) -> Option<String> {
    let path = log.disk.as_ref().filter(|path| path.symlink_metadata().is_err())?.display();
    Some(format!(
        "{path} is gone, and the memory of the log has all that it had; make a file of {} zeros there, with mode 0600",
        log.bytes
    ))
}

/// The memory of the log, whether it is read from disk, and what of that cannot be read.
fn memory(log: &LogDescription) -> Result<Option<(Mapped, bool, Option<String>)>, StoreError> {
    let is_taken = is_taken(log);
    if !is_taken {
        judge_folder(log)?;
    }
    if !is_taken && log.memory.symlink_metadata().is_ok() {
        let file = media::open_own(&log.memory, log.bytes)?;
        // A mount opens it, too. If it is gone, that is found later.
        if let Some(path) = log.disk.as_ref().filter(|path| path.symlink_metadata().is_ok()) {
            drop(media::open_own(path, log.bytes)?);
        }
        return Ok(Some((media::log_memory(file, &log.memory, log.bytes)?.0, false, None)));
    }
    let Some(path) = &log.disk else { return Ok(None) };
    let fail = |source| StoreError::Queue { path: path.clone(), source };
    let file = media::open_own(path, log.bytes)?;
    let mut disk = open_area(file, log.bytes).map_err(fail)?;
    let bytes = usize::try_from(log.bytes).unwrap_or(usize::MAX);
    let mut memory = Mapped::anonymous(bytes).map_err(fail)?;
    let loaded = Mirror::load(&mut disk, &mut memory);
    let loaded = loaded.map_err(|source| StoreError::Mirror { path: path.clone(), source })?;
    let unreadable = loaded.unreadable.first().map(|first| {
        let count = loaded.unreadable.len();
        format!("{}: {count} blocks of the log cannot be read, the first at {first}", path.display())
    });
    Ok(Some((memory, true, unreadable)))
}

/// Reads the log to its end.
fn undigested(
    memory: &Mapped,
    identity: LogIdentity,
    position: u64,
    sequence: u64,
) -> Result<Undigested, sietch_fs::log::RingError> {
    let mut reader = LogReader::new(memory, identity, position, sequence)?;
    let mut found = Undigested::default();
    let damage = loop {
        match reader.next() {
            Ok(Some(_)) => found.records += 1,
            Ok(None) => match reader.verify_end(SEARCHED) {
                Ok(true) => break None,
                Ok(false) => {}
                Err(damage) => break Some(damage),
            },
            Err(damage) => break Some(damage),
        }
    };
    found.bytes = reader.position().saturating_sub(position);
    found.damage = damage.map(|damage| damage.to_string());
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::fs::description::{ClassName, MediumDescription};
    use crate::fs::{CreateOptions, create};

    /// A file system that is not open, and the copy of its log.
    struct Made {
        folder: PathBuf,
        disk: PathBuf,
    }

    impl Made {
        fn new(name: &str) -> Self {
            let folder = Path::new("/dev/shm").join(format!("sietch-check-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&folder).expect("a folder");
            let medium = MediumDescription {
                class: ClassName::Ssd,
                path: folder.join("data"),
                bytes: 4 << 20,
                model: None,
            };
            let options = CreateOptions {
                media: vec![medium],
                log_memory: Some(folder.clone()),
                log_bytes: Some(1 << 20),
                durability: None,
            };
            let made = create(&folder.join("store"), &options, &mut |_| {}).expect("a file system");
            Self { folder, disk: made.log.disk.expect("a copy") }
        }

        fn check(&self) -> Result<Checked, StoreError> {
            check(&self.folder.join("store"), false)
        }
    }

    impl Drop for Made {
        fn drop(&mut self) {
            drop(std::fs::remove_dir_all(&self.folder));
        }
    }

    /// A mount refuses it, too.
    #[test]
    fn a_log_whose_copy_is_gone_is_not_whole() {
        let made = Made::new("gone");
        assert!(made.check().expect("not open").is_whole());
        std::fs::remove_file(&made.disk).expect("it is there");
        let log = made.check().expect("not open").log.expect("it is not in use");
        let damage = log.damage.unwrap_or_default();
        assert!(damage.contains("is gone") && damage.contains("1048576 zeros"), "{damage}");
    }

    /// As of a mount: the copy is opened also where the memory of the log is there.
    #[test]
    fn a_log_whose_copy_is_cut_short_is_refused() {
        let made = Made::new("short");
        let disk = std::fs::File::options().write(true).open(&made.disk).expect("it is there");
        disk.set_len(700_000).expect("cut short");
        let refused = |error: Option<StoreError>| matches!(error, Some(StoreError::WrongSize { .. }));
        assert!(refused(made.check().err()));
        assert!(refused(crate::fs::open(&made.folder.join("store")).err()));
    }
}
