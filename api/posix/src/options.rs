//! Socket options of our sockets.
//!
//! 1. [`KNOWN`] lists the options that we remember, each with a place in the end's private page (so
//!    that all who hold the end agree) or, for listeners, in the description. A word of 0 means
//!    that the program never set it; otherwise the top bit is set.
//! 2. When a kernel's socket becomes ours, the options that the program set on it are read from the
//!    kernel and remembered. What a listener remembers its connections inherit.
//! 3. An option that we do not remember is tried on a fresh kernel's TCP socket: so its errno and
//!    its default are the kernel's. It changes nothing on a connection that no packet leaves.
//! 4. What has an effect: timeouts, SO_RCVLOWAT, SO_LINGER with a time of zero, SO_SNDBUF. The rest
//!    is told back as it was set.
//! 5. A connection of a VNIC has an engine behind it, in the service: it is told when an option of
//!    its changes ([`announce`]), TCP_INFO is asked of it, and it has its own algorithms of
//!    congestion control.

use std::ffi::{c_int, c_void};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use libc::socklen_t;
use sietch_protocol::socket_service as protocol;
use sietch_ring::stream::option;

use crate::context;
use crate::end::{End, flag, state};
use crate::faults;
use crate::receive;
use crate::room;
use crate::service;
use crate::sleep;
use crate::socket;
use crate::sys::{self, Errno, Outcome, address, address_mut, signed};
use crate::table::{Held, Kind, facts};
use crate::wait::Section;

mod kernel;

pub use kernel::{inherit, remember};

/// How an option's value looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// An `int`; set by anything that is not 0, told as 0 or 1.
    Switch,
    /// An `int` in bounds; outside them EINVAL.
    Number(c_int, c_int),
    /// Buffer sizes: told twice as large as set, within bounds.
    Buffer,
    /// A `struct timeval`.
    Time,
    /// A `struct linger`.
    Linger,
    /// An `int` that the kernel has to judge: tried on a kernel's socket, and what that says is
    /// remembered.
    Tried,
    /// A name of at most fifteen letters, of which eight are remembered; judged as the above.
    Word,
}

struct Known {
    level: c_int,
    name: c_int,
    shape: Shape,
    /// What the kernel says if it was never set.
    default: c_int,
}

const fn known(level: c_int, name: c_int, shape: Shape, default: c_int) -> Known {
    Known { level, name, shape, default }
}

use libc::{IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, SOL_SOCKET};

/// Place of SO_LINGER.
pub const LINGER: usize = 0;
/// Place of SO_RCVTIMEO.
pub const RECEIVE_TIMEOUT: usize = 1;
/// Place of SO_SNDTIMEO.
pub const SEND_TIMEOUT: usize = 2;
/// Place of SO_RCVLOWAT.
pub const RECEIVE_LOW: usize = 3;
/// Place of SO_SNDBUF.
const SEND_BUFFER: usize = 4;
/// Place of TCP_FASTOPEN, a listener's alone.
const FASTOPEN: usize = 34;
/// Place of IPV6_V6ONLY.
pub const ONLY_IPV6: usize = 29;

/// `SO_BUSY_POLL` and `IP_BIND_ADDRESS_NO_PORT` of the kernel's headers.
const BUSY_POLL: c_int = 46;
const BIND_ADDRESS_NO_PORT: c_int = 24;

const KNOWN: [Known; 38] = [
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
    known(SOL_SOCKET, libc::SO_TIMESTAMP, Shape::Switch, 0),
    known(IPPROTO_TCP, libc::TCP_NODELAY, Shape::Switch, 0),
    known(IPPROTO_TCP, libc::TCP_CORK, Shape::Switch, 0),
    known(IPPROTO_TCP, libc::TCP_QUICKACK, Shape::Switch, 1),
    known(IPPROTO_TCP, libc::TCP_KEEPIDLE, Shape::Number(1, 32767), 7200),
    known(IPPROTO_TCP, libc::TCP_KEEPINTVL, Shape::Number(1, 32767), 75),
    known(IPPROTO_TCP, libc::TCP_KEEPCNT, Shape::Number(1, 127), 9),
    known(IPPROTO_TCP, libc::TCP_SYNCNT, Shape::Number(1, 127), 6),
    known(IPPROTO_TCP, libc::TCP_USER_TIMEOUT, Shape::Number(0, c_int::MAX), 0),
    known(IPPROTO_TCP, libc::TCP_MAXSEG, Shape::Tried, 65_483),
    known(IPPROTO_TCP, libc::TCP_LINGER2, Shape::Tried, 60),
    known(IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, Shape::Tried, 0),
    known(IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, Shape::Tried, 0),
    known(IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, Shape::Tried, 0),
    known(IPPROTO_IP, libc::IP_TOS, Shape::Tried, 0),
    known(IPPROTO_IP, libc::IP_TTL, Shape::Tried, 64),
    known(IPPROTO_IPV6, libc::IPV6_V6ONLY, Shape::Tried, 0),
    known(IPPROTO_IPV6, libc::IPV6_TCLASS, Shape::Tried, 0),
    known(IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, Shape::Tried, 64),
    known(IPPROTO_TCP, libc::TCP_CONGESTION, Shape::Word, 0),
    known(SOL_SOCKET, libc::SO_MAX_PACING_RATE, Shape::Tried, -1),
    known(IPPROTO_TCP, libc::TCP_FASTOPEN, Shape::Tried, 0),
    known(IPPROTO_IP, libc::IP_MTU_DISCOVER, Shape::Tried, 0),
    known(IPPROTO_IP, BIND_ADDRESS_NO_PORT, Shape::Tried, 0),
    known(SOL_SOCKET, BUSY_POLL, Shape::Tried, 0),
];

const _: () = {
    // The last place is `crate::mapped`'s.
    assert!(KNOWN.len() < crate::table::OPTIONS);
    assert!(KNOWN[FASTOPEN].name == libc::TCP_FASTOPEN && KNOWN[FASTOPEN].level == IPPROTO_TCP);
    assert!(KNOWN[ONLY_IPV6].name == libc::IPV6_V6ONLY && KNOWN[ONLY_IPV6].level == IPPROTO_IPV6);
};

/// Places of what an engine does.
const OF_ENGINE: [usize; 14] = [
    option::RECEIVE_BUFFER,
    option::KEEPALIVE,
    option::NO_DELAY,
    option::CORK,
    option::KEEP_IDLE,
    option::KEEP_INTERVAL,
    option::KEEP_COUNT,
    option::USER_TIMEOUT,
    option::TYPE_OF_SERVICE,
    option::TIME_TO_LIVE,
    option::TRAFFIC_CLASS,
    option::HOP_LIMIT,
    option::CONGESTION,
    option::PACING_RATE,
];

/// Algorithms of congestion control that an engine has; the first is what it does by itself.
const ALGORITHMS: [&[u8]; 5] = [b"cubic", b"reno", b"newreno", b"dctcp", b"timely"];

/// An option that was set has this bit.
const SET: u64 = option::SET;

/// Names that the tables of [`place`] cover: all that are known.
const NAMES: usize = 80;

/// No option of that name.
const UNKNOWN: u8 = u8::MAX;

/// Places by name, of a level. Programs set options with every request (nginx corks and uncorks),
/// so they are not searched for.
const fn places(level: c_int) -> [u8; NAMES] {
    let mut table = [UNKNOWN; NAMES];
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

static OF_SOCKET: [u8; NAMES] = places(SOL_SOCKET);
static OF_TCP: [u8; NAMES] = places(IPPROTO_TCP);
static OF_IP: [u8; NAMES] = places(IPPROTO_IP);
static OF_IPV6: [u8; NAMES] = places(IPPROTO_IPV6);

fn place(level: c_int, name: c_int) -> Option<usize> {
    let table = match level {
        SOL_SOCKET => &OF_SOCKET,
        IPPROTO_TCP => &OF_TCP,
        IPPROTO_IP => &OF_IP,
        IPPROTO_IPV6 => &OF_IPV6,
        _ => return None,
    };
    let place = *table.get(usize::try_from(name).ok()?)?;
    (place != UNKNOWN).then_some(usize::from(place))
}

fn word(held: &Held, place: usize) -> &AtomicU64 {
    match held.end() {
        Some(end) => &end.private().options[place],
        None => &held.facts.options[place],
    }
}

/// What was set at a place of an end.
#[inline]
pub fn of_end(end: &End, place: usize) -> Option<u64> {
    let word = end.private().options[place].load(Relaxed);
    (word & SET != 0).then_some(word & !SET)
}

/// When a call that begins now must end, if the option at `place` is a time.
#[inline]
pub fn deadline(end: &End, place: usize) -> Option<u64> {
    of_end(end, place).filter(|time| *time != 0).map(|time| sys::now().saturating_add(time))
}

/// `setsockopt` of any of our sockets.
///
/// # Safety
/// `value` may be read for `length` bytes.
///
/// # Errors
/// As `setsockopt(2)`.
pub unsafe fn set(
    fd: c_int,
    held: &Held,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> Outcome {
    if held.kind() == Kind::Pending {
        // SAFETY: the caller's.
        return unsafe { set_pending(fd, held, level, name, value, length) };
    }
    let Some(place) = place(level, name) else {
        // SAFETY: the caller's.
        return with_kernel_socket(held, |kernel| unsafe { kernel_set(kernel, level, name, value, length) });
    };
    let known = &KNOWN[place];
    let bytes = match known.shape {
        // The kernel judges.
        Shape::Tried => 0,
        Shape::Word => 1,
        Shape::Time => size_of::<libc::timeval>(),
        Shape::Linger => size_of::<libc::linger>(),
        _ => 4,
    };
    if (length as usize) < bytes || length.cast_signed() < 0 {
        // Which error that is, the kernel says.
        // SAFETY: the caller's.
        return with_kernel_socket(held, |kernel| unsafe { kernel_set(kernel, level, name, value, length) });
    }
    refused_by_state(held, place, length)?;
    // What is tried, the kernel reads.
    if known.shape != Shape::Tried && !faults::is_readable(value, bytes) {
        return Err(libc::EFAULT);
    }
    let number = || {
        // SAFETY: the caller's: at least four bytes; they need not be aligned.
        unsafe { value.cast::<c_int>().read_unaligned() }
    };
    let encoded = match known.shape {
        Shape::Switch => u64::from(number() != 0),
        Shape::Number(low, high) => bounded(known.level, place, number(), low..=high)?,
        Shape::Buffer => u64::from(buffer(place, number()).cast_unsigned()),
        // SAFETY: the caller's: `length` was compared above.
        Shape::Time => encode_time(unsafe { value.cast::<libc::timeval>().read_unaligned() })?,
        Shape::Linger => {
            // SAFETY: the caller's: `length` was compared above.
            let linger = unsafe { value.cast::<libc::linger>().read_unaligned() };
            u64::from(linger.l_onoff != 0) << 32 | u64::from(linger.l_linger.cast_unsigned())
        }
        Shape::Word => {
            // SAFETY: the caller's: `length` was compared above.
            let (fits, encoded, known) = unsafe { word_of(value, length) }.ok_or(libc::EFAULT)?;
            if is_served(held) {
                known.then_some(encoded).ok_or(libc::ENOENT)?
            } else {
                // SAFETY: the caller's.
                let tried = |kernel| unsafe { kernel_set(kernel, level, name, value, length) };
                let answer = with_kernel_socket(held, tried)?;
                if !fits {
                    return Ok(answer);
                }
                encoded
            }
        }
        Shape::Tried => with_kernel_socket(held, |kernel| {
            // SAFETY: the caller's.
            unsafe { kernel_set(kernel, level, name, value, length) }?;
            sys::socket_option(kernel, level, name).map(|value| value.cast_unsigned() as usize)
        })? as u64,
    };
    word(held, place).store(SET | encoded & !SET, Release);
    match held.end() {
        Some(end) => take_effect(fd, end, place),
        None if place == RECEIVE_TIMEOUT => set_accept_timeout(fd, held),
        None => {}
    }
    Ok(0)
}

/// What an option that was set does to a connection at once.
fn take_effect(fd: c_int, end: &End, place: usize) {
    apply(end);
    let served = end.private().has(flag::SERVED);
    match place {
        // As on Linux, clearing TCP_CORK sends held bytes; so does setting TCP_NODELAY, even while
        // corked.
        option::CORK | option::NO_DELAY if !served => {
            let section = Section::enter();
            end.push();
            drop(section);
            sleep::ring(fd, end, end.ring_for_data());
        }
        // Publishing the linger flag has published held bytes as well.
        LINGER => sleep::ring(fd, end, end.ring_for_data()),
        // Servers set TCP_CORK with every reply, so the engine is notified only if it sleeps. An
        // engine that polls reads the option before it cuts the next segment.
        option::CORK => {
            end.announce();
            sleep::ring(fd, end, end.ring_for_data());
        }
        _ if OF_ENGINE.contains(&place) => announce(fd, end),
        _ => {}
    }
}

/// The same of a socket that is still the kernel's.
///
/// # Safety
/// `value` may be read for `length` bytes.
unsafe fn set_pending(
    fd: c_int,
    held: &Held,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> Outcome {
    // SAFETY: the caller's.
    let answer = unsafe { kernel_set(fd, level, name, value, length) };
    let Some(place) = place(level, name) else { return answer };
    // SAFETY: the caller's.
    let word = if KNOWN[place].shape == Shape::Word { unsafe { word_of(value, length) } } else { None };
    match (answer, word) {
        (Ok(_), _) => {
            held.facts.set.fetch_or(1 << place, Relaxed);
        }
        // The kernel may not have what the VNIC's engine has.
        (Err(libc::ENOENT), Some((_, encoded, true)))
            if context::get().is_some_and(|it| it.vnic().is_some()) =>
        {
            held.facts.options[place].store(SET | encoded, Relaxed);
            return Ok(0);
        }
        (Err(_), _) => {}
    }
    answer
}

/// A name that the program set: whether it can be remembered, how, and whether an engine has it.
///
/// # Safety
/// `value` may be read for `length` bytes.
unsafe fn word_of(value: *const c_void, length: socklen_t) -> Option<(bool, u64, bool)> {
    if value.is_null() {
        return None;
    }
    let mut name = [0_u8; 15];
    let length = (length as usize).min(name.len());
    // SAFETY: the caller's.
    unsafe { faults::write_bytes(name.as_mut_ptr(), value.cast(), length) }.ok()?;
    let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    let name = &name[..end];
    let encoded = name.iter().take(8).rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    Some((name.len() <= 8 && name.is_ascii(), encoded & !SET, ALGORITHMS.contains(&name)))
}

/// Whether there is an engine behind this connection.
fn is_served(held: &Held) -> bool {
    held.end().is_some_and(|end| end.private().has(flag::SERVED))
}

/// Tells the engine behind a connection, if there is one, that its options are others.
pub fn announce(fd: c_int, end: &End) {
    if end.private().has(flag::SERVED) {
        end.announce();
        sleep::ring_always(fd);
    }
}

/// The same for a connection that has just got what its socket or listener remembers.
pub fn announce_inherited(fd: c_int, end: &End) {
    if OF_ENGINE.iter().any(|place| of_end(end, *place).is_some()) {
        announce(fd, end);
    }
}

/// What the kernel refuses because of what has become of the socket, which a fresh one does not
/// know.
fn refused_by_state(held: &Held, place: usize, length: socklen_t) -> Result<(), Errno> {
    let over = held.end().is_some_and(socket::is_over);
    let six = held.facts.domain.load(Relaxed) == libc::AF_INET6.cast_unsigned();
    let refused = match place {
        FASTOPEN => held.end().is_some() && !over,
        ONLY_IPV6 => six && !over,
        _ => false,
    };
    if refused && length >= 4 { Err(libc::EINVAL) } else { Ok(()) }
}

/// A pending socket was bound. To a name of IPv6 that is no wildcard, Linux then gives IPv6 alone.
pub fn note_bound(held: &Held) {
    if held.facts.domain.load(Relaxed) == libc::AF_INET6.cast_unsigned() {
        held.facts.set.fetch_or(1 << ONLY_IPV6, Relaxed);
    }
}

/// Gives a listener's placeholder the time-out that accept has, whose sleep is the kernel's.
pub fn set_accept_timeout(fd: c_int, held: &Held) {
    let word = held.facts.options[RECEIVE_TIMEOUT].load(Relaxed);
    if word & SET == 0 {
        return;
    }
    let nanoseconds = (word & !SET).cast_signed();
    let time =
        libc::timeval { tv_sec: nanoseconds / 1_000_000_000, tv_usec: nanoseconds % 1_000_000_000 / 1000 };
    let (from, length) = ((&raw const time).cast(), size_of_val(&time) as socklen_t);
    // SAFETY: a time.
    let _ = unsafe { kernel_set(fd, SOL_SOCKET, libc::SO_RCVTIMEO, from, length) };
}

/// A number that has bounds.
fn bounded(
    level: c_int,
    place: usize,
    number: c_int,
    bounds: std::ops::RangeInclusive<c_int>,
) -> Result<u64, Errno> {
    if !bounds.contains(&number) {
        return Err(if level == SOL_SOCKET { libc::EPERM } else { libc::EINVAL });
    }
    Ok(match number {
        _ if place != RECEIVE_LOW => number.cast_unsigned().into(),
        ..0 => i32::MAX.cast_unsigned().into(),
        _ => number.max(1).cast_unsigned().into(),
    })
}

/// Linux doubles what is asked for and keeps it between a minimum and twice `net.core.[rw]mem_max`
/// (212992 unless it was changed).
fn buffer(place: usize, asked: c_int) -> c_int {
    let least = if place == SEND_BUFFER { 4608 } else { 2304 };
    (asked.clamp(0, 212_992) * 2).max(least)
}

fn encode_time(time: libc::timeval) -> Result<u64, Errno> {
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

/// Lets options that were just set or inherited take their effect.
pub fn apply(end: &End) {
    // No handler jumps out of it and leaves a lock.
    let _section = Section::enter();
    if let Some(linger) = of_end(end, LINGER) {
        end.abort_on_close(linger == 1 << 32);
        if end.private().has(flag::SHUT_RD | flag::SHUT_WR) {
            // What it said of that has been written over.
            end.closing();
        }
    }
    match of_end(end, option::CORK) {
        Some(1) if !end.private().has(flag::SERVED) => drop(end.private().set(flag::CORKED)),
        _ => drop(end.private().clear(flag::CORKED)),
    }
    if let Some(bytes) = of_end(end, SEND_BUFFER) {
        let log2 = 63 - bytes.max(1).leading_zeros();
        end.private().send_limit.store(log2, Relaxed);
    }
}

/// `getsockopt` of any of our sockets.
///
/// # Safety
/// `length` may be read and written, `value` written for as many bytes as it says.
///
/// # Errors
/// As `getsockopt(2)`.
pub unsafe fn get(
    fd: c_int,
    held: &Held,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> Outcome {
    // SAFETY: the caller's.
    let from_kernel = |fd: c_int| unsafe { kernel_get(fd, level, name, value, length) };
    if held.kind() == Kind::Pending {
        return from_kernel(fd);
    }
    if length.is_null() {
        return Err(libc::EFAULT);
    }
    // SAFETY: the caller's.
    let room = unsafe { faults::read(length) }?;
    if room.cast_signed() < 0 {
        // Which error that is, the kernel says.
        return with_kernel_socket(held, from_kernel);
    }
    let answer = Answer { value, length, room, of_ip: level == IPPROTO_IP };
    socket::look_again(fd, held);
    if let Some(told) = told(fd, held, level, name, &answer) {
        return told;
    }
    let Some(place) = place(level, name) else { return with_kernel_socket(held, from_kernel) };
    let stored = word(held, place).load(Acquire);
    let known = &KNOWN[place];
    let segment = (known.level, known.name) == (IPPROTO_TCP, libc::TCP_MAXSEG);
    if stored & SET == 0 && known.shape == Shape::Tried && !(held.kind() == Kind::Listener && segment) {
        if segment {
            return answer.number(known.default);
        }
        return with_kernel_socket(held, from_kernel);
    }
    let stored_value = stored & !SET;
    match known.shape {
        Shape::Time => answer.bytes(&time_bytes(stored_value)),
        Shape::Linger => answer.bytes(&linger_bytes(stored_value)),
        _ if stored & SET == 0 => answer.number(known.default),
        _ => answer.number((stored_value as u32).cast_signed()),
    }
}

/// Answers `getsockopt` with a number.
///
/// # Safety
/// As [`get`].
///
/// # Errors
/// `EFAULT`, `EINVAL`.
pub unsafe fn give_number(value: *mut c_void, length: *mut socklen_t, number: c_int) -> Outcome {
    if length.is_null() {
        return Err(libc::EFAULT);
    }
    // SAFETY: the caller's.
    let room = unsafe { faults::read(length) }?;
    if room.cast_signed() < 0 {
        return Err(libc::EINVAL);
    }
    Answer { value, length, room, of_ip: false }.number(number)
}

/// Where the answer of `getsockopt` goes.
struct Answer {
    value: *mut c_void,
    length: *mut socklen_t,
    room: socklen_t,
    of_ip: bool,
}

impl Answer {
    /// As many bytes as there is room for. The caller of `get` promised it.
    fn bytes(&self, bytes: &[u8]) -> Outcome {
        let now = bytes.len().min(self.room as usize);
        // SAFETY: the caller's of `get`: as many bytes as `room` says.
        unsafe {
            faults::write_bytes(self.value.cast(), bytes.as_ptr(), now)?;
            faults::write(self.length, now as socklen_t)?;
        }
        Ok(0)
    }

    fn number(&self, number: c_int) -> Outcome {
        match u8::try_from(number) {
            // Options of IP are told as a byte to who has no room for more.
            Ok(byte) if self.of_ip && (1..4).contains(&self.room) => self.bytes(&[byte]),
            _ => self.bytes(&number.to_ne_bytes()),
        }
    }
}

/// What is not remembered but found out; none: it is not one of these.
fn told(fd: c_int, held: &Held, level: c_int, name: c_int, answer: &Answer) -> Option<Outcome> {
    Some(match (level, name) {
        (SOL_SOCKET, libc::SO_ERROR) => answer.number(held.end().map_or(0, error)),
        (SOL_SOCKET, libc::SO_TYPE) => answer.number(libc::SOCK_STREAM),
        (SOL_SOCKET, libc::SO_PROTOCOL) => answer.number(IPPROTO_TCP),
        (SOL_SOCKET, libc::SO_DOMAIN) => answer.number(held.facts.domain.load(Relaxed).cast_signed()),
        (SOL_SOCKET, libc::SO_ACCEPTCONN) => {
            let stopped = held.facts.flags.load(Acquire) & facts::STOPPED != 0;
            answer.number(c_int::from(held.kind() == Kind::Listener && !stopped))
        }
        (SOL_SOCKET, libc::SO_COOKIE | libc::SO_NETNS_COOKIE) => {
            // SAFETY: the caller's of `get`.
            unsafe { kernel_get(fd, level, name, answer.value, answer.length) }
        }
        (SOL_SOCKET, libc::SO_PEERNAME) => match socket::peer_of(held) {
            None => Err(libc::ENOTCONN),
            Some((_, bytes)) if answer.room < bytes => Err(libc::EINVAL),
            Some((name, bytes)) => answer.bytes(&name[..bytes as usize]),
        },
        (IPPROTO_TCP, libc::TCP_INFO) => {
            let told = if is_served(held) { service::information(fd) } else { None };
            match told {
                Some((mut bytes, _)) => {
                    // What the program has shut down may still be on its way to the engine.
                    bytes[0] = information(held)[0];
                    answer.bytes(&bytes)
                }
                None => answer.bytes(&information(held)),
            }
        }
        (IPPROTO_TCP, libc::TCP_MAXSEG) if is_served(held) => {
            let told = service::information(fd).and_then(|(bytes, _)| bytes[16..].first_chunk().copied());
            answer.number(told.map_or(536, c_int::from_ne_bytes))
        }
        (IPPROTO_TCP, libc::TCP_CONGESTION) => {
            let stored = word(held, option::CONGESTION).load(Acquire);
            let mut name = [0; 16];
            if stored & SET != 0 {
                name[..8].copy_from_slice(&(stored & !SET).to_le_bytes());
            } else if is_served(held) {
                name[..ALGORITHMS[0].len()].copy_from_slice(ALGORITHMS[0]);
            } else {
                // SAFETY: the caller's of `get`.
                return Some(with_kernel_socket(held, |kernel| unsafe {
                    kernel_get(kernel, level, libc::TCP_CONGESTION, answer.value, answer.length)
                }));
            }
            answer.bytes(&name)
        }
        _ => return None,
    })
}

/// A `struct timeval`.
fn time_bytes(stored: u64) -> [u8; 16] {
    let nanoseconds = stored.cast_signed();
    let (seconds, rest) = (nanoseconds / 1_000_000_000, nanoseconds % 1_000_000_000 / 1000);
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&seconds.to_ne_bytes());
    bytes[8..].copy_from_slice(&rest.to_ne_bytes());
    bytes
}

/// A `struct linger`.
fn linger_bytes(stored: u64) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&((stored >> 32) as u32).to_ne_bytes());
    bytes[4..].copy_from_slice(&(stored as u32).to_ne_bytes());
    bytes
}

/// `SO_ERROR`: the error that is still to be told, which is then told.
fn error(end: &End) -> c_int {
    receive::take_error(end).unwrap_or(0)
}

/// The beginning of a `struct tcp_info`: the state, sizes of segments and buffers. Nothing is ever
/// lost or in flight.
fn information(held: &Held) -> [u8; 104] {
    const SEGMENT: u32 = 65_483;
    let mut bytes = [0; 104];
    bytes[0] = match held.end() {
        None => 10,
        Some(end) => {
            let ours = end.private().has(flag::SHUT_WR);
            let theirs = end.finished_by_peer() || end.private().has(flag::HUNG_UP);
            match (end.private().state.load(Acquire), ours, theirs) {
                _ if end.private().has(flag::RESET) => 7,
                (state::CONNECTING, ..) => 2,
                (state::FAILED, ..) => 7,
                (_, false, false) => 1,
                (_, true, false) => 5,
                (_, false, true) => 8,
                (_, true, true) => 7,
            }
        }
    };
    // Timestamps, SACK and window scaling were agreed; both scales are 7.
    bytes[5] = 7;
    bytes[6] = 0x77;
    let mut put = |at: usize, value: u32| bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    put(8, 200_000);
    put(12, 40_000);
    put(16, SEGMENT);
    put(20, 536);
    put(60, 65_536);
    put(64, 65_536);
    put(68, 20);
    put(72, 10);
    put(76, c_int::MAX.cast_unsigned());
    put(80, 10);
    put(84, SEGMENT);
    put(88, 3);
    put(96, 65_536);
    bytes
}

/// Gives an end the options that a socket or a listener remembers.
pub fn hand_on(from: &Held, end: &End) {
    for (place, (to, from)) in end.private().options.iter().zip(&from.facts.options).enumerate() {
        let value = from.load(Relaxed);
        if value != 0 && place != FASTOPEN {
            to.store(value, Relaxed);
        }
    }
    apply(end);
}

/// What a listener's option is, for who makes its kernel's socket again.
pub fn each_set(held: &Held, mut each: impl FnMut(c_int, c_int, c_int)) {
    for (place, known) in KNOWN.iter().enumerate() {
        let value = held.facts.options[place].load(Relaxed);
        if value & SET != 0 && !matches!(known.shape, Shape::Time | Shape::Linger | Shape::Word) {
            let value = (value as u32).cast_signed();
            each(known.level, known.name, if known.shape == Shape::Buffer { value / 2 } else { value });
        }
    }
}

/// Flags of a request about a listener's own name on a VNIC.
pub fn name_flags(held: &Held) -> u32 {
    let is_set = |level, name| {
        let stored = place(level, name).map_or(0, |place| held.facts.options[place].load(Relaxed));
        stored & !SET != 0
    };
    if is_set(IPPROTO_IPV6, libc::IPV6_V6ONLY) { protocol::ONLY_IPV6 } else { 0 }
}

/// Does something with a fresh kernel's socket of the same family.
pub fn with_kernel_socket(held: &Held, act: impl FnOnce(c_int) -> Outcome) -> Outcome {
    let domain = held.facts.domain.load(Relaxed).cast_signed();
    room::briefly(|| sys::socket(domain, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0), act)
}

/// # Safety
/// As `setsockopt(2)`.
unsafe fn kernel_set(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> Outcome {
    let arguments = [signed(fd), signed(level), signed(name), address(value), length as usize, 0];
    // SAFETY: the caller's.
    unsafe { sys::ask(libc::SYS_setsockopt, arguments) }
}

/// # Safety
/// As `getsockopt(2)`.
unsafe fn kernel_get(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> Outcome {
    let arguments = [signed(fd), signed(level), signed(name), address_mut(value), address_mut(length), 0];
    // SAFETY: the caller's.
    unsafe { sys::ask(libc::SYS_getsockopt, arguments) }
}
