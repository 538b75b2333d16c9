//! Both ends of a connection in one process, with a socket pair as their placeholders. Each test
//! compares the library with what the kernel does for TCP sockets.

mod epolls;
mod hostile;
mod polling;
mod polls;
mod removal;
mod together;
mod wakeups;

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::ptr;

use sietch_ring::stream::arrivals::cycles;
use sietch_ring::stream::{Endpoint, Memory, Names, RegionSizes};
use sietch_stream::peer::notify;
use sietch_stream::placeholder::Direct;

use super::{epoll, sliced as kernel};
use crate::connection::peer;
use crate::descriptor::description::{self, Kind};
use crate::descriptor::table;
use crate::readiness::{control, hooks};
use crate::system::sys::{Errno, Outcome};

const IN: u32 = libc::EPOLLIN as u32;
const OUT: u32 = libc::EPOLLOUT as u32;
const RDHUP: u32 = libc::EPOLLRDHUP as u32;
const HUP: u32 = libc::EPOLLHUP as u32;
const ERR: u32 = libc::EPOLLERR as u32;
const EDGE: u32 = libc::EPOLLET as u32;
const ONCE: u32 = libc::EPOLLONESHOT as u32;

/// The other end of a connection: what its program would do.
struct Peer {
    end: Endpoint,
    placeholder: OwnedFd,
}

impl Peer {
    /// Sends. What is sent next arrives later: within a hundred nanoseconds a processor may read
    /// the clock for two messages at once, and arrivals of one tick have no order.
    fn send(&self, bytes: &[u8]) -> usize {
        let sent = self.end.send().expect("no other sender").write(bytes);
        notify(Direct(self.placeholder.as_fd()), &self.end, self.end.data_notification());
        let arrived = cycles();
        while cycles().wrapping_sub(arrived) < 1_000 {}
        sent
    }

    fn receive(&self) -> usize {
        let mut bytes = vec![0; 1 << 20];
        let got = self.end.receive().expect("no other receiver").read(&mut bytes);
        notify(Direct(self.placeholder.as_fd()), &self.end, self.end.room_notification());
        got
    }

    fn finish(&self) {
        self.end.finish();
        notify(Direct(self.placeholder.as_fd()), &self.end, self.end.data_notification());
    }

    /// Closes as a program does.
    fn close(self) {
        self.end.closing();
        drop(self.placeholder);
    }
}

/// A descriptor of ours, closed as the shim closes it.
struct Stream(c_int);

impl Stream {
    fn end<R>(&self, with: impl FnOnce(&Endpoint) -> R) -> R {
        let held = table::find(self.0).expect("a stream");
        with(held.end().expect("a stream"))
    }

    fn receive(&self) -> usize {
        self.end(|end| {
            let mut bytes = vec![0; 1 << 20];
            let got = end.receive().expect("no other receiver").read(&mut bytes);
            peer::notify(self.0, end, end.room_notification());
            got
        })
    }

    /// Sends until there is no room, as `send` does.
    fn fill(&self) -> usize {
        let held = table::find(self.0).expect("a stream");
        self.end(|end| {
            let mut sent = 0;
            loop {
                match end.send().expect("no other sender").write(&[0; 65_536]) {
                    0 => break,
                    more => sent += more,
                }
            }
            hooks::note_no_room(&held, end);
            sent
        })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        crate::calls::descriptor::close::close(self.0);
    }
}

fn pair() -> (Stream, Peer) {
    let region_sizes = RegionSizes { smallest: 12, largest: 14 };
    let memory = Memory::create(region_sizes, [Names::default(); 2]).expect("memory");
    let end = |index: usize| {
        Endpoint::attach(memory.common.as_fd(), memory.private[index].as_fd()).expect("an end")
    };
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("a pair");
    let fd = OwnedFd::from(ours).into_raw_fd();
    let held = description::describe(Kind::Stream, Some(end(0))).expect("a description");
    assert!(table::put(fd, &held));
    (Stream(fd), Peer { end: end(1), placeholder: theirs.into() })
}

/// An epoll as the calls make it.
struct Epoll(c_int);

impl Drop for Epoll {
    fn drop(&mut self) {
        crate::calls::descriptor::close::close(self.0);
    }
}

impl Epoll {
    fn new() -> Self {
        Self(control::create(0).expect("an epoll") as c_int)
    }

    fn control(&self, call: c_int, fd: c_int, events: u32, data: u64) -> Outcome {
        let event = libc::epoll_event { events, u64: data };
        // SAFETY: the event outlives the call.
        unsafe { control::control(self.0, call, fd, &raw const event) }
    }

    fn add(&self, fd: c_int, events: u32, data: u64) {
        self.control(libc::EPOLL_CTL_ADD, fd, events, data).expect("EPOLL_CTL_ADD");
    }

    fn modify(&self, fd: c_int, events: u32, data: u64) {
        self.control(libc::EPOLL_CTL_MOD, fd, events, data).expect("EPOLL_CTL_MOD");
    }

    fn remove(&self, fd: c_int) -> Outcome {
        self.control(libc::EPOLL_CTL_DEL, fd, 0, 0)
    }

    /// `(data, events)` of up to `most`, by data; milliseconds, -1 forever.
    fn try_wait(&self, most: usize, timeout: c_int) -> Result<Vec<(u64, u32)>, Errno> {
        let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; most];
        let time = super::poll::milliseconds(timeout);
        // SAFETY: so many entries.
        let got = unsafe { epoll::wait(self.0, events.as_mut_ptr(), most as c_int, time, ptr::null()) }?;
        let mut all: Vec<_> = events[..got].iter().map(|event| (event.u64, event.events)).collect();
        all.sort_unstable();
        Ok(all)
    }

    fn wait(&self, timeout: c_int) -> Vec<(u64, u32)> {
        self.try_wait(64, timeout).expect("epoll_wait")
    }
}

fn pipe() -> (OwnedFd, OwnedFd) {
    let mut both = [0; 2];
    // SAFETY: two numbers.
    assert_eq!(unsafe { libc::pipe(both.as_mut_ptr()) }, 0);
    // SAFETY: just made.
    unsafe { (OwnedFd::from_raw_fd(both[0]), OwnedFd::from_raw_fd(both[1])) }
}

fn write(fd: &OwnedFd) {
    // SAFETY: a byte.
    assert_eq!(unsafe { libc::write(fd.as_raw_fd(), c"x".as_ptr().cast(), 1) }, 1);
}

/// Waits until a thread sleeps, or is about to, at the other end of `peer`.
fn until_asleep(stream: &Stream) {
    while stream.end(Endpoint::waiting) == 0 {
        std::thread::yield_now();
    }
}
