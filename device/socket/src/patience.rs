//! A bounded `accept` on a blocking socket: it ends although no peer connects.
//!
//! A listening socket may have several holders, and whether it blocks is one flag for all of them.
//! A holder that sets O_NONBLOCK for its own call makes the others fail with EAGAIN. `accept4`
//! takes no such flag for the call alone. So:
//!
//! 1. A queue that is empty is not asked: `poll` takes nothing from the other holders.
//! 2. Another may take the last connection just before the call. A timer of this thread sends it a
//!    signal every [`PATIENCE`], whose handler does nothing, so the call ends with EINTR. It goes
//!    on until the call has ended: a signal that came before the call would be lost.
//! 3. Such a timer counts as a signal that waits (RLIMIT_SIGPENDING), and so does every signal that
//!    any process of the same user has waiting. Where none is left another thread sends the signal
//!    with `tgkill`. A number below SIGRTMIN arrives also when the kernel has no room to note its
//!    sender.
//! 4. What is in the queue is returned, signal or not: nothing is lost by that.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How long a call waits if another holder was faster.
const PATIENCE: Duration = Duration::from_micros(100);

/// How long the pauses between the signals of another thread become.
const LONGEST: Duration = Duration::from_millis(50);

thread_local! {
    static TIMER: RefCell<Option<Timer>> = const { RefCell::new(None) };
}

/// A timer that sends a signal to the thread that made it.
struct Timer(libc::timer_t);

/// The signal: one that nothing else here uses, and that a process ignores where no handler is.
const SIGNAL: libc::c_int = libc::SIGURG;

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
        let result = unsafe { libc::sigaction(SIGNAL, &raw const action, null_mut()) };
        if result == 0 { 0 } else { io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL) }
    });
    if failed == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(failed)) }
}

/// Lets the signal come to this thread, which has the mask of the one that started it.
fn unblock() -> io::Result<()> {
    // SAFETY: all bytes zero are a `sigset_t`; each call is given the address of one that lives
    // over it.
    let failed = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, SIGNAL);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, null_mut())
    };
    if failed == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(failed)) }
}

/// One call of `accept4`; no address is requested.
fn accept(listener: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: no address is requested.
    let fd = unsafe { libc::accept4(listener.as_raw_fd(), null_mut(), null_mut(), libc::SOCK_CLOEXEC) };
    match fd {
        // SAFETY: the kernel has just opened it for this call.
        0.. => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The same, and another thread sends the signal until it has ended.
fn accept_beside_another_thread(listener: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    install()?;
    unblock()?;
    // SAFETY: these two only tell numbers.
    let (process, thread) = unsafe { (libc::getpid(), libc::gettid()) };
    std::thread::scope(|scope| {
        let (over, ended) = channel::<()>();
        let sender = move || {
            let mut pause = PATIENCE;
            // The first one is enough, unless it came before the call.
            while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(pause) {
                pause = (2 * pause).min(LONGEST);
                // SAFETY: the thread waits for this one, so no other thread can have its number.
                unsafe { libc::syscall(libc::SYS_tgkill, process, thread, SIGNAL) };
            }
        };
        let started =
            std::thread::Builder::new().name("sietch-patience".to_owned()).spawn_scoped(scope, sender);
        started.map_err(|_| io::Error::from_raw_os_error(libc::ENOBUFS))?;
        let accepted = accept(listener);
        drop(over);
        accepted
    })
}

impl Timer {
    fn new() -> io::Result<Self> {
        install()?;
        unblock()?;
        // SAFETY: all bytes zero are a `sigevent`; each call is given addresses of values that live
        // over it.
        let timer = unsafe {
            let mut event: libc::sigevent = std::mem::zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = SIGNAL;
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

/// Accepts a connection that waits at a listening socket, blocking or not, with nothing of its
/// flags.
///
/// # Errors
/// `EAGAIN`: none waits. `ENOBUFS`: neither a timer nor a thread is left. Others of `accept(2)`.
pub fn accept_waiting(listener: impl AsFd) -> io::Result<OwnedFd> {
    let listener = listener.as_fd();
    let mut entry = [PollFd::new(&listener, PollFlags::IN)];
    if poll(&mut entry, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))? == 0 {
        return Err(io::Error::from_raw_os_error(libc::EAGAIN));
    }
    let short = |_| io::Error::from_raw_os_error(libc::ENOBUFS);
    let accepted = TIMER.with_borrow_mut(|timer| {
        if timer.is_none() {
            // The limit is one of signals that wait (RLIMIT_SIGPENDING), and may come back.
            *timer = Timer::new().ok();
        }
        let Some(timer) = timer else { return accept_beside_another_thread(listener) };
        timer.set(PATIENCE).map_err(short)?;
        let accepted = accept(listener);
        // It is this thread's own, and was set before: stopping it cannot fail.
        let _ = timer.set(Duration::ZERO);
        accepted
    });
    accepted.map_err(|error| match error.raw_os_error() {
        Some(libc::EINTR) => io::Error::from_raw_os_error(libc::EAGAIN),
        _ => error,
    })
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_waiting_connection_is_accepted_and_an_empty_queue_says_so() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let none = accept_waiting(&listener).map_err(|error| error.kind());
        assert!(matches!(none, Err(io::ErrorKind::WouldBlock)), "{none:?}");
        let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        let accepted = TcpStream::from(accept_waiting(&listener).expect("one waits"));
        assert_eq!(accepted.peer_addr().ok(), client.local_addr().ok());
    }

    #[test]
    fn a_loser_of_the_race_for_the_last_connection_does_not_wait() {
        race(2000);
    }

    /// The variable by which this program knows that it is to have no signals left.
    const SHORT: &str = "SIETCH_TEST_SHORT_OF_SIGNALS";

    #[test]
    fn without_signals_left_connections_are_accepted_and_no_thread_waits() {
        let name = "patience::tests::without_signals_left_connections_are_accepted_and_no_thread_waits";
        if std::env::var_os(SHORT).is_none() {
            // The limit is one of the whole process.
            let mut short = std::process::Command::new(std::env::current_exe().expect("this program"));
            let short = short.args(["--exact", name]).env(SHORT, "").output().expect("it runs");
            let said = String::from_utf8_lossy(&short.stdout);
            assert!(short.status.success() && said.contains("1 passed"), "{said}");
            return;
        }
        let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
        rustix::process::setrlimit(rustix::process::Resource::Sigpending, none).expect("less is allowed");
        assert!(Timer::new().is_err(), "no timer is left");
        race(200);
    }

    fn race(clients: usize) {
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
            for sent in 1..=clients {
                let _client = TcpStream::connect(address).expect("it listens");
                while taken.load(Ordering::Relaxed) < sent {
                    std::hint::spin_loop();
                }
            }
            // All of them end, though no peer connects any more.
            over.store(true, Ordering::Relaxed);
        });
        assert_eq!(taken.load(Ordering::Relaxed), clients);
    }
}
