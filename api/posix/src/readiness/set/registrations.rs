//! The registrations of an epoll set: adding, finding and removing them, and the hot list.
//!
//! A slot number that is read from memory which another process can write is clamped to the arrays
//! before it is used ([`crate::readiness::set::shared`]).

use std::ffi::c_int;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::fence;

use sietch_ring::stream::Endpoint;
use sietch_ring::stream::arrivals::cycles;

use crate::descriptor::description::{self, Held, Kind};
use crate::descriptor::table;
use crate::readiness::check::{OUTPUT, Seen, is_quiet};
use crate::readiness::set::shared::{ArrayViews, Flag, Slot, SlotKind, State, bit};
use crate::readiness::set::sharing;
use crate::readiness::tag::{self, TAG, TAG_MASK};
use crate::system::memory::map;

/// The private state of this process about a slot.
#[derive(Debug)]
pub(crate) struct Known {
    /// The registered description.
    held: Held,
    /// The mark of the registration: another mark in [`ArrayViews::makers`] means that it was
    /// removed, and the slot is another's.
    mark: u64,
}

/// Registrations that are kept while the memory of relatives is replaced.
struct Kept {
    slots: NonNull<Slot>,
    count: usize,
}

impl Kept {
    /// Room for so many; all are empty. None: there is no memory.
    fn map(count: usize) -> Option<Self> {
        let slots = map(ptr::null_mut(), Self::length(count), libc::MAP_PRIVATE)?.cast();
        Some(Self { slots, count })
    }

    const fn length(count: usize) -> usize {
        if count == 0 { size_of::<Slot>() } else { count * size_of::<Slot>() }
    }

    fn put(&self, number: u32, slot: Slot) {
        assert!((number as usize) < self.count);
        // SAFETY: within the mapping.
        unsafe { self.slots.add(number as usize).write(slot) };
    }

    fn take(&self, number: u32) -> Slot {
        assert!((number as usize) < self.count);
        // SAFETY: within the mapping, which began with zeros: empty registrations.
        unsafe { self.slots.add(number as usize).read() }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // SAFETY: the mapping that `map` made.
        unsafe { libc::munmap(self.slots.as_ptr().cast(), Self::length(self.count)) };
    }
}

/// A registration that is on the list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listed {
    pub(crate) position: u32,
    pub(crate) number: u32,
}

/// The data that the lock protects: the part shared with relatives ([`State`], to which it
/// dereferences), and this process's own part.
#[derive(Debug)]
pub(crate) struct Registrations {
    /// A descriptor of the epoll.
    pub(crate) epfd: c_int,
    /// The number of the sleep that a thread is about to begin here alone; 0 for none. A service
    /// core notifies once for all registrations that are armed with it, because the thread checks
    /// all of them when it wakes.
    pub(crate) sleep: u64,
    /// How often a thread has slept here.
    pub(crate) sleeps: u32,
    /// Polls that have found nothing: those since the last that counted as a sleep, and one. 0
    /// after a wait that was no poll.
    pub(crate) polls: u32,
    /// When the kernel's epoll was last polled, in cycles.
    pub(crate) kernel_polled_at: u64,
    /// What [`crate::system::originals::calls`] returned then.
    pub(crate) calls_at_kernel_poll: u32,
    /// Whether the kernel had an event of its own to report then. It still has the event, unless a
    /// thread used it up.
    pub(crate) had_kernel_events: bool,
    /// Whether those filled the array of the last call: the next call serves streams first.
    pub(crate) streams_first: bool,
    /// When [`Registrations::recheck`] last checked, in nanoseconds.
    pub(crate) rechecked_at: u64,
    /// Where the peer of what was last reported was seen.
    pub(crate) peer: Option<u32>,
    views: ArrayViews,
    known: &'static mut [Option<Known>],
    /// This process never knew slots with numbers from this on.
    highest: u32,
    /// How often this process had forked when the epoll was made.
    pub(crate) forks: u32,
}

impl Deref for Registrations {
    type Target = State;

    #[inline]
    fn deref(&self) -> &State {
        self.views.state
    }
}

impl DerefMut for Registrations {
    #[inline]
    fn deref_mut(&mut self) -> &mut State {
        self.views.state
    }
}

/// A number of the shared memory that is used as an index, read once.
#[inline]
fn read(word: &u32) -> u32 {
    // SAFETY: a reference. Volatile: another process may write there between two readings.
    unsafe { ptr::from_ref(word).read_volatile() }
}

/// Orders a registration that was added or modified behind all that are ready. If it is not ready,
/// what makes it ready will order it, and the clock need not be read.
#[inline]
fn order_behind(slot: &mut Slot, held: Option<&Held>) {
    let end = held.and_then(|held| held.end()).filter(|_| slot.events & OUTPUT == 0);
    if !end.is_some_and(is_quiet) {
        slot.ordered_at = cycles();
    }
}

impl Registrations {
    /// An empty one over memory that nothing else uses.
    pub(crate) fn new(epfd: c_int, views: ArrayViews, known: &'static mut [Option<Known>]) -> Self {
        // What `slot_and_held` and `each_listed_stream` rely on.
        assert!(!known.is_empty() && known.len() == views.slots.len(), "an entry for each slot");
        Self {
            epfd,
            sleep: 0,
            sleeps: 0,
            polls: 0,
            kernel_polled_at: 0,
            calls_at_kernel_poll: 0,
            had_kernel_events: false,
            streams_first: false,
            rechecked_at: 0,
            peer: None,
            views,
            known,
            highest: 0,
            forks: 0,
        }
    }

    /// Begins with the epoll behind `epfd`, in which nothing is registered.
    pub(crate) fn begin(&mut self, epfd: c_int) {
        *self.views.state =
            State { survives: Flag::YES, used: self.used, free: self.free, ..State::default() };
        (self.epfd, self.kernel_polled_at, self.polls, self.peer) = (epfd, 0, 0, None);
        (self.had_kernel_events, self.streams_first, self.forks) = (false, false, sharing::forks());
    }

    /// Where a number points, whatever it is.
    #[inline]
    fn index(&self, number: u32) -> usize {
        (number as usize).min(self.known.len() - 1)
    }

    /// A registration.
    #[inline]
    pub(crate) fn slot(&mut self, number: u32) -> &mut Slot {
        let index = self.index(number);
        &mut self.views.slots[index]
    }

    /// The same with what it registers; none if that means nothing to this process.
    #[inline]
    pub(crate) fn slot_and_held(&mut self, number: u32) -> (&mut Slot, Option<&Held>) {
        let index = self.index(number);
        let known = !self.views.state.multi_process.is_yes() || self.is_known(number);
        // SAFETY: `index` is less than the length of `known`, which `new` has found to be that of
        // the slots. Both are in this process's own memory.
        let (slot, of_slot) =
            unsafe { (self.views.slots.get_unchecked_mut(index), self.known.get_unchecked(index)) };
        (slot, of_slot.as_ref().filter(|_| known).map(|known| &known.held))
    }

    /// What a slot registers; none if that means nothing to this process.
    #[inline]
    pub(crate) fn held(&mut self, number: u32) -> Option<&Held> {
        self.slot_and_held(number).1
    }

    /// The end of the stream that a slot registers.
    #[inline]
    pub(crate) fn end(&mut self, number: u32) -> Option<&Endpoint> {
        self.held(number).and_then(|held| held.end())
    }

    #[inline]
    pub(crate) fn is_known(&self, number: u32) -> bool {
        let index = self.index(number);
        self.known[index].as_ref().is_some_and(|known| known.mark == self.views.makers[index])
    }

    /// Whether this process does not know a registration: a relative made it.
    #[inline]
    pub(crate) fn is_unknown(&self, number: u32) -> bool {
        self.views.state.multi_process.is_yes() && !self.is_known(number)
    }

    /// Drops what this process knew of a slot.
    pub(crate) fn forget(&mut self, number: u32) {
        let index = self.index(number);
        if let Some(known) = self.known[index].take() {
            description::count_watch(&known.held, false);
        }
    }

    /// The memory of relatives, word by word, for a test to corrupt.
    #[cfg(test)]
    pub(crate) fn words(&mut self) -> impl Iterator<Item = &mut [u32]> {
        let used = self.highest as usize + 2;
        // SAFETY: plain numbers, seen as plain numbers.
        unsafe fn seen<T>(of: &mut [T]) -> &mut [u32] {
            // SAFETY: the same memory, of which every pattern is valid.
            unsafe { std::slice::from_raw_parts_mut(of.as_mut_ptr().cast(), size_of_val(of) / 4) }
        }
        let views = &mut self.views;
        // SAFETY: as above.
        unsafe {
            [
                seen(std::slice::from_mut(views.state)),
                seen(&mut views.first[..64]),
                seen(&mut views.list[..used]),
                seen(&mut views.slots[..used]),
                seen(&mut views.noticed[..used]),
                seen(&mut views.makers[..used]),
            ]
            .into_iter()
        }
    }

    /// Drops what this process knew of registrations of a description that a relative has removed
    /// or replaced.
    pub(crate) fn forget_removed(&mut self, held: &Held) {
        for number in self.numbers() {
            let index = self.index(number);
            let stale = self.known[index].as_ref().is_some_and(|known| known.held.number() == held.number())
                && (self.views.slots[index].kind() == SlotKind::Nothing || !self.is_known(number));
            if stale {
                self.forget(number);
            }
        }
    }

    /// The slot that the kernel's data names, if it is in use.
    pub(crate) fn named(&self, data: u64) -> Option<u32> {
        let number = tag::number(data);
        (data & TAG_MASK == TAG
            && self.numbers().contains(&number)
            && self.views.slots[number as usize].kind() != SlotKind::Nothing)
            .then_some(number)
    }

    /// The slot on the list at a position.
    #[inline]
    pub(crate) fn at(&self, position: u32) -> u32 {
        read(&self.views.list[self.index(position)])
    }

    /// Calls `each` with position, slot and description of the streams that are on the list and not
    /// [`bit::SILENT`]. For a set that this process alone uses.
    #[inline(always)]
    pub(crate) fn each_listed_stream(&mut self, mut each: impl FnMut(Listed, &mut Slot, &Held)) {
        let listed = self.listed() as usize;
        let (list, slots) = (&*self.views.list, &mut *self.views.slots);
        let (known, last) = (&*self.known, self.known.len() - 1);
        for (position, number) in (0..).zip(list.get(..listed).unwrap_or_default()) {
            let number = read(number);
            let index = (number as usize).min(last);
            // SAFETY: as in `slot_and_held`.
            let (slot, known) = unsafe { (slots.get_unchecked_mut(index), known.get_unchecked(index)) };
            if slot.kind() == SlotKind::Stream
                && slot.state & bit::SILENT == 0
                && let Some(known) = known
            {
                each(Listed { position, number }, slot, &known.held);
            }
        }
    }

    /// Slots on the list.
    #[inline]
    pub(crate) fn listed(&self) -> u32 {
        read(&self.views.state.listed).min(self.known.len() as u32)
    }

    /// Numbers of slots that this process may know.
    pub(crate) fn numbers(&self) -> std::ops::Range<u32> {
        0..self.highest
    }

    /// Numbers of slots that relatives may use as well.
    pub(crate) fn used(&self) -> std::ops::Range<u32> {
        0..read(&self.views.state.used).min(self.known.len() as u32)
    }

    /// The registration of a stream by a descriptor, if the descriptor has no other one.
    #[inline]
    pub(crate) fn only_stream(&mut self, fd: c_int) -> Option<u32> {
        let number = read(self.views.first.get(fd.cast_unsigned() as usize)?).checked_sub(1)?;
        let (slot, held) = self.slot_and_held(number);
        let held = held.filter(|held| held.kind() == Kind::Stream && table::refers_to(fd, held))?;
        (read(&slot.next) == 0 && held.end().is_some()).then_some(number)
    }

    /// Whether a change concerns the calling thread alone: no other thread sleeps here, no other
    /// epoll or process has a part in it, and exec closes it.
    #[inline]
    pub(crate) fn is_private(&self) -> bool {
        let flags = [self.shared, self.multi_process, self.survives, self.has_watchers];
        self.sleepers == 0 && !flags.into_iter().fold(false, |any, flag| any | flag.is_yes())
    }

    /// The registration of a description by a descriptor. Registrations of descriptions that lost
    /// their last descriptor unseen are removed.
    pub(crate) fn find(&mut self, fd: c_int, held: &Held) -> Option<u32> {
        let mut next = read(self.views.first.get(fd.cast_unsigned() as usize)?);
        let mut found = None;
        for _ in self.used() {
            if next == 0 {
                break;
            }
            let number = next - 1;
            let (slot, other) = self.slot_and_held(number);
            next = read(&slot.next);
            match other {
                None => {}
                Some(other) if other.number() == held.number() => found = Some(number),
                Some(other) if other.descriptors() != 0 || slot.state & bit::LEFT_OPEN != 0 => {}
                _ => self.remove(number),
            }
        }
        found
    }

    /// A new registration, on the list. `None`: no room.
    pub(crate) fn insert(
        &mut self,
        what: SlotKind,
        fd: c_int,
        held: &Held,
        events: u32,
        data: u64,
    ) -> Option<u32> {
        let index = usize::try_from(fd).ok().filter(|fd| *fd < self.views.first.len())?;
        let (free, used) = (read(&self.free), read(&self.used));
        let number = if free != 0 { free - 1 } else { used };
        if number as usize >= self.known.len() {
            return None;
        }
        if free == 0 {
            self.used = used + 1;
        } else {
            self.free = read(&self.slot(number).next);
        }
        let mark = sharing::mark();
        self.forget(number);
        description::count_watch(held, true);
        self.known[number as usize] = Some(Known { held: held.clone(), mark });
        self.highest = self.highest.max(number + 1);
        self.views.makers[number as usize] = mark;
        let next = self.views.first[index];
        let slot = self.slot(number);
        *slot = Slot {
            data,
            seen: Seen::at_registration(held),
            events,
            fd,
            next,
            state: bit::NEW,
            ordered_at: cycles(),
            ..Slot::default()
        };
        slot.set_kind(what);
        self.views.first[index] = number + 1;
        self.count(what, true);
        if what != SlotKind::Native {
            self.put_on_list(number);
        }
        Some(number)
    }

    /// Gives the next registration this number, which must be unused.
    pub(crate) fn skip_to(&mut self, number: u32) -> bool {
        let fits = number >= self.used && (number as usize) < self.known.len() && self.free == 0;
        if fits {
            self.used = number;
        }
        fits
    }

    fn count(&mut self, what: SlotKind, more: bool) {
        let add = |counter: &mut u32| {
            *counter = if more { counter.saturating_add(1) } else { counter.saturating_sub(1) };
        };
        if matches!(what, SlotKind::Stream | SlotKind::Nested) {
            add(&mut self.watched);
        }
        if what == SlotKind::Nested {
            add(&mut self.nested);
        }
    }

    /// A socket that the kernel watched has become a stream.
    pub(crate) fn become_stream(&mut self, number: u32) {
        let before = self.slot(number).kind();
        self.count(before, false);
        self.count(SlotKind::Stream, true);
        let (slot, held) = self.slot_and_held(number);
        slot.set_kind(SlotKind::Stream);
        slot.state = slot.state & (bit::LISTED | bit::UNWATCHED) | bit::NEW;
        slot.seen = held.map_or_else(Seen::default, Seen::at_registration);
        slot.ordered_at = cycles();
        self.put_on_list(number);
    }

    /// The program has removed a stream that is not armed, and the kernel keeps its placeholder.
    /// Bytes that must be examined are still there. If it is on the list, it stays there until the
    /// next sleep: by then the program has often added it again, in the order of the list.
    #[inline]
    pub(crate) fn make_dormant(&mut self, number: u32) {
        let slot = self.slot(number);
        // A socket that is just being connected may not be a stream here yet.
        let before = slot.kind();
        slot.set_kind(SlotKind::Dormant);
        slot.state = slot.state & (bit::LISTED | bit::OF_PLACEHOLDER) | bit::NEW | bit::SILENT;
        self.count(before, false);
    }

    /// The program has added such a stream again.
    #[inline]
    pub(crate) fn revive(&mut self, number: u32, events: u32, data: u64) {
        let sleeps = self.sleeps;
        let (slot, held) = self.slot_and_held(number);
        slot.set_kind(SlotKind::Stream);
        slot.state = slot.state & (bit::LISTED | bit::OF_PLACEHOLDER) | bit::NEW;
        (slot.events, slot.data, slot.ready_at) = (events, data, sleeps);
        slot.seen = held.map_or_else(Seen::default, Seen::at_registration);
        order_behind(slot, held);
        self.watched = self.watched.saturating_add(1);
        self.put_on_list(number);
    }

    /// The program modifies a registration that is not armed. One that was on the kernel's ready
    /// list keeps its place there (fs/eventpoll.c, `ep_modify`).
    #[inline]
    pub(crate) fn modify(&mut self, number: u32, events: u32, data: u64) {
        let slot = self.slot(number);
        let queued = slot.state & (bit::QUEUED | bit::SILENT) == bit::QUEUED;
        let keeps_place = queued || slot.kind() == SlotKind::Stream && self.peek(number).0 != 0;
        let (slot, held) = self.slot_and_held(number);
        (slot.events, slot.data) = (events, data);
        slot.state = slot.state & !(bit::SILENT | bit::IDLE) | bit::NEW;
        if !keeps_place {
            slot.state &= !bit::QUEUED;
            order_behind(slot, held);
        }
    }

    /// Removes a registration. One of a relative has no reference in this process.
    pub(crate) fn remove(&mut self, number: u32) {
        self.take_off_list(number);
        self.disarm(number);
        let free = self.free;
        let slot = self.slot(number);
        let (fd, next, what) = (slot.fd.cast_unsigned() as usize, read(&slot.next), slot.kind());
        let left = slot.state & bit::LEFT_OPEN != 0;
        let pending = slot.state & bit::PENDING != 0;
        (slot.next, slot.state) = (free, 0);
        slot.set_kind(SlotKind::Nothing);
        self.left_open = self.left_open.saturating_sub(u32::from(left));
        self.free = number + 1;
        self.count(what, false);
        self.forget(number);
        let mut at = self.views.first.get(fd).map_or(0, read);
        if at == number + 1 {
            self.views.first[fd] = next;
        } else {
            for _ in self.used() {
                if at == 0 {
                    break;
                }
                let slot = self.slot(at - 1);
                at = read(&slot.next);
                if at == number + 1 {
                    slot.next = next;
                    break;
                }
            }
        }
        if (self.numbered.is_yes() || pending) && self.sleepers != 0 {
            // That thread may have consumed the notification that was sent for all, or the report
            // was one that should wake it for another registration.
            self.unnumber();
            self.wake_another();
        }
    }

    /// Moves what this process knows to memory that no relative has: `renew` puts it, empty, in the
    /// place of the shared one. False: there is none.
    ///
    /// The relatives' memory still has the requests that were counted, and they may withdraw them.
    /// So those requests stay theirs: everything is armed anew.
    #[cold]
    pub(crate) fn leave_relatives(&mut self, renew: impl FnOnce() -> bool) -> bool {
        const THEIRS: u16 = bit::LISTED | bit::DATA | bit::ROOM | bit::AMONG_MANY | bit::PENDING;
        let numbers = self.numbers();
        let Some(kept) = Kept::map(numbers.end as usize) else { return false };
        for number in numbers.clone() {
            if self.is_known(number) {
                let slot = *self.slot(number);
                kept.put(number, slot);
            }
        }
        let before = &*self.views.state;
        let state = State {
            sleepers: before.sleepers,
            used: numbers.end,
            shared: Flag::YES,
            multi_process: Flag::YES,
            survives: before.survives,
            has_watchers: before.has_watchers,
            edges: before.edges,
            ..State::default()
        };
        if !renew() {
            return false;
        }
        *self.views.state = state;
        for number in numbers {
            let (slot, index) = (kept.take(number), self.index(number));
            let fd = slot.fd.cast_unsigned() as usize;
            let (Some(known), true) =
                (&self.known[index], slot.kind() != SlotKind::Nothing && fd < self.views.first.len())
            else {
                self.forget(number);
                let free = std::mem::replace(&mut self.free, number + 1);
                self.slot(number).next = free;
                continue;
            };
            self.views.makers[index] = known.mark;
            let next = std::mem::replace(&mut self.views.first[fd], number + 1);
            let state = slot.state & !THEIRS | bit::NOTIFIED;
            *self.slot(number) = Slot { next, state, ..slot };
            self.left_open += u32::from(state & bit::LEFT_OPEN != 0);
            self.count(slot.kind(), true);
            if slot.kind() != SlotKind::Native {
                self.put_on_list(number);
            }
        }
        true
    }

    /// From now on several use it.
    pub(crate) fn share(&mut self) {
        self.shared = Flag::YES;
        self.unnumber();
    }

    /// Each registration is notified for itself again. Registrations that were not, because another
    /// was, are checked by the thread that wakes for that one, or by the caller.
    pub(crate) fn unnumber(&mut self) {
        if !std::mem::take(&mut self.numbered).is_yes() {
            return;
        }
        for number in self.numbers() {
            if self.slot(number).state & bit::AMONG_MANY != 0
                && let Some(end) = self.end(number)
            {
                end.number_sleep(0);
            }
        }
        fence(SeqCst);
    }

    /// The noticed state of a registration, for a watcher of this epoll.
    pub(crate) fn noticed(&mut self, number: u32) -> &mut Seen {
        let index = self.index(number);
        &mut self.views.noticed[index]
    }

    /// Puts a slot on the list: every scan checks it.
    #[inline]
    pub(crate) fn put_on_list(&mut self, number: u32) {
        let position = self.listed();
        let slot = self.slot(number);
        if slot.state & bit::LISTED == 0 && (position as usize) < self.known.len() {
            let slot = self.slot(number);
            slot.state |= bit::LISTED;
            slot.position = position;
            self.views.list[position as usize] = number;
            self.listed = position + 1;
        }
    }

    /// Puts a slot that is on the list at another position there.
    #[inline]
    pub(crate) fn put_at(&mut self, position: u32, number: u32) {
        let index = self.index(position);
        self.views.list[index] = number;
        self.slot(number).position = position;
    }

    /// Takes a slot off the list; the last takes its position.
    pub(crate) fn take_off_list(&mut self, number: u32) {
        let slot = self.slot(number);
        if slot.state & bit::LISTED == 0 {
            return;
        }
        slot.state &= !bit::LISTED;
        let position = read(&slot.position);
        let listed = self.listed().saturating_sub(1);
        let last = self.at(listed);
        let index = self.index(position);
        self.listed = listed;
        self.views.list[index] = last;
        self.slot(last).position = position;
    }
}
