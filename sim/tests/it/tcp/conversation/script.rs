//! The behaviour of an application on its connection, and the bytes it sends.

use std::sync::OnceLock;

use sietch_sim::Random;

use super::SECOND;

/// How an application ends its side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finish {
    /// Half-closes when all is sent, and stays until the engine reports the end.
    HalfClose,
    /// Closes when all is sent and the peer has ended. Not for both sides: each would wait for the
    /// other.
    CloseAtEnd,
    /// Half-closes when all is sent, and closes when so many bytes have come, even if the peer has
    /// more to send.
    CloseAfter(u64),
    /// Half-closes when all is sent, and resets when so many bytes have passed.
    AbortAfter(u64),
}

/// The behaviour of an application.
#[derive(Debug, Clone)]
pub(crate) struct Script {
    /// Bytes it sends.
    pub total: u64,
    /// Bytes it offers at a time.
    pub write_size: usize,
    /// Bytes it reads at a time.
    pub read_size: usize,
    /// Permille of reads at which it sleeps instead.
    pub sleep_permille: u32,
    /// Nanoseconds.
    pub longest_sleep: u64,
    pub finish: Finish,
    /// Sends every other piece without a copy.
    pub sends_zero_copy: bool,
    /// Takes received buffers, and keeps each while it sleeps, instead of copying pieces.
    pub receives_zero_copy: bool,
    /// Alternates requests and answers: so many of its own bytes may follow so many of its peer's.
    /// One side begins.
    pub alternation: Option<Alternation>,
}

/// The alternation of requests and answers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Alternation {
    /// Bytes of its own message.
    pub own: u64,
    /// Bytes of its peer's message.
    pub other: u64,
    /// Whether it sends first.
    pub first: bool,
}

impl Script {
    /// An application that sends `total` bytes, reads at once, and half-closes.
    pub(crate) fn polite(total: u64) -> Self {
        Self {
            total,
            write_size: 16 << 10,
            read_size: 16 << 10,
            sleep_permille: 0,
            longest_sleep: 1,
            finish: Finish::HalfClose,
            sends_zero_copy: false,
            receives_zero_copy: false,
            alternation: None,
        }
    }

    /// Requests and answers, so many of them.
    pub(crate) fn calls(random: &mut Random, most: u64) -> [Self; 2] {
        let (request, answer) = (random.between(1, most), random.between(1, most));
        let count = random.between(1, 60);
        let mut pair = [Self::polite(request * count), Self::polite(answer * count)];
        pair[0].alternation = Some(Alternation { own: request, other: answer, first: true });
        pair[1].alternation = Some(Alternation { own: answer, other: request, first: false });
        pair
    }

    /// Bytes that it must have sent when so many have come.
    pub(crate) fn due(&self, received: u64) -> u64 {
        self.alternation.map_or(self.total, |alternation| {
            ((received / alternation.other + u64::from(alternation.first)) * alternation.own).min(self.total)
        })
    }

    /// Random applications for the two sides of a connection. One in `rude` (0: none) ends its side
    /// without regard for the other.
    pub(crate) fn pair(random: &mut Random, most: u64, rude: u64) -> [Self; 2] {
        let opener = Self::random(random, most, rude);
        let mut other = Self::random(random, most, rude);
        if other.is_polite() && random.chance(500) {
            other.finish = Finish::CloseAtEnd;
        }
        [opener, other]
    }

    fn random(random: &mut Random, most: u64, rude: u64) -> Self {
        let total = match random.below(6) {
            0 => 0,
            1 => random.between(1, 3),
            2 => random.between(1, 3000),
            3 => random.between(1, 60_000.min(most)),
            _ => random.between(1, most),
        };
        let slow = random.chance(200);
        let finish = match rude {
            1.. if random.below(rude) == 0 && random.chance(500) => Finish::AbortAfter(random.below(most)),
            1.. if random.below(rude) == 0 => Finish::CloseAfter(random.below(most / 4)),
            _ => Finish::HalfClose,
        };
        let write_size = *random.pick(&[1000, 1460, 9000, 100_000]);
        let read_size = *random.pick(&[700, 4096, 64 << 10]);
        Self {
            total,
            write_size,
            read_size,
            // These make no draws, so that every old seed still means the same run.
            sends_zero_copy: write_size == 9000 || write_size == 100_000 && total % 2 == 0,
            receives_zero_copy: read_size == 4096 || read_size == 700 && total % 2 == 1,
            sleep_permille: if slow { *random.pick(&[100, 500]) } else { 0 },
            longest_sleep: *random.pick(&[SECOND / 1000, SECOND / 10, 3 * SECOND]),
            finish,
            alternation: None,
        }
    }

    /// Whether it lets its peer send everything.
    pub(crate) fn is_polite(&self) -> bool {
        matches!(self.finish, Finish::HalfClose | Finish::CloseAtEnd)
    }
}

/// Prime, so that no position repeats with a segment, a buffer or a page.
const PERIOD: usize = 65_521;

/// `length` bytes at `position` of a connection's stream in one direction.
pub(crate) fn piece(connection: usize, from_opener: bool, position: u64, length: usize) -> Vec<u8> {
    static PATTERN: OnceLock<Vec<u8>> = OnceLock::new();
    let pattern = PATTERN.get_or_init(|| {
        let mut bytes = vec![0; PERIOD];
        Random::new(42).fill(&mut bytes);
        bytes
    });
    let salt = connection * 2 + usize::from(from_opener);
    let mut at = (salt * 7919 + (position % PERIOD as u64) as usize) % PERIOD;
    let mut out = Vec::with_capacity(length);
    while out.len() < length {
        let run = (length - out.len()).min(PERIOD - at);
        out.extend_from_slice(&pattern[at..at + run]);
        at = 0;
    }
    out
}
