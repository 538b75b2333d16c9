//! What is said over the socket. One enum a direction.
//!
//! Unknown fields are ignored within one protocol version, unknown variants are an error.

use std::net::{Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use crate::metrics::Metric;
use crate::storage::{
    AreaExtent, AreaGrant, AreaPage, AreaStatus, BrokerShape, HeldStorage, MemoryModel, VolumeStatus,
};
use crate::types::{
    GrantStatus, Mac, Network, Network6, PortRange, Protection, QueueLayout, Rate, SharedLayout, VnicKind,
};
use crate::view::{ViewError, ViewReply, ViewRequest};

pub use crate::limits::{MAX_HELD, MAX_NAME, MAX_PIECE, is_name};

/// A request with the id that its reply repeats.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClientFrame {
    /// Chosen by the client; the daemon does not look at it.
    pub id: u64,
    /// What is asked.
    pub request: Request,
}

/// What a client asks.
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
    /// Opens a VNIC. Answer: [`Reply::Vnic`]; of a veth VNIC with two descriptors, the XSK and the
    /// UMEM's memfd (then [`Request::BindVnic`]); of a shared-memory VNIC with three: its own
    /// region, the other side's opened read-only, and its end of the doorbell.
    AcquireVnic {
        /// Its name in `sietch.toml`.
        name: String,
    },
    /// Says that the rings of a veth VNIC are mapped: the daemon binds the socket, and frames pass.
    /// Kernels before 6.4 map no rings of a bound socket. Answer: [`Reply::Done`]; a refusal ends
    /// the grant.
    BindVnic {
        /// The grant.
        grant: u64,
    },
    /// Says that this connection reads notices for these grants, which may be none, and answers
    /// what is asked about them ([`Notice::Inquiry`], [`Notice::Capture`]). Answer:
    /// [`Reply::Done`].
    Attend {
        /// At most [`MAX_HELD`].
        grants: Vec<u64>,
        /// Those of them of which it shows a view ([`Notice::View`]).
        #[serde(default)]
        views: Vec<u64>,
    },
    /// Makes this connection that of the service core, the software switch. `ports` are those that
    /// it still has from before the daemon was restarted. Answer: [`Reply::Done`]; then
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
    /// Asks the holder of a VNIC for its sockets. Answer: [`Reply::Sockets`] with one descriptor
    /// ([`crate::sockets::read`]). Administrators and the VNIC's user.
    Sockets {
        /// The VNIC's name.
        vnic: String,
    },
    /// Asks the holder of a VNIC to copy its frames into a capture ring: one descriptor, a sealed
    /// memfd. It goes on until this connection ends. Answer: [`Reply::Capturing`]. Administrators
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
    /// Asks the holder of a VSA about the view that it shows. Answer: [`Reply::View`]; of
    /// [`crate::view::ViewReply::Piece`] with one descriptor. Administrators and the VSA's user.
    View {
        /// The VSA's path.
        name: String,
        /// What is asked.
        question: ViewRequest,
    },
    /// Answers a [`Notice::View`]; with one descriptor ([`crate::sealed`]) if that asked for bytes.
    /// Answer: [`Reply::Done`].
    Show {
        /// The notice's id.
        id: u64,
        /// What there is to see, or why not.
        outcome: Result<ViewReply, ViewError>,
    },
    /// Opens a VSA. Answer: [`Reply::Vsa`] with one descriptor, its file opened for reading and
    /// writing; of an area in memory that has grown while it was held one for each of its parts.
    AcquireVsa {
        /// Its name in `sietch.toml`, or its path ([`crate::storage`]).
        name: String,
    },
    /// Makes a VSA. Answer: [`Reply::Area`]. Administrators, and users with a quota on that volume.
    CreateVsa {
        /// Its path.
        name: String,
        /// Bytes: a multiple of 4096.
        size: u64,
        /// Its owner; the client's own user if there is none. Only administrators may name
        /// others.
        uid: Option<u32>,
    },
    /// Makes a VSA longer or shorter. What somebody else holds grows only. Answer: [`Reply::Area`];
    /// to the holder of an area in memory with a descriptor for each of its parts. Administrators
    /// and its user.
    ResizeVsa {
        /// Its path.
        name: String,
        /// Bytes: a multiple of 4096.
        size: u64,
    },
    /// Makes a range of a VSA read as zeros; its blocks stay its own. Answer: [`Reply::Area`].
    /// Administrators and its user; of what is held, the holder.
    TrimVsa {
        /// Its path.
        name: String,
        /// First byte: a multiple of 4096.
        offset: u64,
        /// Bytes: a multiple of 4096; without it, to the end.
        length: Option<u64>,
    },
    /// Opens a VSA for reading alone, held or not. Answer: [`Reply::Reading`] with one
    /// descriptor, opened read-only; without one on a volume where none could be confined: then
    /// [`Request::ReadVsaAt`] reads. Administrators and its user.
    ReadVsa {
        /// Its path.
        name: String,
    },
    /// Reads a piece of a VSA that cannot be opened. Answer: [`Reply::Piece`] with one descriptor
    /// ([`crate::sealed`]); it is shorter than was asked for at the end of the area. Administrators
    /// and its user.
    ReadVsaAt {
        /// Its path.
        name: String,
        /// First byte.
        offset: u64,
        /// Bytes, at most [`MAX_PIECE`].
        length: u32,
    },
    /// Removes a VSA that no process holds, and its data. Answer: [`Reply::Done`]. Administrators and
    /// its user.
    DeleteVsa {
        /// Its path.
        name: String,
    },
    /// Asks for the VSAs from number `cursor` on. Answer: [`Reply::Areas`]. Users see their own,
    /// administrators all.
    ListVsas {
        /// Which to begin with.
        cursor: u32,
    },
    /// Asks for the volumes. Answer: [`Reply::Volumes`]. Users see their own quota, administrators
    /// all.
    Volumes,
    /// Gives a grant back. Answer: [`Reply::Done`].
    Release {
        /// The grant.
        grant: u64,
    },
    /// Says, to a daemon that was restarted, what the application still holds. Answer:
    /// [`Reply::Adopted`].
    Adopt {
        /// At most [`MAX_HELD`].
        grants: Vec<HeldGrant>,
    },
    /// Gives the daemon a metrics page: one descriptor, a memfd as [`crate::metrics`] makes it.
    /// Answer: [`Reply::Done`].
    PublishMetrics {
        /// What the counters belong to, as in `kv`.
        label: String,
    },
    /// Asks for names, holders and protection of everything. Answer: [`Reply::Status`].
    Status,
    /// Asks for group `cursor` of the counters, from 0. Answer: [`Reply::Stat`].
    Stat {
        /// Which group.
        cursor: u32,
    },
    /// Takes a grant, or all grants of a name, back for good: the name is refused until
    /// [`Request::Restore`]. Answer: [`Reply::Revoked`]. Administrators only.
    Revoke {
        /// What.
        target: Target,
    },
    /// Lets a revoked name be acquired again. Answer: [`Reply::Done`]. Administrators only.
    Restore {
        /// The name.
        name: String,
    },
    /// Reads `sietch.toml` again. Grants that are held stay as they are. Answer: [`Reply::Done`].
    /// Administrators only.
    Reload,
    /// Takes everything down. Answer: [`Reply::Done`], then the daemon ends. Administrators only.
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

/// A grant an application says it holds.
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
    /// To View: what the holder said, checked. Descriptor: the bytes that were asked for.
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
    /// To Revoke: one line for each thing taken back, saying what now stops the former holder.
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

/// A VNIC handed out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VnicGrant {
    /// Names this grant in Release, Adopt and notices.
    pub grant: u64,
    /// Grows with each grant of any device: what carries an older one is stale.
    pub generation: u64,
    /// The VNIC's name.
    pub name: String,
    /// What stands at its other end.
    pub kind: VnicKind,
    /// What it is bound to, for display: an interface, `switch`, or `link NAME`.
    pub interface: String,
    /// The VNIC's Ethernet address: frames with another source are dropped.
    pub mac: Mac,
    /// The VNIC's address: packets with another source are dropped.
    pub address: Ipv4Addr,
    /// Bits of the prefix of the network the address lies in.
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
    /// Who is at the other end of a link.
    pub peer: Option<LinkPeer>,
    /// The largest IP packet, in bytes.
    pub mtu: u32,
    /// Of its queue pair.
    pub geometry: QueueLayout,
    /// Who enforces the filters.
    pub protection: Protection,
    /// Local TCP ports the filters let through.
    pub tcp_ports: Vec<PortRange>,
    /// Local UDP ports the filters let through.
    pub udp_ports: Vec<PortRange>,
    /// Networks of IPv4 the VNIC may talk to.
    pub peers: Vec<Network>,
    /// Networks of IPv6 the VNIC may talk to. None beside a network of no bits in `peers`:
    /// everybody.
    #[serde(default)]
    pub peers6: Vec<Network6>,
    /// What it may send; without one there is no bound.
    pub rate: Option<Rate>,
    /// Of a VNIC that the service core holds for programs of a user: that user.
    #[serde(default)]
    pub user: Option<u32>,
}

/// The other end of a link, whether somebody has it yet or not.
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
    pub geometry: SharedLayout,
}

/// What the holder of a VNIC said of its sockets.
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

/// A VSA handed out.
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
    /// Who keeps the application inside it.
    pub protection: Protection,
    /// Where the file lies, for display: the descriptor is the capability.
    pub path: String,
    /// Of an area in memory that has grown while it was held: how many bytes of each descriptor are
    /// its, in order. Otherwise there is one, and this is empty.
    #[serde(default, rename = "parts")]
    pub segments: Vec<u64>,
    /// How slow the memory is to make itself. The queue of the application does that: it holds
    /// nobody to it.
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
    /// Whether it still stands.
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
    /// Where `sietch.toml` lies.
    pub configuration: String,
    /// Where state and areas lie.
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
    /// Things that are wrong and that somebody should look at.
    pub warnings: Vec<String>,
}

/// A VNIC of `sietch.toml`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VnicStatus {
    /// Its name.
    pub name: String,
    /// The user who may have it.
    pub uid: u32,
    /// What stands at its other end.
    pub kind: VnicKind,
    /// Its address.
    pub address: Network,
    /// Its IPv6 address.
    pub address6: Option<Network6>,
    /// Its Ethernet address.
    pub mac: Mac,
    /// The host's end of the veth pair while somebody holds it; `link NAME` of an end of a link.
    pub interface: Option<String>,
    /// The name of a link's other end.
    pub peer: Option<String>,
    /// Who enforces the filters.
    pub protection: Protection,
    /// What it may send.
    pub rate: Option<Rate>,
    /// Whether it was revoked and waits for Restore.
    pub revoked: bool,
    /// Who has it.
    pub holder: Option<GrantStatus>,
    /// Why no frame passes although somebody holds it, or what of its protection is missing.
    #[serde(default, rename = "trouble")]
    pub problem: Option<String>,
}

/// A VSA of `sietch.toml`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VsaStatus {
    /// Its name.
    pub name: String,
    /// The user who may have it.
    pub uid: u32,
    /// Bytes.
    pub size: u64,
    /// Its file.
    pub path: String,
    /// Who keeps the application inside it.
    pub protection: Protection,
    /// How slow its memory makes itself, if so.
    #[serde(default)]
    pub model: Option<MemoryModel>,
    /// Whether it was revoked and waits for Restore.
    pub revoked: bool,
    /// Who has it.
    pub holder: Option<GrantStatus>,
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
    /// A grant was taken back: its descriptors no longer reach the device.
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
    /// To the service core: a volume on which areas will lie that it is to serve. Descriptor: its
    /// file or device.
    Volume {
        /// Its name.
        name: String,
        /// Bytes of it.
        bytes: u64,
    },
    /// To the service core: an area that it is to serve from now on. Descriptors: the shared
    /// memory, its end of the doorbell.
    Area(Box<AreaGrant>),
    /// To the service core: an area lies elsewhere from now on. Answer with [`Request::Reshaped`]
    /// when nothing of it is under way that lies outside.
    Reshape {
        /// The grant of the area.
        grant: u64,
        /// Where it lies.
        extents: Vec<AreaExtent>,
    },
    /// To the service core: the grant of an area has ended. Answer with [`Request::Detached`] when
    /// nothing of it is under way.
    Detach {
        /// The grant of the area.
        grant: u64,
    },
    /// Somebody asks for the sockets of a VNIC. Answer with [`Request::Inform`].
    Inquiry {
        /// To be repeated in the answer.
        id: u64,
        /// The grant of the VNIC.
        grant: u64,
    },
    /// Somebody wants the frames of a VNIC. Descriptor: the ring. Answer with [`Request::Inform`].
    Capture {
        /// To be repeated in the answer.
        id: u64,
        /// The grant of the VNIC.
        grant: u64,
    },
    /// Somebody asks about the view of a VSA. Answer with [`Request::Show`].
    View {
        /// To be repeated in the answer.
        id: u64,
        /// The grant of the VSA.
        grant: u64,
        /// Who asks; the daemon has looked whether that user may read the area.
        uid: u32,
        /// What is asked.
        question: ViewRequest,
    },
    /// Nobody reads that capture any more.
    EndCapture {
        /// As in [`Notice::Capture`].
        id: u64,
        /// The grant of the VNIC.
        grant: u64,
    },
    /// `sietch.toml` was read again. To connections that have said [`Request::Attend`].
    Reloaded,
    /// The daemon ends and takes its devices down.
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
    /// The kernel says that this user or process may not.
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
    #[serde(rename = "mend")]
    pub fix: String,
}

#[cfg(test)]
mod tests;
