//! What a registered socket has to report, and asking to be rung for it.
//!
//! 1. [`readiness`] says what `tcp_poll` of Linux would say of a socket in the same state:
//!    * connecting: nothing; failed: everything, with ERR until the error was taken;
//!    * the peer's FIN or the own `shutdown(SHUT_RD)`: IN and RDHUP, data left or not; with the own FIN as well: HUP;
//!    * a reset: IN, OUT, RDHUP, HUP, and ERR until it was told;
//!    * OUT if there is room as `poll` means it, and always after the own FIN.
//! 2. [`Body::peek`] is what one registration would report now; [`Body::report`] notes that it was reported. Edge-triggered ones are reported if what
//!    both sides have published has changed in a direction that was asked for since they last were; one-shot ones not again until
//!    they are modified.
//! 3. [`Body::arm`] counts the registration as a waiter, so that the other side rings the placeholder, which the kernel's epoll
//!    watches. The other's ring takes all waiters at once, and adds to a counter: a registration whose counter stands where it stood
//!    is still armed.
//! 4. A placeholder that hung up is what says that a peer is gone; the kernel's epoll reports it whatever is asked. Where
//!    shared memory hints at it ([`End::may_be_gone`]), the kernel is asked at once.

use std::ffi::c_int;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use sietch_ring::stream::{End, Want, flag, state};

use super::interest::{Body, What, bit};
use super::nested;
use crate::sleep::ask_whether_gone;
use crate::sys;
use crate::table::Description;

/// Events of data: what an arrival wakes.
pub const INPUT: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM | libc::EPOLLRDHUP | libc::EPOLLPRI) as u32;
/// Events of room.
pub const OUTPUT: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;
/// Events that are reported unasked.
pub const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
/// The edge-triggered bit.
pub const EDGE: u32 = libc::EPOLLET as u32;
/// The one-shot bit.
pub const ONCE: u32 = libc::EPOLLONESHOT as u32;

/// Readable, as epoll and poll say it.
pub const READ: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
const READ_END: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM | libc::EPOLLRDHUP) as u32;
const HANGUP: u32 = libc::EPOLLHUP as u32;
const ERROR: u32 = libc::EPOLLERR as u32;

/// Doorbell bytes that may lie in a placeholder before they are taken out: it holds some two hundred, and when it is full the other side's
/// ring is not heard.
const UNDRAINED: u32 = 64;

/// Whether an end's placeholder carries no bytes to it any more: it has shut down reading, there as well.
pub fn is_deaf(end: &End) -> bool {
    end.private().has(flag::SHUT_RD)
}

/// What an edge-triggered registration was last reported with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Seen {
    tail: u64,
    head: u32,
    own: u32,
}

impl Seen {
    /// Of an end now; of what has been read only if room matters (it is another cache line).
    #[inline]
    fn of(end: &End, room: bool) -> Self {
        let edge = end.snapshot();
        let head = if room { edge.head as u32 } else { 0 };
        let private = end.private();
        // Flags are few and low; the state moves twice in a life.
        let state = private.state.load(Acquire);
        let failed = u32::from(private.error.load(Relaxed) != 0);
        Self { tail: edge.tail, head, own: edge.flags ^ state << 28 ^ failed << 31 }
    }
}

/// What `poll(2)` would say of a TCP socket in this state, everything asked for, room maybe: see the module.
#[inline]
pub fn readiness(end: &End, room: bool) -> u32 {
    let private = end.private();
    let flags = private.flags.load(Acquire);
    let error = if private.error.load(Relaxed) == 0 { 0 } else { ERROR };
    let state = private.state.load(Acquire);
    if flags & flag::RESET != 0 || state != state::ESTABLISHED {
        return special(flags, state, error);
    }
    let gone = flags & flag::HUNG_UP != 0;
    let mut ready = error;
    if gone || flags & flag::SHUT_RD != 0 || end.finished_by_peer() {
        ready |= READ_END;
        if flags & flag::SHUT_WR != 0 {
            ready |= HANGUP;
        }
    } else if end.readable() != 0 {
        ready |= READ;
    }
    if room && (gone || flags & flag::SHUT_WR != 0 || end.is_writable()) {
        ready |= OUTPUT;
    }
    ready
}

#[cold]
fn special(flags: u32, state: u32, error: u32) -> u32 {
    if flags & flag::RESET != 0 {
        let told = if flags & flag::RESET_TOLD == 0 { ERROR } else { error };
        return READ_END | OUTPUT | HANGUP | told;
    }
    match state {
        state::CONNECTING if flags & flag::HUNG_UP == 0 => 0,
        // Who was to set the connection up is gone: it never will be.
        state::CONNECTING => READ_END | OUTPUT | HANGUP | ERROR,
        _ => READ_END | OUTPUT | HANGUP | error,
    }
}

/// Asks the kernel whether the other end of a placeholder is gone, if shared memory hints at it.
#[inline]
pub fn ask_if_gone(fd: c_int, end: &End) {
    if end.may_be_gone() {
        ask_whether_gone(fd, end);
    }
}

/// Takes doorbell bytes out of a placeholder now and then, all but one: somebody else who sleeps on it may still have to be woken by it.
#[inline]
pub fn drain(fd: c_int, description: &Description, end: &End) {
    if undrained(description, end) > UNDRAINED {
        take_bells(fd, description, end, 1);
    }
}

/// Doorbell bytes that should lie in a placeholder.
#[inline]
pub fn undrained(description: &Description, end: &End) -> u32 {
    let left = end.rung().wrapping_sub(description.drained.load(Relaxed));
    // Who connected may have been rung by whoever set the connection up, which nobody counts.
    if left.cast_signed() < 0 { 0 } else { left }
}

/// Takes the doorbell bytes out of a placeholder, all but `keep` as far as they were counted, all there are if none is to be kept.
pub fn take_bells(fd: c_int, description: &Description, end: &End, keep: u32) {
    let rung = end.rung();
    let mut bytes = [0_u8; 256];
    let mut left = match keep {
        0 => usize::MAX,
        keep => undrained(description, end).saturating_sub(keep) as usize,
    };
    let mut kept = keep;
    while left != 0 {
        let wanted = left.min(bytes.len());
        match sys::receive(fd, &mut bytes[..wanted], libc::MSG_DONTWAIT) {
            Ok(got) if got == wanted => left -= got,
            _ => {
                // All gone: others have taken some.
                kept = 0;
                break;
            }
        }
    }
    description.drained.store(rung.wrapping_sub(kept), Relaxed);
}

/// Cycles of the processor's clock: some nanoseconds to read, never calibrated, only for what may be wrong by a factor.
#[inline]
pub fn cycles() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has the instruction, and Linux lets programs use it.
    unsafe {
        core::arch::x86_64::_rdtsc()
    }
    #[cfg(target_arch = "aarch64")]
    {
        let count: u64;
        // SAFETY: reads a register that Linux lets programs read.
        unsafe { std::arch::asm!("mrs {}, cntvct_el0", out(reg) count, options(nomem, nostack)) };
        // Counts at 25 MHz to 1 GHz; made about as fast as the other's.
        count << 3
    }
}

/// A coarse time in cycles, for how long a socket has not been ready.
pub const fn ticks(cycles: u64) -> u32 {
    (cycles >> 16) as u32
}

impl Body {
    /// What a registration would report now; 0 for nothing. And what it would then have been reported with.
    #[inline]
    pub fn peek(&mut self, number: u32) -> (u32, Seen) {
        let slot = self.slot(number);
        let none = (0, slot.seen);
        if slot.state & bit::SPENT != 0 {
            return none;
        }
        let wanted = slot.events | ALWAYS;
        if slot.what == What::Nested {
            return (self.peek_nested(number) & wanted, none.1);
        }
        let Some(end) = slot.held.as_ref().and_then(|held| held.end()) else { return none };
        let edge = slot.events & EDGE != 0 && slot.state & bit::NEW == 0;
        let room = slot.events & OUTPUT != 0;
        // Before the look: what comes between the two is reported once more.
        let seen = Seen::of(end, room);
        // Nothing the program does by itself makes ready what was not: it reads and writes less room away, or it changes `own`.
        if seen == slot.seen && (edge || slot.state & bit::IDLE != 0) {
            return none;
        }
        ask_if_gone(slot.fd, end);
        let ready = readiness(end, room) & wanted;
        if slot.events & EDGE == 0 {
            if ready == 0 {
                slot.seen = seen;
                slot.state |= bit::IDLE;
            } else {
                slot.state &= !bit::IDLE;
            }
            return (ready, seen);
        }
        if !edge || ready == 0 {
            return (ready, seen);
        }
        let old = slot.seen;
        let arrived = seen.tail != old.tail && wanted & INPUT != 0;
        let made_room = seen.head != old.head && wanted & OUTPUT != 0;
        if seen.own != old.own || arrived || made_room { (ready, seen) } else { none }
    }

    fn peek_nested(&mut self, number: u32) -> u32 {
        let slot = self.slot(number);
        let told = slot.state & bit::KERNEL != 0;
        let edge = slot.events & EDGE != 0;
        let Some(held) = slot.held.clone() else { return 0 };
        let ready = nested::is_ready(slot.fd, &held, told, false);
        let before = slot.rung;
        if edge && !told {
            // Edges of shared memory: from nothing to something.
            slot.rung = u32::from(ready);
            return if ready && before == 0 { READ } else { 0 };
        }
        if !ready {
            slot.state &= !bit::KERNEL;
        }
        if ready { READ } else { 0 }
    }

    /// Notes that a registration was reported.
    #[inline]
    pub fn report(&mut self, number: u32, seen: Seen, now: u32) {
        let slot = self.slot(number);
        slot.seen = seen;
        slot.ready_at = now;
        slot.state &= !bit::NEW;
        if slot.events & EDGE != 0 {
            // The kernel will say so again; for a level-triggered one it will not, and has to be asked.
            slot.state &= !bit::KERNEL;
        }
        if slot.events & ONCE != 0 {
            slot.state |= bit::SPENT;
        }
    }

    /// Asks to be rung for whatever a registration wants and has not. The caller looks once more before it sleeps.
    #[inline]
    pub fn arm(&mut self, number: u32) {
        let slot = self.slot(number);
        if slot.state & bit::SPENT != 0 {
            return;
        }
        if slot.what == What::Nested {
            if let Some(held) = slot.held.clone() {
                nested::is_ready(slot.fd, &held, false, true);
            }
            return;
        }
        let Some(end) = slot.held.as_ref().and_then(|held| held.end()) else { return };
        let (data, room) = (end.rung_for(Want::Data), end.rung_for(Want::Room));
        if data != slot.rung {
            slot.state &= !bit::DATA;
            slot.rung = data;
        }
        if room != slot.rung_for_room {
            slot.state &= !bit::ROOM;
            slot.rung_for_room = room;
        }
        // After the own FIN the peer's is a hang-up, which is reported unasked.
        let data = slot.events & INPUT != 0 || end.private().has(flag::SHUT_WR);
        if data && slot.state & bit::DATA == 0 {
            end.arm(Want::Data);
            slot.state |= bit::DATA;
        }
        if slot.events & OUTPUT != 0
            && slot.state & bit::ROOM == 0
            && (slot.events & EDGE != 0 || !end.is_writable())
        {
            end.arm(Want::Room);
            slot.state |= bit::ROOM;
        }
    }

    /// Takes the request back, if it was not answered.
    #[inline]
    pub fn disarm(&mut self, number: u32) {
        let slot = self.slot(number);
        let armed = slot.state & (bit::DATA | bit::ROOM);
        if armed == 0 || slot.what != What::Stream {
            return;
        }
        slot.state &= !(bit::DATA | bit::ROOM);
        let Some(end) = slot.held.as_ref().and_then(|held| held.end()) else { return };
        // Who was rung for the one is still counted for the other.
        if armed & bit::DATA != 0 && end.rung_for(Want::Data) == slot.rung {
            end.disarm(Want::Data);
        }
        if armed & bit::ROOM != 0 && end.rung_for(Want::Room) == slot.rung_for_room {
            end.disarm(Want::Room);
        }
    }

    /// The kernel reports something of a registration: `events` of its placeholder or nested epoll.
    pub fn kernel_says(&mut self, number: u32, events: u32) {
        let slot = self.slot(number);
        match slot.what {
            What::Stream | What::Dormant => {
                if let Some(held) = slot.held.as_ref()
                    && let Some(end) = held.end()
                {
                    if events & HANGUP != 0 {
                        end.hung_up();
                    }
                    drain(slot.fd, held, end);
                }
                if slot.what == What::Dormant {
                    return;
                }
            }
            What::Nested => slot.state |= bit::KERNEL,
            What::Native | What::Nothing => return,
        }
        self.put_on_list(number);
    }
}
