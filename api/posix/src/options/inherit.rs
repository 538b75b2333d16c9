//! How a socket's options reach its connection: remembered when a kernel socket becomes ours,
//! passed on by a listener, announced to an engine.
//!
//! When a kernel socket becomes ours, the options that the program set on it are read from the
//! kernel and remembered ([`remember`]). Connections inherit what their listener remembers
//! ([`pass_on_to`]).

use std::ffi::c_int;
use std::sync::atomic::Ordering::Relaxed;

use libc::{IPPROTO_IPV6, IPPROTO_TCP, SOL_SOCKET, socklen_t};
use sietch_protocol::socket_service as protocol;
use sietch_ring::stream::{Endpoint, flag, option};

use crate::connection::option_words::{
    self, DEFER_ACCEPT, FASTOPEN, LINGER, ONLY_IPV6, PRIORITY, RECEIVE_TIMEOUT, SEND_BUFFER, SET,
};
use crate::connection::peer;
use crate::descriptor::description::{Held, Kind};
use crate::options::known::{KNOWN, Known, Shape, encode_time, index_of, word_of};
use crate::options::others;
use crate::signal::handlers::Section;
use crate::system::kernel;

/// Indices of options that an engine implements.
pub(crate) const ENGINE_OPTIONS: [usize; 14] = [
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

/// Indices of options that an accepted connection does not get from its listener.
const NOT_ACCEPTED: [usize; 3] = [FASTOPEN, PRIORITY, DEFER_ACCEPT];

/// Notifies the engine behind a connection, if there is one, that its options have changed.
pub(crate) fn announce(fd: c_int, end: &Endpoint) {
    if end.private().has(flag::SERVED) {
        end.announce();
        peer::notify_always(fd, end);
    }
}

/// The same for a connection that has just inherited options of its socket or listener.
pub(crate) fn announce_inherited(fd: c_int, end: &Endpoint) {
    if ENGINE_OPTIONS.iter().any(|index| option_words::get(end, *index).is_some()) {
        announce(fd, end);
    }
}

/// A pending socket was bound. For an IPv6 name that is no wildcard, Linux then sets IPV6_V6ONLY.
pub(crate) fn note_bound(held: &Held) {
    if held.socket.domain.load(Relaxed) == libc::AF_INET6.cast_unsigned() {
        held.socket.set.fetch_or(1 << ONLY_IPV6, Relaxed);
    }
}

/// Whether the program has switched off TCP_QUICKACK on a pending socket. The kernel then does not
/// acknowledge the answer to its SYN at once, and a program that resets the connection first
/// (HAProxy's health checks) is never accepted.
pub(crate) fn delays_acknowledgements(fd: c_int, held: &Held) -> bool {
    let set = held.socket.set.load(Relaxed);
    if index_of(IPPROTO_TCP, libc::TCP_QUICKACK).is_none_or(|index| set & (1 << index) == 0) {
        return false;
    }
    let (mut value, mut length): (c_int, socklen_t) = (1, size_of::<c_int>() as socklen_t);
    // SAFETY: a number and its length.
    let answer = unsafe {
        kernel::getsockopt(fd, IPPROTO_TCP, libc::TCP_QUICKACK, (&raw mut value).cast(), &raw mut length)
    };
    answer.is_ok() && value == 0
}

/// Sets the time-out of accept on a listener's placeholder, whose sleep is the kernel's.
pub(crate) fn set_accept_timeout(fd: c_int, held: &Held) {
    let word = held.socket.options[RECEIVE_TIMEOUT].load(Relaxed);
    if word & SET != 0 {
        set_time(fd, libc::SO_RCVTIMEO, word & !SET);
    }
}

fn set_time(fd: c_int, name: c_int, nanoseconds: u64) {
    let (seconds, rest) = (nanoseconds / 1_000_000_000, nanoseconds % 1_000_000_000);
    let time = libc::timeval { tv_sec: seconds.cast_signed(), tv_usec: (rest / 1000).cast_signed() };
    // SAFETY: a time.
    unsafe { set_value(fd, SOL_SOCKET, name, &time) };
}

/// # Safety
/// The value is that of the option.
unsafe fn set_value<T>(fd: c_int, level: c_int, name: c_int, value: &T) {
    let (from, length) = (std::ptr::from_ref(value).cast(), size_of_val(value) as socklen_t);
    // SAFETY: the caller upholds this function's contract.
    let _ = unsafe { kernel::setsockopt(fd, level, name, from, length) };
}

/// Lets options that were just set or inherited take their effect.
pub(crate) fn apply(end: &Endpoint) {
    // No handler jumps out of it and leaves a lock.
    let _section = Section::enter();
    if let Some(linger) = option_words::get(end, LINGER) {
        end.abort_on_close(linger == 1 << 32);
        if end.private().has(flag::SHUT_RD | flag::SHUT_WR) {
            // The announcement of that has been overwritten.
            end.closing();
        }
    }
    match option_words::get(end, option::CORK) {
        Some(1) if !end.private().has(flag::SERVED) => drop(end.private().set(flag::CORKED)),
        _ => drop(end.private().clear(flag::CORKED)),
    }
    match option_words::get(end, option::USER_TIMEOUT) {
        // The engine of a VNIC has a timer.
        Some(1..) if !end.private().has(flag::SERVED) => drop(end.private().set(flag::USER_TIMEOUT)),
        _ => drop(end.private().clear(flag::USER_TIMEOUT)),
    }
    if let Some(bytes) = option_words::get(end, SEND_BUFFER) {
        let log2 = 63 - bytes.max(1).leading_zeros();
        end.private().send_limit.store(log2, Relaxed);
    }
}

/// Gives an end the options that a socket or a listener remembers.
pub(crate) fn pass_on_to(from: &Held, end: &Endpoint) {
    let from_listener = from.kind() == Kind::Listener;
    for (index, (to, word)) in end.private().options.iter().zip(&from.socket.options).enumerate() {
        let value = word.load(Relaxed);
        let left_behind = from_listener && NOT_ACCEPTED.contains(&index);
        if value != 0 && !left_behind {
            to.store(value, Relaxed);
        }
    }
    others::pass_on(from, &end.private().other_options);
    apply(end);
}

/// Calls `each` with every option of a listener, to make its kernel socket again.
pub(crate) fn each_set(held: &Held, mut each: impl FnMut(c_int, c_int, c_int)) {
    for (index, known) in KNOWN.iter().enumerate() {
        let value = held.socket.options[index].load(Relaxed);
        if value & SET != 0 && !matches!(known.shape, Shape::Time | Shape::Linger | Shape::Word) {
            let value = (value as u32).cast_signed();
            each(known.level, known.name, if known.shape == Shape::Buffer { value / 2 } else { value });
        }
    }
    others::each(held, each);
}

/// Sets on a fresh kernel socket what was set on a listener.
pub(crate) fn restore(kernel: c_int, held: &Held) {
    each_set(held, |level, name, value| {
        let _ = kernel::set_socket_option(kernel, level, name, value);
    });
    for (index, known) in KNOWN.iter().enumerate() {
        let word = held.socket.options[index].load(Relaxed);
        match known.shape {
            _ if word & SET == 0 => {}
            Shape::Time => set_time(kernel, known.name, word & !SET),
            Shape::Linger => {
                let on = word >> 32 & 1;
                let linger = libc::linger { l_onoff: on as c_int, l_linger: (word as u32).cast_signed() };
                // SAFETY: a linger.
                unsafe { set_value(kernel, known.level, known.name, &linger) };
            }
            _ => {}
        }
    }
}

/// Flags of a request about a listener's own name on a VNIC.
pub(crate) fn name_flags(held: &Held) -> u32 {
    let is_set = |level, name| {
        let stored = index_of(level, name).map_or(0, |index| held.socket.options[index].load(Relaxed));
        stored & !SET != 0
    };
    if is_set(IPPROTO_IPV6, libc::IPV6_V6ONLY) { protocol::ONLY_IPV6 } else { 0 }
}

/// Remembers the options that the program set on a kernel socket that becomes ours.
pub(crate) fn remember(kernel: c_int, held: &Held) {
    let set = held.socket.set.load(Relaxed);
    for (index, known) in KNOWN.iter().enumerate().filter(|(index, _)| set >> index & 1 != 0) {
        if let Some(encoded) = of_kernel(kernel, known) {
            held.socket.options[index].store(SET | encoded & !SET, Relaxed);
        }
    }
    // Another process that has the socket may have changed them.
    others::each(held, |level, name, _| {
        let _ = others::store_from(kernel, held, level, name);
    });
}

/// Notes what the program that made a socket has set on it: what is different on a fresh one.
pub(crate) fn inherit(fd: c_int, held: &Held) {
    let domain = held.socket.domain.load(Relaxed).cast_signed();
    let Ok(fresh) = kernel::socket(domain, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) else { return };
    for (index, known) in KNOWN.iter().enumerate() {
        if of_kernel(fd, known) != of_kernel(fresh as c_int, known) {
            held.socket.set.fetch_or(1 << index, Relaxed);
        }
    }
    others::store_changed(fd, fresh as c_int, held, |level, name| index_of(level, name).is_some());
    let _ = kernel::close(fresh as c_int);
}

/// An option of a kernel socket, encoded.
fn of_kernel(kernel: c_int, known: &Known) -> Option<u64> {
    match known.shape {
        Shape::Time | Shape::Linger => two_words(kernel, known),
        Shape::Word => kernel_word(kernel, known),
        _ if (known.level, known.name) == (SOL_SOCKET, libc::SO_PEEK_OFF) => {
            let offset = kernel::socket_option(kernel, known.level, known.name).ok();
            offset.map(|offset| option_words::peek_offset_word(offset, 0))
        }
        _ => {
            let value = kernel::socket_option(kernel, known.level, known.name).ok();
            value.map(|value| u64::from(value.cast_unsigned()))
        }
    }
}

fn kernel_word(kernel: c_int, known: &Known) -> Option<u64> {
    let mut name = [0_u8; 16];
    let mut length: socklen_t = 16;
    // SAFETY: sixteen bytes may be written.
    unsafe { kernel::getsockopt(kernel, known.level, known.name, name.as_mut_ptr().cast(), &raw mut length) }
        .ok()?;
    // SAFETY: as many bytes are there.
    let (fits, encoded, _) = unsafe { word_of(name.as_ptr().cast(), 15) }?;
    fits.then_some(encoded)
}

fn two_words(kernel: c_int, known: &Known) -> Option<u64> {
    let mut words = [0_i64; 2];
    let mut length: socklen_t = 16;
    // SAFETY: sixteen bytes may be written.
    unsafe {
        kernel::getsockopt(kernel, known.level, known.name, words.as_mut_ptr().cast(), &raw mut length)
    }
    .ok()?;
    if known.shape == Shape::Time {
        return encode_time(libc::timeval { tv_sec: words[0], tv_usec: words[1] }).ok();
    }
    let [on_off, linger] = [words[0] as u32, (words[0].cast_unsigned() >> 32) as u32];
    Some(u64::from(on_off != 0) << 32 | u64::from(linger))
}
