//! Mapped files. Their memory is read and written through the kernel (`process_vm_readv(2)`), which
//! returns an error where a plain access would end the process.

use std::sync::{Mutex, PoisonError};

use super::address::CANARY;
use super::errno::Returned;
use super::slots::descriptor;
use super::transfer::received;
use crate::content;
use crate::operation::Operation;
use crate::operation::words::Sharing;

/// The most bytes of a mapping.
const MOST: usize = 1 << 20;
/// How many mappings a program has.
const MAPPINGS: usize = 4;

/// Address and length of each; length 0 where there is none.
static MAPPED: Mutex<[(usize, usize); MAPPINGS]> = Mutex::new([(0, 0); MAPPINGS]);

fn with<T>(map: i64, work: impl FnOnce(&mut (usize, usize)) -> T) -> T {
    let mut all = MAPPED.lock().unwrap_or_else(PoisonError::into_inner);
    work(&mut all[usize::try_from(map).unwrap_or(0) % MAPPINGS])
}

/// Carries out an operation of this module; none if it is of another.
pub(super) fn perform(index: usize, operation: &Operation) -> Option<String> {
    Some(match *operation {
        Operation::Map { map, fd, offset, length, sharing } => {
            make(map, descriptor(fd), (offset, length), sharing)
        }
        Operation::MapRead { map, at, length } => {
            let mut bytes = vec![CANARY; usize::try_from(length).unwrap_or(0).min(MOST)];
            let returned = with(map, |mapped| transfer(*mapped, at, &mut bytes, Direction::Read));
            received(returned, &bytes)
        }
        Operation::MapWrite { map, at, length } => {
            let mut bytes = content::of_step(index, usize::try_from(length).unwrap_or(0).min(MOST));
            with(map, |mapped| transfer(*mapped, at, &mut bytes, Direction::Write)).to_string()
        }
        Operation::Msync { map } => with(map, |(address, length)| {
            // SAFETY: changes no memory.
            Returned::of(unsafe {
                libc::msync(std::ptr::without_provenance_mut(*address), *length, libc::MS_SYNC)
            })
        })
        .to_string(),
        Operation::Unmap { map } => with(map, unmap).to_string(),
        _ => return None,
    })
}

fn make(map: i64, fd: i32, (offset, length): (i64, i64), sharing: Sharing) -> String {
    let (protection, flags) = match sharing.name() {
        "shared" => (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED),
        "read" => (libc::PROT_READ, libc::MAP_SHARED),
        _ => (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE),
    };
    let length = usize::try_from(length).unwrap_or(0).min(MOST);
    with(map, |mapped| {
        unmap(mapped);
        // SAFETY: a new mapping where nothing is.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, fd, offset) };
        if address == libc::MAP_FAILED {
            return Returned::of(-1).to_string();
        }
        *mapped = (address.addr(), length);
        "mapped".to_owned()
    })
}

fn unmap(mapped: &mut (usize, usize)) -> Returned {
    let (address, length) = std::mem::take(mapped);
    if length == 0 {
        return Returned(Err(libc::EINVAL));
    }
    // SAFETY: a mapping of this module, of which nothing else has a reference.
    Returned::of(unsafe { libc::munmap(std::ptr::without_provenance_mut(address), length) })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Read,
    Write,
}

/// Moves bytes between a buffer and mapped memory, `at` bytes from its beginning.
fn transfer((address, mapped): (usize, usize), at: i64, bytes: &mut [u8], direction: Direction) -> Returned {
    let at = usize::try_from(at).unwrap_or(0).min(mapped);
    let length = bytes.len().min(mapped - at);
    let own = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: length };
    let far = libc::iovec { iov_base: std::ptr::without_provenance_mut(address + at), iov_len: length };
    // SAFETY: within a mapping of this module, and a buffer that outlives the call.
    Returned::of_length(unsafe {
        let process = libc::getpid();
        match direction {
            Direction::Read => libc::process_vm_readv(process, &raw const own, 1, &raw const far, 1, 0),
            Direction::Write => libc::process_vm_writev(process, &raw const own, 1, &raw const far, 1, 0),
        }
    })
}

/// Removes what a program left.
pub(super) fn reset() {
    for map in 0..MAPPINGS as i64 {
        with(map, unmap);
    }
}
