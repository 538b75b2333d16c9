//! An open listener: its descriptors, and the connections that wait at it.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use rustix::event::epoll::EventFlags;
use sietch_protocol::socket_service::Arrival;

use crate::sockets::registry::cookie_of;
use crate::sockets::table::ConnectionId;

/// The owner of descriptors whose listener is not known any more: no user has this uid.
pub(in crate::sockets) const UNKNOWN_UID: u32 = u32::MAX;

/// The listener to which a published port leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::sockets) struct PublishTarget {
    /// The VNIC of the listener; `None` if it is on an address of the host.
    pub vnic: Option<String>,
    /// The listener's name.
    pub name: String,
}

impl std::fmt::Display for PublishTarget {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.vnic {
            Some(vnic) => write!(formatter, "{vnic} {}", self.name),
            None => formatter.write_str(&self.name),
        }
    }
}

/// A listener's descriptors, and the connections that wait at it.
#[derive(Debug)]
pub(in crate::sockets) struct OpenListener {
    /// The service's end of its pair.
    pub pair: OwnedFd,
    /// The cookie of its placeholder, the program's end of the pair.
    pub cookie: u64,
    /// The kernel's listening socket.
    pub kernel: Option<OwnedFd>,
    /// For a published port: the listener to which it leads, whose pair it shares.
    pub leads_to: Option<PublishTarget>,
    pub waiting: VecDeque<PendingConnection>,
    /// The cookie of the kernel's socket. Listeners of one socket are a group: the kernel has one
    /// queue for all of them.
    pub group: u64,
    /// The events that are watched on the pair, and whether the kernel's socket is watched.
    pub watched: (EventFlags, bool),
    /// An arrival could not be sent because the kernel had no resources. No event reports when that
    /// is over.
    pub exhausted: bool,
    /// The program could not map a connection: later clients are left to the kernel.
    pub takes_no_memory: bool,
}

/// A connection that waits because the pair is full.
#[derive(Debug)]
pub(in crate::sockets) enum PendingConnection {
    /// The accepting end's placeholder; its memory is in the registry.
    Stream(ConnectionId, OwnedFd),
    /// A socket of the kernel.
    Kernel(Arrival, OwnedFd),
}

/// The result of delivering a connection to a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::sockets) enum Delivery {
    /// It is queued in the pair.
    Sent,
    /// The pair is full.
    Full,
    /// The listener is closed.
    Closed,
}

impl OpenListener {
    /// Makes a listener without connections, which is not yet watched.
    pub(crate) fn new(
        pair: OwnedFd,
        cookie: u64,
        kernel: Option<OwnedFd>,
        leads_to: Option<PublishTarget>,
    ) -> Self {
        let group = kernel.as_ref().and_then(|kernel| cookie_of(kernel).ok()).unwrap_or(cookie);
        let watched = (EventFlags::empty(), false);
        Self {
            pair,
            cookie,
            kernel,
            leads_to,
            waiting: VecDeque::new(),
            group,
            watched,
            exhausted: false,
            takes_no_memory: false,
        }
    }

    /// Returns the events that are watched on the pair of a listener with room. Messages of the
    /// program concern the listener to which a published port leads, so the port does not read
    /// them.
    pub(crate) fn events(&self) -> EventFlags {
        if self.leads_to.is_some() { EventFlags::empty() } else { EventFlags::IN.union(EventFlags::RDHUP) }
    }
}
