//! The system calls that the protocol makes at a placeholder.
//!
//! 1. None of them waits, and none raises SIGPIPE.
//! 2. An implementation may refuse what its process must not do. A process that is restricted by
//!    seccomp cannot read bytes without taking them, cannot count them and cannot yield.

use std::os::fd::{AsRawFd as _, BorrowedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};

/// The other end of a placeholder, as `poll(2)` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherEnd {
    /// Neither of the following.
    Open,
    /// No byte comes any more, and the placeholder has not hung up (`POLLRDHUP` alone): this end
    /// has shut down reading, or a program has called `shutdown` past its library.
    SilentForGood,
    /// No process holds it any more (`POLLHUP`), or both directions are shut down.
    HungUp,
}

impl OtherEnd {
    /// Of `poll(2)`'s events.
    pub const fn of(events: i16) -> Self {
        match events {
            events if events & libc::POLLHUP != 0 => Self::HungUp,
            events if events & libc::POLLRDHUP != 0 => Self::SilentForGood,
            _ => Self::Open,
        }
    }
}

/// A placeholder as the protocol uses it.
pub trait Placeholder: Copy {
    /// Its number: a hint that differs between the placeholders of a process.
    fn number(self) -> i32;

    /// Writes `bytes`.
    ///
    /// # Errors
    /// As `send(2)`: `EAGAIN` if it is full, `EPIPE` if the other end reads no more or is closed.
    fn send(self, bytes: &[u8]) -> Result<usize, Errno>;

    /// Takes bytes; 0 is the end.
    ///
    /// # Errors
    /// As `recv(2)`: `EAGAIN` if there are none.
    fn take(self, out: &mut [u8]) -> Result<usize, Errno>;

    /// As [`Placeholder::take`], and leaves the bytes where they are.
    ///
    /// # Errors
    /// As `recv(2)`.
    fn peek(self, out: &mut [u8]) -> Result<usize, Errno>;

    /// The number of bytes that are there, if the process may ask.
    fn queued(self) -> Option<usize>;

    /// What the kernel says of the other end.
    fn other_end(self) -> OtherEnd;

    /// Shuts one direction or both down.
    fn shut_down(self, how: Shutdown);

    /// Whether this process may neither leave bytes that it reads nor yield its processor.
    fn is_restricted() -> bool;

    /// Yields the processor to another runnable thread. False: it never does that, because the
    /// caller serves others too.
    fn yield_now() -> bool;

    /// Nanoseconds of the monotonic clock.
    fn now() -> u64;

    /// Reports what a user who looks for the cause of an error must know. `errno` is what the
    /// program gets.
    fn report(what: &str, errno: Errno);
}

/// A placeholder of a program that may make any system call.
#[derive(Clone, Copy, Debug)]
pub struct Direct<'a>(pub BorrowedFd<'a>);

impl Placeholder for Direct<'_> {
    fn number(self) -> i32 {
        self.0.as_raw_fd()
    }

    fn send(self, bytes: &[u8]) -> Result<usize, Errno> {
        send(self.0, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
    }

    fn take(self, out: &mut [u8]) -> Result<usize, Errno> {
        recv(self.0, out, RecvFlags::DONTWAIT).map(|(taken, _)| taken)
    }

    fn peek(self, out: &mut [u8]) -> Result<usize, Errno> {
        recv(self.0, out, RecvFlags::DONTWAIT | RecvFlags::PEEK).map(|(seen, _)| seen)
    }

    fn queued(self) -> Option<usize> {
        rustix::io::ioctl_fionread(self.0).ok().and_then(|bytes| usize::try_from(bytes).ok())
    }

    fn other_end(self) -> OtherEnd {
        let mut entry = [PollFd::from_borrowed_fd(self.0, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let answered = poll(&mut entry, Some(&now)) == Ok(1);
        if answered { OtherEnd::of(entry[0].revents().bits().cast_signed()) } else { OtherEnd::Open }
    }

    fn shut_down(self, how: Shutdown) {
        let _ = shutdown(self.0, how);
    }

    fn is_restricted() -> bool {
        false
    }

    /// A peer decides how often this is called. The kernel reports a hang-up to the poller.
    fn yield_now() -> bool {
        false
    }

    fn now() -> u64 {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
    }

    /// The program has the error itself.
    fn report(_: &str, _: Errno) {}
}
