//! The data of a stream in the kernel's epoll: the slot's number, and the program's events in bits
//! that mean nothing to a Unix socket.
//!
//! The program that comes after an exec reads both back ([`crate::readiness::inherit`]).
//!
//! The program may register kernel descriptors with any data, those with [`TAG`] included. Such
//! data are kept in a table that relatives of a fork share, and the kernel gets the entry's number
//! as that of a slot that does not exist ([`replacement`], [`own_data`]). Almost no program has
//! any. A program after exec does not know the table, and gets the kernel's data.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, SeqCst};
use std::sync::atomic::{AtomicPtr, AtomicU64};

use crate::system::memory;
use crate::system::sys::Errno;

/// Upper 20 bits of the kernel's data for what is ours: no address of a program (not canonical) and
/// no small number. Below are 18 bits of the slot's number and 26 of the program's data, for a
/// program that inherits the epoll over exec ([`crate::readiness::inherit`]).
pub(crate) const TAG: u64 = 0x5ce7_c000_0000_0000;

/// The bits of [`TAG`].
pub(crate) const TAG_MASK: u64 = !0x0fff_ffff_ffff;

/// Bits of the program's data that the kernel is given.
pub(crate) const DATA_BITS: u32 = 26;

/// Entries of a [`Table`]: a page.
const MAX_REPLACED: usize = 512;

/// Slots of an epoll at most: what remains of 18 bits is more than a process has memory maps for (a
/// connection takes two).
pub(crate) const MAX_SLOTS: usize = (1 << 18) - MAX_REPLACED;

/// Data of the program with [`TAG`], in the order in which they were first registered; 0 for none.
type Table = [AtomicU64; MAX_REPLACED];

/// The table; null before it is needed.
static TABLE: AtomicPtr<Table> = AtomicPtr::new(ptr::null_mut());

fn table() -> Option<&'static Table> {
    // SAFETY: null, or a page of such words that is never unmapped.
    unsafe { TABLE.load(Acquire).as_ref() }
}

/// The table, made if there is none.
#[cold]
fn make_table() -> Option<&'static Table> {
    if TABLE.load(Acquire).is_null() {
        let new = memory::map(ptr::null_mut(), size_of::<Table>(), libc::MAP_SHARED)?;
        if TABLE.compare_exchange(ptr::null_mut(), new.as_ptr().cast(), AcqRel, Acquire).is_err() {
            // SAFETY: another thread was first; nothing refers to this page.
            unsafe { libc::munmap(new.as_ptr().cast(), size_of::<Table>()) };
        }
    }
    table()
}

/// Before a fork: the child shares the table.
pub(crate) fn before_fork() {
    make_table();
}

/// The kernel's data for a slot.
pub(crate) const fn tagged(number: u32, data: u64) -> u64 {
    let most = (1 << DATA_BITS) - 1;
    TAG | (number as u64) << DATA_BITS | if data < most { data } else { most }
}

/// The number in the kernel's data for what is ours.
pub(crate) const fn number(data: u64) -> u32 {
    ((data & !TAG_MASK) >> DATA_BITS) as u32
}

/// What the kernel is given for data of the program.
///
/// # Errors
/// `ENOSPC`: the program has registered too many different data with [`TAG`]. `ENOMEM`.
pub(crate) fn replacement(data: u64) -> Result<u64, Errno> {
    if data & TAG_MASK != TAG {
        return Ok(data);
    }
    let table = make_table().ok_or(libc::ENOMEM)?;
    for (entry, number) in table.iter().zip(MAX_SLOTS as u32..) {
        match entry.compare_exchange(0, data, SeqCst, Acquire) {
            Ok(_) => return Ok(tagged(number, data)),
            Err(known) if known == data => return Ok(tagged(number, data)),
            Err(_) => {}
        }
    }
    Err(libc::ENOSPC)
}

/// The program's data in what the kernel reports; none if it is of a slot.
#[inline]
pub(crate) fn own_data(data: u64) -> Option<u64> {
    if data & TAG_MASK == TAG { replaced(data) } else { Some(data) }
}

/// The same of what has [`TAG`]. What is of no slot and not in the table was registered before an
/// exec.
fn replaced(data: u64) -> Option<u64> {
    let index = (number(data) as usize).checked_sub(MAX_SLOTS)?;
    let entry = table().and_then(|table| table.get(index)).map_or(0, |entry| entry.load(Acquire));
    Some(if entry == 0 { data } else { entry })
}

/// Whether there are data for which the kernel was given others.
#[inline]
pub(crate) fn any_replaced() -> bool {
    table().is_some_and(|table| table[0].load(Acquire) != 0)
}

/// Events that are registered with the kernel, and the bit of each.
const ENCODED_EVENTS: [(c_int, u32); 11] = [
    (libc::EPOLLIN, 14),
    (libc::EPOLLPRI, 15),
    (libc::EPOLLOUT, 16),
    (libc::EPOLLRDNORM, 17),
    (libc::EPOLLRDBAND, 18),
    (libc::EPOLLWRNORM, 19),
    (libc::EPOLLWRBAND, 20),
    (libc::EPOLLMSG, 21),
    (libc::EPOLLRDHUP, 22),
    (libc::EPOLLONESHOT, 23),
    (libc::EPOLLET, 24),
];

/// Marks that the other bits are set.
const ENCODED: u32 = 1 << 25;

/// Events in bits that mean nothing to a Unix socket.
pub(crate) fn encoded(events: u32) -> u32 {
    if events & libc::EPOLLEXCLUSIVE as u32 != 0 {
        return 0;
    }
    let bits = ENCODED_EVENTS.iter().filter(|(event, _)| events & *event as u32 != 0);
    bits.fold(ENCODED, |all, (_, bit)| all | 1 << bit)
}

pub(crate) fn decoded(events: u32) -> u32 {
    if events & ENCODED == 0 {
        return libc::EPOLLIN as u32;
    }
    let bits = ENCODED_EVENTS.iter().filter(|(_, bit)| events & 1 << bit != 0);
    bits.fold(0, |all, (event, _)| all | *event as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_data_of_a_program_are_found_again_up_to_a_number() {
        let before_exec = tagged(MAX_SLOTS as u32 + 511, 5);
        assert_eq!(own_data(before_exec), Some(before_exec));
        for data in [0, 5, u64::MAX, TAG - 1, TAG | !TAG_MASK, TAG + !TAG_MASK + 1] {
            assert_eq!(replacement(data).map(own_data), Ok(Some(data)));
        }
        assert_eq!(own_data(tagged(7, 5)), None);
        assert_eq!(own_data(tagged(MAX_SLOTS as u32 - 1, 5)), None);
        let refused = (0..).find(|number| replacement(TAG | number).is_err()).expect("a bound");
        assert!((1..=MAX_REPLACED as u64).contains(&refused));
        assert_eq!(replacement(TAG | (refused - 1)).map(own_data), Ok(Some(TAG | (refused - 1))));
    }
}
