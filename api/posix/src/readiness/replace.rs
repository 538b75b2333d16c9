//! Another file takes the place of a description at all its descriptors.
//!
//! A kernel socket becomes a placeholder (`connect`, `listen`), a placeholder a kernel socket (a
//! listener without a service). Epoll sets are notified before and after. The words of the
//! descriptors are busy until the description is of the new file's kind ([`Change`]).

use std::ffi::c_int;

use crate::descriptor::change::Change;
use crate::descriptor::description::{Held, Kind};
use crate::descriptor::{kernel_calls, table};
use crate::readiness::hooks;
use crate::system::kernel::{self, is_nonblocking, set_nonblocking};

/// Puts another file at every descriptor of a description, with each one's close-on-exec flag; the
/// new file's own number is closed. O_NONBLOCK is carried over.
pub(crate) fn replace(fd: c_int, held: &Held, with: c_int) {
    replace_and(fd, held, with, || ());
}

/// As [`replace`], and `publish` makes the description what the new file is.
pub(crate) fn replace_and<T>(fd: c_int, held: &Held, with: c_int, publish: impl FnOnce() -> T) -> T {
    if is_nonblocking(fd) {
        set_nonblocking(with);
    }
    exchange(fd, held, with, publish)
}

/// As [`replace`], with the flags that the new file has.
pub(crate) fn put_in_place(fd: c_int, held: &Held, with: c_int) {
    exchange(fd, held, with, || ());
}

fn exchange<T>(fd: c_int, held: &Held, with: c_int, publish: impl FnOnce() -> T) -> T {
    let change = Change::begin();
    let put = |fd: c_int| {
        // Another thread may have closed it, and the number may be another file's.
        if !table::hold_back(fd, held) {
            return;
        }
        hooks::replacing(fd, held);
        if held.kind() == Kind::Pending {
            kernel_calls::wait(fd);
        }
        let close_on_exec = kernel::fcntl(fd, libc::F_GETFD, 0).unwrap_or(0) as c_int & libc::FD_CLOEXEC != 0;
        let _ = kernel::dup3(with, fd, if close_on_exec { libc::O_CLOEXEC } else { 0 });
    };
    let is_single = held.descriptors() == 1 && table::refers_to(fd, held);
    if is_single {
        put(fd)
    } else {
        table::each_of(held, put)
    }
    let published = publish();
    if is_single {
        table::keep(fd, held)
    } else {
        table::each_of(held, |fd| table::keep(fd, held))
    }
    drop(change);
    let _ = kernel::close(with);
    published
}

/// Notifies the epoll sets that there is another file at the descriptors.
pub(crate) fn replaced(fd: c_int, held: &Held) {
    if held.descriptors() == 1 {
        hooks::replaced(fd, held)
    } else {
        table::each_of(held, |fd| hooks::replaced(fd, held))
    }
}
