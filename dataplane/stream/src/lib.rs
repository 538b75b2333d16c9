//! The protocol of connections through shared memory, above the memory itself: one implementation
//! for the library of unmodified programs (`api/posix`) and for programs that link Sietch
//! (`api/sietch`).
//!
//! A connection has an *end* in memory ([`sietch_ring::stream::Endpoint`]) and a *placeholder*: a
//! Unix socket whose other end the peer holds.
//!
//! 1. **Set-up** ([`service`]). A program passes a kernel's socket to the socket service, to listen
//!    or to connect. It receives a placeholder, and for a connection the memory. Every answer is
//!    an offer: if the service is absent or refuses, the kernel's socket serves.
//! 2. **Registration** ([`registration`]). The program keeps the kernel's listening socket open, so
//!    that a listener outlives the service. While no service runs, that socket serves, and is
//!    offered to the service at a fixed pace.
//! 3. **Doorbells** ([`peer`], [`doorbell`]). A byte on the placeholder wakes every thread that
//!    sleeps at that end, and means "check the memory again". The last byte is taken only where no
//!    other waiter is counted.
//! 4. **The end of the peer** ([`peer`]). The kernel alone says that no process holds the other
//!    end: its placeholder hangs up. A hint in memory says when to ask.
//! 5. **Outcomes** ([`outcome`]). What a send, a receive or a shutdown returns in each state, in
//!    the order of Linux: bytes first, then the error once, then the end.
//! 6. **Readiness** ([`readiness`]). What `poll(2)` would return, from memory alone.
//! 7. **Shortage** ([`relay`](mod@relay)). A program that cannot map a connection has a kernel's
//!    socket instead, to which the service relays.
//! 8. **Foreign bytes** ([`foreign_bytes`]). Bytes on a placeholder that no end has written prove a
//!    program that bypasses its library. The connection is reset.
//!
//! Programs that link Sietch use these rules through [`Connection`], [`Listener`] and
//! [`poller::Poller`], in a loop of their own or in the runtime of `api/sietch`.
//!
//! The system calls go through a small trait ([`placeholder::Placeholder`],
//! [`service::SocketService`]), because an unmodified program may be restricted by seccomp or near
//! its limit of descriptors. [`placeholder::Direct`] and [`service::DirectService`] make them
//! without the C library.
//!
//! The rules never allocate, never block but for the service's answer, and never call a function of
//! the C library that `api/posix` replaces. Everything that the peer or the service sent is a copy
//! that was checked once. Nothing here knows descriptor tables, signals or epoll sets: those are
//! `api/posix`. Of fork it knows that a child leaves its parent's connections alone.
//!
//! `docs/spec/stream.md` and `docs/spec/sockets.md` are the references.
#![forbid(unsafe_code)]

mod connection;
pub mod doorbell;
mod flags;
pub mod foreign_bytes;
pub mod limits;
mod listener;
pub mod outcome;
pub mod peer;
pub mod placeholder;
pub mod poller;
pub mod readiness;
pub mod registration;
mod relay;
pub mod service;

pub use connection::{Connection, MOST_WAITING, Path, Space};
pub use flags::PEER_SHUT_READ;
pub use listener::{Arrived, Listener};
pub use relay::relay;

#[cfg(test)]
mod tests;
