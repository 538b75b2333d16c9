//! A placeholder by its number, with the system calls that this process may make.
//!
//! The protocol ([`sietch_stream`]) makes its calls through this. A process that is restricted by
//! seccomp makes the oldest calls of their kind ([`crate::system::kernel`]).

use std::ffi::c_int;

use rustix::io::Errno;
use rustix::net::Shutdown;
use sietch_ring::stream::Endpoint;
use sietch_stream::placeholder::{OtherEnd, Placeholder};

use crate::context;
use crate::descriptor::{in_flight, table};
use crate::system::sys::{self, Outcome};
use crate::system::{kernel, processor, seccomp};

/// The number of a placeholder, and the end that it is of.
///
/// Another thread may close the number or put another file there while a call uses the end. A byte
/// that went to that file is written again by another number of this placeholder; what is read is
/// that file's, and says nothing about this end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Number<'a>(pub(crate) c_int, pub(crate) &'a Endpoint);

/// How often a byte is written again.
const RETRIES: u32 = 3;

impl Number<'_> {
    /// Whether the number is the placeholder's at this moment: one of the program's, or the spare
    /// one of a call that sleeps.
    fn is_own(self) -> bool {
        table::is_of(self.0, self.1) || in_flight::is_in_flight(self.0)
    }

    /// A call that takes nothing from another file.
    fn if_own(self, call: impl FnOnce() -> Outcome) -> Result<usize, Errno> {
        if self.is_own() { result(call()) } else { Err(Errno::AGAIN) }
    }
}

#[inline]
fn result(outcome: Outcome) -> Result<usize, Errno> {
    outcome.map_err(Errno::from_raw_os_error)
}

impl Placeholder for Number<'_> {
    #[inline]
    fn number(self) -> i32 {
        self.0
    }

    fn send(self, bytes: &[u8]) -> Result<usize, Errno> {
        let mut sent = Err(Errno::AGAIN);
        for _ in 0..RETRIES {
            let before = table::changes();
            let other = if self.is_own() { None } else { table::any_of(self.1) };
            let number = Self(other.unwrap_or(self.0), self.1);
            if !number.is_own() {
                break;
            }
            sent = result(kernel::send(number.0, bytes, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL));
            // It was so all the time, unless it was changed twice.
            if number.is_own() && table::changes().wrapping_sub(before) < 2 {
                break;
            }
        }
        sent
    }

    fn take(self, out: &mut [u8]) -> Result<usize, Errno> {
        self.if_own(|| kernel::receive(self.0, out, libc::MSG_DONTWAIT))
    }

    fn peek(self, out: &mut [u8]) -> Result<usize, Errno> {
        self.if_own(|| kernel::receive(self.0, out, libc::MSG_PEEK | libc::MSG_DONTWAIT))
    }

    fn queued(self) -> Option<usize> {
        let mut count: c_int = 0;
        let to = sys::address_mut(&raw mut count);
        let arguments = [sys::signed(self.0), libc::FIONREAD as usize, to, 0, 0, 0];
        // SAFETY: the kernel writes a number there.
        let asked = unsafe { sys::syscall(libc::SYS_ioctl, arguments) };
        asked.ok().and_then(|_| usize::try_from(count).ok())
    }

    fn other_end(self) -> OtherEnd {
        let mut entry = [libc::pollfd { fd: self.0, events: libc::POLLRDHUP, revents: 0 }];
        let answered = kernel::poll(&mut entry, Some(libc::timespec { tv_sec: 0, tv_nsec: 0 }));
        if answered == Ok(1) && self.is_own() { OtherEnd::of(entry[0].revents) } else { OtherEnd::Open }
    }

    fn shut_down(self, how: Shutdown) {
        let how = match how {
            Shutdown::Read => libc::SHUT_RD,
            Shutdown::Write => libc::SHUT_WR,
            Shutdown::Both => libc::SHUT_RDWR,
        };
        let _ = kernel::shutdown(self.0, how);
    }

    #[inline]
    fn is_restricted() -> bool {
        seccomp::is_restricted()
    }

    fn yield_now() -> bool {
        processor::yield_now();
        true
    }

    fn now() -> u64 {
        kernel::now()
    }

    fn report(what: &str, errno: Errno) {
        context::debug_line(what, errno.raw_os_error());
    }
}
