//! Socket options of our sockets.
//!
//! 1. [`KNOWN`] lists the options that we remember, each with a place in the end's private page (so that all who hold the end agree) or, for
//!    listeners, in the description. A word of 0 means that the program never set it; otherwise the top bit is set.
//! 2. When a kernel's socket becomes ours, the options that the program set on it are read from the kernel and remembered. What a listener
//!    remembers its connections inherit.
//! 3. An option that we do not remember is tried on a fresh kernel's TCP socket: so its errno and its default are the kernel's. It changes
//!    nothing on a connection that no packet leaves.
//! 4. What has an effect: timeouts, SO_RCVLOWAT, SO_LINGER with a time of zero, SO_SNDBUF. The rest is told back as it was set.

use std::ffi::{c_int, c_void};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use libc::socklen_t;

use crate::end::{End, flag, state};
use crate::receive;
use crate::socket;
use crate::sys::{self, Errno, Outcome, address, address_mut, signed};
use crate::table::{Held, Kind, facts};

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
    /// An `int` that the kernel has to judge: tried on a kernel's socket, and what that says is remembered.
    Tried,
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

const KNOWN: [Known; 32] = [
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
];

/// An option that was set has this bit.
const SET: u64 = 1 << 63;

fn place(level: c_int, name: c_int) -> Option<usize> {
    KNOWN.iter().position(|known| known.level == level && known.name == name)
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
        let answer = unsafe { kernel_set(fd, level, name, value, length) };
        if let (Ok(_), Some(place)) = (answer, place(level, name)) {
            held.facts.set.fetch_or(1 << place, Relaxed);
        }
        return answer;
    }
    let Some(place) = place(level, name) else {
        // SAFETY: the caller's.
        return with_kernel_socket(held, |kernel| unsafe { kernel_set(kernel, level, name, value, length) });
    };
    let known = &KNOWN[place];
    let bytes = match known.shape {
        // The kernel judges.
        Shape::Tried => 0,
        Shape::Time => size_of::<libc::timeval>(),
        Shape::Linger => size_of::<libc::linger>(),
        _ => 4,
    };
    if (length as usize) < bytes || length.cast_signed() < 0 {
        return Err(libc::EINVAL);
    }
    if value.is_null() && known.shape != Shape::Tried {
        return Err(libc::EFAULT);
    }
    let number = || {
        // SAFETY: the caller's: at least four bytes; they need not be aligned.
        unsafe { value.cast::<c_int>().read_unaligned() }
    };
    let encoded = match known.shape {
        Shape::Switch => u64::from(number() != 0),
        Shape::Number(low, high) => {
            let number = number();
            if !(low..=high).contains(&number) {
                return Err(if known.level == SOL_SOCKET { libc::EPERM } else { libc::EINVAL });
            }
            if place == RECEIVE_LOW && number < 0 {
                i32::MAX.cast_unsigned().into()
            } else {
                u64::from(if place == RECEIVE_LOW { number.max(1) } else { number }.cast_unsigned())
            }
        }
        Shape::Buffer => u64::from(buffer(place, number()).cast_unsigned()),
        // SAFETY: the caller's: `length` was compared above.
        Shape::Time => encode_time(unsafe { value.cast::<libc::timeval>().read_unaligned() })?,
        Shape::Linger => {
            // SAFETY: the caller's: `length` was compared above.
            let linger = unsafe { value.cast::<libc::linger>().read_unaligned() };
            u64::from(linger.l_onoff != 0) << 32 | u64::from(linger.l_linger.cast_unsigned())
        }
        Shape::Tried => with_kernel_socket(held, |kernel| {
            // SAFETY: the caller's.
            unsafe { kernel_set(kernel, level, name, value, length) }?;
            sys::socket_option(kernel, level, name).map(|value| value.cast_unsigned() as usize)
        })? as u64,
    };
    word(held, place).store(SET | encoded & !SET, Release);
    match held.end() {
        Some(end) => apply(end),
        None if place == RECEIVE_TIMEOUT => set_accept_timeout(fd, held),
        None => {}
    }
    Ok(0)
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

/// Linux doubles what is asked for and keeps it between a minimum and twice `net.core.[rw]mem_max` (212992 unless it was changed).
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
    if let Some(linger) = of_end(end, LINGER) {
        end.abort_on_close(linger == 1 << 32);
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
    let room = unsafe { length.read_unaligned() };
    if room.cast_signed() < 0 {
        return Err(libc::EINVAL);
    }
    let give = |bytes: &[u8]| {
        let now = bytes.len().min(room as usize);
        if now != 0 && value.is_null() {
            return Err(libc::EFAULT);
        }
        // SAFETY: the caller's: as many bytes as `room` says.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), value.cast::<u8>(), now);
            length.write_unaligned(now as socklen_t);
        }
        Ok(0)
    };
    let give_number = |number: c_int| give(&number.to_ne_bytes());
    let listening = held.kind() == Kind::Listener;
    socket::look_again(fd, held);
    match (level, name) {
        (SOL_SOCKET, libc::SO_ERROR) => return give_number(held.end().map_or(0, error)),
        (SOL_SOCKET, libc::SO_TYPE) => return give_number(libc::SOCK_STREAM),
        (SOL_SOCKET, libc::SO_PROTOCOL) => return give_number(IPPROTO_TCP),
        (SOL_SOCKET, libc::SO_DOMAIN) => return give_number(held.facts.domain.load(Relaxed).cast_signed()),
        (SOL_SOCKET, libc::SO_ACCEPTCONN) => {
            let stopped = held.facts.flags.load(Acquire) & facts::STOPPED != 0;
            return give_number(c_int::from(listening && !stopped));
        }
        (SOL_SOCKET, libc::SO_COOKIE | libc::SO_NETNS_COOKIE) => return from_kernel(fd),
        (SOL_SOCKET, libc::SO_PEERNAME) => {
            let Some((name, bytes)) = socket::peer_of(held) else { return Err(libc::ENOTCONN) };
            return if room < bytes { Err(libc::EINVAL) } else { give(&name[..bytes as usize]) };
        }
        (IPPROTO_TCP, libc::TCP_INFO) => return give(&information(held)),
        _ => {}
    }
    let Some(place) = place(level, name) else { return with_kernel_socket(held, from_kernel) };
    let stored = word(held, place).load(Acquire);
    let known = &KNOWN[place];
    if stored & SET == 0 && known.shape == Shape::Tried && !(listening && known.name == libc::TCP_MAXSEG) {
        if known.name == libc::TCP_MAXSEG {
            return give_number(known.default);
        }
        return with_kernel_socket(held, from_kernel);
    }
    let stored_value = stored & !SET;
    match known.shape {
        Shape::Time => {
            let nanoseconds = stored_value.cast_signed();
            let (seconds, rest) = (nanoseconds / 1_000_000_000, nanoseconds % 1_000_000_000 / 1000);
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&seconds.to_ne_bytes());
            bytes[8..].copy_from_slice(&rest.to_ne_bytes());
            give(&bytes)
        }
        Shape::Linger => {
            let mut bytes = [0; 8];
            bytes[..4].copy_from_slice(&((stored_value >> 32) as u32).to_ne_bytes());
            bytes[4..].copy_from_slice(&(stored_value as u32).to_ne_bytes());
            give(&bytes)
        }
        _ if stored & SET == 0 => give_number(known.default),
        _ => give_number((stored_value as u32).cast_signed()),
    }
}

/// `SO_ERROR`: the error that is still to be told, which is then told.
fn error(end: &End) -> c_int {
    receive::take_error(end).unwrap_or(0)
}

/// The beginning of a `struct tcp_info`: the state, sizes of segments and buffers. Nothing is ever lost or in flight.
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
    put(56, 65_536);
    put(60, 65_536);
    put(64, 20);
    put(68, 10);
    put(72, c_int::MAX.cast_unsigned());
    put(76, 10);
    put(80, SEGMENT);
    put(84, 3);
    put(92, 65_536);
    bytes
}

/// Remembers what the program set on a kernel's socket that becomes ours.
pub fn remember(kernel: c_int, held: &Held) {
    let set = held.facts.set.load(Relaxed);
    for (place, known) in KNOWN.iter().enumerate().filter(|(place, _)| set >> place & 1 != 0) {
        let encoded = match known.shape {
            Shape::Time | Shape::Linger => wide(kernel, known),
            _ => sys::socket_option(kernel, known.level, known.name)
                .ok()
                .map(|value| u64::from(value.cast_unsigned())),
        };
        if let Some(encoded) = encoded {
            held.facts.options[place].store(SET | encoded & !SET, Relaxed);
        }
    }
}

fn wide(kernel: c_int, known: &Known) -> Option<u64> {
    let mut words = [0_i64; 2];
    let mut length: socklen_t = 16;
    // SAFETY: sixteen bytes may be written.
    unsafe { kernel_get(kernel, known.level, known.name, words.as_mut_ptr().cast(), &raw mut length) }
        .ok()?;
    if known.shape == Shape::Time {
        return encode_time(libc::timeval { tv_sec: words[0], tv_usec: words[1] }).ok();
    }
    let [on_off, linger] = [words[0] as u32, (words[0].cast_unsigned() >> 32) as u32];
    Some(u64::from(on_off != 0) << 32 | u64::from(linger))
}

/// Gives an end the options that a socket or a listener remembers.
pub fn hand_on(from: &Held, end: &End) {
    for (to, from) in end.private().options.iter().zip(&from.facts.options) {
        let value = from.load(Relaxed);
        if value != 0 {
            to.store(value, Relaxed);
        }
    }
    apply(end);
}

/// What a listener's option is, for who makes its kernel's socket again.
pub fn each_set(held: &Held, mut each: impl FnMut(c_int, c_int, c_int)) {
    for (place, known) in KNOWN.iter().enumerate() {
        let value = held.facts.options[place].load(Relaxed);
        if value & SET != 0 && !matches!(known.shape, Shape::Time | Shape::Linger) {
            let value = (value as u32).cast_signed();
            each(known.level, known.name, if known.shape == Shape::Buffer { value / 2 } else { value });
        }
    }
}

/// Does something with a fresh kernel's socket of the same family.
pub fn with_kernel_socket(held: &Held, act: impl FnOnce(c_int) -> Outcome) -> Outcome {
    let domain = held.facts.domain.load(Relaxed).cast_signed();
    let kernel = sys::socket(domain, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0)?;
    let kernel = c_int::try_from(kernel).unwrap_or(-1);
    let answer = act(kernel);
    let _ = sys::close(kernel);
    answer
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
