//! What a call on a connection returns in each state of it, as Linux would.
//!
//! 1. Bytes that can be read come first, then an error once, then the end ([`nothing`]).
//! 2. A send to a peer that has closed: after a reset the error once, then `EPIPE`. After a normal
//!    close one send succeeds, whose bytes are what the reset answers, then `EPIPE`. That send
//!    takes no more than Linux's buffers would ([`MAX_AFTER_CLOSE`]), so that a program that sends
//!    much notices ([`may_send`]).
//! 3. A shutdown of reading wakes the sleepers of this end. The peer finds that bytes are refused
//!    ([`shut_down`]).

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use rustix::io::Errno;
use rustix::net::Shutdown;
use sietch_ring::stream::{Endpoint, flag, state};

use crate::flags::{PEER_SHUT_READ, SENT_AFTER_CLOSE};
use crate::peer;
use crate::placeholder::Placeholder;

/// Most bytes that a write takes after the peer has closed. Linux's `tcp_sendmsg` checks for
/// arrivals after 16 buffers of 32 KiB, and finds the reset.
const MAX_AFTER_CLOSE: usize = 16 << 15;

/// The error of a number that a holder of this end, or the service, has written. A number that is
/// no error counts as a reset.
fn error_of(number: u32) -> Errno {
    match number.cast_signed() {
        number @ 1..=4095 => Errno::from_raw_os_error(number),
        _ => Errno::CONNRESET,
    }
}

/// Returns the pending error, and clears it.
pub fn take_error(end: &Endpoint) -> Option<Errno> {
    let private = end.private();
    let error = private.take_error();
    if error != 0 {
        return Some(error_of(error));
    }
    let flags = private.flags.load(Acquire);
    if flags & flag::RESET == 0 || flags & flag::RESET_REPORTED != 0 {
        return None;
    }
    if private.set(flag::RESET_REPORTED) & flag::RESET_REPORTED != 0 {
        return None;
    }
    // Linux's tcp_reset(): a side that had received FIN is in CLOSE_WAIT, and gets EPIPE.
    Some(if end.finished_by_peer() { Errno::PIPE } else { Errno::CONNRESET })
}

/// Whether the connection's state is Linux's TCP_CLOSE.
pub fn is_over(end: &Endpoint) -> bool {
    let private = end.private();
    private.has(flag::RESET)
        || private.has(flag::HUNG_UP | flag::SHUT_WR)
        || (private.has(flag::SHUT_WR) && end.finished_by_peer())
}

/// Why nothing may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendRefused {
    /// `EPIPE`, with the signal that goes with it.
    Broken,
    /// Another error, or one that the set-up of the connection has left.
    Failed(Errno),
}

/// Whether bytes may be sent, as far as is known without a question to the kernel: nearly always.
/// Otherwise [`may_send`] decides.
#[inline]
pub fn may_send_at_once(end: &Endpoint) -> bool {
    let private = end.private();
    let ended = flag::SHUT_WR | flag::HUNG_UP | flag::RESET | flag::USER_TIMEOUT | PEER_SHUT_READ;
    !end.is_worth_polling()
        && private.flags.load(Acquire) & ended == 0
        && private.state.load(Acquire) != state::FAILED
}

/// An error if nothing may be sent. If the peer has closed, the number of bytes that are taken and
/// dropped.
///
/// # Errors
/// As `send(2)`.
pub fn may_send<P: Placeholder>(
    placeholder: P,
    end: &Endpoint,
    length: usize,
) -> Result<Option<usize>, SendRefused> {
    let private = end.private();
    if end.is_worth_polling() {
        peer::check_peer_closed(placeholder, end);
    }
    let now = private.flags.load(Acquire);
    if now & (flag::SHUT_WR | flag::HUNG_UP | flag::RESET | PEER_SHUT_READ) == 0 {
        return match private.state.load(Acquire) {
            state::FAILED => Err(take_error(end).map_or(SendRefused::Broken, SendRefused::Failed)),
            _ => Ok(None),
        };
    }
    if now & (flag::SHUT_WR | flag::RESET) != 0 {
        return match take_error(end) {
            Some(errno) if errno != Errno::PIPE => Err(SendRefused::Failed(errno)),
            _ => Err(SendRefused::Broken),
        };
    }
    if length == 0 {
        return Ok(Some(0));
    }
    // The peer's kernel would answer with a reset, which leaves this side with EPIPE (it had
    // received FIN).
    if private.set(SENT_AFTER_CLOSE | flag::RESET | flag::RESET_REPORTED) & SENT_AFTER_CLOSE == 0 {
        let taken = length.min(MAX_AFTER_CLOSE).min(end.most_sent());
        // The peer may still exist and have shut down reading; then it sees the same from its
        // kernel.
        private.lost.store(u32::try_from(taken).unwrap_or(u32::MAX), Relaxed);
        end.reset();
        if now & flag::HUNG_UP == 0 {
            peer::notify(placeholder, end, end.data_notification());
        }
        private.error.store(Errno::PIPE.raw_os_error().cast_unsigned(), Release);
        return Ok(Some(taken));
    }
    private.take_error();
    Err(SendRefused::Broken)
}

/// The result of a receive when nothing at all could be read: `Ok` at the end of the stream. None:
/// there may be something later.
pub fn nothing<P: Placeholder>(placeholder: P, end: &Endpoint) -> Option<Result<(), Errno>> {
    let private = end.private();
    // Before the last check of what can be read: there is nothing behind a FIN.
    let finished = end.finished_by_peer();
    let flags = private.flags.load(Acquire);
    if private.state.load(Acquire) == state::FAILED {
        return Some(Err(take_error(end).unwrap_or(Errno::NOTCONN)));
    }
    if end.readable() != 0 {
        return None;
    }
    // A reset after FIN concerns writers only: the reader has seen the end of the stream.
    if finished || flags & (flag::HUNG_UP | flag::RESET) == flag::HUNG_UP || flags & SENT_AFTER_CLOSE != 0 {
        return Some(Ok(()));
    }
    if let Some(errno) = take_error(end) {
        return Some(Err(errno));
    }
    if flags & (flag::SHUT_RD | flag::RESET) == 0 {
        return None;
    }
    // Behind this side's own shutdown there may be a reset.
    if flags & flag::RESET == 0 && end.is_worth_polling() && peer::check_peer_closed(placeholder, end) {
        return None;
    }
    Some(Ok(()))
}

/// Whether no more will come for a receive that has read something, or has seen `peeked` bytes: an
/// error stays for the next call.
pub fn nothing_more(end: &Endpoint, peeked: usize) -> bool {
    let over = end.finished_by_peer()
        || end.private().flags.load(Acquire) & (flag::HUNG_UP | flag::RESET | flag::SHUT_RD) != 0;
    over && end.readable() <= peeked
}

/// Shuts one direction or both down. `in_lock` runs what must not be left half done.
///
/// # Errors
/// `ENOTCONN`: the connection is over, or was never set up.
pub fn shut_down<P: Placeholder>(
    placeholder: P,
    end: &Endpoint,
    how: Shutdown,
    in_lock: impl Fn(&dyn Fn()),
) -> Result<(), Errno> {
    let private = end.private();
    if end.is_worth_polling() {
        peer::check_peer_closed(placeholder, end);
    }
    if private.state.load(Acquire) == state::FAILED || is_over(end) {
        return Err(Errno::NOTCONN);
    }
    if how != Shutdown::Read {
        in_lock(&|| end.finish());
        peer::notify(placeholder, end, end.data_notification());
    }
    if how != Shutdown::Write {
        private.set(flag::SHUT_RD);
        // Wakes all threads that sleep on the placeholder here. The peer sees that bytes are
        // refused, checks whether a process holds this end, and learns that one does.
        placeholder.shut_down(Shutdown::Read);
    }
    // Linux wakes all pollers of the socket, whether or not this changed anything.
    private.wake_watchers();
    if private.has(flag::SHUT_RD | flag::SHUT_WR) {
        // The peer asks the kernel, and finds that bytes are refused here.
        in_lock(&|| end.closing());
    }
    Ok(())
}
