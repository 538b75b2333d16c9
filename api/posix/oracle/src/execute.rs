//! The executor: reads programs from its standard input, carries them out, prints a line for each
//! step.
//!
//! 1. One process holds a [`director`] (its first thread) and the actors `m`, `t1` and `t2`; `c1`
//!    and `c2` are children that a step `fork` makes. Each actor waits for commands on a pipe of
//!    its own and answers on another ([`actor`]). All pipes have numbers from [`actor::FIRST_PIPE`]
//!    on, so that programs see the descriptors that they would see without the executor.
//! 2. A call that has not returned after a *tick* is interrupted by a signal whose handler may
//!    restart calls (step `restart`), after one more tick by one whose handler never does. So a
//!    call that would sleep for ever has a result, too, and every blocking call is tried with
//!    signals.
//! 3. A call that is started (`start`) is given time until its thread sleeps. After each step the
//!    director waits until every call that was started sleeps again or has returned: the order of
//!    things is the program's alone.
//! 4. After a program every child is killed and every descriptor closed.

pub mod actor;
mod address;
mod calls;
mod director;
mod errno;
mod messages;
mod processes;
mod raw;
mod readiness;
mod signals;

use std::process::ExitCode;

/// The executor's `main`: the director, or (after a step `exec`) a child that goes on.
pub fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.get(1).map(String::as_str) {
        Some("--go-on") => actor::go_on(&arguments[2..]),
        _ => director::run(),
    }
}
