//! Failed requests to the daemon, and the errno that a caller gets for each.

use fuser::Errno;
use sietch_protocol::{CallError, ErrorKind, ErrorReply};

/// Why a request to the daemon failed.
#[derive(Debug)]
pub(super) enum RequestError {
    /// The daemon refused it.
    Refused(ErrorReply),
    /// The daemon does not run, or its reply cannot be parsed.
    Unavailable(CallError),
}

/// The errno of a failed request.
pub(super) fn errno(error: &RequestError) -> Errno {
    match error {
        RequestError::Refused(reply) => match reply.kind {
            ErrorKind::Unknown => Errno::ENOENT,
            ErrorKind::Denied => Errno::EACCES,
            ErrorKind::Unsupported => Errno::ENOTSUP,
            ErrorKind::Busy => Errno::EBUSY,
            ErrorKind::Limit => Errno::EAGAIN,
            ErrorKind::Silent => Errno::ETIMEDOUT,
            _ => Errno::EIO,
        },
        RequestError::Unavailable(_) => Errno::EIO,
    }
}
