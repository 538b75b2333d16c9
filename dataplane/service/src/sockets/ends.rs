//! Hearing at once that a placeholder is gone.
//!
//! 1. The service does not hold the placeholders of connections: that would keep them. But inotify
//!    watches a socket's inode, which `/proc/self/fd` names, and tells of the close of its file:
//!    the last descriptor in any process, closed by a call or by a death. What is in flight in a
//!    message counts as a descriptor, and so does what an `exec` hands on.
//! 2. A socket cannot be opened a second time, so it is told once, and by nobody but the kernel.
//! 3. Where no watch is to be had (limits of inotify(7), no `/proc`), and of connections that a
//!    predecessor of another release had, the registry asks `sock_diag` now and then, as it does
//!    after the kernel's queue of events was too short.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

use super::table::ConnectionId;

/// Bytes of events that are read at once: 16 each.
const EVENTS: usize = 8192;

/// A watched placeholder.
pub type Watch = i32;

/// See the module.
#[derive(Debug)]
pub struct Ends {
    inotify: Option<OwnedFd>,
    watches: HashMap<Watch, (ConnectionId, usize)>,
}

impl Default for Ends {
    fn default() -> Self {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK);
        let inotify = inotify.map_err(|error| {
            tracing::warn!("connections that are gone are noticed late: inotify: {error}; see inotify(7)");
        });
        Self { inotify: inotify.ok(), watches: HashMap::new() }
    }
}

impl Ends {
    /// The events of a predecessor, whose watches [`Ends::enter`] enters.
    pub fn inherit(&mut self, inotify: OwnedFd) {
        self.inotify = Some(inotify);
    }

    /// What becomes readable when something has been closed.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inotify.as_ref().map(AsFd::as_fd)
    }

    /// Watches an end's placeholder.
    pub fn watch(&self, placeholder: &OwnedFd) -> Option<Watch> {
        let path = format!("/proc/self/fd/{}", placeholder.as_raw_fd());
        let closes = WatchFlags::CLOSE_WRITE | WatchFlags::CLOSE_NOWRITE | WatchFlags::ONESHOT;
        inotify::add_watch(self.inotify.as_ref()?, path, closes).ok()
    }

    /// Says whose a watch is.
    pub fn enter(&mut self, watch: Watch, id: ConnectionId, end: usize) {
        self.watches.insert(watch, (id, end));
    }

    /// Takes a watch back that was not heard of.
    pub fn forget(&mut self, watch: Watch) {
        if self.watches.remove(&watch).is_some()
            && let Some(inotify) = &self.inotify
        {
            // It may have ended just now, which is all that can fail.
            let _ = inotify::remove_watch(inotify, watch);
        }
    }

    /// Tells every end that was closed since the last time. False: some of them are not known.
    pub fn hear(&mut self, mut closed: impl FnMut(ConnectionId, usize)) -> bool {
        let Some(inotify) = &self.inotify else { return true };
        let mut room = [const { MaybeUninit::uninit() }; EVENTS];
        let mut events = Reader::new(inotify, &mut room);
        let mut all = true;
        loop {
            match events.next() {
                Ok(event) if event.events().contains(ReadFlags::QUEUE_OVERFLOW) => all = false,
                Ok(event) if event.events().contains(ReadFlags::IGNORED) => {}
                Ok(event) => {
                    if let Some((id, end)) = self.watches.remove(&event.wd()) {
                        closed(id, end);
                    }
                }
                Err(Errno::INTR) => {}
                Err(_) => return all,
            }
        }
    }
}
