//! The socket options of an application's connection that its engine supports.
//!
//! 1. They are words on the application's private page ([`sietch_ring::stream::option`]), which it
//!    may write as it likes. Every value is clamped, and an option that is not set has the engine's
//!    default.
//! 2. [`SocketOptions::apply`] sets only what has changed: setting keepalive again, say, would
//!    restart its timer.
//! 3. Nagle is off unless the program requests it (TCP_NODELAY set to 0): what an application
//!    writes at once leaves in one iteration anyway.

use sietch_net::congestion::Kind;
use sietch_net::{Engine, FlowId};
use sietch_ring::stream::option;

/// Nanoseconds in a second, and in a millisecond.
const SECOND: u64 = 1_000_000_000;
const MILLISECOND: u64 = 1_000_000;
/// The smallest limit of a receive buffer, as on Linux (`SOCK_MIN_RCVBUF`).
const LEAST_BUFFER: u64 = 2304;

/// The address family of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Ipv4,
    Ipv6,
}

/// Keepalive, with the defaults of Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Keepalive {
    /// Nanoseconds of silence before the first probe.
    pub idle: u64,
    /// Nanoseconds between probes.
    pub interval: u64,
    /// Probes without an answer before the peer is given up.
    pub count: u8,
}

/// The socket options of a connection. The default is the engine's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SocketOptions {
    /// Nagle's algorithm: small segments wait.
    pub nagle: bool,
    /// Only full segments leave.
    pub corked: bool,
    /// Probe silent peers.
    pub keepalive: Option<Keepalive>,
    /// Nanoseconds after which a connection whose peer acknowledges nothing is closed.
    pub user_timeout: Option<u64>,
    /// Congestion control.
    pub congestion: Option<Kind>,
    /// Traffic class.
    pub class: Option<u8>,
    /// Hop limit.
    pub hops: Option<u8>,
    /// The most bytes a second.
    pub rate: Option<u64>,
    /// The most received bytes that wait for the application.
    pub receive_buffer: Option<usize>,
}

impl SocketOptions {
    /// Reads the options from these words, for a connection of this family.
    pub(super) fn of(words: &[u64; option::COUNT], family: Family) -> Self {
        let of = |index: usize| {
            let word = words.get(index).copied().unwrap_or(0);
            (word & option::SET != 0).then_some(word & !option::SET)
        };
        let seconds =
            |index, default: u64| of(index).map_or(default, |value| value.clamp(1, 32_767)) * SECOND;
        let keepalive = Keepalive {
            idle: seconds(option::KEEP_IDLE, 7200),
            interval: seconds(option::KEEP_INTERVAL, 75),
            count: of(option::KEEP_COUNT).map_or(9, |value| value.clamp(1, 127)) as u8,
        };
        let (class, hops) = if family == Family::Ipv6 {
            (option::TRAFFIC_CLASS, option::HOP_LIMIT)
        } else {
            (option::TYPE_OF_SERVICE, option::TIME_TO_LIVE)
        };
        let byte = |index| of(index).and_then(|value| u8::try_from(value).ok());
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

    /// Sets what differs from `before` in the engine.
    pub(super) fn apply(&self, before: &Self, engine: &mut Engine, flow: FlowId) {
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

/// Returns the algorithm with a name of at most eight letters; Linux calls that of RFC 6582 reno.
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
        set.iter().for_each(|(index, value)| words[*index] = option::SET | value);
        words
    }

    #[test]
    fn an_option_that_is_not_set_has_the_engines_default() {
        assert_eq!(SocketOptions::of(&[0; option::COUNT], Family::Ipv4), SocketOptions::default());
        assert!(!SocketOptions::of(&words(&[(option::NO_DELAY, 1)]), Family::Ipv4).nagle);
        assert!(SocketOptions::of(&words(&[(option::NO_DELAY, 0)]), Family::Ipv4).nagle);
    }

    #[test]
    fn options_have_their_meaning_on_linux() {
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
        let options = SocketOptions::of(&set, Family::Ipv4);
        let keepalive = Keepalive { idle: 30 * SECOND, interval: 75 * SECOND, count: 3 };
        assert_eq!(options.keepalive, Some(keepalive));
        assert_eq!(options.user_timeout, Some(5 * SECOND));
        assert_eq!(options.congestion, Some(Kind::NewReno));
        assert_eq!((options.class, options.rate), (Some(0xb8), None));
        assert_eq!(SocketOptions::of(&set, Family::Ipv6).class, Some(0x20));
    }

    #[test]
    fn invalid_values_are_clamped() {
        let mut all = [u64::MAX; option::COUNT];
        let options = SocketOptions::of(&all, Family::Ipv4);
        assert_eq!((options.congestion, options.class, options.hops), (None, None, None));
        assert_eq!(options.keepalive.map(|keepalive| keepalive.idle), Some(32_767 * SECOND));
        all.iter_mut().for_each(|word| *word = option::SET);
        assert_eq!(SocketOptions::of(&all, Family::Ipv6).receive_buffer, Some(LEAST_BUFFER as usize));
    }
}
