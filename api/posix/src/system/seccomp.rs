//! Programs that give up system calls (seccomp): OpenSSH's and vsftpd's processes before the login,
//! and whatever a service manager confines.
//!
//! Their filters let through what a program needs on sockets of the kernel, mostly `read`, `write`
//! and a call of the `poll` family, and kill it for anything else. This library would use others on
//! their behalf.
//!
//! 1. Filters are installed with `prctl` or `seccomp`, which are looked at here. From the first one
//!    on this process is *restricted*, and so are its children until they exec. SlotKind is asked only
//!    once (the thread's number, how many processors there are) is asked beforehand.
//! 2. A restricted process reads and writes its placeholders with `read` and `write`, having asked
//!    `poll` where they might sleep or SIGPIPE would end it, does not give the processor away, and
//!    waits with the oldest calls of their kind.
//! 3. That costs a system call more for each wake-up, and nothing for bytes in memory.
//!
//! A filter that was there before the program began (a service manager's) is not seen. Such filters
//! answer with an error number in most cases, which is taken for "no".

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

static RESTRICTED: AtomicBool = AtomicBool::new(false);

/// Whether SIGPIPE ended the process when it gave up system calls. Servers ignore it.
static DIES_OF_PIPE: AtomicBool = AtomicBool::new(true);

/// Whether this process has given up system calls.
#[inline]
pub(crate) fn is_restricted() -> bool {
    RESTRICTED.load(Relaxed)
}

/// The process gives up system calls; `dies`: SIGPIPE would end it.
pub(crate) fn restrict(dies: bool) {
    DIES_OF_PIPE.store(dies, Relaxed);
    RESTRICTED.store(true, Relaxed);
}

/// Whether SIGPIPE would end the process.
pub(crate) fn dies_of_pipe() -> bool {
    DIES_OF_PIPE.load(Relaxed)
}
