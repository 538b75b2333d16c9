//! Whether this process is restricted by seccomp: OpenSSH's and vsftpd's processes before the
//! login, and what a service manager confines.
//!
//! Such a filter allows what a program needs on kernel sockets: mostly `read`, `write` and a call
//! of the `poll` family. It kills the process for anything else. This library would use other calls
//! on the program's behalf.
//!
//! 1. Filters are installed with `prctl` or `seccomp`, which are intercepted
//!    ([`crate::calls::process::seccomp`]). From the first filter on, this process is *restricted*,
//!    and so are its children until they exec. What is read only once (the thread's number, the
//!    number of processors) is read before.
//! 2. A restricted process reads and writes its placeholders with `read` and `write`. It calls
//!    `poll` first where they might sleep or where SIGPIPE would end it. It does not yield the
//!    processor, and waits with the oldest calls of their kind ([`crate::system::kernel`]).
//! 3. That costs one more system call for each wake-up, and nothing for bytes in memory.
//!
//! A filter that was installed before the program began (a service manager's) is not seen. Most
//! such filters return an errno, which the library takes for "no".

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

static RESTRICTED: AtomicBool = AtomicBool::new(false);

/// Whether SIGPIPE would have ended the process when it became restricted. Servers ignore the
/// signal.
static SIGPIPE_ENDS_PROCESS: AtomicBool = AtomicBool::new(true);

/// Whether this process is restricted.
#[inline]
pub(crate) fn is_restricted() -> bool {
    RESTRICTED.load(Relaxed)
}

/// The process becomes restricted; `sigpipe_ends_process`: SIGPIPE would end it.
pub(crate) fn restrict(sigpipe_ends_process: bool) {
    SIGPIPE_ENDS_PROCESS.store(sigpipe_ends_process, Relaxed);
    RESTRICTED.store(true, Relaxed);
}

/// Whether SIGPIPE would end the process.
pub(crate) fn sigpipe_ends_process() -> bool {
    SIGPIPE_ENDS_PROCESS.load(Relaxed)
}
