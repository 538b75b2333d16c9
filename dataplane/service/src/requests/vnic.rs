//! A request about a VNIC: the socket service has read it, and the VNIC's thread answers it.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use sietch_protocol::socket_service::{Reply, Request, RequestKind};

use super::descriptors::{ListenerPair, RequestDescriptors};

/// A request of an application, with what the kernel says about its sender.
#[derive(Debug)]
pub struct VnicRequest {
    /// The sender's user, from SO_PEERCRED.
    pub uid: u32,
    /// The request came over the administrators' socket.
    pub administers: bool,
    /// The request as it was sent.
    pub request: Request,
    /// The kind of the request, already validated.
    pub kind: RequestKind,
    /// The descriptors that came with it. No thread of a VNIC closes them.
    pub descriptors: RequestDescriptors,
    /// For [`RequestKind::Listen`]: the listener's pair, the service's end and the placeholder,
    /// where the socket service has a part in it (published ports). The VNIC shuts it down when the
    /// listener closes.
    pub pair: Option<ListenerPair>,
    /// For [`RequestKind::Revoke`]: end nothing, and answer whose application is meant.
    pub dry_run: bool,
    /// The connection over which the answer goes.
    pub socket: OwnedFd,
}

impl VnicRequest {
    /// Answers with an error number.
    pub fn refuse(self, error: Errno) {
        self.descriptors.answer(self.socket, Reply::refused(error), Vec::new());
    }
}
