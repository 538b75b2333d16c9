//! SYN cookies (RFC 4987 section 3.6, after Bernstein): a half-open connection that is stored in
//! the numbers of its own SYN-ACK, and nowhere else.
//!
//! ```text
//!  initial sequence number   31 .. 8: tag | 7 .. 4: hint | 3: epoch | 2 .. 0: segment size
//!  low bits of the timestamp                5: ECN | 4: SACK | 3 .. 0: window scale, 15 for none
//! ```
//!
//! 1. When the table of half-open connections is full, a SYN is answered with a cookie as initial
//!    sequence number, and nothing is stored. The segment size is rounded down to one of eight. A
//!    peer with timestamps echoes ours, so their low bits carry the other options, as in Linux. A
//!    peer without timestamps gets neither window scale nor SACK.
//! 2. The acknowledgement of the SYN-ACK returns the cookie. The *tag* is a keyed hash of
//!    addresses, ports, numbers, options and time. If it matches, the connection starts as it would
//!    have from a stored entry.
//! 3. The *hint* is a hash of the same values without the peer's number. A segment with a matching
//!    hint and a wrong tag may be a later one of a handshake whose last segment was lost. It is
//!    dropped, and the peer retransmits the first. Anything else gets the reset of an unmatched
//!    segment.
//! 4. The epoch of [`EPOCH`] nanoseconds is part of the hash, so knowledge of one epoch is useless
//!    in the next. A cookie is valid in its own epoch and in the one after.
//!
//! A peer that has not seen the SYN-ACK must guess 28 bits. A peer that has seen it can return the
//! cookie again after the connection has ended, while the cookie is valid. A peer also stays silent
//! when the last segment of its handshake is lost. Both are inherent to cookies.

use crate::limits::SECOND;
use crate::packet::sequence::Seq;
use crate::siphash::Key;

/// How long a secret is used for new cookies. A handshake may take one to two of these: a SYN-ACK
/// that answers the peer's third SYN (7 s), over a satellite, fits easily.
pub(crate) const EPOCH: u64 = 64 * SECOND;
/// Segment sizes of IPv4 and IPv6 over the smallest, common and largest MTUs, tunnels among them.
/// The first is the smallest that the engine sends.
const SIZES: [u16; 8] = [88, 536, 1220, 1360, 1440, 1460, 8940, 65_475];
/// Bits of a timestamp that keep options.
const OPTION_BITS: u32 = 6;
const OPTION_MASK: u32 = (1 << OPTION_BITS) - 1;
const NO_SHIFT: u32 = 15;

/// What identifies a handshake: addresses, ports.
pub(crate) type Words = [u64; 5];

/// What the acknowledgement of a SYN-ACK turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// A cookie of ours: the peer takes segments of this many bytes.
    Valid(u16),
    /// Perhaps a later segment of a peer that has one.
    OtherSegment,
    /// No cookie.
    NotACookie,
}

/// Options that a cookie does not hold and a timestamp does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CookieOptions {
    /// The peer's window scale.
    pub shift: Option<u8>,
    /// Whether it takes selective acknowledgements.
    pub sack: bool,
    /// Whether ECN was negotiated.
    pub ecn: bool,
}

fn seal(key: &Key, words: &Words, irs: Seq, epoch: u64, size: u32) -> u32 {
    let [a, b, c, d, ports] = *words;
    let hash = |rest: u64| key.hash_words(&[a, b, c, d, ports, epoch << 3 | u64::from(size), rest]);
    // Without a number of the peer's, a value that none of them has.
    (hash(u64::from(irs.0)) as u32) << 8 | (hash(u64::MAX) as u32 & 15) << 4 | (epoch as u32 & 1) << 3 | size
}

/// The cookie that answers a SYN with the number `irs` and this segment size.
pub(crate) fn make(key: &Key, words: &Words, irs: Seq, mss: u16, now: u64) -> Seq {
    let size = SIZES.iter().rposition(|size| *size <= mss).unwrap_or(0);
    Seq(seal(key, words, irs, now / EPOCH, size as u32))
}

/// Checks a returned cookie of a peer whose number would have been `irs`.
pub(crate) fn judge(key: &Key, words: &Words, irs: Seq, cookie: Seq, now: u64) -> Verdict {
    let present = now / EPOCH;
    let parity = u64::from(cookie.0 >> 3 & 1);
    let epoch = present - ((present ^ parity) & 1).min(present);
    let size = cookie.0 & 7;
    let genuine = seal(key, words, irs, epoch, size);
    if genuine == cookie.0 {
        Verdict::Valid(SIZES[size as usize])
    } else if (genuine ^ cookie.0) & 0xff == 0 {
        Verdict::OtherSegment
    } else {
        Verdict::NotACookie
    }
}

/// The timestamp of about `now_ms`, and not after it, that keeps `options`.
pub(crate) fn stamp(now_ms: u32, options: CookieOptions) -> u32 {
    let bits = options.shift.map_or(NO_SHIFT, u32::from)
        | u32::from(options.sack) << 4
        | u32::from(options.ecn) << 5;
    let stamp = (now_ms & !OPTION_MASK) | bits;
    if Seq(stamp).after(Seq(now_ms)) { stamp.wrapping_sub(1 << OPTION_BITS) } else { stamp }
}

/// The options in a timestamp.
pub(crate) fn kept(stamp: u32) -> CookieOptions {
    let shift = stamp & 15;
    CookieOptions {
        shift: (shift != NO_SHIFT).then_some(shift as u8),
        sack: stamp & 16 != 0,
        ecn: stamp & 32 != 0,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WORDS: Words = [1, 2, 3, 4, 5];

    fn key() -> Key {
        Key::new(*b"sixteen of these")
    }

    proptest! {
        #[test]
        fn a_cookie_comes_back_in_time_and_no_later(
            irs in any::<u32>(), mss in 88u16.., at in 0..1_000_000 * SECOND, later in 0..4 * EPOCH,
        ) {
            let cookie = make(&key(), &WORDS, Seq(irs), mss, at);
            let verdict = judge(&key(), &WORDS, Seq(irs), cookie, at + later);
            let epochs = (at + later) / EPOCH - at / EPOCH;
            match verdict {
                Verdict::Valid(size) => prop_assert!(size <= mss && epochs <= 1),
                _ => prop_assert!(epochs > 1),
            }
        }

        #[test]
        fn nothing_else_is_a_cookie(irs in any::<u32>(), away in 1..u32::MAX, at in 0..1_000 * SECOND, port in 6u64..) {
            let cookie = make(&key(), &WORDS, Seq(irs), 1460, at);
            let other = judge(&key(), &WORDS, Seq(irs.wrapping_add(away)), cookie, at);
            prop_assert_eq!(other, Verdict::OtherSegment, "a later segment of the same peer");
            let other_tuple = [1, 2, 3, 4, port];
            prop_assert!(!matches!(judge(&key(), &other_tuple, Seq(irs), cookie, at), Verdict::Valid(_)));
            let guess = Seq(cookie.0.wrapping_add(away));
            prop_assert!(!matches!(judge(&key(), &WORDS, Seq(irs), guess, at), Verdict::Valid(_)));
        }

        #[test]
        fn stamps_keep_options_and_never_run_ahead(
            now in any::<u32>(), shift in proptest::option::of(0u8..15), sack in any::<bool>(), ecn in any::<bool>(),
        ) {
            let options = CookieOptions { shift, sack, ecn };
            let stamp = stamp(now, options);
            prop_assert_eq!(kept(stamp), options);
            prop_assert!(now.wrapping_sub(stamp) < 64);
        }
    }
}
