//! A doorbell: an eventfd, and a word in shared memory that says whether ringing is wanted.
//!
//! 1. The sleeper calls [`Doorbell::arm`], looks for work once more, and if there is none sleeps on
//!    the descriptor (`poll`, `epoll`, io_uring: it becomes readable). Awake, it calls
//!    [`Doorbell::disarm`].
//! 2. The ringer publishes its work and calls [`Doorbell::ring`], which makes a system call only if
//!    the sleeper asked.
//! 3. Why no wake-up is lost: see [`crate::wake`].
//!
//! Two processes use it by mapping the same memory and holding the same eventfd. Both ends hold one
//! *open file*: a peer that clears its O_NONBLOCK flag and fills the counter could block a ringer
//! that rings it. So a party that serves mutually distrusting peers polls them instead of ringing,
//! or rings from a thread of the peer's own.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use crate::mapping::Mapping;
use crate::wake;

#[cfg(test)]
mod tests;

/// One end of a doorbell; either end may sleep or ring, as the ring's owner decides.
#[derive(Debug)]
pub struct Doorbell {
    event: OwnedFd,
    mapping: Arc<Mapping>,
    offset: usize,
}

impl Doorbell {
    /// A new doorbell whose word lies at byte `offset` of `mapping`.
    ///
    /// # Errors
    /// No word lies there (`InvalidInput`), or `eventfd(2)` failed.
    pub fn new(mapping: Arc<Mapping>, offset: usize) -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC.union(EventfdFlags::NONBLOCK))?;
        Self::attach(event, mapping, offset)
    }

    /// The other end of a doorbell that [`Doorbell::new`] made: `event` is its descriptor, received
    /// or duplicated.
    ///
    /// # Errors
    /// No word lies there (`InvalidInput`).
    pub fn attach(event: OwnedFd, mapping: Arc<Mapping>, offset: usize) -> io::Result<Self> {
        if mapping.word(offset).is_none() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("no doorbell word at byte {offset} of a mapping of {} bytes", mapping.len()),
            ));
        }
        Ok(Self { event, mapping, offset })
    }

    /// Asks to be woken. Look for work once more before sleeping.
    pub fn arm(&self) {
        self.word().inspect(|word| wake::arm(word));
    }

    /// Takes the request back and makes the descriptor unreadable again.
    ///
    /// # Errors
    /// The descriptor is not an eventfd.
    pub fn disarm(&self) -> io::Result<()> {
        self.word().inspect(|word| wake::disarm(word));
        match rustix::io::read(&self.event, &mut [0_u8; 8]) {
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Wakes the sleeper if it asked for it, and returns whether it had. Call it after publishing.
    ///
    /// # Errors
    /// The descriptor is not an eventfd.
    pub fn ring(&self) -> io::Result<bool> {
        if !self.word().is_some_and(wake::claim) {
            return Ok(false);
        }
        match rustix::io::write(&self.event, &1_u64.to_ne_bytes()) {
            // EAGAIN: the counter is full, so the descriptor is readable already.
            Ok(_) | Err(Errno::AGAIN) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    fn word(&self) -> Option<&AtomicU32> {
        self.mapping.word(self.offset)
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
