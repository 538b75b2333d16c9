//! When published bytes became readable: an order between streams.
//!
//! 1. A consumer that was busy finds several streams ready, and has to serve the oldest arrival
//!    first. So a producer notes beside its tail from which position on bytes came, and when, by
//!    the processor's clock, which all processors of a host share.
//! 2. There are [`KEPT`] notes, on the cache line of the tail. A consumer that has read the tail
//!    has them, and a producer writes no second line. The oldest note gives way to the newest once
//!    it concerns no unread bytes. Until then nothing more is noted: what counts is since when
//!    bytes wait.
//! 3. The producer keeps the consumer's head from when it last read it. If, by the kept value, the
//!    oldest note is unread, it reads the head that the consumer has put beside its own tail with
//!    its last message ([`Producer::read`](super::layout::Producer::read)): the producer has that
//!    cache line if it has read the message. Only then it reads the head itself, on a cache line
//!    that the consumer is about to write. (Measured with redis-benchmark and 50 connections:
//!    reading it with each message, with notes on two cache lines, cost a seventh of the requests.)
//! 4. The notes come from the other side and may be wrong on purpose. So they decide about order
//!    alone. The consumer clamps each time between now and its own last report or registration of
//!    the stream.

use std::cmp::Reverse;

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Notes of a direction: what the 64 bytes with the tail have room for.
pub const KEPT: usize = 4;

/// Cycles of a tick, as a power of two: less than the time between two messages.
const TICK: u32 = 4;
/// Bits of a position in a note: 64 MiB, more than regions of the usual sizes hold.
const POSITION: u32 = 26;
/// Bits of a time: 24 minutes at three cycles a nanosecond.
const TIME: u32 = u64::BITS - POSITION;
/// Mask of a position in a note.
const POSITIONS: u64 = (1 << POSITION) - 1;

/// From one position to another, of which the lower bits are known.
#[inline]
const fn distance(from: u64, to: u64) -> i64 {
    (to.wrapping_sub(from) << TIME).cast_signed() >> TIME
}

/// Ticks from the time of a note to `now`; none for a time in the future: the clocks differ by a
/// little, or the note is wrong on purpose.
#[inline]
fn age(note: u64, now: u64) -> u64 {
    let ago = ((now >> TICK).wrapping_sub(note >> POSITION) << POSITION).cast_signed() >> POSITION;
    ago.max(0).cast_unsigned()
}

/// Cycles of the processor's clock: some nanoseconds to read, never calibrated, only for what may
/// be wrong by a factor.
#[inline]
pub fn cycles() -> u64 {
    #[cfg(any(loom, miri))]
    return 0;
    #[cfg(all(target_arch = "x86_64", not(any(loom, miri))))]
    // SAFETY: every x86-64 processor has the instruction, and Linux lets programs use it.
    unsafe {
        core::arch::x86_64::_rdtsc()
    }
    #[cfg(all(target_arch = "aarch64", not(any(loom, miri))))]
    {
        let count: u64;
        // SAFETY: reads a register that Linux lets programs read.
        unsafe { std::arch::asm!("mrs {}, cntvct_el0", out(reg) count, options(nomem, nostack)) };
        // Counts at 25 MHz to 1 GHz; made about as fast as the other's.
        count << 3
    }
}

/// Notes that bytes come from `position` on. `next` and `head` are the producer's own: `next` is
/// the note that gives way, `head` the consumer's head as last read. `heads` reads it anew: as it
/// is beside the consumer's tail, and the head itself.
#[inline]
pub(super) fn note(
    notes: &[AtomicU64; KEPT],
    next: &AtomicU32,
    position: u64,
    head: &AtomicU64,
    heads: [&AtomicU64; 2],
) {
    let at = next.load(Ordering::Relaxed) as usize % KEPT;
    let after = (at + 1) % KEPT;
    // What the oldest note concerns ends where the next begins.
    let end = notes[after].load(Ordering::Relaxed);
    let is_unread = |head: u64| end != 0 && distance(head, end) > 0;
    if is_unread(head.load(Ordering::Relaxed)) {
        let [beside_tail, itself] = heads;
        let mut now = beside_tail.load(Ordering::Relaxed);
        if is_unread(now) {
            now = itself.load(Ordering::Relaxed);
        }
        head.store(now, Ordering::Relaxed);
        if is_unread(now) {
            return;
        }
    }
    let word = cycles() >> TICK << POSITION | position & POSITIONS;
    notes[at].store(word, Ordering::Relaxed);
    next.store(after as u32, Ordering::Relaxed);
}

/// When the first bytes came that begin at `position` or later, or else the last before; none if
/// nothing is noted. Of several notes of one position the oldest counts.
#[inline]
pub(crate) fn after(notes: &[AtomicU64; KEPT], position: u64, now: u64) -> Option<u64> {
    // Usually one arrival came since the caller last polled: exactly there.
    let (mut oldest, mut is_noted) = (0, false);
    for note in notes {
        let word = note.load(Ordering::Relaxed);
        if (word ^ position) & POSITIONS == 0 && word != 0 {
            (oldest, is_noted) = (age(word, now).max(oldest), true);
        }
    }
    let age = if is_noted { oldest } else { after_several(notes, position, now)? };
    Some(now.saturating_sub(age << TICK))
}

/// As [`after`], where no note begins at the position. Returns the age.
#[cold]
fn after_several(notes: &[AtomicU64; KEPT], position: u64, now: u64) -> Option<u64> {
    let words = notes.iter().map(|note| note.load(Ordering::Relaxed)).filter(|word| *word != 0);
    // Notes at the position or later come first, then the nearest, then the oldest.
    let rank = |word: u64| {
        let distance = distance(position, word);
        (distance < 0, distance.unsigned_abs(), Reverse(age(word, now)))
    };
    words.map(rank).min().map(|(_, _, Reverse(age))| age)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_longest_waiting_message_is_known_however_many_follow() {
        let (notes, next) = ([const { AtomicU64::new(0) }; KEPT], AtomicU32::new(0));
        let [kept, beside_tail, head] = [const { AtomicU64::new(0) }; 3];
        let note = |position| note(&notes, &next, position, &kept, [&beside_tail, &head]);
        assert_eq!(after(&notes, 0, 1 << 40), None);
        let before = cycles();
        note(0);
        let first = notes[0].load(Ordering::Relaxed);
        (1..100).for_each(note);
        assert_eq!(notes[0].load(Ordering::Relaxed), first, "it is unread still");
        let now = cycles();
        let since = after(&notes, 0, now).expect("noted");
        assert!(since + (2 << TICK) > before && since <= now, "{before} {since} {now}");
        // All was read: the oldest give way.
        for position in 100..200 {
            head.store(position, Ordering::Relaxed);
            note(position);
        }
        let now = cycles();
        assert!(after(&notes, 199, now) >= after(&notes, 190, now));
        // A note of the future is one of now.
        notes[3].store(((now >> TICK) + 5_000) << POSITION | 500, Ordering::Relaxed);
        assert!(after(&notes, 500, now).expect("noted") <= now);
    }

    #[test]
    fn the_oldest_note_at_a_position_counts_then_the_next_then_the_last_before() {
        let now: u64 = 1 << 40;
        let note = |position: u64, ticks_ago: u64| {
            AtomicU64::new(((now >> TICK) - ticks_ago) << POSITION | position & POSITIONS)
        };
        let notes = [note(70, 30), note(40, 60), note(50, 50), note(70, 20)];
        let ago = |position| after(&notes, position, now).map(|at| (now - at) >> TICK);
        assert_eq!([40, 50, 70].map(ago), [60, 50, 30].map(Some), "exactly there");
        assert_eq!([0, 41, 51].map(ago), [60, 50, 30].map(Some), "the first that comes later");
        assert_eq!(ago(71), Some(30), "nothing later: the last before, at its oldest");
        // Positions are known by their lower bits.
        assert_eq!(ago((7 << POSITION) + 50), Some(50));
    }

    #[test]
    fn each_message_is_noted_whichever_of_both_heads_says_that_all_was_read() {
        for of_head in [0, 1] {
            let (notes, next) = ([const { AtomicU64::new(0) }; KEPT], AtomicU32::new(0));
            let (kept, heads) = (AtomicU64::new(0), [const { AtomicU64::new(0) }; 2]);
            for position in 0..1_000 {
                heads[of_head].store(position, Ordering::Relaxed);
                note(&notes, &next, position, &kept, [&heads[0], &heads[1]]);
                let newest = notes.iter().any(|note| distance(position, note.load(Ordering::Relaxed)) == 0);
                assert!(newest, "{position} is not noted");
                // A head is read anew once in as many messages as there are notes but one.
                assert!(position - kept.load(Ordering::Relaxed) < KEPT as u64);
            }
        }
    }
}
