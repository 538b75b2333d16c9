//! Verifying an area offline: reads all that opening would read, refuses all that it would refuse,
//! and changes nothing.
//!
//! 1. Structure first: superblock, snapshot, every run of the log, and the proof that nothing
//!    acknowledged is missing (`scan`). No two chains may claim a segment.
//! 2. Each payload goes to the application, which says whether it can make sense of it. The first
//!    that it cannot is named by its place.

use sietch_disk::DiskQueue;

use super::open::expect_content;
use crate::error::OpenError;
use crate::layout::{Content, Superblock};
use crate::scan::{self, Applied, Entry, RecoveryReport, Scan};
use crate::space::Space;

/// Reads an area as [`crate::Log::open`] would, hands every payload to `apply`, and changes
/// nothing.
///
/// # Errors
/// The first damage found, as [`crate::Log::open`] would report it.
pub fn verify<D: DiskQueue>(
    disk: &mut D,
    apply: &mut dyn FnMut(Entry<'_>) -> Applied,
) -> Result<RecoveryReport, OpenError> {
    let found = scan::superblock(disk)?;
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

/// Marks the segments of all chains; no two may claim one.
pub(super) fn claim(superblock: &Superblock, log: &[u32], snapshot: &[u32]) -> Result<Space, OpenError> {
    let mut space = Space::new(superblock.segment_count);
    for &segment in log.iter().chain(snapshot) {
        if !space.mark(segment) {
            let offset = superblock.segment_start(segment);
            let evidence = "two chains claim its segment".to_owned();
            return Err(OpenError::Corrupt { what: "link", sequence: 0, offset, evidence });
        }
    }
    Ok(space)
}
