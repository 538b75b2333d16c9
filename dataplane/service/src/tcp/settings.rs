//! The socket options of an application's connection that its engine knows.
//!
//! 1. They stand in words on the application's private page ([`sietch_ring::stream::option`]),
//!    which it may write as it likes: every value is brought within bounds, and what nobody set is
//!    what the engine does by itself.
//! 2. [`Settings::apply`] tells the engine what is different from before, and nothing else: to set
//!    keepalive anew, say, would begin its time anew.
//! 3. Nagle is off unless the program asks for it (TCP_NODELAY set to 0): what an application
//!    writes in one go leaves in one turn anyway.

use sietch_net::congestion::Kind;
use sietch_net::{Engine, FlowId};
use sietch_ring::stream::option;

/// Nanoseconds in a second, and in a millisecond.
const SECOND: u64 = 1_000_000_000;
const MILLISECOND: u64 = 1_000_000;
/// The least that a receive buffer may be limited to: what Linux has (`SOCK_MIN_RCVBUF`).
const LEAST_BUFFER: u64 = 2304;

/// Keepalive, as Linux has it by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Nanoseconds of silence before the first probe.
    pub idle: u64,
    /// Nanoseconds between probes.
    pub interval: u64,
    /// Probes without an answer before the peer is given up.
    pub count: u8,
}

/// See the module. The default is what an engine does by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Small segments wait.
    pub nagle: bool,
    /// Nothing but full segments.
    pub corked: bool,
    /// Probe silent peers.
    pub keepalive: Option<Keepalive>,
    /// Nanoseconds after which a peer that acknowledges nothing is given up.
    pub user_timeout: Option<u64>,
    /// Congestion control.
    pub congestion: Option<Kind>,
    /// Traffic class.
    pub class: Option<u8>,
    /// Hop limit.
    pub hops: Option<u8>,
    /// Bytes a second at most.
    pub rate: Option<u64>,
    /// Bytes that wait for the application at most.
    pub receive_buffer: Option<usize>,
}

impl Settings {
    /// What these words say; `six`: the connection is one of IPv6.
    pub fn of(words: &[u64; option::COUNT], six: bool) -> Self {
        let of = |place: usize| {
            let word = words.get(place).copied().unwrap_or(0);
            (word & option::SET != 0).then_some(word & !option::SET)
        };
        let seconds = |place, usual: u64| of(place).map_or(usual, |value| value.clamp(1, 32_767)) * SECOND;
        let keepalive = Keepalive {
            idle: seconds(option::KEEP_IDLE, 7200),
            interval: seconds(option::KEEP_INTERVAL, 75),
            count: of(option::KEEP_COUNT).map_or(9, |value| value.clamp(1, 127)) as u8,
        };
        let (class, hops) = if six {
            (option::TRAFFIC_CLASS, option::HOP_LIMIT)
        } else {
            (option::TYPE_OF_SERVICE, option::TIME_TO_LIVE)
        };
        let byte = |place| of(place).and_then(|value| u8::try_from(value).ok());
        Self {
            nagle: of(option::NO_DELAY) == Some(0),
            corked: of(option::CORK).is_some_and(|value| value != 0),
            keepalive: of(option::KEEPALIVE).filter(|value| *value != 0).map(|_| keepalive),
            user_timeout: of(option::USER_TIMEOUT)
                .filter(|value| *value != 0)
                .map(|value| value.min(u64::from(u32::MAX)) * MILLISECOND),
            congestion: of(option::CONGESTION).and_then(congestion),
            class: byte(class),
            hops: byte(hops).filter(|hops| *hops != 0),
            rate: of(option::PACING_RATE).filter(|rate| (1..u64::from(u32::MAX)).contains(rate)),
            receive_buffer: of(option::RECEIVE_BUFFER)
                .map(|bytes| bytes.clamp(LEAST_BUFFER, 1 << 30) as usize),
        }
    }

    /// Tells the engine what is different from `before`.
    pub fn apply(&self, before: &Self, engine: &mut Engine, flow: FlowId) {
        if self.nagle != before.nagle {
            engine.set_nagle(flow, self.nagle);
        }
        if self.corked != before.corked {
            engine.set_corked(flow, self.corked);
        }
        if self.keepalive != before.keepalive {
            let (interval, count) =
                self.keepalive.map_or((0, 0), |keepalive| (keepalive.interval, keepalive.count));
            engine.set_keepalive_probes(flow, interval, count);
            engine.set_keepalive(flow, self.keepalive.map(|keepalive| keepalive.idle));
        }
        if self.user_timeout != before.user_timeout {
            engine.set_user_timeout(flow, self.user_timeout);
        }
        if let Some(kind) = self.congestion.filter(|_| self.congestion != before.congestion) {
            engine.set_congestion(flow, kind);
        }
        if self.class != before.class {
            engine.set_traffic_class(flow, self.class.unwrap_or(0));
        }
        if let Some(hops) = self.hops.filter(|_| self.hops != before.hops) {
            engine.set_hop_limit(flow, hops);
        }
        if self.rate != before.rate {
            engine.set_max_pacing_rate(flow, self.rate);
        }
        if let Some(bytes) = self.receive_buffer.filter(|_| self.receive_buffer != before.receive_buffer) {
            engine.set_receive_limit(flow, bytes);
        }
    }
}

/// The algorithm of a name of at most eight letters; Linux calls the one of RFC 6582 reno.
fn congestion(word: u64) -> Option<Kind> {
    let bytes = word.to_le_bytes();
    let length = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    match std::str::from_utf8(bytes.get(..length)?).ok()? {
        "reno" => Some(Kind::NewReno),
        name => name.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(set: &[(usize, u64)]) -> [u64; option::COUNT] {
        let mut words = [0; option::COUNT];
        set.iter().for_each(|(place, value)| words[*place] = option::SET | value);
        words
    }

    #[test]
    fn what_nobody_set_is_what_the_engine_does_by_itself() {
        assert_eq!(Settings::of(&[0; option::COUNT], false), Settings::default());
        assert!(!Settings::of(&words(&[(option::NO_DELAY, 1)]), false).nagle);
        assert!(Settings::of(&words(&[(option::NO_DELAY, 0)]), false).nagle);
    }

    #[test]
    fn options_are_read_as_linux_means_them() {
        let name = |name: &[u8]| name.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        let set = words(&[
            (option::KEEPALIVE, 1),
            (option::KEEP_IDLE, 30),
            (option::KEEP_COUNT, 3),
            (option::USER_TIMEOUT, 5000),
            (option::CONGESTION, name(b"reno")),
            (option::TYPE_OF_SERVICE, 0xb8),
            (option::TRAFFIC_CLASS, 0x20),
            (option::PACING_RATE, u64::from(u32::MAX)),
        ]);
        let settings = Settings::of(&set, false);
        let keepalive = Keepalive { idle: 30 * SECOND, interval: 75 * SECOND, count: 3 };
        assert_eq!(settings.keepalive, Some(keepalive));
        assert_eq!(settings.user_timeout, Some(5 * SECOND));
        assert_eq!(settings.congestion, Some(Kind::NewReno));
        assert_eq!((settings.class, settings.rate), (Some(0xb8), None));
        assert_eq!(Settings::of(&set, true).class, Some(0x20));
    }

    #[test]
    fn nonsense_is_within_bounds() {
        let mut all = [u64::MAX; option::COUNT];
        let settings = Settings::of(&all, false);
        assert_eq!((settings.congestion, settings.class, settings.hops), (None, None, None));
        assert_eq!(settings.keepalive.map(|keepalive| keepalive.idle), Some(32_767 * SECOND));
        all.iter_mut().for_each(|word| *word = option::SET);
        assert_eq!(Settings::of(&all, true).receive_buffer, Some(LEAST_BUFFER as usize));
    }
}
