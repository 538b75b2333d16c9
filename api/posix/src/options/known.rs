//! Which socket options the library remembers, and how their values are encoded.
//!
//! 1. [`KNOWN`] lists the options. The index of an option there is its index in the end's private
//!    page, so that all holders of the end agree. For pending sockets and listeners it is the index
//!    in the description. A word of 0 means that the program never set the option; otherwise the
//!    top bit is set.
//! 2. Any other option is tried on a fresh kernel TCP socket, so its errno and its default are the
//!    kernel's. If the kernel accepts it, its value is stored in [`crate::options::others`].
//! 3. What has an effect: timeouts, SO_RCVLOWAT, SO_LINGER with a time of zero, SO_SNDBUF,
//!    SO_PEEK_OFF, TCP_INQ. The other options are only returned as they were set.
//! 4. A connection of a VNIC has an engine behind it, in the service core. The engine is notified
//!    when one of its options changes ([`crate::options::inherit::announce`]), provides TCP_INFO,
//!    and has its own congestion-control algorithms.
//! 5. The effect of some options only the kernel can provide ([`needs_kernel`]). A socket on which
//!    one is set before its connection stays the kernel's; later they are refused.

use std::ffi::{c_int, c_void};
use std::sync::atomic::AtomicU64;

use libc::{IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, SOL_SOCKET, socklen_t};

use crate::connection::option_words::{
    DEFER_ACCEPT, FASTOPEN, ONLY_IPV6, PEEK_OFFSET, PRIORITY, SET, UNREAD_MESSAGE,
};
use crate::descriptor::description::{self, Held};

use crate::signal::user_memory;
use crate::system::sys::Errno;

/// The form of an option's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// An `int`; set by any value but 0, returned as 0 or 1.
    Switch,
    /// An `int` in bounds; outside them EINVAL.
    Number(c_int, c_int),
    /// Buffer sizes: returned twice as large as set, within bounds.
    Buffer,
    /// A `struct timeval`.
    Time,
    /// A `struct linger`.
    Linger,
    /// An `int` that only the kernel can check: it is set on a fresh kernel socket, and the value
    /// that this socket returns is remembered.
    CheckedByKernel,
    /// A name of at most fifteen letters, of which eight are remembered; checked as the above.
    Word,
}

pub(crate) struct Known {
    pub(crate) level: c_int,
    pub(crate) name: c_int,
    pub(crate) shape: Shape,
    /// The kernel's value if it was never set.
    pub(crate) default: c_int,
}

pub(crate) const fn known(level: c_int, name: c_int, shape: Shape, default: c_int) -> Known {
    Known { level, name, shape, default }
}

/// `SO_BUSY_POLL` and `IP_BIND_ADDRESS_NO_PORT` of the kernel's headers.
const BUSY_POLL: c_int = 46;

const BIND_ADDRESS_NO_PORT: c_int = 24;

pub(crate) const KNOWN: [Known; 39] = [
    known(SOL_SOCKET, libc::SO_LINGER, Shape::Linger, 0),
    known(SOL_SOCKET, libc::SO_RCVTIMEO, Shape::Time, 0),
    known(SOL_SOCKET, libc::SO_SNDTIMEO, Shape::Time, 0),
    known(SOL_SOCKET, libc::SO_RCVLOWAT, Shape::Number(c_int::MIN, c_int::MAX), 1),
    known(SOL_SOCKET, libc::SO_SNDBUF, Shape::Buffer, 2_626_560),
    known(SOL_SOCKET, libc::SO_RCVBUF, Shape::Buffer, 131_072),
    known(SOL_SOCKET, libc::SO_REUSEADDR, Shape::Switch, 0),
    known(SOL_SOCKET, libc::SO_REUSEPORT, Shape::Switch, 0),
    known(SOL_SOCKET, libc::SO_KEEPALIVE, Shape::Switch, 0),
    known(SOL_SOCKET, libc::SO_BROADCAST, Shape::Switch, 0),
    known(SOL_SOCKET, libc::SO_OOBINLINE, Shape::Switch, 0),
    known(SOL_SOCKET, libc::SO_DONTROUTE, Shape::Switch, 0),
    known(SOL_SOCKET, libc::SO_PRIORITY, Shape::Number(0, 6), 0),
    known(SOL_SOCKET, libc::SO_PEEK_OFF, Shape::CheckedByKernel, -1),
    known(IPPROTO_TCP, libc::TCP_NODELAY, Shape::Switch, 0),
    known(IPPROTO_TCP, libc::TCP_CORK, Shape::Switch, 0),
    known(IPPROTO_TCP, libc::TCP_QUICKACK, Shape::Switch, 1),
    known(IPPROTO_TCP, libc::TCP_KEEPIDLE, Shape::Number(1, 32767), 7200),
    known(IPPROTO_TCP, libc::TCP_KEEPINTVL, Shape::Number(1, 32767), 75),
    known(IPPROTO_TCP, libc::TCP_KEEPCNT, Shape::Number(1, 127), 9),
    known(IPPROTO_TCP, libc::TCP_SYNCNT, Shape::Number(1, 127), 6),
    known(IPPROTO_TCP, libc::TCP_USER_TIMEOUT, Shape::Number(0, c_int::MAX), 0),
    known(IPPROTO_TCP, libc::TCP_MAXSEG, Shape::CheckedByKernel, 65_483),
    known(IPPROTO_TCP, libc::TCP_LINGER2, Shape::CheckedByKernel, 60),
    known(IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, Shape::CheckedByKernel, 0),
    known(IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, Shape::CheckedByKernel, 0),
    known(IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, Shape::CheckedByKernel, 0),
    known(IPPROTO_IP, libc::IP_TOS, Shape::CheckedByKernel, 0),
    known(IPPROTO_IP, libc::IP_TTL, Shape::CheckedByKernel, 64),
    known(IPPROTO_IPV6, libc::IPV6_V6ONLY, Shape::CheckedByKernel, 0),
    known(IPPROTO_IPV6, libc::IPV6_TCLASS, Shape::CheckedByKernel, 0),
    known(IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, Shape::CheckedByKernel, 64),
    known(IPPROTO_TCP, libc::TCP_CONGESTION, Shape::Word, 0),
    known(SOL_SOCKET, libc::SO_MAX_PACING_RATE, Shape::CheckedByKernel, -1),
    known(IPPROTO_TCP, libc::TCP_FASTOPEN, Shape::CheckedByKernel, 0),
    known(IPPROTO_IP, libc::IP_MTU_DISCOVER, Shape::CheckedByKernel, 0),
    known(IPPROTO_IP, BIND_ADDRESS_NO_PORT, Shape::CheckedByKernel, 0),
    known(SOL_SOCKET, BUSY_POLL, Shape::CheckedByKernel, 0),
    known(IPPROTO_TCP, libc::TCP_INQ, Shape::CheckedByKernel, 0),
];

const _: () = {
    // The last index belongs to `crate::connection::names`.
    assert!(KNOWN.len() < description::OPTIONS);
    assert!(KNOWN[FASTOPEN].name == libc::TCP_FASTOPEN && KNOWN[FASTOPEN].level == IPPROTO_TCP);
    assert!(KNOWN[ONLY_IPV6].name == libc::IPV6_V6ONLY && KNOWN[ONLY_IPV6].level == IPPROTO_IPV6);
    assert!(KNOWN[PRIORITY].name == libc::SO_PRIORITY && KNOWN[PRIORITY].level == SOL_SOCKET);
    assert!(KNOWN[DEFER_ACCEPT].name == libc::TCP_DEFER_ACCEPT && KNOWN[DEFER_ACCEPT].level == IPPROTO_TCP);
    assert!(KNOWN[PEEK_OFFSET].name == libc::SO_PEEK_OFF && KNOWN[PEEK_OFFSET].level == SOL_SOCKET);
    assert!(KNOWN[UNREAD_MESSAGE].name == libc::TCP_INQ && KNOWN[UNREAD_MESSAGE].level == IPPROTO_TCP);
};

/// Congestion-control algorithms that an engine has; the first is its default.
pub(crate) const ALGORITHMS: [&[u8]; 5] = [b"cubic", b"reno", b"newreno", b"dctcp", b"timely"];

/// Names that the tables of [`index_of`] cover: all that are known.
const MAX_NAME: usize = 80;

/// No option of that name.
const UNKNOWN: u8 = u8::MAX;

/// Indices by name, of a level. Programs set options with every request (nginx corks and uncorks),
/// so they are not searched for.
const fn indices(level: c_int) -> [u8; MAX_NAME] {
    let mut table = [UNKNOWN; MAX_NAME];
    let mut at = 0;
    while at < KNOWN.len() {
        if KNOWN[at].level == level {
            table[KNOWN[at].name as usize] = at as u8;
        }
        at += 1;
    }
    table
}

const _: () = {
    let mut at = 0;
    while at < KNOWN.len() {
        assert!(matches!(KNOWN[at].level, SOL_SOCKET | IPPROTO_TCP | IPPROTO_IP | IPPROTO_IPV6));
        at += 1;
    }
};

static OF_SOCKET: [u8; MAX_NAME] = indices(SOL_SOCKET);

static OF_TCP: [u8; MAX_NAME] = indices(IPPROTO_TCP);

static OF_IP: [u8; MAX_NAME] = indices(IPPROTO_IP);

static OF_IPV6: [u8; MAX_NAME] = indices(IPPROTO_IPV6);

/// `SO_RCVTIMEO_NEW` and `SO_SNDTIMEO_NEW` of the kernel's headers.
const RECEIVE_TIMEOUT_NEW: c_int = 66;

const SEND_TIMEOUT_NEW: c_int = 67;

/// The name that an option is remembered by: some have two.
pub(crate) const fn canonical(level: c_int, name: c_int) -> c_int {
    match (level, name) {
        (SOL_SOCKET, libc::SO_SNDBUFFORCE) => libc::SO_SNDBUF,
        (SOL_SOCKET, libc::SO_RCVBUFFORCE) => libc::SO_RCVBUF,
        // The same structure where a `time_t` has 64 bits.
        (SOL_SOCKET, RECEIVE_TIMEOUT_NEW) => libc::SO_RCVTIMEO,
        (SOL_SOCKET, SEND_TIMEOUT_NEW) => libc::SO_SNDTIMEO,
        _ => name,
    }
}

/// Whether only the kernel can provide the effect of an option that is switched on: it changes or
/// filters packets, or adds messages to what is received.
///
/// The service leaves a socket that is bound to an interface to the kernel when it connects or
/// listens, so before that these options are allowed ([`binds_to_interface`]).
pub(crate) const fn needs_kernel(level: c_int, name: c_int) -> bool {
    /// `SO_TIMESTAMP_NEW` to `SO_TIMESTAMPING_NEW` of the kernel's headers.
    const FIRST_NEW: c_int = 63;
    const LAST_NEW: c_int = 65;
    /// `TCP_AO_ADD_KEY` to `TCP_AO_INFO`.
    const FIRST_AO: c_int = 38;
    const LAST_AO: c_int = 40;
    match level {
        SOL_SOCKET => {
            matches!(
                name,
                libc::SO_ATTACH_FILTER
                    | libc::SO_ATTACH_BPF
                    | libc::SO_TIMESTAMP
                    | libc::SO_TIMESTAMPNS
                    | libc::SO_TIMESTAMPING
                    | libc::SO_TXTIME
                    | FIRST_NEW..=LAST_NEW
            )
        }
        IPPROTO_TCP => {
            matches!(
                name,
                libc::TCP_MD5SIG | libc::TCP_MD5SIG_EXT | libc::TCP_REPAIR | libc::TCP_ULP | FIRST_AO
                    ..=LAST_AO
            )
        }
        IPPROTO_IP => matches!(name, libc::IP_OPTIONS | libc::IP_IPSEC_POLICY | libc::IP_XFRM_POLICY),
        IPPROTO_IPV6 => matches!(
            name,
            libc::IPV6_2292PKTOPTIONS
                | libc::IPV6_NEXTHOP
                | libc::IPV6_FLOWLABEL_MGR
                | libc::IPV6_IPSEC_POLICY
                | libc::IPV6_XFRM_POLICY
                | libc::IPV6_PKTINFO
                | libc::IPV6_HOPOPTS
                | libc::IPV6_RTHDRDSTOPTS
                | libc::IPV6_RTHDR
                | libc::IPV6_DSTOPTS
        ),
        _ => false,
    }
}

/// Whether an option binds a socket to an interface.
pub(crate) const fn binds_to_interface(level: c_int, name: c_int) -> bool {
    level == SOL_SOCKET && matches!(name, libc::SO_BINDTODEVICE | libc::SO_BINDTOIFINDEX)
}

pub(crate) fn index_of(level: c_int, name: c_int) -> Option<usize> {
    let table = match level {
        SOL_SOCKET => &OF_SOCKET,
        IPPROTO_TCP => &OF_TCP,
        IPPROTO_IP => &OF_IP,
        IPPROTO_IPV6 => &OF_IPV6,
        _ => return None,
    };
    let index = *table.get(usize::try_from(name).ok()?)?;
    (index != UNKNOWN).then_some(usize::from(index))
}

pub(crate) fn word(held: &Held, index: usize) -> &AtomicU64 {
    match held.end() {
        Some(end) => &end.private().options[index],
        None => &held.socket.options[index],
    }
}

/// A name that the program set: whether it can be remembered, how, and whether an engine has it.
///
/// # Safety
/// `value` may be read for `length` bytes.
pub(crate) unsafe fn word_of(value: *const c_void, length: socklen_t) -> Option<(bool, u64, bool)> {
    if value.is_null() {
        return None;
    }
    let mut name = [0_u8; 15];
    let length = (length as usize).min(name.len());
    // SAFETY: the caller upholds this function's contract.
    unsafe { user_memory::write_bytes(name.as_mut_ptr(), value.cast(), length) }.ok()?;
    let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    let name = &name[..end];
    let encoded = name.iter().take(8).rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    Some((name.len() <= 8 && name.is_ascii(), encoded & !SET, ALGORITHMS.contains(&name)))
}

pub(crate) fn encode_time(time: libc::timeval) -> Result<u64, Errno> {
    if !(0..1_000_000).contains(&time.tv_usec) {
        return Err(libc::EDOM);
    }
    if time.tv_sec < 0 {
        // Linux: no waiting at all.
        return Ok(1);
    }
    Ok((time.tv_sec.cast_unsigned().saturating_mul(1_000_000_000) + time.tv_usec.cast_unsigned() * 1000)
        .min(SET - 1))
}
