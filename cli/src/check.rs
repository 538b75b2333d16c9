//! `sietch kv check`: reads a store's area and says whether the store would recover all of it.
//!
//! 1. An argument that names a file is that file: an area of a volume of files, or a copy of an
//!    area. Its lock is taken, so that no store writes it meanwhile. Any other argument is the name
//!    of an area, which the daemon grants as it does to a store. An area that does not exist is not
//!    created.
//! 2. Root becomes the area's user first: the daemon grants an area to its user alone, and reading
//!    needs no more.
//! 3. Nothing is written. The exit status says what was found: 0 good, 1 damaged, 2 unknown.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use serde::Serialize;
use sietch::disk::area::{self, AreaError};
use sietch::disk::{AreaQueue, BLOCK, DiskQueue as _};
use sietch_kv::check::{Content, Finding, Loss, Verdict};
use sietch_protocol::CallError;

use crate::administration;
use crate::arguments::{Account, CheckArguments};
use crate::error::Error;
use crate::output;
use crate::privilege;
use crate::style;

/// Exit status: something is damaged.
const DAMAGED: u8 = 1;

/// Exit status: unknown.
const UNKNOWN: u8 = 2;

/// The volume of areas whose name has no volume.
const MAIN: &str = "/main/";

/// The outcome, as JSON has it.
#[derive(Debug, Serialize)]
struct Report<'a> {
    area: &'a str,
    bytes: u64,
    /// `good`, `damaged` or `unknown`.
    verdict: &'static str,
    seconds: f64,
    finding: Option<Trouble>,
    content: Option<Whole>,
}

#[derive(Debug, Serialize)]
struct Trouble {
    /// Bytes from the start of the area.
    offset: Option<u64>,
    sequence: Option<u64>,
    what: String,
    /// Null where it is unknown.
    acknowledged_data_lost: Option<bool>,
    meaning: &'static str,
    fix: &'static str,
}

#[derive(Debug, Serialize)]
struct Whole {
    epoch: u32,
    records: u64,
    snapshot_records: u64,
    /// Bytes of both.
    bytes: u64,
    effects: u64,
    last_sequence: u64,
    closed_in_order: bool,
    torn_tail: Option<Torn>,
    damaged_superblocks: Vec<u64>,
}

#[derive(Debug, Serialize)]
struct Torn {
    offset: u64,
    sequence: u64,
}

/// Checks what `arguments` name and prints what was found; returns the exit status.
///
/// # Errors
/// The area cannot be opened: held by a store, not there, not allowed.
pub(crate) fn run(socket: &Path, arguments: &CheckArguments) -> Result<ExitCode, Error> {
    let mut queue = open(socket, &arguments.area)?;
    let begin = Instant::now();
    let verdict = sietch_kv::check(&mut queue);
    let seconds = begin.elapsed().as_secs_f64();
    let text = if arguments.json {
        output::json(&report(&arguments.area, queue.capacity(), &verdict, seconds))?
    } else {
        render(&arguments.area, queue.capacity(), &verdict, seconds)
    };
    match output::print(&text) {
        // The exit status says it all the same.
        Ok(()) | Err(Error::OutputClosed) => {}
        Err(cause) => return Err(cause),
    }
    Ok(match verdict {
        Verdict::Good(_) => ExitCode::SUCCESS,
        Verdict::Damaged(_) => ExitCode::from(DAMAGED),
        Verdict::Unknown(_) => ExitCode::from(UNKNOWN),
    })
}

/// The exit status where nothing could be read at all.
pub(crate) fn cannot_tell() -> ExitCode {
    ExitCode::from(UNKNOWN)
}

fn open(socket: &Path, area: &str) -> Result<AreaQueue, Error> {
    let path = PathBuf::from(area);
    match path.metadata() {
        Ok(metadata) if metadata.is_file() => match metadata.len() {
            size if size < BLOCK as u64 => {
                Err(Error::NotAnArea { path, what: format!("a file of {size} bytes") })
            }
            size => open_file(&path, size),
        },
        Ok(metadata) if metadata.is_dir() && area.contains('/') => {
            Err(Error::NotAnArea { path, what: "a folder".to_owned() })
        }
        _ => open_named(socket, area).map_err(|cause| match cause {
            Error::Control(source @ CallError::Connect { .. }) => {
                Error::NoFile { name: area.to_owned(), source }
            }
            other => other,
        }),
    }
}

fn open_file(path: &Path, size: u64) -> Result<AreaQueue, Error> {
    let failed = |cause: Box<dyn std::error::Error + Send + Sync>| Error::Store(cause);
    let file = match area::open(path, size) {
        Err(AreaError::Io { source, .. })
            if matches!(source.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem) =>
        {
            area::open_to_read(path, size)
        }
        outcome => outcome,
    };
    let file = file.map_err(|cause| failed(Box::new(cause)))?;
    // A copy that was cut short need not end with a whole block.
    let whole = size - size % BLOCK as u64;
    sietch::disk::open_area(file, whole).map_err(|cause| failed(Box::new(cause)))
}

fn open_named(socket: &Path, area: &str) -> Result<AreaQueue, Error> {
    let path = if area.starts_with('/') { area.to_owned() } else { format!("{MAIN}{area}") };
    let found = administration::connect(socket)?.vsas()?.into_iter().find(|known| known.path == path);
    let Some(found) = found else { return Err(Error::NoSuchArea { name: area.to_owned() }) };
    let uid = found.uid;
    if rustix::process::geteuid().is_root() && uid != 0 {
        privilege::give_up(Account { uid, gid: uid })?;
    }
    let mut client = sietch::Client::connect(socket, "kv-check")?;
    Ok(client.acquire_vsa(area)?.queue)
}

fn report<'a>(area: &'a str, bytes: u64, verdict: &Verdict, seconds: f64) -> Report<'a> {
    let (verdict, finding, content) = match verdict {
        Verdict::Good(content) => ("good", None, Some(content)),
        Verdict::Damaged(finding) => ("damaged", Some(finding), None),
        Verdict::Unknown(finding) => ("unknown", Some(finding), None),
    };
    let finding = finding.map(|finding| Trouble {
        offset: finding.offset,
        sequence: finding.sequence,
        what: finding.what.clone(),
        acknowledged_data_lost: match finding.loss {
            Loss::Acknowledged => Some(true),
            Loss::Nothing => Some(false),
            Loss::Unclear => None,
        },
        meaning: finding.loss.meaning(),
        fix: finding.fix,
    });
    let content = content.map(|Content { log, effects }| Whole {
        epoch: log.epoch,
        records: log.records,
        snapshot_records: log.snapshot_records,
        bytes: log.bytes + log.snapshot_bytes,
        effects: *effects,
        last_sequence: log.last_sequence,
        closed_in_order: log.clean,
        torn_tail: log.torn_tail.map(|torn| Torn { offset: torn.offset, sequence: torn.sequence }),
        damaged_superblocks: log.damaged_superblocks.clone(),
    });
    Report { area, bytes, verdict, seconds, finding, content }
}

fn render(area: &str, bytes: u64, verdict: &Verdict, seconds: f64) -> String {
    let Content { log, effects } = match verdict {
        Verdict::Good(content) => content,
        Verdict::Damaged(finding) => return trouble(area, "damaged", finding),
        Verdict::Unknown(finding) => return trouble(area, "unknown", finding),
    };
    let read = log.bytes + log.snapshot_bytes;
    let mut text = format!(
        "{area}: good, {}\n  {} log records and {} snapshot records, {effects} effects, {} in {seconds:.3} s ({:.2} GB/s)\n",
        style::bytes(bytes),
        log.records,
        log.snapshot_records,
        style::bytes(read),
        read as f64 / 1e9 / seconds.max(1e-9),
    );
    text.push_str(if log.clean {
        "  closed in order: nothing can be missing at its end\n"
    } else {
        "  not closed in order, as a crash or a running store leaves it\n"
    });
    if let Some(torn) = log.torn_tail {
        text.push_str(&format!(
            "  an append was cut short at offset {}, sequence {}: normal after a crash, nothing says that it was acknowledged\n",
            torn.offset, torn.sequence
        ));
    }
    for offset in &log.damaged_superblocks {
        text.push_str(&format!(
            "  the superblock copy at offset {offset} is damaged: up to two are normal after a crash, the next opening writes them anew\n"
        ));
    }
    text
}

fn trouble(area: &str, verdict: &str, finding: &Finding) -> String {
    let mut text = format!("{area}: {verdict}\n  what:  {}\n", finding.what);
    let sequence = finding.sequence.map(|sequence| format!(", sequence {sequence}")).unwrap_or_default();
    if let Some(offset) = finding.offset {
        text.push_str(&format!("  where: offset {offset}{sequence}\n"));
    }
    text.push_str(&format!("  means: {}\n  fix:   {}\n", finding.loss.meaning(), finding.fix));
    text
}
