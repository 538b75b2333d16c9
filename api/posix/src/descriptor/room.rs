//! Room for the descriptors that a call of the library needs for a moment, where the kernel's own
//! call needs one or none.
//!
//! 1. A connection arrives as three descriptors, of which one stays; a request to the service needs
//!    a socket. In a process that is near its descriptor limit the kernel would close what does not
//!    fit. So the library checks *before* the call that there is room ([`check`]).
//! 2. Where there is none, it raises the soft limit for the time of the call ([`raise`]). The hard
//!    limit or the process's privileges must allow that. The descriptor that stays is put at a
//!    number that the program may use. So a program has as many connections as on the kernel. Where
//!    raising is not allowed, a child with a copy of the descriptor table serves
//!    ([`crate::descriptor::copied_table`]).
//! 3. Any number of threads may have raised the limit; the last of them lowers it. A child of fork
//!    lowers its own.

use std::ffi::c_int;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

use crate::descriptor::copied_table;
use crate::descriptor::description::Held;
use crate::system::sys::{self, Outcome, address, address_mut, signed};
use crate::system::{kernel, seccomp};

/// Runs `act` with a fresh kernel socket of the same family.
pub(crate) fn with_kernel_socket(held: &Held, act: impl FnOnce(c_int) -> Outcome) -> Outcome {
    let domain = held.socket.domain.load(Relaxed).cast_signed();
    with_temporary(|| kernel::socket(domain, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0), act)
}

/// Descriptors that a connection comes as.
pub(crate) const CONNECTION_DESCRIPTORS: usize = 3;

/// Descriptors of a request to the service: its socket, and those of the reply.
pub(crate) const REQUEST_DESCRIPTORS: usize = 1 + CONNECTION_DESCRIPTORS;

/// By how much the limit is raised: room for a few threads at once.
const RAISE_BY: u64 = 16;

/// Most descriptors that are requested at once.
const MAX_COUNT: usize = 8;

/// Yields to a thread that is changing the limit. A signal handler may have interrupted that very
/// thread.
const MAX_YIELDS: u32 = 100;

const NORMAL: u8 = 0;

const CHANGING: u8 = 1;

const RAISED: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(NORMAL);

/// Threads that have raised it.
static HOLDERS: AtomicU32 = AtomicU32::new(0);

/// The limits that the process had, soft and hard.
static BEFORE: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Room for as long as this exists.
#[derive(Debug)]
pub(crate) struct Room {
    raised: bool,
}

/// The limits, soft and hard, having set them if there are `new` ones.
fn limits(new: Option<[u64; 2]>) -> Option<[u64; 2]> {
    let mut old = [0_u64; 2];
    let to = new.as_ref().map_or(0, |new| address(new.as_ptr()));
    let arguments = [0, libc::RLIMIT_NOFILE as usize, to, address_mut(old.as_mut_ptr()), 0, 0];
    // SAFETY: the kernel reads two numbers, and writes two.
    unsafe { sys::syscall(libc::SYS_prlimit64, arguments) }.ok().map(|_| old)
}

/// Whether so many descriptors fit.
pub(crate) fn check(count: usize) -> Option<Room> {
    let room = Some(Room { raised: false });
    // Filters allow neither system call.
    if seccomp::is_restricted() {
        return room;
    }
    // A sandbox that forbids both must not cost a program its connections.
    let Some([soft, _]) = limits(None) else { return room };
    // Nearly always the highest numbers are free.
    let highest =
        (1..=count as u64).map(|below| soft.checked_sub(below).and_then(|fd| c_int::try_from(fd).ok()));
    let free = |fd: c_int| kernel::fcntl(fd, libc::F_GETFD, 0) == Err(libc::EBADF);
    if highest.into_iter().all(|fd| fd.is_some_and(free)) {
        return room;
    }
    let mut taken = [-1; MAX_COUNT];
    let taken = taken.get_mut(..count)?;
    let fits = taken.iter_mut().all(|fd| {
        let flags = libc::O_PATH | libc::O_CLOEXEC;
        let arguments = [signed(libc::AT_FDCWD), address(c"/".as_ptr()), signed(flags), 0, 0, 0];
        // SAFETY: the kernel reads the path.
        let opened = unsafe { sys::syscall(libc::SYS_openat, arguments) };
        *fd = opened.map_or(-1, |fd| fd as c_int);
        // A sandbox may forbid it for another reason.
        !matches!(opened, Err(libc::EMFILE | libc::ENFILE))
    });
    for fd in taken.iter().filter(|fd| **fd >= 0) {
        let _ = kernel::close(*fd);
    }
    room.filter(|_| fits)
}

/// Raises the soft limit. None: that is not allowed.
pub(crate) fn raise() -> Option<Room> {
    if seccomp::is_restricted() {
        return None;
    }
    for _ in 0..MAX_YIELDS {
        match STATE.load(Acquire) {
            NORMAL if change(NORMAL) => {
                let raised = set_raised();
                if raised {
                    HOLDERS.store(1, Relaxed);
                }
                STATE.store(if raised { RAISED } else { NORMAL }, Release);
                return raised.then_some(Room { raised: true });
            }
            RAISED if change(RAISED) => {
                HOLDERS.fetch_add(1, Relaxed);
                STATE.store(RAISED, Release);
                return Some(Room { raised: true });
            }
            _ => yield_now(),
        }
    }
    None
}

fn change(from: u8) -> bool {
    STATE.compare_exchange(from, CHANGING, AcqRel, Relaxed).is_ok()
}

fn yield_now() {
    // SAFETY: touches no memory.
    unsafe { sys::raw_syscall(libc::SYS_sched_yield, [0; 6]) };
}

fn set_raised() -> bool {
    let Some([soft, hard]) = limits(None) else { return false };
    for (to, limit) in BEFORE.iter().zip([soft, hard]) {
        to.store(limit, Relaxed);
    }
    let Some(more) = soft.checked_add(RAISE_BY) else { return false };
    limits(Some([more, hard.max(more)])).is_some()
}

/// Restores the limits, unless the program has set others meanwhile.
fn lower() {
    let [soft, hard] = [0, 1].map(|at: usize| BEFORE[at].load(Relaxed));
    if limits(None).is_some_and(|now| now[0] == soft.saturating_add(RAISE_BY)) {
        let _ = limits(Some([soft, hard]));
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if !self.raised {
            return;
        }
        while !change(RAISED) {
            // Lowered by a fork in a handler.
            if STATE.load(Acquire) == NORMAL {
                return;
            }
            yield_now();
        }
        let last = HOLDERS.fetch_sub(1, Relaxed) == 1;
        if last {
            lower();
        }
        STATE.store(if last { NORMAL } else { RAISED }, Release);
    }
}

/// In the child of a fork: the threads that raised it are not here.
pub(crate) fn after_fork() {
    if STATE.load(Relaxed) != NORMAL {
        lower();
        HOLDERS.store(0, Relaxed);
        STATE.store(NORMAL, Relaxed);
    }
}

/// Makes a descriptor that is used for the time of `with`, beyond the limit if need be. `with` uses
/// no other descriptor.
///
/// # Errors
/// Those of both; `EMFILE`.
pub(crate) fn with_temporary(make: impl Fn() -> Outcome, with: impl FnOnce(c_int) -> Outcome) -> Outcome {
    let first = make();
    let room = if first == Err(libc::EMFILE) { raise() } else { None };
    let use_it = |made: Outcome| {
        let fd = made? as c_int;
        let answer = with(fd);
        let _ = kernel::close(fd);
        answer
    };
    match first {
        Err(libc::EMFILE) if room.is_some() => use_it(make()),
        Err(libc::EMFILE) => copied_table::in_child(-1, || use_it(make()))?,
        first => use_it(first),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_raised_and_lowered_again_by_the_last() {
        let before = limits(None).expect("limits");
        let Some(first) = raise() else {
            // An ordinary user whose soft limit is the hard one.
            assert_eq!(before[0].max(before[1] - RAISE_BY + 1), before[0]);
            return;
        };
        let second = raise().expect("raised already");
        assert_eq!(limits(None).expect("limits")[0], before[0] + RAISE_BY);
        drop(first);
        assert_eq!(limits(None).expect("limits")[0], before[0] + RAISE_BY);
        drop(second);
        assert_eq!(limits(None).expect("limits"), before);
    }
}
