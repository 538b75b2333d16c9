//! The shared memory, mapped and found sound, with the two rings in it and one side's end of the
//! doorbell.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use sietch_protocol::closer::PeerSocket;
use sietch_ring::{MappedRing, Mapping, RingLayout, Untrusted, need_wakeup};

use super::grant::{BrokerFds, peer_socket};
use super::layout::{
    APPLICATION_NEED_WAKEUP, BROKER_NEED_WAKEUP, BrokerLayout, COMPLETION_CONSUMER, COMPLETION_PRODUCER,
    Completed, HEADER, SUBMISSION_CONSUMER, SUBMISSION_PRODUCER, SUBMISSIONS, Submission,
};
use crate::OpenError;

/// Whose end it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Application,
    /// The user of the application.
    Host(u32),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Region {
    mapping: Arc<Mapping>,
    data_start: usize,
    data: usize,
    doorbell: PeerSocket,
    /// Our own word, and the other side's.
    own: usize,
    peer: usize,
    armed: bool,
    /// The other side has hung up.
    hung_up: bool,
}

/// The rings of a region.
pub(super) struct Rings {
    pub submissions: MappedRing<Submission>,
    pub completions: MappedRing<Completed>,
}

fn unsound(cause: impl Into<String>) -> OpenError {
    OpenError::Broker { cause: cause.into() }
}

impl Region {
    /// Maps what was granted.
    pub(super) fn open(fds: BrokerFds, layout: BrokerLayout, side: Side) -> Result<(Self, Rings), OpenError> {
        let (own, peer, uid) = match side {
            // A service core is one party.
            Side::Application => (APPLICATION_NEED_WAKEUP, BROKER_NEED_WAKEUP, u32::MAX),
            Side::Host(uid) => (BROKER_NEED_WAKEUP, APPLICATION_NEED_WAKEUP, uid),
        };
        let BrokerFds { memory, doorbell } = fds;
        // First: the error of another step drops it.
        let doorbell = peer_socket(doorbell, uid);
        if !layout.is_valid() {
            return Err(unsound("its numbers are out of bounds"));
        }
        let seals = fcntl_get_seals(&memory).map_err(|_| OpenError::Unsealed)?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(OpenError::Unsealed);
        }
        let stat = fstat(&memory).map_err(|e| crate::file::io("read the size of the shared memory", e))?;
        if u64::try_from(stat.st_size).unwrap_or(0) != layout.bytes() as u64 {
            return Err(unsound("it has another size than was said"));
        }
        let mapping = Mapping::of_file(&memory, 0, layout.bytes())
            .map_err(|source| OpenError::Io { action: "map the shared memory", source })?;
        let mapping = Arc::new(mapping);
        let ring = |producer, consumer, flags, slots| RingLayout {
            producer,
            consumer,
            flags,
            slots,
            capacity: layout.slots,
        };
        let submissions = ring(SUBMISSION_PRODUCER, SUBMISSION_CONSUMER, BROKER_NEED_WAKEUP, SUBMISSIONS);
        let completions =
            ring(COMPLETION_PRODUCER, COMPLETION_CONSUMER, APPLICATION_NEED_WAKEUP, layout.completions());
        // SAFETY: the mapping is new; one producer and one consumer are made of the two rings, and
        // their words and slots are used through them alone.
        let rings = unsafe {
            (
                MappedRing::new(Arc::clone(&mapping), submissions),
                MappedRing::new(Arc::clone(&mapping), completions),
            )
        };
        let (Ok(submissions), Ok(completions)) = rings else { return Err(unsound("its rings do not fit")) };
        let region = Self {
            mapping,
            data_start: layout.data_start(),
            data: layout.data as usize,
            doorbell,
            own,
            peer,
            armed: false,
            hung_up: false,
        };
        let mut header = [0; HEADER];
        region.copy_out(0, &mut header);
        let expected = layout.header(0);
        if header[..24] != expected[..24] {
            return Err(unsound("its header is of another version or shape"));
        }
        Ok((region, Rings { submissions, completions }))
    }

    fn copy_out(&self, at: usize, out: &mut [u8]) {
        assert!(
            at <= self.mapping.len() && out.len() <= self.mapping.len() - at,
            "outside the shared memory"
        );
        // SAFETY: inside the mapping (asserted), which outlives the slice. The other side may write
        // these bytes meanwhile; in this process no reference to them exists.
        unsafe { Untrusted::from_raw(self.mapping.as_ptr().add(at), out.len()) }.copy_to(0, out);
    }

    /// Whether `length` bytes at `data` are in the data region.
    pub(super) fn holds(&self, data: u32, length: usize) -> bool {
        length <= self.data && data as usize <= self.data - length
    }

    /// Copies bytes out of the data region. `false`, and nothing is done, if they are not in it.
    #[must_use = "false means that nothing was copied"]
    pub(super) fn read(&self, data: u32, out: &mut [u8]) -> bool {
        let inside = self.holds(data, out.len());
        if inside {
            self.copy_out(self.data_start + data as usize, out);
        }
        inside
    }

    /// Copies `bytes` into the data region. `false`, and nothing is done, if they do not fit there.
    #[must_use = "false means that nothing was copied"]
    pub(super) fn write(&self, data: u32, bytes: &[u8]) -> bool {
        if !self.holds(data, bytes.len()) {
            return false;
        }
        // SAFETY: inside the data region (just found), hence inside the mapping, which outlives the
        // borrow. `bytes` is memory of this process, so the two do not overlap. The other side may
        // read or write there meanwhile: no reference to it exists.
        unsafe {
            let to = self.mapping.as_ptr().add(self.data_start + data as usize);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
        true
    }

    fn word(&self, offset: usize) -> Option<&AtomicU32> {
        self.mapping.word(offset)
    }

    /// Requests a notification. The caller polls once more before sleeping.
    pub(super) fn arm(&mut self) {
        self.word(self.own).inspect(|word| need_wakeup::arm(word));
        self.armed = true;
    }

    /// Whether a request for a notification is still unanswered. An answered request is over.
    pub(super) fn is_armed(&mut self) -> bool {
        if self.armed && !self.word(self.own).is_some_and(need_wakeup::is_armed) {
            self.disarm();
        }
        self.armed
    }

    /// Takes the request back, and makes the doorbell unreadable again.
    pub(super) fn disarm(&mut self) {
        if !std::mem::take(&mut self.armed) {
            return;
        }
        self.word(self.own).inspect(|word| need_wakeup::disarm(word));
        self.drain();
    }

    fn drain(&mut self) {
        // One call takes every byte that an honest side can have written.
        match self.doorbell.take(&mut [0_u8; 256]) {
            Ok(0) => self.hung_up = true,
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.hung_up = true,
        }
    }

    /// Wakes the other side if it requested it; says whether it had.
    pub(super) fn notify(&mut self) -> bool {
        if !self.word(self.peer).is_some_and(need_wakeup::claim) {
            return false;
        }
        match send(&self.doorbell, &[1], SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL)) {
            // A full socket is readable already.
            Ok(_) | Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR) => {}
            Err(_) => self.hung_up = true,
        }
        true
    }

    /// Whether the other side was seen to have hung up.
    pub(super) fn is_hung_up(&self) -> bool {
        self.hung_up
    }

    /// Polls the kernel whether the other side has hung up. A system call: not for every request.
    pub(super) fn poll_hang_up(&mut self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut entries = [PollFd::new(&self.doorbell, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        if poll(&mut entries, Some(&now)).is_ok()
            && entries[0].revents().intersects(PollFlags::HUP.union(PollFlags::ERR))
        {
            self.hung_up = true;
        }
        self.hung_up
    }

    /// Sleeps until the doorbell is readable or hangs up, or `timeout` has passed.
    pub(super) fn sleep(&mut self, timeout: std::time::Duration) -> io::Result<()> {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let limit = Timespec::try_from(timeout).ok();
        match poll(&mut [PollFd::new(&self.doorbell, PollFlags::IN)], limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn doorbell(&self) -> std::os::fd::BorrowedFd<'_> {
        use std::os::fd::AsFd as _;
        self.doorbell.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use sietch_protocol::socket_service::send_message;
    use sietch_ring::socket_pair;

    use super::super::{BrokerPair, create_pair};
    use super::*;

    const LAYOUT: BrokerLayout = BrokerLayout::usual(512);

    #[test]
    fn a_doorbell_passes_no_descriptors_in_either_direction() {
        let BrokerPair { application, host } = create_pair(LAYOUT, 1).expect("memory for an area");
        if !socket_pair::refuses_descriptors(&host.doorbell) {
            return eprintln!(
                "SKIPPED a_doorbell_passes_no_descriptors_in_either_direction: needs Linux 6.16, to refuse them"
            );
        }
        for end in [&application.doorbell, &host.doorbell] {
            let sent = send_message(end.as_fd(), &[0], &[end.as_fd()], SendFlags::DONTWAIT);
            assert_eq!(sent, Err(Errno::PERM));
        }
    }

    #[test]
    fn an_application_that_sends_a_descriptor_has_hung_up_and_the_descriptor_is_not_taken() {
        let BrokerPair { host, .. } = create_pair(LAYOUT, 1).expect("memory for an area");
        // As a kernel before 6.16 makes them.
        let (hostile, doorbell) = std::os::unix::net::UnixStream::pair().expect("descriptors");
        let host = BrokerFds { doorbell: doorbell.into(), ..host };
        let (mut region, _) = Region::open(host, LAYOUT, Side::Host(1000)).expect("a fresh grant");
        let (reader, writer) = std::io::pipe().expect("descriptors");
        rustix::io::ioctl_fionbio(&reader, true).expect("a pipe");
        send_message(hostile.as_fd(), &[0], &[writer.as_fd()], SendFlags::DONTWAIT).expect("room");
        drop(writer);
        region.arm();
        region.disarm();
        assert!(region.is_hung_up(), "nothing that an honest application does");
        let is_closed = || rustix::io::read(&reader, &mut [0; 1]) == Ok(0);
        assert!(!is_closed(), "the thread that serves all would have to close it");
        // A thread that may hang closes the doorbell, and with it what is queued there.
        drop(region);
        while !is_closed() {
            std::thread::yield_now();
        }
    }
}
