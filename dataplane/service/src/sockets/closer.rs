//! Closing what an application sent.
//!
//! The last `close` of a descriptor can take as long as its owner likes: a file of a file system that the application serves itself is flushed by
//! asking that application, a TCP socket may linger, and a Unix socket may hold such descriptors in messages that nobody has received. So:
//!
//! 1. A socket of TCP or UDP is told not to linger, and closed here.
//! 2. Anything else is closed by threads that come when there is something to close and go when there is not. If [`limits::CLOSERS`] of them hang, it
//!    waits; if [`limits::UNCLOSED`] wait, what comes then is not closed at all. Whoever does that gets nothing for it: a request with such a
//!    descriptor is refused.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::net::{AddressFamily, sockopt};

use super::limits;

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<OwnedFd>,
    threads: usize,
}

/// See the module.
#[derive(Debug, Clone, Default)]
pub(super) struct Closer(Arc<Mutex<Queue>>);

impl Closer {
    /// Closes without waiting for anybody.
    pub fn close(&self, descriptor: OwnedFd) {
        if matches!(sockopt::socket_domain(&descriptor), Ok(AddressFamily::INET | AddressFamily::INET6)) {
            // Not every socket has it; those close at once.
            let _ = sockopt::set_socket_linger(&descriptor, None);
            return;
        }
        let mut queue = self.queue();
        if queue.waiting.len() >= limits::UNCLOSED {
            tracing::warn!(
                "a descriptor that may take long to close stays open: {} wait to be closed",
                limits::UNCLOSED
            );
            std::mem::forget(descriptor);
            return;
        }
        queue.waiting.push_back(descriptor);
        if queue.threads >= limits::CLOSERS {
            return;
        }
        queue.threads += 1;
        let own = self.clone();
        let work = move || while own.close_one() {};
        if std::thread::Builder::new().name("sietch-closer".to_owned()).spawn(work).is_err() {
            // The next one finds it waiting.
            queue.threads -= 1;
        }
    }

    /// Whether there was one.
    fn close_one(&self) -> bool {
        let mut queue = self.queue();
        match queue.waiting.pop_front() {
            Some(descriptor) => {
                drop(queue);
                drop(descriptor);
                true
            }
            None => {
                queue.threads -= 1;
                false
            }
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
