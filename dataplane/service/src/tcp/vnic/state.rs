//! The state of a VNIC. The other files of this folder are layers above it; each adds the methods
//! of its subject to [`Vnic`].

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::mpsc::Receiver;

use sietch_protocol::closer::PeerSocket;
use sietch_protocol::socket_service::{Arrival, Reply};
use sietch_ring::stream::RegionSizes;
use sietch_structures::Key;

use super::access::Access;
use crate::requests::revocation::RevocationList;
use crate::requests::vnic::VnicRequest;
use crate::sockets::CommandSender;
use crate::tcp::host::Host;
use crate::tcp::stream_channel::StreamChannel;

/// The service's end of a listener's pair.
#[derive(Debug)]
pub(super) struct Pair {
    pub socket: PeerSocket,
    /// The cookie of the placeholder, the program's end.
    pub cookie: u64,
    /// The key of the listener's application.
    pub application: Key,
    /// It is full; an event reports when it has room.
    pub full: bool,
    /// Connections of the same VNIC for which the pair had no room.
    pub local: VecDeque<LocalArrival>,
}

/// The accepting end of a connection between two applications of the VNIC.
#[derive(Debug)]
pub(super) struct LocalArrival {
    pub arrival: Arrival,
    /// The client may have sent something over its own placeholder already.
    pub placeholder: PeerSocket,
    /// Common memory, private page.
    pub memory: [OwnedFd; 2],
}

/// The service's end of the pair that keeps a bound name without a listener.
#[derive(Debug)]
pub(super) struct Reservation {
    pub socket: PeerSocket,
    /// The cookie of the placeholder, the program's end.
    pub cookie: u64,
}

/// What a placeholder represents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placeholder {
    Connection(Key),
    Listener(Key),
    Reservation(Key),
}

/// A VNIC that is served.
#[derive(Debug)]
pub struct Vnic<Q> {
    pub(super) name: String,
    pub(super) access: Access,
    pub(super) region_sizes: RegionSizes,
    pub(super) queue: Q,
    pub(super) host: Host<StreamChannel>,
    pub(super) epoll: OwnedFd,
    pub(super) requests: Receiver<VnicRequest>,
    /// The eventfd that is written when a request was sent.
    pub(super) doorbell: OwnedFd,
    pub(super) socket_service: Option<CommandSender>,
    /// Revoked applications: many try again at once when their connections are reset.
    pub(super) revoked: RevocationList,
    pub(super) pairs: BTreeMap<Key, Pair>,
    pub(super) reservations: BTreeMap<Key, Reservation>,
    pub(super) placeholders: HashMap<u64, Placeholder>,
    /// Cookies of placeholders by connection, forgotten with it.
    pub(super) cookies: HashMap<Key, u64>,
    /// Listeners to which nothing is delivered until `retry_at`, because descriptors or memory were
    /// exhausted.
    pub(super) paused: BTreeSet<Key>,
    pub(super) retry_at: u64,
    pub(super) next_port: u16,
    /// When the doorbells were last polled.
    pub(super) polled_at: u64,
    pub(super) now: u64,
    /// Nanoseconds of iterations that had something to do: since the last sample, and before it.
    pub(in crate::tcp) busy: u64,
    pub(in crate::tcp) worked: u64,
}

/// What an epoll event is about: a key and, in the bits that no index has, a kind.
#[derive(Clone, Copy)]
pub(super) enum Token {
    Requests,
    Connection(Key),
    Pair(Key),
    Reservation(Key),
}

/// The bits of a token's kind, and their values.
const KIND: u64 = 0xc000_0000;
const PAIR: u64 = 0x4000_0000;
const RESERVATION: u64 = 0x8000_0000;

impl Token {
    pub(super) fn word(self) -> u64 {
        match self {
            Self::Requests => 0,
            Self::Connection(key) => key.to_word(),
            Self::Pair(key) => key.to_word() | PAIR,
            Self::Reservation(key) => key.to_word() | RESERVATION,
        }
    }

    pub(super) fn of(word: u64) -> Self {
        match (Key::from_word(word & !KIND), word & KIND) {
            (None, _) => Self::Requests,
            (Some(key), PAIR) => Self::Pair(key),
            (Some(key), RESERVATION) => Self::Reservation(key),
            (Some(key), _) => Self::Connection(key),
        }
    }
}

/// An answer, and the descriptors that go with it and are closed here afterwards.
pub(super) type Answer = (Reply, Vec<OwnedFd>);
