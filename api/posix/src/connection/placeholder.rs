//! A placeholder by its number, with the system calls that this process may make.
//!
//! The protocol ([`sietch_stream`]) makes its calls through this. A process that is restricted by
//! seccomp makes the oldest calls of their kind ([`crate::system::kernel`]).

use std::ffi::c_int;

use rustix::io::Errno;
use rustix::net::Shutdown;
use sietch_stream::placeholder::{OtherEnd, Placeholder};

use crate::context;
use crate::system::sys::{self, Outcome};
use crate::system::{kernel, processor, seccomp};

/// The number of a placeholder that is open for the time of the call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Number(pub(crate) c_int);

#[inline]
fn result(outcome: Outcome) -> Result<usize, Errno> {
    outcome.map_err(Errno::from_raw_os_error)
}

impl Placeholder for Number {
    #[inline]
    fn number(self) -> i32 {
        self.0
    }

    fn send(self, bytes: &[u8]) -> Result<usize, Errno> {
        result(kernel::send(self.0, bytes, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL))
    }

    fn take(self, out: &mut [u8]) -> Result<usize, Errno> {
        result(kernel::receive(self.0, out, libc::MSG_DONTWAIT))
    }

    fn peek(self, out: &mut [u8]) -> Result<usize, Errno> {
        result(kernel::receive(self.0, out, libc::MSG_PEEK | libc::MSG_DONTWAIT))
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
        if answered == Ok(1) { OtherEnd::of(entry[0].revents) } else { OtherEnd::Open }
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
