//! The first page of a file, mapped shared.

use std::fs::File;

use rustix::io::Errno;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};

/// A page that several see.
pub(crate) struct SharedPage(*mut u8);

impl SharedPage {
    const LENGTH: usize = 4096;

    pub(crate) fn of(file: &File) -> Self {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let page =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), Self::LENGTH, protection, flags, file, 0) };
        Self(page.expect("mapped").cast())
    }

    pub(crate) fn write(&self, at: usize, byte: u8) {
        assert!(at < Self::LENGTH);
        // SAFETY: inside the mapping, to which there is no reference.
        unsafe { self.0.add(at).write_volatile(byte) }
    }

    pub(crate) fn read(&self, at: usize) -> u8 {
        assert!(at < Self::LENGTH);
        // SAFETY: inside the mapping, to which there is no reference.
        unsafe { self.0.add(at).read_volatile() }
    }

    pub(crate) fn flush(&self) {
        self.try_flush().expect("flushed");
    }

    pub(crate) fn try_flush(&self) -> Result<(), Errno> {
        // SAFETY: exactly the mapping.
        unsafe { rustix::mm::msync(self.0.cast(), Self::LENGTH, MsyncFlags::SYNC) }
    }
}

impl Drop for SharedPage {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping, which nothing uses any more.
        let _ = unsafe { rustix::mm::munmap(self.0.cast(), Self::LENGTH) };
    }
}
