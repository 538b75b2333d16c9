//! A grant: the right to a device, and whether it was revoked.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sietch_protocol::{HeldGrant, Protection};

/// A grant of the daemon. Clones name the same grant.
#[derive(Clone, Debug)]
pub struct Grant {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    held: HeldGrant,
    name: String,
    protection: Protection,
    revoked: AtomicBool,
}

impl Grant {
    pub(crate) fn new(held: HeldGrant, name: String, protection: Protection) -> Self {
        let revoked = AtomicBool::new(false);
        Self { inner: Arc::new(Inner { held, name, protection, revoked }) }
    }

    /// The daemon's number of this grant.
    pub fn id(&self) -> u64 {
        self.inner.held.grant
    }

    /// The number that distinguishes it from earlier grants of the same device.
    pub fn generation(&self) -> u64 {
        self.inner.held.generation
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The component that enforces its limits.
    pub fn protection(&self) -> &Protection {
        &self.inner.protection
    }

    /// Whether it was revoked. One load: cheap enough for every iteration of a data loop. Memory
    /// that is read after `true` was returned is at least as new as the daemon's notice.
    pub fn is_revoked(&self) -> bool {
        self.inner.revoked.load(Ordering::Acquire)
    }

    pub(crate) fn revoke(&self) {
        self.inner.revoked.store(true, Ordering::Release);
    }

    pub(crate) fn held(&self) -> HeldGrant {
        self.inner.held
    }
}
