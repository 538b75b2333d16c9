//! Counts again what users have of a file system that is not open.

use std::path::Path;

use super::description::Description;
use super::error::StoreError;
use super::logs;
use super::media::{self, Medium};
use super::recovery::recover;

/// Recovers the file system in `folder`, and counts the inodes and blocks of all users. Limits
/// stay.
///
/// # Errors
/// See [`StoreError`]; [`StoreError::Uncounted`]: it has no room for the sums.
pub fn recount(folder: &Path) -> Result<(), StoreError> {
    let mut description = Description::read(folder)?;
    let media = media::open_all(folder, &mut description)?;
    logs::leave_taken_folder(folder, &mut description)?;
    let members = media.iter().map(Medium::member).collect::<Result<Vec<_>, _>>()?;
    let (mut digest, _logs, _) = recover(members, &description)?;
    if digest.recount()? { Ok(()) } else { Err(StoreError::Uncounted { path: folder.to_owned() }) }
}
