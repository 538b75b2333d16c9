//! Learns at once that a placeholder is closed.
//!
//! 1. The service does not hold the placeholders of connections: that would keep them open. But
//!    inotify watches a socket's inode, which `/proc/self/fd` names. It reports the close of its
//!    file: the last descriptor in any process, closed by a call or by a death. A descriptor in
//!    flight in a message counts, and so does one that an `exec` inherits.
//! 2. A socket cannot be opened a second time, so there is one report, and only the kernel makes
//!    it.
//! 3. Some placeholders have no watch: limits of inotify(7), no `/proc`, connections of a
//!    predecessor of another release. For those, and after the kernel's event queue has overflowed,
//!    the registry queries `sock_diag` now and then.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

use crate::sockets::table::ConnectionId;

/// Bytes of events that are read at once; an event has 16.
const EVENTS: usize = 8192;

/// The watch of a placeholder.
pub(in crate::sockets) type Watch = i32;

/// The watched placeholders.
#[derive(Debug)]
pub(super) struct CloseWatcher {
    inotify: Option<OwnedFd>,
    watches: HashMap<Watch, (ConnectionId, usize)>,
}

impl Default for CloseWatcher {
    fn default() -> Self {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK);
        let inotify = inotify.map_err(|error| {
            tracing::warn!(
                "inotify is not available: {error}; closed connections are found late; see inotify(7)"
            );
        });
        Self { inotify: inotify.ok(), watches: HashMap::new() }
    }
}

impl CloseWatcher {
    /// Continues with the inotify descriptor of a predecessor, whose watches
    /// [`CloseWatcher::register`] adds.
    pub(super) fn inherit(&mut self, inotify: OwnedFd) {
        self.inotify = Some(inotify);
    }

    /// Returns the descriptor that becomes readable when a placeholder was closed.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inotify.as_ref().map(AsFd::as_fd)
    }

    /// Watches a placeholder.
    pub(super) fn watch(&self, placeholder: &OwnedFd) -> Option<Watch> {
        let path = format!("/proc/self/fd/{}", placeholder.as_raw_fd());
        let closes = WatchFlags::CLOSE_WRITE | WatchFlags::CLOSE_NOWRITE | WatchFlags::ONESHOT;
        inotify::add_watch(self.inotify.as_ref()?, path, closes).ok()
    }

    /// Registers the connection and end of a watch.
    pub(super) fn register(&mut self, watch: Watch, id: ConnectionId, end: usize) {
        self.watches.insert(watch, (id, end));
    }

    /// Removes a watch that has not fired.
    pub(super) fn forget(&mut self, watch: Watch) {
        if self.watches.remove(&watch).is_some()
            && let Some(inotify) = &self.inotify
        {
            // It can fail only if the watch has fired just now.
            let _ = inotify::remove_watch(inotify, watch);
        }
    }

    /// Calls `closed` for every end that was closed since the last call. Returns false if the
    /// kernel lost some events.
    pub(super) fn read_closed(&mut self, mut closed: impl FnMut(ConnectionId, usize)) -> bool {
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
