//! The disk queues of the simulator pass the suite of real ones (`sietch_disk::conformance`).

use sietch_disk::conformance::{Bench, CAPACITY};
use sietch_disk::{DiskQueue, NvmQueue, conformance};
use sietch_sim::disk::{Crash, Fault, Media, Options};
use sietch_sim::{Memory, Random};

/// A medium with sectors of 512 bytes, or blocks of 4096.
struct Disk(Media);

impl Disk {
    fn new(block_size: usize) -> Self {
        let options = Options { block_size, tear: 8, ..Options::new(CAPACITY) };
        Self(Media::new(options, Random::new(block_size as u64)))
    }
}

impl Bench for Disk {
    fn open(&mut self) -> Box<dyn DiskQueue> {
        Box::new(self.0.open())
    }

    fn reopen(&mut self) -> Option<Box<dyn DiskQueue>> {
        self.0.kill();
        Some(self.open())
    }

    fn lose_power(&mut self) -> Option<Box<dyn DiskQueue>> {
        self.0.crash(Crash::Nothing);
        Some(self.open())
    }

    fn fail_next_write(&mut self) -> bool {
        self.0.inject(1, Fault::Error(5));
        true
    }
}

/// Simulated persistent memory under the real queue.
struct Persistent(Memory, Random);

impl Bench for Persistent {
    fn open(&mut self) -> Box<dyn DiskQueue> {
        Box::new(NvmQueue::over(self.0.clone(), None))
    }

    fn reopen(&mut self) -> Option<Box<dyn DiskQueue>> {
        Some(self.open())
    }

    fn lose_power(&mut self) -> Option<Box<dyn DiskQueue>> {
        self.0.crash(&mut self.1);
        Some(self.open())
    }
}

conformance!(disk, Ok(Disk::new(512)));
conformance!(disk_of_large_blocks, Ok(Disk::new(4096)));
conformance!(persistent_memory, Ok(Persistent(Memory::new(CAPACITY), Random::new(1))));
