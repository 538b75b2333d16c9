//! A descriptor that the closer closes, wherever it is dropped.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::Closer;

/// A descriptor that a process sent which is not trusted. Dropped, a thread that may hang closes
/// it.
#[derive(Debug)]
pub struct SentDescriptor {
    /// Some until it is taken out or dropped.
    descriptor: Option<OwnedFd>,
    uid: u32,
    closer: Closer,
}

impl SentDescriptor {
    /// `uid` sent it.
    pub fn new(descriptor: OwnedFd, uid: u32, closer: &Closer) -> Self {
        Self { descriptor: Some(descriptor), uid, closer: closer.clone() }
    }

    /// From now on, `uid` counts as its sender.
    pub(super) fn charged_to(mut self, uid: u32) -> Self {
        self.uid = uid;
        self
    }

    /// Takes the descriptor out. The caller has found that any thread may close it: only a memfd
    /// ([`crate::sealed::check`]) has neither a peer nor a server that could make it wait.
    pub fn into_trusted(mut self) -> Option<OwnedFd> {
        self.descriptor.take()
    }
}

impl AsFd for SentDescriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.descriptor {
            Some(descriptor) => descriptor.as_fd(),
            // It is `None` only within `into_trusted` and `drop`.
            None => unreachable!("a descriptor that was taken out is not used"),
        }
    }
}

impl Drop for SentDescriptor {
    fn drop(&mut self) {
        if let Some(descriptor) = self.descriptor.take() {
            self.closer.close(self.uid, descriptor);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::lingering;
    use super::*;

    #[test]
    fn a_descriptor_that_was_sent_is_closed_by_a_thread_wherever_it_is_dropped() {
        let closer = Closer::default();
        let (one, other) = lingering();
        drop(SentDescriptor::new(one.into(), 7, &closer));
        assert_eq!(closer.waiting_of(7), 1, "its close hangs, and this thread does not");
        drop(other);
        while closer.waiting() > 0 {
            std::thread::yield_now();
        }
        let null = std::fs::File::open("/dev/null").expect("it is there");
        assert!(SentDescriptor::new(null.into(), 7, &closer).into_trusted().is_some());
        assert_eq!(closer.waiting(), 0, "what was taken out is the caller's");
    }
}
