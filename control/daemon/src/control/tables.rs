//! What the control task remembers of each subject beside the grants. The subjects' files have the
//! rules; here are the values.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use sietch_nic::shm::{EndpointFds, Revocation};
use sietch_protocol::Request;
use sietch_protocol::view::ViewOperation;
use tokio::sync::oneshot;

use super::event::Answer;
use crate::volume::{AreaChange, AreaPath, Volume};

/// An area that is being made, opened or changed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pending {
    pub(super) uid: u32,
    /// Bytes that the area will take and does not take yet.
    pub(super) more: u64,
}

impl Pending {
    /// An area that is being opened: it takes no additional bytes.
    pub(super) const OPENING: Self = Self { uid: 0, more: 0 };
}

/// A request that waits until an area has left the service core.
pub(super) struct WaitingRequest {
    pub(super) label: String,
    pub(super) connection: u64,
    pub(super) request: Request,
    pub(super) answer: oneshot::Sender<Answer>,
}

/// The next step once the service core has an area's new extents.
pub(super) enum AfterReshape {
    /// The area has grown: answer the request.
    Answer(AreaPath, oneshot::Sender<Answer>),
    /// No request to the bytes that are cut off is in flight: change the volume.
    Change(AreaPath, Arc<Volume>, AreaChange, u64, oneshot::Sender<Answer>),
}

/// Volumes and areas that the service core has.
#[derive(Default)]
pub(super) struct Brokered {
    /// The connection that serves storage.
    pub(super) service: Option<u64>,
    /// Volumes whose descriptor it has.
    pub(super) volumes: BTreeSet<String>,
    /// Labels of areas whose detaching was requested from the core, by grant.
    pub(super) leaving: BTreeMap<u64, String>,
    pub(super) waiting: Vec<WaitingRequest>,
    pub(super) reshaping: BTreeMap<u64, AfterReshape>,
    /// Until when a connection's request waits for a volume to be free.
    pub(super) deadlines: BTreeMap<u64, Instant>,
}

/// Why a VNIC is being closed.
pub(super) enum Ending {
    /// It was released, or its process has ended.
    Ended(String),
    /// It was revoked: its holder is notified.
    Revoked(String),
}

/// A request that waits until a VNIC is closed.
pub(super) enum Waiter {
    /// Its holder, which releases it.
    Release(oneshot::Sender<Answer>),
    /// An administrator, for the line about it.
    Revocation(oneshot::Sender<String>),
    /// A request for the same name.
    Acquisition { connection: u64, name: String, answer: oneshot::Sender<Answer> },
}

/// A VNIC that is being closed.
pub(super) struct Closing {
    pub(super) ending: Ending,
    pub(super) waiters: Vec<Waiter>,
}

/// The memory of a link: what revokes it, and the sides that no process has acquired.
pub(super) struct LinkPair {
    pub(super) revocation: Revocation,
    pub(super) waiting: [Option<EndpointFds>; 2],
}

/// Pairs that this daemon has made and of which a process holds an end, by their number.
#[derive(Default)]
pub(super) struct LinkPairs(pub(super) BTreeMap<u64, LinkPair>);

/// The service core's connection, and what revokes the ports of its switch.
#[derive(Default)]
pub(super) struct SwitchPorts {
    pub(super) service: Option<u64>,
    pub(super) revocations: BTreeMap<u64, Revocation>,
}

/// The subject of a query to an application.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DiagnosticKind {
    Sockets,
    Capture,
}

/// A question to an application.
pub(super) struct DiagnosticQuestion {
    pub(super) kind: DiagnosticKind,
    /// The connection that waits for the answer.
    pub(super) requester: u64,
    /// The connection that was queried.
    pub(super) responder: u64,
    pub(super) grant: u64,
    pub(super) answer: oneshot::Sender<Answer>,
}

/// A capture that runs.
pub(super) struct Capture {
    pub(super) id: u64,
    pub(super) requester: u64,
    pub(super) grant: u64,
}

/// Questions that wait, and captures that run.
#[derive(Default)]
pub(super) struct Diagnostics {
    pub(super) next: u64,
    pub(super) waiting: BTreeMap<u64, DiagnosticQuestion>,
    pub(super) captures: Vec<Capture>,
}

/// A request about a view, which its holder is to answer.
pub(super) struct PendingView {
    /// The path of the area, for messages.
    pub(super) path: String,
    pub(super) operation: ViewOperation,
    /// The connection that was queried.
    pub(super) responder: u64,
    pub(super) grant: u64,
    pub(super) answer: oneshot::Sender<Answer>,
}

/// Requests about views that wait.
#[derive(Default)]
pub(super) struct ViewRequests {
    pub(super) next: u64,
    pub(super) waiting: BTreeMap<u64, PendingView>,
    /// Replies that each connection owes.
    pub(super) owed: BTreeMap<u64, usize>,
}
