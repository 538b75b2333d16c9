//! A channel over the memory of a connection ([`sietch_ring::stream`]) and a pair of placeholders.
//!
//! The service is one end of the stream, the application is the other, as if two applications had
//! connected to one another: same memory, same doorbells, same rules against what the other writes.
//! Whatever ends the service, the application gets a reset for it: its peer is gone.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, sockopt};
use rustix::thread::sched_getcpu;
use sietch_protocol::socket_service::Name;
use sietch_ring::Untrusted;
use sietch_ring::stream::{
    Endpoint, Hangup, Memory, Names, OPTIONS_OFFSET, RegionSizes, STATE_OFFSET, Want, flag, option,
    refused_pages, set_served, state, waiters::NotifiedSleeps,
};

use super::channel::{Channel, Departure, Wanted};
use super::settings::Settings;

/// More bytes than lie in a doorbell unless somebody writes them for fun; the rest is taken when it
/// rings again.
const RINGS: usize = 256;
/// What a doorbell consists of. Any other byte is data of a program that went past its library
/// (io_uring, a system call in assembly): nobody would read it.
const BELL: u8 = 0;
/// Times that so much is looked through when an application has left. No library rings more often
/// than that unheard.
const LAST_LOOKS: usize = 64;

/// See the module.
#[derive(Debug)]
pub struct Link {
    end: Endpoint,
    placeholder: OwnedFd,
    common: OwnedFd,
    /// The application's private page.
    page: OwnedFd,
    /// Bytes, or an end, were given to the application since it was rung.
    gave: bool,
    /// Bytes of it were taken.
    took: bool,
    departed: bool,
    /// Something else than doorbells lay in the placeholder.
    bypassed: bool,
    /// It was last armed among many.
    among_many: bool,
    /// Announcements of other options that were heard.
    news: u32,
    six: bool,
}

/// What an application is handed, and how it is known again.
#[derive(Debug)]
pub struct Handout {
    /// Its placeholder.
    pub placeholder: OwnedFd,
    /// The number of the placeholder.
    pub cookie: u64,
}

/// Both ends of a connection that was just made.
#[derive(Debug)]
pub struct Made {
    /// The service's.
    pub link: Link,
    /// The application's, to be handed over with [`Link::memory`].
    pub handout: Handout,
}

/// The two names as they lie in a private page.
pub fn names(local: SocketAddr, peer: SocketAddr) -> Names {
    let (local, peer) = (Name::from(local), Name::from(peer));
    Names { local: local.bytes, peer: peer.bytes, local_length: local.length, peer_length: peer.length }
}

impl Link {
    /// Memory and placeholders for a connection of an application at `local` with the peer
    /// `remote`. With `connecting` it is end 0 and not there yet; else it is end 1, which accepts.
    ///
    /// # Errors
    /// No memory or descriptors.
    pub fn make(
        geometry: RegionSizes,
        local: SocketAddr,
        remote: SocketAddr,
        connecting: bool,
    ) -> io::Result<Made> {
        let (own, other) = (names(local, remote), names(remote, local));
        let memory = Memory::create(geometry, if connecting { [own, other] } else { [other, own] })?;
        let [zero, one] = memory.private;
        let (page, service) = if connecting { (zero, one) } else { (one, zero) };
        set_served(&page)?;
        let (placeholder, given) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // What came with a byte would be closed by the thread of a VNIC. Before Linux 6.16 it may
        // come.
        let _ = sietch_socket::kernel::refuse_descriptors(&placeholder);
        // The application can make holes in the common memory, and must not end this process with
        // them.
        refused_pages::install_handler();
        let end = Endpoint::attach(memory.common.as_fd(), service.as_fd()).map_err(io::Error::other)?;
        // Until both sides have ended in peace, the end of this process is a reset.
        end.abort_on_close(true);
        let cookie = sockopt::socket_cookie(&given)?;
        let link = Self {
            end,
            placeholder,
            common: memory.common,
            page,
            gave: false,
            took: false,
            departed: false,
            bypassed: false,
            among_many: false,
            news: 0,
            six: !remote.ip().to_canonical().is_ipv4(),
        };
        if connecting {
            link.write_state(state::CONNECTING, 0)?;
        }
        Ok(Made { link, handout: Handout { placeholder: given, cookie } })
    }

    /// The common memory and the application's page.
    pub fn memory(&self) -> [BorrowedFd<'_>; 2] {
        [self.common.as_fd(), self.page.as_fd()]
    }

    /// Bytes of memory that the connection takes so far.
    pub fn bytes_used(&self) -> u64 {
        let blocks =
            |fd: &OwnedFd| rustix::fs::fstat(fd).map_or(0, |stat| stat.st_blocks.unsigned_abs() * 512);
        blocks(&self.common) + 2 * blocks(&self.page)
    }

    /// What becomes readable when the application rings, and hangs up when it is gone.
    pub fn doorbell(&self) -> BorrowedFd<'_> {
        self.placeholder.as_fd()
    }

    fn write_state(&self, state: u32, error: u32) -> io::Result<()> {
        let mut words = [0; 8];
        words[..4].copy_from_slice(&state.to_ne_bytes());
        words[4..].copy_from_slice(&error.to_ne_bytes());
        rustix::io::pwrite(&self.page, &words, STATE_OFFSET as u64)?;
        Ok(())
    }

    /// Takes what lies in the placeholder, and judges it. Whether anything did.
    fn take_rings(&mut self) -> bool {
        let mut bytes = [0_u8; RINGS];
        let taken = match recv(&self.placeholder, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((taken, _)) => bytes.get(..taken).unwrap_or_default(),
            Err(_) => return false,
        };
        self.bypassed |= taken.iter().any(|byte| *byte != BELL);
        !taken.is_empty()
    }

    /// Writes a byte to the application's doorbell. Whether it is there.
    fn wake(&self) -> bool {
        // Full means that enough lie there; gone is noticed by its hang-up.
        send(&self.placeholder, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL).is_ok()
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.placeholder.as_fd()
    }
}

impl Channel for Link {
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

    fn has_settings(&self) -> bool {
        self.end.option_changes() != self.news
    }

    fn take_settings(&mut self) -> Option<Settings> {
        let news = self.end.option_changes();
        if news == self.news {
            return None;
        }
        self.news = news;
        let mut bytes = [0; option::COUNT * 8];
        let read = rustix::io::pread(&self.page, &mut bytes, OPTIONS_OFFSET as u64).ok()?;
        let mut words = [0; option::COUNT];
        for (word, bytes) in words.iter_mut().zip(bytes.get(..read)?.chunks_exact(8)) {
            *word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        }
        let settings = Settings::of(&words, self.six);
        if let Some(bytes) = settings.receive_buffer {
            self.end.private().send_limit.store(bytes.ilog2(), Ordering::Relaxed);
        }
        Some(settings)
    }

    fn is_broken(&self) -> bool {
        self.bypassed
            || !self.departed && (self.end.private().has(flag::RESET) || self.end.is_reset_by_peer())
    }

    fn deliver(&mut self, bytes: &[u8]) -> usize {
        let Some(mut send) = self.end.send() else { return 0 };
        let given = send.write(bytes);
        if given > 0 {
            self.gave = true;
            // An application on the same processor gives it away sooner.
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

    fn ring(&mut self, rung: &mut NotifiedSleeps) {
        let gave = std::mem::take(&mut self.gave);
        let took = std::mem::take(&mut self.took);
        let data = gave.then(|| self.end.data_notification_unless(|sleep| rung.has(sleep)));
        let room = took.then(|| self.end.room_notification());
        let due = data.into_iter().chain(room).filter(|due| due.is_needed());
        if due.clone().next().is_some() && self.wake() {
            for due in due {
                self.end.mark_notified(due);
                rung.note(due.sleep());
            }
        }
    }

    fn arm(&mut self, wanted: Wanted) {
        if wanted.data {
            self.end.arm(Want::Data);
        }
        if wanted.room {
            self.end.arm(Want::Room);
        }
    }

    fn arm_among_many(&mut self, wanted: Wanted, sleep: u64) {
        if wanted.data && self.end.arm_among_many(sleep).is_some() {
            self.among_many = true;
            fence(Ordering::SeqCst);
            self.arm(Wanted { data: false, ..wanted });
        } else {
            self.arm(wanted);
        }
    }

    fn disarm(&mut self, wanted: Wanted) {
        if wanted.data && std::mem::take(&mut self.among_many) {
            self.end.disarm_among_many();
            // The application may have taken it for armed and not rung: whoever disarms looks
            // again.
            fence(Ordering::SeqCst);
        } else if wanted.data {
            self.end.disarm(Want::Data);
        }
        if wanted.room {
            self.end.disarm(Want::Room);
        }
    }

    fn answer(&mut self) {
        self.take_rings();
    }

    fn departed(&mut self) -> Departure {
        self.departed = true;
        // What it wrote to the placeholder just before is judged as well.
        let judged = (0..LAST_LOOKS).any(|_| !self.take_rings() || self.bypassed);
        self.bypassed |= !judged;
        match self.end.hung_up() {
            Hangup::Finished if !self.bypassed => Departure::Finished,
            Hangup::Finished | Hangup::Reset => Departure::Reset,
        }
    }

    fn establish(&mut self) {
        // A memfd of ours that is as long as it was.
        let _ = self.write_state(state::ESTABLISHED, 0);
        let _ = self.wake();
    }

    fn fail(&mut self, error: Errno) {
        let _ = self.write_state(state::FAILED, error.raw_os_error().unsigned_abs());
        let _ = self.wake();
    }

    fn break_off(&mut self, error: Errno) {
        if error != Errno::CONNRESET {
            let _ = self.write_state(state::ESTABLISHED, error.raw_os_error().unsigned_abs());
        }
        self.end.abort_on_close(true);
    }
}

#[cfg(test)]
mod tests;
