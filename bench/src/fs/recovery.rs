//! Opening a file system whose process was killed.
//!
//! 1. A copy of this program opens the file system, appends [`WRITTEN`] bytes in records of
//!    [`RECORD`] bytes, and kills itself. That takes less time than the digest needs for its first
//!    batch.
//! 2. The time of opening it again counts: it reads the log, digests it, and makes it durable in
//!    memory. Only records that the opening says it recovered count.

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::process::{Signal, getpid, kill_process};
use sietch_service::fs::ClassName;

use super::files::{Files as _, Use};
use super::results::Recovery;
use super::sietch::{AT_ONCE, Native, Store, open_folder};
use crate::error::{Error, system};

/// Bytes of the log.
const LOG: u64 = 256 << 20;
/// Bytes of the medium.
const MEDIUM: u64 = 1 << 30;
/// Bytes in the log.
const WRITTEN: u64 = 160 << 20;
/// Bytes of data in a record.
const RECORD: u64 = 4096;

/// Arguments of the copy that writes.
#[derive(Debug, clap::Args)]
pub(crate) struct WriterArguments {
    /// The folder of the file system
    folder: PathBuf,
}

/// Writes to the file system in a folder, and kills this process.
pub(crate) fn write(arguments: &WriterArguments) -> Result<(), Error> {
    let running = open_folder(&arguments.folder)?;
    let files = Native::over("the writer", AT_ONCE, running, ());
    let failed = || system("writing before the kill");
    let file = files.create("file", Use::Append).map_err(failed())?;
    let data = [0x5a; RECORD as usize];
    for _ in 0..WRITTEN / RECORD {
        files.append(&file, &data).map_err(failed())?;
    }
    kill_process(getpid(), Signal::KILL).map_err(system("killing this process"))
}

/// Measures so many openings, below `memory`, a folder in memory.
pub(super) fn run(folder: &Path, memory: &Path, openings: usize) -> Result<Recovery, Error> {
    let mut recovery = Recovery { records: Vec::new(), rates: Vec::new() };
    for _ in 0..openings {
        let store = Store::create(
            folder.join("recovery"),
            ClassName::Nvm,
            memory.join(format!("sietch-bench-recovery-{}", std::process::id())),
            MEDIUM,
            Some(LOG),
        )?;
        let program = std::env::current_exe().map_err(system("finding this program"))?;
        let status = std::process::Command::new(program)
            .arg("fs-writer")
            .arg(store.folder())
            .status()
            .map_err(system("starting a copy that writes"))?;
        if status.signal() != Some(Signal::KILL.as_raw()) {
            return Err(Error::Program {
                program: "the copy that writes".into(),
                what: format!("ended with {status}"),
                fix: "see above",
            });
        }
        let begun = Instant::now();
        let running = store.open()?;
        let elapsed = begun.elapsed().as_secs_f64();
        // The first record created the file.
        let records = running.recovered.saturating_sub(1);
        recovery.records.push(records);
        recovery.rates.push((records * RECORD) as f64 / elapsed);
        drop(Native::over("the recovered", AT_ONCE, running, store));
    }
    Ok(recovery)
}
