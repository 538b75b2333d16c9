//! Socket options that an end remembers in its private page, which all holders of the end share.
//!
//! Each option has a fixed index. A word of 0 means that the program never set the option;
//! otherwise the top bit is set.

use std::sync::atomic::Ordering::Relaxed;

use sietch_ring::stream::{Endpoint, option};

use crate::system::kernel;

/// Index of SO_LINGER.
pub(crate) const LINGER: usize = 0;

/// Index of SO_RCVTIMEO.
pub(crate) const RECEIVE_TIMEOUT: usize = 1;

/// Index of SO_SNDTIMEO.
pub(crate) const SEND_TIMEOUT: usize = 2;

/// Index of SO_RCVLOWAT.
pub(crate) const RECEIVE_LOW: usize = 3;

/// Index of SO_SNDBUF.
pub(crate) const SEND_BUFFER: usize = 4;

/// Index of SO_PRIORITY.
pub(crate) const PRIORITY: usize = 12;

/// Index of TCP_DEFER_ACCEPT.
pub(crate) const DEFER_ACCEPT: usize = 24;

/// Index of SO_PEEK_OFF, whose word has a form of its own ([`peek_offset`]).
pub(crate) const PEEK_OFFSET: usize = 13;

/// Index of TCP_INQ.
pub(crate) const UNREAD_MESSAGE: usize = 38;

/// Index of TCP_FASTOPEN, a listener's alone.
pub(crate) const FASTOPEN: usize = 34;

/// Index of IPV6_V6ONLY.
pub(crate) const ONLY_IPV6: usize = 29;

/// An option that was set has this bit.
pub(crate) const SET: u64 = option::SET;

/// The value of the option at an index of an end, if the program set it.
#[inline]
pub(crate) fn get(end: &Endpoint, index: usize) -> Option<u64> {
    let word = end.private().options[index].load(Relaxed);
    (word & SET != 0).then_some(word & !SET)
}

/// A word of SO_PEEK_OFF with this bit has a position in the stream; another has a negative offset.
const PEEKS_AT: u64 = 1 << 62;

/// The value of SO_PEEK_OFF as it is stored: where the next peek begins. So a read, which brings
/// the offset nearer to the first byte, changes nothing here. `read` bytes are read.
pub(crate) fn peek_offset_word(offset: i32, read: u64) -> u64 {
    match u64::try_from(offset) {
        Ok(offset) => PEEKS_AT | read.saturating_add(offset) & (PEEKS_AT - 1),
        Err(_) => u64::from(offset.cast_unsigned()),
    }
}

/// The value of SO_PEEK_OFF that a word stands for when `read` bytes are read.
pub(crate) fn peek_offset(word: u64, read: u64) -> i32 {
    if word & PEEKS_AT == 0 {
        return (word as u32).cast_signed();
    }
    i32::try_from((word & (PEEKS_AT - 1)).saturating_sub(read)).unwrap_or(i32::MAX)
}

/// How many bytes after the first a peek begins, if SO_PEEK_OFF says so.
pub(crate) fn peeks_after(end: &Endpoint, read: u64) -> Option<usize> {
    let word = get(end, PEEK_OFFSET).filter(|word| word & PEEKS_AT != 0)?;
    Some(peek_offset(word, read).unsigned_abs() as usize)
}

/// The next peek begins so many bytes after the first.
pub(crate) fn advance_peek(end: &Endpoint, read: u64, bytes: usize) {
    let offset = i32::try_from(bytes).unwrap_or(i32::MAX);
    end.private().options[PEEK_OFFSET].store(SET | peek_offset_word(offset, read), Relaxed);
}

/// When a call that begins now must end, if the option at `index` is a time.
#[inline]
pub(crate) fn deadline(end: &Endpoint, index: usize) -> Option<u64> {
    get(end, index).filter(|time| *time != 0).map(|time| kernel::now().saturating_add(time))
}
