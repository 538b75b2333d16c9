//! What a record may say.

use crate::change::{Change, NewAttributes, Place};
use crate::inode::{InodeNumber, Kind, MODE_BITS, Timestamp};
use crate::limits::{MAX_FILE, MAX_RECORD_DATA, MAX_TARGET, MAX_XATTR_NAME, MAX_XATTR_VALUE};
use crate::log::record::layout::{Invalid, ensure};
use crate::name::{self, FIRST_COOKIE};

/// Judges what a record says, without knowing the file system.
pub(crate) fn check(time: Timestamp, change: &Change<'_>, payload: usize) -> Result<(), Invalid> {
    check_time(time)?;
    let carries = match *change {
        Change::Write { length, .. } | Change::SetXattr { length, .. } => length as usize,
        Change::Create { target, .. } => target.len(),
        _ => 0,
    };
    ensure(payload == carries, "the record does not carry the bytes that it names")?;
    let inode = inode_of(change);
    ensure(inode.0 != 0, "inode 0 is none")?;
    match change {
        Change::Create { .. } => check_create(change),
        Change::Link { place, .. } | Change::Unlink { place, .. } => check_place(inode, place),
        Change::Rename { from, to, replaced, exchange, .. } => {
            check_place(inode, from)?;
            check_place(inode, to)?;
            ensure((from.directory, from.name) != (to.directory, to.name), "a rename to the same name")?;
            ensure(
                replaced.is_none_or(|other| other.0 != 0 && other != inode),
                "it replaces itself or none",
            )?;
            ensure(replaced.is_some() || !exchange, "an exchange with nothing")
        }
        Change::Write { offset, length, .. } => {
            ensure(payload <= MAX_RECORD_DATA, "more data than a record carries")?;
            check_range(*offset, u64::from(*length))
        }
        Change::Truncate { size, .. } => ensure(*size <= MAX_FILE, "a size past the largest file"),
        Change::Reserve { offset, length, size, .. } => {
            ensure(*size <= MAX_FILE, "a size past the largest file")?;
            check_range(*offset, *length)
        }
        Change::Punch { offset, length, .. } => check_range(*offset, *length),
        Change::SetAttributes { attributes, .. } => check_attributes(attributes),
        Change::SetXattr { name, .. } => {
            ensure(payload <= MAX_XATTR_VALUE, "a value past the largest")?;
            check_xattr_name(name)
        }
        Change::RemoveXattr { name, .. } => check_xattr_name(name),
        Change::Free { .. } => Ok(()),
    }
}

fn check_create(change: &Change<'_>) -> Result<(), Invalid> {
    let Change::Create { inode, place, kind, mode, device, target, .. } = change else { return Ok(()) };
    match place {
        Some(place) => check_place(*inode, place)?,
        None => ensure(*kind == Kind::File, "only a file may have no name")?,
    }
    ensure(mode & !MODE_BITS == 0, "mode bits that do not exist")?;
    let is_device = matches!(kind, Kind::CharacterDevice | Kind::BlockDevice);
    ensure(is_device || *device == 0, "a device number of what is no device")?;
    ensure(target.is_empty() != (*kind == Kind::Symlink), "a target belongs to a symbolic link")?;
    ensure(target.len() <= MAX_TARGET, "a target past the longest")?;
    ensure(!target.contains(&0), "a target with NUL")
}

fn check_place(inode: InodeNumber, place: &Place<'_>) -> Result<(), Invalid> {
    ensure(place.directory.0 != 0, "directory 0 is none")?;
    ensure(place.directory != inode, "an inode in itself")?;
    let cookies = FIRST_COOKIE.0..=i64::MAX.cast_unsigned();
    ensure(cookies.contains(&place.cookie.0), "a cookie that no entry has")?;
    ensure(name::check(place.name).is_ok(), "a name that no entry has")
}

fn check_xattr_name(name: &[u8]) -> Result<(), Invalid> {
    let is_right = (1..=MAX_XATTR_NAME).contains(&name.len()) && !name.contains(&0);
    ensure(is_right, "a name that no attribute has")
}

fn check_range(offset: u64, length: u64) -> Result<(), Invalid> {
    ensure(length > 0, "a range of no bytes")?;
    let end = offset.checked_add(length);
    ensure(end.is_some_and(|end| end <= MAX_FILE), "a range past the largest file")
}

fn check_attributes(attributes: &NewAttributes) -> Result<(), Invalid> {
    ensure(attributes.mode.unwrap_or(0) & !MODE_BITS == 0, "mode bits that do not exist")?;
    check_time(attributes.atime.unwrap_or_default())?;
    check_time(attributes.mtime.unwrap_or_default())
}

fn check_time(time: Timestamp) -> Result<(), Invalid> {
    ensure(time.nanoseconds < 1_000_000_000, "a time with a second or more of nanoseconds")
}

pub(super) fn inode_of(change: &Change<'_>) -> InodeNumber {
    match *change {
        Change::Create { inode, .. }
        | Change::Link { inode, .. }
        | Change::Unlink { inode, .. }
        | Change::Rename { inode, .. }
        | Change::Write { inode, .. }
        | Change::Truncate { inode, .. }
        | Change::Reserve { inode, .. }
        | Change::Punch { inode, .. }
        | Change::SetAttributes { inode, .. }
        | Change::SetXattr { inode, .. }
        | Change::RemoveXattr { inode, .. }
        | Change::Free { inode } => inode,
    }
}
