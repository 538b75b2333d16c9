//! Destinations to which a program opens only short-lived connections, which kernel TCP serves
//! better.
//!
//! Setting a connection up costs the service, the client and the server some forty system calls and
//! two maps more than the kernel's handshake (docs/adr/0005). A few requests and replies over
//! shared memory save that again. A client that connects, sends one request and closes, again and
//! again (`ab`, a page of PHP with its database), never gets there.
//!
//! 1. The description of a connection that was made here counts its reads and writes
//!    ([`count_call`]). When the process closes it ([`closed`]), it was *short-lived* if there were
//!    at most [`MAX_CALLS`].
//! 2. After [`MIN_STREAK`] short-lived connections in a row to one destination, the kernel gets the
//!    next ones ([`prefers_kernel`]), except every [`TRIAL_EVERY`]th. That one shows a change:
//!    after one connection that was not short-lived, all are Sietch's again.
//! 3. A destination without a connect for [`FORGET_AFTER`] is forgotten. So only a program that
//!    connects many times a second is sent to the kernel; a connection that is opened once and kept
//!    is not.
//! 4. Each of [`PLACES`] table entries is one word. Two destinations at one entry evict each other,
//!    and threads that race lose a count. Both cost time and nothing else.
//!
//! `sietch run` turns this on, and `sietch run --always` does not.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use sietch_protocol::socket_service::Name;

use crate::context;
use crate::descriptor::description::Held;
use crate::system::kernel;

/// Reads and writes of a short-lived connection, at most: two requests, their replies, and the end,
/// read in pieces.
const MAX_CALLS: u32 = 8;

/// Short-lived connections in a row before the kernel gets some.
const MIN_STREAK: u64 = 16;

/// One of so many connections is then Sietch's.
const TRIAL_EVERY: u64 = 32;

/// Units of time ([`UNIT`]) after which a destination is forgotten: a second.
const FORGET_AFTER: u16 = 16;

/// Nanoseconds, as a shift: 67 ms. Sixteen bits of it wrap after 73 minutes.
const UNIT: u32 = 26;

/// Places for destinations.
const PLACES: usize = 64;

static TABLE: [AtomicU64; PLACES] = [const { AtomicU64::new(0) }; PLACES];

/// The state of a destination, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    key: u32,
    at: u16,
    streak: u8,
    trial: u8,
}

impl Known {
    const fn of(word: u64) -> Self {
        Self {
            key: (word >> 32) as u32,
            at: (word >> 16) as u16,
            streak: (word >> 8) as u8,
            trial: word as u8,
        }
    }

    const fn word(self) -> u64 {
        (self.key as u64) << 32 | (self.at as u64) << 16 | (self.streak as u64) << 8 | self.trial as u64
    }

    /// Whether a connection that begins now is the kernel's; the updated record.
    fn begun(self, key: u32, at: u16) -> (bool, Self) {
        if self.key != key || at.wrapping_sub(self.at) > FORGET_AFTER {
            return (false, Self { key, at, streak: 0, trial: 0 });
        }
        if u64::from(self.streak) < MIN_STREAK {
            return (false, Self { at, ..self });
        }
        let trial = (self.trial + 1) % TRIAL_EVERY as u8;
        (trial != 0, Self { at, trial, ..self })
    }

    /// A connection has ended.
    fn ended(self, key: u32, at: u16, short_lived: bool) -> Self {
        let before =
            if self.key == key && at.wrapping_sub(self.at) <= FORGET_AFTER { self.streak } else { 0 };
        let streak = if short_lived { (before + 1).min(MIN_STREAK as u8) } else { 0 };
        Self { key, at, streak, trial: if self.key == key { self.trial } else { 0 } }
    }
}

const _: () = assert!(MIN_STREAK < 255 && TRIAL_EVERY < 255);

/// A destination's key, never 0.
pub(crate) fn key(remote: &Name) -> u32 {
    // FNV-1a (Fowler, Noll, Vo): addresses of one host differ in few bytes.
    let bytes = remote.bytes.iter().take(remote.length as usize);
    let hash = bytes.fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    hash | 1
}

fn place(key: u32) -> &'static AtomicU64 {
    &TABLE[(key >> 1) as usize % PLACES]
}

fn now() -> u16 {
    (kernel::now() >> UNIT) as u16
}

fn is_wanted() -> bool {
    context::get().is_some_and(|context| context.short_lived_to_kernel)
}

/// Whether a connection to this destination is better left to the kernel.
pub(crate) fn prefers_kernel(key: u32) -> bool {
    if !is_wanted() {
        return false;
    }
    let (yes, known) = Known::of(place(key).load(Relaxed)).begun(key, now());
    place(key).store(known.word(), Relaxed);
    yes
}

/// Counts a read or a write.
#[inline]
pub(crate) fn count_call(held: &Held) {
    held.uses.store(held.uses.load(Relaxed).saturating_add(1), Relaxed);
}

/// This process has closed a connection.
pub(crate) fn closed(held: &Held) {
    let key = held.destination.load(Relaxed);
    if key != 0 && is_wanted() {
        let known =
            Known::of(place(key).load(Relaxed)).ended(key, now(), held.uses.load(Relaxed) <= MAX_CALLS);
        place(key).store(known.word(), Relaxed);
    }
}

#[cfg(test)]
mod tests;
