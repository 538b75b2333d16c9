//! Attributes, times and errors, as the kernel and the file system have them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};
use rustix::io::Errno;
use sietch_fs::file_system::NewTime;
use sietch_fs::inode::{Attributes, InodeNumber, Kind, Timestamp};
use sietch_fs::limits::BLOCK;

/// The errno for the kernel.
pub(crate) fn errno(error: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(error.raw_os_error())
}

/// The error of an operation on an inode that the kernel names by its number alone: where another
/// client has removed it, the number is stale, and the kernel looks the name up again.
pub(crate) fn stale(error: Errno) -> Errno {
    if error == Errno::NOENT { Errno::STALE } else { error }
}

/// The inode that the kernel calls by this number: the root is 1 on both sides.
pub(crate) fn inode(number: INodeNo) -> InodeNumber {
    InodeNumber(number.0)
}

/// The number for the kernel.
pub(crate) fn number(inode: InodeNumber) -> INodeNo {
    INodeNo(inode.0)
}

/// The kind for the kernel.
pub(crate) fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
        Kind::CharacterDevice => FileType::CharDevice,
        Kind::BlockDevice => FileType::BlockDevice,
    }
}

/// The attributes for the kernel.
pub(crate) fn file_attributes(shown: &Attributes) -> FileAttr {
    FileAttr {
        ino: number(shown.inode),
        size: shown.size,
        blocks: shown.blocks,
        atime: system_time(shown.atime),
        mtime: system_time(shown.mtime),
        ctime: system_time(shown.ctime),
        crtime: system_time(shown.btime),
        kind: file_type(shown.kind),
        perm: shown.mode,
        nlink: shown.links,
        uid: shown.uid,
        gid: shown.gid,
        // FUSE has 32 bits: 12 of the major number, and 20 of the minor.
        rdev: shown.device as u32,
        blksize: BLOCK as u32,
        flags: 0,
    }
}

/// A time for the kernel. One that it cannot represent becomes 1970.
fn system_time(time: Timestamp) -> SystemTime {
    let whole = Duration::from_secs(time.seconds.unsigned_abs());
    let second = if time.seconds < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    let nanoseconds = Duration::from_nanos(time.nanoseconds.into());
    second.and_then(|second| second.checked_add(nanoseconds)).unwrap_or(UNIX_EPOCH)
}

/// A time that the kernel wants set.
///
/// `fuser` 0.18 subtracts both parts of a time before 1970 from the epoch, although nanoseconds
/// count forwards in a `timespec`. The parts are therefore what it subtracted.
pub(crate) fn new_time(time: TimeOrNow) -> NewTime {
    let time = match time {
        TimeOrNow::Now => return NewTime::Now,
        TimeOrNow::SpecificTime(time) => time,
    };
    NewTime::At(match time.duration_since(UNIX_EPOCH) {
        Ok(since) => Timestamp {
            seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
            nanoseconds: since.subsec_nanos(),
        },
        Err(before) => Timestamp {
            seconds: 0_i64.checked_sub_unsigned(before.duration().as_secs()).unwrap_or(i64::MIN),
            nanoseconds: before.duration().subsec_nanos(),
        },
    })
}

/// The time of an operation.
pub(crate) fn now() -> Timestamp {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    // The kernel returns fewer than 1,000,000,000 nanoseconds.
    Timestamp { seconds: time.tv_sec, nanoseconds: time.tv_nsec as u32 }
}

/// The kind of inode that `mknod(2)` shall create, and its permission bits.
pub(crate) fn kind_and_mode(mode: u32, umask: u32) -> Option<(Kind, u16)> {
    let kind = match rustix::fs::FileType::from_raw_mode(mode) {
        rustix::fs::FileType::RegularFile => Kind::File,
        rustix::fs::FileType::Fifo => Kind::Fifo,
        rustix::fs::FileType::Socket => Kind::Socket,
        rustix::fs::FileType::CharacterDevice => Kind::CharacterDevice,
        rustix::fs::FileType::BlockDevice => Kind::BlockDevice,
        _ => return None,
    };
    Some((kind, permissions(mode, umask)))
}

/// The permission bits of a new inode. The kernel has applied the umask already, unless a default
/// ACL takes its place; applying it twice does no harm.
pub(crate) fn permissions(mode: u32, umask: u32) -> u16 {
    (mode & !umask & u32::from(sietch_fs::inode::MODE_BITS)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_and_at_the_limits_keep_both_parts() {
        let time = |seconds, nanoseconds| system_time(Timestamp { seconds, nanoseconds });
        assert_eq!(time(-2, 500_000_000), UNIX_EPOCH - Duration::from_millis(1500));
        assert_eq!(time(2, 500_000_000), UNIX_EPOCH + Duration::from_millis(2500));
        let least = time(i64::MIN, 0);
        assert_eq!(UNIX_EPOCH.duration_since(least).ok(), Some(Duration::from_secs(1 << 63)));
        let most = time(i64::MAX, 999_999_999);
        assert_eq!(most.duration_since(UNIX_EPOCH).map(|since| since.as_secs()).ok(), Some(i64::MAX as u64));
    }

    #[test]
    fn a_time_that_the_kernel_sets_is_what_fuser_subtracted_from_the_epoch() {
        // fuser's value for { -2, 500_000_000 }.
        let given = UNIX_EPOCH - Duration::new(2, 500_000_000);
        let expected = NewTime::At(Timestamp { seconds: -2, nanoseconds: 500_000_000 });
        assert_eq!(new_time(TimeOrNow::SpecificTime(given)), expected);
        let least = UNIX_EPOCH - Duration::from_secs(1 << 63);
        let expected = NewTime::At(Timestamp { seconds: i64::MIN, nanoseconds: 0 });
        assert_eq!(new_time(TimeOrNow::SpecificTime(least)), expected);
    }

    #[test]
    fn a_node_of_no_kind_is_a_file_and_a_directory_is_none_of_mknod() {
        assert_eq!(kind_and_mode(0o100_666, 0o022), Some((Kind::File, 0o644)));
        assert_eq!(kind_and_mode(0o010_777, 0), Some((Kind::Fifo, 0o777)));
        assert_eq!(kind_and_mode(0o040_777, 0), None);
    }
}
