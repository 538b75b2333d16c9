//! The doorbell of a thread: other threads wake it, each sleep at most once.
//!
//! 1. It is a need-wakeup word ([`need_wakeup`]) and something that ends a sleep: an eventfd
//!    ([`EventDoorbell`]), which is in the same epoll set or io_uring as everything else that the
//!    thread sleeps on.
//! 2. A thread that has nothing to do calls [`ThreadDoorbell::arm`], polls everything once more,
//!    and sleeps only if there is still nothing. Awake again, it calls
//!    [`ThreadDoorbell::disarm`].
//! 3. A thread that has published something calls [`ThreadDoorbell::notify`]. While the owner is
//!    awake that is a fence and a load. If the owner sleeps, the first of all notifiers claims the
//!    word and makes the one system call; the others find the word claimed.

use crate::need_wakeup;
use crate::sync::{Arc, AtomicU32};

/// Ends the sleep of a thread.
pub trait Wake {
    /// Ends the current sleep of the thread, or the next one at once.
    fn wake(&self);
}

#[derive(Debug)]
struct Shared<W> {
    word: Word,
    wake: W,
}

/// On cache lines of its own (two, because processors fetch pairs): a word beside it that changes
/// often would make each read of it a cache miss.
#[derive(Debug)]
#[repr(align(128))]
struct Word(AtomicU32);

/// A handle of the doorbell. Its owner and all notifiers have one each.
#[derive(Debug)]
pub struct ThreadDoorbell<W>(Arc<Shared<W>>);

impl<W> Clone for ThreadDoorbell<W> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<W: Wake> ThreadDoorbell<W> {
    /// A doorbell that ends sleeps through `wake`.
    pub fn with(wake: W) -> Self {
        Self(Arc::new(Shared { word: Word(AtomicU32::new(0)), wake }))
    }

    /// Requests a wake-up. The owner must poll everything once more before it sleeps.
    pub fn arm(&self) {
        need_wakeup::arm(&self.0.word.0);
    }

    /// Takes the request back.
    pub fn disarm(&self) {
        need_wakeup::disarm(&self.0.word.0);
    }

    /// Called after publishing: wakes the owner if it sleeps, or is about to.
    #[inline]
    pub fn notify(&self) {
        if need_wakeup::claim(&self.0.word.0) {
            self.0.wake.wake();
        }
    }
}

#[cfg(not(loom))]
pub use event::{Event, EventDoorbell};

#[cfg(not(loom))]
mod event {
    use std::io;
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

    use rustix::event::{EventfdFlags, eventfd};

    use super::{ThreadDoorbell, Wake};

    /// An eventfd.
    #[derive(Debug)]
    pub struct Event(OwnedFd);

    impl Wake for Event {
        fn wake(&self) {
            // It fails only if the counter is full, and then it is readable.
            let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
        }
    }

    /// A doorbell whose owner sleeps on an eventfd.
    pub type EventDoorbell = ThreadDoorbell<Event>;

    impl EventDoorbell {
        /// A doorbell with an eventfd of its own.
        ///
        /// # Errors
        /// No descriptor is left.
        pub fn new() -> io::Result<Self> {
            let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            Ok(Self::with(Event(event)))
        }

        /// Makes the descriptor unreadable again, after it was reported. Before the owner polls, so
        /// that no later notification is taken away.
        pub fn clear(&self) {
            // It fails if it was not readable.
            let _ = rustix::io::read(self, &mut [0_u8; 8]);
        }
    }

    /// Readable once the doorbell was notified.
    impl AsFd for EventDoorbell {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.0.wake.0.as_fd()
        }
    }
}
