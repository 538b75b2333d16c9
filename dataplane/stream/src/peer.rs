//! The other end of a connection: notifying it, and finding out that no process holds it.
//!
//! 1. [`notify`] writes a doorbell byte to the placeholder, which wakes the sleepers at the other
//!    end.
//! 2. The end of the stream, or an error, on a placeholder does not prove that the peer is closed:
//!    it may have shut down reading. A hang-up does ([`check_peer_closed`]).
//! 3. The end of the stream without a hang-up is no end of a connection: an end finishes in the
//!    common memory and shuts only its own reading down. A program has called `shutdown` past its
//!    library, so the connection is reset ([`refuse`]). A reader that took this for "no byte" would
//!    poll in a loop as long as that program lives.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use rustix::io::Errno;
use rustix::net::Shutdown;
use sietch_ring::spin::CONTENDED;
use sietch_ring::stream::{Endpoint, Notification, flag, state};

use crate::flags::PEER_SHUT_READ;
use crate::placeholder::{OtherEnd, Placeholder};

/// Yields to a service that has still to close a descriptor.
const MAX_YIELDS: u32 = 4;

/// The byte of a doorbell.
pub(crate) const DOORBELL: u8 = 0;

/// Writes the byte that is due to the sleepers at the other end.
#[inline]
pub fn notify<P: Placeholder>(placeholder: P, end: &Endpoint, due: Notification) {
    if due.is_needed() {
        notify_now(placeholder, end, due);
    }
}

/// The sleep of a service core for which this process has notified last. Peers of other streams are
/// not trusted: one could name the sleep of another, which would then be thought awake.
static NOTIFIED: AtomicU64 = AtomicU64::new(0);

/// After sending: wakes the sleepers at the other end, unless it is a service core that was already
/// notified in this sleep.
#[inline(always)]
pub fn notify_data<P: Placeholder>(placeholder: P, end: &Endpoint) {
    if !end.private().has(flag::SERVED) {
        return notify(placeholder, end, end.data_notification());
    }
    let due = end.data_notification_unless(|sleep| NOTIFIED.load(Relaxed) == sleep);
    // Not before: another thread that relies on it must not be ahead of the notification.
    if due.is_needed() && notify_now(placeholder, end, due) && due.sleep() != 0 {
        NOTIFIED.store(due.sleep(), Relaxed);
    }
}

/// Writes a byte for a service core that has to check something else than bytes.
#[cold]
pub fn notify_always<P: Placeholder>(placeholder: P) {
    let _ = placeholder.send(&[DOORBELL]);
}

#[cold]
fn notify_now<P: Placeholder>(placeholder: P, end: &Endpoint, due: Notification) -> bool {
    end.notify_with([due], || match placeholder.send(&[DOORBELL]) {
        Ok(_) => true,
        Err(errno) => {
            // EAGAIN: so many bytes are there that no thread sleeps past them for long, and the
            // next message tries again.
            if matches!(errno, Errno::PIPE | Errno::CONNRESET) {
                check_peer_closed(placeholder, end);
            }
            false
        }
    })
}

/// Asks the kernel whether any process still holds the other end, and records the answer. True:
/// none does, or the connection was reset for [`OtherEnd::SilentForGood`].
#[cold]
pub fn check_peer_closed<P: Placeholder>(placeholder: P, end: &Endpoint) -> bool {
    if end.private().has(flag::HUNG_UP) {
        return true;
    }
    if end.is_reset_by_peer() {
        end.hung_up();
        return true;
    }
    let (hinted, hint) = (end.may_be_hung_up(), end.hint());
    let mut other = placeholder.other_end();
    // The service closes a new connection's descriptors just after it has passed them on; a program
    // that closes at once may be faster.
    for _ in 0..if hinted { MAX_YIELDS } else { 0 } {
        if other != OtherEnd::Open {
            break;
        }
        let began = P::now();
        if !P::yield_now() {
            break;
        }
        other = placeholder.other_end();
        // Other threads need the processor: the service has run too, or will not run soon.
        if P::now().saturating_sub(began) > CONTENDED {
            break;
        }
    }
    match other {
        OtherEnd::HungUp => {
            end.hung_up();
            return true;
        }
        // The flag of the own shutdown is set before the placeholder is shut down.
        OtherEnd::SilentForGood if !end.private().has(flag::SHUT_RD) => {
            refuse(
                placeholder,
                end,
                "a program bypassed the library and shut down a connection; the connection is reset",
            );
            return true;
        }
        OtherEnd::SilentForGood | OtherEnd::Open => {}
    }
    if hinted && end.finished_by_peer() && refuses_bytes(placeholder) {
        end.private().set(PEER_SHUT_READ);
    }
    end.still_there(hint);
    false
}

/// Resets the connection for both programs, because one of them bypassed its library. `why` is what
/// a user reads.
#[cold]
pub(crate) fn refuse<P: Placeholder>(placeholder: P, end: &Endpoint, why: &str) {
    P::report(why, Errno::CONNRESET);
    end.reset();
    end.private().error.store(Errno::CONNRESET.raw_os_error().cast_unsigned(), Release);
    notify(placeholder, end, end.data_notification());
    // A program that bypasses the library learns of it by this alone.
    placeholder.shut_down(Shutdown::Both);
}

/// Whether the other end has shut down reading.
fn refuses_bytes<P: Placeholder>(placeholder: P) -> bool {
    placeholder.send(&[]) == Err(Errno::PIPE)
}

/// Whether a reader need not sleep: more than `seen` bytes, or a state to report.
#[inline]
pub fn data_ready(end: &Endpoint, seen: usize) -> bool {
    end.readable() > seen || end.finished_by_peer() || end.may_be_hung_up() || has_ended(end, flag::SHUT_RD)
}

/// Whether a writer need not sleep.
#[inline]
pub fn room_ready(end: &Endpoint) -> bool {
    end.is_writable() || end.may_be_hung_up() || has_ended(end, flag::SHUT_WR)
}

#[inline]
fn has_ended(end: &Endpoint, also: u32) -> bool {
    end.private().flags.load(Acquire) & (flag::HUNG_UP | flag::RESET | also) != 0
}

/// Whether a connect has come to its end.
#[inline]
pub fn is_set_up(end: &Endpoint) -> bool {
    end.private().state.load(Acquire) != state::CONNECTING
}
