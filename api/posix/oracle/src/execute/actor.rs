//! An actor: carries out the commands that it is sent, one after the other, and says what came of
//! each.
//!
//! 1. A command is `INDEX START OPERATION`. If `START` is 1 the actor says `>` before the call.
//!    After it it says `= RESULT`.
//! 2. `+ PROCESS THREAD` comes first of all: who it is. `reset` closes every descriptor of a
//!    program; the answer is `=`.
//! 3. A result ends with ` !N` if N signals of the director interrupted the call, and with `
//!    sigpipe` if it raised `SIGPIPE`.

use std::process::ExitCode;
use std::sync::atomic::{AtomicI32, AtomicU16, AtomicU64, Ordering};

use super::{address, calls, messages, processes, raw, readiness, signals};
use crate::operation::Operation;
use crate::operation::words::Slot;
use crate::program::Actor;

/// Descriptors from here on are the executor's own.
pub const FIRST_PIPE: i32 = 900;

const SLOTS: usize = Slot::COUNT as usize;

/// What the slots of this process hold. Threads share them; a child has a copy.
static DESCRIPTORS: [AtomicI32; SLOTS] = [const { AtomicI32::new(-1) }; SLOTS];
/// The local port that a slot's socket had last.
static PORTS: [AtomicU16; SLOTS] = [const { AtomicU16::new(0) }; SLOTS];
/// Bytes that `fill` has sent from a slot.
pub static FILLED: [AtomicU64; SLOTS] = [const { AtomicU64::new(0) }; SLOTS];

/// The ends of an actor's pipes: where it reads commands, where they are written, where results are
/// read, where it writes them.
#[derive(Clone, Copy)]
pub struct Pipes {
    /// The actor reads commands here.
    pub commands: i32,
    /// The director writes them here.
    pub command: i32,
    /// The director reads results here.
    pub results: i32,
    /// The actor writes them here.
    pub result: i32,
}

impl Pipes {
    /// Those of an actor.
    pub fn of(actor: Actor) -> Self {
        let first = FIRST_PIPE + 4 * i32::try_from(actor.index()).unwrap_or(0);
        Self { commands: first, command: first + 1, results: first + 2, result: first + 3 }
    }
}

/// The descriptor in a slot; -1 if there never was one.
pub fn descriptor(slot: Slot) -> i32 {
    DESCRIPTORS[slot.index()].load(Ordering::SeqCst)
}

/// Puts a descriptor into a slot, with the port that it is bound to, if any.
pub fn put(slot: Slot, fd: i32) {
    DESCRIPTORS[slot.index()].store(fd, Ordering::SeqCst);
    note_port(slot);
}

/// Remembers the local port of a slot's socket.
pub fn note_port(slot: Slot) {
    let mut bytes = [0; address::ROOM];
    let (returned, length) = raw::name(raw::Naming::Own, descriptor(slot), &mut bytes, address::ROOM);
    let port = if returned.is_ok() { address::port(&bytes, length) } else { None };
    PORTS[slot.index()].store(port.unwrap_or(0), Ordering::SeqCst);
}

/// The port that a slot's socket was bound to last.
pub fn port(slot: Slot) -> u16 {
    PORTS[slot.index()].load(Ordering::SeqCst)
}

/// Carries out commands until the director goes away.
pub fn serve(actor: Actor) {
    let pipes = Pipes::of(actor);
    // SAFETY: numbers only.
    let (process, thread) = unsafe { (libc::getpid(), libc::gettid()) };
    say(pipes, &format!("+ {process} {thread}"));
    let mut left = Vec::new();
    while let Some(line) = line(pipes.commands, &mut left) {
        if line == "reset" {
            reset();
            say(pipes, "=");
            continue;
        }
        let mut words = line.split_whitespace();
        let index = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
        let start = words.next() == Some("1");
        let Some(operation) = Operation::read(&mut words) else {
            say(pipes, "= no such operation");
            continue;
        };
        if start {
            say(pipes, ">");
        }
        let result = result(actor, index, &operation);
        say(pipes, &format!("= {result}"));
        if let Operation::Exit { status } = operation {
            // SAFETY: nothing of this process is left to be done; a child of `fork` must not run
            // what its parent registered.
            unsafe { libc::_exit(i32::try_from(status).unwrap_or(1)) };
        }
    }
}

fn result(actor: Actor, index: usize, operation: &Operation) -> String {
    let before = signals::counts();
    let text = calls::perform(index, operation)
        .or_else(|| messages::perform(index, operation))
        .or_else(|| readiness::perform(operation))
        .or_else(|| processes::perform(actor, operation))
        .unwrap_or_else(|| "not an operation".to_owned());
    let after = signals::counts();
    let interrupts = match after.interrupts - before.interrupts {
        0 => String::new(),
        count => format!(" !{count}"),
    };
    let pipe = if after.pipes > before.pipes { " sigpipe" } else { "" };
    format!("{text}{interrupts}{pipe}")
}

/// Closes what a program left behind.
fn reset() {
    raw::close_range(3, u32::try_from(FIRST_PIPE - 1).unwrap_or(0));
    for slot in 0..SLOTS {
        DESCRIPTORS[slot].store(-1, Ordering::SeqCst);
        PORTS[slot].store(0, Ordering::SeqCst);
        FILLED[slot].store(0, Ordering::SeqCst);
    }
    signals::install(false);
}

/// Goes on after `exec`: the actor, then the descriptor and port of each slot.
pub fn go_on(arguments: &[String]) -> ExitCode {
    let number = |index: usize| arguments.get(index).and_then(|word| word.parse::<i32>().ok()).unwrap_or(-1);
    let Ok(child) = u8::try_from(number(0)) else { return ExitCode::FAILURE };
    for slot in 0..SLOTS {
        DESCRIPTORS[slot].store(number(1 + 2 * slot), Ordering::SeqCst);
        PORTS[slot].store(u16::try_from(number(2 + 2 * slot)).unwrap_or(0), Ordering::SeqCst);
    }
    signals::install(false);
    serve(Actor::Child(child));
    ExitCode::SUCCESS
}

/// The arguments of [`go_on`].
pub fn arguments(child: u8) -> Vec<String> {
    let mut arguments = vec!["--go-on".to_owned(), child.to_string()];
    for slot in 0..SLOTS {
        arguments.push(DESCRIPTORS[slot].load(Ordering::SeqCst).to_string());
        arguments.push(PORTS[slot].load(Ordering::SeqCst).to_string());
    }
    arguments
}

/// Writes a line to the director.
pub fn say(pipes: Pipes, line: &str) {
    write_line(pipes.result, line);
}

/// Writes a line into a pipe. Nobody listens: nothing can be done.
pub fn write_line(fd: i32, line: &str) {
    let text = format!("{line}\n");
    let mut bytes = text.as_bytes();
    while !bytes.is_empty() {
        match raw::write(fd, bytes).0 {
            Ok(0) => return,
            Ok(length) => bytes = &bytes[usize::try_from(length).unwrap_or(0)..],
            Err(libc::EINTR) => {}
            Err(_) => return,
        }
    }
}

/// The next line of a pipe; none at its end. `left` is what was read beyond it.
pub fn line(fd: i32, left: &mut Vec<u8>) -> Option<String> {
    loop {
        if let Some(line) = take_line(left) {
            return Some(line);
        }
        let mut bytes = [0; 1024];
        match raw::read(fd, &mut bytes).0 {
            Err(libc::EINTR) => {}
            Ok(length) if length > 0 => {
                left.extend_from_slice(&bytes[..usize::try_from(length).unwrap_or(0)]);
            }
            _ => return None,
        }
    }
}

/// The first whole line of what has been read.
pub fn take_line(left: &mut Vec<u8>) -> Option<String> {
    let end = left.iter().position(|byte| *byte == b'\n')?;
    let line = String::from_utf8_lossy(&left[..end]).into_owned();
    left.drain(..=end);
    Some(line)
}
