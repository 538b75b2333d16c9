//! Checks the frames that engines send against TCP's invariants, and panics when one is violated.
//! It finds violations that the peer cannot see.
//!
//! The checker sees an engine's frames only: those that the engine sent, and those that reached it.
//! For each connection and each side it checks these rules:
//!
//! 1. The right edge of the window that it announces never retreats (RFC 9293 section 3.8.6), nor
//!    does its acknowledgement.
//! 2. It acknowledges nothing that did not reach it, and reports no such bytes in selective
//!    acknowledgements (RFC 2018 section 4).
//! 3. It sends nothing beyond the right edge that its peer has announced, but for one byte of a
//!    window probe.
//! 4. It sends nothing behind its FIN, and its FIN does not move.
//! 5. No segment is larger than the peer takes, options included (RFC 9293 section 3.7.1).
//!
//! A frame counts as received once it is in the engine's queue, even if the engine has not read it
//! yet. The checker may therefore miss a violation within one batch; it never reports a false one.

use std::collections::HashMap;
use std::net::SocketAddr;

use crate::link::Observer;
use crate::segment::{ACK, FIN, RST, SYN, Segment};

/// The smallest segment size that an engine accepts from its peer. Larger segments to a peer that
/// announced less are no violation.
const SMALLEST_MSS: u32 = 88;
/// The segment size of a peer that announced none (RFC 9293 section 3.7.1).
const DEFAULT_MSS: u16 = 536;
/// Sequence numbers that differ by more than the largest window belong to another connection with
/// the same addresses and ports.
const FAR: u32 = 1 << 30;

/// Answers to one SYN that are remembered: a SYN-ACK by the table, and cookies of two minutes, with
/// room to spare.
const ANSWERS: usize = 8;

/// Another SYN-ACK to the SYN that the latest SYN-ACK answered. A listener without room answers
/// with a cookie, whose number is not that of a half-open connection (RFC 4987 section 3.6). It
/// cannot know which of the two reaches the peer, and the peer chooses.
#[derive(Debug, Clone, Copy)]
struct Answer {
    iss: u32,
    own_shift: Option<u8>,
    peer_edge: Option<u32>,
}

/// A SYN that reached the engine.
#[derive(Debug, Clone, Copy)]
struct Offer {
    shift: Option<u8>,
    mss: u16,
    /// Behind the last number seen of the connection that it begins.
    received_end: u32,
}

/// One connection as one engine sees it.
#[derive(Debug, Default)]
struct Half {
    /// Our SYN's number, once we sent one.
    iss: Option<u32>,
    own_shift: Option<u8>,
    /// Other answers to the SYN that `iss` answers.
    answers: Vec<Answer>,
    offers: Vec<Offer>,
    sent_end: u32,
    fin: Option<u32>,
    ack: Option<u32>,
    edge: Option<u32>,
    received_end: Option<u32>,
    peer_edge: Option<u32>,
    /// The number behind the peer's FIN, if it reached us.
    peer_fin: Option<u32>,
}

/// Checks both sides of a link.
#[derive(Debug, Default)]
pub struct InvariantChecker {
    /// By side, our endpoint, the peer's.
    halves: HashMap<(usize, SocketAddr, SocketAddr), Half>,
    /// Segments checked.
    judged: u64,
    /// Link addresses of hosts that forge segments. Frames from and to them are not checked.
    unchecked: Vec<[u8; 6]>,
}

fn ahead(a: u32, b: u32) -> i32 {
    a.wrapping_sub(b).cast_signed()
}

fn later(a: Option<u32>, b: u32) -> Option<u32> {
    match a {
        Some(a) if ahead(b, a) <= 0 || b.wrapping_sub(a) > FAR => Some(a),
        _ => Some(b),
    }
}

impl InvariantChecker {
    /// A checker that ignores frames from and to these link addresses: hosts that forge segments.
    pub fn ignoring(unchecked: Vec<[u8; 6]>) -> Self {
        Self { unchecked, ..Self::default() }
    }

    /// Segments checked so far.
    pub fn judged(&self) -> u64 {
        self.judged
    }
}

impl Observer for InvariantChecker {
    fn sent(&mut self, side: usize, frame: &[u8], now: u64) {
        if self.unchecked.iter().any(|address| frame.starts_with(address)) {
            return;
        }
        let Some(segment) = Segment::decode(frame) else { return };
        self.judged += 1;
        let half = self.halves.entry((side, segment.from, segment.to)).or_default();
        if let Err(rule) = half.judge(&segment) {
            let length = segment.payload.len();
            let head = Segment { payload: &[], ..segment };
            panic!("at {now} side {side} {rule}: {length} bytes behind {head:?} of {half:?}");
        }
    }

    fn delivered(&mut self, side: usize, frame: &[u8], _: u64) {
        if self.unchecked.iter().any(|address| frame.get(6..12) == Some(&address[..])) {
            return;
        }
        let Some(segment) = Segment::decode(frame) else { return };
        self.halves.entry((side, segment.to, segment.from)).or_default().receive(&segment);
    }
}

impl Half {
    /// A segment reached the engine.
    fn receive(&mut self, segment: &Segment) {
        if segment.has(RST) {
            return;
        }
        let stray = |iss: u32| segment.ack != iss.wrapping_add(1);
        if segment.has(SYN) && segment.has(ACK) && self.iss.is_some_and(stray) {
            // It answers a SYN that this engine did not send: an old or a forged one.
            return;
        }
        if segment.has(SYN) {
            let options = segment.read_options();
            if self.offers.len() >= 8 {
                self.offers.remove(0);
            }
            let mss = options.mss.unwrap_or(DEFAULT_MSS);
            self.offers.push(Offer { shift: options.shift, mss, received_end: segment.end() });
            // The acknowledgement of this SYN will show which connection it begins. Until then all
            // of it is possible.
            if self.ack.is_none() {
                self.received_end = Some(segment.end());
            }
        }
        self.received_end = later(self.received_end, segment.end());
        for offer in &mut self.offers {
            offer.received_end = later(Some(offer.received_end), segment.end()).unwrap_or(offer.received_end);
        }
        if segment.has(FIN) {
            self.peer_fin = Some(segment.end());
        }
        let scaled = u32::from(segment.window) << self.peer_shift();
        for answer in &mut self.answers {
            if !segment.has(SYN) && segment.has(ACK) && segment.ack == answer.iss.wrapping_add(1) {
                answer.peer_edge = later(answer.peer_edge, segment.ack.wrapping_add(scaled));
            }
        }
        if segment.has(ACK)
            && let Some(iss) = self.iss
            && ahead(segment.ack, iss) >= 0
            && ahead(segment.ack, self.sent_end) <= 0
        {
            let shift = if segment.has(SYN) { 0 } else { self.peer_shift() };
            let edge = segment.ack.wrapping_add(u32::from(segment.window) << shift);
            self.peer_edge = later(self.peer_edge, edge);
        }
    }

    /// The scale of the windows that the peer announces: none unless both offered one.
    fn peer_shift(&self) -> u8 {
        let offered = self.offers.iter().filter_map(|offer| offer.shift).max();
        if self.own_shift.is_some() { offered.unwrap_or(0) } else { 0 }
    }

    /// The engine has sent a segment. Returns the rule that it breaks, if any.
    fn judge(&mut self, segment: &Segment) -> Result<(), &'static str> {
        if segment.has(RST) {
            return Ok(());
        }
        // A SYN cookie depends on the peer's SYN and the time of day alone: a late copy of the SYN
        // gets the same number again.
        let again = segment.has(SYN) && self.ack.is_some_and(|ack| ahead(segment.ack, ack) < 0);
        if segment.has(SYN) && (self.iss != Some(segment.seq) || again) {
            // A new connection with the same endpoints.
            let offers = std::mem::take(&mut self.offers);
            let received = self.received_end.filter(|_| self.iss.is_none());
            let received = if segment.has(ACK) { later(received, segment.ack) } else { None };
            *self = Self {
                iss: Some(segment.seq),
                sent_end: segment.end(),
                answers: self.other_answers(segment),
                offers,
                received_end: received,
                ..Self::default()
            };
        }
        if segment.has(SYN) {
            self.own_shift = segment.read_options().shift;
        } else {
            self.note_choice(segment);
        }
        if self.iss.is_none() {
            // It answers a segment of no connection, or of one that began before the checker.
            return Ok(());
        }
        self.judge_sequence(segment)?;
        if segment.has(ACK) { self.judge_acknowledgement(segment) } else { Ok(()) }
    }

    /// Whether nothing but a SYN has been sent under `iss`.
    fn is_bare(&self) -> bool {
        self.fin.is_none() && self.iss.is_some_and(|iss| self.sent_end == iss.wrapping_add(1))
    }

    /// The other answers to the SYN that this SYN-ACK answers.
    fn other_answers(&mut self, segment: &Segment) -> Vec<Answer> {
        let Some(iss) = self.iss.filter(|_| segment.has(ACK) && self.ack == Some(segment.ack)) else {
            return Vec::new();
        };
        if !self.is_bare() {
            return Vec::new();
        }
        let mut answers = std::mem::take(&mut self.answers);
        answers.retain(|answer| answer.iss != segment.seq);
        if answers.len() >= ANSWERS {
            answers.remove(0);
        }
        answers.push(Answer { iss, own_shift: self.own_shift, peer_edge: self.peer_edge });
        answers
    }

    /// The connection continues with the answer that its peer has chosen, which need not be the
    /// latest.
    fn note_choice(&mut self, segment: &Segment) {
        // A keepalive probe of a connection that has sent nothing is one number back.
        let begins = |answer: &Answer| matches!(segment.seq.wrapping_sub(answer.iss), 0 | 1);
        let Some(place) = self.answers.iter().position(begins).filter(|_| self.is_bare()) else { return };
        let Some(iss) = self.iss else { return };
        let latest = Answer { iss, own_shift: self.own_shift, peer_edge: self.peer_edge };
        let chosen = std::mem::replace(&mut self.answers[place], latest);
        self.iss = Some(chosen.iss);
        self.sent_end = chosen.iss.wrapping_add(1);
        (self.own_shift, self.peer_edge) = (chosen.own_shift, chosen.peer_edge);
    }

    fn judge_sequence(&mut self, segment: &Segment) -> Result<(), &'static str> {
        let end = segment.end();
        if let Some(fin) = self.fin
            && ahead(end, fin) > 0
        {
            return Err("sends behind its FIN");
        }
        if segment.has(FIN) {
            if self.fin.is_some_and(|fin| fin != end) {
                return Err("moves its FIN");
            }
            if ahead(self.sent_end, end) > 0 {
                return Err("has sent data behind its FIN");
            }
            self.fin = Some(end);
        }
        let size = (segment.payload.len() + segment.options.len()) as u32;
        let mss = self.offers.iter().map(|offer| offer.mss).max().unwrap_or(DEFAULT_MSS);
        if !segment.payload.is_empty() && size > u32::from(mss).max(SMALLEST_MSS) {
            return Err("sends a segment larger than its peer takes");
        }
        if let Some(edge) = self.peer_edge
            && segment.length() > 0
            && ahead(end, edge.wrapping_add(1)) > 0
        {
            return Err("sends beyond its peer's window");
        }
        if ahead(end, self.sent_end) > 0 {
            self.sent_end = end;
        }
        Ok(())
    }

    fn judge_acknowledgement(&mut self, segment: &Segment) -> Result<(), &'static str> {
        // After the peer's FIN there is no window, and our side may have only TIME-WAIT left.
        if self.peer_fin.is_some_and(|fin| fin == segment.ack) {
            self.ack = later(self.ack, segment.ack);
            return Ok(());
        }
        if self.ack.is_some_and(|ack| ahead(segment.ack, ack) < 0) {
            return Err("takes an acknowledgement back");
        }
        if self.ack.is_none() {
            // Of two simultaneous answers to its SYN it takes the one that it reads first.
            let is_of = |offer: &&Offer| offer.received_end.wrapping_sub(segment.ack) <= FAR;
            self.received_end =
                self.offers.iter().find(is_of).map(|offer| offer.received_end).or(self.received_end);
        }
        if self.received_end.is_some_and(|received| ahead(segment.ack, received) > 0) {
            return Err("acknowledges what it never had");
        }
        self.ack = Some(segment.ack);
        let shifted = !segment.has(SYN) && self.offers.iter().any(|offer| offer.shift.is_some());
        let shift = if shifted { self.own_shift.unwrap_or(0) } else { 0 };
        let edge = segment.ack.wrapping_add(u32::from(segment.window) << shift);
        // The window of a SYN has no scale. It may be smaller than that of another segment, and
        // later windows are rounded down.
        let unit = self.own_shift.unwrap_or(0);
        let window = u32::from(segment.window) >> unit << unit;
        let edge = if segment.has(SYN) { segment.ack.wrapping_add(window) } else { edge };
        // RFC 7323 section 2.4: rounded down, an edge may be less than a unit before an earlier
        // one.
        if !segment.has(SYN) && self.edge.is_some_and(|old| ahead(edge, old) + (1 << shift) <= 0) {
            return Err("takes window back");
        }
        self.edge = later(self.edge, edge);
        let options = segment.read_options();
        for (left, right) in &options.sack[..options.blocks] {
            if ahead(*right, *left) <= 0 {
                return Err("sends an empty selective acknowledgement");
            }
            if self.received_end.is_some_and(|received| ahead(*right, received) > 0) {
                return Err("acknowledges selectively what it never had");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::Options;

    fn judge(segments: &[(bool, u8, u32, u32, u16, usize)]) -> Result<(), &'static str> {
        let (a, b) = ("10.0.0.1:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap());
        let syn = Options { mss: Some(1000), ..Options::default() }.bytes();
        let mut half = Half::default();
        for (ours, flags, seq, ack, window, length) in segments {
            let payload = vec![0; *length];
            let options = if flags & SYN != 0 { &syn[..] } else { &[] };
            let (from, to) = if *ours { (a, b) } else { (b, a) };
            let bare = Segment::bare(from, to, *flags, *seq, *ack);
            let segment = Segment { window: *window, options, payload: &payload, ..bare };
            if *ours {
                half.judge(&segment)?;
            } else {
                half.receive(&segment);
            }
        }
        Ok(())
    }

    #[test]
    fn an_honest_connection_breaks_no_rule_and_each_lie_is_seen() {
        let honest = [
            (true, SYN, 100, 0, 5000, 0),
            (false, SYN | ACK, 900, 101, 2000, 0),
            (true, ACK, 101, 901, 5000, 1000),
            (true, ACK, 1101, 901, 5000, 1000),
            (false, ACK, 901, 2101, 2000, 500),
            (true, ACK | FIN, 2101, 1401, 4500, 100),
        ];
        assert_eq!(judge(&honest), Ok(()));
        let lie = |last| judge(&[&honest[..], &[last]].concat());
        assert_eq!(lie((true, ACK, 2202, 1401, 4499, 0)), Err("takes window back"));
        assert_eq!(lie((true, ACK, 2202, 1402, 4499, 0)), Err("acknowledges what it never had"));
        assert_eq!(lie((true, ACK, 2202, 901, 9000, 0)), Err("takes an acknowledgement back"));
        assert_eq!(lie((true, ACK, 2202, 1401, 4500, 1)), Err("sends behind its FIN"));
        let beyond = (true, ACK, 4000, 1401, 4500, 103);
        assert_eq!(judge(&[&honest[..5], &[beyond]].concat()), Err("sends beyond its peer's window"));
        let large = (true, ACK, 2101, 1401, 4500, 1001);
        assert_eq!(
            judge(&[&honest[..5], &[large]].concat()),
            Err("sends a segment larger than its peer takes")
        );
    }

    #[test]
    fn of_two_answers_to_one_syn_the_peer_chooses() {
        const COOKIE: u32 = 3_000_000_000;
        let answered_twice = [
            (false, SYN, 900, 0, 2000, 0),
            (true, SYN | ACK, 100, 901, 5000, 0),
            (false, SYN, 900, 0, 2000, 0),
            (true, SYN | ACK, COOKIE, 901, 5000, 0),
        ];
        for iss in [100, COOKIE] {
            let begin = (false, ACK, 901, iss + 1, 2000, 0);
            let with = |sent: &[_]| judge(&[&answered_twice[..], &[begin], sent].concat());
            let (first, last) =
                ((true, ACK, iss + 1, 901, 5000, 1000), (true, ACK | FIN, iss + 1001, 901, 5000, 100));
            assert_eq!(with(&[first, last]), Ok(()));
            assert_eq!(
                with(&[first, last, (true, ACK, iss + 1102, 901, 5000, 1)]),
                Err("sends behind its FIN")
            );
            let beyond = (true, ACK, iss + 2001, 901, 5000, 2);
            assert_eq!(with(&[first, beyond]), Err("sends beyond its peer's window"));
        }
    }
}
