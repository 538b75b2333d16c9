//! Verifying an area offline: reads all that opening would read, refuses all that it would refuse,
//! and changes nothing.
//!
//! 1. Structure first: superblock, snapshot, every run of the log, and the proof that nothing
//!    acknowledged is missing (`scan`). No two chains may claim a segment.
//! 2. Each payload goes to the application, which says whether it is valid. The first invalid
//!    payload is named by its place.

use sietch_disk::DiskQueue;

use super::open::{claim, expect_content};
use crate::error::OpenError;
use crate::layout::Content;
use crate::scan::{Applied, Entry, RecoveryReport, Scan};
use crate::superblocks;

/// Reads an area as [`crate::Log::open`] would, passes every payload to `apply`, and changes
/// nothing.
///
/// # Errors
/// The first damage found, as [`crate::Log::open`] would report it.
pub fn verify<D: DiskQueue>(
    disk: &mut D,
    apply: &mut dyn FnMut(Entry<'_>) -> Applied,
) -> Result<RecoveryReport, OpenError> {
    let found = superblocks::newest(disk)?;
    expect_content(found.superblock.content, Content::LOG)?;
    let outcome = Scan::new(disk, &found.superblock).run(&mut |entry, _| apply(entry))?;
    claim(&found.superblock, &outcome.log_segments, &outcome.snapshot_segments)?;
    if found.superblock.epoch == u32::MAX {
        return Err(OpenError::Worn { epoch: u32::MAX });
    }
    let mut report = outcome.report;
    report.damaged_superblocks = found.damaged;
    (report.formatted, report.area) = (found.formatted, disk.capacity());
    Ok(report)
}
