//! The state that must survive a `kill -9` of the daemon: grants, revoked names, counters that
//! never run backwards.
//!
//! 1. It is one redb file. Each change is one transaction, durable before the daemon acts on it.
//! 2. `meta`: `format`, `sequence` (ids and generations come from it, so neither ever repeats),
//!    `starts`.
//! 3. `grants`: id to JSON, so that it can be inspected; `revoked`: `vnic NAME` or `vsa NAME`;
//!    `uplink`: the previous settings of the uplink, as JSON.
//! 4. An unreadable file is never repaired by guessing. The error names the file and the fix.
//! 5. A change that fails (a full file system) is refused and leaves the earlier state. The
//!    database accepts no changes after that. So it is closed, and opened again for the next
//!    change: the daemon continues as soon as there is room.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use serde::{Deserialize, Serialize};

use crate::device::link::LinkPlan;
use crate::device::port::PortPlan;
use crate::device::{UplinkBefore, VnicPlan};
use crate::identity::Process;

const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
const GRANTS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("grants");
const REVOKED: TableDefinition<'_, &str, u64> = TableDefinition::new("revoked");
const UPLINK: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("uplink");
/// The only key of that: a daemon has one uplink.
const BEFORE: &str = "before";

/// The layout above.
const FORMAT: u64 = 1;

/// The state cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("state {}: {cause}; {fix}", path.display())]
pub struct StateError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong.
    pub cause: String,
    /// What to do.
    pub fix: String,
}

/// A grant as it is remembered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct GrantRecord {
    /// Its id.
    pub grant: u64,
    /// Its generation.
    pub generation: u64,
    /// Its device's name.
    pub name: String,
    /// The granted device.
    pub device: Device,
    /// The process that holds it.
    pub process: Process,
    /// What the holder calls itself.
    pub client: String,
}

/// What a grant is of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Device {
    /// A VNIC of the kernel.
    Vnic(Box<VnicPlan>),
    /// A VNIC that is one end of a link.
    Link(Box<LinkPlan>),
    /// A VNIC of the switch.
    Port(Box<PortPlan>),
    /// A VSA of so many bytes.
    Vsa {
        /// Bytes.
        size: u64,
    },
}

impl Device {
    /// `VNIC` or `VSA`.
    pub(crate) fn sort(&self) -> &'static str {
        match self {
            Self::Vnic(_) | Self::Link(_) | Self::Port(_) => "VNIC",
            Self::Vsa { .. } => "VSA",
        }
    }

    /// Whether it is a VNIC of any kind.
    pub(crate) fn is_vnic(&self) -> bool {
        !matches!(self, Self::Vsa { .. })
    }
}

/// The open file.
pub(crate) struct State {
    path: PathBuf,
    /// `None` after a change that failed.
    database: Mutex<Option<Database>>,
    /// The next id or generation.
    sequence: u64,
    /// Which start of the daemon this is.
    pub(crate) starts: u64,
}

/// What was in the file.
pub(crate) struct Remembered {
    pub(crate) grants: BTreeMap<u64, GrantRecord>,
    pub(crate) revoked: BTreeSet<String>,
    pub(crate) uplink: Option<UplinkBefore>,
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

impl State {
    /// Opens or creates `state.redb` in `data`, and counts this start.
    pub(crate) fn open(data: &Path) -> Result<(Self, Remembered), StateError> {
        let path = data.join("state.redb");
        // A database that was scribbled on may break redb's own assertions: that is a broken file,
        // no broken daemon.
        let opened = catch_unwind(AssertUnwindSafe(|| open(&path)));
        let cause = match opened {
            Ok(Ok((database, sequence, starts, remembered))) => {
                let database = Mutex::new(Some(database));
                return Ok((Self { path, database, sequence, starts }, remembered));
            }
            Ok(Err(cause)) => cause.to_string(),
            Err(_) => "it is not a consistent database".to_owned(),
        };
        let fix = format!(
            "move it away (`mv {0} {0}.broken`) and start again: areas keep their data, VNICs in use are taken down",
            path.display()
        );
        Err(StateError { path, cause: format!("cannot be read: {cause}"), fix })
    }

    /// A number never given before.
    pub(crate) fn next(&mut self) -> Result<u64, StateError> {
        let next = self.sequence + 1;
        self.change(|transaction| {
            transaction.open_table(META)?.insert("sequence", next)?;
            Ok(())
        })?;
        self.sequence = next;
        Ok(next)
    }

    /// Remembers a grant.
    pub(crate) fn keep(&self, record: &GrantRecord) -> Result<(), StateError> {
        self.change(|transaction| {
            let bytes = serde_json::to_vec(record)?;
            transaction.open_table(GRANTS)?.insert(record.grant, bytes.as_slice())?;
            Ok(())
        })
    }

    /// Forgets a grant.
    pub(crate) fn forget(&self, grant: u64) -> Result<(), StateError> {
        self.change(|transaction| {
            transaction.open_table(GRANTS)?.remove(grant)?;
            Ok(())
        })
    }

    /// Remembers that `key` is revoked, or no longer.
    pub(crate) fn set_revoked(&self, key: &str, revoked: bool) -> Result<(), StateError> {
        self.change(|transaction| {
            let mut table = transaction.open_table(REVOKED)?;
            if revoked {
                table.insert(key, 1)?;
            } else {
                table.remove(key)?;
            }
            Ok(())
        })
    }

    /// Remembers what the uplink was like, or that nothing of it is changed any more.
    pub(crate) fn keep_uplink(&self, before: Option<&UplinkBefore>) -> Result<(), StateError> {
        self.change(|transaction| {
            let mut table = transaction.open_table(UPLINK)?;
            match before {
                Some(before) => table.insert(BEFORE, serde_json::to_vec(before)?.as_slice())?,
                None => table.remove(BEFORE)?,
            };
            Ok(())
        })
    }

    fn change(
        &self,
        apply: impl FnOnce(&redb::WriteTransaction) -> Result<(), Failure>,
    ) -> Result<(), StateError> {
        let work = || -> Result<(), Failure> {
            // What a panic left is a database like any other.
            let mut place = self.database.lock().unwrap_or_else(PoisonError::into_inner);
            let database = match place.take() {
                Some(database) => database,
                None => reopen(&self.path)?,
            };
            let transaction = database.begin_write()?;
            apply(&transaction)?;
            transaction.commit()?;
            *place = Some(database);
            Ok(())
        };
        work().map_err(|cause| StateError {
            path: self.path.clone(),
            cause: format!("cannot be written: {cause}"),
            fix: "see whether the disk is full or failing".to_owned(),
        })
    }
}

/// Opens the file again after a change that failed.
fn reopen(path: &Path) -> Result<Database, Failure> {
    // As in `State::open`: what is on a disk that fails may break redb's own assertions.
    catch_unwind(|| Database::open(path))
        .map_err(|_| Failure::from("it is not a consistent database any more"))?
        .map_err(Failure::from)
}

fn open(path: &Path) -> Result<(Database, u64, u64, Remembered), Failure> {
    let database = Database::create(path)?;
    let transaction = database.begin_write()?;
    let (sequence, starts) = {
        let mut meta = transaction.open_table(META)?;
        let format = meta.get("format")?.map_or(FORMAT, |value| value.value());
        if format != FORMAT {
            return Err(format!("its format is {format}, this daemon reads {FORMAT}").into());
        }
        meta.insert("format", FORMAT)?;
        let sequence = meta.get("sequence")?.map_or(0, |value| value.value());
        let starts = meta.get("starts")?.map_or(0, |value| value.value()) + 1;
        meta.insert("starts", starts)?;
        transaction.open_table(GRANTS)?;
        transaction.open_table(REVOKED)?;
        transaction.open_table(UPLINK)?;
        (sequence, starts)
    };
    transaction.commit()?;
    let mut remembered = Remembered { grants: BTreeMap::new(), revoked: BTreeSet::new(), uplink: None };
    let transaction = database.begin_read()?;
    for entry in transaction.open_table(GRANTS)?.iter()? {
        let (grant, bytes) = entry?;
        let record: GrantRecord = serde_json::from_slice(bytes.value())
            .map_err(|error| format!("grant {} is invalid: {error}", grant.value()))?;
        remembered.grants.insert(grant.value(), record);
    }
    for entry in transaction.open_table(REVOKED)?.iter()? {
        remembered.revoked.insert(entry?.0.value().to_owned());
    }
    if let Some(before) = transaction.open_table(UPLINK)?.get(BEFORE)? {
        remembered.uplink = Some(serde_json::from_slice(before.value())?);
    }
    drop(transaction);
    Ok((database, sequence, starts, remembered))
}

#[cfg(test)]
mod tests;
