//! Fork sharing: processes that came from one another by fork, and share epolls.
//!
//! 1. What the library remembers of an epoll is in memory that a child of fork shares with its
//!    parent, as they share the kernel's epoll. But a registration refers to a description, which
//!    is the memory of one process. It means something only to the process that made it, and to
//!    children that were forked later, which have a copy.
//! 2. So each registration bears the mark of its maker ([`mark`]): a number of the process, and how
//!    often that process had forked. A process remembers the mark with its own state of a
//!    registration ([`crate::readiness::set::registrations::Known`]). Under another mark, the slot
//!    is not the one that was known.
//! 3. The library queries the kernel whether another process may still hold a file only while a
//!    related process exists ([`any_relative_exists`]).

use std::ffi::c_int;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI32, AtomicU32};

use sietch_ring::stream::arrivals::cycles;

use crate::system::sys;

/// The number of this process, 0 before it was needed.
static OWN: AtomicU32 = AtomicU32::new(0);

/// How often it has forked.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// The parent of a child; 0 in a process that was not forked.
static PARENT: AtomicI32 = AtomicI32::new(0);

pub(crate) fn own() -> u32 {
    match OWN.load(Relaxed) {
        0 => {
            let new = (cycles() >> 6) as u32 | 1;
            // Another thread may have been first.
            match OWN.compare_exchange(0, new, Relaxed, Relaxed) {
                Ok(_) => new,
                Err(first) => first,
            }
        }
        own => own,
    }
}

/// The mark of what this process registers now.
pub(crate) fn mark() -> u64 {
    u64::from(own()) << 32 | u64::from(FORKS.load(Relaxed))
}

/// How often this process has forked.
pub(crate) fn forks() -> u32 {
    FORKS.load(Relaxed)
}

/// Before a fork, in the parent: what it registers from now on, the child will not know.
pub(crate) fn before_fork() {
    own();
    FORKS.fetch_add(1, Relaxed);
}

/// In the child of a fork.
pub(crate) fn begin() {
    OWN.store(0, Relaxed);
    FORKS.store(0, Relaxed);
    PARENT.store(parent_now(), Relaxed);
}

/// Whether a relative exists: the parent of a child, or a child (dead and not waited for, or
/// another program by now, included).
pub(crate) fn any_relative_exists() -> bool {
    let parent = PARENT.load(Relaxed);
    parent != 0 && parent_now() == parent || FORKS.load(Relaxed) != 0 && has_children()
}

fn parent_now() -> c_int {
    // SAFETY: touches no memory.
    unsafe { sys::raw_syscall(libc::SYS_getppid, [0; 6]) as c_int }
}

fn has_children() -> bool {
    let how = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: the kernel writes nowhere.
    let answer =
        unsafe { sys::syscall(libc::SYS_waitid, [libc::P_ALL as usize, 0, 0, sys::signed(how), 0, 0]) };
    answer != Err(libc::ECHILD)
}
