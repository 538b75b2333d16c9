//! Which files have data on one medium.
//!
//! A walk over the tree as that of a check, without judging what it finds.

use sietch_disk::DiskQueue;

use super::{Options, Walk, path};
use crate::error::Fault;
use crate::inode::InodeNumber;
use crate::items;
use crate::pool::{Item, Pool, Superblocks, check_items};

/// A file with data on the medium.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileOn {
    /// Its path: one of them, if it has several names.
    pub path: String,
    /// Blocks of it that are on the medium.
    pub blocks: u64,
}

/// The files with data on a medium.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilesOn {
    /// The first ones.
    pub files: Vec<FileOn>,
    /// Files that are not listed.
    pub unlisted: u64,
}

/// Lists the files that `wanted` wants and that have data on the medium in a slot, `most` of them.
/// The pool must have no changes to commit.
///
/// # Errors
/// The pool is stopped, or has changes.
pub fn files_on<D: DiskQueue>(
    pool: &mut Pool<D>,
    slot: usize,
    most: usize,
    wanted: &dyn Fn(InodeNumber) -> bool,
) -> Result<FilesOn, Fault> {
    let mut walk = Walk::new(pool, Options::default());
    let (mut found, mut unlisted, mut last) = (Vec::<(u64, u64)>::new(), 0, None);
    check_items(pool, Superblocks::Verified, &mut |item, runs| {
        if let Some(blocks) = blocks_on(item, slot) {
            let inode = item.key.object;
            let is_new = last.replace(inode) != Some(inode);
            let is_full = found.len() >= most;
            match found.last_mut() {
                Some((file, all)) if *file == inode => *all += blocks,
                _ if !is_new || !wanted(InodeNumber(inode)) => {}
                _ if is_full => unlisted += 1,
                _ => found.push((inode, blocks)),
            }
        }
        walk.item(item, runs);
        Ok(())
    })?;
    let file = |(inode, blocks)| FileOn { path: path(pool, &walk.table, inode), blocks };
    Ok(FilesOn { files: found.into_iter().map(file).collect(), unlisted })
}

/// Blocks of an extent in a slot.
fn blocks_on(item: &Item<'_>, slot: usize) -> Option<u64> {
    let is_extent = item.key.kind == items::EXTENT && item.key.object != items::NO_INODE;
    let extent = is_extent.then(|| items::read_extent(item.key.offset, item.value)).flatten()?;
    (usize::from(extent.run.medium) == slot).then_some(u64::from(extent.run.blocks))
}
