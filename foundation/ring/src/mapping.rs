//! Shared memory with an owner: a mapping that is unmapped when it is dropped.
//!
//! 1. A [`Mapping`] maps one file, or several files one after the other. Pages are faulted in when
//!    it is made, so that the data path meets no page fault.
//! 2. Other processes may change every byte at any time. So the mapping gives out atomics, raw
//!    pointers and [`Untrusted`] bytes; plain slices need `unsafe`.
//! 3. Accesses by offset or range are checked against the length of the mapping.

use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::untrusted::Untrusted;

/// How memory without a file is mapped. Miri maps nothing that is shared, and has no forks.
const ANONYMOUS: MapFlags = if cfg!(miri) { MapFlags::PRIVATE } else { MapFlags::SHARED };

/// A readable and writable shared mapping, unmapped when dropped.
///
/// The address does not change while the mapping lives. What is in it may change at any time:
/// other processes map the same memory.
#[derive(Debug)]
pub struct Mapping {
    address: NonNull<u8>,
    length: usize,
}

// SAFETY: a `Mapping` owns its address range whichever thread holds it; `munmap` may be called from
// any thread.
unsafe impl Send for Mapping {}
// SAFETY: through a shared reference one gets atomics, raw pointers, or (unsafe) slices whose
// caller answers for them.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` bytes of `file` from `offset`, and faults them in, so that no page fault meets
    /// the data path.
    ///
    /// # Errors
    /// Those of `mmap(2)`.
    pub fn of_file(file: impl AsFd, offset: u64, length: usize) -> io::Result<Self> {
        Self::with(file, offset, length, MapFlags::SHARED.union(MapFlags::POPULATE))
    }

    /// Maps the first `length` bytes of `file`, and leaves it to page faults to bring them in: for
    /// memory of which little may be used, off the data path.
    ///
    /// # Errors
    /// Those of `mmap(2)`.
    pub fn of_file_on_demand(file: impl AsFd, length: usize) -> io::Result<Self> {
        Self::with(file, 0, length, MapFlags::SHARED)
    }

    fn with(file: impl AsFd, offset: u64, length: usize, flags: MapFlags) -> io::Result<Self> {
        let protection = ProtFlags::READ.union(ProtFlags::WRITE);
        // SAFETY: the kernel chooses an address range that is not in use, so no existing memory is
        // touched.
        let address = unsafe { mmap(std::ptr::null_mut(), length, protection, flags, file, offset) }?;
        Self::owning(address, length)
    }

    /// Maps the beginnings of several files one after the other, so many bytes of each, as one
    /// range; all but the last in whole pages.
    ///
    /// # Errors
    /// Those of `mmap(2)`.
    pub fn of_files<F: AsFd>(files: &[(F, usize)]) -> io::Result<Self> {
        let total = files.iter().try_fold(0_usize, |sum, (_, length)| sum.checked_add(*length));
        let total = total.ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: as in `of_file`. Nothing can be read or written there: it keeps the range free of
        // others.
        let reserved =
            unsafe { mmap_anonymous(std::ptr::null_mut(), total, ProtFlags::empty(), MapFlags::PRIVATE) }?;
        let mapping = Self::owning(reserved, total)?;
        let flags = MapFlags::SHARED.union(MapFlags::POPULATE).union(MapFlags::FIXED);
        let protection = ProtFlags::READ.union(ProtFlags::WRITE);
        let mut at = 0;
        for (file, length) in files {
            // SAFETY: these bytes are inside the range reserved above, to which no other pointer
            // exists: the lengths add up to it.
            unsafe { mmap(mapping.as_ptr().add(at).cast(), *length, protection, flags, file, 0) }?;
            at += length;
        }
        Ok(mapping)
    }

    /// Maps the first `length` bytes of a file on persistent memory. A store reaches the medium
    /// itself, and the file's blocks are safe before it can (`MAP_SYNC`).
    ///
    /// # Errors
    /// Those of `mmap(2)`; `EOPNOTSUPP` where the file is not on a DAX file system.
    pub fn of_persistent_file(file: impl AsFd, length: usize) -> io::Result<Self> {
        let flags = MapFlags::SHARED_VALIDATE.union(MapFlags::SYNC).union(MapFlags::POPULATE);
        let protection = ProtFlags::READ.union(ProtFlags::WRITE);
        // SAFETY: as in `of_file`.
        let address = unsafe { mmap(std::ptr::null_mut(), length, protection, flags, file, 0) }?;
        Self::owning(address, length)
    }

    /// A child of fork gets no copy of the mapping: it has nothing at these addresses.
    ///
    /// # Errors
    /// Those of `madvise(2)`.
    pub fn without_children(self) -> io::Result<Self> {
        // SAFETY: the advice changes no byte, and concerns this mapping alone. A child has no
        // mapping that it could use or drop: its memory is a copy of the one in which this process
        // forks, so the code there answers for what it touches, as with any other memory.
        unsafe { madvise(self.address.as_ptr().cast(), self.length, Advice::LinuxDontFork) }?;
        Ok(self)
    }

    /// Maps `length` zeroed bytes that only this process and its later forks share.
    ///
    /// # Errors
    /// Those of `mmap(2)`.
    pub fn anonymous(length: usize) -> io::Result<Self> {
        let protection = ProtFlags::READ.union(ProtFlags::WRITE);
        // SAFETY: as in `of_file`.
        let address = unsafe { mmap_anonymous(std::ptr::null_mut(), length, protection, ANONYMOUS) }?;
        Self::owning(address, length)
    }

    fn owning(address: *mut c_void, length: usize) -> io::Result<Self> {
        match NonNull::new(address.cast::<u8>()) {
            Some(address) => Ok(Self { address, length }),
            // Address zero: the kernel does not return it without MAP_FIXED.
            None => Err(io::ErrorKind::AddrNotAvailable.into()),
        }
    }

    /// Bytes mapped.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Never: `mmap` refuses a length of zero.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The first byte. Valid for [`Mapping::len`] bytes while the mapping lives.
    pub fn as_ptr(&self) -> *mut u8 {
        self.address.as_ptr()
    }

    /// The word at byte `offset`, or `None` if it is not aligned or not inside.
    #[inline]
    pub fn word(&self, offset: usize) -> Option<&AtomicU32> {
        const SIZE: usize = size_of::<AtomicU32>();
        if !offset.is_multiple_of(SIZE) || offset.checked_add(SIZE)? > self.length {
            return None;
        }
        // SAFETY: inside the mapping, aligned (it starts on a page), alive as long as `self`; every
        // access to a word that this crate makes is atomic, and no bit pattern is invalid, whatever
        // another process writes.
        Some(unsafe { AtomicU32::from_ptr(self.address.add(offset).cast::<u32>().as_ptr()) })
    }

    /// The bytes at `range`.
    ///
    /// # Panics
    /// If `range` is not inside the mapping.
    ///
    /// # Safety
    /// While the slice lives nothing writes these bytes.
    #[inline]
    pub unsafe fn bytes(&self, range: Range<usize>) -> &[u8] {
        self.check(&range);
        // SAFETY: inside the mapping, which outlives the borrow; the caller rules out writers.
        unsafe { std::slice::from_raw_parts(self.address.add(range.start).as_ptr(), range.len()) }
    }

    /// The bytes at `range`, to be written.
    ///
    /// # Panics
    /// If `range` is not inside the mapping.
    ///
    /// # Safety
    /// While the slice lives nothing else reads or writes these bytes.
    #[inline]
    #[allow(clippy::mut_from_ref)] // Exclusiveness is per range, and the caller answers for it.
    pub unsafe fn bytes_mut(&self, range: Range<usize>) -> &mut [u8] {
        self.check(&range);
        // SAFETY: inside the mapping, which outlives the borrow; the caller rules out every other
        // access.
        unsafe { std::slice::from_raw_parts_mut(self.address.add(range.start).as_ptr(), range.len()) }
    }

    #[inline]
    fn check(&self, range: &Range<usize>) {
        assert!(
            range.start <= range.end && range.end <= self.length,
            "bytes {range:?} are outside a mapping of {} bytes",
            self.length
        );
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range came from `mmap` and this is its only owner; borrows of it cannot
        // outlive `self`.
        let unmapped = unsafe { munmap(self.address.as_ptr().cast::<c_void>(), self.length) };
        debug_assert!(unmapped.is_ok(), "munmap of a range that mmap returned cannot fail");
    }
}

/// A shared mapping that this process can only read. Another process writes it, and may do so at
/// any time.
#[derive(Debug)]
pub struct UntrustedMapping {
    address: NonNull<u8>,
    length: usize,
}

// SAFETY: as for `Mapping`.
unsafe impl Send for UntrustedMapping {}
// SAFETY: through a shared reference one gets copies only.
unsafe impl Sync for UntrustedMapping {}

impl UntrustedMapping {
    /// Maps `length` bytes of `file` from its start, and faults them in.
    ///
    /// # Errors
    /// Those of `mmap(2)`.
    pub fn of_file(file: impl AsFd, length: usize) -> io::Result<Self> {
        let flags = MapFlags::SHARED.union(MapFlags::POPULATE);
        // SAFETY: the kernel chooses an address range that is not in use, so no existing memory is
        // touched.
        let address = unsafe { mmap(std::ptr::null_mut(), length, ProtFlags::READ, flags, file, 0) }?;
        match NonNull::new(address.cast::<u8>()) {
            Some(address) => Ok(Self { address, length }),
            None => Err(io::ErrorKind::AddrNotAvailable.into()),
        }
    }

    /// Bytes mapped.
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Never: `mmap` refuses a length of zero.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The first byte. Readable for [`UntrustedMapping::len`] bytes while the mapping lives.
    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.address.as_ptr()
    }

    /// What the word at byte `offset` says now, zero if none is there. Not ordered with anything.
    #[inline]
    pub fn load(&self, offset: usize) -> u32 {
        const SIZE: usize = size_of::<AtomicU32>();
        if !offset.is_multiple_of(SIZE) || offset.checked_add(SIZE).is_none_or(|end| end > self.length) {
            return 0;
        }
        // SAFETY: inside the mapping and aligned; only loaded, which is allowed in read-only
        // memory.
        unsafe { AtomicU32::from_ptr(self.address.add(offset).cast::<u32>().as_ptr()) }
            .load(Ordering::Relaxed)
    }

    /// The bytes at `range`.
    ///
    /// # Panics
    /// If `range` is not inside the mapping.
    #[inline]
    pub fn bytes(&self, range: Range<usize>) -> Untrusted<'_> {
        assert!(
            range.start <= range.end && range.end <= self.length,
            "bytes {range:?} are outside a mapping of {} bytes",
            self.length
        );
        // SAFETY: inside the mapping, which outlives the borrow; this process has no way to write
        // it.
        unsafe { Untrusted::from_raw(self.address.add(range.start).as_ptr(), range.len()) }
    }
}

impl Drop for UntrustedMapping {
    fn drop(&mut self) {
        // SAFETY: as for `Mapping`.
        let unmapped = unsafe { munmap(self.address.as_ptr().cast::<c_void>(), self.length) };
        debug_assert!(unmapped.is_ok(), "munmap of a range that mmap returned cannot fail");
    }
}
