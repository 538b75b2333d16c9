//! The socket service: how unmodified programs on one host get connections that bypass the kernel.
//!
//! 1. A program sends requests over a Unix socket ([`sietch_protocol::socket_service`]). It sends
//!    one to listen (with the kernel's listening socket), to connect, or to learn what an inherited
//!    socket is. The kernel says which user it is.
//! 2. `table` knows which application listens where, and which are connected: names, numbers and
//!    limits, sans-I/O.
//! 3. A listener has a pair of sockets; the program's end is its placeholder. Each connection, from
//!    the kernel or from Sietch, arrives there as one message with descriptors (`listeners`), and
//!    as many wait as the kernel would let wait. Other ports of the host may lead there too.
//! 4. A connection between two programs under Sietch is memory that the service makes and gives to
//!    exactly these two ([`sietch_ring::stream::Memory`]). Over a pair of sockets they sleep, wake
//!    and notice death. Then the service is out of the path.
//! 5. The service keeps the memory's descriptors (`registry`) until both placeholders are closed,
//!    so that a program can have them again after `exec` or `SCM_RIGHTS`.
//! 6. One thread ([`mod@run`]) sleeps until there is something to do. Each application's share of
//!    an iteration, and of everything else, is bounded ([`limits`]).
//! 7. An administrator may list and revoke, and a new service takes everything over from the old
//!    one (`state_transfer`).
//!
//! A request that this service does not serve goes to the kernel. At a limit, and after the end of
//! this service, new connections are the kernel's. `docs/spec/sockets.md` is the reference.
//!
//! Layers, lowest first; each file imports only from those below it:
//!
//! ```text
//! run                                     the loop
//! intake                                  admits and reads requests
//! requests/*  state_transfer              judge and answer them; everything to a successor
//! listeners  listeners/{backlog,publish}  deliver connections
//! state                                   the state of the loop
//! answer  commands  listeners/entry       what the state consists of
//! registry  table  kernel  relays         memory, names, sockets of the kernel
//! limits  metrics  build
//! ```

mod answer;
mod build;
mod commands;
mod intake;
mod kernel;
pub mod limits;
mod listeners;
mod metrics;
mod registry;
mod relays;
mod requests;
mod run;
mod state;
mod state_transfer;
mod table;

pub use crate::requests::application::{Application, Connection, Names, page_names};
pub use crate::requests::descriptors::{ListenerPair, RequestDescriptors};
pub use crate::requests::listing::{
    ListedApplication, ListedConnection, ListedListener, Listing, Revocation,
};
pub use build::BUILD;
pub use commands::{Command, CommandSender, LocalConnection};
pub use metrics::{Counters, SocketReport};
pub use run::{Options, Source, run};
pub use sietch_protocol::socket_service::Rules;
pub use sietch_ring::stream::RegionSizes;
