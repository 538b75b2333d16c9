//! `poll`, `select` and `epoll`.
//!
//! 1. [`perform`] carries out one operation and returns its result as text; none if another module
//!    is responsible.
//! 2. The text has the return value, then the events of each watched slot, in the order of the
//!    program. Events of `epoll_wait` are sorted by slot: the kernel's order is not part of the
//!    comparison.
//! 3. `select` expresses its three sets as the events IN, OUT and PRI.

use super::errno::Returned;
use super::slots::{descriptor, put_new};
use super::syscalls::{self, int};
use crate::operation::Operation;
use crate::operation::words::{Events, Slot, Watched};

/// The first descriptor that does not fit into an `fd_set`.
const SET_SIZE: i32 = 1024;

/// Carries out an operation of this module; none if it is of another.
pub(super) fn perform(operation: &Operation) -> Option<String> {
    Some(match operation {
        Operation::Poll { watched, milliseconds } => poll(watched, *milliseconds, false),
        Operation::Ppoll { watched, milliseconds } => poll(watched, *milliseconds, true),
        Operation::Select { watched, milliseconds } => select(watched, *milliseconds, false),
        Operation::Pselect { watched, milliseconds } => select(watched, *milliseconds, true),
        Operation::EpollCreate { to, flags } => put_new(*to, syscalls::epoll_create(flags.0)),
        Operation::EpollControl { epoll, control, fd, events } => {
            let mut event = libc::epoll_event { events: bits(events.0), u64: u64::from(fd.0) };
            // SAFETY: one event that outlives the call.
            Returned::of(unsafe {
                libc::epoll_ctl(descriptor(*epoll), control.value(), descriptor(*fd), &raw mut event)
            })
            .to_string()
        }
        Operation::EpollWait { epoll, most, milliseconds } => epoll_wait(*epoll, *most, *milliseconds, false),
        Operation::EpollPwait { epoll, most, milliseconds } => epoll_wait(*epoll, *most, *milliseconds, true),
        _ => return None,
    })
}

/// The same bits without a sign.
fn bits(events: i32) -> u32 {
    u32::from_ne_bytes(events.to_ne_bytes())
}

fn poll(watched: &Watched, milliseconds: i64, with_mask: bool) -> String {
    let mut entries: Vec<_> = watched
        .0
        .iter()
        .map(|(slot, events)| libc::pollfd {
            fd: descriptor(*slot),
            events: i16::try_from(events.0 & 0x7fff).unwrap_or(0),
            revents: -1,
        })
        .collect();
    let count = libc::nfds_t::try_from(entries.len()).unwrap_or(0);
    // SAFETY: as many entries as `count` says, and a time, outlive the call; without a mask signals
    // stay as they are.
    let returned = Returned::of(unsafe {
        if with_mask {
            let time = time(milliseconds);
            let pointer = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
            libc::ppoll(entries.as_mut_ptr(), count, pointer, std::ptr::null())
        } else {
            libc::poll(entries.as_mut_ptr(), count, int(milliseconds))
        }
    });
    if !returned.is_ok() {
        return returned.to_string();
    }
    let mut text = returned.to_string();
    for ((slot, _), entry) in watched.0.iter().zip(&entries) {
        text += &format!(" {slot}:{}", Events(i32::from(entry.revents)));
    }
    text
}

fn time(milliseconds: i64) -> Option<libc::timespec> {
    (milliseconds >= 0)
        .then(|| libc::timespec { tv_sec: milliseconds / 1000, tv_nsec: milliseconds % 1000 * 1_000_000 })
}

/// Three sets for read, write and exceptions: the events that name them.
const SETS: [i32; 3] = [libc::EPOLLIN, libc::EPOLLOUT, libc::EPOLLPRI];

fn select(watched: &Watched, milliseconds: i64, with_mask: bool) -> String {
    if watched.0.iter().any(|(slot, _)| !(0..SET_SIZE).contains(&descriptor(*slot))) {
        return "no descriptor".to_owned();
    }
    // SAFETY: plain data; zeros are empty sets.
    let mut sets: [libc::fd_set; 3] = unsafe { std::mem::zeroed() };
    let mut highest = -1;
    for (slot, events) in &watched.0 {
        highest = highest.max(descriptor(*slot));
        for (set, event) in sets.iter_mut().zip(SETS) {
            if events.0 & event != 0 {
                // SAFETY: the descriptor was checked to fit into the set.
                unsafe { libc::FD_SET(descriptor(*slot), set) };
            }
        }
    }
    let [read, write, except] = &mut sets;
    let (read, write, except) =
        (std::ptr::from_mut(read), std::ptr::from_mut(write), std::ptr::from_mut(except));
    // SAFETY: three sets and a time outlive the call; without a mask signals stay as they are.
    let returned = Returned::of(unsafe {
        if with_mask {
            let time = time(milliseconds);
            let pointer = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
            libc::pselect(highest + 1, read, write, except, pointer, std::ptr::null())
        } else {
            let mut time = libc::timeval { tv_sec: milliseconds / 1000, tv_usec: milliseconds % 1000 * 1000 };
            let pointer = if milliseconds < 0 { std::ptr::null_mut() } else { &raw mut time };
            libc::select(highest + 1, read, write, except, pointer)
        }
    });
    if !returned.is_ok() {
        return returned.to_string();
    }
    let mut text = returned.to_string();
    for (slot, _) in &watched.0 {
        let mut events = 0;
        for (set, event) in sets.iter().zip(SETS) {
            // SAFETY: the descriptor was checked to fit into the set.
            if unsafe { libc::FD_ISSET(descriptor(*slot), set) } {
                events |= event;
            }
        }
        text += &format!(" {slot}:{}", Events(events));
    }
    text
}

fn epoll_wait(epoll: Slot, most: i64, milliseconds: i64, with_mask: bool) -> String {
    let room = usize::try_from(most).unwrap_or(0).clamp(1, 64);
    let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; room];
    let most = int(most.min(64));
    // SAFETY: the vector has as many elements as `most` says; without a mask signals stay as they
    // are.
    let returned = Returned::of(unsafe {
        if with_mask {
            libc::epoll_pwait(
                descriptor(epoll),
                events.as_mut_ptr(),
                most,
                int(milliseconds),
                std::ptr::null(),
            )
        } else {
            libc::epoll_wait(descriptor(epoll), events.as_mut_ptr(), most, int(milliseconds))
        }
    });
    if !returned.is_ok() {
        return returned.to_string();
    }
    // The kernel promises no order of the ready descriptors.
    let mut ready: Vec<_> = events[..returned.length().min(room)]
        .iter()
        .map(|event| {
            let (slot, bits) = (event.u64, event.events);
            format!(" f{slot}:{}", Events(i32::from_ne_bytes(bits.to_ne_bytes())))
        })
        .collect();
    ready.sort();
    format!("{returned}{}", ready.concat())
}
