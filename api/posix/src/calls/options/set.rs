//! `setsockopt` of a connection, a listener, or a socket that is still the kernel's.
//!
//! 1. A pending socket: the kernel sets the option, and the library notes that it was set. When the
//!    socket becomes ours, [`crate::options::inherit::remember`] reads the value.
//! 2. A connection or a listener: the value is checked as Linux checks it, encoded, and stored in
//!    the end or the description ([`KNOWN`]). An option that only the kernel can check is tried on
//!    a fresh kernel socket.
//! 3. An option whose effect only the kernel can provide leaves a pending socket to the kernel. On
//!    a connection or a listener it is refused with ENOPROTOOPT.
//! 4. A stored option of a connection takes effect at once ([`take_effect`]): corked bytes are
//!    sent, and the engine behind a VNIC is notified.
//!
//! No option ever changes the placeholder, except the timeout of accept, because that sleep is the
//! kernel's.

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering::{Relaxed, Release};

use libc::{IPPROTO_TCP, SOL_SOCKET, socklen_t};
use sietch_ring::stream::{Endpoint, flag, option};

use crate::connection::option_words::{
    self, FASTOPEN, LINGER, ONLY_IPV6, PEEK_OFFSET, RECEIVE_LOW, RECEIVE_TIMEOUT, SEND_BUFFER, SET,
};
use crate::connection::peer;
use crate::connection::status::{self, is_served};
use crate::context;
use crate::descriptor::description::{Held, Kind};
use crate::descriptor::room::with_kernel_socket;
use crate::descriptor::table;
use crate::options::inherit::{ENGINE_OPTIONS, announce, apply, set_accept_timeout};
use crate::options::known::{
    KNOWN, Shape, binds_to_interface, canonical, encode_time, index_of, needs_kernel, word, word_of,
};
use crate::options::others;
use crate::readiness::hooks;
use crate::signal::handlers::Section;
use crate::signal::user_memory;
use crate::system::kernel;
use crate::system::sys::{Errno, Outcome};

/// `setsockopt` of any of our sockets.
///
/// # Safety
/// `value` may be read for `length` bytes.
///
/// # Errors
/// As `setsockopt(2)`.
pub(crate) unsafe fn set(
    fd: c_int,
    held: &Held,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> Outcome {
    if held.kind() == Kind::Pending {
        // SAFETY: the caller upholds this function's contract.
        return unsafe { set_pending(fd, held, level, name, value, length) };
    }
    let Some(index) = index_of(level, canonical(level, name)) else {
        // SAFETY: the caller upholds this function's contract.
        return unsafe { set_other(held, level, name, value, length) };
    };
    let known = &KNOWN[index];
    // Beyond the limits of buffers only if the kernel allows it.
    let forced = name != known.name && known.shape == Shape::Buffer;
    let shape = if forced { Shape::CheckedByKernel } else { known.shape };
    let bytes = match shape {
        // The kernel checks the value.
        Shape::CheckedByKernel => 0,
        Shape::Word => 1,
        Shape::Time => size_of::<libc::timeval>(),
        Shape::Linger => size_of::<libc::linger>(),
        _ => 4,
    };
    if (length as usize) < bytes || length.cast_signed() < 0 {
        // The kernel decides which error that is.
        // SAFETY: the caller upholds this function's contract.
        return with_kernel_socket(held, |kernel| unsafe {
            kernel::setsockopt(kernel, level, name, value, length)
        });
    }
    refused_by_state(held, index, length)?;
    // The kernel reads a value that it checks itself.
    if shape != Shape::CheckedByKernel && !user_memory::is_readable(value, bytes) {
        return Err(libc::EFAULT);
    }
    let number = || {
        // SAFETY: the caller upholds this function's contract: at least four bytes; they need not
        // be aligned.
        unsafe { value.cast::<c_int>().read_unaligned() }
    };
    let encoded = match shape {
        Shape::Switch => u64::from(number() != 0),
        Shape::Number(low, high) => bounded(known.level, index, number(), low..=high)?,
        Shape::Buffer => u64::from(buffer(index, number()).cast_unsigned()),
        // SAFETY: the caller upholds this function's contract: `length` was compared above.
        Shape::Time => encode_time(unsafe { value.cast::<libc::timeval>().read_unaligned() })?,
        Shape::Linger => {
            // SAFETY: the caller upholds this function's contract: `length` was compared above.
            let linger = unsafe { value.cast::<libc::linger>().read_unaligned() };
            u64::from(linger.l_onoff != 0) << 32 | u64::from(linger.l_linger.cast_unsigned())
        }
        Shape::Word => {
            // SAFETY: the caller upholds this function's contract: `length` was compared above.
            let (fits, encoded, known) = unsafe { word_of(value, length) }.ok_or(libc::EFAULT)?;
            if is_served(held) {
                known.then_some(encoded).ok_or(libc::ENOENT)?
            } else {
                // SAFETY: the caller upholds this function's contract.
                let tried = |kernel| unsafe { kernel::setsockopt(kernel, level, name, value, length) };
                let answer = with_kernel_socket(held, tried)?;
                if !fits {
                    return Ok(answer);
                }
                encoded
            }
        }
        Shape::CheckedByKernel => with_kernel_socket(held, |kernel| {
            // SAFETY: the caller upholds this function's contract.
            unsafe { kernel::setsockopt(kernel, level, name, value, length) }?;
            kernel::socket_option(kernel, level, known.name).map(|value| value.cast_unsigned() as usize)
        })? as u64,
    };
    let encoded = match index {
        PEEK_OFFSET => {
            let read = held.end().map_or(0, Endpoint::read);
            option_words::peek_offset_word((encoded as u32).cast_signed(), read)
        }
        _ => encoded,
    };
    word(held, index).store(SET | encoded & !SET, Release);
    match held.end() {
        Some(end) => take_effect(fd, held, end, index),
        None if index == RECEIVE_TIMEOUT => set_accept_timeout(fd, held),
        None => {}
    }
    Ok(0)
}

/// An option that is only stored, if a fresh kernel socket accepts it.
///
/// # Safety
/// `value` may be read for `length` bytes.
unsafe fn set_other(
    held: &Held,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> Outcome {
    let ended = held.end().is_some_and(status::is_over);
    let refused = match (level, name) {
        // Allowed before a connection alone, or before it and for listeners.
        (IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT) => !ended,
        (IPPROTO_TCP, libc::TCP_FASTOPEN_NO_COOKIE) => held.end().is_some() && !ended,
        _ => false,
    };
    // Linux takes the length for a signed number.
    let whole = length.cast_signed() >= 4;
    if refused && whole {
        return Err(libc::EINVAL);
    }
    if (level, name, held.kind()) == (IPPROTO_TCP, libc::TCP_REPAIR, Kind::Listener) && whole {
        return Err(libc::EPERM);
    }
    let needs_kernel = needs_kernel(level, name) || binds_to_interface(level, name);
    with_kernel_socket(held, |kernel| {
        // SAFETY: the caller upholds this function's contract.
        unsafe { kernel::setsockopt(kernel, level, name, value, length) }?;
        if !needs_kernel {
            return others::store_from(kernel, held, level, name).map(|()| 0);
        }
        // Switched off is what it is.
        if switches_on(value, length) { Err(libc::ENOPROTOOPT) } else { Ok(0) }
    })
}

/// Whether a value that the kernel has accepted is one that switches the option on, or adds to it:
/// any but zeros and nothing.
fn switches_on(value: *const c_void, length: socklen_t) -> bool {
    let mut bytes = [0_u8; 64];
    let length = (length as usize).min(bytes.len());
    user_memory::copy_in(value.cast(), &mut bytes[..length]).is_err() || bytes.iter().any(|byte| *byte != 0)
}

/// The effect of an option on a connection at once.
fn take_effect(fd: c_int, held: &Held, end: &Endpoint, index: usize) {
    apply(end);
    let served = end.private().has(flag::SERVED);
    match index {
        // As on Linux, clearing TCP_CORK sends held bytes; so does setting TCP_NODELAY, even while
        // corked.
        option::CORK | option::NO_DELAY if !served => {
            let section = Section::enter();
            end.push();
            drop(section);
            peer::notify(fd, end, end.data_notification());
        }
        // Publishing the linger flag has published held bytes as well.
        LINGER => peer::notify(fd, end, end.data_notification()),
        // Servers set TCP_CORK with every reply, so the engine is notified only if it sleeps. An
        // engine that polls reads the option before it cuts the next segment.
        option::CORK => {
            end.announce();
            peer::notify(fd, end, end.data_notification());
        }
        // A thread that sleeps does not know how long it may.
        option::USER_TIMEOUT if !served => hooks::wake_watchers(held),
        _ if ENGINE_OPTIONS.contains(&index) => announce(fd, end),
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
    let on_vnic = context::get().is_some_and(|it| it.vnic().is_some());
    if on_vnic && needs_kernel(level, name) {
        // Its names are not the kernel's.
        // SAFETY: the caller upholds this function's contract.
        return unsafe { set_other(held, level, name, value, length) };
    }
    // SAFETY: the caller upholds this function's contract.
    let answer = unsafe { kernel::setsockopt(fd, level, name, value, length) };
    let Some(index) = index_of(level, canonical(level, name)) else {
        if answer.is_ok() {
            others::store_from(fd, held, level, name)?;
            if needs_kernel(level, name) && switches_on(value, length) {
                leave_to_kernel(held);
            }
        }
        return answer;
    };
    // SAFETY: the caller upholds this function's contract.
    let word = if KNOWN[index].shape == Shape::Word { unsafe { word_of(value, length) } } else { None };
    match (answer, word) {
        (Ok(_), _) => {
            held.socket.set.fetch_or(1 << index, Relaxed);
        }
        // The kernel may lack an algorithm that the VNIC's engine has.
        (Err(libc::ENOENT), Some((_, encoded, true))) if on_vnic => {
            held.socket.options[index].store(SET | encoded, Relaxed);
            return Ok(0);
        }
        (Err(_), _) => {}
    }
    answer
}

/// The socket is the kernel's from now on, at all its descriptors.
fn leave_to_kernel(held: &Held) {
    context::debug_line(
        "an option was set whose effect only the kernel has; the socket stays on kernel TCP",
        0,
    );
    table::each_of(held, |fd| drop(table::remove(fd)));
}

/// The kernel's errors for a socket in this state, which a fresh socket would not return.
fn refused_by_state(held: &Held, index: usize, length: socklen_t) -> Result<(), Errno> {
    let over = held.end().is_some_and(status::is_over);
    let six = held.socket.domain.load(Relaxed) == libc::AF_INET6.cast_unsigned();
    let refused = match index {
        FASTOPEN => held.end().is_some() && !over,
        ONLY_IPV6 => six && !over,
        _ => false,
    };
    if refused && length >= 4 { Err(libc::EINVAL) } else { Ok(()) }
}

/// A number that has bounds.
fn bounded(
    level: c_int,
    index: usize,
    number: c_int,
    bounds: std::ops::RangeInclusive<c_int>,
) -> Result<u64, Errno> {
    if !bounds.contains(&number) {
        return Err(if level == SOL_SOCKET { libc::EPERM } else { libc::EINVAL });
    }
    Ok(match number {
        _ if index != RECEIVE_LOW => number.cast_unsigned().into(),
        ..0 => i32::MAX.cast_unsigned().into(),
        _ => number.max(1).cast_unsigned().into(),
    })
}

/// Linux doubles the requested size and keeps it between a minimum and twice `net.core.[rw]mem_max`
/// (212992 unless it was changed).
fn buffer(index: usize, requested: c_int) -> c_int {
    let least = if index == SEND_BUFFER { 4608 } else { 2304 };
    (requested.clamp(0, 212_992) * 2).max(least)
}
