//! A mover in the thread of the test, on a file system of three media.

use std::sync::Arc;

use sietch_fs::digest::{Batch, DigestError};
use sietch_fs::heat::Heat;
use sietch_fs::inode::Timestamp;
use sietch_fs::mover::{Mover, Moves, Now, Settings, Step};
use sietch_fs::pool::{Class, Copier, MediumUse, Watermarks};
use sietch_fs::{Digested, Fault};

use crate::setup::{BIRTH, Disk, FileSystem, Media};

/// Steps after which a mover that still has work counts as one that never ends.
const MOST: usize = 20_000;

pub(super) struct Driver {
    pub(super) mover: Mover,
    pub(super) heat: Arc<Heat>,
    base: Digested<Copier<Disk>>,
    /// Nanoseconds.
    pub(super) now: u64,
    pub(super) time: Timestamp,
}

impl Driver {
    /// A mover for the file system of `client`. Time stands at an hour after the birth of the file
    /// system, so that files of that age are cold.
    pub(super) fn new(media: &Media, client: &mut FileSystem, settings: Settings) -> Self {
        let owner = client.service().owner();
        let root = owner.root();
        let heat = Arc::new(Heat::default());
        owner.base().count_in(Arc::clone(&heat));
        let copier = Copier::new(media.members(), root).expect("the media of the pool");
        let time = Timestamp { seconds: BIRTH.seconds + 3600, ..BIRTH };
        let mover = Mover::new(settings, Arc::clone(&heat));
        Self { mover, heat, base: Digested::new(copier), now: 1, time }
    }

    pub(super) fn step(&mut self, client: &mut FileSystem) -> Result<Step, Fault> {
        let now = Now { nanoseconds: self.now, time: self.time };
        self.mover.step(&mut self.base, client.service().owner(), now)
    }

    /// Digests a batch, as the owner of a pool with a mover does: blocks that the mover has set
    /// aside or reads are wanted back if the batch needs them.
    pub(super) fn digest(&mut self, client: &mut FileSystem) -> Result<Batch, DigestError> {
        let batch = match client.service().digest() {
            Err(DigestError::Held) => {
                self.mover.abandon(client.service().owner());
                client.service().digest()?
            }
            done => done?,
        };
        client.advance();
        Ok(batch)
    }

    /// Digests everything.
    pub(super) fn digest_all(&mut self, client: &mut FileSystem) {
        while self.digest(client).expect("room").records > 0 {}
    }

    /// Moves until there is nothing to do, and returns what was moved. Waits take no time.
    pub(super) fn settle(&mut self, client: &mut FileSystem) -> Moves {
        for _ in 0..MOST {
            match self.step(client).expect("a good tree") {
                Step::More => {}
                Step::At(later) => self.now = later,
                Step::Idle => return self.mover.moves().clone(),
            }
        }
        panic!("the mover never ends: {:?}, {:?}", self.mover.moves(), usage(client));
    }
}

pub(super) fn usage(client: &mut FileSystem) -> Vec<MediumUse> {
    client.service().owner().pool().usage()
}

/// Blocks in use on each medium.
pub(super) fn used(client: &mut FileSystem) -> Vec<u64> {
    usage(client).iter().map(MediumUse::used).collect()
}

/// Sets the watermarks of all media.
pub(super) fn mark(client: &mut FileSystem, marks: &[(u16, u16, u16)]) {
    for (medium, (low, high, hard)) in marks.iter().enumerate() {
        let marks = Watermarks::new(*low, *high, *hard).expect("marks in order");
        client.service().owner().pool().set_watermarks(medium, marks);
    }
}

/// Three media, slower ones larger.
pub(super) fn three(home: usize, ssd: usize, hdd: usize, log: usize) -> Media {
    Media::new(home, log).with(&[(Class::Ssd, ssd), (Class::Hdd, hdd)])
}
