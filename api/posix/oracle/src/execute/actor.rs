//! An actor: carries out the commands that it receives, in order, and answers each with a result.
//!
//! 1. A command is `INDEX START OPERATION`. If `START` is 1 the actor writes `>` before the call.
//!    After the call it writes `= RESULT`.
//! 2. The first line of an actor is `+ PROCESS THREAD`. The command `reset` closes every descriptor
//!    of a program; its answer is `=`.
//! 3. A result ends with ` !N` if N signals of the director interrupted the call, and with `
//!    sigpipe` or ` sigxfsz` if the call raised that signal.

use std::process::ExitCode;

use super::errno::Returned;
use super::pipes::{self, FIRST_PIPE, Pipes};
use super::{
    descriptors, files, mappings, processes, readiness, signals, slots, streams, syscalls, transfer,
};
use crate::operation::Operation;
use crate::program::Actor;

/// Carries out commands until the director closes its end of the pipe.
pub(super) fn serve(actor: Actor) {
    let pipes = Pipes::of(actor);
    // SAFETY: numbers only.
    let (process, thread) = unsafe { (libc::getpid(), libc::gettid()) };
    pipes.answer(&format!("+ {process} {thread}"));
    let mut buffered = Vec::new();
    while let Some(line) = pipes::read_line(pipes.commands, &mut buffered) {
        if line == "reset" {
            reset();
            pipes.answer("=");
            continue;
        }
        let mut words = line.split_whitespace();
        let index = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
        let start = words.next() == Some("1");
        let Some(operation) = Operation::read(&mut words) else {
            pipes.answer("= no such operation");
            continue;
        };
        if start {
            pipes.answer(">");
        }
        let result = result(actor, index, &operation);
        pipes.answer(&format!("= {result}"));
        if let Operation::Exit { status } = operation {
            // SAFETY: nothing of this process is left to be done; a child of `fork` must not run
            // what its parent registered.
            unsafe { libc::_exit(i32::try_from(status).unwrap_or(1)) };
        }
    }
}

fn result(actor: Actor, index: usize, operation: &Operation) -> String {
    let before = signals::counts();
    let text = descriptors::perform(index, operation)
        .or_else(|| transfer::perform(index, operation))
        .or_else(|| readiness::perform(operation))
        .or_else(|| files::perform(index, operation))
        .or_else(|| mappings::perform(index, operation))
        .or_else(|| streams::perform(index, operation))
        .or_else(|| processes::perform(actor, operation))
        .or_else(|| match operation {
            Operation::Fork { child } => Some(fork(u8::try_from(*child).unwrap_or(1))),
            _ => None,
        })
        .unwrap_or_else(|| "not an operation".to_owned());
    let after = signals::counts();
    let interrupts = match after.interrupts - before.interrupts {
        0 => String::new(),
        count => format!(" !{count}"),
    };
    let pipe = if after.pipes > before.pipes { " sigpipe" } else { "" };
    let limit = if after.limits > before.limits { " sigxfsz" } else { "" };
    format!("{text}{interrupts}{pipe}{limit}")
}

/// Forks; the child is an actor of its own.
fn fork(child: u8) -> String {
    // SAFETY: the child runs `serve` alone, with libc calls and allocations, which glibc makes
    // usable after `fork`; it never returns to the code of its parent.
    let process = unsafe { libc::fork() };
    if process == 0 {
        // SAFETY: numbers only. The child ends with the executor.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        serve(Actor::Child(child));
        // SAFETY: the child must not run what its parent registered for its end.
        unsafe { libc::_exit(0) };
    }
    match Returned::of(process).0 {
        Ok(_) => "forked".to_owned(),
        error => Returned(error).to_string(),
    }
}

/// Closes every descriptor that a program left open.
fn reset() {
    files::reset();
    mappings::reset();
    streams::reset();
    syscalls::close_range(3, u32::try_from(FIRST_PIPE - 1).unwrap_or(0));
    slots::clear();
    signals::install(false);
}

/// Continues after `exec`. `arguments` are those of [`processes::exec_arguments`].
pub(super) fn continue_after_exec(arguments: &[String]) -> ExitCode {
    let child = arguments.first().and_then(|word| word.parse::<u8>().ok());
    let Some(child) = child else { return ExitCode::FAILURE };
    slots::restore(&arguments[1..]);
    signals::install(false);
    serve(Actor::Child(child));
    ExitCode::SUCCESS
}
