//! The socket of a client, which no thread that serves others closes.

use std::ops::Deref;

use std::os::fd::OwnedFd;

use sietch_protocol::FrameWriter;
use sietch_protocol::closer::Closer;
use sietch_protocol::frame::encode;
use sietch_protocol::message::{ErrorKind, ErrorReply, Reply, ServerFrame};
use tokio::net::UnixStream;

/// The user whom the kernel does not name.
pub(super) const UNKNOWN: u32 = u32::MAX;
/// All administrators, whom what others of their uid have sent does not keep out.
pub(super) const ADMINISTRATORS: u32 = u32::MAX - 1;

/// A client's connection. Dropped, a thread that may hang closes it, because descriptors may be
/// queued in it.
pub(super) struct ClientSocket {
    /// Some until it is dropped.
    stream: Option<UnixStream>,
    uid: u32,
    closer: Closer,
}

impl ClientSocket {
    pub(super) fn new(stream: UnixStream, uid: u32, closer: &Closer) -> Self {
        Self { stream: Some(stream), uid, closer: closer.clone() }
    }

    /// The user of the client, or [`ADMINISTRATORS`].
    pub(super) const fn uid(&self) -> u32 {
        self.uid
    }

    /// Where what it sends is closed.
    pub(super) const fn closer(&self) -> &Closer {
        &self.closer
    }

    fn take(&mut self) -> Option<OwnedFd> {
        Some(self.stream.take()?.into_std().ok()?.into())
    }

    /// Closes it, of a user of whom too much waits to be closed.
    pub(super) fn park(mut self) {
        if let Some(socket) = self.take() {
            self.closer.park(self.uid, socket);
        }
    }
}

impl Deref for ClientSocket {
    type Target = UnixStream;

    fn deref(&self) -> &UnixStream {
        match &self.stream {
            Some(stream) => stream,
            // It is `None` only within `park` and `drop`.
            None => unreachable!("a socket that was taken out is not used"),
        }
    }
}

impl Drop for ClientSocket {
    fn drop(&mut self) {
        if let Some(socket) = self.take() {
            self.closer.close(self.uid, socket);
        }
    }
}

/// Sends the reason and closes the connection. Whether the client reads it does not matter.
pub(super) fn refuse_connection(stream: &UnixStream, cause: &str, fix: &str) {
    let error = ErrorReply {
        kind: ErrorKind::Limit,
        what: "connection".to_owned(),
        cause: cause.to_owned(),
        fix: fix.to_owned(),
    };
    let frame = ServerFrame::Reply { id: 0, body: Reply::Error(error) };
    if let Ok(bytes) = encode(&frame)
        && let Ok(mut writer) = FrameWriter::<OwnedFd>::new(bytes, Vec::new())
    {
        let _ = writer.write(stream);
    }
}
