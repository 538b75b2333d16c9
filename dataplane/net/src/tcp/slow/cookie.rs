//! Handshakes while the table of half-open connections is full (`connections/syn_cookie`).
//!
//! 1. A SYN that finds no room gets a SYN-ACK with a cookie. Only the time until which cookies are
//!    valid is stored.
//! 2. While cookies are valid, an unmatched acknowledgement may carry one. If it does, it creates
//!    the flow at once.
//! 3. A peer whose SYN was answered with a cookie may retransmit it and find room in the table. It
//!    then has a half-open connection *and* a cookie; either may be acknowledged.

use crate::config::Ecn;
use crate::context::Context;
use crate::ip::origin::Origin;
use crate::limits::COOKIE_WINDOW;
use crate::packet::tcp::{ACK, ECE, Fields, Options, SYN, Segment};
use crate::tcp::Tcp;
use crate::tcp::connections::four_tuple::FourTuple;
use crate::tcp::connections::half_open::{HalfOpen, HalfOpenIndex};
use crate::tcp::connections::syn_cookie::{self, CookieOptions, EPOCH, Verdict};
use crate::tcp::transmit::segment::Reply;

impl Tcp {
    /// The window in a SYN-ACK with a cookie.
    fn cookie_window(&self) -> u16 {
        u16::try_from(self.settings.receive_buffer).map_or(COOKIE_WINDOW, |most| most.min(COOKIE_WINDOW))
    }

    /// Answers a SYN and stores nothing.
    pub(super) fn answer_with_cookie(&mut self, cx: &mut Context, origin: &Origin, segment: &Segment<'_>) {
        let ecn = self.accepts_ecn(segment, origin.is_ce_marked());
        let tuple = FourTuple::of_segment(origin, segment);
        let words = tuple.words(cx);
        let mss = segment.options.mss.unwrap_or(crate::limits::DEFAULT_MSS);
        let seq = syn_cookie::make(&cx.secret, &words, segment.seq, mss, cx.now);
        let (_, ts_offset) = tuple.initial_sequence(cx);
        let options = &segment.options;
        let kept = options.timestamps.map(|(value, _)| {
            let kept = CookieOptions { shift: options.shift, sack: options.sack_permitted, ecn };
            (kept, syn_cookie::stamp(cx.now_ms, kept).wrapping_add(ts_offset), value)
        });
        let options = Options::Syn {
            mss: cx.own_mss(&tuple.remote),
            shift: kept.and_then(|(kept, ..)| kept.shift).map(|_| self.settings.own_shift),
            sack: kept.is_some_and(|(kept, ..)| kept.sack),
            timestamps: kept.map(|(_, stamp, value)| (stamp, value)),
        };
        let window = self.cookie_window();
        let echo = if kept.is_some_and(|(kept, ..)| kept.ecn) { ECE } else { 0 };
        let fields = Fields { seq, ack: segment.seq.plus(1), flags: SYN | ACK | echo, window, options };
        self.cookies_until = cx.now + 2 * EPOCH;
        cx.metrics.syn_cookies_sent += 1;
        self.reply(cx, Reply { path: tuple.path(cx, origin.mac), fields });
    }

    /// Whether the segment acknowledges a cookie; then it has created a flow, unless there was no
    /// room. `half_open` is the stored half-open connection with the same four-tuple. Returns true
    /// for a later segment of a cookie's handshake as well, which is dropped.
    pub(super) fn take_cookie(
        &mut self,
        cx: &mut Context,
        half_open: Option<HalfOpenIndex>,
        origin: &Origin,
        segment: &Segment<'_>,
    ) -> bool {
        if cx.now >= self.cookies_until || !segment.has(ACK) {
            return false;
        }
        let tuple = FourTuple::of_segment(origin, segment);
        let (words, iss) = (tuple.words(cx), segment.ack.minus(1));
        let mut irs = segment.seq.minus(1);
        let mut segment = *segment;
        let mut verdict = syn_cookie::judge(&cx.secret, &words, irs, iss, cx.now);
        if verdict == Verdict::OtherSegment && segment.payload.len() <= 1 {
            // A keepalive probe, one number back (RFC 9293 section 3.8.4), of a peer whose
            // acknowledgement was lost.
            irs = segment.seq;
            verdict = syn_cookie::judge(&cx.secret, &words, irs, iss, cx.now);
            segment = Segment { seq: irs.plus(1), flags: ACK, payload: segment.payload.take(0), ..segment };
        }
        let peer_mss = match verdict {
            Verdict::Valid(mss) => mss,
            Verdict::OtherSegment => return true,
            Verdict::NotACookie => {
                cx.metrics.syn_cookies_refused += 1;
                return false;
            }
        };
        let (_, ts_offset) = tuple.initial_sequence(cx);
        let stamps = segment.options.timestamps;
        let kept = stamps.map(|(_, echo)| syn_cookie::kept(echo.wrapping_sub(ts_offset)));
        let born = HalfOpen {
            tuple,
            irs,
            iss,
            mac: origin.mac,
            peer_mss: Some(peer_mss),
            shift: kept.and_then(|kept| kept.shift),
            timestamps: kept.is_some(),
            sack: kept.is_some_and(|kept| kept.sack),
            ecn: self.settings.ecn != Ecn::Off && kept.is_some_and(|kept| kept.ecn),
            ts_recent: stamps.map_or(0, |(value, _)| value),
            ts_offset,
            // The time of the SYN-ACK is unknown: nothing is measured.
            retransmits: 1,
            window: self.cookie_window(),
            sent_at: cx.now,
            challenged_at: 0,
        };
        let flows = self.flows.len();
        self.promote(cx, &born, half_open, origin, &segment);
        cx.metrics.syn_cookies_accepted += (self.flows.len() - flows) as u64;
        true
    }
}
