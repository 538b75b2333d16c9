//! Signals: dispositions, handlers of the program, faults, and jumps out of handlers.

pub(crate) mod disposition;
pub(crate) mod faults;
pub(crate) mod handlers;
pub(crate) mod longjmp;
pub(crate) mod user_memory;
