//! Reserving space of a file, also where signals come all the time.

use std::os::fd::AsFd;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

/// Bytes of a piece that is not made smaller: reserved within a millisecond.
const SMALLEST: u64 = 1 << 20;

/// Reserves `length` bytes of a file from `offset` on, as `fallocate(2)` does.
///
/// On a file system in memory a signal ends that call, and frees what it has reserved so far
/// (`shmem_fallocate` of Linux). Called again for all of it, it would never come to its end in a
/// process with a fast timer. So each signal halves the pieces.
///
/// # Errors
/// As of `fallocate(2)`, but for `EINTR`. Some of the space may be reserved then.
pub fn reserve(file: impl AsFd, offset: u64, length: u64) -> Result<(), Errno> {
    in_pieces(offset, length, |at, bytes| rustix::fs::fallocate(&file, FallocateFlags::empty(), at, bytes))
}

fn in_pieces(
    offset: u64,
    length: u64,
    mut reserve: impl FnMut(u64, u64) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let (mut done, mut piece) = (0, length);
    loop {
        let bytes = piece.min(length - done);
        match reserve(offset + done, bytes) {
            Ok(()) => done += bytes,
            Err(Errno::INTR) => piece = (piece / 2).max(SMALLEST),
            Err(error) => return Err(error),
        }
        if done == length {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// Reserves so many bytes; the pieces that were reserved. A signal comes after `most` bytes.
    fn pieces(length: u64, most: u64) -> Vec<(u64, u64)> {
        let mut reserved = Vec::new();
        let done = in_pieces(4096, length, |at, bytes| {
            if bytes > most {
                return Err(Errno::INTR);
            }
            reserved.push((at, bytes));
            Ok(())
        });
        assert_eq!(done, Ok(()));
        reserved
    }

    #[test]
    fn without_signals_all_is_reserved_at_once() {
        assert_eq!(pieces(GIB, GIB), [(4096, GIB)]);
    }

    #[test]
    fn a_timer_that_ends_each_long_call_does_not_keep_it_from_its_end() {
        let length = GIB + 4096;
        let reserved = pieces(length, 3 << 20);
        assert!(reserved.len() < 1024, "{} pieces", reserved.len());
        let end = reserved.iter().fold(4096, |end, (at, bytes)| {
            assert_eq!(*at, end, "the next one begins where the last one ended");
            end + bytes
        });
        assert_eq!(end, 4096 + length);
    }

    #[test]
    fn a_small_piece_that_is_interrupted_is_reserved_again() {
        let (mut calls, mut reserved) = (0, 0);
        let done = in_pieces(0, 4096, |_, bytes| {
            calls += 1;
            reserved += bytes;
            if calls < 10 { Err(Errno::INTR) } else { Ok(()) }
        });
        assert_eq!((done, calls, reserved), (Ok(()), 10, 10 * 4096));
    }

    #[test]
    fn what_has_no_room_is_refused() {
        assert_eq!(in_pieces(0, GIB, |_, _| Err(Errno::NOSPC)), Err(Errno::NOSPC));
    }
}
