//! How applications, the daemon and the command line talk: messages, frames, file descriptors.
//!
//! 1. The transport is a Unix stream socket. A frame is a length and a JSON text ([`frame`]); file
//!    descriptors ride on a frame's first byte. Everything is bounded, so a hostile peer costs a
//!    bounded amount.
//! 2. The first request is [`Request::Hello`]; both sides refuse a version they do not speak.
//! 3. A request carries an id that its reply repeats. [`Notice`]s come unasked, between replies.
//! 4. Who the client *is*, the daemon learns from the kernel (SO_PEERCRED, pidfd), never from a
//!    message. Administrators have a socket of their own ([`administration`]).
//! 5. Counters do not travel as messages: an application publishes a sealed memfd once
//!    ([`metrics`]), and the daemon reads it when somebody asks.
//! 6. What an application says of its sockets when it is asked ([`sockets`]) travels in a sealed
//!    memfd as well: ten thousand of them are one frame.
//! 7. Volumes and their storage areas have their own vocabulary ([`storage`]).
//! 8. Bytes of areas and of views travel in sealed memfds ([`sealed`]).
//! 9. What the holder of an area shows of it is a tree of files ([`view`]).
//! 10. Unmodified programs come to their sockets by messages of a fixed size ([`socket_service`]),
//!     over a socket of its own.
//!
//! `docs/spec/control-protocol.md` is the reference for all of it, `docs/spec/sockets.md` for the
//! last.
#![forbid(unsafe_code)]

pub mod administration;
pub mod connection;
pub mod frame;
pub mod message;
pub mod metrics;
pub mod sealed;
pub mod socket_service;
pub mod sockets;
pub mod storage;
pub mod types;
pub mod view;

pub use connection::{CallError, Connection, SharedDescriptors, VnicDescriptors};
pub use frame::{Frame, FrameError, FrameReader, FrameWriter, Progress};
pub use message::{
    AdoptedGrant, Capturing, ErrorKind, ErrorReply, GrantStatus, HeldGrant, LinkPeer, Notice, PortGrant,
    Reply, Request, ServerFrame, SocketsAnswer, Stat, StatGroup, Status, Target, VnicGrant, VnicStatus,
    VsaGrant, VsaStatus, Welcome,
};
pub use sockets::{SocketReport, SocketState, TcpReport, Transport};
pub use storage::{
    AreaExtent, AreaGrant, AreaPage, AreaStatus, BrokerShape, HeldArea, HeldStorage, MAIN_VOLUME,
    MemoryModel, QuotaStatus, VolumeKind, VolumeStatus,
};
pub use types::{
    Mac, Network, Network6, PortRange, Protection, QueueLayout, Rate, SharedLayout, VnicKind, XskLayout,
};
pub use view::{
    FileAttributes, FileKind, ViewEntry, ViewError, ViewOperation, ViewPage, ViewReply, ViewRequest,
};

/// The version of messages and frames. A daemon and a client whose versions differ do not talk.
pub const PROTOCOL: u32 = 5;

/// Under this name a service core shows what it counts of the sockets of unmodified programs; its
/// other pages are named after grants.
pub const SOCKETS_PAGE: &str = "sockets";
