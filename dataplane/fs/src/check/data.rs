//! Reads the blocks of an extent, and judges them.
//!
//! 1. Blocks of a file that follow each other, on one medium and with one cause, are one range. A
//!    file whose blocks are all damaged has one finding, however large it is.
//! 2. The first [`RANGES`] ranges of a file are findings. The last of these says how much damage of
//!    the file follows. While the list is half full or more, a file gets one finding.

use std::mem;

use super::finding::{Finding, Findings};
use crate::error::Fault;
use crate::items::{self, Extent};
use crate::limits::BLOCK;
use crate::pool::{Item, Run};

const BLOCK_BYTES: u64 = BLOCK as u64;

/// Ranges of a file's damaged blocks that are listed.
const RANGES: usize = 3;

/// Reads an extent of a file of `size` bytes; how many blocks of it are damaged. An extent that
/// cannot be read as a whole is read block by block.
pub(super) fn check(
    item: &mut Item<'_>,
    extent: &Extent,
    size: Option<u64>,
    media: &[String],
    file: &mut Damage,
    findings: &mut Findings,
) -> u64 {
    let mut damaged = 0;
    let whole = (item.read)(extent.run).ok();
    for (index, expected) in extent.checksums.iter().enumerate() {
        // An extent has EXTENT_BLOCKS blocks at most, and was verified not to pass the last one.
        let first = extent.first.saturating_add(index as u64);
        let run = Run { start: extent.run.start.saturating_add(index as u32), blocks: 1, ..extent.run };
        let alone;
        let block = match &whole {
            Some(whole) => whole.get(index * BLOCK..(index + 1) * BLOCK),
            None => {
                alone = (item.read)(run);
                match &alone {
                    Ok(block) => block.get(..BLOCK),
                    Err(fault) => {
                        damaged += 1;
                        file.add(first, &run, Cause::Unreadable(cause(fault)));
                        continue;
                    }
                }
            }
        };
        let Some(block) = block else { continue };
        if items::checksum(block) != *expected {
            damaged += 1;
            file.add(first, &run, Cause::Checksum);
            continue;
        }
        let tail =
            size.and_then(|size| (size / BLOCK_BYTES == first).then_some((size % BLOCK_BYTES) as usize));
        if tail.is_some_and(|tail| block.iter().skip(tail).any(|byte| *byte != 0)) {
            let what = format!("block {first} has bytes behind the end of the file that are not zero");
            let finding = Finding {
                place: place(&run, media),
                inode: Some(item.key.object),
                what,
                ..Finding::default()
            };
            findings.add(finding.losing("nothing yet; a larger file would show them"));
        }
    }
    damaged
}

/// Why a block is damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Cause {
    Checksum,
    /// What the device says.
    Unreadable(String),
}

/// Blocks of a file that follow each other, and are damaged for one cause.
#[derive(Clone, Debug)]
struct Range {
    first: u64,
    blocks: u64,
    /// Where the first one is.
    run: Run,
    /// Whether each one is behind the one before it, also on the medium.
    is_one_run: bool,
    cause: Cause,
}

impl Range {
    /// Takes a block that follows, if it is damaged alike.
    fn take(&mut self, block: u64, run: &Run, cause: &Cause) -> bool {
        let follows = self.first.checked_add(self.blocks) == Some(block);
        if !follows || self.run.medium != run.medium || self.cause != *cause {
            return false;
        }
        self.is_one_run &= u64::from(self.run.start) + self.blocks == u64::from(run.start);
        self.blocks += 1;
        true
    }

    fn finding(&self, inode: u64, media: &[String]) -> Finding {
        let last = self.first.saturating_add(self.blocks - 1);
        let (blocks, is_one) = match self.blocks {
            1 => (format!("block {last}"), true),
            _ => (format!("blocks {} to {last}", self.first), false),
        };
        let what = match (&self.cause, is_one) {
            (Cause::Checksum, true) => format!("{blocks} of its data does not have its checksum"),
            (Cause::Checksum, false) => format!("{blocks} of its data do not have their checksums"),
            (Cause::Unreadable(cause), _) => format!("{blocks} of its data cannot be read: {cause}"),
        };
        let mut place = place(&self.run, media);
        if !self.is_one_run {
            place += " and elsewhere";
        }
        let (start, end) = (self.first.saturating_mul(BLOCK_BYTES), last.saturating_add(1));
        let finding = Finding { place, inode: Some(inode), what, ..Finding::default() };
        finding.losing(format!("its bytes {start} to {}", end.saturating_mul(BLOCK_BYTES)))
    }
}

/// The damaged blocks of one file, in the order of its extents.
#[derive(Debug, Default)]
pub(super) struct Damage {
    open: Option<Range>,
    ranges: Vec<Range>,
    /// Ranges that are not kept.
    more: u64,
    more_blocks: u64,
}

impl Damage {
    fn add(&mut self, block: u64, run: &Run, cause: Cause) {
        if self.open.as_mut().is_some_and(|range| range.take(block, run, &cause)) {
            return;
        }
        let next = Range { first: block, blocks: 1, run: *run, is_one_run: true, cause };
        if let Some(range) = self.open.replace(next) {
            self.keep(range);
        }
    }

    fn keep(&mut self, range: Range) {
        if self.ranges.len() < RANGES {
            self.ranges.push(range);
        } else {
            self.leave(&range);
        }
    }

    fn leave(&mut self, range: &Range) {
        self.more += 1;
        self.more_blocks += range.blocks;
    }

    /// The file ends: what is damaged of it is listed.
    pub(super) fn end(&mut self, inode: u64, media: &[String], findings: &mut Findings) {
        let mut all = mem::take(self);
        if let Some(range) = all.open.take() {
            all.keep(range);
        }
        let mut listed = mem::take(&mut all.ranges);
        let most = if findings.is_half_full() { 1 } else { RANGES };
        for range in listed.drain(most.min(listed.len())..) {
            all.leave(&range);
        }
        let last = listed.len();
        for (at, range) in (1..).zip(&listed) {
            let mut finding = range.finding(inode, media);
            if at == last && all.more > 0 {
                let ranges = if all.more == 1 { "range" } else { "ranges" };
                finding.lost += &format!(", and {} blocks in {} {ranges} more", all.more_blocks, all.more);
            }
            let is_listed = findings.add(finding);
            if at == 1 && !is_listed {
                findings.leave_file();
            }
        }
    }
}

fn place(run: &Run, media: &[String]) -> String {
    let offset = u64::from(run.start) * BLOCK_BYTES;
    match media.get(usize::from(run.medium)) {
        Some(name) => format!("{name}: data at {offset}"),
        None => format!("medium {}: data at {offset}", run.medium),
    }
}

fn cause(fault: &Fault) -> String {
    match fault {
        Fault::Medium { source, .. } => source.to_string(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(start: u32) -> Run {
        Run { medium: 0, start, blocks: 1 }
    }

    fn texts(findings: Findings) -> Vec<String> {
        findings.into_list().iter().map(|finding| finding.text(Some("/file"))).collect()
    }

    #[test]
    fn blocks_are_one_range_only_with_one_medium_and_cause() {
        let (mut file, mut findings) = (Damage::default(), Findings::default());
        file.add(4, &run(14), Cause::Checksum);
        file.add(5, &run(15), Cause::Checksum);
        file.add(6, &run(30), Cause::Checksum);
        file.add(7, &run(31), Cause::Unreadable("broken".to_owned()));
        file.add(8, &Run { medium: 1, ..run(32) }, Cause::Unreadable("broken".to_owned()));
        file.end(9, &["nvm".to_owned(), "ssd".to_owned()], &mut findings);
        assert_eq!(
            texts(findings),
            [
                "nvm: data at 57344 and elsewhere: inode 9, /file: blocks 4 to 6 of its data do not have their checksums; lost: its bytes 16384 to 28672",
                "nvm: data at 126976: inode 9, /file: block 7 of its data cannot be read: broken; lost: its bytes 28672 to 32768",
                "ssd: data at 131072: inode 9, /file: block 8 of its data cannot be read: broken; lost: its bytes 32768 to 36864",
            ]
        );
    }

    #[test]
    fn a_list_that_is_full_says_how_many_files_it_leaves_out() {
        let mut findings = Findings::default();
        let mut file = Damage::default();
        for inode in 0..2000 {
            for block in 0..10 {
                file.add(2 * block, &run(block as u32), Cause::Checksum);
            }
            file.end(inode, &[], &mut findings);
        }
        // A file without damage.
        file.end(2000, &[], &mut findings);
        let (unlisted, files) = (findings.unlisted(), findings.unlisted_files());
        let list = findings.into_list();
        // 167 files with three ranges make the list half full, and 499 have one.
        let named = list.iter().map(|finding| finding.inode).collect::<std::collections::BTreeSet<_>>();
        assert_eq!((list.len(), named.len(), unlisted, files), (1000, 666, 1334, 1334));
        assert!(list[2].lost.ends_with(", and 7 blocks in 7 ranges more"), "{:?}", list[2]);
        assert!(list[999].lost.ends_with(", and 9 blocks in 9 ranges more"), "{:?}", list[999]);
        assert!(list[1].lost.ends_with(" to 12288"), "{:?}", list[1]);
    }
}
