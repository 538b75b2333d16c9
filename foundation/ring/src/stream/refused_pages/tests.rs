use rustix::fs::MemfdFlags;
use rustix::mm::mmap;

use super::super::private::flag;
use super::*;
use crate::guarded::{Fault, copy};

/// A mapping that is longer than its file: a touch behind its end is SIGBUS, as one of a page that
/// the kernel refuses.
struct Short {
    common: NonNull<u8>,
    private: NonNull<u8>,
    listed: Listed,
}

const PAGES: usize = 8;

impl Short {
    fn new() -> Self {
        install_handler();
        let file = rustix::fs::memfd_create("short", MemfdFlags::CLOEXEC).expect("a memfd");
        rustix::fs::ftruncate(&file, PAGE as u64).expect("a size");
        let access = ProtFlags::READ.union(ProtFlags::WRITE);
        // SAFETY: the kernel chooses an address range that is not in use.
        let common = unsafe { mmap(ptr::null_mut(), PAGES * PAGE, access, MapFlags::SHARED, &file, 0) };
        let common = NonNull::new(common.expect("a mapping").cast()).expect("an address");
        let private = pages(PAGE, MapFlags::PRIVATE).expect("a page").cast();
        let listed = list((common, PAGES * PAGE), private).expect("room in the list");
        Self { common, private, listed }
    }

    fn at(&self, page: usize) -> *mut u8 {
        self.common.as_ptr().wrapping_add(page * PAGE)
    }

    fn is_reset(&self) -> bool {
        // SAFETY: a page of zeros is one of an end.
        unsafe { self.private.cast::<Private>().as_ref() }.has(flag::HUNG_UP | flag::RESET)
    }
}

impl Drop for Short {
    fn drop(&mut self) {
        assert!(self.listed.take_off());
        // SAFETY: both were mapped by `new`.
        let _ = unsafe { rustix::mm::munmap(self.common.as_ptr().cast(), PAGES * PAGE) };
        // SAFETY: as above.
        let _ = unsafe { rustix::mm::munmap(self.private.as_ptr().cast(), PAGE) };
    }
}

#[test]
fn a_page_that_is_refused_resets_its_connection_and_no_other() {
    let (short, other) = (Short::new(), Short::new());
    for page in [1, 2, PAGES - 1] {
        let word = short.at(page).wrapping_add(64);
        // SAFETY: inside the mapping, whose faults are answered; so is the next.
        unsafe { word.write_volatile(7) };
        // SAFETY: as above.
        assert_eq!(unsafe { word.read_volatile() }, 7, "what this process writes there, it finds there");
        assert!(short.is_reset());
    }
    assert!(!other.is_reset());
    // SAFETY: as above.
    unsafe { other.at(3).read_volatile() };
    assert!(other.is_reset());
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_copy_that_meets_such_a_page_ends() {
    let short = Short::new();
    let mut own = [0; 2 * PAGE];
    // SAFETY: inside the mapping, whose faults are answered.
    let read = unsafe { copy(own.as_mut_ptr(), short.at(0), own.len()) };
    assert!(
        matches!(read, Err(Fault(at)) if (short.at(1).addr()..short.at(2).addr()).contains(&at.get())),
        "{read:x?}"
    );
    assert!(short.is_reset());
    // SAFETY: as above. The page has not been replaced.
    let again = unsafe { copy(short.at(1), own.as_ptr(), 1) };
    assert_eq!(again, Err(Fault(short.at(1).addr().try_into().expect("no null"))));
}

#[test]
fn a_dropped_end_is_listed_no_more() {
    // An address that nothing is mapped at, and nothing touches.
    const NOWHERE: usize = 0x1000_0000;
    let start = NonNull::new(ptr::with_exposed_provenance_mut::<u8>(NOWHERE)).expect("no null");
    for _ in 0..2 * PART {
        let mut listed = list((start, PAGE), start).expect("room in the list");
        assert!(LIST.find(NOWHERE).is_some() && LIST.find(NOWHERE + PAGE - 1).is_some());
        assert!(LIST.find(NOWHERE - 1).is_none() && LIST.find(NOWHERE + PAGE).is_none());
        assert!(listed.take_off());
        assert!(LIST.find(NOWHERE).is_none());
    }
    assert!(LIST.parts[1].load(Acquire).is_null(), "entries are used again");
}

#[test]
fn an_end_that_a_handler_is_at_stays_mapped_and_its_entry_is_not_used_again() {
    const AT: usize = 0x3000_0000;
    let start = NonNull::new(ptr::with_exposed_provenance_mut::<u8>(AT)).expect("no null");
    let list = List::new();
    let entry = list.take().expect("an entry");
    entry.write((start, PAGE), start);
    let pinned = list.find(AT).expect("it is listed");
    assert!(!entry.clear(), "it was unmapped under the handler");
    assert!(list.find(AT).is_none(), "it is listed no more");
    assert!(!ptr::eq(list.take().expect("another"), entry));
    // What the handler reads is what it found.
    assert!(pinned.0.has(AT) && pinned.0.private.load(Relaxed) == AT);
    drop(pinned);
    unmap(&list);
}

#[test]
fn a_reused_entry_is_another_and_a_half_written_entry_is_not_found() {
    const AT: usize = 0x4000_0000;
    let at = |address| NonNull::new(ptr::with_exposed_provenance_mut::<u8>(address)).expect("no null");
    let list = List::new();
    let entry = list.take().expect("an entry");
    entry.write((at(AT), PAGE), at(AT));
    assert!(entry.clear());
    // As its next user leaves it between two stores: the old start and the new length.
    entry.start.store(AT, Relaxed);
    entry.length.store(8 * PAGE, Relaxed);
    assert!(list.find(AT).is_none() && list.find(AT + 4 * PAGE).is_none());
    assert_eq!(entry.pins.load(Relaxed), 0);
    unmap(&list);
}

#[test]
fn all_ends_that_a_user_can_have_are_listed_and_not_one_more_than_there_is_room_for() {
    /// Connections of a user (`docs/spec/budgets.md`).
    const CONNECTIONS: usize = 131_072;
    let list = List::new();
    let taken = std::iter::from_fn(|| list.take()).count();
    assert!(taken >= 2 * CONNECTIONS, "{taken}");
    assert_eq!(taken, PARTS * PART);
    unmap(&list);
}

fn unmap(list: &List) {
    for slot in &list.parts {
        let part = slot.swap(ptr::null_mut(), AcqRel);
        if !part.is_null() {
            // SAFETY: a part of a list of the test's own, of which it uses no entry any more.
            let _ = unsafe { rustix::mm::munmap(part.cast(), size_of::<Part>()) };
        }
    }
}
