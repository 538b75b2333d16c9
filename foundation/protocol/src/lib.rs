//! The messages between applications, the daemon, service cores and the command line, and how they
//! travel.
//!
//! 1. The transport is a Unix stream socket. A frame is a length and a JSON text ([`frame`]); file
//!    descriptors ride on a frame's first byte. Everything is bounded, so a hostile peer costs a
//!    bounded amount.
//! 2. The first request is [`Request::Hello`]. Both sides refuse a version that is not theirs.
//! 3. A request carries an id that its reply repeats. A [`Notice`] is sent without a request,
//!    between replies.
//! 4. The daemon identifies a client by the kernel's word (SO_PEERCRED, pidfd), never by a message.
//!    Administrators have a socket of their own ([`administration`]).
//! 5. Counters do not travel as messages: an application shares a sealed memfd once ([`metrics`]),
//!    and the daemon reads it on demand.
//! 6. Reports of sockets ([`sockets`]) travel in a sealed memfd as well: ten thousand of them are
//!    one frame.
//! 7. Volumes and their storage areas have their own types ([`storage`]).
//! 8. Bytes of areas and of views travel in sealed memfds ([`sealed`]).
//! 9. What a process that is not trusted sends is closed by threads that may hang ([`closer`]).
//! 10. The holder of an area can serve its contents as a tree of files ([`view`]).
//! 11. Unmodified programs set up their sockets with messages of a fixed size ([`socket_service`]),
//!     over a socket of its own.
//!
//! `docs/spec/control-protocol.md` is the reference for all of it, `docs/spec/sockets.md` for the
//! last. An application usually goes through the crate `sietch`; this is the layer below:
//!
//! ```no_run
//! use std::path::Path;
//! use sietch_protocol::Connection;
//! use sietch_protocol::connection::DEFAULT_TIMEOUT;
//!
//! let path = Path::new("/run/sietch/sietch.sock");
//! let mut daemon = Connection::connect(path, "example", DEFAULT_TIMEOUT)?;
//! for area in daemon.vsas()? {
//!     println!("{}: {} bytes", area.path, area.size);
//! }
//! # Ok::<(), sietch_protocol::CallError>(())
//! ```
//!
//! The layers, lowest first; a module imports only from those below:
//!
//! ```text
//! connection   closer                  a client's connection to the daemon; closing what was sent
//! message
//! storage   view   socket_service
//! frame
//! types     limits   metrics   sealed   sockets   administration
//! ```
#![forbid(unsafe_code)]

pub mod administration;
pub mod closer;
pub mod connection;
pub mod frame;
mod limits;
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
    AdoptedGrant, Capturing, ErrorKind, ErrorReply, HeldGrant, LinkPeer, Notice, PortGrant, Reply, Request,
    ServerFrame, SocketsAnswer, Stat, StatGroup, Status, Target, VnicGrant, VnicStatus, VsaGrant, VsaStatus,
    Welcome,
};
pub use sockets::{SocketReport, SocketState, TcpReport, Transport};
pub use storage::{
    AreaExtent, AreaGrant, AreaPage, AreaStatus, AreaUsage, BrokerShape, HeldArea, HeldStorage, MAIN_VOLUME,
    MemoryModel, QuotaStatus, VolumeKind, VolumeStatus,
};
pub use types::{
    GrantStatus, Mac, Network, Network6, PortRange, Protection, QueueLayout, Rate, SharedLayout, VnicKind,
    XskLayout,
};
pub use view::{
    FileAttributes, FileKind, ViewEntry, ViewError, ViewOperation, ViewPage, ViewReply, ViewRequest,
};

/// The version of messages and frames. A daemon and a client whose versions differ do not talk.
pub const PROTOCOL: u32 = 5;

/// Under this name a service core shows what it counts of the sockets of unmodified programs; its
/// other pages are named after grants.
pub const SOCKETS_PAGE: &str = "sockets";
