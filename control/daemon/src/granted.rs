//! Descriptors that are granted.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use sietch_protocol::closer::PeerSocket;

/// A descriptor on its way to a client. This process may be the last to have it, wherever it is
/// dropped.
pub(crate) enum GrantedDescriptor {
    /// Of memory, of a file or of a socket that no other process has used.
    Own(OwnedFd),
    /// An end of a pair whose other end has a process that is not trusted.
    Peer(PeerSocket),
}

impl From<OwnedFd> for GrantedDescriptor {
    fn from(own: OwnedFd) -> Self {
        Self::Own(own)
    }
}

impl AsFd for GrantedDescriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Own(own) => own.as_fd(),
            Self::Peer(socket) => socket.as_fd(),
        }
    }
}
