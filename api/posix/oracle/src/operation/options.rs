//! The socket options that programs set and read, with the part of a value that may be compared.
//!
//! 1. [`TABLE`] has a line for each option: name, level, number, the comparable part
//!    ([`Compared`]), and the values that generated programs set.
//! 2. Generated programs draw an option by its place in the table. Options for named programs alone
//!    are at the end, beyond [`SocketOption::COUNT`].
//! 3. A value that depends on the machine's memory or on the moment is compared by its length
//!    alone.

use std::fmt::{self, Display, Formatter};

use super::words::Word;

/// The part of an option's value on which two runs must agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compared {
    /// The value.
    Value,
    /// Its length alone: the value depends on the machine's memory, on the path or on the moment.
    Length,
    /// For `TCP_INFO`, whether the connection is established.
    State,
}

/// A socket option by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SocketOption(usize);

struct Entry {
    name: &'static str,
    level: i32,
    number: i32,
    compared: Compared,
    /// Values that programs set.
    settings: &'static [i64],
}

const fn entry(name: &'static str, level: i32, number: i32, settings: &'static [i64]) -> Entry {
    Entry { name, level, number, compared: Compared::Value, settings }
}

const fn length(name: &'static str, level: i32, number: i32, settings: &'static [i64]) -> Entry {
    Entry { name, level, number, compared: Compared::Length, settings }
}

const SOCKET: i32 = libc::SOL_SOCKET;
const TCP: i32 = libc::IPPROTO_TCP;
const IP: i32 = libc::IPPROTO_IP;
const IPV6: i32 = libc::IPPROTO_IPV6;
/// `SO_BUSY_POLL`, `SO_ZEROCOPY`, `SO_BUSY_POLL_BUDGET`, `SO_TXREHASH`, `IPV6_MINHOPCOUNT`,
/// `IP_BIND_ADDRESS_NO_PORT` of the kernel's headers.
const BUSY_POLL: i32 = 46;
const ZEROCOPY: i32 = 60;
const BUSY_POLL_BUDGET: i32 = 70;
const TXREHASH: i32 = 74;
const MINHOPCOUNT: i32 = 73;
const BIND_ADDRESS_NO_PORT: i32 = 24;
/// Numbers that no option has.
const UNKNOWN: i32 = 9999;

/// The values that a program sets never make a buffer or window so small that a send would wait.
/// None starts a timer of less than a second.
const TABLE: [Entry; 73] = [
    entry("reuseaddr", SOCKET, libc::SO_REUSEADDR, &[0, 1, 2, -1]),
    entry("reuseport", SOCKET, libc::SO_REUSEPORT, &[0, 1]),
    entry("keepalive", SOCKET, libc::SO_KEEPALIVE, &[0, 1, 5]),
    entry("broadcast", SOCKET, libc::SO_BROADCAST, &[0, 1]),
    entry("dontroute", SOCKET, libc::SO_DONTROUTE, &[0, 1]),
    entry("oobinline", SOCKET, libc::SO_OOBINLINE, &[0, 1]),
    length("sndbuf", SOCKET, libc::SO_SNDBUF, &[65536, 262_144]),
    length("rcvbuf", SOCKET, libc::SO_RCVBUF, &[65536, 262_144]),
    entry("rcvlowat", SOCKET, libc::SO_RCVLOWAT, &[0, 1]),
    entry("sndlowat", SOCKET, libc::SO_SNDLOWAT, &[1]),
    entry("type", SOCKET, libc::SO_TYPE, &[1]),
    entry("domain", SOCKET, libc::SO_DOMAIN, &[2]),
    entry("protocol", SOCKET, libc::SO_PROTOCOL, &[6]),
    entry("acceptconn", SOCKET, libc::SO_ACCEPTCONN, &[1]),
    entry("error", SOCKET, libc::SO_ERROR, &[0]),
    entry("priority", SOCKET, libc::SO_PRIORITY, &[0, 3, 6]),
    entry("busypoll", SOCKET, BUSY_POLL, &[0]),
    entry("passcred", SOCKET, libc::SO_PASSCRED, &[0]),
    entry("zerocopy", SOCKET, ZEROCOPY, &[0, 2]),
    entry("linger", SOCKET, libc::SO_LINGER, &[0]),
    entry("rcvtimeo", SOCKET, libc::SO_RCVTIMEO, &[0]),
    entry("sndtimeo", SOCKET, libc::SO_SNDTIMEO, &[0]),
    entry("unknown", SOCKET, UNKNOWN, &[0, 1]),
    entry("nodelay", TCP, libc::TCP_NODELAY, &[0, 1, 7]),
    length("maxseg", TCP, libc::TCP_MAXSEG, &[536, 1400, 1]),
    entry("cork", TCP, libc::TCP_CORK, &[0]),
    entry("keepidle", TCP, libc::TCP_KEEPIDLE, &[0, 1, 60, 32767, 32768]),
    entry("keepintvl", TCP, libc::TCP_KEEPINTVL, &[0, 1, 60, 32768]),
    entry("keepcnt", TCP, libc::TCP_KEEPCNT, &[0, 1, 127, 128]),
    entry("syncnt", TCP, libc::TCP_SYNCNT, &[0, 1, 6, 128]),
    entry("linger2", TCP, libc::TCP_LINGER2, &[-1, 0, 5, 70]),
    entry("deferaccept", TCP, libc::TCP_DEFER_ACCEPT, &[0]),
    length("windowclamp", TCP, libc::TCP_WINDOW_CLAMP, &[65536]),
    Entry { name: "info", level: TCP, number: libc::TCP_INFO, compared: Compared::State, settings: &[0] },
    length("quickack", TCP, libc::TCP_QUICKACK, &[0, 1]),
    entry("congestion", TCP, libc::TCP_CONGESTION, &[0]),
    entry("usertimeout", TCP, libc::TCP_USER_TIMEOUT, &[0, 5000, -1]),
    entry("fastopen", TCP, libc::TCP_FASTOPEN, &[0, 5]),
    entry("notsentlowat", TCP, libc::TCP_NOTSENT_LOWAT, &[0, 1 << 20]),
    entry("unknowntcp", TCP, UNKNOWN, &[0, 1]),
    entry("tos", IP, libc::IP_TOS, &[0, 0x10, 0xb8]),
    entry("ttl", IP, libc::IP_TTL, &[0, 1, 64, 255, 256]),
    entry("mtudiscover", IP, libc::IP_MTU_DISCOVER, &[0, 1, 2, 9]),
    entry("bindnoport", IP, BIND_ADDRESS_NO_PORT, &[0]),
    entry("unknownip", IP, UNKNOWN, &[0, 1]),
    entry("v6only", IPV6, libc::IPV6_V6ONLY, &[0, 1]),
    entry("hops", IPV6, libc::IPV6_UNICAST_HOPS, &[-1, 1, 64, 256]),
    entry("tclass", IPV6, libc::IPV6_TCLASS, &[-1, 0, 0x20]),
    entry("unknownlevel", 4711, 1, &[0, 1]),
    entry("peekoff", SOCKET, libc::SO_PEEK_OFF, &[-1, 0, 3]),
    entry("mark", SOCKET, libc::SO_MARK, &[0, 7]),
    entry("nocheck", SOCKET, libc::SO_NO_CHECK, &[0, 1]),
    entry("rxqovfl", SOCKET, libc::SO_RXQ_OVFL, &[0, 1]),
    entry("rcvbufforce", SOCKET, libc::SO_RCVBUFFORCE, &[262_144]),
    entry("busybudget", SOCKET, BUSY_POLL_BUDGET, &[0, 5, 70_000]),
    entry("txrehash", SOCKET, TXREHASH, &[0, 1, 2]),
    entry("inq", TCP, libc::TCP_INQ, &[0, 1, 2]),
    entry("thinlinear", TCP, libc::TCP_THIN_LINEAR_TIMEOUTS, &[0, 1, 2]),
    entry("savesyn", TCP, libc::TCP_SAVE_SYN, &[0, 1, 3]),
    // Not switched on: then a connect may wait for the first bytes.
    entry("fastopenconnect", TCP, libc::TCP_FASTOPEN_CONNECT, &[0, 2]),
    entry("fastopennocookie", TCP, libc::TCP_FASTOPEN_NO_COOKIE, &[0, 1]),
    entry("repair", TCP, libc::TCP_REPAIR, &[0]),
    length("mtu", IP, libc::IP_MTU, &[0]),
    entry("recvttl", IP, libc::IP_RECVTTL, &[0, 1]),
    entry("recvtos", IP, libc::IP_RECVTOS, &[0, 1]),
    entry("minttl", IP, libc::IP_MINTTL, &[0, 9, 256]),
    entry("freebind", IP, libc::IP_FREEBIND, &[0, 1]),
    entry("recverr", IP, libc::IP_RECVERR, &[0, 1]),
    entry("transparent", IP, libc::IP_TRANSPARENT, &[0]),
    entry("v6recvtclass", IPV6, libc::IPV6_RECVTCLASS, &[0, 1]),
    entry("v6recvpktinfo", IPV6, libc::IPV6_RECVPKTINFO, &[0, 1]),
    entry("minhopcount", IPV6, MINHOPCOUNT, &[0, 4, 256]),
    // Below those that programs draw by number: it changes the family, which no generated program
    // expects.
    entry("addrform", IPV6, libc::IPV6_ADDRFORM, &[2]),
];

/// Options of the table that are for named programs alone.
const NAMED_ALONE: usize = 1;

impl SocketOption {
    /// How many options generated programs draw from.
    pub(crate) const COUNT: usize = TABLE.len() - NAMED_ALONE;

    /// The option at that place of the table.
    pub(crate) fn at(index: usize) -> Self {
        Self(index % Self::COUNT)
    }

    /// The option with that name; a name that is not in the table is a mistake in this crate.
    pub(crate) fn named(name: &str) -> Self {
        <Self as Word>::read(name).expect("a name of the table")
    }

    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        TABLE[self.0].name
    }

    /// Its level.
    pub(crate) fn level(self) -> i32 {
        TABLE[self.0].level
    }

    /// Its number.
    pub(crate) fn number(self) -> i32 {
        TABLE[self.0].number
    }

    /// The part that may be compared.
    pub(crate) fn compared(self) -> Compared {
        TABLE[self.0].compared
    }

    /// Values that programs set.
    pub(crate) fn settings(self) -> &'static [i64] {
        TABLE[self.0].settings
    }
}

impl Display for SocketOption {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Word for SocketOption {
    fn read(text: &str) -> Option<Self> {
        TABLE.iter().position(|entry| entry.name == text).map(Self)
    }
}
