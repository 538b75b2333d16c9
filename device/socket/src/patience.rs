//! `accept` on a blocking socket, which ends though nobody connects.
//!
//! A listening socket may have several holders, and whether it blocks is one flag for all of them: who sets O_NONBLOCK for
//! its own call has the others fail with EAGAIN. `accept4` takes no such flag for the call alone. So:
//!
//! 1. A queue that is empty is not asked: `poll` takes nothing from the other holders.
//! 2. Another may take the last connection just before the call. A timer of this thread sends it a signal every
//!    [`PATIENCE`], whose handler does nothing, so the call ends with EINTR. It goes on until the call has ended: a signal
//!    that came before the call would be lost.
//! 3. What is in the queue is returned, signal or not: nothing is lost by that.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How long a call waits if another holder was faster.
const PATIENCE: Duration = Duration::from_micros(100);

thread_local! {
    static TIMER: RefCell<Option<Timer>> = const { RefCell::new(None) };
}

/// A timer that sends a signal to the thread that made it.
struct Timer(libc::timer_t);

/// The signal: the last one that programs may use, which nothing else here does.
fn signal() -> libc::c_int {
    libc::SIGRTMAX()
}

extern "C" fn nothing(_signal: libc::c_int) {}

/// Has the signal interrupt calls, and do nothing else.
fn install() -> io::Result<()> {
    static INSTALLED: OnceLock<i32> = OnceLock::new();
    let failed = *INSTALLED.get_or_init(|| {
        let handler: extern "C" fn(libc::c_int) = nothing;
        // SAFETY: all bytes zero are a `sigaction` without flags and with an empty mask.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handler as usize;
        // SAFETY: the handler does nothing, and `action` lives over the call.
        let result = unsafe { libc::sigaction(signal(), &raw const action, null_mut()) };
        if result == 0 { 0 } else { io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL) }
    });
    if failed == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(failed)) }
}

impl Timer {
    fn new() -> io::Result<Self> {
        install()?;
        // SAFETY: all bytes zero are a `sigset_t` and a `sigevent`; each call is given addresses of values that live over it.
        let timer = unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, signal());
            // A thread has the mask of the one that started it.
            let failed = libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, null_mut());
            if failed != 0 {
                return Err(io::Error::from_raw_os_error(failed));
            }
            let mut event: libc::sigevent = std::mem::zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = signal();
            event.sigev_notify_thread_id = libc::gettid();
            let mut timer: libc::timer_t = null_mut();
            if libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer) != 0 {
                return Err(io::Error::last_os_error());
            }
            timer
        };
        Ok(Self(timer))
    }

    /// Begins to send, or stops with a period of zero.
    fn set(&self, period: Duration) -> io::Result<()> {
        let time =
            libc::timespec { tv_sec: 0, tv_nsec: libc::c_long::from(period.subsec_nanos().cast_signed()) };
        let times = libc::itimerspec { it_interval: time, it_value: time };
        // SAFETY: the timer is this value's, and `times` lives over the call.
        let result = unsafe { libc::timer_settime(self.0, 0, &raw const times, null_mut()) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: the timer is this value's, and is used no more.
        unsafe { libc::timer_delete(self.0) };
    }
}

/// Accepts a connection that waits at a listening socket, blocking or not, with nothing of its flags.
///
/// # Errors
/// `EAGAIN`: none waits. `ENOBUFS`: no timer is left. Others of `accept(2)`.
pub fn accept_waiting(listener: impl AsFd) -> io::Result<OwnedFd> {
    let listener = listener.as_fd();
    let mut entry = [PollFd::new(&listener, PollFlags::IN)];
    if poll(&mut entry, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))? == 0 {
        return Err(io::Error::from_raw_os_error(libc::EAGAIN));
    }
    TIMER.with_borrow_mut(|timer| {
        // The limit is one of signals that wait (RLIMIT_SIGPENDING), and comes back.
        let short = |_| io::Error::from_raw_os_error(libc::ENOBUFS);
        let timer = match timer {
            Some(timer) => timer,
            None => timer.insert(Timer::new().map_err(short)?),
        };
        timer.set(PATIENCE).map_err(short)?;
        // SAFETY: no address is asked for.
        let fd = unsafe { libc::accept4(listener.as_raw_fd(), null_mut(), null_mut(), libc::SOCK_CLOEXEC) };
        let accepted = match fd {
            // SAFETY: the kernel has just opened it for this call.
            0.. => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
            _ => Err(io::Error::last_os_error()),
        };
        // It is this thread's own, and was set before: stopping it cannot fail.
        let _ = timer.set(Duration::ZERO);
        accepted.map_err(|error| match error.raw_os_error() {
            Some(libc::EINTR) => io::Error::from_raw_os_error(libc::EAGAIN),
            _ => error,
        })
    })
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn what_waits_is_accepted_and_an_empty_queue_says_so() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let none = accept_waiting(&listener).map_err(|error| error.kind());
        assert!(matches!(none, Err(io::ErrorKind::WouldBlock)), "{none:?}");
        let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        let accepted = TcpStream::from(accept_waiting(&listener).expect("one waits"));
        assert_eq!(accepted.peer_addr().ok(), client.local_addr().ok());
    }

    #[test]
    fn who_loses_the_race_for_the_last_one_does_not_wait() {
        const CLIENTS: usize = 2000;
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let (taken, over) = (AtomicUsize::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        match accept_waiting(&listener) {
                            Ok(_) => drop(taken.fetch_add(1, Ordering::Relaxed)),
                            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}"),
                        }
                    }
                });
            }
            for sent in 1..=CLIENTS {
                let _client = TcpStream::connect(address).expect("it listens");
                while taken.load(Ordering::Relaxed) < sent {
                    std::hint::spin_loop();
                }
            }
            // All of them end, though nobody connects any more.
            over.store(true, Ordering::Relaxed);
        });
        assert_eq!(taken.load(Ordering::Relaxed), CLIENTS);
    }
}
