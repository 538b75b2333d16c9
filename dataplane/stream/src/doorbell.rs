//! Doorbell bytes on the placeholder of an end.
//!
//! The peer writes a byte for each request ([`sietch_ring::stream::waiters`]). A byte means "check
//! again" to every thread that sleeps at this end, in any call or process. So all bytes are
//! taken only where no other waiter is counted ([`empty`]). Otherwise one byte stays ([`thin`]),
//! and not many more than [`DRAIN_THRESHOLD`], because a full placeholder takes no more. A sleep
//! that such a byte would end at once uses an edge-triggered epoll instead.

use sietch_ring::stream::{Endpoint, Taken};

use crate::placeholder::Placeholder;
use crate::{foreign_bytes, peer};

/// Bytes that may be in a placeholder before they are taken out: between half and three halves of
/// this, depending on its number. A placeholder holds some two hundred bytes, and no notification
/// gets through when it is full. Taking one out costs the kernel some 200 nanoseconds, during which
/// a request waits. With one limit for all, hundreds of connections that are served in turn would
/// reach it in the same iteration.
const DRAIN_THRESHOLD: u32 = 16;

/// Yields to other waiters of this end: those that were woken with the caller have returned by
/// then.
const MAX_YIELDS: u32 = 4;

/// Takes all bytes out of a placeholder, if no thread waits at this end but `own` waiters of the
/// caller. False: others do, and a byte may be there.
pub fn empty<P: Placeholder>(placeholder: P, end: &Endpoint, own: u32) -> bool {
    end.drain(own, |leave| take(placeholder, end, leave))
}

/// Before [`empty`], by a caller that is not counted and about to sleep: others that were woken by
/// the same byte may return first. False: a waiter is counted still.
pub fn let_others_return<P: Placeholder>(end: &Endpoint) -> bool {
    for _ in 0..MAX_YIELDS {
        if end.waiting() == 0 {
            break;
        }
        P::yield_now();
    }
    end.waiting() == 0
}

/// Whether so many bytes are in a placeholder that all but one should be taken out ([`thin`]).
#[inline]
pub fn is_crowded<P: Placeholder>(placeholder: P, end: &Endpoint) -> bool {
    let spread = placeholder.number().cast_unsigned().wrapping_mul(0x9e37_79b9) >> 16;
    end.undrained() > DRAIN_THRESHOLD / 2 + spread % DRAIN_THRESHOLD
}

/// Takes bytes out of a placeholder, all but one.
pub fn thin<P: Placeholder>(placeholder: P, end: &Endpoint) {
    end.drain(0, |_| take(placeholder, end, true));
}

/// None if the process may not ask how many bytes are there. Then none is taken.
fn take<P: Placeholder>(placeholder: P, end: &Endpoint, leave: bool) -> Option<Taken> {
    if leave && P::is_restricted() {
        return None;
    }
    let drained = end.drained();
    let mut bytes = [0_u8; 256];
    let mut room = usize::MAX;
    let mut left = 0;
    if leave {
        let queued = placeholder.queued()?;
        room = queued.saturating_sub(1);
        left = u32::from(queued != 0);
    }
    let mut all = 0_usize;
    while room != 0 {
        let wanted = room.min(bytes.len());
        let taken = placeholder.take(&mut bytes[..wanted]);
        let got = bytes.get(..taken.unwrap_or(0)).unwrap_or_default();
        all = all.saturating_add(got.len());
        foreign_bytes::check(placeholder, end, got, foreign_bytes::Found { all, drained });
        match taken {
            // The end of the stream, which stays: no byte will ever end a sleep here.
            Ok(0) => {
                peer::check_peer_closed(placeholder, end);
                break;
            }
            Ok(got) if got == wanted => room -= got,
            _ => break,
        }
    }
    Some(Taken { bytes: u32::try_from(all).unwrap_or(u32::MAX), left })
}
