//! `exec`, `exit`, whether signals restart calls, and the ends of children.

use std::ffi::CString;

use super::errno::Returned;
use super::{errno, signals, slots};
use crate::operation::Operation;
use crate::program::Actor;

/// The first argument of an executor that continues after `exec`.
pub(super) const AFTER_EXEC: &str = "--after-exec";

/// Carries out an operation of this module; none if it is of another.
pub(super) fn perform(actor: Actor, operation: &Operation) -> Option<String> {
    Some(match *operation {
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

fn execute(child: u8) -> String {
    let mut words = vec!["sietch-socket-calls".to_owned(), AFTER_EXEC.to_owned()];
    words.extend(exec_arguments(child));
    let words: Vec<_> = words.into_iter().filter_map(|word| CString::new(word).ok()).collect();
    let mut pointers: Vec<_> = words.iter().map(|word| word.as_ptr()).collect();
    pointers.push(std::ptr::null());
    // SAFETY: a path and a list of words, each ending with a zero, the list with a null pointer.
    let value = unsafe { libc::execv(c"/proc/self/exe".as_ptr(), pointers.as_ptr()) };
    Returned::of(value).to_string()
}

/// The state that a child takes through `exec`: its number, then the slots.
pub(super) fn exec_arguments(child: u8) -> Vec<String> {
    std::iter::once(child.to_string()).chain(slots::arguments()).collect()
}

/// Kills a child and waits for it.
pub(super) fn kill(process: i32) {
    // SAFETY: numbers only; the child has not been waited for, so the number is still its own.
    unsafe { libc::kill(process, libc::SIGKILL) };
    wait(process, true);
}

/// How a child ended; none if it still runs and `block` is false.
pub(super) fn wait(process: i32, block: bool) -> Option<String> {
    let mut status = 0;
    loop {
        // SAFETY: the status outlives the call.
        let ended = unsafe { libc::waitpid(process, &raw mut status, if block { 0 } else { libc::WNOHANG }) };
        match Returned::of(ended).0 {
            Err(libc::EINTR) => {}
            Err(errno) => return Some(errno::name(errno)),
            Ok(0) => return None,
            Ok(_) if libc::WIFEXITED(status) => return Some(format!("exited {}", libc::WEXITSTATUS(status))),
            Ok(_) => return Some(format!("killed by signal {}", libc::WTERMSIG(status))),
        }
    }
}
