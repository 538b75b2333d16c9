//! The memory that the allocator keeps after it was freed.
//!
//! glibc gives freed memory back to the system only from the end of a heap, so a few small objects
//! keep all of it resident. [`release`] gives back every whole page that is free. It visits all
//! free chunks, and threads that allocate from the same part of the heap wait meanwhile: some
//! tenths of a millisecond for each mebibyte.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

/// A release was requested that has not begun.
static WANTED: AtomicBool = AtomicBool::new(false);

/// The thread that releases is there.
static RUNNING: AtomicBool = AtomicBool::new(false);

/// Gives the system all whole pages that are free. Whether there were any; never, with an allocator
/// that cannot tell.
pub fn release() -> bool {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: it takes no pointer, and any thread may call it at any time.
        unsafe { libc::malloc_trim(0) != 0 }
    }
    #[cfg(not(target_env = "gnu"))]
    false
}

/// The same on a thread of its own, which ends when no release is requested any more.
///
/// # Errors
/// No thread can be started.
pub fn release_in_background() -> io::Result<()> {
    WANTED.store(true, Ordering::SeqCst);
    if RUNNING.swap(true, Ordering::SeqCst) {
        return Ok(());
    }
    let work = || loop {
        while WANTED.swap(false, Ordering::SeqCst) {
            release();
        }
        RUNNING.store(false, Ordering::SeqCst);
        // A request that came before the last line has started no thread.
        if !WANTED.load(Ordering::SeqCst) || RUNNING.swap(true, Ordering::SeqCst) {
            return;
        }
    };
    let started = std::thread::Builder::new().name("release".into()).spawn(work);
    if started.is_err() {
        RUNNING.store(false, Ordering::SeqCst);
    }
    started.map(drop)
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use super::*;

    fn resident() -> usize {
        let status = std::fs::read_to_string("/proc/self/statm").expect("/proc is there");
        let pages = status.split(' ').nth(1).and_then(|word| word.parse::<usize>().ok());
        pages.expect("a number") * 4096
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has an allocator of its own")]
    fn freed_memory_goes_back_although_objects_are_left_between() {
        if !cfg!(target_env = "gnu") {
            return;
        }
        let blocks = 100_000;
        let mut all: Vec<Option<Box<[u8; 1000]>>> = (0..blocks).map(|_| Some(Box::new([1; 1000]))).collect();
        // What is left keeps the end of the heap in use.
        all.iter_mut().enumerate().for_each(|(number, block)| {
            if number % 1000 != 999 {
                *block = None;
            }
        });
        let before = resident();
        assert!(release());
        let after = resident();
        black_box(&all);
        assert!(after + 50_000_000 < before, "{before} bytes before, {after} after");
        release_in_background().expect("a thread");
    }
}
