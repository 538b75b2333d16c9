//! Readiness: the checks, and the library's part of epoll sets.
//!
//! 1. An epoll is the kernel's. Beside it the library keeps an *epoll set* for the streams that are
//!    registered in it ([`set`], [`control`]). In the kernel's epoll each stream is represented by
//!    its placeholder.
//! 2. A registration is checked in shared memory ([`check`], [`mod@peek`]). Before a thread sleeps
//!    it *arms* the registrations ([`arm`]): the peer writes a doorbell byte only for an end that
//!    is armed. Arm, check once more, sleep: no event is lost.
//! 3. Registrations follow their descriptors: closing, replacing and fork are in [`hooks`], exec in
//!    [`inherit`].
//!
//! Nothing in this folder blocks; that is [`crate::wait`].

pub(crate) mod arm;
pub(crate) mod check;
pub(crate) mod control;
pub(crate) mod hooks;
pub(crate) mod inherit;
pub(crate) mod nested;
pub(crate) mod peek;
pub(crate) mod polling;
pub(crate) mod replace;
pub(crate) mod revise;
pub(crate) mod set;
pub(crate) mod settle;
pub(crate) mod tag;
