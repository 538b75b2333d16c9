//! Doorbell bytes on a placeholder, by its number: the rules of [`sietch_stream::doorbell`]. No
//! handler of the program runs while bytes are taken: it must find no drain in progress.

use std::ffi::c_int;

use sietch_ring::stream::Endpoint;
use sietch_stream::{doorbell, foreign_bytes};

use crate::connection::placeholder::Number;
use crate::signal::handlers::Section;

/// Takes all bytes out of a placeholder, if no thread waits at this end but `own` waiters of the
/// caller. False: others do, and a byte may be queued there.
pub(crate) fn empty(fd: c_int, end: &Endpoint, own: u32) -> bool {
    let _section = Section::enter();
    doorbell::empty(Number(fd, end), end, own)
}

/// As [`empty`], by a caller that is not counted and about to sleep: others that were woken by the
/// same byte may return first.
pub(crate) fn quieten(fd: c_int, end: &Endpoint) -> bool {
    doorbell::let_others_return::<Number<'_>>(end) && empty(fd, end, 0)
}

/// Occasionally takes bytes out of a placeholder, all but one.
#[inline]
pub(crate) fn thin(fd: c_int, end: &Endpoint) {
    if doorbell::is_crowded(Number(fd, end), end) {
        thin_now(fd, end);
    }
}

#[cold]
fn thin_now(fd: c_int, end: &Endpoint) {
    let _section = Section::enter();
    doorbell::thin(Number(fd, end), end);
}

/// Checks the bytes that are queued on a placeholder, and takes none of them.
#[cold]
pub(crate) fn examine(fd: c_int, end: &Endpoint) {
    foreign_bytes::examine(Number(fd, end), end);
}
