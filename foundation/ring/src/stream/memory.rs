//! Making the memories of a connection, and mapping them.
//!
//! 1. [`Memory::create`] makes three memfds: the common memory and a private page for each end.
//!    They are sealed against a change of their size, so an access to a mapping never faults for
//!    that reason ([`shared_memory`]).
//! 2. [`Mapped`] checks the seals and the size of a received memfd before it maps it.
//! 3. With `vm.overcommit_memory=2` the kernel may refuse a page at its first touch. Then pages are
//!    reserved before they are written ([`check_overcommit`]).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;

use rustix::fs::{Mode, OFlags};
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect, munmap};

use super::layout::{Common, Direction, HEADER, MAGIC, Names, PRIVATE, Producer, RegionSizes, moved, tail};
use super::private::{Private, flag};
use crate::reserve;
use crate::shared_memory::{self, MapError, write};

/// Whether a page of a memfd can be refused when it is first touched, which is SIGBUS: with
/// `vm.overcommit_memory=2` the kernel counts it then. 0 if not determined yet.
static REFUSES_PAGES: AtomicU8 = AtomicU8::new(0);

/// Where the kernel says how it counts memory (`vm.overcommit_memory`); 2 is a limit for what is
/// promised.
const OVERCOMMIT: &str = "/proc/sys/vm/overcommit_memory";

/// Checks once whether pages have to be reserved before they are touched. To be called while files
/// may be opened.
pub fn check_overcommit() -> bool {
    match REFUSES_PAGES.load(Relaxed) {
        0 => {
            let mut mode = [0_u8; 1];
            let strict = rustix::fs::open(OVERCOMMIT, OFlags::RDONLY.union(OFlags::CLOEXEC), Mode::empty())
                .and_then(|file| rustix::io::read(&file, &mut mode))
                .is_ok_and(|_| mode == *b"2");
            REFUSES_PAGES.store(if strict { 2 } else { 1 }, Relaxed);
            strict
        }
        known => known == 2,
    }
}

/// Why an end cannot be attached to.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// A system call failed.
    #[error("a stream's memory: {0}; see whether memory or address space is short")]
    Io(#[source] io::Error),
    /// Another process could make it shorter while it is mapped, or it is no memfd.
    #[error(
        "a stream's memory: not a memfd sealed against a change of its size; it did not come from the service"
    )]
    NotSealed,
    /// Its first words or its size are not those of a stream of this version.
    #[error("a stream's memory: not of this version; run service and applications from one release")]
    Version,
}

/// The memories of a connection, as their maker passes them on: the common one to both, a private
/// one to each.
#[derive(Debug)]
pub struct Memory {
    /// What both ends map.
    pub common: OwnedFd,
    /// What each end maps alone.
    pub private: [OwnedFd; 2],
}

impl Memory {
    /// Memories for a connection that has carried no bytes; `names` of end 0 (which connected) and
    /// end 1.
    ///
    /// # Errors
    /// Those of `memfd_create(2)`, `ftruncate(2)`, `pwrite(2)`; [`io::ErrorKind::InvalidInput`] for
    /// region sizes out of bounds.
    pub fn create(region_sizes: RegionSizes, names: [Names; 2]) -> io::Result<Self> {
        if !region_sizes.is_valid() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let sizes = u32::from(region_sizes.smallest) | u32::from(region_sizes.largest) << 8;
        let start = moved::word(0, region_sizes.smallest).to_ne_bytes();

        let common = shared_memory::create("sietch-stream", region_sizes.common())?;
        let mut head = [0; 16];
        head[..8].copy_from_slice(&MAGIC.to_ne_bytes());
        head[8..12].copy_from_slice(&sizes.to_ne_bytes());
        write(common.as_fd(), 0, &head)?;
        if check_overcommit() {
            // The first regions of a direction are reserved before any write; each larger region is
            // reserved by its writer ([`Mapped::reserve`]).
            for direction in 0..2 {
                let at = HEADER + direction * region_sizes.area() + (1 << region_sizes.smallest);
                let bytes = 1_u64 << region_sizes.smallest;
                reserve(&common, at as u64, bytes)?;
            }
        }
        let [first, second] = names;
        let private = [private(0, sizes, first, start)?, private(1, sizes, second, start)?];
        Ok(Self { common, private })
    }

    /// Makes the end of end 1 a reset until the process that accepts it says otherwise
    /// (`Endpoint::abort_on_close(false)`). A connection that waits in a queue that is closed has
    /// been refused, as RFC 9293 section 3.10.4 aborts what a listener leaves. The other end
    /// queries the kernel once, before it relies on it.
    ///
    /// # Errors
    /// Those of `pwrite(2)`.
    pub fn reset_until_accepted(&self) -> io::Result<()> {
        use std::mem::offset_of;
        let flags = flag::ABORT_ON_CLOSE.to_ne_bytes();
        write(self.private[1].as_fd(), offset_of!(Private, flags), &flags)?;
        let direction = offset_of!(Common, directions) + size_of::<Direction>();
        let at = direction + offset_of!(Direction, producer) + offset_of!(Producer, tail);
        write(self.common.as_fd(), at, &tail::UNACCEPTED.to_ne_bytes())
    }
}

/// Whether this process can map the memories of one more connection now, and `beside` bytes more.
/// Its limits of address space, of locked memory and of mappings decide, and other threads use them
/// up as well.
pub fn is_mappable(region_sizes: RegionSizes, beside: usize) -> bool {
    let common = region_sizes.common() + beside;
    let length = common + PRIVATE;
    // SAFETY: the kernel chooses an address range that is not in use, so no existing memory is
    // touched.
    let probe = unsafe { mmap_anonymous(std::ptr::null_mut(), length, ProtFlags::READ, MapFlags::PRIVATE) };
    let Ok(probe) = probe else { return false };
    // An end has two mappings. Other rights make two of this one.
    let second = probe.cast::<u8>().wrapping_add(common);
    // SAFETY: the range was mapped above, and nothing refers to it.
    unsafe {
        let split = mprotect(second.cast(), PRIVATE, MprotectFlags::empty()).is_ok();
        munmap(probe, length).is_ok() && split
    }
}

/// Marks in this private page that the other end is a service ([`flag::SERVED`]). To be called
/// before the page is passed on.
///
/// # Errors
/// Those of `pwrite(2)`.
pub fn set_served(page: &OwnedFd) -> io::Result<()> {
    write(page.as_fd(), std::mem::offset_of!(Private, flags), &flag::SERVED.to_ne_bytes())
}

/// The page of one end.
fn private(end: u32, sizes: u32, names: Names, start: [u8; 8]) -> io::Result<OwnedFd> {
    use std::mem::offset_of;
    let file = shared_memory::create("sietch-end", PRIVATE)?;
    let mut page = [0_u8; size_of::<Private>()];
    let mut put = |at: usize, bytes: &[u8]| page[at..at + bytes.len()].copy_from_slice(bytes);
    put(offset_of!(Private, magic), &MAGIC.to_ne_bytes());
    put(offset_of!(Private, end), &end.to_ne_bytes());
    put(offset_of!(Private, region_sizes), &sizes.to_ne_bytes());
    let at = offset_of!(Private, names);
    put(at, &names.local);
    put(at + 28, &names.peer);
    put(at + 56, &names.local_length.to_ne_bytes());
    put(at + 60, &names.peer_length.to_ne_bytes());
    put(offset_of!(Private, receiving) + offset_of!(super::private::Receiving, region), &start);
    put(offset_of!(Private, sending) + offset_of!(super::private::Sending, region), &start);
    put(offset_of!(Private, sending) + offset_of!(super::private::Sending, full_at), &u64::MAX.to_ne_bytes());
    write(file.as_fd(), 0, &page)?;
    Ok(file)
}

/// A shared, writable mapping; pages come as they are touched.
#[derive(Debug)]
pub(super) struct Mapped {
    pub address: NonNull<u8>,
    pub length: usize,
}

impl Mapped {
    /// Maps the first `length` bytes of `file`, which must be exactly so long and sealed.
    pub(super) fn of(file: BorrowedFd<'_>, length: usize) -> Result<Self, AttachError> {
        match shared_memory::map(file, length) {
            Ok(address) => Ok(Self { address, length }),
            Err(MapError::Io(error)) => Err(AttachError::Io(error)),
            Err(MapError::NotSealed) => Err(AttachError::NotSealed),
            Err(MapError::Size) => Err(AttachError::Version),
        }
    }
}

impl Mapped {
    /// Allocates the pages of a part, where the kernel could refuse them when they are touched.
    /// False: there is no memory for them.
    pub(super) fn reserve(&self, from: usize, length: usize) -> bool {
        REFUSES_PAGES.load(Relaxed) != 2 || self.populate(from, length)
    }

    fn populate(&self, from: usize, length: usize) -> bool {
        if from.checked_add(length).is_none_or(|end| end > self.length) {
            return false;
        }
        let start = self.address.as_ptr().wrapping_add(from);
        // SAFETY: a part of the mapping, whose content stays as it is.
        let answer = unsafe { madvise(start.cast(), length, Advice::LinuxPopulateWrite) };
        // Kernels before 5.14 do not know it.
        matches!(answer, Ok(()) | Err(rustix::io::Errno::INVAL))
    }

    /// It stays mapped when this is dropped.
    pub(super) const fn stay(&mut self) {
        self.length = 0;
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if self.length == 0 {
            return;
        }
        // SAFETY: the range came from `shared_memory::map` and this is its only owner; borrows of
        // it end before.
        unsafe { shared_memory::unmap(self.address, self.length) };
    }
}

#[cfg(all(test, not(any(miri, one_mapping))))]
mod tests {
    use rustix::fs::MemfdFlags;
    use rustix::mm::{MapFlags, ProtFlags, mmap};

    use super::*;

    #[test]
    fn pages_that_cannot_be_had_are_refused_before_they_are_touched() {
        let page = 4096;
        let file = rustix::fs::memfd_create("short", MemfdFlags::CLOEXEC).expect("a memfd");
        rustix::fs::ftruncate(&file, 2 * page as u64).expect("a size");
        let protection = ProtFlags::READ.union(ProtFlags::WRITE);
        // SAFETY: the kernel chooses an address range that is not in use.
        let address = unsafe { mmap(std::ptr::null_mut(), 4 * page, protection, MapFlags::SHARED, &file, 0) };
        // Longer than the file: a touch behind its end is SIGBUS, as one of a page that the kernel
        // refuses.
        let address = NonNull::new(address.expect("a mapping").cast()).expect("an address");
        let mapped = Mapped { address, length: 4 * page };
        assert!(mapped.populate(0, 2 * page));
        assert!(!mapped.populate(page, 2 * page));
        assert!(!mapped.populate(3 * page, 2 * page), "behind the mapping");
        assert_eq!(rustix::fs::fstat(&file).expect("a status").st_blocks, 16, "two pages are there");
    }
}
