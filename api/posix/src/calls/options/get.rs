//! `getsockopt` of a connection or a listener.
//!
//! 1. A pending socket is still the kernel's, and so is the answer.
//! 2. Some options are computed from the state of the end or queried from the engine behind it:
//!    SO_ERROR, TCP_INFO, the peer's name ([`computed`]).
//! 3. An option that the library remembers ([`KNOWN`]) returns the value that the program set, else
//!    the kernel's default.
//! 4. Every other option is read from a fresh kernel socket, so errors and defaults are the
//!    kernel's.
//!
//! The program's addresses may be invalid. Each read and write of them is checked, and gives
//! EFAULT.

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use libc::{IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, SOL_SOCKET, socklen_t};
use sietch_ring::stream::{Endpoint, flag, option, state};

use crate::connection::names;
use crate::connection::option_words::{self, PEEK_OFFSET, SET};
use crate::connection::status::{self, is_served};
use crate::descriptor::description::{Held, Kind, socket_flag};
use crate::descriptor::room::with_kernel_socket;
use crate::options::known::{ALGORITHMS, KNOWN, Shape, canonical, index_of, word};
use crate::options::others;
use crate::service::client;
use crate::signal::user_memory;
use crate::system::kernel;
use crate::system::sys::Outcome;

/// `getsockopt` of any of our sockets.
///
/// # Safety
/// `length` may be read and written, `value` written for as many bytes as it says.
///
/// # Errors
/// As `getsockopt(2)`.
pub(crate) unsafe fn get(
    fd: c_int,
    held: &Held,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> Outcome {
    // SAFETY: the caller upholds this function's contract.
    let from_kernel = |fd: c_int| unsafe { kernel::getsockopt(fd, level, name, value, length) };
    if held.kind() == Kind::Pending {
        return from_kernel(fd);
    }
    if length.is_null() {
        return Err(libc::EFAULT);
    }
    // SAFETY: the caller upholds this function's contract.
    let room = unsafe { user_memory::read(length) }?;
    if room.cast_signed() < 0 {
        // The kernel decides which error that is.
        return with_kernel_socket(held, from_kernel);
    }
    let answer = Answer { value, length, room, of_ip: level == IPPROTO_IP };
    status::refresh(fd, held);
    if let Some(value) = computed(fd, held, level, name, &answer) {
        return value;
    }
    let Some(index) = index_of(level, read_name(level, name)) else {
        return match others::get(held, level, name) {
            Some(value) => answer.number(value),
            None => with_kernel_socket(held, from_kernel),
        };
    };
    let stored = word(held, index).load(Acquire);
    let known = &KNOWN[index];
    let segment = (known.level, known.name) == (IPPROTO_TCP, libc::TCP_MAXSEG);
    if stored & SET == 0
        && known.shape == Shape::CheckedByKernel
        && !(held.kind() == Kind::Listener && segment)
    {
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
        _ if index == PEEK_OFFSET => {
            answer.number(option_words::peek_offset(stored_value, held.end().map_or(0, Endpoint::read)))
        }
        // Linux returns a `long` where there is room for one.
        _ if index == option::PACING_RATE && room >= 8 => {
            let rate = stored_value as u32;
            answer.bytes(&if rate == u32::MAX { u64::MAX } else { u64::from(rate) }.to_ne_bytes())
        }
        _ => answer.number((stored_value as u32).cast_signed()),
    }
}

/// The name that an option is read by: the two that exceed limits of buffers can only be set.
fn read_name(level: c_int, name: c_int) -> c_int {
    match (level, name) {
        (SOL_SOCKET, libc::SO_SNDBUFFORCE | libc::SO_RCVBUFFORCE) => name,
        _ => canonical(level, name),
    }
}

/// Answers `getsockopt` with a number.
///
/// # Safety
/// As [`get`].
///
/// # Errors
/// `EFAULT`, `EINVAL`.
pub(crate) unsafe fn write_number(value: *mut c_void, length: *mut socklen_t, number: c_int) -> Outcome {
    if length.is_null() {
        return Err(libc::EFAULT);
    }
    // SAFETY: the caller upholds this function's contract.
    let room = unsafe { user_memory::read(length) }?;
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
            user_memory::write_bytes(self.value.cast(), bytes.as_ptr(), now)?;
            user_memory::write(self.length, now as socklen_t)?;
        }
        Ok(0)
    }

    fn number(&self, number: c_int) -> Outcome {
        match u8::try_from(number) {
            // Options of IP are returned as one byte to a caller with less room than an `int`.
            Ok(byte) if self.of_ip && (1..4).contains(&self.room) => self.bytes(&[byte]),
            _ => self.bytes(&number.to_ne_bytes()),
        }
    }
}

/// Values that are not remembered but computed; none: it is not one of these.
fn computed(fd: c_int, held: &Held, level: c_int, name: c_int, answer: &Answer) -> Option<Outcome> {
    Some(match (level, name) {
        (SOL_SOCKET, libc::SO_ERROR) => answer.number(held.end().map_or(0, error)),
        (SOL_SOCKET, libc::SO_TYPE) => answer.number(libc::SOCK_STREAM),
        (SOL_SOCKET, libc::SO_PROTOCOL) => answer.number(IPPROTO_TCP),
        (SOL_SOCKET, libc::SO_DOMAIN) => answer.number(held.socket.domain.load(Relaxed).cast_signed()),
        (SOL_SOCKET, libc::SO_ACCEPTCONN) => {
            let stopped = held.socket.flags.load(Acquire) & socket_flag::STOPPED != 0;
            answer.number(c_int::from(held.kind() == Kind::Listener && !stopped))
        }
        (SOL_SOCKET, libc::SO_COOKIE | libc::SO_NETNS_COOKIE) => {
            // SAFETY: the caller's of `get`.
            unsafe { kernel::getsockopt(fd, level, name, answer.value, answer.length) }
        }
        (SOL_SOCKET, libc::SO_PEERNAME) => match names::peer_of(held) {
            None => Err(libc::ENOTCONN),
            // Linux refuses more room than there is name, and cuts the name off.
            Some((_, bytes)) if answer.room > bytes => Err(libc::EINVAL),
            Some((name, bytes)) => answer.bytes(&name[..bytes as usize]),
        },
        (IPPROTO_IP, libc::IP_MTU) | (IPPROTO_IPV6, libc::IPV6_MTU) if held.end().is_some() => {
            let of_engine = if is_served(held) { client::information(fd) } else { None };
            let path = of_engine.and_then(|(bytes, _)| bytes[PATH_MTU..].first_chunk().copied());
            let six = held.socket.domain.load(Relaxed) == libc::AF_INET6.cast_unsigned();
            // Of the loopback interface, which no packet of IPv4 can be as long as.
            answer.number(path.map_or(if six { 65_536 } else { 65_535 }, c_int::from_ne_bytes))
        }
        (IPPROTO_TCP, libc::TCP_INFO) => {
            let value = if is_served(held) { client::information(fd) } else { None };
            match value {
                Some((mut bytes, _)) => {
                    // What the program has shut down may still be on its way to the engine.
                    bytes[0] = information(held)[0];
                    answer.bytes(&bytes)
                }
                None => answer.bytes(&information(held)),
            }
        }
        (IPPROTO_TCP, libc::TCP_MAXSEG) if is_served(held) => {
            let value = client::information(fd).and_then(|(bytes, _)| bytes[16..].first_chunk().copied());
            answer.number(value.map_or(536, c_int::from_ne_bytes))
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
                    kernel::getsockopt(kernel, level, libc::TCP_CONGESTION, answer.value, answer.length)
                }));
            }
            answer.bytes(&name)
        }
        _ => return None,
    })
}

/// Where `tcpi_pmtu` of `struct tcp_info` is.
const PATH_MTU: usize = 60;

/// A `struct timeval`.
fn time_bytes(stored: u64) -> [u8; 16] {
    let nanoseconds = stored.cast_signed();
    let (seconds, remainder) = (nanoseconds / 1_000_000_000, nanoseconds % 1_000_000_000 / 1000);
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&seconds.to_ne_bytes());
    bytes[8..].copy_from_slice(&remainder.to_ne_bytes());
    bytes
}

/// A `struct linger`.
fn linger_bytes(stored: u64) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&((stored >> 32) as u32).to_ne_bytes());
    bytes[4..].copy_from_slice(&(stored as u32).to_ne_bytes());
    bytes
}

/// `SO_ERROR`: the pending error, which is then cleared.
fn error(end: &Endpoint) -> c_int {
    status::take_error(end).unwrap_or(0)
}

/// A `struct tcp_info` up to `tcpi_total_rto_time`: the state, sizes of segments and buffers, and
/// what the two programs have read. Nothing is ever lost or in flight. A segment is as large as one
/// of the kernel's loopback.
fn information(held: &Held) -> [u8; 248] {
    const SEGMENT: u32 = 65_483;
    let mut bytes = [0; 248];
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
    let Some(end) = held.end() else { return bytes };
    let (read, arrived) = (end.read_by_peer(), end.snapshot().arrived);
    let segments = |bytes: u64| bytes.div_ceil(u64::from(SEGMENT)) as u32;
    let (data_out, data_in) = (segments(read), segments(arrived));
    // The kernel counts those of the handshake, and none of them carries data.
    put(136, data_out.wrapping_add(1));
    put(140, data_in.wrapping_add(1));
    put(148, 20);
    put(152, data_in);
    put(156, data_out);
    put(192, data_out.wrapping_add(1));
    put(228, 65_536);
    put(232, 65_536);
    let mut put = |at: usize, value: u64| bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
    put(104, u64::MAX);
    put(112, u64::MAX);
    put(120, read);
    put(128, arrived);
    put(200, read);
    bytes
}
