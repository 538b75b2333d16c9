//! What the hub and the thread that moves data have in common.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use sietch_disk::AreaQueue;
use sietch_fs::Digest;
use sietch_fs::pool::MediumUse;

use crate::fs::requests::{Digesting, Requests};

/// See the module's account.
pub(super) struct Moving {
    requests: Requests,
    generation: AtomicU64,
    media: Mutex<Vec<MediumUse>>,
    /// Wakes the hub. It must not wait.
    wake: Box<dyn Fn() + Send + Sync>,
}

impl Moving {
    /// `wake` wakes the hub, and does not wait.
    pub(super) fn new(wake: Box<dyn Fn() + Send + Sync>) -> Self {
        let (requests, generation, media) = (Requests::default(), AtomicU64::new(0), Mutex::default());
        Self { requests, generation, media, wake }
    }

    /// Does what the mover asks for, between two batches. `is_busy`: clients wait; `is_held`: the
    /// digest lacks blocks, which the mover may have. Returns whether the pool may have changed.
    pub(super) fn serve(&self, digest: &mut Digest<AreaQueue>, is_busy: bool, is_held: bool) -> bool {
        self.requests.set_busy(is_busy);
        if is_held {
            self.requests.want_blocks();
        }
        let has_changed = self.requests.serve(digest);
        let media = digest.pool().media_usage();
        self.requests.set_pressed(media.iter().any(MediumUse::is_near_hard));
        *self.media.lock().unwrap_or_else(PoisonError::into_inner) = media;
        self.generation.store(digest.root().generation, Ordering::Release);
        has_changed
    }

    /// How full each medium is, the home first.
    pub(super) fn media(&self) -> Vec<MediumUse> {
        self.media.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Digesting for Moving {
    fn requests(&self) -> &Requests {
        &self.requests
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn wake(&self) {
        (self.wake)();
    }
}
