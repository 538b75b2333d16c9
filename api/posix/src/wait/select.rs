//! `select` and `pselect`, by way of [`crate::wait::poll`].
//!
//! 1. A call whose sets name none of ours goes to the kernel unchanged ([`names_ours`]).
//! 2. Otherwise each descriptor that is in a set becomes an entry of a poll array. Its events are
//!    those that the kernel counts for that set (fs/select.c). An entry that is no descriptor makes
//!    the call fail with EBADF.
//! 3. Sets are bits, and as long as the first argument says, `FD_SETSIZE` or not.

use std::ffi::c_int;

use crate::descriptor::description::{self, DESCRIPTORS};
use crate::descriptor::table;
use crate::signal::{longjmp, user_memory};
use crate::system::multiplexing::{Mask, Timeout};
use crate::system::sys::Outcome;
use crate::wait::memory::Memory;
use crate::wait::poll;

const READ: i16 = libc::POLLIN | libc::POLLRDNORM | libc::POLLRDBAND;

const WRITE: i16 = libc::POLLOUT | libc::POLLWRNORM | libc::POLLWRBAND;

const EXCEPT: i16 = libc::POLLPRI;

/// The events that count for a descriptor of each set.
const COUNTS: [i16; 3] = [READ | libc::POLLHUP | libc::POLLERR, WRITE | libc::POLLERR, EXCEPT];

const REQUESTS: [i16; 3] = [READ, WRITE, EXCEPT];

/// Descriptors for which there is room on the stack.
const ON_STACK: usize = 16;

/// The three sets of a call; null for none.
pub(crate) type Sets = [*mut libc::fd_set; 3];

/// Whether a descriptor is in a set.
///
/// # Safety
/// The set is null or has more than `fd` bits.
unsafe fn has(set: *mut libc::fd_set, fd: usize) -> bool {
    // SAFETY: the caller upholds this function's contract.
    !set.is_null() && unsafe { set.cast::<u64>().add(fd / 64).read() } & 1 << (fd % 64) != 0
}

/// Puts a descriptor in a set, or takes it out.
///
/// # Safety
/// As [`has`].
unsafe fn put(set: *mut libc::fd_set, fd: usize, yes: bool) {
    if set.is_null() {
        return;
    }
    // SAFETY: the caller upholds this function's contract.
    unsafe {
        let word = set.cast::<u64>().add(fd / 64);
        let bit = 1 << (fd % 64);
        word.write(if yes { word.read() | bit } else { word.read() & !bit });
    }
}

fn bits(count: c_int) -> usize {
    usize::try_from(count).unwrap_or(0).min(DESCRIPTORS)
}

/// Whether a call's sets name a descriptor that may be ours: if not, the call is the kernel's.
///
/// # Safety
/// The sets are null or have `count` bits.
pub(crate) unsafe fn names_ours(count: c_int, sets: Sets) -> bool {
    let bytes = bits(count).div_ceil(64) * 8;
    // The kernel checks an address that cannot be a set, and all of them if no socket is ours.
    if !description::has_sockets()
        || sets.iter().any(|set| !set.is_null() && !user_memory::is_readable(*set, bytes))
    {
        return false;
    }
    (0..bits(count)).any(|fd| {
        // SAFETY: the caller upholds this function's contract.
        table::is_ours(fd as c_int) && sets.iter().any(|set| unsafe { has(*set, fd) })
    })
}

/// `pselect(2)`: also `select(2)`, whose caller writes what is left of its time.
///
/// # Safety
/// The sets are null or have `count` bits, or are for the kernel to refuse; `mask` is null or a
/// signal set.
pub(crate) unsafe fn select(count: c_int, sets: Sets, timeout: Timeout, mask: Mask) -> Outcome {
    let bits = bits(count);
    let bytes = bits.div_ceil(64) * 8;
    if sets.iter().any(|set| !set.is_null() && !user_memory::is_writable(*set, bytes)) {
        return Err(libc::EFAULT);
    }
    // SAFETY: the caller upholds this function's contract.
    let named = |fd: &usize| sets.iter().any(|set| unsafe { has(*set, *fd) });
    let total = (0..bits).filter(named).count();
    if total <= ON_STACK {
        // SAFETY: the caller upholds this function's contract.
        return unsafe { select_on_stack::<ON_STACK>(bits, total, sets, timeout, mask) };
    }
    let Some(memory) = Memory::map(total * size_of::<libc::pollfd>()) else {
        if total <= libc::FD_SETSIZE {
            // SAFETY: the caller upholds this function's contract.
            return unsafe { select_on_stack::<{ libc::FD_SETSIZE }>(bits, total, sets, timeout, mask) };
        }
        return Err(libc::ENOMEM);
    };
    let _registered = longjmp::registered(&raw const memory);
    // SAFETY: a mapping of that size, page-aligned; zeroes are entries. The caller's contract.
    unsafe {
        let entries = std::slice::from_raw_parts_mut(memory.start.cast::<libc::pollfd>(), total);
        select_with(entries, bits, sets, timeout, mask)
    }
}

/// As [`select`], of `total` descriptors, at most `MOST`.
///
/// # Safety
/// As [`select`], of sets that can be written.
#[inline(never)]
unsafe fn select_on_stack<const MOST: usize>(
    bits: usize,
    total: usize,
    sets: Sets,
    timeout: Timeout,
    mask: Mask,
) -> Outcome {
    let mut entries = [libc::pollfd { fd: -1, events: 0, revents: 0 }; MOST];
    // SAFETY: the caller upholds this function's contract.
    unsafe { select_with(&mut entries[..total], bits, sets, timeout, mask) }
}

/// As [`select`], with an entry for each descriptor.
///
/// # Safety
/// As [`select_on_stack`].
unsafe fn select_with(
    entries: &mut [libc::pollfd],
    bits: usize,
    sets: Sets,
    timeout: Timeout,
    mask: Mask,
) -> Outcome {
    // SAFETY: the caller upholds this function's contract.
    let named = |fd: &usize| sets.iter().any(|set| unsafe { has(*set, *fd) });
    for (entry, fd) in entries.iter_mut().zip((0..bits).filter(named)) {
        let requests = sets.iter().zip(REQUESTS).fold(0, |events, (set, requests)| {
            // SAFETY: the caller upholds this function's contract.
            if unsafe { has(*set, fd) } { events | requests } else { events }
        });
        *entry = libc::pollfd { fd: fd as c_int, events: requests, revents: 0 };
    }
    // Descriptors that were certainly open when the call began. Linux returns EBADF for a
    // descriptor that is not open, but reports as ready one that another thread closes meanwhile.
    let open = entries.iter().take(64).enumerate();
    let open = open.fold(0_u64, |open, (at, entry)| open | u64::from(table::is_ours(entry.fd)) << at);
    // SAFETY: a slice; the mask is the caller's promise.
    unsafe { poll::poll(entries.as_mut_ptr(), entries.len(), timeout, mask) }?;
    let closed = |at: usize| at >= 64 || open >> at & 1 == 0;
    if entries.iter().enumerate().any(|(at, entry)| entry.revents & libc::POLLNVAL != 0 && closed(at)) {
        return Err(libc::EBADF);
    }
    let mut ready = 0;
    for entry in entries.iter() {
        let fd = entry.fd.cast_unsigned() as usize;
        for ((set, counts), requests) in sets.iter().zip(COUNTS).zip(REQUESTS) {
            let requested = entry.events & requests == requests;
            let yes = requested && entry.revents & (counts | libc::POLLNVAL) != 0;
            // SAFETY: the caller upholds this function's contract.
            unsafe { put(*set, fd, yes) };
            ready += usize::from(yes);
        }
    }
    Ok(ready)
}
