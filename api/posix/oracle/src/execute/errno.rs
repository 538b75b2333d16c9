//! The result of a call, and the names of errnos.

use std::fmt::{self, Display, Formatter};

/// The result of a call: its value, or the errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Returned(pub(super) Result<i64, i32>);

impl Returned {
    /// From the value of a libc function that sets `errno` if it is negative.
    pub(super) fn of(value: impl Into<i64>) -> Self {
        let value = value.into();
        if value >= 0 {
            return Self(Ok(value));
        }
        Self(Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)))
    }

    /// From a length that a libc function returned.
    pub(super) fn of_length(value: isize) -> Self {
        Self::of(i64::try_from(value).unwrap_or(-1))
    }

    /// The value as a length; 0 for an error.
    pub(super) fn length(self) -> usize {
        self.0.ok().and_then(|value| usize::try_from(value).ok()).unwrap_or(0)
    }

    /// Whether it is no error.
    pub(super) fn is_ok(self) -> bool {
        self.0.is_ok()
    }
}

impl Display for Returned {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0 {
            Ok(value) => write!(f, "{value}"),
            Err(errno) => write!(f, "-1 {}", name(errno)),
        }
    }
}

/// The name of an errno that these calls return, else its number.
pub(super) fn name(errno: i32) -> String {
    const NAMES: &[(i32, &str)] = &[
        (0, "0"),
        (libc::EPERM, "EPERM"),
        (libc::ENOENT, "ENOENT"),
        (libc::EINTR, "EINTR"),
        (libc::EIO, "EIO"),
        (libc::EBADF, "EBADF"),
        (libc::EAGAIN, "EAGAIN"),
        (libc::ENOMEM, "ENOMEM"),
        (libc::EACCES, "EACCES"),
        (libc::EFAULT, "EFAULT"),
        (libc::EEXIST, "EEXIST"),
        (libc::ELOOP, "ELOOP"),
        (libc::EINVAL, "EINVAL"),
        (libc::EMFILE, "EMFILE"),
        (libc::ENOTTY, "ENOTTY"),
        (libc::ESPIPE, "ESPIPE"),
        (libc::EPIPE, "EPIPE"),
        (libc::EDOM, "EDOM"),
        (libc::ENOTSOCK, "ENOTSOCK"),
        (libc::EDESTADDRREQ, "EDESTADDRREQ"),
        (libc::EMSGSIZE, "EMSGSIZE"),
        (libc::EPROTOTYPE, "EPROTOTYPE"),
        (libc::ENOPROTOOPT, "ENOPROTOOPT"),
        (libc::EPROTONOSUPPORT, "EPROTONOSUPPORT"),
        (libc::ESOCKTNOSUPPORT, "ESOCKTNOSUPPORT"),
        (libc::EOPNOTSUPP, "EOPNOTSUPP"),
        (libc::EPFNOSUPPORT, "EPFNOSUPPORT"),
        (libc::EAFNOSUPPORT, "EAFNOSUPPORT"),
        (libc::EADDRINUSE, "EADDRINUSE"),
        (libc::EADDRNOTAVAIL, "EADDRNOTAVAIL"),
        (libc::ENETUNREACH, "ENETUNREACH"),
        (libc::ECONNABORTED, "ECONNABORTED"),
        (libc::ECONNRESET, "ECONNRESET"),
        (libc::ENOBUFS, "ENOBUFS"),
        (libc::EISCONN, "EISCONN"),
        (libc::ENOTCONN, "ENOTCONN"),
        (libc::ETOOMANYREFS, "ETOOMANYREFS"),
        (libc::ETIMEDOUT, "ETIMEDOUT"),
        (libc::ECONNREFUSED, "ECONNREFUSED"),
        (libc::EHOSTUNREACH, "EHOSTUNREACH"),
        (libc::EALREADY, "EALREADY"),
        (libc::EINPROGRESS, "EINPROGRESS"),
        (libc::ENOSYS, "ENOSYS"),
        (libc::EPROTO, "EPROTO"),
        (libc::ERANGE, "ERANGE"),
        (libc::ENOTCONN, "ENOTCONN"),
        (libc::ENODEV, "ENODEV"),
        (libc::ESTALE, "ESTALE"),
        (libc::ENXIO, "ENXIO"),
        (libc::EXDEV, "EXDEV"),
        (libc::ENOTDIR, "ENOTDIR"),
        (libc::EISDIR, "EISDIR"),
        (libc::ETXTBSY, "ETXTBSY"),
        (libc::EFBIG, "EFBIG"),
        (libc::ENOSPC, "ENOSPC"),
        (libc::EROFS, "EROFS"),
        (libc::EOVERFLOW, "EOVERFLOW"),
    ];
    NAMES
        .iter()
        .find(|(number, _)| *number == errno)
        .map_or_else(|| format!("E{errno}"), |(_, name)| (*name).to_owned())
}
