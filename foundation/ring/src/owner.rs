//! Whether this process made an object, or got a copy of it by fork.
//!
//! A child of fork has copies of its parent's objects. Dropped there, an object must leave alone
//! what the parent still uses: entries of an epoll instance, words in shared memory.
//!
//! 1. A page holds the mark of this process. The kernel wipes it in a child (`MADV_WIPEONFORK`,
//!    Linux 4.14), so the comparison costs a load and no system call.
//! 2. A child takes a mark of its own: the counter that it inherited, and one. Its parent had every
//!    mark below. Two children may have the same mark, but neither has an object of the other.
//! 3. A process id would not do: the child in a new PID namespace may have its parent's number.

use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicPtr, AtomicU64};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

const PAGE: usize = 4096;

/// The page's first word; null until it is needed.
static WIPED: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());

/// The last mark that this process, or one from which it was forked, has had.
static MARKS: AtomicU64 = AtomicU64::new(0);

/// The process that made an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerProcess(u64);

impl OwnerProcess {
    /// This process.
    pub fn current() -> Self {
        // Without such a page every process counts as the owner.
        let Some(word) = word() else { return Self(0) };
        match word.load(Relaxed) {
            0 => {
                let new = MARKS.fetch_add(1, Relaxed) + 1;
                Self(word.compare_exchange(0, new, Relaxed, Relaxed).map_or_else(|first| first, |_| new))
            }
            mark => Self(mark),
        }
    }

    /// Whether this process is the owner, and no child of it.
    #[inline]
    pub fn is_current(self) -> bool {
        self == Self::current()
    }
}

#[inline]
fn word() -> Option<&'static AtomicU64> {
    // SAFETY: null, or the start of a page that is never unmapped.
    unsafe { WIPED.load(Acquire).as_ref() }.or_else(make_word)
}

#[cold]
fn make_word() -> Option<&'static AtomicU64> {
    let access = ProtFlags::READ.union(ProtFlags::WRITE);
    // SAFETY: the kernel chooses an address range that is not in use.
    let page = unsafe { mmap_anonymous(ptr::null_mut(), PAGE, access, MapFlags::PRIVATE) };
    let page = NonNull::new(page.ok()?)?;
    // SAFETY: the page of above: only its contents in a child change.
    let wiped = unsafe { madvise(page.as_ptr(), PAGE, Advice::LinuxWipeOnFork) };
    let new = page.as_ptr().cast::<AtomicU64>();
    let made = wiped.is_ok().then(|| WIPED.compare_exchange(ptr::null_mut(), new, AcqRel, Acquire));
    let word = match made {
        Some(Ok(_)) => new,
        other => {
            // SAFETY: mapped above, and no pointer to it was shared.
            let _ = unsafe { munmap(page.as_ptr(), PAGE) };
            // Another thread was first, or there is none.
            other.and_then(Result::err).unwrap_or(ptr::null_mut())
        }
    };
    // SAFETY: null, or a page of zeros at first that is never unmapped.
    unsafe { word.as_ref() }
}

// Miri has no forks.
#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    #[cfg(not(miri))]
    fn a_child_is_not_the_owner_and_has_a_mark_of_its_own() {
        let owner = OwnerProcess::current();
        assert!(owner.is_current());
        // SAFETY: the child loads and stores words, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let own = OwnerProcess::current();
            let right = !owner.is_current() && own != owner && own.is_current();
            // SAFETY: ends the child, without what the parent would run at its end.
            unsafe { libc::_exit(i32::from(!right)) };
        }
        let mut status = -1;
        // SAFETY: the child of above.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(owner.is_current());
    }
}
