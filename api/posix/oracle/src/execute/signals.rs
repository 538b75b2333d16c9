//! The signals by which the director interrupts calls, `SIGPIPE` and `SIGXFSZ`.
//!
//! Each is counted for the thread that it reaches. A handler touches nothing but a cell of its
//! thread.

use std::cell::Cell;

/// Interrupts a call; restarts it if the program says so.
pub(super) const FIRST: i32 = libc::SIGUSR1;
/// Interrupts a call whatever the program says.
pub(super) const SECOND: i32 = libc::SIGUSR2;

/// Signals that have reached a thread.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    /// [`FIRST`] and [`SECOND`].
    pub(super) interrupts: u32,
    /// `SIGPIPE`.
    pub(super) pipes: u32,
    /// `SIGXFSZ`.
    pub(super) limits: u32,
}

thread_local! {
    static COUNTS: Cell<Counts> = const { Cell::new(Counts { interrupts: 0, pipes: 0, limits: 0 }) };
}

extern "C" fn count(signal: libc::c_int) {
    COUNTS.with(|cell| {
        let mut counts = cell.get();
        if signal == libc::SIGPIPE {
            counts.pipes += 1;
        } else if signal == libc::SIGXFSZ {
            counts.limits += 1;
        } else {
            counts.interrupts += 1;
        }
        cell.set(counts);
    });
}

/// The counts of this thread.
pub(super) fn counts() -> Counts {
    COUNTS.with(Cell::get)
}

/// Sets them back, after a wait that is no part of a call.
pub(super) fn set_counts(counts: Counts) {
    COUNTS.with(|cell| cell.set(counts));
}

/// Takes these signals; `restart` is for the first alone.
pub(super) fn install(restart: bool) {
    for signal in [FIRST, SECOND, libc::SIGPIPE, libc::SIGXFSZ] {
        let flags = if restart && signal == FIRST { libc::SA_RESTART } else { 0 };
        // SAFETY: `sigaction` is plain data whose zeros are an empty mask. `count` only touches a
        // cell of its own thread, so it may interrupt anything: the cell has neither a destructor
        // nor a lazy initialiser.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = count as extern "C" fn(libc::c_int) as usize;
            action.sa_flags = flags;
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
    }
}

/// Sends `signal` to one thread.
pub(super) fn send(process: i32, thread: i32, signal: i32) {
    // SAFETY: numbers only.
    unsafe { libc::syscall(libc::SYS_tgkill, process, thread, signal) };
}
