//! The events that the control task handles, and the answers and notices that it sends.

use std::os::fd::OwnedFd;
use std::time::Instant;

use sietch_protocol::closer::SentDescriptor;
use sietch_protocol::{ErrorReply, Notice, Reply, Request};
use tokio::sync::{mpsc, oneshot};

use crate::device::worker::Timed;
use crate::device::{DeviceError, OpenedVnic, RingViolation, UplinkBefore};
use crate::granted::GrantedDescriptor;
use crate::identity::Process;
use crate::volume::{AreaChange, AreaDescriptors, AreaPath};

/// An event for the control task.
pub(crate) enum Event {
    /// A client has connected.
    Connected {
        connection: u64,
        process: Process,
        administers: bool,
        pidfd: OwnedFd,
        outbox: mpsc::Sender<Outgoing>,
    },
    /// It sends a request.
    Request {
        connection: u64,
        request: Request,
        descriptors: Vec<SentDescriptor>,
        answer: oneshot::Sender<Answer>,
    },
    /// It has disconnected.
    Disconnected { connection: u64 },
    /// A process has ended.
    Exited(Process),
    /// A process has been without a connection for [`GRACE`](super::controller::GRACE), unless
    /// `epoch` is over.
    Alone { process: Process, epoch: u64 },
    /// The area of a grant was made and opened, or this failed.
    Area {
        grant: u64,
        name: String,
        result: Result<AreaDescriptors, ErrorReply>,
        answer: oneshot::Sender<Answer>,
    },
    /// What the uplink is like before a VNIC is made for `user`.
    UplinkFound {
        grant: u64,
        before: Option<UplinkBefore>,
        user: Option<u32>,
        answer: oneshot::Sender<Answer>,
    },
    /// A VNIC for `user` was made, or this failed.
    Opened {
        grant: u64,
        opened: Timed<Result<OpenedVnic, DeviceError>>,
        user: Option<u32>,
        answer: oneshot::Sender<Answer>,
    },
    /// A VNIC was bound, or this failed.
    Bound { grant: u64, bound: Result<(), DeviceError>, answer: oneshot::Sender<Answer> },
    /// A VNIC was removed, or this failed.
    Closed { grant: u64, closed: Timed<Result<(), DeviceError>> },
    /// Names of VNICs that pass no frames, and why, for the answer to Status.
    Examined { problems: Vec<(String, String)>, answer: oneshot::Sender<Answer> },
    /// The rings of VNICs were checked.
    RingsChecked(Vec<RingViolation>),
    /// A change of an area is done, or failed. With the descriptors that `requester`, if it holds
    /// the area, is to map from now on.
    Worked {
        path: AreaPath,
        change: AreaChange,
        result: Result<Option<AreaDescriptors>, ErrorReply>,
        requester: Option<Process>,
        answer: oneshot::Sender<Answer>,
    },
    /// An area that was left, and that a process could write to, has been shut, or this failed.
    Shut { label: String, left: LeftArea, result: Result<(), String> },
    /// The time for a diagnostic answer of an application is over.
    Overdue { question: u64 },
    /// The time for the reply of a view is over.
    ViewOverdue { question: u64 },
    /// Check the sizes of areas.
    Inspect,
    /// Check the rings of VNICs.
    CheckRings,
    /// End the daemon, and why.
    Stop(&'static str),
}

/// A notice on its way to a client.
pub(crate) struct Outgoing {
    pub notice: Notice,
    pub descriptors: Vec<GrantedDescriptor>,
}

/// The answer to a request.
pub(crate) struct Answer {
    pub body: Reply,
    pub descriptors: Vec<GrantedDescriptor>,
}

impl From<Reply> for Answer {
    fn from(body: Reply) -> Self {
        Self { body, descriptors: Vec::new() }
    }
}

/// An area whose grant has ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeftArea {
    /// The user that held it.
    pub(super) uid: u32,
    /// When it was left.
    pub(super) at: Instant,
}
