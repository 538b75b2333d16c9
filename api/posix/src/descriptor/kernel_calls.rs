//! Calls that have found a number to be the kernel's and are not in the kernel yet.
//!
//! 1. Such a call notes the number, looks it up once more, and makes the kernel's call
//!    ([`begin`], [`end`]). A thread that puts a placeholder at that number has made its word busy
//!    before. It waits for the noted calls ([`wait`]): a call that finds the placeholder would
//!    write past the library, which resets the connection.
//! 2. A noted call that sleeps is in the kernel, with the file that was there before. So is one
//!    that has taken longer than [`LONGEST`]; a note may also be of a call that a handler has left
//!    by a jump.
//! 3. A thread has one note, at a place by its id. Two threads at one place are possible: then the
//!    note of one is lost, and its call is as if it had made none.
//! 4. A process without connections makes no notes. Calls on connections make none either.

use std::ffi::c_int;
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU64, fence};

use sietch_ring::stream;

use crate::descriptor::description::has_sockets;
use crate::system::sys::{self, address, address_mut, signed};
use crate::system::{kernel, processor, seccomp};

/// Places of notes: threads that call at one time, in most programs.
const PLACES: usize = 512;

/// Nanoseconds that a call may take from its note until it is in the kernel. A thread without a
/// processor takes some milliseconds.
const LONGEST: u64 = 50_000_000;

/// The thread in the upper half, and the number plus one in the lower.
#[repr(align(64))]
struct Note(AtomicU64);

static NOTES: [Note; PLACES] = [const { Note(AtomicU64::new(0)) }; PLACES];

fn place(thread: u32) -> &'static AtomicU64 {
    &NOTES[thread as usize % PLACES].0
}

fn note(thread: u32, fd: c_int) -> u64 {
    u64::from(thread) << 32 | u64::from(fd.wrapping_add(1).cast_unsigned())
}

/// Notes a call on a number; false: nothing needs to be noted.
#[inline]
pub(crate) fn begin(fd: c_int) -> bool {
    let notes = has_sockets();
    if notes {
        let own = stream::thread();
        // Before the word is read again.
        place(own).swap(note(own, fd), SeqCst);
    }
    notes
}

/// The call has returned, with this answer.
#[inline]
pub(crate) fn end<T>(answer: T) -> T {
    let own = stream::thread();
    let place = place(own);
    if (place.load(Relaxed) >> 32) as u32 == own {
        place.store(0, Release);
    }
    answer
}

/// Waits until the calls that were noted for a number are in the kernel. Its word is busy.
pub(crate) fn wait(fd: c_int) {
    if seccomp::is_restricted() {
        return;
    }
    fence(SeqCst);
    let own = stream::thread();
    for Note(place) in &NOTES {
        let noted = place.load(SeqCst);
        let thread = (noted >> 32) as u32;
        if noted as u32 == fd.wrapping_add(1).cast_unsigned() && thread != own {
            wait_for(place, noted, thread);
        }
    }
}

#[cold]
fn wait_for(place: &AtomicU64, noted: u64, thread: u32) {
    let begun = kernel::now();
    while place.load(SeqCst) == noted && runs(thread) && kernel::now().saturating_sub(begun) < LONGEST {
        processor::yield_now();
    }
}

/// Whether a thread of this process has a processor or waits for one.
fn runs(thread: u32) -> bool {
    const FOLDER: &[u8] = b"/proc/self/task/";
    const NAME: &[u8] = b"/stat\0";
    // Any number of a thread has room.
    let mut path = [0_u8; FOLDER.len() + 10 + NAME.len()];
    let mut digits = [0_u8; 10];
    let (mut left, mut first) = (thread, digits.len());
    while left != 0 {
        first -= 1;
        digits[first] = b'0' + (left % 10) as u8;
        left /= 10;
    }
    let parts = FOLDER.iter().chain(&digits[first..]).chain(NAME);
    path.iter_mut().zip(parts).for_each(|(to, byte)| *to = *byte);
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    let arguments = [signed(libc::AT_FDCWD), address(path.as_ptr()), signed(flags), 0, 0, 0];
    // SAFETY: the kernel reads the path, which ends with a zero.
    let Ok(file) = (unsafe { sys::syscall(libc::SYS_openat, arguments) }) else { return false };
    // The thread's number, its name of at most 15 bytes in brackets, its state.
    let mut text = [0_u8; 64];
    // SAFETY: the kernel writes at most so many bytes.
    let read =
        unsafe { sys::syscall(libc::SYS_read, [file, address_mut(text.as_mut_ptr()), text.len(), 0, 0, 0]) };
    let _ = kernel::close(file as c_int);
    let text = text.get(..read.unwrap_or(0)).unwrap_or_default();
    let name_end = text.iter().rposition(|byte| *byte == b')');
    name_end.and_then(|end| text.get(end + 2)) == Some(&b'R')
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32};
    use std::time::{Duration, Instant};

    use super::*;

    /// A number that no test process has.
    const NUMBER: c_int = 600_000;

    #[test]
    fn a_note_is_waited_for_until_its_call_ends_or_sleeps() {
        let (thread, ends) = (AtomicU32::new(0), AtomicBool::new(false));
        let noted = || {
            let own = stream::thread();
            place(own).store(note(own, NUMBER), SeqCst);
            thread.store(own, SeqCst);
        };
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                noted();
                while !ends.load(SeqCst) {
                    std::thread::park();
                }
                end(());
            });
            while thread.load(SeqCst) == 0 || runs(thread.load(SeqCst)) {
                std::thread::yield_now();
            }
            wait(NUMBER);
            ends.store(true, SeqCst);
            sleeper.thread().unpark();
        });
        ends.store(false, SeqCst);
        thread.store(0, SeqCst);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                noted();
                while !ends.load(SeqCst) {
                    std::hint::spin_loop();
                }
                end(());
            });
            while thread.load(SeqCst) == 0 {
                std::thread::yield_now();
            }
            let begun = Instant::now();
            wait(NUMBER);
            assert!(begun.elapsed() >= Duration::from_nanos(LONGEST), "it runs");
            ends.store(true, SeqCst);
        });
        wait(NUMBER);
        assert!(NOTES.iter().all(|Note(place)| place.load(SeqCst) as u32 != NUMBER as u32 + 1));
    }
}
