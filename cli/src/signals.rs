//! SIGTERM and SIGINT for a process that may be the first one of a PID namespace (a container's).
//!
//! 1. For process 1 the kernel takes no default action: a signal without a handler is lost, and the
//!    process could only be killed. So a first process gets handlers at its very start, which end
//!    it as the default would.
//! 2. A command that ends in order has handlers of its own. Once they are installed it calls
//!    [`handled`], and the others do nothing.

use std::io::{self, Read as _};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use signal_hook::consts::{SIGINT, SIGTERM};

/// The signals that end a process of Sietch's.
pub(crate) const ENDING: [i32; 2] = [SIGTERM, SIGINT];

/// Whether the handlers of the start still decide. Only a first process has them.
static AT_START: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Must be called before anything else.
pub(crate) fn begin() {
    if std::process::id() != 1 {
        return;
    }
    let decides = AT_START.get_or_init(|| Arc::new(AtomicBool::new(true)));
    for signal in ENDING {
        // It can only fail for signals that cannot be handled.
        let _ = signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(decides));
    }
}

/// From now on this command's own handlers are in effect.
pub(crate) fn handled() {
    if let Some(decides) = AT_START.get() {
        decides.store(false, Ordering::SeqCst);
    }
}

/// A stream that becomes readable when one of the signals comes, and one whose writing does the
/// same.
///
/// # Errors
/// No descriptors are left.
pub(crate) fn stream() -> io::Result<(UnixStream, UnixStream)> {
    let (woken, waker) = UnixStream::pair()?;
    for signal in ENDING {
        signal_hook::low_level::pipe::register(signal, waker.try_clone()?)?;
    }
    handled();
    Ok((woken, waker))
}

/// Waits for such a signal.
pub(crate) fn wait(mut woken: UnixStream) {
    // Any wake-up of this thread means that it is time to end.
    let _ = woken.read(&mut [0]);
}
