//! Areas for tests, which go away with them.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sietch_disk::{Buffer, DiskQueue, Operation, area};

/// Bytes in an area of these tests.
pub(crate) const CAPACITY: usize = sietch_disk::conformance::CAPACITY;

/// A directory that goes away with the test.
pub(crate) struct Folder(pub PathBuf);

impl Folder {
    /// A new directory in `parent`, if that is one.
    pub(crate) fn new(parent: &Path) -> Result<Self, String> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("sietch-disk-{}-{number}", std::process::id()));
        std::fs::create_dir(&path)
            .map_err(|e| format!("a directory that can be written: {}: {e}", path.display()))?;
        Ok(Self(path))
    }

    /// A new directory where temporary files go.
    pub(crate) fn temporary() -> Self {
        Self::new(&std::env::temp_dir()).expect("a writable temporary directory")
    }

    /// The area's file.
    pub(crate) fn path(&self) -> PathBuf {
        self.0.join("area")
    }

    /// A new area and its descriptor.
    pub(crate) fn area(&self) -> OwnedFd {
        area::create(&self.path(), CAPACITY as u64, &mut |_| {}).expect("room for 64 KiB");
        self.reopen()
    }

    /// The area once more; its previous holder must have closed it.
    pub(crate) fn reopen(&self) -> OwnedFd {
        area::open(&self.path(), CAPACITY as u64).expect("an area without a holder")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// Sealed memory of `bytes`.
pub(crate) fn sealed(bytes: u64) -> OwnedFd {
    let flags = rustix::fs::MemfdFlags::ALLOW_SEALING.union(rustix::fs::MemfdFlags::CLOEXEC);
    let memory = rustix::fs::memfd_create("area", flags).expect("a memfd");
    rustix::fs::ftruncate(&memory, bytes).expect("memory");
    rustix::fs::fcntl_add_seals(&memory, rustix::fs::SealFlags::SHRINK).expect("a seal");
    memory
}

pub(crate) fn filled(length: usize, byte: u8) -> Buffer {
    let mut buffer = Buffer::new(length);
    buffer[..length].fill(byte);
    buffer
}

/// Does one request on an idle queue; its result and its buffer.
pub(crate) fn attempt(
    queue: &mut dyn DiskQueue,
    operation: Operation,
) -> (std::io::Result<()>, Option<Buffer>) {
    queue.submit(7, operation).expect("room in an idle queue");
    let mut done = Vec::new();
    for _ in 0..100 {
        queue.wait(Duration::from_secs(1)).expect("a working queue");
        if queue.complete(&mut done) > 0 {
            break;
        }
    }
    let completion = done.pop().expect("a completion within 100 s");
    assert_eq!((completion.token, done.len(), queue.in_flight()), (7, 0, 0));
    (completion.result, completion.buffer)
}

/// Does one request that must succeed.
pub(crate) fn execute(queue: &mut dyn DiskQueue, operation: Operation) -> Option<Buffer> {
    let (result, buffer) = attempt(queue, operation);
    result.expect("a request inside the area");
    buffer
}
