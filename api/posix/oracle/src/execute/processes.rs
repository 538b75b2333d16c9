//! `fork`, `exec`, `exit`, and what signals do to calls.

use std::ffi::CString;

use super::actor::{self, Pipes};
use super::errno::Returned;
use super::signals;
use crate::operation::Operation;
use crate::program::Actor;

/// Carries out an operation of this module; none if it is of another.
pub fn perform(actor: Actor, operation: &Operation) -> Option<String> {
    Some(match *operation {
        Operation::Fork { child } => fork(u8::try_from(child).unwrap_or(1)),
        Operation::Execute {} => match actor {
            Actor::Child(number) => execute(number),
            _ => "not a child".to_owned(),
        },
        Operation::Exit { .. } => "exits".to_owned(),
        Operation::Restart { on } => {
            signals::install(on != 0);
            "0".to_owned()
        }
        _ => return None,
    })
}

fn fork(child: u8) -> String {
    // SAFETY: the child runs `serve` alone, with libc calls and allocations, which glibc makes
    // usable after `fork`; it never returns to the code of its parent.
    let process = unsafe { libc::fork() };
    if process == 0 {
        // SAFETY: numbers only. The child ends with the executor.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        actor::serve(Actor::Child(child));
        // SAFETY: the child must not run what its parent registered for its end.
        unsafe { libc::_exit(0) };
    }
    match Returned::of(process).0 {
        Ok(_) => "forked".to_owned(),
        error => Returned(error).to_string(),
    }
}

fn execute(child: u8) -> String {
    let mut words = vec!["sietch-socket-calls".to_owned()];
    words.extend(actor::arguments(child));
    let words: Vec<_> = words.into_iter().filter_map(|word| CString::new(word).ok()).collect();
    let mut pointers: Vec<_> = words.iter().map(|word| word.as_ptr()).collect();
    pointers.push(std::ptr::null());
    // SAFETY: a path and a list of words, each ending with a zero, the list with a null pointer.
    let value = unsafe { libc::execv(c"/proc/self/exe".as_ptr(), pointers.as_ptr()) };
    Returned::of(value).to_string()
}

/// Makes the pipes of an actor at their numbers.
pub fn make_pipes(actor: Actor) -> bool {
    let pipes = Pipes::of(actor);
    [(pipes.commands, pipes.command), (pipes.results, pipes.result)].into_iter().all(|(reader, writer)| {
        let (made, ends) = super::raw::pipe(0);
        let placed = made.is_ok()
            && super::raw::dup2(ends[0], reader).is_ok()
            && super::raw::dup2(ends[1], writer).is_ok();
        super::raw::close(ends[0]);
        super::raw::close(ends[1]);
        placed
    })
}

/// Kills a child and waits for it.
pub fn kill(process: i32) {
    // SAFETY: numbers only; the child has not been waited for, so the number is still its own.
    unsafe { libc::kill(process, libc::SIGKILL) };
    wait(process, true);
}

/// How a child ended: none if it has not (and `block` is false).
pub fn wait(process: i32, block: bool) -> Option<String> {
    let mut status = 0;
    loop {
        // SAFETY: the status outlives the call.
        let ended = unsafe { libc::waitpid(process, &raw mut status, if block { 0 } else { libc::WNOHANG }) };
        match Returned::of(ended).0 {
            Err(libc::EINTR) => {}
            Err(errno) => return Some(super::errno::name(errno)),
            Ok(0) => return None,
            Ok(_) if libc::WIFEXITED(status) => return Some(format!("exited {}", libc::WEXITSTATUS(status))),
            Ok(_) => return Some(format!("killed by signal {}", libc::WTERMSIG(status))),
        }
    }
}
