//! The executor: reads programs from its standard input, carries them out, and prints a line for
//! each step.
//!
//! 1. One process has a [`director`] (its first thread) and the actors `m`, `t1` and `t2`. A step
//!    `fork` makes the children `c1` and `c2`. Each actor reads commands from one pipe and writes
//!    results to another ([`actor`]). The pipes have descriptors from [`pipes::FIRST_PIPE`] on, so
//!    that a program gets the descriptors that it would get without the executor.
//! 2. The director interrupts a call that has not returned after a *tick*. The handler of the first
//!    signal may restart calls (step `restart`); those of later signals, one each tick, never do.
//!    So a call that would sleep for ever has a result, too, and every blocking call is tested with
//!    signals.
//! 3. A step `start` returns once the thread of its call sleeps. After each step the director waits
//!    until every started call sleeps again or has returned: the program alone decides the order of
//!    events.
//! 4. After a program the director kills every child and closes every descriptor.

mod actor;
mod address;
mod descriptors;
mod director;
mod errno;
mod files;
mod mappings;
mod pipes;
mod processes;
mod readiness;
mod signals;
mod slots;
mod streams;
mod syscalls;
mod transfer;

use std::process::ExitCode;

/// The executor's `main`: the director, or after a step `exec` the actor of the child.
pub fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.get(1).map(String::as_str) {
        Some(processes::AFTER_EXEC) => actor::continue_after_exec(&arguments[2..]),
        _ => director::run(),
    }
}
