//! The socket service: how unmodified programs on one host come to connections that no kernel
//! carries.
//!
//! 1. A program asks over a Unix socket ([`sietch_protocol::socket_service`]): to listen (it hands
//!    over the kernel's listening socket), to connect, or what a socket is that it inherited. Who
//!    it is, the kernel says.
//! 2. [`table`] knows who listens where and who is connected to whom: names, numbers and limits,
//!    sans-I/O.
//! 3. A listener has a pair of sockets; the program's end is its placeholder. Whoever connects,
//!    over the kernel or over Sietch, arrives there as one message with descriptors
//!    ([`listeners`]), as many as the kernel would let wait ([`backlog`]). Other ports of the host
//!    may lead there too ([`publish`]).
//! 4. A connection between two programs under Sietch is memory that the service makes and gives to
//!    exactly these two ([`sietch_ring::stream::Memory`]), and a pair of sockets that sleep, wake
//!    and notice death. The service is then out of the path.
//! 5. It keeps the memory's descriptors ([`registry`]), so that a program can have them again after
//!    `exec` or `SCM_RIGHTS`, until both placeholders are gone.
//! 6. One thread ([`run`]) sleeps until somebody asks. Each application's share of a turn, and of
//!    everything else, is bounded ([`limits`]).
//! 7. An administrator may list and revoke ([`administration`]), and a new service takes everything
//!    over from the old one.
//!
//! What a request does not get here, it gets from the kernel: every limit, and the end of this
//! service, mean that new connections are the kernel's. `docs/spec/sockets.md` is the reference.

pub mod administration;
mod backlog;
mod closer;
mod counters;
mod elsewhere;
mod ends;
mod expendable;
mod handover;
mod kernel;
pub mod limits;
mod listeners;
mod publish;
pub mod registry;
mod requests;
pub(crate) mod revoked;
mod run;
pub mod table;
mod users;

pub use closer::{ListenerPair, Sent};
pub use counters::{Board, Counters, Shown};
pub use limits::raise_descriptors;
pub use sietch_protocol::socket_service::{Action, Rule, Rules};
pub use sietch_ring::stream::RegionSizes;

use sietch_protocol::socket_service::Build;

/// This build, for who says hello.
pub const BUILD: Build = Build::own(sietch_ring::stream::MAGIC);

pub use run::{Command, Options, Paired, Registrar, Source, run};
