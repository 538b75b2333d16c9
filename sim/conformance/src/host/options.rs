//! The socket options for which the engine has a setting. Any other option is `ENOPROTOOPT`, never
//! silently accepted.

use sietch_net::{FlowId, FlowInfo, State};

use super::socket::{Chosen, Errno, Kind, Outcome};
use super::{Host, SECOND};

/// The value of an option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OptionValue {
    /// A number.
    Integer(i32),
    /// `struct linger`: on, seconds.
    Linger(bool, i32),
    /// A name.
    Text(String),
    /// A structure.
    Bytes(Vec<u8>),
}

impl Host {
    pub(super) fn apply_options(&mut self, flow: FlowId, chosen: &Chosen) {
        self.engine.set_nagle(flow, !chosen.nodelay);
        let idle = u64::try_from(chosen.keepalive_idle).unwrap_or(0) * SECOND;
        if let Some(kind) = chosen.congestion {
            self.engine.set_congestion(flow, kind);
        }
        self.engine.set_keepalive(flow, chosen.keepalive.then_some(idle));
        let patience = u64::try_from(chosen.user_timeout).unwrap_or(0) * (SECOND / 1000);
        self.engine.set_user_timeout(flow, Some(patience).filter(|patience| *patience > 0));
    }

    /// `setsockopt`.
    ///
    /// # Errors
    /// No such socket, no such option, or an invalid value.
    pub fn set_option(&mut self, fd: i32, level: i32, name: i32, value: &OptionValue) -> Outcome {
        let chosen = self.chosen_mut(fd)?;
        let number = match value {
            OptionValue::Integer(number) => Some(*number),
            _ => None,
        };
        let invalid = Errno(libc::EINVAL);
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_REUSEADDR) => chosen.reuse_address = number.ok_or(invalid)? != 0,
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => chosen.keepalive = number.ok_or(invalid)? != 0,
            (libc::SOL_SOCKET, libc::SO_LINGER) => match value {
                OptionValue::Linger(on, seconds) => chosen.linger = on.then_some(*seconds),
                _ => return Err(invalid),
            },
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => chosen.nodelay = number.ok_or(invalid)? != 0,
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => {
                chosen.keepalive_idle =
                    number.filter(|seconds| (1..=32_767).contains(seconds)).ok_or(invalid)?;
            }
            (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => {
                chosen.user_timeout = number.filter(|time| *time >= 0).ok_or(invalid)?;
            }
            (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => match value {
                OptionValue::Text(name) => {
                    chosen.congestion = Some(name.parse().map_err(|_| Errno(libc::ENOENT))?);
                }
                _ => return Err(invalid),
            },
            _ => return Err(Errno(libc::ENOPROTOOPT)),
        }
        let chosen = chosen.clone();
        if let Some(flow) = self.flow(fd) {
            self.apply_options(flow, &chosen);
            self.settle();
        }
        Ok(0)
    }

    fn settle(&mut self) {
        let now = self.now();
        self.advance_to(now);
    }

    /// `getsockopt`.
    ///
    /// # Errors
    /// No such socket, or no such option.
    pub fn option(&mut self, fd: i32, level: i32, name: i32) -> Result<OptionValue, Errno> {
        let socket = self.socket_ref(fd)?;
        let listens = matches!(socket.kind, Kind::Listener { .. });
        let chosen = socket.chosen.clone();
        let info = self.flow(fd).and_then(|flow| self.engine.flow_info(flow));
        let integer = |value: i32| Ok(OptionValue::Integer(value));
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_ERROR) => integer(self.take_socket_error(fd)),
            (libc::SOL_SOCKET, libc::SO_TYPE) => integer(libc::SOCK_STREAM),
            (libc::SOL_SOCKET, libc::SO_PROTOCOL) => integer(libc::IPPROTO_TCP),
            (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => integer(i32::from(listens)),
            (libc::SOL_SOCKET, libc::SO_REUSEADDR) => integer(i32::from(chosen.reuse_address)),
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => integer(i32::from(chosen.keepalive)),
            (libc::SOL_SOCKET, libc::SO_LINGER) => {
                Ok(OptionValue::Linger(chosen.linger.is_some(), chosen.linger.unwrap_or(0)))
            }
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => integer(i32::from(chosen.nodelay)),
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => integer(chosen.keepalive_idle),
            (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => integer(chosen.user_timeout),
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => {
                integer(info.map_or(536, |info| i32::from(info.segment_size)))
            }
            (libc::IPPROTO_TCP, libc::TCP_INFO) => Ok(OptionValue::Bytes(tcp_info(info.as_ref(), listens))),
            _ => Err(Errno(libc::ENOPROTOOPT)),
        }
    }

    /// A field of `struct tcp_info` by its name, for a script's assertions. A few names exist only
    /// for scripts, in the engine's own units: `cwnd_bytes`, `peer_window`, `rto_ns`, `rtt_ns`, and
    /// `count_` before the name of any counter. `None` if there is no such field.
    pub fn info(&self, fd: i32, field: &str) -> Option<i64> {
        let info = self.flow(fd).and_then(|flow| self.engine.flow_info(flow));
        let mss = info.as_ref().map_or(536, |info| i64::from(info.segment_size)).max(1);
        let cwnd = info.as_ref().map_or(0, |info| i64::from(info.congestion_window));
        let get = |value: fn(&FlowInfo) -> i64| info.as_ref().map_or(0, value);
        Some(match field {
            "tcpi_state" => i64::from(linux_state(info.as_ref(), false)),
            "tcpi_snd_mss" => mss,
            "tcpi_snd_cwnd" => cwnd / mss,
            "tcpi_snd_ssthresh" => get(|info| info.slow_start_threshold.into()) / mss,
            "tcpi_rtt" => get(|info| (info.srtt / 1000).cast_signed()),
            "tcpi_rto" => get(|info| (info.retransmission_timeout / 1000).cast_signed()),
            "tcpi_total_retrans" => get(|info| info.retransmits.cast_signed()),
            "cwnd_bytes" => cwnd,
            "peer_window" => get(|info| info.peer_window.into()),
            "rto_ns" => get(|info| info.retransmission_timeout.cast_signed()),
            "rtt_ns" => get(|info| info.srtt.cast_signed()),
            "unread" => get(|info| info.unread as i64),
            "unacknowledged" => get(|info| info.unsent_or_unacknowledged as i64),
            _ => return field.strip_prefix("count_").and_then(|name| self.count(name)),
        })
    }

    /// One of the engine's counters.
    fn count(&self, wanted: &str) -> Option<i64> {
        let mut found = None;
        self.engine.metrics().each(|name, value| {
            if name == wanted {
                found = Some(value.cast_signed());
            }
        });
        found
    }
}

/// A connection's state by Linux' numbers.
const fn linux_state(info: Option<&FlowInfo>, listens: bool) -> u8 {
    let Some(info) = info else { return if listens { 10 } else { 7 } };
    match info.state {
        State::Established => 1,
        State::SynSent => 2,
        State::SynReceived => 3,
        State::FinWait1 => 4,
        State::FinWait2 => 5,
        State::TimeWait => 6,
        State::Closed => 7,
        State::CloseWait => 8,
        State::LastAck => 9,
        State::Closing => 11,
    }
}

/// The part of Linux' `struct tcp_info` that the engine can fill: 104 bytes, as it was for many
/// years. Readers take the rest as zero.
fn tcp_info(info: Option<&FlowInfo>, listens: bool) -> Vec<u8> {
    const TIMESTAMPS: u8 = 1;
    let mut bytes = vec![0; 104];
    bytes[0] = linux_state(info, listens);
    let Some(info) = info else { return bytes };
    bytes[5] = if info.timestamps { TIMESTAMPS } else { 0 };
    let mss = u32::from(info.segment_size).max(1);
    let microseconds = |time: u64| u32::try_from(time / 1000).unwrap_or(u32::MAX);
    let mut put = |at: usize, value: u32| bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    put(8, microseconds(info.retransmission_timeout));
    put(16, mss);
    put(68, microseconds(info.srtt));
    put(80, info.congestion_window / mss);
    put(100, u32::try_from(info.retransmits).unwrap_or(u32::MAX));
    bytes
}
