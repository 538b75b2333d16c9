use std::ptr;

use super::*;
use crate::stream::refused_pages;

const GAP: usize = 2;

/// Three pages: two that are there, and one that is not.
struct Pages(*mut u8);

impl Pages {
    fn new() -> Self {
        refused_pages::install_handler();
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: the kernel chooses addresses that are not in use; the last page is ours to take
        // away.
        unsafe {
            let start = libc::mmap(ptr::null_mut(), 3 * PAGE, access, flags, -1, 0);
            assert_ne!(start, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(start.byte_add(GAP * PAGE), PAGE, libc::PROT_NONE), 0);
            Self(start.cast())
        }
    }

    /// So many bytes before the end of what is there.
    fn before_the_gap(&self, bytes: usize) -> *mut u8 {
        self.0.wrapping_add(GAP * PAGE - bytes)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`.
        unsafe { libc::munmap(self.0.cast(), 3 * PAGE) };
    }
}

/// Every length up to some blocks of each loop, and some about a page.
fn lengths() -> impl Iterator<Item = usize> {
    (0..700).chain([1023, 1024, 1025, 4095, 4096, 4097, 8000])
}

#[test]
fn copies_are_whole_and_touch_nothing_else() {
    prepare();
    for length in lengths() {
        for (skew, to_skew) in [(0, 0), (1, 0), (3, 17), (31, 32)] {
            let from: Vec<u8> = (0..length + skew).map(|at| (at * 7 + at / 256) as u8).collect();
            let mut to = vec![0xee; length + to_skew + 9];
            // SAFETY: both have so many bytes.
            let copied = unsafe { copy(to.as_mut_ptr().add(to_skew), from.as_ptr().add(skew), length) };
            assert_eq!(copied, Ok(()));
            assert_eq!(to[to_skew..to_skew + length], from[skew..], "{length} bytes, {skew}, {to_skew}");
            assert!(
                to[..to_skew].iter().chain(&to[to_skew + length..]).all(|byte| *byte == 0xee),
                "{length}"
            );
        }
    }
}

#[test]
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn the_narrow_copy_is_as_good() {
    for length in lengths().filter(|length| *length > 128) {
        let from: Vec<u8> = (0..length).map(|at| (at * 5 + at / 256) as u8).collect();
        let mut to = vec![0xee; length + 9];
        // SAFETY: both have so many bytes.
        assert_eq!(unsafe { sietch_guarded_copy_narrow(to.as_mut_ptr(), from.as_ptr(), length) }, 0);
        assert_eq!(to[..length], from[..]);
        assert!(to[length..].iter().all(|byte| *byte == 0xee), "{length}");
    }
}

#[test]
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn a_copy_names_the_address_where_there_is_nothing() {
    let pages = Pages::new();
    let gap = pages.before_the_gap(0).addr();
    let mut own = vec![0; 2 * PAGE];
    for length in lengths().skip(1).filter(|length| *length <= PAGE) {
        for there in [0, length / 2, length - 1] {
            let start = pages.before_the_gap(there);
            // SAFETY: faults are answered; what is there has no other user.
            let (read, written) =
                unsafe { (copy(own.as_mut_ptr(), start, length), copy(start, own.as_ptr(), length)) };
            for fault in [read, written] {
                let Fault(address) = fault.expect_err("a page is not there");
                assert!(
                    (gap..gap + PAGE).contains(&address.get()),
                    "{length} bytes, {there} there: {address:x}"
                );
            }
        }
        // SAFETY: so many bytes are there.
        assert_eq!(unsafe { copy(own.as_mut_ptr(), pages.before_the_gap(length), length) }, Ok(()));
    }
    // No address of this machine: the kernel names none.
    // SAFETY: faults are answered.
    let nowhere = unsafe { copy(own.as_mut_ptr(), ptr::without_provenance(1 << 55), 8) };
    assert_eq!(nowhere, Err(Fault(NonZeroUsize::MIN)));
}

#[test]
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn events_are_loaded_and_stored_field_by_field_where_they_are() {
    let pages = Pages::new();
    let bytes = size_of::<libc::epoll_event>();
    for there in 0..=bytes {
        let place = pages.before_the_gap(there).cast::<libc::epoll_event>();
        // SAFETY: faults are answered; what is there has no other user.
        let (stored, loaded) = unsafe { (store_event(place, 0x8000_2019, u64::MAX - 6), load_event(place)) };
        if there == bytes {
            assert_eq!((stored, loaded), (Ok(()), Ok((0x8000_2019, u64::MAX - 6))));
        } else {
            assert!(stored.is_err() && loaded.is_err(), "{there} bytes of it are there");
        }
    }
}

#[test]
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn looks_find_each_page() {
    let pages = Pages::new();
    for length in [1, 2, PAGE, PAGE + 1, 2 * PAGE] {
        assert!(
            is_readable(pages.before_the_gap(length), length)
                && is_writable(pages.before_the_gap(length), length)
        );
        for beyond in [1, PAGE] {
            let start = pages.before_the_gap(length);
            assert!(!is_readable(start, length + beyond) && !is_writable(start, length + beyond), "{length}");
        }
    }
    assert!(is_readable(pages.before_the_gap(0), 0));
    let text = b"constant";
    assert!(is_readable(text.as_ptr(), 8) && !is_writable(text.as_ptr().cast_mut(), 8));
}
