//! Sealed memory that several ends map: the seam for Miri and ThreadSanitizer.
//!
//! 1. [`create`] makes a memfd that is sealed against a change of its size. [`map`] checks the
//!    seals and the size of a memfd before it maps it.
//! 2. With `--cfg one_mapping`, which Miri builds have too, all mappings of such a memory in this
//!    process are one block of the heap. Miri maps no files. ThreadSanitizer follows addresses: at
//!    two addresses of one page it would miss every race.
//!
//! Nothing but tests of this crate is built with that cfg: its memories reach no other process.

#[cfg(any(miri, one_mapping))]
pub(crate) use heap::{create, map, unmap, write};
#[cfg(not(any(miri, one_mapping)))]
pub(crate) use kernel::{create, map, unmap, write};

use std::io;

/// Why a memory cannot be mapped.
#[derive(Debug)]
pub(crate) enum MapError {
    Io(io::Error),
    /// Its size may change while it is mapped, or it is no memfd.
    NotSealed,
    /// It has another size.
    Size,
}

#[cfg(not(any(miri, one_mapping)))]
mod kernel {
    use std::io;
    use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
    use std::ptr::NonNull;

    use rustix::fs::{MemfdFlags, SealFlags};
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

    use super::MapError;

    /// Nothing about the size may change: a mapping of it never faults.
    const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

    /// A sealed memory of `length` zeros.
    pub(crate) fn create(name: &str, length: usize) -> io::Result<OwnedFd> {
        let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, length as u64)?;
        rustix::fs::fcntl_add_seals(&file, SEALS)?;
        Ok(file)
    }

    /// Writes all of `bytes` at byte `at`.
    pub(crate) fn write(file: BorrowedFd<'_>, at: usize, bytes: &[u8]) -> io::Result<()> {
        match rustix::io::pwrite(file, bytes, at as u64)? {
            written if written == bytes.len() => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }

    /// Maps all of `file`, which must be exactly so long and sealed; pages come as they are
    /// touched. The caller ends it with [`unmap`].
    pub(crate) fn map(file: BorrowedFd<'_>, length: usize) -> Result<NonNull<u8>, MapError> {
        let io = |error: rustix::io::Errno| MapError::Io(error.into());
        let seals = rustix::fs::fcntl_get_seals(file).map_err(|_| MapError::NotSealed)?;
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
            return Err(MapError::NotSealed);
        }
        let size = rustix::fs::fstat(file).map_err(io)?.st_size;
        if u64::try_from(size).ok() != Some(length as u64) {
            return Err(MapError::Size);
        }
        let protection = ProtFlags::READ.union(ProtFlags::WRITE);
        // SAFETY: the kernel chooses an address range that is not in use, so no existing memory is
        // touched.
        let address =
            unsafe { mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, file.as_fd(), 0) }
                .map_err(io)?;
        NonNull::new(address.cast()).ok_or(MapError::Io(io::ErrorKind::AddrNotAvailable.into()))
    }

    /// Ends a mapping.
    ///
    /// # Safety
    /// The range came from [`map`], and nothing uses it any more.
    pub(crate) unsafe fn unmap(address: NonNull<u8>, length: usize) {
        // SAFETY: the caller's.
        let unmapped = unsafe { munmap(address.as_ptr().cast(), length) };
        debug_assert!(unmapped.is_ok(), "munmap of a range that mmap returned cannot fail");
    }
}

#[cfg(any(miri, one_mapping))]
mod heap {
    use std::alloc::{Layout, alloc_zeroed};
    use std::collections::BTreeMap;
    use std::io;
    use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
    use std::ptr::NonNull;
    use std::sync::Mutex;

    use super::MapError;

    /// A memory: where it is, as an address whose provenance is exposed, and how long.
    type Block = (usize, usize);

    /// By the number of the descriptor that stands for it. A number that is used again names the
    /// newer memory. A block is never freed: an end may have it mapped.
    static BLOCKS: Mutex<BTreeMap<RawFd, Block>> = Mutex::new(BTreeMap::new());

    fn block(file: BorrowedFd<'_>) -> Option<Block> {
        BLOCKS.lock().expect("no thread panics with it").get(&file.as_raw_fd()).copied()
    }

    /// As the kernel's; the descriptor has no content of its own.
    pub(crate) fn create(_: &str, length: usize) -> io::Result<OwnedFd> {
        let file = OwnedFd::from(std::fs::File::open("/dev/null")?);
        let layout = Layout::from_size_align(length, 4096).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: no caller asks for a memory of no bytes.
        let address = unsafe { alloc_zeroed(layout) };
        let block = (address.expose_provenance(), length);
        BLOCKS.lock().expect("no thread panics with it").insert(file.as_raw_fd(), block);
        Ok(file)
    }

    /// As the kernel's.
    pub(crate) fn write(file: BorrowedFd<'_>, at: usize, bytes: &[u8]) -> io::Result<()> {
        let (address, length) = block(file).ok_or(io::ErrorKind::InvalidInput)?;
        assert!(at + bytes.len() <= length, "a write outside of the memory");
        let to = std::ptr::with_exposed_provenance_mut::<u8>(address + at);
        // SAFETY: inside the block, which nothing maps yet.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }

    /// As the kernel's.
    pub(crate) fn map(file: BorrowedFd<'_>, length: usize) -> Result<NonNull<u8>, MapError> {
        match block(file) {
            None => Err(MapError::NotSealed),
            Some((_, other)) if other != length => Err(MapError::Size),
            Some((address, _)) => NonNull::new(std::ptr::with_exposed_provenance_mut(address))
                .ok_or(MapError::Io(io::ErrorKind::OutOfMemory.into())),
        }
    }

    /// The block stays.
    ///
    /// # Safety
    /// None is needed.
    pub(crate) unsafe fn unmap(_: NonNull<u8>, _: usize) {}
}
