//! `sietch fs check`: says whether a file system is whole.
//!
//! 1. Nothing is repaired, and records that are not digested stay in the log. Where a process
//!    serves the file system, what it has committed is checked, and logs are left out.
//! 2. The exit status says what was found: 0 whole, 1 damaged, 2 unknown.

use std::process::ExitCode;
use std::time::Instant;

use serde::Serialize;
use sietch_service::fs::{self, Checked, Undigested};

use crate::arguments::fs::FsCheckArguments;
use crate::error::Error;
use crate::output;
use crate::style;

/// Exit status: something is damaged.
const DAMAGED: u8 = 1;

/// Exit status: unknown.
const UNKNOWN: u8 = 2;

/// Bytes of a block of data.
const BLOCK: u64 = fs::BLOCK as u64;

/// The outcome, as JSON has it.
#[derive(Debug, Serialize)]
struct Report<'a> {
    folder: String,
    /// `whole` or `damaged`.
    verdict: &'static str,
    seconds: f64,
    findings: &'a [String],
    unlisted_findings: u64,
    /// Files with damaged data that no finding names.
    unlisted_files: u64,
    inodes: u64,
    directories: u64,
    nameless_inodes: u64,
    entries: u64,
    extended_attributes: u64,
    extents: u64,
    data_bytes: u64,
    reserved_bytes: u64,
    free_bytes: u64,
    /// Data that were read.
    verified_bytes: u64,
    damaged_bytes: u64,
    media: Vec<Medium<'a>>,
    /// `false`: limits of users are not enforced.
    users_counted: bool,
    /// `null`: it is served, and its logs are in use.
    log: Option<Log<'a>>,
}

/// How full a medium is.
#[derive(Debug, Serialize)]
struct Medium<'a> {
    file: &'a str,
    bytes: u64,
    used_bytes: u64,
}

/// What is not digested.
#[derive(Debug, Serialize)]
struct Log<'a> {
    records: u64,
    bytes: u64,
    read_from_disk: bool,
    damage: Option<&'a str>,
}

/// Checks a file system and prints what was found; returns the exit status.
///
/// # Errors
/// [`Error::FileSystem`]: one process has it alone, or it cannot be opened. See [`status`].
pub(crate) fn run(arguments: &FsCheckArguments) -> Result<ExitCode, Error> {
    let begin = Instant::now();
    let check = if fs::shared::is_served(&arguments.folder) { fs::shared::check } else { fs::check };
    let checked = check(&arguments.folder, arguments.data);
    let checked = checked.map_err(|error| Error::FileSystem(Box::new(error)))?;
    let seconds = begin.elapsed().as_secs_f64();
    let folder = arguments.folder.display().to_string();
    let text = if arguments.json {
        output::json(&report(folder, &checked, seconds))?
    } else {
        render(&folder, &checked, arguments.data, seconds)
    };
    match output::print(&text) {
        // The exit status says it all the same.
        Ok(()) | Err(Error::OutputClosed) => {}
        Err(cause) => return Err(cause),
    }
    Ok(if checked.is_whole() { ExitCode::SUCCESS } else { ExitCode::from(DAMAGED) })
}

/// The exit status where nothing could be checked.
pub(crate) fn status(error: &Error) -> ExitCode {
    let is_damaged = matches!(error, Error::FileSystem(error) if error.is_damage());
    ExitCode::from(if is_damaged { DAMAGED } else { UNKNOWN })
}

fn report(folder: String, checked: &Checked, seconds: f64) -> Report<'_> {
    let totals = &checked.pool.totals;
    Report {
        folder,
        verdict: if checked.is_whole() { "whole" } else { "damaged" },
        seconds,
        findings: &checked.pool.findings,
        unlisted_findings: checked.pool.unlisted,
        unlisted_files: checked.pool.unlisted_files,
        inodes: totals.inodes,
        directories: totals.directories,
        nameless_inodes: totals.nameless,
        entries: totals.entries,
        extended_attributes: totals.xattrs,
        extents: totals.extents,
        data_bytes: totals.data_blocks * BLOCK,
        reserved_bytes: totals.reserved_blocks * BLOCK,
        free_bytes: totals.free_blocks * BLOCK,
        verified_bytes: totals.verified_blocks * BLOCK,
        damaged_bytes: totals.damaged_blocks * BLOCK,
        media: checked
            .media
            .iter()
            .map(|(file, medium)| Medium {
                file,
                bytes: medium.blocks * BLOCK,
                used_bytes: medium.used() * BLOCK,
            })
            .collect(),
        users_counted: checked.pool.are_users_counted,
        log: checked.log.as_ref().map(|log| Log {
            records: log.records,
            bytes: log.bytes,
            read_from_disk: log.from_disk,
            damage: log.damage.as_deref(),
        }),
    }
}

fn render(folder: &str, checked: &Checked, data: bool, seconds: f64) -> String {
    let totals = &checked.pool.totals;
    let verdict = if checked.is_whole() { "whole" } else { "damaged" };
    let mut text = format!("{folder}: {verdict}, checked in {seconds:.3} s\n");
    text += &format!(
        "  {} inodes ({} directories, {} without a name), {} entries, {} of data, {} free\n",
        totals.inodes,
        totals.directories,
        totals.nameless,
        totals.entries,
        style::bytes(totals.data_blocks * BLOCK),
        style::bytes(totals.free_blocks * BLOCK),
    );
    text += &crate::fs::usage_lines(&checked.media);
    text += &if data {
        let damaged = style::bytes(totals.damaged_blocks * BLOCK);
        format!("  {} of data read, {damaged} damaged\n", style::bytes(totals.verified_blocks * BLOCK))
    } else {
        "  data not read; --data reads them and compares their checksums\n".to_owned()
    };
    text += &log_lines(checked.log.as_ref());
    if !checked.pool.are_users_counted {
        text += "  users are not counted, and limits are not enforced; the next mount counts, if it can\n";
    }
    for finding in &checked.pool.findings {
        text += &format!("  {}\n", style::escaped(finding));
    }
    if checked.pool.unlisted > 0 {
        text += &format!("  and {} more\n", checked.pool.unlisted);
    }
    if checked.pool.unlisted_files > 0 {
        let files = checked.pool.unlisted_files;
        text += &format!(
            "  {files} files with damaged data are not listed; remove or restore those that are, and check again\n"
        );
    }
    if !checked.pool.findings.is_empty() {
        text += "  fix: copy what can be read to a new file system, and restore from a backup what is lost\n";
    }
    text
}

fn log_lines(log: Option<&Undigested>) -> String {
    let Some(log) = log else {
        return "  it is served: what was committed is checked; the logs are in use, and left out\n"
            .to_owned();
    };
    let source = if log.from_disk { ", on disk: its memory is gone" } else { "" };
    let mut text = match log.records {
        0 => format!("  the log has nothing that is not digested{source}\n"),
        records => {
            format!(
                "  {records} records of the log ({} bytes) are not digested; the next mount recovers them{source}\n",
                log.bytes
            )
        }
    };
    if let Some(damage) = &log.damage {
        text += &format!("  the log is damaged: {}\n", style::escaped(damage));
    }
    text
}
