//! Names that go with messages. A connected TCP socket has no use for them, but Linux checks them
//! as for any socket (`move_addr_to_kernel`, `move_addr_to_user` and `copy_msghdr_from_user` of
//! net/socket.c).

use libc::{c_void, sockaddr, sockaddr_storage, socklen_t};

use crate::signal::user_memory;
use crate::system::sys::Errno;

/// The kernel's lengths are signed.
fn is_negative(length: socklen_t) -> bool {
    length.cast_signed() < 0
}

/// Checks the name that `sendto(2)` is given.
///
/// # Errors
/// `EINVAL`: no socket has a name of that length. `EFAULT`.
#[inline]
pub(super) fn check_sent(name: *const sockaddr, length: socklen_t) -> Result<(), Errno> {
    if name.is_null() || length == 0 {
        return Ok(());
    }
    if length as usize > size_of::<sockaddr_storage>() {
        return Err(libc::EINVAL);
    }
    if user_memory::is_readable(name, length as usize) { Ok(()) } else { Err(libc::EFAULT) }
}

/// Checks the name of a message that is sent.
///
/// # Errors
/// As [`check_sent`]. A length that is too large is taken for the largest.
pub(super) fn check_sent_message(name: *const c_void, length: socklen_t) -> Result<(), Errno> {
    check_received_message(name, length)?;
    check_sent(name.cast(), length.min(size_of::<sockaddr_storage>() as socklen_t))
}

/// Checks the place for a name of a message that is received.
///
/// # Errors
/// `EINVAL`: its length is negative.
pub(super) fn check_received_message(name: *const c_void, length: socklen_t) -> Result<(), Errno> {
    if !name.is_null() && is_negative(length) { Err(libc::EINVAL) } else { Ok(()) }
}

/// Gives a program that has received bytes the length of no name.
///
/// # Safety
/// As `recvfrom(2)`.
///
/// # Errors
/// `EINVAL`: the length was negative. `EFAULT`. The bytes are taken all the same.
pub(super) unsafe fn put_none(name: *const sockaddr, length: *mut socklen_t) -> Result<(), Errno> {
    if name.is_null() {
        return Ok(());
    }
    // SAFETY: the caller upholds this function's contract.
    if is_negative(unsafe { user_memory::read(length) }?) {
        return Err(libc::EINVAL);
    }
    // SAFETY: as above.
    unsafe { user_memory::write(length, 0) }
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;

    const NEGATIVE: socklen_t = u32::MAX;

    fn name() -> sockaddr {
        sockaddr { sa_family: libc::AF_INET as u16, sa_data: [0; 14] }
    }

    #[test]
    fn a_name_that_is_sent_has_a_length_and_is_there() {
        let name = name();
        let nowhere = ptr::without_provenance(8);
        assert_eq!(check_sent(ptr::null(), NEGATIVE), Ok(()), "there is no name");
        assert_eq!(check_sent(&raw const name, 0), Ok(()));
        assert_eq!(check_sent(&raw const name, 1), Ok(()), "only an unconnected socket reads it");
        assert_eq!(check_sent(&raw const name, 129), Err(libc::EINVAL));
        assert_eq!(check_sent(&raw const name, NEGATIVE), Err(libc::EINVAL));
        assert_eq!(check_sent(nowhere, 16), Err(libc::EFAULT));
        assert_eq!(check_sent_message(ptr::null(), NEGATIVE), Ok(()));
        assert_eq!(check_sent_message((&raw const name).cast(), NEGATIVE), Err(libc::EINVAL));
        assert_eq!(check_sent_message(nowhere.cast(), 1000), Err(libc::EFAULT));
    }

    #[test]
    fn a_place_for_a_name_is_checked_and_gets_the_length_of_none() {
        let (name, mut length) = (name(), 16);
        // SAFETY: a length of this function, or none.
        let put = |length: *mut socklen_t| unsafe { put_none(&raw const name, length) };
        assert_eq!(put(&raw mut length), Ok(()));
        assert_eq!(length, 0);
        length = NEGATIVE;
        assert_eq!(put(&raw mut length), Err(libc::EINVAL));
        assert_eq!(put(ptr::null_mut()), Err(libc::EFAULT));
        // SAFETY: as above.
        assert_eq!(unsafe { put_none(ptr::null(), ptr::null_mut()) }, Ok(()));
        assert_eq!(check_received_message((&raw const name).cast(), NEGATIVE), Err(libc::EINVAL));
        assert_eq!(check_received_message(ptr::null(), NEGATIVE), Ok(()));
    }
}
