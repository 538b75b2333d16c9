//! Programs that go past the library: io_uring, system calls in assembly, a receiver of a
//! descriptor that is not under Sietch.
//!
//! 1. Such a program reads and writes the placeholder itself. What it writes reaches nobody, and
//!    what it reads are doorbells.
//! 2. Doorbells are zeros ([`crate::sleep`]). Any other byte on a placeholder is data of such a
//!    program: the connection is reset, and the placeholder shut down, so that both programs hear
//!    of it instead of waiting for each other.

use std::ffi::c_int;
use std::sync::atomic::Ordering::Release;

use crate::end::End;
use crate::sys::{self, signed};
use crate::{context, sleep};

/// What a doorbell consists of.
pub const BELL: u8 = 0;

/// Judges what was taken from the placeholder of an end.
#[inline]
pub fn judge(fd: c_int, end: &End, taken: &[u8]) {
    if taken.iter().any(|byte| *byte != BELL) {
        refuse(fd, end);
    }
}

/// Resets the connection, for both programs.
#[cold]
fn refuse(fd: c_int, end: &End) {
    context::say(
        "a program wrote to a connection past the library: the connection is reset",
        libc::ECONNRESET,
    );
    end.reset();
    end.private().error.store(libc::ECONNRESET.cast_unsigned(), Release);
    sleep::ring(fd, end, end.ring_for_data());
    // Whoever is past the library hears it by this alone.
    // SAFETY: touches no memory.
    let _ = unsafe { sys::ask(libc::SYS_shutdown, [signed(fd), signed(libc::SHUT_RDWR), 0, 0, 0, 0]) };
}
