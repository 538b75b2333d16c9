//! The sender of a request, and the answer.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use serde::Serialize;
use sietch_protocol::socket_service::{MAX_DESCRIPTORS, Reply, ReplyKind};

use super::table::ConnectionId;
use crate::requests::application::Application;
use crate::requests::listing::sealed;

/// The sender of a request, from SO_PEERCRED.
#[derive(Debug, Clone, Copy)]
pub(super) struct Caller {
    pub uid: u32,
    /// 0: the process runs outside the PID namespace of the service.
    pub pid: i32,
    /// The request came over the administrators' socket. A uid alone never makes an administrator:
    /// a container's root has uid 0 too.
    pub administers: bool,
}

impl Caller {
    /// Returns the user whose open requests include this one; `None` for administrators.
    pub(super) fn bucket(self) -> Option<u32> {
        (!self.administers).then_some(self.uid)
    }

    /// Returns whether it may see and end what this application has. Host and containers share
    /// uid 0, so uid 0 sees nothing here.
    pub(super) fn may_see(self, application: Application) -> bool {
        self.administers || (self.uid != 0 && application.uid == self.uid)
    }
}

/// An answer, and the descriptors that go with it.
#[derive(Debug)]
pub(super) struct Answer {
    pub reply: Reply,
    /// Descriptors that are sent, and closed here afterwards.
    pub own: [Option<OwnedFd>; MAX_DESCRIPTORS],
    /// The connection and end whose memory is sent after those, and kept here: the common memory
    /// and the private page of this end.
    pub memory: Option<(ConnectionId, usize)>,
    /// Descriptors of the request that are not kept: closed before the answer is sent.
    pub spent: Vec<OwnedFd>,
    /// Marks of those that are listening sockets.
    pub marks: Vec<Arc<()>>,
    /// The same, whose close no program can observe: closed after the answer.
    pub later: Vec<OwnedFd>,
    /// The program's socket was bound to a name, which the new connection has now.
    pub bound: bool,
}

impl From<Reply> for Answer {
    fn from(reply: Reply) -> Self {
        Self {
            reply,
            own: [const { None }; MAX_DESCRIPTORS],
            memory: None,
            spent: Vec::new(),
            marks: Vec::new(),
            later: Vec::new(),
            bound: false,
        }
    }
}

impl Answer {
    pub(super) fn with(reply: Reply, descriptor: OwnedFd) -> Self {
        let mut answer = Self::from(reply);
        answer.own[0] = Some(descriptor);
        answer
    }

    /// Answers with a value as JSON in a sealed memfd, or with an error number.
    pub(super) fn sealed(what: Result<impl Serialize, Errno>) -> Self {
        match what.and_then(|what| sealed(&what)) {
            Ok(file) => Self::with(Reply::new(ReplyKind::Listed), file),
            Err(error) => Self::refused(error),
        }
    }

    pub(super) fn refused(errno: Errno) -> Self {
        Reply::refused(errno).into()
    }

    pub(super) fn use_kernel() -> Self {
        Reply::new(ReplyKind::UseKernel).into()
    }

    pub(super) fn having_spent(self, spent: Vec<OwnedFd>) -> Self {
        Self { spent, ..self }
    }
}
