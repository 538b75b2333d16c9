//! The messages of the socket service: requests, replies, arrivals and changes of a backlog, each
//! of a fixed size.
//!
//! 1. Each message is one `repr(C)` struct in one message of a SEQPACKET socket. Descriptors
//!    ride on it.
//! 2. A message is read into a copy and then validated. A wrong size, magic, version or number is
//!    refused.
//! 3. Numbers of kinds never change their meaning. A new kind gets a new number.
//!
//! The specification is `docs/spec/sockets.md`.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::build::{BUILD_BYTES, Build};
use super::limits::{ARRIVAL_BYTES, MAGIC, REPLY_BYTES, REQUEST_BYTES, VERSION};
use super::name::Name;

/// Flag of [`RequestKind::Revoke`]: [`Request::backlog`] is the uid whose application is meant.
const OF_USER: u32 = 16;

/// The kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum RequestKind {
    /// Queries whether a service runs, and its version.
    Hello = 1,
    /// Take over a listening socket. Descriptors: the kernel's listening socket (with a VNIC: the
    /// reservation, or none). Then up to [`super::MAX_PUBLISHED_PER_PORT`] other listening sockets
    /// of the kernel follow, whose connections are to arrive there as well.
    Listen = 2,
    /// Connect. Descriptor: the client's kernel TCP socket, for its network namespace and its bound
    /// name.
    Connect = 3,
    /// What is this socket, which was inherited or received? Descriptor: the socket.
    Adopt = 4,
    /// Reserve an address and a port of a VNIC.
    Bind = 5,
    /// List applications, listeners and connections. The answer is [`ReplyKind::Listed`] with a
    /// sealed memfd of JSON. Over the administrators' socket all, else the caller's own.
    List = 6,
    /// End everything of an application: its listeners close, its connections are reset. For its
    /// own user and administrators.
    Revoke = 7,
    /// Move everything to a successor of the service. Answered with [`ReplyKind::Handover`];
    /// over the administrators' socket alone.
    TakeOver = 8,
    /// Request the state of a connection of a VNIC. Descriptor: its placeholder.
    Information = 10,
    /// The program cannot map a connection that arrived. Relay its bytes through a kernel's socket,
    /// which arrives at the same listener, and leave later clients of the listener to the kernel.
    /// Descriptors: the placeholder of the accepting end, the listener's placeholder.
    Relay = 11,
}

impl RequestKind {
    /// Whether the request is for the administrators' socket ([`crate::administration`]).
    pub fn is_administrative(self) -> bool {
        matches!(self, Self::Hello | Self::List | Self::Revoke | Self::TakeOver)
    }

    /// The kind of a number, if there is one.
    pub fn of(number: u16) -> Option<Self> {
        [
            Self::Hello,
            Self::Listen,
            Self::Connect,
            Self::Adopt,
            Self::Bind,
            Self::List,
            Self::Revoke,
            Self::TakeOver,
            Self::Information,
            Self::Relay,
        ]
        .into_iter()
        .find(|kind| *kind as u16 == number)
    }
}

/// What is answered. Descriptors in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum ReplyKind {
    /// A service of this [`Build`] runs. [`Reply::limit`] is the number of connections that an
    /// application may have.
    Welcome = 1,
    /// Listening. Descriptors: the listener's placeholder.
    Listening = 2,
    /// Nothing of ours: go to the kernel. The errno `EBUSY` in the answer to a connect: the service
    /// is closing a listening socket at that name; ask again first.
    UseKernel = 3,
    /// Connected. Descriptors: placeholder, common memory, private page. The names are in the reply
    /// and on the page.
    Connected = 4,
    /// As [`ReplyKind::Connected`], but the listener's queue is full (or the handshake runs): the
    /// state on the private page changes, with one byte on the placeholder.
    Connecting = 5,
    /// A refusal; [`Reply::errno`] is the error for the program.
    Refused = 6,
    /// The socket is an end of a connection. Descriptors: common memory, private page.
    Stream = 7,
    /// The socket is a listener's placeholder; [`Reply::local`] is where it listens. Descriptors:
    /// the kernel's listening socket, if there is one.
    Listener = 8,
    /// The socket is not one of ours.
    Unknown = 9,
    /// Reserved. Descriptors: the reservation, whose closing frees the port. [`Reply::local`] is
    /// the name.
    Bound = 10,
    /// Descriptors: a sealed memfd.
    Listed = 11,
    /// Done.
    Done = 12,
    /// The successor is accepted: the state follows on this connection.
    Handover = 13,
    /// [`Reply::spare`] begins with a `struct tcp_info` of [`INFORMATION_BYTES`] bytes;
    /// [`Reply::limit`] is how many bytes wait for the peer's acknowledgement.
    Information = 14,
}

/// Bytes of a `struct tcp_info` in an answer: up to `tcpi_delivery_rate`.
pub const INFORMATION_BYTES: usize = 168;

impl ReplyKind {
    /// The kind of a number, if there is one.
    pub fn of(number: u16) -> Option<Self> {
        [
            Self::Welcome,
            Self::Listening,
            Self::UseKernel,
            Self::Connected,
            Self::Connecting,
            Self::Refused,
            Self::Stream,
            Self::Listener,
            Self::Unknown,
            Self::Bound,
            Self::Listed,
            Self::Done,
            Self::Handover,
            Self::Information,
        ]
        .into_iter()
        .find(|kind| *kind as u16 == number)
    }

    /// How many descriptors an answer of this kind has, at least.
    pub fn descriptors(self) -> usize {
        match self {
            Self::Connected | Self::Connecting => 3,
            Self::Stream => 2,
            Self::Listening | Self::Bound | Self::Listed => 1,
            _ => 0,
        }
    }
}

/// In [`Request::flags`]: another process of the application has already registered again a
/// listener that the service lost in a crash. Give this process a placeholder of its own. The
/// descriptor is any TCP socket of the same network namespace. [`Request::local`] names the
/// listener.
pub const REJOIN: u32 = 1;
/// In [`Request::flags`]: the socket was made with SO_REUSEPORT, or another socket shares the port
/// knowingly (VNIC mode; the kernel judges otherwise).
pub const SHARED_PORT: u32 = 2;
/// In [`Request::flags`]: an IPv6 socket that accepts no IPv4 (VNIC mode; otherwise the kernel's
/// socket has that option).
pub const ONLY_IPV6: u32 = 4;
/// In [`Request::flags`]: the socket has SO_REUSEADDR (VNIC mode; otherwise the kernel judges).
pub const REUSED_ADDRESS: u32 = 8;

/// A request.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Request {
    /// `MAGIC`.
    pub magic: u32,
    /// [`VERSION`].
    pub version: u16,
    /// A [`RequestKind`].
    pub kind: u16,
    /// Groups the processes of one `sietch run`. Random; a hint together with the caller's uid, no
    /// capability.
    pub application: [u8; 16],
    /// The VNIC's name, padded with zeros; all zero: host addressing.
    pub vnic: [u8; 32],
    /// The caller's name, where it matters and no kernel socket has it.
    pub local: Name,
    /// The destination, for [`RequestKind::Connect`].
    pub remote: Name,
    /// What the program gave to `listen`.
    pub backlog: u32,
    /// [`REJOIN`], [`SHARED_PORT`], [`ONLY_IPV6`], [`REUSED_ADDRESS`], a flag for the user.
    pub flags: u32,
    /// Zero. (Service to service: see `docs/spec/sockets.md`.)
    pub spare: [u8; 128],
}

const _: () = assert!(size_of::<Request>() == REQUEST_BYTES);

impl Request {
    /// A request of a kind, with everything else zero.
    pub fn new(kind: RequestKind, application: [u8; 16]) -> Self {
        Self {
            magic: MAGIC,
            version: VERSION,
            kind: kind as u16,
            application,
            vnic: [0; 32],
            local: Name::NONE,
            remote: Name::NONE,
            backlog: 0,
            flags: 0,
            spare: [0; 128],
        }
    }

    /// The VNIC's name, or `None` in host addressing or if it is not a text.
    pub fn vnic(&self) -> Option<&str> {
        let end = self.vnic.iter().position(|&byte| byte == 0).unwrap_or(self.vnic.len());
        let name = self.vnic.get(..end)?;
        if name.is_empty() { None } else { std::str::from_utf8(name).ok() }
    }

    /// Puts the name of a VNIC in; what is longer than 32 bytes is cut off, and will not be found.
    pub fn set_vnic(&mut self, name: &str) {
        self.vnic = [0; 32];
        for (to, from) in self.vnic.iter_mut().zip(name.bytes()) {
            *to = from;
        }
    }

    /// Restricts a revocation to the application of one user.
    pub fn set_user(&mut self, uid: u32) {
        (self.backlog, self.flags) = (uid, self.flags | OF_USER);
    }

    /// The user to which a revocation is restricted.
    pub fn user(&self) -> Option<u32> {
        (self.flags & OF_USER != 0).then_some(self.backlog)
    }

    /// A request of these bytes, which came from outside, or the reason why they are none.
    ///
    /// # Errors
    /// See [`Malformed`].
    pub fn parse(bytes: &[u8]) -> Result<(Self, RequestKind), Malformed> {
        let request = Self::read_from_bytes(bytes).map_err(|_| Malformed::Length)?;
        check_head(request.magic, request.version)?;
        let kind = RequestKind::of(request.kind).ok_or(Malformed::Kind)?;
        if !request.local.is_valid() || !request.remote.is_valid() {
            return Err(Malformed::Name);
        }
        Ok((request, kind))
    }
}

/// An answer.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Reply {
    /// `MAGIC`.
    pub magic: u32,
    /// [`VERSION`].
    pub version: u16,
    /// A [`ReplyKind`].
    pub kind: u16,
    /// With [`ReplyKind::Refused`]: the error number for the program.
    pub errno: u32,
    /// With [`ReplyKind::Welcome`]: how many connections an application may have. With
    /// [`ReplyKind::Listener`]: one more than its backlog, or 0.
    pub limit: u32,
    /// The caller's name.
    pub local: Name,
    /// The other end's name.
    pub remote: Name,
    /// Depends on the kind: the [`Build`] of the service that answers a hello,
    /// [`ReplyKind::Information`]; zero otherwise.
    pub spare: [u8; 176],
}

const _: () = assert!(size_of::<Reply>() == REPLY_BYTES);

impl Reply {
    /// An answer of a kind, with everything else zero.
    pub fn new(kind: ReplyKind) -> Self {
        Self {
            magic: MAGIC,
            version: VERSION,
            kind: kind as u16,
            errno: 0,
            limit: 0,
            local: Name::NONE,
            remote: Name::NONE,
            spare: [0; 176],
        }
    }

    /// The answer to a hello, from this build.
    pub fn welcome(limit: u32, build: &Build) -> Self {
        Self { limit, ..Self::new(ReplyKind::Welcome) }.from_build(build)
    }

    /// The same answer, saying which build gives it.
    #[must_use]
    pub fn from_build(mut self, build: &Build) -> Self {
        if let Some(place) = self.spare.first_chunk_mut::<BUILD_BYTES>() {
            place.copy_from_slice(build.as_bytes());
        }
        self
    }

    /// A refusal.
    pub fn refused(errno: rustix::io::Errno) -> Self {
        Self { errno: errno.raw_os_error().unsigned_abs(), ..Self::new(ReplyKind::Refused) }
    }

    /// The kind. [`Reply::parse`] lets no other through.
    pub fn kind(&self) -> ReplyKind {
        ReplyKind::of(self.kind).unwrap_or(ReplyKind::Unknown)
    }

    /// The error of a refusal; what is no error number counts as `ECONNREFUSED`.
    pub fn error(&self) -> rustix::io::Errno {
        match i32::try_from(self.errno) {
            Ok(number @ 1..=4095) => rustix::io::Errno::from_raw_os_error(number),
            _ => rustix::io::Errno::CONNREFUSED,
        }
    }

    /// An answer of these bytes, or why not.
    ///
    /// # Errors
    /// See [`Malformed`].
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let reply = Self::read_from_bytes(bytes).map_err(|_| Malformed::Length)?;
        check_head(reply.magic, reply.version)?;
        ReplyKind::of(reply.kind).ok_or(Malformed::Kind)?;
        if !reply.local.is_valid() || !reply.remote.is_valid() {
            return Err(Malformed::Name);
        }
        Ok(reply)
    }
}

/// What arrives over a listener's placeholder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum ArrivalKind {
    /// A Sietch connection. Descriptors: placeholder, common memory, private page.
    Stream = 1,
    /// A connection of the kernel. Descriptors: its socket.
    Kernel = 2,
}

/// Flag of [`Arrival::flags`], of a connection of the kernel: its last close resets it, until the
/// program has accepted it ([`super::take_kernel_socket`]). So it ends like one in the kernel's
/// queue.
pub const RESET_UNTIL_ACCEPTED: u32 = 1;

/// One new connection of a listener.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Arrival {
    /// `MAGIC`.
    pub magic: u32,
    /// [`VERSION`].
    pub version: u16,
    /// An [`ArrivalKind`].
    pub kind: u16,
    /// The accepting side's name.
    pub local: Name,
    /// The connecting side's name.
    pub peer: Name,
    /// [`RESET_UNTIL_ACCEPTED`]; the other bits are zero.
    pub flags: u32,
    /// Zero.
    pub spare: [u8; 52],
}

const _: () = assert!(size_of::<Arrival>() == ARRIVAL_BYTES);

impl Arrival {
    /// An arrival.
    pub fn new(kind: ArrivalKind, local: Name, peer: Name) -> Self {
        Self { magic: MAGIC, version: VERSION, kind: kind as u16, local, peer, flags: 0, spare: [0; 52] }
    }

    /// The kind. [`Arrival::parse`] lets no other through.
    pub fn kind(&self) -> ArrivalKind {
        if self.kind == ArrivalKind::Stream as u16 { ArrivalKind::Stream } else { ArrivalKind::Kernel }
    }

    /// How many descriptors it has.
    pub fn descriptors(&self) -> usize {
        match self.kind() {
            ArrivalKind::Stream => 3,
            ArrivalKind::Kernel => 1,
        }
    }

    /// An arrival of these bytes, or why not.
    ///
    /// # Errors
    /// See [`Malformed`].
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let arrival = Self::read_from_bytes(bytes).map_err(|_| Malformed::Length)?;
        check_head(arrival.magic, arrival.version)?;
        if arrival.kind != ArrivalKind::Stream as u16 && arrival.kind != ArrivalKind::Kernel as u16 {
            return Err(Malformed::Kind);
        }
        if !arrival.local.is_valid() || !arrival.peer.is_valid() {
            return Err(Malformed::Name);
        }
        Ok(arrival)
    }
}

/// An application reports that it called `listen` again with another backlog.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct BacklogChange {
    /// `MAGIC`.
    pub magic: u32,
    /// [`VERSION`].
    pub version: u16,
    /// Zero.
    pub spare: u16,
    /// The new backlog.
    pub backlog: u32,
}

/// Bytes of a [`BacklogChange`].
pub const BACKLOG_CHANGE_BYTES: usize = 12;
const _: () = assert!(size_of::<BacklogChange>() == BACKLOG_CHANGE_BYTES);

impl BacklogChange {
    /// A message of a backlog.
    pub fn new(backlog: u32) -> Self {
        Self { magic: MAGIC, version: VERSION, spare: 0, backlog }
    }

    /// A message of these bytes, or why not.
    ///
    /// # Errors
    /// See [`Malformed`].
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let message = Self::read_from_bytes(bytes).map_err(|_| Malformed::Length)?;
        check_head(message.magic, message.version)?;
        Ok(message)
    }
}

fn check_head(magic: u32, version: u16) -> Result<(), Malformed> {
    if magic != MAGIC {
        return Err(Malformed::Magic);
    }
    if version != VERSION { Err(Malformed::Version) } else { Ok(()) }
}

/// Why a message is not one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Too short or too long.
    #[error("socket service: a message of the wrong length; use one build of sietch on both sides")]
    Length,
    /// It does not begin as one.
    #[error("socket service: a message without its magic number; only sietch talks to this socket")]
    Magic,
    /// Of another version.
    #[error(
        "socket service: a message of another version than {VERSION}; restart the programs and `sietch up` with one build"
    )]
    Version,
    /// Of no kind that there is.
    #[error("socket service: a message of an unknown kind; use one build of sietch on both sides")]
    Kind,
    /// A socket name that is neither empty nor IPv4 nor IPv6.
    #[error(
        "socket service: a message with a name that is neither IPv4 nor IPv6; only such names are served"
    )]
    Name,
}
