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

/// When a call that begins now must end, if the option at `index` is a time.
#[inline]
pub(crate) fn deadline(end: &Endpoint, index: usize) -> Option<u64> {
    get(end, index).filter(|time| *time != 0).map(|time| kernel::now().saturating_add(time))
}
