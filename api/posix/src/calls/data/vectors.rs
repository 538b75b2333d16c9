//! The arguments of calls that move bytes: descriptors and vectors.

use std::ffi::{c_int, c_void};

use libc::{iovec, size_t};

use crate::descriptor::description::{Held, Kind};
use crate::descriptor::{kernel_calls, table};
use crate::signal::user_memory;
use crate::system::sys::Errno;

/// Most bytes of a call (`MAX_RW_COUNT`).
pub(crate) const MAX_BYTES: usize = 0x7fff_f000;

/// Most vectors of a call (`UIO_MAXIOV`).
pub(crate) const MAX_VECTORS: usize = 1024;

/// Look-ups of one call by a number that changes all the time. A handler that the kernel alone
/// knows may have interrupted the very thread that changes it.
const MAX_LOOK_UPS: u32 = 16;

/// The kind of a descriptor, for calls that move bytes.
pub(crate) enum Found {
    /// The kernel's.
    Kernel,
    /// A stream of ours.
    Stream(Held),
    /// A listener's placeholder.
    Listener(Held),
}

/// Looks up a descriptor.
#[inline]
pub(crate) fn find(fd: c_int) -> Found {
    of(table::find(fd))
}

#[inline]
fn of(held: Option<Held>) -> Found {
    match held {
        None => Found::Kernel,
        Some(held) => match held.kind() {
            Kind::Stream => Found::Stream(held),
            Kind::Listener => Found::Listener(held),
            _ => Found::Kernel,
        },
    }
}

/// As [`find`], for a call that is the kernel's if this returns so; [`kernel_calls::end`] follows
/// it.
#[inline]
pub(crate) fn find_for_call(fd: c_int) -> Found {
    for _ in 0..MAX_LOOK_UPS {
        let found = find(fd);
        if !matches!(found, Found::Kernel) || !kernel_calls::begin(fd) {
            return found;
        }
        // The thread that makes a word busy waits for notes: a caller with a note does not wait.
        if let Some(Found::Kernel) = table::find_now(fd).map(of) {
            return Found::Kernel;
        }
        kernel_calls::end(());
    }
    find(fd)
}

pub(crate) fn vector(address: *mut c_void, length: size_t) -> iovec {
    iovec { iov_base: address, iov_len: length }
}

/// The vectors of a call.
///
/// # Safety
/// `first` may be read for `count` vectors.
///
/// # Errors
/// `EINVAL`: too many; `EFAULT`: null.
pub(crate) unsafe fn vectors<'a>(
    first: *const iovec,
    count: usize,
    too_many: c_int,
) -> Result<&'a [iovec], c_int> {
    if count > MAX_VECTORS {
        return Err(too_many);
    }
    if count == 0 {
        return Ok(&[]);
    }
    if !user_memory::is_readable(first, count * size_of::<iovec>()) {
        return Err(libc::EFAULT);
    }
    // SAFETY: the caller upholds this function's contract.
    Ok(unsafe { std::slice::from_raw_parts(first, count) })
}

/// The vectors before the first that cannot be an address of a program; none: all can. A fault of
/// the copy finds addresses that are not mapped.
#[inline]
pub(crate) fn before_bad_address(vectors: &[iovec]) -> Option<&[iovec]> {
    let bad =
        |vector: &iovec| vector.iov_len != 0 && !user_memory::is_address(vector.iov_base, vector.iov_len);
    vectors.iter().position(bad).map(|first| vectors.get(..first).unwrap_or_default())
}

/// Whether vectors have no bytes at all: then Linux does not check the socket.
///
/// # Safety
/// As `readv(2)`.
pub(crate) unsafe fn are_empty(first: *const iovec, count: c_int) -> Result<bool, c_int> {
    let count = usize::try_from(count).map_err(|_| libc::EINVAL)?;
    // SAFETY: the caller upholds this function's contract.
    let vectors = unsafe { vectors(first, count, libc::EINVAL) }?;
    Ok(total(vectors)? == 0)
}

/// Bytes that the vectors have room for.
///
/// # Errors
/// `EINVAL`: more than a signed number holds.
pub(crate) fn total(vectors: &[iovec]) -> Result<usize, Errno> {
    let mut sum = 0_usize;
    for vector in vectors {
        sum = sum
            .checked_add(vector.iov_len)
            .filter(|sum| isize::try_from(*sum).is_ok())
            .ok_or(libc::EINVAL)?;
    }
    Ok(sum)
}

/// Why a call copied nothing, or less than it could.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// A signal handler interrupted this thread in the same operation.
    Reentered,
    /// The program's memory is not mapped. So many bytes had been published before that was found.
    Fault(usize),
}
