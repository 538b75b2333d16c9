//! Epolls that survive exec.
//!
//! 1. The kernel's epoll survives exec, the library's memory does not. So the kernel is given what
//!    a registration consists of, in bits that mean nothing for a placeholder: the program's events
//!    ([`encoded`](crate::readiness::tag::encoded)), and its data as far as that is a small number.
//!    A pointer would be invalid in the next program; it is encoded as all ones.
//! 2. The constructor reads each epoll's registrations from `/proc/self/fdinfo`, in the order of
//!    their slots. It takes over those whose descriptor is a stream of the same file ([`read`]). It
//!    uses system calls and the stack, nothing else.
//! 3. `EPOLLEXCLUSIVE` leaves no room for other bits: such a registration comes back as one for
//!    data.

use std::ffi::c_int;

use crate::descriptor::description::Kind;
use crate::descriptor::table;
use crate::readiness::control::of;
use crate::readiness::set::shared::{Flag, SlotKind};
use crate::readiness::tag::{self, DATA_BITS, MAX_SLOTS, TAG, TAG_MASK, decoded};
use crate::system::kernel;
use crate::system::sys::{self, address, address_mut, signed};

/// An epoll that exec left open, with what the kernel has of ours in it.
pub(crate) fn inherited(epfd: c_int, entry: &Entry) {
    let Some(target) = table::find(entry.fd).filter(|held| held.kind() == Kind::Stream) else { return };
    let Ok(Some(set)) = of(epfd, SlotKind::Stream, libc::EPOLL_CTL_ADD) else { return };
    let Some(mut locked) = set.lock() else { return };
    (locked.epfd, locked.shared, locked.survives) = (epfd, Flag::YES, Flag::YES);
    // The same number: the kernel's registration stays as it is, and a process that shares it still
    // finds its own.
    if locked.skip_to(entry.number) {
        locked.insert(SlotKind::Stream, entry.fd, &target, entry.events, entry.data);
    }
}

/// Bytes that are read at once.
const PIECE: usize = 4096;

/// One registration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The descriptor that it was registered by.
    pub(crate) fd: c_int,
    /// Its slot.
    pub(crate) number: u32,
    /// The program's events.
    pub(crate) events: u32,
    /// The program's data.
    pub(crate) data: u64,
    /// The file's inode.
    inode: u64,
}

/// A line of an epoll's `fdinfo`: `tfd: N events: HEX data: HEX pos:N ino:HEX sdev:HEX`.
fn entry(line: &[u8]) -> Option<Entry> {
    let after = |name: &[u8], radix: u64| {
        let at = line.windows(name.len()).position(|window| window == name)? + name.len();
        let mut digits = line.get(at..)?.iter().skip_while(|byte| **byte == b' ').peekable();
        digits.peek()?;
        let mut number = 0_u64;
        for byte in digits {
            let Some(digit) = char::from(*byte).to_digit(radix as u32) else { break };
            number = number.checked_mul(radix)?.checked_add(u64::from(digit))?;
        }
        Some(number)
    };
    let data = after(b"data:", 16)?;
    if data & TAG_MASK != TAG {
        return None;
    }
    let events = after(b"events:", 16)? as u32;
    let own = data & ((1 << DATA_BITS) - 1);
    Some(Entry {
        fd: c_int::try_from(after(b"tfd:", 10)?).ok()?,
        number: Some(tag::number(data)).filter(|number| (*number as usize) < MAX_SLOTS)?,
        events: decoded(events),
        data: own,
        inode: after(b"ino:", 16)?,
    })
}

/// Takes over what an epoll that exec left open has of ours. Other descriptors are left alone.
pub(crate) fn read(fd: c_int) {
    let mut least = 0;
    // Slots are given their numbers from the lowest on.
    while let Some(entry) = lowest(fd, least) {
        least = entry.number + 1;
        if is_of(entry.fd, entry.inode) {
            inherited(fd, &entry);
        }
    }
}

/// The registration of the lowest slot from `least` on.
fn lowest(epfd: c_int, least: u32) -> Option<Entry> {
    let mut path = *b"/proc/self/fdinfo/\0\0\0\0\0\0\0\0\0\0\0\0";
    let (mut remainder, mut length) = (epfd, 1);
    while remainder >= 10 {
        (remainder, length) = (remainder / 10, length + 1);
    }
    remainder = epfd;
    for place in (0..length).rev() {
        *path.get_mut(18 + place)? = b'0' + (remainder % 10) as u8;
        remainder /= 10;
    }
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    let arguments = [signed(libc::AT_FDCWD), address(path.as_ptr()), signed(flags), 0, 0, 0];
    // SAFETY: the kernel reads the path, which ends with a zero.
    let file = unsafe { sys::syscall(libc::SYS_openat, arguments) }.ok()?;
    let mut found: Option<Entry> = None;
    each_line(file, |line| {
        if let Some(entry) = entry(line)
            && entry.number >= least
            && found.is_none_or(|found| entry.number < found.number)
        {
            found = Some(entry);
        }
    });
    let _ = kernel::close(file as c_int);
    found
}

/// Calls `each` for each line of a file.
fn each_line(file: usize, mut each: impl FnMut(&[u8])) {
    let mut piece = [0_u8; PIECE];
    let mut held = 0;
    loop {
        let room = &mut piece[held..];
        let arguments = [file, address_mut(room.as_mut_ptr()), room.len(), 0, 0, 0];
        // SAFETY: the kernel writes at most so many bytes.
        let Ok(got @ 1..) = (unsafe { sys::syscall(libc::SYS_read, arguments) }) else { break };
        held += got;
        let mut begin = 0;
        while let Some(end) = piece[begin..held].iter().position(|byte| *byte == b'\n') {
            each(&piece[begin..begin + end]);
            begin += end + 1;
        }
        piece.copy_within(begin..held, 0);
        held -= begin;
        if held == PIECE {
            // No line is so long.
            break;
        }
    }
}

/// Whether a descriptor is of a file.
fn is_of(fd: c_int, inode: u64) -> bool {
    // SAFETY: plain numbers, for which zeros are valid; the kernel writes them.
    unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        let arguments = [signed(fd), address_mut(&raw mut status), 0, 0, 0, 0];
        sys::syscall(libc::SYS_fstat, arguments).is_ok() && status.st_ino == inode
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::readiness::tag::{encoded, tagged};

    #[test]
    fn an_encoded_registration_is_read_back() {
        let events = (libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLET) as u32;
        let bits = encoded(events) | libc::EPOLLIN as u32 | libc::EPOLLET as u32;
        let data = tagged(77, 12);
        let line = format!("tfd:        5 events: {bits:8x} data: {data:16x}  pos:0 ino:188ac89 sdev:f");
        let entry = entry(line.as_bytes()).expect("an entry");
        assert_eq!(entry, Entry { fd: 5, number: 77, events, data: 12, inode: 0x188_ac89 });
        assert_eq!(
            super::entry(b"tfd:        4 events:       19 data:                4  pos:0 ino:1 sdev:f"),
            None
        );
        assert_eq!(super::entry(b"pos:\t0"), None);
    }
}
