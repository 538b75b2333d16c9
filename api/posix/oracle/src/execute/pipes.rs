//! The pipes between the director and its actors: two for each actor, one line a message.

use super::syscalls;
use crate::program::Actor;

/// The executor's own descriptors begin here.
pub(super) const FIRST_PIPE: i32 = 900;

/// The four descriptors of an actor's two pipes.
#[derive(Clone, Copy)]
pub(super) struct Pipes {
    /// The actor reads commands here.
    pub(super) commands: i32,
    /// The director writes them here.
    pub(super) command: i32,
    /// The director reads results here.
    pub(super) results: i32,
    /// The actor writes them here.
    pub(super) result: i32,
}

impl Pipes {
    /// The pipes of an actor; their numbers are fixed.
    pub(super) fn of(actor: Actor) -> Self {
        let first = FIRST_PIPE + 4 * i32::try_from(actor.index()).unwrap_or(0);
        Self { commands: first, command: first + 1, results: first + 2, result: first + 3 }
    }

    /// Opens both pipes at their numbers; false if that failed.
    pub(super) fn open(self) -> bool {
        [(self.commands, self.command), (self.results, self.result)].into_iter().all(|(reader, writer)| {
            let (made, ends) = syscalls::pipe(0);
            let placed = made.is_ok()
                && syscalls::dup2(ends[0], reader).is_ok()
                && syscalls::dup2(ends[1], writer).is_ok();
            syscalls::close(ends[0]);
            syscalls::close(ends[1]);
            placed
        })
    }

    /// Writes a line to the director.
    pub(super) fn answer(self, line: &str) {
        write_line(self.result, line);
    }
}

/// Writes a line into a pipe. A pipe without a reader drops the line.
pub(super) fn write_line(fd: i32, line: &str) {
    let text = format!("{line}\n");
    let mut bytes = text.as_bytes();
    while !bytes.is_empty() {
        match syscalls::write(fd, bytes).0 {
            Ok(0) => return,
            Ok(length) => bytes = &bytes[usize::try_from(length).unwrap_or(0)..],
            Err(libc::EINTR) => {}
            Err(_) => return,
        }
    }
}

/// Reads the next line of a pipe; none at its end. `buffered` keeps the bytes read beyond it.
pub(super) fn read_line(fd: i32, buffered: &mut Vec<u8>) -> Option<String> {
    loop {
        if let Some(line) = take_line(buffered) {
            return Some(line);
        }
        let mut bytes = [0; 1024];
        match syscalls::read(fd, &mut bytes).0 {
            Err(libc::EINTR) => {}
            Ok(length) if length > 0 => {
                buffered.extend_from_slice(&bytes[..usize::try_from(length).unwrap_or(0)]);
            }
            _ => return None,
        }
    }
}

/// Takes the first complete line of the buffered bytes.
pub(super) fn take_line(buffered: &mut Vec<u8>) -> Option<String> {
    let end = buffered.iter().position(|byte| *byte == b'\n')?;
    let line = String::from_utf8_lossy(&buffered[..end]).into_owned();
    buffered.drain(..=end);
    Some(line)
}
