//! How requests reach a file: what both file queues (`uring`, `blocking`) find out before the first
//! request.
//!
//! 1. The file must be a regular file or a block device, and at least as long as the area.
//! 2. Direct I/O is set where the file system permits it. Else requests pass through the page
//!    cache, which is first written out and dropped.
//! 3. The alignment comes from `statx`, or from the device. The physical block size is what a power
//!    loss may destroy in one piece.
//! 4. A discard punches a hole, uses the device's own command, or has the kernel write zeros. A
//!    plain discard is never used: the device decides what is read afterwards.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, FallocateFlags, FileType, OFlags, StatxFlags};

use crate::features::{Device, Feature};
use crate::{BLOCK, OpenError};

/// Smallest write that a disk does not tear: the sector of old.
const SECTOR: usize = 512;

/// How requests reach the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileAccess {
    /// O_DIRECT is set: no page cache between the queue and the device.
    pub direct: bool,
    /// Alignment of requests, in bytes.
    pub block_size: usize,
    /// Bytes that the device writes in one piece: see [`crate::DiskQueue::physical_block_size`].
    pub physical: usize,
    /// How a range is made to read as zeros.
    pub discard: Discard,
}

const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);

/// How a range is made to read as zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Discard {
    /// A hole in the file, or the device's own command.
    Punch,
    /// The kernel writes zeros to the device.
    Zeros,
    /// The file system cannot: the request is made all the same, and fails.
    Refused,
}

impl Discard {
    /// For `fallocate(2)`.
    pub(crate) fn flags(self) -> FallocateFlags {
        match self {
            Self::Punch | Self::Refused => PUNCH,
            Self::Zeros => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
        }
    }
}

impl FileAccess {
    /// What was found out about the file and its device.
    pub(crate) fn features(self, fd: BorrowedFd<'_>) -> Vec<Feature> {
        let direct = match self.direct {
            true => {
                let Self { block_size, physical, .. } = self;
                Feature::used("O_DIRECT", format!("blocks of {block_size} bytes, written in {physical}"))
            }
            false => Feature::unused(
                "O_DIRECT",
                "the file system refuses it: requests pass through the page cache",
            ),
        };
        let discard = match self.discard {
            Discard::Punch => Feature::used("discard", "gives blocks back"),
            Discard::Zeros => {
                Feature::used("discard", "the kernel writes zeros: the device has no command for it")
            }
            Discard::Refused => Feature::unused("discard", "the file system cannot punch holes"),
        };
        let priorities = match Device::of(fd).map(|device| device.scheduler()) {
            None => Feature::unused("order by priority", "no block device is beneath the file"),
            Some(none) if none == "none" => {
                Feature::unused("order by priority", "the device has no I/O scheduler")
            }
            Some(scheduler) => Feature::used("order by priority", scheduler),
        };
        vec![direct, discard, priorities]
    }
}

/// Checks that `fd` is an area of at least `capacity` bytes and switches it to direct I/O if it
/// can.
pub(crate) fn prepare(fd: BorrowedFd<'_>, capacity: u64) -> Result<FileAccess, OpenError> {
    prepare_with(fd, capacity, set_direct)
}

/// The same. `set_direct` says whether I/O is direct.
fn prepare_with(
    fd: BorrowedFd<'_>,
    capacity: u64,
    set_direct: impl FnOnce(BorrowedFd<'_>) -> bool,
) -> Result<FileAccess, OpenError> {
    if capacity == 0 || !capacity.is_multiple_of(BLOCK as u64) {
        return Err(OpenError::Capacity { capacity });
    }
    let stat = rustix::fs::fstat(fd).map_err(|e| io("read the area's size", e))?;
    let (found, discard) = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {
            let found = stat.st_size.cast_unsigned();
            (found, if punches(fd, found) { Discard::Punch } else { Discard::Refused })
        }
        FileType::BlockDevice if zeroes_by_itself(fd) => (device_size(fd)?, Discard::Punch),
        FileType::BlockDevice => (device_size(fd)?, Discard::Zeros),
        _ => return Err(OpenError::NotAnArea),
    };
    if found < capacity {
        return Err(OpenError::TooShort { wanted: capacity, found });
    }
    let direct = set_direct(fd);
    if !direct {
        forget_cached(fd)?;
    }
    // Buffered writes are made of pages: 4096 keeps them whole.
    let block_size = if direct { direct_alignment(fd) } else { BLOCK };
    if block_size > BLOCK {
        return Err(OpenError::Alignment { alignment: block_size });
    }
    let block_size = block_size.max(SECTOR);
    let reported = if direct { reported_physical(fd) } else { None };
    Ok(FileAccess { direct, block_size, physical: physical(block_size, reported), discard })
}

/// Bytes of a block device: it has no `st_size`, but its end can be sought.
fn device_size(fd: BorrowedFd<'_>) -> Result<u64, OpenError> {
    rustix::fs::seek(fd, rustix::fs::SeekFrom::End(0)).map_err(|e| io("read the device's size", e))
}

/// Whether a block device takes a command that makes a range read as zeros (WRITE ZEROES, which may
/// also give the blocks back). A plain discard is not used: what is read afterwards is the device's
/// choice.
fn zeroes_by_itself(fd: BorrowedFd<'_>) -> bool {
    let limit = Device::of(fd).and_then(|device| device.queue("write_zeroes_max_bytes"));
    limit.is_some_and(|bytes| bytes != "0")
}

/// Whether the file system punches holes: asked of a range behind the file's end, where there is
/// nothing to lose.
fn punches(fd: BorrowedFd<'_>, length: u64) -> bool {
    let behind = length.next_multiple_of(BLOCK as u64);
    rustix::fs::fallocate(fd, PUNCH, behind, BLOCK as u64) != Err(rustix::io::Errno::OPNOTSUPP)
}

/// Sets O_DIRECT; `false` where the file system refuses it (older tmpfs, some FUSE and overlay
/// mounts).
fn set_direct(fd: BorrowedFd<'_>) -> bool {
    let Ok(flags) = rustix::fs::fcntl_getfl(fd) else {
        return false;
    };
    flags.contains(OFlags::DIRECT) || rustix::fs::fcntl_setfl(fd, flags | OFlags::DIRECT).is_ok()
}

/// Alignment of direct I/O, in bytes: `STATX_DIOALIGN` (Linux 6.1), else a block device's logical
/// sector, else [`BLOCK`].
fn direct_alignment(fd: BorrowedFd<'_>) -> usize {
    let aligned = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)
        .ok()
        .filter(|statx| statx.stx_mask & StatxFlags::DIOALIGN.bits() != 0)
        .map(|statx| statx.stx_dio_offset_align as usize)
        .filter(|&alignment| alignment != 0);
    aligned
        .or_else(|| rustix::fs::ioctl_blksszget(fd.as_fd()).ok().map(|size| size as usize))
        .filter(|alignment| alignment.is_power_of_two())
        .unwrap_or(BLOCK)
}

/// Has the next reads come from the device. After a failed write-back the page cache holds, as
/// clean, what never reached it: a reader after a restart would build on writes that are
/// not there.
fn forget_cached(fd: BorrowedFd<'_>) -> Result<(), OpenError> {
    // What is dirty is written first, for dirty pages stay. An error of an earlier write-back shows
    // here once.
    rustix::fs::fdatasync(fd).map_err(|e| io("write out what the page cache holds of the area", e))?;
    rustix::fs::fadvise(fd, 0, None, rustix::fs::Advice::DontNeed)
        .map_err(|e| io("drop what the page cache holds of the area", e))
}

/// What the device says of its physical sectors, in bytes.
fn reported_physical(fd: BorrowedFd<'_>) -> Option<usize> {
    Device::of(fd)?.queue("physical_block_size")?.parse().ok()
}

/// The unit that a power loss may destroy, for requests of `block` bytes on a device that reports
/// physical sectors of so many bytes. Where it reports nothing, [`BLOCK`]. Never more: larger ones
/// are reported by NVMe devices alone, which do not tear them.
fn physical(block: usize, reported: Option<usize>) -> usize {
    reported.filter(|bytes| bytes.is_power_of_two()).unwrap_or(BLOCK).clamp(block, BLOCK)
}

pub(crate) fn io(action: &'static str, errno: rustix::io::Errno) -> OpenError {
    OpenError::Io { action, source: errno.into() }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn neighbours_share_one_physical_block() {
        let cases = [
            (512, Some(512), 512),
            (512, Some(4096), 4096),
            (4096, Some(4096), 4096),
            (4096, Some(512), 4096),
            (512, None, BLOCK),
            (512, Some(0), BLOCK),
            (512, Some(3000), BLOCK),
            (512, Some(16_384), BLOCK),
        ];
        for (block, reported, expected) in cases {
            assert_eq!(physical(block, reported), expected, "{block}, {reported:?}");
        }
    }

    /// Whether the first byte of a file is in the page cache. `None`: its file system does not say.
    fn is_cached(file: &std::fs::File) -> Option<bool> {
        let mut byte = [0];
        let slices = &mut [std::io::IoSliceMut::new(&mut byte)];
        match rustix::io::preadv2(file, slices, 0, rustix::io::ReadWriteFlags::NOWAIT) {
            Ok(_) => Some(true),
            Err(rustix::io::Errno::AGAIN) => Some(false),
            Err(_) => None,
        }
    }

    /// A file that goes with the test.
    struct Temporary(std::path::PathBuf);

    impl Drop for Temporary {
        fn drop(&mut self) {
            // Nothing can be done about it here.
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn a_buffered_area_is_read_from_the_device() {
        let path = std::env::temp_dir().join(format!("sietch-cached-{}", std::process::id()));
        let path = Temporary(path);
        let mut file = std::fs::File::options()
            .create(true)
            .truncate(true)
            .read(true)
            .write(true)
            .open(&path.0)
            .expect("a writable directory");
        file.write_all(&[7; BLOCK]).expect("room");
        let before = is_cached(&file);
        // To ask makes the kernel read ahead, and a fast disk may be done before it answers.
        let left = (0..100).all(|_| {
            let opened = prepare_with(file.as_fd(), BLOCK as u64, |_| false).expect("a disk that works");
            assert!(!opened.direct, "it was to be buffered");
            is_cached(&file) == Some(true)
        });
        match before {
            Some(true) if on_memory(&file) => println!("skipped: {} is in memory", path.0.display()),
            Some(true) => assert!(!left, "the page cache has it still"),
            _ => println!("skipped: the file system of {} does not say what is cached", path.0.display()),
        }
    }

    /// tmpfs, whose page cache is the file.
    fn on_memory(file: &std::fs::File) -> bool {
        const TMPFS: i64 = 0x0102_1994;
        rustix::fs::fstatfs(file).is_ok_and(|stat| stat.f_type == TMPFS)
    }
}
