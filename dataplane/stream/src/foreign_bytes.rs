//! Programs that bypass the library: io_uring, system calls in assembly, a receiver of a descriptor
//! that is not under Sietch.
//!
//! 1. Such a program reads and writes the placeholder itself. What it writes reaches no reader, and
//!    what it reads are doorbells.
//! 2. Doorbells are zeros, and the writer of each counts it ([`crate::peer`]). Any other byte on a
//!    placeholder, and more bytes than were counted, come from such a program. The connection is
//!    reset and the placeholder shut down, so that both programs get an error instead of waiting
//!    for each other.
//! 3. A program that shuts such a placeholder down bypasses the library as well
//!    ([`crate::peer::check_peer_closed`]).
//! 4. Bytes are checked when they are taken ([`check`]). Where they still are on the placeholder, a
//!    call that was woken and found nothing checks them ([`examine`]).

use sietch_ring::stream::{Endpoint, flag};

use crate::peer::{self, DOORBELL};
use crate::placeholder::Placeholder;

/// Doorbells that may lie on a placeholder without being counted. Each was counted before the bytes
/// were taken last, and written after, or is of the service that set the connection up. More than a
/// placeholder holds of messages of one byte.
const MAX_UNCOUNTED: usize = 512;

/// Bytes that are examined where they are: more than may be there uncounted.
pub const MAX_EXAMINED: usize = 2 * MAX_UNCOUNTED;

/// With each of the first so many doorbells of a connection the placeholder is examined. A program
/// that writes both with the library and past it does so from the beginning. Later the examination
/// is worth its system call only if nothing else was found.
pub const EXAMINED_DOORBELLS: u32 = 32;

/// The bytes found on a placeholder.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// Bytes of one check or one draining.
    pub all: usize,
    /// [`Endpoint::drained`] from before.
    pub drained: u32,
}

/// Checks bytes that were taken from the placeholder of an end, or that are there. Resets the
/// connection if they are no doorbells.
#[inline]
pub fn check<P: Placeholder>(placeholder: P, end: &Endpoint, bytes: &[u8], found: Found) {
    let counted = end.notified_since(found.drained) as usize;
    // A service core sends further doorbells, and does not count those.
    let surplus = found.all > counted.saturating_add(MAX_UNCOUNTED) && !end.private().has(flag::SERVED);
    if surplus || bytes.iter().any(|byte| *byte != DOORBELL) {
        let why = "a program bypassed the library and wrote to a connection; the connection is reset";
        peer::refuse(placeholder, end, why);
    }
}

/// Checks the bytes that are on a placeholder, and takes none of them.
#[cold]
pub fn examine<P: Placeholder>(placeholder: P, end: &Endpoint) {
    // A restricted process cannot read bytes without taking them.
    if P::is_restricted() || end.private().has(flag::RESET) {
        return;
    }
    // The end of the stream comes behind bytes, which may have to stay.
    if peer::check_peer_closed(placeholder, end) {
        return;
    }
    let drained = end.drained();
    let mut bytes = [0_u8; MAX_EXAMINED];
    let all = placeholder.peek(&mut bytes).unwrap_or(0);
    check(placeholder, end, bytes.get(..all).unwrap_or_default(), Found { all, drained });
}
