//! `epoll_create` and `epoll_ctl`.
//!
//! 1. An epoll is the kernel's. It is in the descriptor table so that its epoll set is found. An
//!    epoll that was inherited over exec enters the table when the first of our sockets is
//!    registered in it.
//! 2. Kernel descriptors go to the kernel unchanged. So do listeners and sockets that are not
//!    connected yet, which are remembered ([`crate::readiness::hooks`], step 3).
//! 3. A stream goes to the kernel as its placeholder, edge-triggered, with
//!    [`TAG`](crate::readiness::tag::TAG) and its slot's number as data; a nested epoll likewise.
//!    The kernel decides whether the change is possible (EEXIST, ENOENT, EBADF, ELOOP, ENOSPC),
//!    because it knows the same descriptors and files. What the placeholder would hide (EINVAL for
//!    combinations with `EPOLLEXCLUSIVE`) is checked before.
//! 4. A stream that the program removes stays in the kernel's epoll, *dormant*. Programs that
//!    remove and add a stream with every request (as `ae` of Redis does) need no system call for
//!    it. There are two exceptions: an epoll that is shared with others, which would not know, and
//!    one that survives exec (made without `EPOLL_CLOEXEC`). There the kernel gets each change,
//!    so that the next program can read it ([`crate::readiness::inherit`]).
//! 5. Changes of known streams that need neither the kernel nor another thread take the short way
//!    of [`crate::readiness::revise`].
//! 6. A change may make something ready for a thread that sleeps in this epoll already. The
//!    registration is armed and checked. If it is ready, the kernel is made to report it
//!    ([`announce`]): its placeholder is watched for room too, which it always has.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, SeqCst};

use sietch_ring::stream::arrivals::cycles;

use crate::descriptor::description::{self, Held, Kind};
use crate::descriptor::table;
use crate::readiness::check::{self, EDGE, EXCLUSIVE, WAKEUP};
use crate::readiness::nested;
use crate::readiness::revise;
use crate::readiness::set::registrations::Registrations;
use crate::readiness::set::shared::{Flag, SlotKind, bit};
use crate::readiness::set::{self, EpollSet, Locked, set_of};
use crate::readiness::tag::{self, tagged};
use crate::signal::user_memory;
use crate::system::sys::{self, Outcome};
use crate::system::{kernel, multiplexing};

/// The events allowed with [`EXCLUSIVE`] (fs/eventpoll.c).
const WITH_EXCLUSIVE: u32 =
    (libc::EPOLLIN | libc::EPOLLOUT) as u32 | check::ALWAYS | EDGE | EXCLUSIVE | WAKEUP;

/// Cycles of a period in which a registration is forced once if the kernel does not report it: some
/// milliseconds, in which a thread that was woken has run.
const FORCING_PERIOD: u64 = 1 << 23;

/// The bits that a modified registration keeps: a scan checks nothing else.
const INPUT_EDGE: u32 = libc::EPOLLIN as u32 | EDGE;

/// The end of what a placeholder carries. The kernel refuses it with [`EXCLUSIVE`].
const SILENT_FOR_GOOD: u32 = libc::EPOLLRDHUP as u32;

/// `epoll_create1(2)`.
pub(crate) fn create(flags: c_int) -> Outcome {
    let epfd = multiplexing::epoll_create(flags)?;
    if let Some(held) = description::describe(Kind::Epoll, None) {
        // Too high for the table: an epoll of kernel descriptors it can still be.
        let _ = c_int::try_from(epfd).is_ok_and(|epfd| table::put(epfd, &held));
    }
    Ok(epfd)
}

/// `epoll_create(2)`.
pub(crate) fn create_sized(size: c_int) -> Outcome {
    if size <= 0 { Err(libc::EINVAL) } else { create(0) }
}

/// The kernel's registration of a slot.
#[derive(Debug)]
pub(crate) struct Registration {
    epfd: c_int,
    fd: c_int,
    event: libc::epoll_event,
}

impl Registrations {
    /// The kernel's event for a slot.
    pub(crate) fn epoll_and_slot(&mut self, number: u32) -> Registration {
        let epfd = self.epfd;
        let (slot, held) = self.slot_and_held(number);
        let what = slot.kind();
        let event = match what {
            SlotKind::Native | SlotKind::Nothing => {
                let events = held.map_or(slot.events, |held| native_events(held, slot.events));
                libc::epoll_event { events, u64: tag::replacement(slot.data).unwrap_or(slot.data) }
            }
            SlotKind::Stream | SlotKind::Dormant | SlotKind::Nested => {
                let encoded = tag::encoded(slot.events);
                let spent = what == SlotKind::Nested && slot.state & bit::SILENT != 0;
                let end = if slot.events & EXCLUSIVE == 0 { SILENT_FOR_GOOD } else { 0 };
                let watched = if spent { EDGE } else { INPUT_EDGE | end | encoded };
                let forced = if slot.state & bit::FORCED != 0 { libc::EPOLLOUT as u32 } else { 0 };
                let events = watched | forced | slot.events & (EXCLUSIVE | WAKEUP);
                libc::epoll_event { events, u64: tagged(number, slot.data) }
            }
        };
        Registration { epfd, fd: slot.fd, event }
    }
}

/// The events for which the kernel watches a socket with the program's own data: a listener is
/// never writable, as its placeholder would be.
fn native_events(held: &Held, events: u32) -> u32 {
    if held.listens() { events & !(check::OUTPUT | libc::EPOLLWRBAND as u32) } else { events }
}

/// Registers with the kernel a slot that it may have dropped or not.
pub(crate) fn register(to: &Registration) -> Outcome {
    // SAFETY: the event outlives the calls.
    unsafe {
        match multiplexing::epoll_ctl(to.epfd, libc::EPOLL_CTL_ADD, to.fd, &raw const to.event) {
            Err(libc::EEXIST) => {
                multiplexing::epoll_ctl(to.epfd, libc::EPOLL_CTL_MOD, to.fd, &raw const to.event)
            }
            answer => answer,
        }
    }
}

/// After a change: wakes a thread that sleeps in the epoll if there is something for it.
pub(crate) fn announce(locked: &mut Locked<'_>, number: u32) {
    locked.notice_change(number);
    if locked.sleepers == 0 && !locked.shared.is_yes() {
        return;
    }
    locked.arm(number);
    if locked.peek(number).0 != 0 {
        force_report(locked, number);
    }
}

/// Makes the kernel report a slot to one of the sleepers. False: it has no open descriptor of it.
pub(crate) fn force_report(locked: &mut Registrations, number: u32) -> bool {
    if !locked.is_open(number) {
        return false;
    }
    if locked.slot(number).kind() == SlotKind::Nested {
        force_nested(locked, number);
        return true;
    }
    let slot = locked.slot(number);
    let unwatched = slot.state & bit::UNWATCHED != 0;
    slot.state = slot.state & !bit::UNWATCHED | bit::FORCED | bit::PENDING | bit::FORCED_LATELY;
    let to = locked.epoll_and_slot(number);
    // SAFETY: the event outlives the calls.
    unsafe {
        if to.event.events & EXCLUSIVE == 0 && !unwatched {
            return multiplexing::epoll_ctl(to.epfd, libc::EPOLL_CTL_MOD, to.fd, &raw const to.event).is_ok();
        }
        let _ = multiplexing::epoll_ctl(to.epfd, libc::EPOLL_CTL_DEL, to.fd, ptr::null());
        if multiplexing::epoll_ctl(to.epfd, libc::EPOLL_CTL_ADD, to.fd, &raw const to.event).is_ok() {
            return true;
        }
    }
    // The user's limit of watches, or no memory: the next report tries again.
    let slot = locked.slot(number);
    slot.state = slot.state & !(bit::FORCED | bit::PENDING) | bit::UNWATCHED;
    false
}

/// Has the kernel report an epoll that is nested in this one. It is readable for the kernel if a
/// stream in it was forced or has a doorbell byte, or one of its own descriptors is ready. What is
/// readable already causes no event: the registration is made again.
fn force_nested(locked: &mut Registrations, number: u32) {
    let fd = locked.slot(number).fd;
    let Some(inner) = locked.held(number).cloned() else { return };
    if !nested::is_readable(fd, &inner)
        && set_of(&inner).and_then(EpollSet::lock).is_some_and(|mut inner| inner.wake_another())
    {
        return;
    }
    locked.register_again(number);
}

impl Registrations {
    /// Wakes one of the sleepers if anything on the list is ready. False: nothing is that this
    /// process has a descriptor of.
    #[cold]
    pub(crate) fn wake_another(&mut self) -> bool {
        for position in 0..self.listed() {
            let number = self.at(position);
            if self.peek(number).0 != 0 && self.force_once(number) {
                return true;
            }
        }
        false
    }

    /// As [`force_report`], unless it was forced in this period and the kernel has yet to report
    /// it. If the report was lost (its receiver was killed), the next period forces it again. So a
    /// process that was killed in its sleep, and is still counted, costs one system call for each
    /// registration in a period.
    pub(crate) fn force_once(&mut self, number: u32) -> bool {
        const FORCED: u16 = bit::PENDING | bit::FORCED_LATELY;
        let now = cycles();
        if now.wrapping_sub(self.forcing_since) >= FORCING_PERIOD {
            self.forcing_since = now;
            for position in 0..self.listed() {
                let number = self.at(position);
                self.slot(number).state &= !bit::FORCED_LATELY;
            }
        }
        self.slot(number).state & FORCED == FORCED || force_report(self, number)
    }

    /// Whether the registration's descriptor is still the one that was registered.
    fn is_open(&mut self, number: u32) -> bool {
        let (slot, held) = self.slot_and_held(number);
        held.is_some_and(|held| table::refers_to(slot.fd, held))
    }

    /// Has the kernel watch what a slot registers for the present events.
    #[cold]
    pub(crate) fn register_again(&mut self, number: u32) {
        if self.is_open(number) {
            let _ = register(&self.epoll_and_slot(number));
        }
    }

    /// Removes a placeholder from the kernel's epoll: nothing more will be reported for it there.
    pub(crate) fn stop_watching(&mut self, number: u32) {
        if self.slot(number).state & bit::UNWATCHED == 0 && self.is_open(number) {
            let to = self.epoll_and_slot(number);
            // SAFETY: no event is read.
            let _ = unsafe { multiplexing::epoll_ctl(to.epfd, libc::EPOLL_CTL_DEL, to.fd, ptr::null()) };
            self.slot(number).state |= bit::UNWATCHED;
        }
    }

    /// Has the kernel watch a placeholder for data alone again, after it was forced. It stays as it
    /// is while a thread that sleeps in this epoll has the report to come.
    pub(crate) fn quieten(&mut self, number: u32) {
        let state = self.slot(number).state;
        let is_due = state & bit::PENDING != 0 && self.sleepers != 0;
        if state & bit::FORCED != 0 && !is_due && self.is_open(number) {
            self.slot(number).state &= !(bit::FORCED | bit::PENDING);
            let to = self.epoll_and_slot(number);
            if to.event.events & EXCLUSIVE == 0 {
                // SAFETY: the event outlives the call.
                let _ = unsafe {
                    multiplexing::epoll_ctl(to.epfd, libc::EPOLL_CTL_MOD, to.fd, &raw const to.event)
                };
            }
        }
    }
}

/// `epoll_ctl(2)`.
///
/// # Safety
/// `event` is readable, null, or for the kernel to refuse.
pub(crate) unsafe fn control(
    epfd: c_int,
    call: c_int,
    fd: c_int,
    event: *const libc::epoll_event,
) -> Outcome {
    // SAFETY: the caller upholds this function's contract.
    unsafe { revise::revise(epfd, call, fd, event).unwrap_or_else(|| control_any(epfd, call, fd, event)) }
}

/// As [`control`], whatever is changed.
///
/// # Safety
/// As [`control`].
#[inline(never)]
unsafe fn control_any(epfd: c_int, call: c_int, fd: c_int, event: *const libc::epoll_event) -> Outcome {
    let target = table::find(fd).filter(|held| held.kind() != Kind::Free);
    let (Some(target), false) = (target, event.is_null() && call != libc::EPOLL_CTL_DEL) else {
        // SAFETY: the caller upholds this function's contract.
        return unsafe { control_kernel(epfd, call, fd, event) };
    };
    let what = match target.kind() {
        Kind::Stream => SlotKind::Stream,
        Kind::Epoll => SlotKind::Nested,
        Kind::Pending | Kind::Listener | Kind::Free => SlotKind::Native,
    };
    let epoll = match of(epfd, what, call) {
        Ok(Some(epoll)) if epfd != fd => epoll,
        // Without memory for a set it is a socket of the kernel, which becomes no stream.
        Err(libc::ENOMEM) if what == SlotKind::Native => {
            if target.kind() == Kind::Pending {
                drop(table::remove(fd));
            }
            // SAFETY: the caller upholds this function's contract.
            return unsafe { control_kernel(epfd, call, fd, event) };
        }
        // SAFETY: the caller upholds this function's contract.
        Ok(_) => return unsafe { control_kernel(epfd, call, fd, event) },
        Err(errno) => return Err(errno),
    };
    let Some(mut locked) = epoll.lock() else { return Err(libc::EDEADLK) };
    locked.epfd = epfd;
    let known = locked.find(fd, &target);
    let dormant = known.filter(|number| locked.slot(*number).kind() == SlotKind::Dormant);
    match call {
        libc::EPOLL_CTL_DEL | libc::EPOLL_CTL_MOD if dormant.is_some() => Err(libc::ENOENT),
        libc::EPOLL_CTL_DEL
            if what == SlotKind::Stream
                && known.is_some()
                && !locked.shared.is_yes()
                && !locked.survives.is_yes() =>
        {
            if let Some(number) = known {
                locked.disarm(number);
                locked.take_off_list(number);
                locked.make_dormant(number);
            }
            Ok(0)
        }
        libc::EPOLL_CTL_DEL => {
            let unwatched = known.is_some_and(|number| locked.slot(number).state & bit::UNWATCHED != 0);
            let answer = if unwatched {
                Ok(0)
            } else {
                // SAFETY: the caller upholds this function's contract.
                unsafe { multiplexing::epoll_ctl(epfd, call, fd, event) }
            };
            if let Some(number) = known {
                locked.disarm(number);
                locked.remove(number);
            }
            answer
        }
        libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD => {
            // SAFETY: not null; the caller's promise.
            let event = unsafe { user_memory::read_event(event) }?;
            if what == SlotKind::Native {
                tag::replacement(event.u64)?;
            }
            let to = Change { call, fd, what, target: &target, event };
            match known {
                Some(number) if dormant.is_some() => to.revive(&mut locked, number),
                Some(number) if call == libc::EPOLL_CTL_MOD => to.modify(&mut locked, number),
                Some(number) if locked.slot(number).state & bit::UNWATCHED != 0 => Err(libc::EEXIST),
                // The kernel refuses it: it knows the same registration.
                Some(_) => register_new(epfd, &to, None),
                None => to.add(&mut locked),
            }
        }
        // SAFETY: the caller upholds this function's contract.
        _ => unsafe { multiplexing::epoll_ctl(epfd, call, fd, event) },
    }
}

/// A change that concerns the kernel alone.
///
/// # Safety
/// As [`control`].
unsafe fn control_kernel(epfd: c_int, call: c_int, fd: c_int, event: *const libc::epoll_event) -> Outcome {
    // SAFETY: the caller upholds this function's contract. What is not readable the kernel refuses.
    unsafe {
        let mut own = match user_memory::read_event(event) {
            Ok(own) if call != libc::EPOLL_CTL_DEL && !event.is_null() => own,
            _ => return multiplexing::epoll_ctl(epfd, call, fd, event),
        };
        own.u64 = tag::replacement(own.u64)?;
        multiplexing::epoll_ctl(epfd, call, fd, &raw const own)
    }
}

/// The set of an epoll, made if something is to be registered. `None`: the kernel alone is
/// concerned.
pub(crate) fn of(epfd: c_int, what: SlotKind, call: c_int) -> Result<Option<&'static EpollSet>, sys::Errno> {
    let held = match table::find(epfd) {
        Some(held) if held.kind() == Kind::Epoll => held,
        Some(_) => return Ok(None),
        None if what == SlotKind::Native || call == libc::EPOLL_CTL_DEL => return Ok(None),
        None => {
            if !is_epoll(epfd) {
                return Ok(None);
            }
            let held = description::describe(Kind::Epoll, None).ok_or(libc::ENOMEM)?;
            if !table::put(epfd, &held) {
                return Err(libc::ENOMEM);
            }
            held
        }
    };
    if let Some(set) = set_of(&held) {
        return Ok(Some(set));
    }
    if call == libc::EPOLL_CTL_DEL {
        return Ok(None);
    }
    let new = EpollSet::take(epfd).ok_or(libc::ENOMEM)?;
    let pointer = ptr::from_ref(new).cast_mut().cast();
    if held.epoll.compare_exchange(ptr::null_mut(), pointer, SeqCst, Acquire).is_err() {
        new.recycle();
    }
    set::count_kernel_only_waiters(&held);
    Ok(set_of(&held))
}

/// Whether a descriptor is an epoll: a wait for no events takes nothing from it.
fn is_epoll(fd: c_int) -> bool {
    // SAFETY: there are no entries, and the kernel refuses before it writes. It returns EINVAL for
    // an epoll too if the count is 0, so the count is one and the address is null. A null address
    // is refused only if there is an event to report.
    let answer = unsafe { multiplexing::epoll_wait(fd, ptr::null_mut(), 1, Some(0), ptr::null()) };
    matches!(answer, Ok(_) | Err(libc::EFAULT))
}

struct Change<'a> {
    call: c_int,
    fd: c_int,
    what: SlotKind,
    target: &'a Held,
    event: libc::epoll_event,
}

/// Makes a registration with the kernel that is new to it.
fn register_new(epfd: c_int, to: &Change<'_>, slot: Option<&Registration>) -> Outcome {
    let mut event = slot.map_or(to.event, |slot| slot.event);
    if to.what == SlotKind::Native {
        event.events = native_events(to.target, event.events);
        event.u64 = tag::replacement(to.event.u64)?;
    }
    // SAFETY: the event outlives the call.
    unsafe { multiplexing::epoll_ctl(epfd, to.call, to.fd, &raw const event) }
}

impl Change<'_> {
    fn check(&self) -> Outcome {
        let events = self.event.events;
        let exclusive = events & EXCLUSIVE != 0;
        let refused = match self.what {
            SlotKind::Stream => self.call == libc::EPOLL_CTL_MOD || events & !WITH_EXCLUSIVE != 0,
            SlotKind::Nested => true,
            SlotKind::Native | SlotKind::Nothing | SlotKind::Dormant => false,
        };
        if exclusive && refused { Err(libc::EINVAL) } else { Ok(0) }
    }

    /// ADD, or a MOD of a registration that the kernel may know and the library does not.
    fn add(&self, locked: &mut Locked<'_>) -> Outcome {
        self.check()?;
        let (events, data) = (self.event.events, self.event.u64);
        let Some(number) = locked.insert(self.what, self.fd, self.target, events, data) else {
            if self.what == SlotKind::Native {
                return register_new(locked.epfd, self, None);
            }
            return Err(libc::ENOSPC);
        };
        let sleeps = locked.sleeps;
        let slot = locked.slot(number);
        slot.ready_at = sleeps;
        if self.what == SlotKind::Nested {
            slot.state |= bit::KERNEL_READY;
        }
        if locked.watched == 1 {
            let flags = kernel::fcntl(locked.epfd, libc::F_GETFD, 0).unwrap_or(0);
            locked.survives = Flag::of(flags as c_int & libc::FD_CLOEXEC == 0);
        }
        let registration = locked.epoll_and_slot(number);
        let answer = register_new(locked.epfd, self, Some(&registration));
        if answer.is_err() {
            locked.remove(number);
        } else if self.what != SlotKind::Native {
            announce(locked, number);
        }
        answer
    }

    /// ADD of what the kernel still has.
    fn revive(&self, locked: &mut Locked<'_>, number: u32) -> Outcome {
        self.check()?;
        let (events, data) = (self.event.events, self.event.u64);
        let shared = locked.shared.is_yes();
        let slot = locked.slot(number);
        if shared || slot.state & bit::UNWATCHED != 0 || (slot.events ^ events) & (EXCLUSIVE | WAKEUP) != 0 {
            // SAFETY: no event is read.
            let _ =
                unsafe { multiplexing::epoll_ctl(locked.epfd, libc::EPOLL_CTL_DEL, self.fd, ptr::null()) };
            locked.remove(number);
            return self.add(locked);
        }
        locked.revive(number, events, data);
        announce(locked, number);
        Ok(0)
    }

    fn modify(&self, locked: &mut Locked<'_>, number: u32) -> Outcome {
        self.check()?;
        if locked.slot(number).events & EXCLUSIVE != 0 {
            return Err(libc::EINVAL);
        }
        if self.what == SlotKind::Native {
            register_new(locked.epfd, self, None)?;
        }
        locked.disarm(number);
        locked.modify(number, self.event.events, self.event.u64);
        if self.what == SlotKind::Nested {
            locked.slot(number).state |= bit::KERNEL_READY;
        }
        if self.what != SlotKind::Native {
            if self.what == SlotKind::Nested
                || locked.survives.is_yes() && locked.slot(number).state & bit::UNWATCHED == 0
            {
                locked.register_again(number);
            }
            locked.put_on_list(number);
            announce(locked, number);
        }
        Ok(0)
    }
}
