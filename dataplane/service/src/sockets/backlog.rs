//! How many connections wait at a listener: as many as the kernel would let wait, whichever way
//! they come.
//!
//! `listen(n)` lets n + 1 connections wait. Some wait here, in pairs and behind them; the others in
//! the queue of the kernel's listening socket. So:
//!
//! 1. The kernel's socket is given a smaller backlog, for what waits here: both together are never
//!    more than n + 1. It is changed for every connection only if many wait ([`slack`]).
//! 2. The last places are the kernel's. A program whose connection does not fit here is sent there,
//!    and there it waits or fails as with any server: the kernel drops its SYN.
//! 3. Connections come in order: while some wait in the kernel's queue, those that come after them
//!    go there too.
//! 4. Several processes may have listeners of one kernel's socket, which is one queue for the
//!    kernel as well. They are a *group*: they share the backlog, and each is given the next
//!    connection when it has taken the last one.
//!
//! A listener with a backlog of 0 lets two connections wait, and not one: one here, so that its
//! program is woken, and one there.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;
use sietch_socket::kernel::{accept_queue, unreceived};

use super::listeners::Open;
use super::run::Service;
use super::table::ListenerId;
use super::{kernel, limits};

/// How many may wait here: with two places left to the kernel its queue has a backlog that is not
/// 0, with which it would answer each SYN with a cookie.
pub(super) fn most_here(backlog: u32) -> u32 {
    backlog.saturating_sub(1).clamp(1, limits::MOST_BACKLOG)
}

/// How many may wait here without a change of the kernel's backlog: an eighth, so that a burst of
/// clients of the kernel still finds nearly all of it.
fn slack(backlog: u32) -> u32 {
    if backlog < 4 { 0 } else { (backlog / 8).max(1) }
}

/// The backlog that the kernel's socket is to have while so many wait here.
fn left_to_kernel(backlog: u32, here: u32) -> u32 {
    backlog.saturating_sub(here.max(slack(backlog)))
}

/// Whether so many wait here that each that is accepted counts.
pub(super) fn is_tight(backlog: u32, here: u32) -> bool {
    here > slack(backlog)
}

/// How many messages so much of the kernel's memory is. The kernel tells that there is room while
/// it still counts a byte of the message that was just received (`sock_wfree`): who is woken by
/// that and looks at once must not take the byte for a message, because nothing tells of it again.
fn messages(unreceived: u32, message: u32) -> u32 {
    unreceived.saturating_add(message / 2) / message
}

/// Has the service woken for each arrival that is taken from a pair if few may wait, else when
/// three quarters of it are free.
pub(super) fn size_pair(pair: &OwnedFd, message: u32, backlog: u32) -> rustix::io::Result<()> {
    // The kernel doubles it. What it calls writable is a quarter of that.
    let whole = (message * limits::IN_PAIR) as usize / 2;
    let bytes = if backlog <= limits::IN_PAIR { 4 * whole } else { whole };
    sockopt::set_socket_send_buffer_size(pair, bytes)
}

impl Service {
    /// Listeners of the same kernel's socket, this one first.
    pub(super) fn group(&self, id: ListenerId) -> Vec<ListenerId> {
        let own = self.open.get(&id).map(|open| open.group);
        let mates = self.table.of_same_name(id).filter(|&other| {
            other == id || own.is_some_and(|own| self.open.get(&other).is_some_and(|open| open.group == own))
        });
        let mut group: Vec<_> = mates.collect();
        if let Some(at) = group.iter().position(|&other| other == id) {
            group.rotate_left(at);
        }
        group
    }

    /// Arrivals that lie in a listener's pair.
    pub(super) fn in_pair(&self, open: &Open) -> u32 {
        messages(unreceived(&open.pair).unwrap_or(0), self.message_size)
    }

    /// Connections that wait at these listeners and not in the kernel's queue.
    pub(super) fn waiting_here(&self, group: &[ListenerId]) -> u32 {
        let opens = group.iter().filter_map(|id| self.open.get(id));
        opens.map(|open| self.in_pair(open) + open.waiting.len() as u32).sum()
    }

    /// Whether one more connection may wait here. If the kernel's queue is not empty, what is in it
    /// comes first.
    pub(super) fn has_room(&mut self, id: ListenerId) -> bool {
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

    /// Whether a connection waits in the kernel's queue. This question takes no lock.
    pub(super) fn waits_in_kernel(&self, id: ListenerId) -> bool {
        let Some(kernel) = self.open.get(&id).and_then(|open| open.kernel.as_ref()) else { return false };
        let mut entry = [PollFd::new(kernel, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut entry, Some(&now)).is_ok() && entry[0].revents().contains(PollFlags::IN)
    }

    /// Connections in the kernel's queue, which is not empty. One if that cannot be asked: `accept`
    /// finds out why.
    pub(super) fn in_kernel(&self, id: ListenerId) -> u32 {
        let kernel = self.open.get(&id).and_then(|open| open.kernel.as_ref());
        let Some((kernel, listener)) = kernel.zip(self.table.listener(id)) else { return 0 };
        let length = |fd: BorrowedFd<'_>| accept_queue(fd).ok().flatten().map_or(0, |queue| queue.length);
        self.expendable.ask(listener.application.uid, kernel, length).unwrap_or(1)
    }

    /// Gives the kernel's socket the backlog that it is to have if so many wait here.
    pub(super) fn leave_to_kernel(&mut self, id: ListenerId, here: u32) {
        let (Some(open), Some(listener)) = (self.open.get(&id), self.table.listener(id)) else { return };
        let Some(kernel) = &open.kernel else { return };
        let (group, wanted) = (open.group, left_to_kernel(listener.backlog, here));
        if self.left.get(&group) != Some(&wanted) {
            // Where it could not be said it is tried again.
            let uid = listener.application.uid;
            match self.expendable.ask(uid, kernel, move |fd| kernel::set_backlog(fd, wanted)) {
                Ok(_) => drop(self.left.insert(group, wanted)),
                Err(_) => drop(self.left.remove(&group)),
            }
        }
    }

    /// Gives a listening socket of a user another backlog; what the kernel makes of it.
    pub(super) fn give_backlog(&self, uid: u32, listening: &OwnedFd, backlog: u32) -> u32 {
        let given = self.expendable.ask(uid, listening, move |fd| kernel::set_backlog(fd, backlog));
        given.unwrap_or(backlog.min(limits::MOST_BACKLOG))
    }

    /// The program has called `listen` again.
    pub(super) fn change_backlog(&mut self, id: ListenerId, backlog: u32) {
        let (Some(open), Some(listener)) = (self.open.get(&id), self.table.listener(id)) else { return };
        let uid = listener.application.uid;
        let backlog = match &open.kernel {
            Some(kernel) => self.give_backlog(uid, kernel, backlog),
            None => backlog.min(limits::MOST_BACKLOG),
        };
        let group = open.group;
        self.left.insert(group, backlog);
        for mate in self.group(id) {
            self.table.set_backlog(mate, backlog);
            if let Some(open) = self.open.get(&mate) {
                // With what it has it works as well, and waits longer.
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
    fn here_and_in_the_kernel_as_many_wait_as_the_kernel_lets_wait() {
        for backlog in (1..600).chain([4095, 4096, 60_000]) {
            for here in 0..=most_here(backlog) {
                let both = here + left_to_kernel(backlog, here) + 1;
                assert!(both <= backlog + 1, "{backlog}: {here} here, and {both} in all");
                assert!(both == backlog + 1 || !is_tight(backlog, here), "{backlog}: {here} here");
            }
        }
    }

    #[test]
    fn a_message_that_is_being_received_does_not_count() {
        const MESSAGE: u32 = 768;
        for count in 0..300 {
            let several_receive = [0, 1, 2, 8];
            assert!(several_receive.iter().all(|bytes| messages(count * MESSAGE + bytes, MESSAGE) == count));
        }
        assert_eq!((messages(u32::MAX, 1), messages(1, 1)), (u32::MAX, 1));
    }

    #[test]
    fn the_kernel_is_not_left_with_a_backlog_of_nothing_unless_the_program_said_next_to_nothing() {
        assert!((2..600).all(|backlog| left_to_kernel(backlog, most_here(backlog)) > 0));
        assert_eq!((most_here(0), left_to_kernel(0, 1)), (1, 0));
        assert_eq!((most_here(1), left_to_kernel(1, 0), left_to_kernel(1, 1)), (1, 1, 0));
    }
}
