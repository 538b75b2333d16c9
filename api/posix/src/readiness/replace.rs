//! Another file takes the place of a description at all its descriptors.
//!
//! A kernel socket becomes a placeholder (`connect`, `listen`), a placeholder a kernel socket (a
//! listener without a service). Epoll sets are notified before and after.

use std::ffi::c_int;

use crate::descriptor::description::Held;
use crate::descriptor::table;
use crate::readiness::hooks;
use crate::system::kernel::{self, is_nonblocking, set_nonblocking};

/// Puts another file at every descriptor of a description, with each one's close-on-exec flag; the
/// new file's own number is closed. O_NONBLOCK is carried over.
pub(crate) fn replace(fd: c_int, held: &Held, with: c_int) {
    if is_nonblocking(fd) {
        set_nonblocking(with);
    }
    put_in_place(fd, held, with);
}

/// As [`replace`], with the flags that the new file has.
pub(crate) fn put_in_place(fd: c_int, held: &Held, with: c_int) {
    let put = |fd: c_int| {
        hooks::replacing(fd, held);
        let close_on_exec = kernel::fcntl(fd, libc::F_GETFD, 0).unwrap_or(0) as c_int & libc::FD_CLOEXEC != 0;
        let _ = kernel::dup3(with, fd, if close_on_exec { libc::O_CLOEXEC } else { 0 });
    };
    if held.descriptors() == 1 {
        put(fd)
    } else {
        table::each_of(held, put)
    }
    let _ = kernel::close(with);
}

/// Notifies the epoll sets that there is another file at the descriptors.
pub(crate) fn replaced(fd: c_int, held: &Held) {
    if held.descriptors() == 1 {
        hooks::replaced(fd, held)
    } else {
        table::each_of(held, |fd| hooks::replaced(fd, held))
    }
}
