//! Waiting: epoll, poll, select, and how long to look before sleeping.

use std::ffi::{c_int, c_void};

use crate::table::Held;

/// The last reference to an epoll's description went.
pub fn epoll_gone(_epoll: *mut c_void) {}

/// The last reference to a description that had watchers went.
pub fn watchers_gone(_watchers: *mut c_void) {}

/// A descriptor of ours is about to be closed (its word has been taken from the table).
pub fn closing(_fd: c_int, _held: &Held) {}

/// Another file was put at a descriptor: a pending socket became a stream or a listener, or a listener was registered again.
pub fn replaced(_fd: c_int, _held: &Held) {}

/// In the child of a fork, before anything else runs there.
pub fn after_fork() {}

/// A new descriptor refers to what `old` refers to.
pub fn duplicated(_old: c_int, _new: c_int, _held: &Held) {}

/// Looks for a while until `ready` says so, no longer than it pays. `false`: time to sleep.
pub fn spin(_held: &Held, _which: usize, mut ready: impl FnMut() -> bool) -> bool {
    ready()
}
