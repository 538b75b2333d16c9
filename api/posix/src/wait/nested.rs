//! An epoll that is watched by another epoll or by poll.
//!
//! 1. The kernel knows whether its part of the inner epoll is readable: descriptors of its own, and placeholders that were rung. Whoever
//!    watches it asks the kernel about the inner epoll's descriptor as about any other.
//! 2. What is ready in shared memory and was rung before is on the inner one's list: so looking at the list, and arming all of it
//!    before sleeping, is enough. From then on the inner epoll is shared: everything in it stays armed.
//! 3. A placeholder in which old doorbell bytes lie keeps the inner epoll readable in the kernel's eyes. So when the kernel says
//!    readable and the list says nothing, the bytes are taken out (what was rung goes on the list and is looked at), and the
//!    kernel is asked again. Nothing is harvested: the inner epoll's own waiter gets what is due to it.

use std::ffi::c_int;

use sietch_ring::stream::Want;

use super::hooks::interest_of;
use super::interest::{Body, What};
use super::look;
use crate::sys;
use crate::table::Held;

/// Whether an epoll has something to report. `told`: the kernel has said that it is readable, which is verified. `arm`: the caller is about to sleep.
pub fn is_ready(fd: c_int, held: &Held, told: bool, arm: bool) -> bool {
    if let Some(interest) = interest_of(held)
        && let Some(mut body) = interest.lock()
    {
        body.shared = true;
        if if arm { body.settle(0) } else { body.any() } {
            return true;
        }
        if told && body.take_stale_bells() {
            return true;
        }
    }
    told && is_readable(fd)
}

fn is_readable(fd: c_int) -> bool {
    let mut one = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
    sys::poll(&mut one, Some(libc::timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready != 0)
}

impl Body {
    /// Whether anything on the list is ready.
    fn any(&mut self) -> bool {
        (0..self.listed).any(|position| {
            let number = self.at(position);
            self.peek(number).0 != 0
        })
    }

    /// Takes the bytes out of every placeholder that was rung since it was armed. Whether one of them is ready.
    fn take_stale_bells(&mut self) -> bool {
        let mut ready = false;
        for number in self.numbers() {
            let slot = self.slot(number);
            if slot.what != What::Stream {
                continue;
            }
            let Some(held) = slot.held.clone() else { continue };
            let Some(end) = held.end() else { continue };
            let rung = (end.rung_for(Want::Data), end.rung_for(Want::Room));
            if rung != (slot.rung, slot.rung_for_room) || look::undrained(&held, end) != 0 {
                look::take_bells(slot.fd, &held, end, 0);
                self.put_on_list(number);
                ready |= self.peek(number).0 != 0;
            }
        }
        ready
    }
}
