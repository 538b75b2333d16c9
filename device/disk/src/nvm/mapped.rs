//! Memory that is really there.
//!
//! 1. Stores are non-temporal: they go past the caches to the memory controller, a whole line at a
//!    time, and need no later write-back. `sfence` waits until the controller has them.
//! 2. Sealed memory (`F_SEAL_SHRINK`) cannot be cut short under the mapping, which would be a
//!    SIGBUS. A process that may write a DAX file can cut it short: the control plane keeps it to
//!    itself.
//! 3. A child of fork does not inherit the mapping: it may have fewer rights than this process, and
//!    the memory is this process' alone to use.
//! 4. On other processors than x86-64 there are plain stores and no promise beyond this process'
//!    life: sealed memory works, DAX is refused.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use sietch_ring::{Mapping, Untrusted};

use super::medium::{LINE, Medium};
use crate::file::io;
use crate::{BLOCK, OpenError};

/// A mapped area.
#[derive(Debug)]
pub struct Mapped {
    mapping: Mapping,
    description: &'static str,
}

const STAND_IN: &str = "DRAM standing in for NVM: nothing survives power loss";

impl Mapped {
    /// The first `capacity` bytes of sealed memory.
    ///
    /// # Errors
    /// It is not memory that is sealed against shrinking, it is shorter, or `mmap(2)` failed.
    pub fn memory(memory: OwnedFd, capacity: u64) -> Result<Self, OpenError> {
        Self::parts(&[(memory, capacity)])
    }

    /// Pieces of sealed memory one after the other, so many bytes of each: an area that has grown
    /// while it was held.
    ///
    /// # Errors
    /// As of [`Mapped::memory`]; there are none.
    pub fn parts(parts: &[(OwnedFd, u64)]) -> Result<Self, OpenError> {
        let mut pieces = Vec::with_capacity(parts.len());
        for (memory, length) in parts {
            let length = check(memory, *length)?;
            if !is_sealed_memory(memory) {
                return Err(OpenError::Unsealed);
            }
            pieces.push((memory, length));
        }
        if pieces.is_empty() {
            return Err(OpenError::Capacity { capacity: 0 });
        }
        let mapping = Mapping::of_files(&pieces)
            .and_then(Mapping::without_children)
            .map_err(|source| OpenError::Io { action: "map the area's memory", source })?;
        Ok(Self { mapping, description: STAND_IN })
    }

    /// The first `capacity` bytes of a file on a file system with DAX.
    ///
    /// # Errors
    /// [`OpenError::Unavailable`] where the file is not on persistent memory or the processor has
    /// no stores for it; it is shorter, or `mmap(2)` failed.
    pub fn dax(file: OwnedFd, capacity: u64) -> Result<Self, OpenError> {
        let length = check(&file, capacity)?;
        if !cfg!(target_arch = "x86_64") {
            return Err(OpenError::NoDax {
                cause: "stores that bypass the caches are written for x86-64 only".into(),
            });
        }
        let mapping = Mapping::of_persistent_file(&file, length)
            .and_then(Mapping::without_children)
            .map_err(|cause| OpenError::NoDax { cause: format!("mmap with MAP_SYNC: {cause}") })?;
        Ok(Self { mapping, description: "DAX, non-temporal stores and sfence" })
    }

    /// The first `capacity` bytes of a file in memory (tmpfs), which outlives the process. No other
    /// user may be able to write the file: cutting it short ends this process (SIGBUS).
    ///
    /// # Errors
    /// It is shorter, or `mmap(2)` failed.
    pub fn file(file: &OwnedFd, capacity: u64) -> Result<Self, OpenError> {
        let length = check(file, capacity)?;
        let mapping = Mapping::of_file(file, 0, length)
            .and_then(Mapping::without_children)
            .map_err(|source| OpenError::Io { action: "map the area's memory", source })?;
        Ok(Self { mapping, description: STAND_IN })
    }

    /// As [`Mapped::file`], for memory that is used off the data path: pages are mapped when they
    /// are used, and opening a large file takes no time.
    ///
    /// # Errors
    /// As there.
    pub fn file_on_demand(file: &OwnedFd, capacity: u64) -> Result<Self, OpenError> {
        let length = check(file, capacity)?;
        let mapping = Mapping::of_file_on_demand(file, length)
            .and_then(Mapping::without_children)
            .map_err(|source| OpenError::Io { action: "map the area's memory", source })?;
        Ok(Self { mapping, description: STAND_IN })
    }

    /// Memory of this process alone, for tests, benchmarks and stores that need no durability.
    ///
    /// # Errors
    /// `mmap(2)` failed, or `capacity` is not a multiple of [`BLOCK`].
    pub fn anonymous(capacity: usize) -> Result<Self, OpenError> {
        if capacity == 0 || !capacity.is_multiple_of(BLOCK) {
            return Err(OpenError::Capacity { capacity: capacity as u64 });
        }
        let mapping =
            Mapping::anonymous(capacity).map_err(|source| OpenError::Io { action: "map memory", source })?;
        Ok(Self { mapping, description: STAND_IN })
    }

    fn check(&self, offset: usize, length: usize) {
        let inside = offset.checked_add(length).is_some_and(|end| end <= self.mapping.len());
        assert!(inside, "{length} bytes at {offset} are outside {} bytes of memory", self.mapping.len());
    }
}

/// Whether `fd` is memory that cannot be cut short.
pub(crate) fn is_sealed_memory(fd: impl AsFd) -> bool {
    fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(SealFlags::SHRINK))
}

fn check(fd: impl AsFd, capacity: u64) -> Result<usize, OpenError> {
    if capacity == 0 || !capacity.is_multiple_of(BLOCK as u64) {
        return Err(OpenError::Capacity { capacity });
    }
    let found = fstat(fd).map_err(|e| io("read the area's size", e))?.st_size.cast_unsigned();
    if found < capacity {
        return Err(OpenError::TooShort { wanted: capacity, found });
    }
    usize::try_from(capacity).map_err(|_| OpenError::Capacity { capacity })
}

impl Medium for Mapped {
    fn len(&self) -> usize {
        self.mapping.len()
    }

    fn load(&self, offset: usize, out: &mut [u8]) {
        self.check(offset, out.len());
        // SAFETY: inside the mapping (asserted above), which lives as long as `self`. This process
        // holds no reference into it; other processes that map it may write, which `Untrusted`
        // allows.
        let bytes = unsafe { Untrusted::from_raw(self.mapping.as_ptr().add(offset), out.len()) };
        bytes.copy_to(0, out);
    }

    fn store(&mut self, offset: usize, bytes: &[u8]) {
        self.check(offset, bytes.len());
        assert!(
            offset.is_multiple_of(LINE) && bytes.len().is_multiple_of(LINE),
            "{} bytes at {offset} are not whole lines",
            bytes.len()
        );
        // SAFETY: inside the mapping, and the mapping starts on a page, so that every line is
        // aligned. `bytes` is a slice of ordinary memory: no reference into the mapping exists, so
        // the two do not overlap.
        unsafe { store_lines(self.mapping.as_ptr().add(offset), bytes) };
    }

    #[inline]
    fn fence(&mut self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: SSE is part of x86-64.
        unsafe {
            std::arch::x86_64::_mm_sfence()
        };
        #[cfg(not(target_arch = "x86_64"))]
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    }

    fn description(&self) -> &'static str {
        self.description
    }
}

/// Copies whole lines past the caches.
///
/// # Safety
/// `to` is aligned to a line and valid for writes of as many bytes as `from` has, which are whole
/// lines elsewhere in memory.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[allow(clippy::cast_ptr_alignment)] // The load may be unaligned, and the store is aligned by the caller's promise.
unsafe fn store_lines(to: *mut u8, from: &[u8]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    for (index, piece) in from.chunks_exact(size_of::<__m128i>()).enumerate() {
        // SAFETY: SSE2 is part of x86-64. The load is inside `from`, the store inside what the
        // caller vouches for.
        unsafe {
            let value = _mm_loadu_si128(piece.as_ptr().cast::<__m128i>());
            _mm_stream_si128(to.cast::<__m128i>().add(index), value);
        }
    }
}

/// Copies whole lines.
///
/// # Safety
/// As above.
#[cfg(any(not(target_arch = "x86_64"), miri))]
unsafe fn store_lines(to: *mut u8, from: &[u8]) {
    // SAFETY: the caller's.
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
}
