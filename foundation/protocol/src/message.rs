//! The messages on the daemon's socket, one enum a direction: [`Request`] from clients, [`Reply`]
//! and [`Notice`] from the daemon.
//!
//! 1. Every [`Request`] has one [`Reply`] with the same id. A [`Notice`] comes without a request.
//! 2. Descriptors ride on the frame of their message. The message says how many there are and
//!    which.
//! 3. Unknown fields are ignored within one protocol version; unknown variants are an error.
//!
//! The specification is `docs/spec/control-protocol.md`.

use std::net::{Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use crate::metrics::Metric;
use crate::storage::{
    AreaExtent, AreaGrant, AreaPage, AreaStatus, AreaUsage, BrokerShape, HeldStorage, MemoryModel,
    VolumeStatus,
};
use crate::types::{
    GrantStatus, Mac, Network, Network6, PortRange, Protection, QueueLayout, Rate, SharedLayout, VnicKind,
};
use crate::view::{ViewError, ViewReply, ViewRequest};

pub use crate::limits::{MAX_HELD, MAX_PIECE, is_name, shown};

/// A request with the id that its reply repeats.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClientFrame {
    /// Chosen by the client; the daemon only copies it to the reply.
    pub id: u64,
    /// The request.
    pub request: Request,
}

/// The requests of a client.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// The first request of a connection. Answer: [`Reply::Welcome`].
    Hello {
        /// [`crate::PROTOCOL`] of the client.
        protocol: u32,
        /// A name for display, as in `kv`. Means nothing for access.
        client: String,
    },
    /// Opens a VNIC. Answer: [`Reply::Vnic`]. That of a veth VNIC has two descriptors, the XSK and
    /// the UMEM's memfd; [`Request::BindVnic`] follows. That of a shared-memory VNIC has three: its
    /// own region, the other side's opened read-only, and its end of the doorbell.
    AcquireVnic {
        /// Its name in `sietch.toml`.
        name: String,
    },
    /// Reports that the rings of a veth VNIC are mapped: the daemon binds the socket, and frames
    /// pass. Kernels before 6.4 map no rings of a bound socket. Answer: [`Reply::Done`]; a refusal
    /// ends the grant.
    BindVnic {
        /// The grant.
        grant: u64,
    },
    /// Registers this connection for the notices of these grants, which may be none. It answers
    /// queries about them ([`Notice::Inquiry`], [`Notice::Capture`]). Answer: [`Reply::Done`].
    Attend {
        /// At most [`MAX_HELD`].
        grants: Vec<u64>,
        /// Those of them of which it shows a view ([`Notice::View`]).
        #[serde(default)]
        views: Vec<u64>,
    },
    /// Makes this connection the one of the service core, the software switch. `ports` are those
    /// that it still has from before a restart of the daemon. Answer: [`Reply::Done`]; then
    /// [`Notice::Port`] for each port. The uid of `[service]` in `sietch.toml`, and administrators.
    Serve {
        /// At most [`MAX_HELD`].
        ports: Vec<HeldGrant>,
        /// If it serves storage areas too: what it still has of them. Then [`Notice::Volume`] and
        /// [`Notice::Area`] follow as well.
        #[serde(default)]
        storage: Option<HeldStorage>,
    },
    /// Of the service core: nothing of an area is under way, and nothing of it is served any more.
    /// Answer: [`Reply::Done`].
    Detached {
        /// The grant of the area.
        grant: u64,
    },
    /// Of the service core: an area has the extents that it was sent. Answer: [`Reply::Done`].
    Reshaped {
        /// The grant of the area.
        grant: u64,
    },
    /// Queries the holder of a VNIC for its sockets. Answer: [`Reply::Sockets`] with one descriptor
    /// ([`crate::sockets::read`]). Administrators and the VNIC's user.
    Sockets {
        /// The VNIC's name.
        vnic: String,
    },
    /// Has the holder of a VNIC copy its frames into a capture ring: one descriptor, a sealed
    /// memfd. It continues until this connection ends. Answer: [`Reply::Capturing`]. Administrators
    /// and the VNIC's user.
    Capture {
        /// The VNIC's name.
        vnic: String,
    },
    /// Answers a [`Notice::Inquiry`] (with one descriptor, [`crate::sockets::write`]) or a
    /// [`Notice::Capture`]. Answer: [`Reply::Done`].
    Inform {
        /// The notice's id.
        id: u64,
        /// Sockets that did not fit, or why there is no answer.
        outcome: Result<u64, String>,
    },
    /// Queries the view that the holder of a VSA shows. Answer: [`Reply::View`]; of
    /// [`crate::view::ViewReply::Piece`] with one descriptor. Administrators and the VSA's user.
    View {
        /// The VSA's path.
        name: String,
        /// The query.
        question: ViewRequest,
    },
    /// Answers a [`Notice::View`]; with one descriptor ([`crate::sealed`]) if that requested bytes.
    /// Answer: [`Reply::Done`].
    Show {
        /// The notice's id.
        id: u64,
        /// What there is to see, or why not.
        outcome: Result<ViewReply, ViewError>,
    },
    /// Opens a VSA. Answer: [`Reply::Vsa`] with one descriptor, its file opened for reading and
    /// writing. An area in memory that has grown while it was held has one for each of its parts.
    AcquireVsa {
        /// Its name in `sietch.toml`, or its path ([`crate::storage`]).
        name: String,
    },
    /// Creates a VSA. Answer: [`Reply::Area`]. Administrators, and users with a quota on that
    /// volume.
    CreateVsa {
        /// Its path.
        name: String,
        /// Bytes: a multiple of 4096.
        size: u64,
        /// Its owner; the client's own user if there is none. Only administrators may name
        /// others.
        uid: Option<u32>,
    },
    /// Grows or shrinks a VSA. A VSA that another process holds can only grow. Answer:
    /// [`Reply::Area`]; to the holder of an area in memory with a descriptor for each of its parts.
    /// Administrators and its user.
    ResizeVsa {
        /// Its path.
        name: String,
        /// Bytes: a multiple of 4096.
        size: u64,
    },
    /// Makes a range of a VSA read as zeros; its blocks remain allocated. Answer: [`Reply::Area`].
    /// Administrators and its user; while it is held, only the holder.
    TrimVsa {
        /// Its path.
        name: String,
        /// First byte: a multiple of 4096.
        offset: u64,
        /// Bytes: a multiple of 4096; without it, to the end.
        length: Option<u64>,
    },
    /// Opens a VSA read-only, held or not. Answer: [`Reply::Reading`] with one descriptor, opened
    /// read-only. It has none on a volume where no descriptor can be restricted to the area: there
    /// [`Request::ReadVsaAt`] reads. Administrators and its user.
    ReadVsa {
        /// Its path.
        name: String,
    },
    /// Reads a piece of a VSA that cannot be opened. Answer: [`Reply::Piece`] with one descriptor
    /// ([`crate::sealed`]), which is shorter than requested at the end of the area. Administrators
    /// and its user.
    ReadVsaAt {
        /// Its path.
        name: String,
        /// First byte.
        offset: u64,
        /// Bytes, at most [`MAX_PIECE`].
        length: u32,
    },
    /// Removes a VSA that no process holds, and its data. Answer: [`Reply::Done`]. Administrators
    /// and its user.
    DeleteVsa {
        /// Its path.
        name: String,
    },
    /// Lists the VSAs from number `cursor` on. Answer: [`Reply::Areas`]. Users see their own,
    /// administrators all.
    ListVsas {
        /// Which to begin with.
        cursor: u32,
    },
    /// Lists the volumes. Answer: [`Reply::Volumes`]. Users see their own quota, administrators
    /// all.
    Volumes,
    /// Releases a grant. Answer: [`Reply::Done`].
    Release {
        /// The grant.
        grant: u64,
    },
    /// Reports to a restarted daemon which grants the application still holds. Answer:
    /// [`Reply::Adopted`].
    Adopt {
        /// At most [`MAX_HELD`].
        grants: Vec<HeldGrant>,
    },
    /// Gives the daemon a metrics page: one descriptor, a memfd in the format of
    /// [`crate::metrics`]. Answer: [`Reply::Done`].
    PublishMetrics {
        /// What the counters belong to, as in `kv`.
        label: String,
    },
    /// Requests names, holders and protection of everything. Answer: [`Reply::Status`].
    Status,
    /// Requests group `cursor` of the counters, from 0. Answer: [`Reply::Stat`].
    Stat {
        /// Which group.
        cursor: u32,
    },
    /// Revokes a grant, or all grants of a name, permanently: the name is refused until
    /// [`Request::Restore`]. Answer: [`Reply::Revoked`]. Administrators only.
    Revoke {
        /// What.
        target: Target,
    },
    /// Permits a revoked name again. Answer: [`Reply::Done`]. Administrators only.
    Restore {
        /// The name.
        name: String,
    },
    /// Reads `sietch.toml` again. Grants that are held stay as they are. Answer: [`Reply::Done`].
    /// Administrators only.
    Reload,
    /// Removes all devices. Answer: [`Reply::Done`], then the daemon ends. Administrators only.
    Shutdown,
}

/// What to revoke.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// Every VNIC and VSA of that name.
    Name(String),
    /// One grant.
    Grant(u64),
}

/// A grant that an application reports as held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldGrant {
    /// Its id.
    pub grant: u64,
    /// Its generation.
    pub generation: u64,
}

/// What the daemon sends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServerFrame {
    /// The answer to a request.
    Reply {
        /// The request's id.
        id: u64,
        /// The answer.
        body: Reply,
    },
    /// Something the application must know.
    Notice(Notice),
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// To Hello.
    Welcome(Welcome),
    /// To AcquireVnic. Descriptors: see there.
    Vnic(Box<VnicGrant>),
    /// To AcquireVsa. Descriptor: the area's file.
    Vsa(Box<VsaGrant>),
    /// To CreateVsa, ResizeVsa and TrimVsa: what the area is now.
    Area(Box<AreaStatus>),
    /// To ReadVsa. Descriptor: the area, read-only, or none.
    Reading(Box<AreaStatus>),
    /// To ReadVsaAt. Descriptor: the bytes, sealed.
    Piece,
    /// To View: the holder's answer, checked. Descriptor: the requested bytes.
    View(ViewReply),
    /// To ListVsas.
    Areas(AreaPage),
    /// To Volumes.
    Volumes(Vec<VolumeStatus>),
    /// To Sockets. Descriptor: the sockets.
    Sockets(SocketsAnswer),
    /// To Capture.
    Capturing(Capturing),
    /// To Adopt, one element for each grant named, in the same order.
    Adopted(Vec<AdoptedGrant>),
    /// To Status.
    Status(Box<Status>),
    /// To Stat.
    Stat(Box<Stat>),
    /// To Revoke: one line for each revoked grant, with what now stops the previous holder.
    Revoked(Vec<String>),
    /// Nothing to add.
    Done,
    /// The request was refused or failed.
    Error(ErrorReply),
}

/// The daemon's side of the handshake.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// [`crate::PROTOCOL`] of the daemon.
    pub protocol: u32,
    /// Its version, for display.
    pub daemon: String,
    /// Grows at each start of the daemon: a client that sees another one than before sends Adopt.
    pub generation: u64,
    /// Its process.
    pub pid: u32,
    /// Whether this client may revoke, restore, reload and shut down.
    pub administrator: bool,
}

/// A granted VNIC.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VnicGrant {
    /// Names this grant in Release, Adopt and notices.
    pub grant: u64,
    /// Grows with each grant of any device: what carries an older one is stale.
    pub generation: u64,
    /// The VNIC's name.
    pub name: String,
    /// What is at its other end.
    pub kind: VnicKind,
    /// What it is bound to, for display: an interface, `switch`, or `link NAME`.
    pub interface: String,
    /// The VNIC's Ethernet address: frames with another source are dropped.
    pub mac: Mac,
    /// The VNIC's address: packets with another source are dropped.
    pub address: Ipv4Addr,
    /// Bits of the network prefix of the address.
    pub prefix: u8,
    /// Its IPv6 address, if it has one, with the prefix of its network.
    pub address6: Option<Network6>,
    /// Where packets for other networks go, if there is such a place.
    pub gateway: Option<Ipv4Addr>,
    /// The same over IPv6.
    #[serde(default)]
    pub gateway6: Option<Ipv6Addr>,
    /// The gateway's Ethernet address when it is known without ARP (it is the host's end of the
    /// veth pair).
    pub gateway_mac: Option<Mac>,
    /// The host's address on this network, where the host is on it.
    pub host_address: Option<Ipv4Addr>,
    /// The peer at the other end of a link.
    pub peer: Option<LinkPeer>,
    /// The largest IP packet, in bytes.
    pub mtu: u32,
    /// Of its queue pair.
    pub layout: QueueLayout,
    /// The component that enforces the filters.
    pub protection: Protection,
    /// Local TCP ports the filters let through.
    pub tcp_ports: Vec<PortRange>,
    /// Local UDP ports the filters let through.
    pub udp_ports: Vec<PortRange>,
    /// Networks of IPv4 the VNIC may talk to.
    pub peers: Vec<Network>,
    /// Networks of IPv6 the VNIC may talk to. None beside a network of no bits in `peers`:
    /// every address.
    #[serde(default)]
    pub peers6: Vec<Network6>,
    /// What it may send; without one there is no bound.
    pub rate: Option<Rate>,
    /// Of a VNIC that the service core holds for programs of a user: that user.
    #[serde(default)]
    pub user: Option<u32>,
}

/// The other end of a link, whether a process holds it or not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkPeer {
    /// Its name.
    pub name: String,
    /// Its Ethernet address.
    pub mac: Mac,
    /// Its address.
    pub address: Ipv4Addr,
    /// Its IPv6 address.
    pub address6: Option<Ipv6Addr>,
}

/// A port of the software switch, as the service core gets it. What is written here the switch
/// enforces.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PortGrant {
    /// The grant of the VNIC.
    pub grant: u64,
    /// Its generation.
    pub generation: u64,
    /// The VNIC's name.
    pub name: String,
    /// The only source and the only unicast destination.
    pub mac: Mac,
    /// The switch's own address on that port.
    pub switch_mac: Mac,
    /// The only IPv4 source.
    pub address: Ipv4Addr,
    /// The only IPv6 source beside the link-local one made of the MAC.
    pub address6: Option<Ipv6Addr>,
    /// Local TCP ports.
    pub tcp_ports: Vec<PortRange>,
    /// Local UDP ports.
    pub udp_ports: Vec<PortRange>,
    /// Networks of IPv4 it may talk to.
    pub peers: Vec<Network>,
    /// Networks of IPv6 it may talk to, as in [`VnicGrant::peers6`].
    #[serde(default)]
    pub peers6: Vec<Network6>,
    /// What it may send.
    pub rate: Option<Rate>,
    /// The largest IP packet, in bytes.
    pub mtu: u32,
    /// Of both regions.
    pub layout: SharedLayout,
    /// The user of its holder. A daemon that does not name it has all holders count as one user.
    #[serde(default = "crate::types::unnamed_user")]
    pub uid: u32,
}

/// The answer of a VNIC's holder about its sockets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketsAnswer {
    /// The holder's process.
    pub pid: u32,
    /// The name the holder gave itself.
    pub client: String,
    /// Sockets that did not fit.
    pub omitted: u64,
}

/// A capture that has begun.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capturing {
    /// The holder's process.
    pub pid: u32,
    /// The name the holder gave itself.
    pub client: String,
    /// What the VNIC is bound to.
    pub interface: String,
    /// Its Ethernet address.
    pub mac: Mac,
    /// The largest IP packet, in bytes.
    pub mtu: u32,
}

/// A granted VSA.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VsaGrant {
    /// Names this grant in Release, Adopt and notices.
    pub grant: u64,
    /// Grows with each grant of any device.
    pub generation: u64,
    /// The VSA's name.
    pub name: String,
    /// Bytes in the area.
    pub size: u64,
    /// The component that keeps the application inside it.
    pub protection: Protection,
    /// The path of the file, for display: the descriptor is the capability.
    pub path: String,
    /// Of an area in memory that has grown while it was held: how many bytes of each descriptor are
    /// its, in order. Otherwise there is one, and this is empty.
    #[serde(default)]
    pub segments: Vec<u64>,
    /// The delays that the memory model adds. The application's own queue adds them: nothing
    /// enforces them.
    #[serde(default)]
    pub model: Option<MemoryModel>,
    /// Of an area behind a broker: the shape of the shared memory, which is the first descriptor;
    /// the second is the doorbell.
    #[serde(default)]
    pub broker: Option<BrokerShape>,
}

/// What became of a grant named in Adopt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdoptedGrant {
    /// The grant.
    pub grant: u64,
    /// Whether it is still valid.
    pub held: bool,
    /// Why not.
    pub reason: String,
}

/// A snapshot of what there is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The daemon's process.
    pub pid: u32,
    /// The daemon's version.
    pub version: String,
    /// Of this start of the daemon.
    pub generation: u64,
    /// The path of `sietch.toml`.
    pub configuration: String,
    /// The directory of state and areas.
    pub data: String,
    /// Whether VNICs can be had here, or why not.
    pub network: Result<String, String>,
    /// The process of the service core, if one runs.
    pub service: Option<u32>,
    /// The uplink, if there is one.
    pub uplink: Option<String>,
    /// Clients connected now.
    pub connections: u32,
    /// In order of their names.
    pub vnics: Vec<VnicStatus>,
    /// In order of their names.
    pub vsas: Vec<VsaStatus>,
    /// Problems that an administrator should check.
    pub warnings: Vec<String>,
}

/// A VNIC of `sietch.toml`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VnicStatus {
    /// Its name.
    pub name: String,
    /// The user that may acquire it.
    pub uid: u32,
    /// What is at its other end.
    pub kind: VnicKind,
    /// Its address.
    pub address: Network,
    /// Its IPv6 address.
    pub address6: Option<Network6>,
    /// Its Ethernet address.
    pub mac: Mac,
    /// The host's end of the veth pair while a process holds it; `link NAME` of an end of a link.
    pub interface: Option<String>,
    /// The name of a link's other end.
    pub peer: Option<String>,
    /// The component that enforces the filters.
    pub protection: Protection,
    /// What it may send.
    pub rate: Option<Rate>,
    /// Whether it was revoked and waits for Restore.
    pub revoked: bool,
    /// The process that holds it.
    pub holder: Option<GrantStatus>,
    /// The reason why no frame passes although a process holds it, or which part of its protection
    /// is missing.
    #[serde(default)]
    pub problem: Option<String>,
}

/// A VSA of `sietch.toml`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VsaStatus {
    /// Its name.
    pub name: String,
    /// The user that may acquire it.
    pub uid: u32,
    /// Bytes.
    pub size: u64,
    /// Its file.
    pub path: String,
    /// The component that keeps the application inside it.
    pub protection: Protection,
    /// The delays that its memory model adds, if it has one.
    #[serde(default)]
    pub model: Option<MemoryModel>,
    /// Whether it was revoked and waits for Restore.
    pub revoked: bool,
    /// The process that holds it.
    pub holder: Option<GrantStatus>,
    /// What that says of its log in it.
    #[serde(default)]
    pub usage: Option<AreaUsage>,
}

/// One group of counters, and whether there are more.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stat {
    /// The group, unless the cursor is past the last.
    pub group: Option<StatGroup>,
    /// The cursor of the next group.
    pub next: Option<u32>,
}

/// Counters that belong together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StatGroup {
    /// `daemon`, `vnic NAME`, or an application's label.
    pub source: String,
    /// The process whose counters these are, if they are an application's.
    pub pid: Option<u32>,
    /// The counters.
    pub metrics: Vec<Metric>,
}

/// Sent unasked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Notice {
    /// A grant was revoked: its descriptors no longer reach the device.
    Revoked {
        /// The grant.
        grant: u64,
        /// Its generation.
        generation: u64,
        /// Its device's name.
        name: String,
        /// Why.
        reason: String,
    },
    /// To the service core: a port that it is to serve from now on. Descriptors: its own region for
    /// reading and writing, the application's for reading, its end of the doorbell.
    Port(Box<PortGrant>),
    /// To the service core: a port whose grant has ended.
    Unplug {
        /// The grant.
        grant: u64,
    },
    /// To the service core: a volume whose areas it is to serve. Descriptor: its file or device.
    Volume {
        /// Its name.
        name: String,
        /// Bytes of it.
        bytes: u64,
    },
    /// To the service core: an area that it is to serve from now on. Descriptors: the shared
    /// memory, its end of the doorbell.
    Area(Box<AreaGrant>),
    /// To the service core: an area has new extents from now on. Answer with [`Request::Reshaped`]
    /// when no request outside them is under way.
    Reshape {
        /// The grant of the area.
        grant: u64,
        /// Its new extents.
        extents: Vec<AreaExtent>,
    },
    /// To the service core: the grant of an area has ended. Answer with [`Request::Detached`] when
    /// nothing of it is under way.
    Detach {
        /// The grant of the area.
        grant: u64,
    },
    /// A query for the sockets of a VNIC. Answer with [`Request::Inform`].
    Inquiry {
        /// To be repeated in the answer.
        id: u64,
        /// The grant of the VNIC.
        grant: u64,
    },
    /// A request to capture the frames of a VNIC. Descriptor: the ring. Answer with
    /// [`Request::Inform`].
    Capture {
        /// To be repeated in the answer.
        id: u64,
        /// The grant of the VNIC.
        grant: u64,
    },
    /// A query about the view of a VSA. Answer with [`Request::Show`].
    View {
        /// To be repeated in the answer.
        id: u64,
        /// The grant of the VSA.
        grant: u64,
        /// The user that sent the query. The daemon has checked that it may read the area.
        uid: u32,
        /// The query.
        question: ViewRequest,
    },
    /// No reader of that capture remains.
    EndCapture {
        /// As in [`Notice::Capture`].
        id: u64,
        /// The grant of the VNIC.
        grant: u64,
    },
    /// `sietch.toml` was read again. To connections that have sent [`Request::Attend`].
    Reloaded,
    /// The daemon ends and removes its devices.
    ShuttingDown {
        /// Why.
        reason: String,
    },
}

/// The sort of a failure, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The other side speaks another version.
    Version,
    /// The request does not make sense.
    Invalid,
    /// The kernel's report on this user or process does not permit it.
    Denied,
    /// There is no such name or grant.
    Unknown,
    /// Another process has it.
    Busy,
    /// It was revoked and waits for Restore.
    Revoked,
    /// This machine or mode cannot do it.
    Unsupported,
    /// A limit was reached.
    Limit,
    /// The volume has no room for it.
    Full,
    /// The kernel or the disk failed.
    Failed,
    /// An application did not answer in time.
    Silent,
}

/// A refusal that names the thing, the cause and the fix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{what}: {cause}; {fix}")]
pub struct ErrorReply {
    /// For programs.
    pub kind: ErrorKind,
    /// The thing, as in `VNIC kv`.
    pub what: String,
    /// What stood in the way.
    pub cause: String,
    /// What to do about it.
    pub fix: String,
}

#[cfg(test)]
mod tests;
