//! Reads the blocks of an extent, and judges them.

use super::finding::{Finding, Findings};
use crate::error::Fault;
use crate::items::{self, Extent};
use crate::limits::BLOCK;
use crate::pool::{Item, Run};

const BLOCK_BYTES: u64 = BLOCK as u64;

/// Reads an extent of a file of `size` bytes; how many blocks of it are damaged. An extent that
/// cannot be read as a whole is read block by block.
pub(super) fn check(
    item: &mut Item<'_>,
    extent: &Extent,
    size: Option<u64>,
    media: &[String],
    findings: &mut Findings,
) -> u64 {
    let mut damaged = 0;
    let whole = (item.read)(extent.run).ok();
    let medium = media.get(usize::from(extent.run.medium));
    for (index, expected) in extent.checksums.iter().enumerate() {
        // An extent has EXTENT_BLOCKS blocks at most, and was verified not to pass the last one.
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
                        findings.add(lost(
                            item,
                            extent,
                            index,
                            &format!("cannot be read: {}", cause(fault)),
                            &run,
                            medium,
                        ));
                        continue;
                    }
                }
            }
        };
        let Some(block) = block else { continue };
        if items::checksum(block) != *expected {
            damaged += 1;
            findings.add(lost(item, extent, index, "does not have its checksum", &run, medium));
            continue;
        }
        let first = extent.first.saturating_add(index as u64);
        let tail =
            size.and_then(|size| (size / BLOCK_BYTES == first).then_some((size % BLOCK_BYTES) as usize));
        if tail.is_some_and(|tail| block.iter().skip(tail).any(|byte| *byte != 0)) {
            let what = format!("block {first} has bytes behind the end of the file that are not zero");
            let finding = Finding {
                place: place(&run, medium),
                inode: Some(item.key.object),
                what,
                ..Finding::default()
            };
            findings.add(finding.losing("nothing yet; a larger file would show them"));
        }
    }
    damaged
}

fn lost(
    item: &Item<'_>,
    extent: &Extent,
    index: usize,
    what: &str,
    run: &Run,
    medium: Option<&String>,
) -> Finding {
    let block = extent.first.saturating_add(index as u64);
    let start = block.saturating_mul(BLOCK_BYTES);
    let what = format!("block {block} of its data {what}");
    let finding =
        Finding { place: place(run, medium), inode: Some(item.key.object), what, ..Finding::default() };
    finding.losing(format!("its bytes {start} to {}", start.saturating_add(BLOCK_BYTES)))
}

fn place(run: &Run, medium: Option<&String>) -> String {
    let offset = u64::from(run.start) * BLOCK_BYTES;
    match medium {
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
