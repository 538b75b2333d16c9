//! Calls that wait for several descriptors: `epoll_wait`, `poll` and `select`.
//!
//! 1. A wait sleeps in the kernel, on the program's own descriptors. An epoll is the kernel's
//!    epoll; in it, or in the array of a `ppoll`, each stream is represented by its placeholder. A
//!    placeholder becomes readable when the peer notifies, and hangs up when the last holder of the
//!    peer's end is closed. Timeouts, masks and signals are therefore the kernel's.
//! 2. The peer notifies only ends that are *armed*. Arm, check once more, sleep: no event is lost
//!    ([`crate::readiness`]).
//! 3. A thread that is awake checks shared memory, and makes no system call as long as it finds
//!    something ([`epoll`], [`mod@poll`], [`mod@select`]). It polls the kernel periodically, so
//!    that kernel descriptors are never forgotten.
//! 4. Before a thread sleeps it polls for a while, as long as experience says that it pays
//!    ([`crate::connection::spin`]).
//! 5. An epoll of kernel descriptors alone goes straight to the kernel. So do listeners: their
//!    placeholders are readable when a connection has come.
//! 6. A handler of the program ends a wait also while it polls ([`crate::signal::handlers`]).
//!
//! Two things differ from Linux. Parent and child of a fork may both continue to use an epoll. Each
//! is then notified of the registrations that it has made or inherited
//! ([`crate::readiness::set::sharing`]).

pub(crate) mod epoll;
pub(crate) mod kernel_only;
pub(crate) mod memory;
pub(crate) mod output;
pub(crate) mod poll;
pub(crate) mod scan;
pub(crate) mod select;
pub(crate) mod sliced;

#[cfg(test)]
mod tests;
