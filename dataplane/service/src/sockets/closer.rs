//! Closing what an application sent.
//!
//! The last `close` of a descriptor can take as long as its owner likes: a file of a file system that the application serves itself is flushed by
//! asking that application, and a TCP socket may linger. So:
//!
//! 1. A socket is told not to linger, and closed here.
//! 2. Anything else is closed by a thread of its own. If [`limits::CLOSERS`] of them hang, what comes then is not closed at all: whoever does that
//!    pays with his own requests, for a request with such a descriptor is refused.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::net::sockopt;

use super::limits;

/// See the module.
#[derive(Debug, Clone, Default)]
pub(super) struct Closer {
    hanging: Arc<AtomicUsize>,
}

impl Closer {
    /// Closes without waiting for anybody.
    pub fn close(&self, descriptor: OwnedFd) {
        if sockopt::socket_type(&descriptor).is_ok() {
            // Not every socket has it; those close at once.
            let _ = sockopt::set_socket_linger(&descriptor, None);
            return;
        }
        if self.hanging.fetch_add(1, Ordering::AcqRel) >= limits::CLOSERS {
            self.hanging.fetch_sub(1, Ordering::AcqRel);
            tracing::warn!(
                "a descriptor that is no socket is left open: {} threads hang in closing others",
                limits::CLOSERS
            );
            std::mem::forget(descriptor);
            return;
        }
        let hanging = Arc::clone(&self.hanging);
        let started = std::thread::Builder::new().name("sietch-closer".to_owned()).spawn(move || {
            drop(descriptor);
            hanging.fetch_sub(1, Ordering::AcqRel);
        });
        if started.is_err() {
            // The closure, and the descriptor in it, went with the attempt.
            self.hanging.fetch_sub(1, Ordering::AcqRel);
        }
    }
}
