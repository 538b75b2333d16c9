//! Waiting: epoll, poll, select, how long to look before sleeping, and signals.
//!
//! 1. Whatever sleeps sleeps in the kernel, on the program's own descriptors: an epoll is the
//!    kernel's epoll, and in it, or in the array of a `ppoll`, stands the placeholder of each
//!    stream. A placeholder becomes readable when the peer rings, and hangs up when the last holder
//!    of the peer's end is gone. Timeouts, masks and signals are therefore the kernel's.
//! 2. The peer rings only for whom it finds *armed*. Arm, look once more, sleep: nothing is lost
//!    ([`look`]).
//! 3. Whatever is awake looks at shared memory, and makes no system call as long as it finds
//!    something ([`epoll`], [`mod@poll`], [`mod@select`]). The kernel is asked now and then, so
//!    that its own descriptors are never forgotten.
//! 4. Between the two lies a while of looking, as long as experience says that it pays
//!    ([`mod@spin`]).
//! 5. An epoll of kernel descriptors alone goes straight to the kernel, and so do listeners: their
//!    placeholders are readable when a connection has come.
//! 6. Who registers what is in [`interest`], the calls that change it in [`control`], epolls within
//!    epolls in [`nested`], and what happens when descriptors are closed or change their nature in
//!    [`hooks`].
//! 7. What is different for a program that polls without ever sleeping is in [`polling`].
//! 8. Handlers of the program end a wait also while it is only looking ([`signals`]).
//!
//! What differs from Linux: of an epoll that parent and child of a fork both go on using, each
//! process is told of the registrations that it has made or inherited ([`mod@family`]); a thread
//! that is cancelled while it waits goes on until the wait ends.

pub mod calls;
pub mod control;
pub mod epoll;
mod family;
pub mod hooks;
pub mod inherit;
pub mod interest;
pub mod kernel;
pub mod look;
pub mod nested;
pub mod poll;
mod polling;
pub mod select;
pub mod shared;
pub mod signals;
pub mod spin;


use sietch_ring::stream::{End, Want};

pub use family::forgotten_by_fork;
pub use hooks::{closing, replaced, replacing};
pub use polling::wrote;
pub use signals::Section;
pub use spin::{LONGEST, Spun, give_way};

use crate::table::{self, Held};

/// Which of a description's waits: the reader's.
pub const READER: usize = 0;
/// The writer's.
pub const WRITER: usize = 1;

/// Before a fork, in the parent.
pub fn before_fork() {
    family::before_fork();
}

/// In the child of a fork, before anything else runs there.
pub fn after_fork() {
    interest::recognise_child();
    // Threads of the parent do not sleep here.
    for fd in 0..table::highest() {
        if let Some(held) = table::find(fd).filter(|held| held.kind() == table::Kind::Epoll) {
            held.outside.store(0, std::sync::atomic::Ordering::SeqCst);
        }
    }
}

/// A writer found no room: that there is some again is an edge. Who sleeps in an epoll, of this
/// process or another, has not asked to be rung for it, so that is done here in its place.
#[cold]
pub fn full(held: &Held, end: &End) {
    if end.note_full() && !held.watchers.load(std::sync::atomic::Ordering::Acquire).is_null() {
        end.ask_for_others(Want::Room);
        if end.is_writable() {
            // It came in between, and nobody was rung.
            end.asked_no_more(Want::Room);
            hooks::wake_watchers(held);
        }
    }
}

/// Looks until `ready` says so, no longer than it pays and for `most` nanoseconds at most, and says whether a handler ran that was installed
/// without `SA_RESTART` ([`Spun::Interrupted`]: answer EINTR). A caller that sleeps then drops
/// nothing and calls [`spin::Pause::ended`] when what it waited for has come; a timeout teaches
/// nothing.
pub fn pause<'a>(
    held: &'a Held,
    which: usize,
    most: Option<u64>,
    mut ready: impl FnMut() -> bool,
) -> (Spun, spin::Pause<'a>) {
    let pause = spin::Pause::begin(&held.spin[which & 1]);
    let peer = held.end().and_then(End::peer_cpu);
    let most = most.unwrap_or(LONGEST);
    let breaking = signals::breaking();
    let spun = loop {
        match pause.look(peer, most, signals::count(), &mut ready) {
            Spun::Interrupted if signals::breaking() == breaking => {}
            spun => break spun,
        }
    };
    if let Some(end) = held.end() {
        end.set_cpu(spin::processor());
    }
    if spun != Spun::Ready {
        return (spun, pause);
    }
    pause.over();
    (spun, pause)
}

#[cfg(test)]
mod tests;
