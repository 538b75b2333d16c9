//! A channel over the memory of a connection ([`sietch_ring::stream`]) and a pair of placeholders.
//!
//! The service is one end of the stream, and the application the other, as if two applications had
//! connected to each other. It has the same memory, the same doorbells, and the same validation of
//! what the other writes. When the service ends, in any way, the application gets a reset, because
//! its peer has ended.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};

use rustix::io::Errno;
use rustix::net::{SendFlags, SocketFlags, send, sockopt};
use rustix::thread::sched_getcpu;
use sietch_protocol::closer::PeerSocket;
use sietch_protocol::closer::limits::UNCLOSED;
use sietch_ring::stream::{
    Endpoint, Hangup, Memory, Notification, OPTIONS_OFFSET, RegionSizes, STATE_OFFSET, Want, flag, option,
    refused_pages, set_served, state, waiters::NotifiedSleeps,
};
use sietch_ring::{Untrusted, socket_pair};
use sietch_socket::kernel::is_hung_up;

use super::channel::{Channel, WakeOn};
use super::socket_options::{Family, SocketOptions};
use crate::requests::application::page_names;

/// Bytes that are read from a doorbell at once. A library never leaves more; what is left reports
/// another event.
const NOTIFICATIONS: usize = 256;
/// The only byte of a notification. Any other byte is data of a program that bypassed its library
/// (io_uring, a system call in assembly), which would never be read.
const NOTIFICATION: u8 = 0;
/// Reads of the doorbell after an application has closed. No library leaves more notifications
/// unread.
const LAST_READS: usize = 64;

/// The service's end of a connection with an application.
#[derive(Debug)]
pub(super) struct StreamChannel {
    end: Endpoint,
    placeholder: PeerSocket,
    common: OwnedFd,
    /// The application's private page.
    page: OwnedFd,
    /// Bytes, or the end, were given to the application since its last notification.
    gave: bool,
    /// Bytes were taken from the application since then.
    took: bool,
    /// The last holder of the application's end has closed it.
    hung_up: bool,
    /// The placeholder had bytes that are no notifications.
    bypassed: bool,
    /// It was last armed with [`Channel::arm_among_many`].
    among_many: bool,
    /// The number of the last change of socket options that was read.
    options_read: u32,
    family: Family,
}

/// The application's end of a connection.
#[derive(Debug)]
pub(super) struct ApplicationEnd {
    /// The placeholder.
    pub placeholder: OwnedFd,
    /// The cookie of the placeholder.
    pub cookie: u64,
}

/// How a connection begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opening {
    /// The application connects: it is end 0, and its connection is not yet established.
    Connecting,
    /// The application accepts: it is end 1.
    Accepted,
}

/// Both ends of a new connection.
#[derive(Debug)]
pub(super) struct ChannelPair {
    /// The service's end.
    pub channel: StreamChannel,
    /// The application's end, which goes to it with [`StreamChannel::memory`].
    pub application_end: ApplicationEnd,
}

impl StreamChannel {
    /// Makes memory and placeholders for a connection of an application of `uid` at `local` with
    /// the peer `remote`.
    ///
    /// # Errors
    /// No memory or descriptors. `EMFILE` too: placeholders of the user wait to be closed, each of
    /// which keeps a descriptor here.
    pub(super) fn make(
        region_sizes: RegionSizes,
        local: SocketAddr,
        remote: SocketAddr,
        (opening, uid): (Opening, u32),
    ) -> io::Result<ChannelPair> {
        if PeerSocket::waiting_of(uid) >= UNCLOSED {
            return Err(Errno::MFILE.into());
        }
        let connecting = opening == Opening::Connecting;
        let (own, other) = (page_names(local, remote), page_names(remote, local));
        let memory = Memory::create(region_sizes, if connecting { [own, other] } else { [other, own] })?;
        let [zero, one] = memory.private;
        let (page, service) = if connecting { (zero, one) } else { (one, zero) };
        set_served(&page)?;
        let (placeholder, given) = socket_pair::pair(SocketFlags::empty())?;
        // The application can punch holes in the common memory; they must not end this process.
        refused_pages::install_handler();
        let refuses = socket_pair::refuses_descriptors(&placeholder);
        let placeholder = PeerSocket::new(placeholder, refuses, uid);
        let end = Endpoint::attach(memory.common.as_fd(), service.as_fd()).map_err(io::Error::other)?;
        // Until both sides have closed properly, the end of this process is a reset.
        end.abort_on_close(true);
        let cookie = sockopt::socket_cookie(&given)?;
        let channel = Self {
            end,
            placeholder,
            common: memory.common,
            page,
            gave: false,
            took: false,
            hung_up: false,
            bypassed: false,
            among_many: false,
            options_read: 0,
            family: if remote.ip().to_canonical().is_ipv4() { Family::Ipv4 } else { Family::Ipv6 },
        };
        if connecting {
            channel.write_state(state::CONNECTING, 0)?;
        }
        Ok(ChannelPair { channel, application_end: ApplicationEnd { placeholder: given, cookie } })
    }

    /// Returns the common memory and the application's page.
    pub(super) fn memory(&self) -> [BorrowedFd<'_>; 2] {
        [self.common.as_fd(), self.page.as_fd()]
    }

    /// Returns the bytes of memory that the connection has touched.
    pub(super) fn bytes_used(&self) -> u64 {
        let blocks =
            |fd: &OwnedFd| rustix::fs::fstat(fd).map_or(0, |stat| stat.st_blocks.unsigned_abs() * 512);
        blocks(&self.common) + 2 * blocks(&self.page)
    }

    /// Returns the descriptor that becomes readable when the application notifies, and hangs up
    /// when the application closes.
    pub(super) fn doorbell(&self) -> BorrowedFd<'_> {
        self.placeholder.as_fd()
    }

    fn write_state(&self, state: u32, error: u32) -> io::Result<()> {
        let mut words = [0; 8];
        words[..4].copy_from_slice(&state.to_ne_bytes());
        words[4..].copy_from_slice(&error.to_ne_bytes());
        rustix::io::pwrite(&self.page, &words, STATE_OFFSET as u64)?;
        Ok(())
    }

    /// Reads what is queued in the placeholder, and checks it. Returns whether there was anything.
    ///
    /// The end of the stream without a hang-up is `shutdown(2)` past the library, which no library
    /// calls for writing. It would be reported in every poll, so it breaks the connection.
    fn take_notifications(&mut self) -> bool {
        let mut bytes = [0_u8; NOTIFICATIONS];
        let taken = match self.placeholder.take(&mut bytes) {
            Ok(0) => {
                self.bypassed |= !is_hung_up(&self.placeholder);
                return false;
            }
            Ok(taken) => bytes.get(..taken).unwrap_or_default(),
            // Descriptors came with it: nothing that a library sends.
            Err(Errno::PROTO) => {
                self.bypassed = true;
                return false;
            }
            Err(_) => return false,
        };
        self.bypassed |= taken.iter().any(|byte| *byte != NOTIFICATION);
        !taken.is_empty()
    }

    /// Writes a byte to the application's doorbell. Returns whether it was queued.
    fn wake(&self) -> bool {
        // If the socket is full, enough notifications are queued; if it is closed, it hangs up.
        send(&self.placeholder, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL).is_ok()
    }
}

impl Channel for StreamChannel {
    fn drain(&mut self, limit: usize, mut take: impl FnMut(Untrusted<'_>) -> usize) -> usize {
        let Some(mut receive) = self.end.receive() else { return 0 };
        let mut total = 0;
        while total < limit {
            let (mut taken, mut offered) = (0, 0);
            for piece in receive.pieces() {
                let piece = piece.take(limit - total - offered);
                if piece.is_empty() || taken < offered {
                    continue;
                }
                offered += piece.len();
                taken += take(piece).min(piece.len());
            }
            receive.consume(taken);
            total += taken;
            if taken < offered || offered == 0 {
                break;
            }
        }
        self.took |= total > 0;
        total
    }

    fn has_sent(&self) -> bool {
        self.end.readable() > 0
    }

    fn has_ended(&self) -> bool {
        self.end.finished_by_peer() && self.end.readable() == 0
    }

    fn has_new_socket_options(&self) -> bool {
        self.end.option_changes() != self.options_read
    }

    fn take_socket_options(&mut self) -> Option<SocketOptions> {
        let changes = self.end.option_changes();
        if changes == self.options_read {
            return None;
        }
        self.options_read = changes;
        let mut bytes = [0; option::COUNT * 8];
        let read = rustix::io::pread(&self.page, &mut bytes, OPTIONS_OFFSET as u64).ok()?;
        let mut words = [0; option::COUNT];
        for (word, bytes) in words.iter_mut().zip(bytes.get(..read)?.chunks_exact(8)) {
            *word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        }
        let socket_options = SocketOptions::of(&words, self.family);
        if let Some(bytes) = socket_options.receive_buffer {
            self.end.private().send_limit.store(bytes.ilog2(), Ordering::Relaxed);
        }
        Some(socket_options)
    }

    fn is_broken(&self) -> bool {
        self.bypassed || !self.hung_up && (self.end.private().has(flag::RESET) || self.end.is_reset_by_peer())
    }

    fn deliver(&mut self, bytes: &[u8]) -> usize {
        let Some(mut send) = self.end.send() else { return 0 };
        let given = send.write(bytes);
        if given > 0 {
            self.gave = true;
            // An application on the same processor yields it sooner.
            self.end.set_cpu(sched_getcpu() as u32);
        }
        given
    }

    fn has_room(&self) -> bool {
        self.end.is_writable()
    }

    fn finish(&mut self) {
        self.end.finish();
        self.gave = true;
    }

    fn notify(&mut self, notified: &mut NotifiedSleeps) {
        let gave = std::mem::take(&mut self.gave);
        let took = std::mem::take(&mut self.took);
        let data = gave.then(|| self.end.data_notification_unless(|sleep| notified.has(sleep)));
        let room = took.then(|| self.end.room_notification());
        let due = [data, room].map(|due| due.unwrap_or(Notification::NONE));
        if self.end.notify_with(due, || self.wake()) {
            for due in due.iter().filter(|due| due.is_needed()) {
                notified.note(due.sleep());
            }
        }
    }

    fn arm(&mut self, wake_on: WakeOn) {
        if wake_on.data {
            self.end.arm(Want::Data);
        }
        if wake_on.room {
            self.end.arm(Want::Room);
        }
    }

    fn arm_among_many(&mut self, wake_on: WakeOn, sleep: u64) {
        if wake_on.data && self.end.arm_among_many(sleep).is_some() {
            self.among_many = true;
            fence(Ordering::SeqCst);
            self.arm(WakeOn { data: false, ..wake_on });
        } else {
            self.arm(wake_on);
        }
    }

    fn disarm(&mut self, wake_on: WakeOn) {
        if wake_on.data && std::mem::take(&mut self.among_many) {
            self.end.disarm_among_many();
            // The application may have seen the channel armed and skipped its notification, so a
            // caller that disarms checks again.
            fence(Ordering::SeqCst);
        } else if wake_on.data {
            self.end.disarm(Want::Data);
        }
        if wake_on.room {
            self.end.disarm(Want::Room);
        }
    }

    fn clear_notification(&mut self) {
        self.take_notifications();
    }

    fn hung_up(&mut self) -> Hangup {
        self.hung_up = true;
        // What it wrote to the placeholder just before is checked as well.
        let checked = (0..LAST_READS).any(|_| !self.take_notifications() || self.bypassed);
        self.bypassed |= !checked;
        match self.end.hung_up() {
            Hangup::Finished if !self.bypassed => Hangup::Finished,
            Hangup::Finished | Hangup::Reset => Hangup::Reset,
        }
    }

    fn establish(&mut self) {
        // It cannot fail: the memfd is sealed against shrinking.
        let _ = self.write_state(state::ESTABLISHED, 0);
        let _ = self.wake();
    }

    fn fail(&mut self, error: Errno) {
        let _ = self.write_state(state::FAILED, error.raw_os_error().unsigned_abs());
        let _ = self.wake();
    }

    fn abort_with(&mut self, error: Errno) {
        if error != Errno::CONNRESET {
            let _ = self.write_state(state::ESTABLISHED, error.raw_os_error().unsigned_abs());
        }
        self.end.abort_on_close(true);
    }
}

#[cfg(test)]
mod tests;
