//! The disk of these tests keeps what a disk queue promises (`sietch_disk::conformance`), at its
//! very least. Only then does a crash that the log survives on it mean something.

use std::cell::RefCell;
use std::rc::Rc;

use sietch_disk::conformance::{Bench, CAPACITY};
use sietch_disk::{DiskQueue, conformance};

use crate::disk::{CrashDisk, Media};

/// Bytes that power loss keeps or takes together.
const SECTOR: usize = 512;

struct Crashing(Rc<RefCell<Media>>);

impl Bench for Crashing {
    fn open(&mut self) -> Box<dyn DiskQueue> {
        Box::new(CrashDisk::new(&self.0))
    }

    fn reopen(&mut self) -> Option<Box<dyn DiskQueue>> {
        self.0.borrow_mut().kill();
        Some(self.open())
    }

    fn lose_power(&mut self) -> Option<Box<dyn DiskQueue>> {
        let image = self.0.borrow().after_power_loss(SECTOR, || false);
        self.0 = Media::new(image, SECTOR, 1);
        Some(self.open())
    }
}

conformance!(crash_disk, Ok(Crashing(Media::new(vec![0; CAPACITY], SECTOR, 7))));
