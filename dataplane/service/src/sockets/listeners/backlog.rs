//! How many connections wait at a listener: as many as the kernel would let wait, whichever way
//! they come.
//!
//! `listen(n)` lets n + 1 connections wait. Some wait here, in pairs and behind them; the others
//! wait in the queue of the kernel's listening socket. So:
//!
//! 1. The kernel's socket gets a backlog that is smaller by what waits here: both together are
//!    never more than n + 1. It is changed for every connection only if many wait ([`slack`]).
//! 2. The last entries are the kernel's. A program whose connection does not fit here is sent to
//!    the kernel. There it waits or fails as with any server: the kernel drops its SYN.
//! 3. Connections stay in order: while some wait in the kernel's queue, later ones go there too.
//! 4. Several processes may have listeners of one kernel's socket, which has one queue. They are a
//!    *group*: they share the backlog, and each gets the next connection when it has taken its
//!    last.
//!
//! A listener with a backlog of 0 lets two connections wait, not one. One waits here, so that its
//! program is woken. One waits in the kernel.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;
use sietch_socket::kernel::{accept_queue, unreceived};

use super::entry::OpenListener;
use crate::sockets::state::SocketService;
use crate::sockets::table::ListenerId;
use crate::sockets::{kernel, limits};

/// Returns how many may wait here. Two entries are left to the kernel, so that its backlog is not
/// 0: with 0 it would answer each SYN with a cookie.
pub(in crate::sockets) fn most_here(backlog: u32) -> u32 {
    backlog.saturating_sub(1).clamp(1, limits::MOST_BACKLOG)
}

/// Returns how many may wait here without a change of the kernel's backlog: an eighth, so that a
/// burst of clients of the kernel still finds nearly all of it.
fn slack(backlog: u32) -> u32 {
    if backlog < 4 { 0 } else { (backlog / 8).max(1) }
}

/// Returns the backlog of the kernel's socket while `here` connections wait here.
fn left_to_kernel(backlog: u32, here: u32) -> u32 {
    backlog.saturating_sub(here.max(slack(backlog)))
}

/// Returns whether so many wait here that the kernel's backlog changes with each accept.
pub(in crate::sockets) fn is_tight(backlog: u32, here: u32) -> bool {
    here > slack(backlog)
}

/// Converts the kernel's count of unread bytes to messages. The kernel reports room while it still
/// counts a byte of the message that was just received (`sock_wfree`). A reader that checks at once
/// must not count that byte as a message, because no further event would correct it.
fn messages(unreceived: u32, message: u32) -> u32 {
    unreceived.saturating_add(message / 2) / message
}

/// Sizes a pair so that the service is woken for each arrival that is taken if few may wait, else
/// when three quarters of the pair are free.
pub(in crate::sockets) fn size_pair(pair: &OwnedFd, message: u32, backlog: u32) -> rustix::io::Result<()> {
    // The kernel doubles the size, and calls the socket writable when a quarter of that is used.
    let whole = (message * limits::IN_PAIR) as usize / 2;
    let bytes = if backlog <= limits::IN_PAIR { 4 * whole } else { whole };
    sockopt::set_socket_send_buffer_size(pair, bytes)
}

impl SocketService {
    /// Returns the listeners of the same kernel's socket, this one first.
    pub(in crate::sockets) fn group(&self, id: ListenerId) -> Vec<ListenerId> {
        let own = self.listeners.get(&id).map(|open| open.group);
        let members = self.table.of_same_name(id).filter(|&other| {
            other == id
                || own.is_some_and(|own| self.listeners.get(&other).is_some_and(|open| open.group == own))
        });
        let mut group: Vec<_> = members.collect();
        if let Some(at) = group.iter().position(|&other| other == id) {
            group.rotate_left(at);
        }
        group
    }

    /// Returns the number of arrivals in a listener's pair.
    pub(in crate::sockets) fn in_pair(&self, open: &OpenListener) -> u32 {
        messages(unreceived(&open.pair).unwrap_or(0), self.message_size)
    }

    /// Returns the number of connections that wait at these listeners and not in the kernel's
    /// queue.
    pub(in crate::sockets) fn waiting_here(&self, group: &[ListenerId]) -> u32 {
        let opens = group.iter().filter_map(|id| self.listeners.get(id));
        opens.map(|open| self.in_pair(open) + open.waiting.len() as u32).sum()
    }

    /// Returns whether one more connection may wait here. Connections in the kernel's queue come
    /// first.
    pub(in crate::sockets) fn has_room(&mut self, id: ListenerId) -> bool {
        if self.waits_in_kernel(id) {
            self.accept_from_kernel(id);
        }
        let Some(backlog) = self.table.listener(id).map(|listener| listener.backlog) else { return false };
        let group = self.group(id);
        let here = self.waiting_here(&group);
        if self.waits_in_kernel(id) || here >= most_here(backlog) {
            return false;
        }
        self.leave_to_kernel(id, here + 1);
        true
    }

    /// Returns whether a connection waits in the kernel's queue. This call takes no lock of the
    /// socket.
    pub(in crate::sockets) fn waits_in_kernel(&self, id: ListenerId) -> bool {
        let Some(kernel) = self.listeners.get(&id).and_then(|open| open.kernel.as_ref()) else {
            return false;
        };
        let mut entry = [PollFd::new(kernel, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut entry, Some(&now)).is_ok() && entry[0].revents().contains(PollFlags::IN)
    }

    /// Returns the number of connections in the kernel's queue, which is not empty. Returns 1 if
    /// the call fails: `accept` finds out why.
    pub(in crate::sockets) fn in_kernel(&self, id: ListenerId) -> u32 {
        let kernel = self.listeners.get(&id).and_then(|open| open.kernel.as_ref());
        let Some((kernel, listener)) = kernel.zip(self.table.listener(id)) else { return 0 };
        let length = |fd: BorrowedFd<'_>| accept_queue(fd).ok().flatten().map_or(0, |queue| queue.length);
        self.calls.call(listener.application.uid, kernel, length).unwrap_or(1)
    }

    /// Gives the kernel's socket its backlog while `here` connections wait here.
    pub(in crate::sockets) fn leave_to_kernel(&mut self, id: ListenerId, here: u32) {
        let (Some(open), Some(listener)) = (self.listeners.get(&id), self.table.listener(id)) else { return };
        let Some(kernel) = &open.kernel else { return };
        let (group, wanted) = (open.group, left_to_kernel(listener.backlog, here));
        if self.kernel_backlogs.get(&group) != Some(&wanted) {
            // If the call fails, it is tried again next time.
            let uid = listener.application.uid;
            match self.calls.call(uid, kernel, move |fd| kernel::set_backlog(fd, wanted)) {
                Ok(_) => drop(self.kernel_backlogs.insert(group, wanted)),
                Err(_) => drop(self.kernel_backlogs.remove(&group)),
            }
        }
    }

    /// Gives a listening socket of a user another backlog. Returns what the kernel makes of it.
    pub(in crate::sockets) fn give_backlog(&self, uid: u32, listening: &OwnedFd, backlog: u32) -> u32 {
        let given = self.calls.call(uid, listening, move |fd| kernel::set_backlog(fd, backlog));
        given.unwrap_or(backlog.min(limits::MOST_BACKLOG))
    }

    /// Changes the backlog, because the program has called `listen` again.
    pub(in crate::sockets) fn change_backlog(&mut self, id: ListenerId, backlog: u32) {
        let (Some(open), Some(listener)) = (self.listeners.get(&id), self.table.listener(id)) else { return };
        let uid = listener.application.uid;
        let backlog = match &open.kernel {
            Some(kernel) => self.give_backlog(uid, kernel, backlog),
            None => backlog.min(limits::MOST_BACKLOG),
        };
        let group = open.group;
        self.kernel_backlogs.insert(group, backlog);
        for member in self.group(id) {
            self.table.set_backlog(member, backlog);
            if let Some(open) = self.listeners.get(&member) {
                // If this fails the pair works as well, with later wake-ups.
                let _ = size_pair(&open.pair, self.message_size, backlog);
            }
        }
        self.watch(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_wait_here_and_in_the_kernel_as_the_kernel_allows() {
        for backlog in (1..600).chain([4095, 4096, 60_000]) {
            for here in 0..=most_here(backlog) {
                let both = here + left_to_kernel(backlog, here) + 1;
                assert!(both <= backlog + 1, "{backlog}: {here} here, and {both} in all");
                assert!(both == backlog + 1 || !is_tight(backlog, here), "{backlog}: {here} here");
            }
        }
    }

    #[test]
    fn a_message_that_is_being_received_is_not_counted() {
        const MESSAGE: u32 = 768;
        for count in 0..300 {
            let several_receive = [0, 1, 2, 8];
            assert!(several_receive.iter().all(|bytes| messages(count * MESSAGE + bytes, MESSAGE) == count));
        }
        assert_eq!((messages(u32::MAX, 1), messages(1, 1)), (u32::MAX, 1));
    }

    #[test]
    fn the_kernels_backlog_is_zero_only_for_the_smallest_backlogs() {
        assert!((2..600).all(|backlog| left_to_kernel(backlog, most_here(backlog)) > 0));
        assert_eq!((most_here(0), left_to_kernel(0, 1)), (1, 0));
        assert_eq!((most_here(1), left_to_kernel(1, 0), left_to_kernel(1, 1)), (1, 1, 0));
    }
}
