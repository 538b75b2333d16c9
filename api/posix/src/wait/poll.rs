//! `poll` and `ppoll`, and what `select` is made of.
//!
//! 1. A call that names none of our streams, and no epoll that holds some, goes to the kernel
//!    unchanged.
//! 2. Otherwise the call makes a second array for the kernel. Kernel descriptors and epolls are
//!    in it as the program requested. Our streams are left out at first.
//! 3. Check shared memory. If something is ready, or no time was given, the call polls the kernel
//!    without waiting and is done. The kernel decides about its own descriptors and about hang-ups.
//!    Ready descriptors win over a signal, as in the kernel.
//! 4. If nothing is ready, poll for a while ([`crate::connection::spin`]), unless a mask is given,
//!    which has to apply from here on.
//! 5. Then take old doorbell bytes out of the placeholders, arm each for its events, and check once
//!    more. Sleep in the kernel on the placeholders and everything else; afterwards disarm. If
//!    others wait at the same end, the byte that is queued there may be theirs: it stays. Then the
//!    placeholder itself is polled for hang-ups only, and an epoll that reports new bytes is
//!    behind it in the array ([`crate::connection::edges`]).
//! 6. A listener is never writable, as its placeholder would be, so it is not polled for that.
//! 7. A stream whose peer's end no process holds is not given to the kernel: its hang-up would end
//!    every sleep, and nothing else can come.

use std::ffi::c_int;
use std::ptr;

use sietch_ring::stream::{Endpoint, Want, flag};

use crate::connection::blocked::SLICE;
use crate::connection::edges::Edges;
use crate::connection::spin::{LONGEST, Pause, Spun, learned};
use crate::connection::{doorbell, peer};
use crate::descriptor::description::{self, DESCRIPTORS, Held, Kind};
use crate::descriptor::table;
use crate::readiness::check::{self, ALWAYS, INPUT, OUTPUT};
use crate::readiness::nested;
use crate::readiness::set::set_of;
use crate::signal::handlers::{self, Section};
use crate::signal::{longjmp, user_memory};
use crate::system::multiplexing::{Mask, Timeout};
use crate::system::sys::Outcome;
use crate::system::{kernel, processor};
use crate::wait::memory::Memory;
use crate::wait::sliced;

/// One more than the descriptors for which there is room on the stack: most programs' whole set.
/// More are put in memory that is mapped for the call.
const ON_STACK: usize = 17;

/// The same where no memory can be mapped: what `select` takes. Some 40 KiB of stack.
const WITHOUT_MEMORY: usize = libc::FD_SETSIZE + 1;

/// Checks between two polls of the kernel while nothing is found: some ten microseconds.
const CHECKS: u32 = 64;

/// One of the descriptors: empty for the kernel's.
#[derive(Debug, Default)]
struct Ours {
    held: Option<Held>,
    data: bool,
    room: bool,
    /// A byte that was queued on it has ended a sleep for nothing.
    woken: bool,
}

/// The program's array, ours, and the kernel's.
#[derive(Debug)]
struct Set<'a> {
    requested: &'a mut [libc::pollfd],
    ours: &'a mut [Ours],
    kernel: &'a mut [libc::pollfd],
    /// Whether any descriptor is the kernel's alone.
    mixed: bool,
    /// Where a peer was seen.
    peer: Option<u32>,
    /// For placeholders on which a byte is queued that others need.
    edges: Option<Edges>,
}

/// `ppoll(2)`: also `poll(2)`, with the time in nanoseconds.
///
/// # Safety
/// `descriptors` is writable for `count` entries, or for the kernel to refuse; `mask` is null or a
/// signal set.
pub(crate) unsafe fn poll(
    descriptors: *mut libc::pollfd,
    count: usize,
    timeout: Timeout,
    mask: Mask,
) -> Outcome {
    // SAFETY: the caller upholds this function's contract.
    if !unsafe { names_ours(descriptors, count) } {
        // SAFETY: the caller upholds this function's contract.
        return unsafe { sliced::poll(descriptors, count, timeout, mask) };
    }
    if !user_memory::is_writable(descriptors, count * size_of::<libc::pollfd>()) {
        return Err(libc::EFAULT);
    }
    // SAFETY: the caller upholds this function's contract; not null, not empty.
    let requested = unsafe { std::slice::from_raw_parts_mut(descriptors, count) };
    if count < ON_STACK {
        return all_on_stack::<ON_STACK>(requested, timeout, mask);
    }
    let length = count * (size_of::<Ours>() + size_of::<libc::pollfd>()) + size_of::<libc::pollfd>();
    let Some(memory) = Memory::map(length) else {
        if count < WITHOUT_MEMORY {
            return all_on_stack::<WITHOUT_MEMORY>(requested, timeout, mask);
        }
        return Err(libc::ENOMEM);
    };
    let _registered = longjmp::registered(&raw const memory);
    let split = memory.start.cast::<Ours>();
    // SAFETY: both within the mapping, one behind the other, aligned; zeroes are valid entries of
    // both.
    let (ours, others) = unsafe {
        (
            std::slice::from_raw_parts_mut(split, count),
            std::slice::from_raw_parts_mut(split.add(count).cast::<libc::pollfd>(), count + 1),
        )
    };
    let answer = all(requested, ours, others, timeout, mask);
    leave_hints(requested, ours);
    ours.iter_mut().for_each(|one| one.held = None);
    answer
}

/// As [`all`], of fewer than `MOST` descriptors.
#[inline(never)]
fn all_on_stack<const MOST: usize>(requested: &mut [libc::pollfd], timeout: Timeout, mask: Mask) -> Outcome {
    let mut ours: [Ours; MOST] = std::array::from_fn(|_| Ours::default());
    let mut others = [libc::pollfd { fd: -1, events: 0, revents: 0 }; MOST];
    let count = requested.len();
    let answer = all(requested, &mut ours[..count], &mut others[..=count], timeout, mask);
    leave_hints(requested, &ours[..count]);
    answer
}

/// A connection that another thread closed while the call slept on it has ended with the call, not
/// before: the peer is given a hint.
fn leave_hints(requested: &[libc::pollfd], ours: &[Ours]) {
    if requested.iter().any(|one| one.revents & libc::POLLNVAL != 0) {
        let held = ours.iter().filter_map(|our| our.held.as_ref());
        held.filter(|held| held.descriptors() == 0).for_each(peer::announce_close);
    }
}

/// Whether an array names a descriptor that may be ours: if not, the call is the kernel's.
///
/// # Safety
/// `descriptors` is readable for `count` entries, or null.
pub(crate) unsafe fn names_ours(descriptors: *const libc::pollfd, count: usize) -> bool {
    // Without any socket of ours nothing is checked: the kernel checks the address.
    let bytes = count.saturating_mul(size_of::<libc::pollfd>());
    if count == 0
        || count > DESCRIPTORS
        || !description::has_sockets()
        || !user_memory::is_readable(descriptors, bytes)
    {
        return false;
    }
    // SAFETY: the caller upholds this function's contract.
    unsafe { std::slice::from_raw_parts(descriptors, count) }.iter().any(|one| table::is_ours(one.fd))
}

fn all(
    requested: &mut [libc::pollfd],
    ours: &mut [Ours],
    kernel: &mut [libc::pollfd],
    timeout: Timeout,
    mask: Mask,
) -> Outcome {
    let (mut any, mut mixed, mut listens) = (false, false, false);
    for ((one, our), other) in requested.iter().zip(ours.iter_mut()).zip(kernel.iter_mut()) {
        let found = table::find(one.fd);
        *other = libc::pollfd { fd: -1, events: one.events, revents: 0 };
        if found.as_ref().is_some_and(Held::listens) {
            other.events &= !(OUTPUT as i16 | libc::POLLWRBAND);
            listens = true;
        }
        our.held = found.filter(is_watchable);
        if let Some(held) = &our.held {
            any = true;
            (other.fd, other.events) = of_kernel(one, held);
            mixed |= other.fd >= 0;
        } else {
            other.fd = one.fd;
            mixed |= one.fd >= 0;
        }
    }
    if !any {
        let entries = if listens { &mut kernel[..requested.len()] } else { &mut *requested };
        // SAFETY: a slice; the caller of `poll` promised the mask.
        let answer = unsafe { sliced::poll(entries.as_mut_ptr(), entries.len(), timeout, mask) };
        if listens && answer.is_ok() {
            requested.iter_mut().zip(kernel.iter()).for_each(|(one, other)| one.revents = other.revents);
        }
        return answer;
    }
    Set { requested, ours, kernel, mixed, peer: None, edges: None }.run(timeout, mask)
}

impl longjmp::Abandon for Set<'_> {
    unsafe fn abandon(this: *const Self) {
        // SAFETY: the jump abandons the frame that owns this value, so this is its only use and
        // drop. The arrays are in the same frames.
        let mut set = unsafe { this.read() };
        set.disarm();
        set.ours.iter_mut().for_each(|our| our.held = None);
    }
}

/// The kernel's entry for one of ours, which is always polled: whether an epoll has kernel
/// descriptors that are ready. A descriptor of -1: nothing.
fn of_kernel(one: &libc::pollfd, held: &Held) -> (c_int, i16) {
    let readable = held.kind() == Kind::Epoll && events(one) & check::READ != 0;
    if readable { (one.fd, libc::POLLIN) } else { (-1, 0) }
}

/// Streams, and epolls that hold some.
fn is_watchable(held: &Held) -> bool {
    match held.kind() {
        Kind::Stream => true,
        Kind::Epoll => set_of(held).is_some_and(|set| set.lock().is_some_and(|locked| locked.watched != 0)),
        Kind::Pending | Kind::Listener | Kind::Free => false,
    }
}

impl Set<'_> {
    fn run(&mut self, timeout: Timeout, mask: Mask) -> Outcome {
        let seen = handlers::count();
        if self.check(false) != 0 {
            let ready = self.finish();
            if ready != 0 {
                return Ok(ready);
            }
        }
        if timeout == Some(0) {
            self.each_end(|end| {
                let _ = end.user_timeout_left();
            });
            self.watch_for_hangups();
            self.kernel(Some(0), mask)?;
            return Ok(self.merge());
        }
        let _registered = longjmp::registered(ptr::from_ref(self));
        learned(|word| {
            let pause = Pause::begin(word);
            if mask.is_null() {
                let mut iterations: u32 = 0;
                let most = timeout.unwrap_or(LONGEST);
                let peer = self.peer;
                let spun = pause.poll(peer, most, seen, || {
                    iterations = iterations.wrapping_add(1);
                    self.check(false) != 0
                        || self.mixed
                            && iterations.is_multiple_of(CHECKS)
                            && self.kernel(Some(0), ptr::null()).is_ok_and(|ready| ready != 0)
                });
                match spun {
                    Spun::Ready => {
                        let ready = self.finish();
                        if ready != 0 {
                            pause.finished();
                            return Ok(ready);
                        }
                    }
                    Spun::Interrupted => return Err(libc::EINTR),
                    Spun::Sleep => {}
                }
            }
            self.sleep(pause, timeout, mask, seen)
        })
    }

    /// Checks ours: writes their events, and counts those that have some. `reported`: the events
    /// that the kernel has just reported count too.
    fn check(&mut self, reported: bool) -> usize {
        let mut ready = 0;
        for ((one, our), other) in self.requested.iter_mut().zip(self.ours.iter()).zip(self.kernel.iter_mut())
        {
            let Some(held) = &our.held else { continue };
            let wanted = events(one) | ALWAYS;
            let said = reported && other.revents != 0;
            let now = match held.end() {
                Some(end) => {
                    check::check_hinted(one.fd, end);
                    if said && other.revents & (libc::POLLHUP | libc::POLLRDHUP) != 0 {
                        check::has_hung_up(one.fd, held, end);
                    }
                    self.peer = self.peer.or(end.peer_cpu());
                    check::readiness(end, wanted & OUTPUT != 0)
                }
                None if nested::check(one.fd, held, said, false).is_ready() => check::READ,
                None => 0,
            };
            one.revents = (now & wanted) as i16;
            // Another thread has closed it: the kernel looks up descriptors again when something
            // wakes it, and nothing can be slept on any more.
            let woken = (reported && one.revents != 0 || said) && !table::refers_to(one.fd, held);
            if woken || said && other.revents & libc::POLLNVAL != 0 {
                one.revents = libc::POLLNVAL;
            }
            ready += usize::from(one.revents != 0);
        }
        ready
    }

    /// The kernel's array goes to the kernel, and the epoll behind it if there is one.
    fn kernel(&mut self, timeout: Timeout, mask: Mask) -> Outcome {
        let count = self.requested.len();
        let edges = self.edges.as_ref().map(Edges::fd);
        if let (Some(fd), Some(last)) = (edges, self.kernel.get_mut(count)) {
            *last = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        }
        let entries = count + usize::from(edges.is_some());
        // SAFETY: a slice of one entry more than were passed in; the caller of `poll` promised the
        // mask.
        unsafe { sliced::poll(self.kernel.as_mut_ptr(), entries, timeout, mask) }
    }

    /// Something is ready, and kernel descriptors that are ready as well belong to the result.
    /// Returns 0 if another thread has taken it meanwhile.
    fn finish(&mut self) -> usize {
        let doubt = self.leave_ours_out();
        if self.mixed || doubt {
            // A pending signal does not cancel what is ready.
            if self.kernel(Some(0), ptr::null()).is_err() {
                self.kernel.iter_mut().for_each(|other| other.revents = 0);
            }
        }
        self.merge()
    }

    /// The kernel is not polled for our streams, with two exceptions: epolls, and streams whose
    /// peer closed but was still held at the last check. The last holder may have closed since,
    /// without a hint. Returns whether there are any.
    fn leave_ours_out(&mut self) -> bool {
        let mut doubt = false;
        for ((one, our), other) in self.requested.iter().zip(self.ours.iter()).zip(self.kernel.iter_mut()) {
            let Some(held) = &our.held else { continue };
            let doubtful = held.end().is_some_and(|end| end.is_closing() && !is_hung_up(end));
            (other.fd, other.events) = if doubtful { (one.fd, 0) } else { of_kernel(one, held) };
            other.revents = 0;
            doubt |= other.fd >= 0;
        }
        doubt
    }

    /// The result: the events of ours from shared memory, the rest from the kernel.
    fn merge(&mut self) -> usize {
        self.check(true);
        let mut ready = 0;
        for ((one, our), other) in self.requested.iter_mut().zip(self.ours.iter()).zip(self.kernel.iter()) {
            if our.held.is_none() {
                one.revents = other.revents;
            }
            ready += usize::from(one.revents != 0);
        }
        ready
    }

    /// Polls the kernel for hang-ups of our streams, which only the kernel knows, and for
    /// placeholders that were shut down past the library.
    fn watch_for_hangups(&mut self) {
        for ((one, our), other) in self.requested.iter().zip(self.ours.iter()).zip(self.kernel.iter_mut()) {
            let Some(held) = &our.held else { continue };
            let closed = held.end().is_some_and(is_hung_up);
            other.fd = if closed { -1 } else { one.fd };
            other.events = of_kernel(one, held).1;
            if held.end().is_some_and(|end| !check::has_shut_read(end)) {
                other.events = libc::POLLRDHUP;
            }
        }
    }

    /// Puts placeholders where the kernel watches them for new bytes, and arms ours. Returns the
    /// longest sleep.
    fn arm(&mut self) -> Option<u64> {
        let _section = Section::enter();
        self.watch_for_hangups();
        let mut slice = self.watch();
        if let Some(edges) = &self.edges {
            edges.discard_reported();
        }
        for (one, our) in self.requested.iter().zip(self.ours.iter_mut()) {
            let Some(held) = &our.held else { continue };
            let Some(end) = held.end() else {
                nested::check(one.fd, held, false, true);
                slice = check::shorter_sleep(slice, nested::sleep_limit(held));
                continue;
            };
            if is_hung_up(end) {
                continue;
            }
            (our.data, our.room) = (wants_data(one, end), events(one) & OUTPUT != 0);
            if our.data {
                end.arm(Want::Data);
            }
            if our.room {
                end.arm(Want::Room);
            }
            slice = check::shorter_sleep(slice, check::lone_sleep_limit(end));
        }
        slice
    }

    /// Has the kernel watch the placeholders of ours: directly where no byte is queued, otherwise
    /// through the epoll behind the array. Returns the longest sleep if there is no epoll.
    fn watch(&mut self) -> Option<u64> {
        let mut slice = None;
        self.edges = None;
        for ((one, our), other) in self.requested.iter().zip(self.ours.iter_mut()).zip(self.kernel.iter_mut())
        {
            let Some(end) = our.held.as_ref().and_then(|held| held.end()) else { continue };
            if is_hung_up(end) || check::has_shut_read(end) {
                continue;
            }
            let woken = std::mem::take(&mut our.woken);
            if !(woken || end.undrained() != 0) || doorbell::quieten(one.fd, end) {
                other.events |= libc::POLLIN;
                continue;
            }
            doorbell::thin(one.fd, end);
            if woken {
                doorbell::examine(one.fd, end);
            }
            self.edges = self.edges.take().or_else(Edges::new);
            if !self.edges.as_mut().is_some_and(|edges| edges.add(one.fd)) {
                slice = Some(SLICE);
            }
        }
        slice
    }

    fn disarm(&mut self) {
        let _section = Section::enter();
        for our in self.ours.iter_mut() {
            let Some(end) = our.held.as_ref().and_then(|held| held.end()) else { continue };
            if std::mem::take(&mut our.data) {
                end.disarm(Want::Data);
            }
            if std::mem::take(&mut our.room) {
                end.disarm(Want::Room);
            }
        }
    }

    /// `seen`: handlers that had run when the call began.
    fn sleep(&mut self, pause: Pause<'_>, timeout: Timeout, mask: Mask, seen: u32) -> Outcome {
        let until = timeout.map(|timeout| pause.began().saturating_add(timeout));
        self.each_end(|end| end.set_cpu(processor::processor()));
        loop {
            let slice = self.arm();
            if self.check(false) != 0 {
                self.disarm();
                let ready = self.finish();
                if ready != 0 {
                    pause.finished();
                    return Ok(ready);
                }
                continue;
            }
            if mask.is_null() && handlers::count() != seen {
                // A handler that was to run while this armed has run now.
                self.disarm();
                return Err(libc::EINTR);
            }
            let left = until.map(|until| until.saturating_sub(kernel::now()));
            let sliced = slice.is_some_and(|slice| left.is_none_or(|left| left > slice));
            let answer = self.kernel(if sliced { slice } else { left }, mask);
            self.disarm();
            if answer.is_err() {
                self.kernel.iter_mut().for_each(|other| other.revents = 0);
            }
            let ready = self.merge();
            if ready != 0 {
                pause.finished();
                return Ok(ready);
            }
            match answer {
                Err(errno) => return Err(errno),
                Ok(0) if !sliced => return Ok(0),
                Ok(_) if left == Some(0) => return Ok(0),
                // Between two sleeps of one call: it would have ended the kernel's.
                Ok(_) if handlers::count() != seen => return Err(libc::EINTR),
                Ok(_) => self.note_woken(),
            }
        }
    }

    fn each_end(&self, each: impl Fn(&Endpoint)) {
        self.ours.iter().filter_map(|our| our.held.as_ref().and_then(|held| held.end())).for_each(each);
    }

    /// The bytes on these placeholders have ended a sleep for nothing.
    fn note_woken(&mut self) {
        let last = self.kernel.get(self.requested.len());
        let beside = self.edges.is_some() && last.is_some_and(|last| last.revents != 0);
        for (our, other) in self.ours.iter_mut().zip(self.kernel.iter()) {
            let watched_beside = beside && other.fd >= 0 && other.events & libc::POLLIN == 0;
            our.woken = other.revents & libc::POLLIN != 0 || watched_beside;
        }
    }
}

/// The program's events, in the bits that epoll has for the same.
fn events(one: &libc::pollfd) -> u32 {
    u32::from(one.events.cast_unsigned())
}

fn is_hung_up(end: &Endpoint) -> bool {
    end.private().has(flag::HUNG_UP)
}

/// Whether the peer's bytes or FIN change what is reported.
fn wants_data(one: &libc::pollfd, end: &Endpoint) -> bool {
    events(one) & INPUT != 0 || end.private().has(flag::SHUT_WR)
}

/// `poll(2)`'s time.
pub(crate) fn milliseconds(time: c_int) -> Timeout {
    u64::try_from(time).ok().map(|time| time * 1_000_000)
}
