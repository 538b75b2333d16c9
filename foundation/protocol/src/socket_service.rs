//! The set-up protocol of the socket service: how an unmodified program's sockets get their
//! connections.
//!
//! 1. The transport is a Unix SEQPACKET socket. A request is one message of [`REQUEST_BYTES`]
//!    bytes, its answer one of [`REPLY_BYTES`]; descriptors ride on both. A connection carries one
//!    request, so that no descriptor remains open without the program's knowledge ([`call`]).
//! 2. A listener has a *placeholder*, one end of a SEQPACKET pair. Each connection arrives over it
//!    as one [`Arrival`] with its descriptors ([`receive_arrival`]). The other direction carries
//!    [`BacklogChange`]. So `accept` is a `recvmsg`, and the kernel keeps its semantics.
//! 3. Messages have a fixed size, a magic number and a version. Both sides copy a message once and
//!    check the copy. The service trusts no application, and an application accepts no answer that
//!    does not match its request.
//! 4. Everything here runs inside the calls of foreign programs: no allocation, no panic, no lock.
//!    An interrupted call is repeated, and every descriptor is closed on `exec`. The service learns
//!    the caller's identity from the kernel (SO_PEERCRED), never from a message.
//!
//! `docs/spec/sockets.md` is the reference.

mod build;
mod client;
mod limits;
mod messages;
mod name;
mod publish;
mod rule;
#[cfg(test)]
mod tests;

pub use build::{BUILD_BYTES, Build, SECTION as BUILD_SECTION};
pub use client::{
    Descriptors, HelloReply, Incoming, call, call_on, change_backlog, greet, receive_all, receive_arrival,
    receive_first, receive_message, receive_sole_arrival, send_message, take_kernel_socket,
};
pub use limits::{
    ANSWER_MS, APPLICATION_VARIABLE, ARRIVAL_BYTES, FILES_VARIABLE, MAX_DESCRIPTORS, REPLY_BYTES,
    REQUEST_BYTES, SHORT_LIVED_VARIABLE, SOCKET_NAME, SOCKET_VARIABLE, VERSION, VNIC_VARIABLE,
};
pub use messages::{
    Arrival, ArrivalKind, BACKLOG_CHANGE_BYTES, BacklogChange, INFORMATION_BYTES, Malformed, ONLY_IPV6,
    REJOIN, RESET_UNTIL_ACCEPTED, REUSED_ADDRESS, Reply, ReplyKind, Request, RequestKind, SHARED_PORT,
};
pub use name::Name;
pub use publish::{MAX_PUBLISHED, MAX_PUBLISHED_PER_PORT, PUBLISH_VARIABLE, Published, SocketFamily};
pub use rule::{Action, Rule, RuleError, RuleNetwork, Rules};
