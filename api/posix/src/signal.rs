//! HEADER

pub(crate) mod disposition;
pub(crate) mod faults;
pub(crate) mod handlers;
pub(crate) mod longjmp;
pub(crate) mod user_memory;
