//! Frames: a length, a JSON text, and descriptors that ride on the first byte.
//!
//! ```text
//!  0        4                  4 + length
//!  +--------+-------- - - - - -+
//!  | length | JSON text        |      length: u32, little-endian, 1 ..= MAX_FRAME
//!  +--------+-------- - - - - -+
//!  ^ SCM_RIGHTS with at most MAX_DESCRIPTORS descriptors
//! ```
//!
//! 1. [`FrameReader`] never reads beyond the frame it is in: the header first, then exactly the
//!    body. The kernel ends a read at the bytes that carry descriptors, so what arrives during a
//!    frame belongs to it.
//! 2. A descriptor anywhere but at the first read of a frame, or more than [`MAX_DESCRIPTORS`], is
//!    an error: the connection is over. Every descriptor received is owned at once and so is closed
//!    on every path.
//!    Closing one takes as long as its sender likes ([`crate::closer`]). A reader of processes that
//!    it does not trust therefore says what owns a descriptor ([`FrameReader::read_with`]). And
//!    there is room for as many as a message can have ([`MOST_IN_MESSAGE`]): the kernel closes
//!    those without room in the thread that reads.
//! 3. [`FrameWriter`] sends a frame in as many pieces as the socket takes; the descriptors go with
//!    the first.
//! 4. Both work on blocking and non-blocking sockets: on the latter `Blocked` means "call again
//!    when ready".
//! 5. Decoding a text cannot allocate more than a small multiple of `MAX_FRAME`; serde_json
//!    bounds the depth.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::limits::shown;

/// The longest text, in bytes: a Status of 64 VNICs and 64 VSAs and a Stat group of a full metrics
/// page fit, and a client cannot make the daemon hold more than this for it.
pub(crate) const MAX_FRAME: usize = 64 * 1024;

/// The most descriptors a frame carries: a VNIC needs three, an area in memory one a part, and it
/// can double its size at each.
pub const MAX_DESCRIPTORS: usize = 16;

/// The most descriptors that the kernel permits in a message (`SCM_MAX_FD`, unix(7)).
pub const MOST_IN_MESSAGE: usize = 253;

/// Bytes of the length.
pub(crate) const HEADER: usize = 4;

/// Why a connection cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The length is beyond the bound.
    #[error(
        "control socket: a frame of {length} bytes is over the limit of {MAX_FRAME}; the peer does not speak this protocol"
    )]
    TooLong {
        /// As announced.
        length: usize,
    },
    /// The length is zero.
    #[error("control socket: an empty frame; the peer does not speak this protocol")]
    Empty,
    /// The stream ended inside a frame.
    #[error("control socket: the peer closed the connection in the middle of a frame; reconnect")]
    Truncated,
    /// More descriptors than a frame may carry.
    #[error(
        "control socket: a frame with more than {MAX_DESCRIPTORS} descriptors; the peer does not speak this protocol, or this process is at its limit of open files"
    )]
    TooManyDescriptors,
    /// Descriptors after the first byte.
    #[error("control socket: descriptors in the middle of a frame; the peer does not speak this protocol")]
    StrayDescriptors,
    /// The text is not the message it should be. The reason may quote the text, so it is escaped
    /// and cut.
    #[error(
        "control socket: a message that cannot be understood ({0}); the two sides may have different versions"
    )]
    Text(String),
    /// The socket failed.
    #[error("control socket: {0}")]
    Socket(#[source] io::Error),
}

/// A whole frame as it arrived.
#[derive(Debug)]
pub struct Frame<D = OwnedFd> {
    /// The text.
    pub text: Vec<u8>,
    /// The descriptors, in the order they were sent.
    pub descriptors: Vec<D>,
}

/// The progress of a read or a write.
#[derive(Debug)]
pub enum Progress<T> {
    /// All of it.
    Ready(T),
    /// The socket has no more for now.
    Blocked,
    /// The peer closed the connection between two frames.
    Closed,
}

/// A message as a length and a text.
///
/// # Errors
/// [`FrameError::TooLong`] if the text is over `MAX_FRAME`.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, FrameError> {
    let mut bytes = vec![0; HEADER];
    serde_json::to_writer(&mut bytes, message).map_err(|error| unreadable(&error))?;
    let length = bytes.len() - HEADER;
    if length > MAX_FRAME {
        return Err(FrameError::TooLong { length });
    }
    let header = u32::try_from(length).map_err(|_| FrameError::TooLong { length })?;
    bytes[..HEADER].copy_from_slice(&header.to_le_bytes());
    Ok(bytes)
}

/// The message in a frame's text.
///
/// # Errors
/// [`FrameError::Text`].
pub fn decode<T: DeserializeOwned>(text: &[u8]) -> Result<T, FrameError> {
    serde_json::from_slice(text).map_err(|error| unreadable(&error))
}

fn unreadable(error: &serde_json::Error) -> FrameError {
    FrameError::Text(shown(&error.to_string()))
}

/// The length that a header announces.
///
/// # Errors
/// [`FrameError::Empty`] and [`FrameError::TooLong`].
pub(crate) fn body_length(header: [u8; HEADER]) -> Result<usize, FrameError> {
    let length = usize::try_from(u32::from_le_bytes(header)).unwrap_or(usize::MAX);
    match length {
        0 => Err(FrameError::Empty),
        _ if length > MAX_FRAME => Err(FrameError::TooLong { length }),
        _ => Ok(length),
    }
}

/// Assembles frames from a socket; the module has the rules.
#[derive(Debug)]
pub struct FrameReader<D = OwnedFd> {
    header: [u8; HEADER],
    /// Bytes of the frame that have arrived, header included.
    have: usize,
    body: Vec<u8>,
    descriptors: Vec<D>,
}

impl<D> Default for FrameReader<D> {
    fn default() -> Self {
        Self::new()
    }
}

impl FrameReader {
    /// Reads until a frame is whole or the socket has no more.
    ///
    /// # Errors
    /// See [`FrameError`]; after one the connection is of no use.
    pub fn read<S: AsFd>(&mut self, socket: S) -> Result<Progress<Frame>, FrameError> {
        self.read_with(socket, |descriptor| descriptor)
    }
}

impl<D> FrameReader<D> {
    /// Between two frames.
    pub const fn new() -> Self {
        Self { header: [0; HEADER], have: 0, body: Vec::new(), descriptors: Vec::new() }
    }

    /// Whether a frame has begun and not ended: the daemon's read deadline runs while it is so.
    pub fn in_frame(&self) -> bool {
        self.have > 0
    }

    /// As [`FrameReader::read`], with an owner for each descriptor as soon as it was received.
    ///
    /// # Errors
    /// See [`FrameError`]; after one the connection is of no use, and may hold descriptors.
    pub fn read_with<S: AsFd>(
        &mut self,
        socket: S,
        mut own: impl FnMut(OwnedFd) -> D,
    ) -> Result<Progress<Frame<D>>, FrameError> {
        loop {
            let count = match self.read_some(socket.as_fd(), &mut own) {
                Err(rustix::io::Errno::INTR) => continue,
                Err(rustix::io::Errno::AGAIN) => return Ok(Progress::Blocked),
                Err(rustix::io::Errno::CONNRESET) if !self.in_frame() => {
                    return Ok(Progress::Closed);
                }
                Err(error) => return Err(FrameError::Socket(error.into())),
                Ok(outcome) => outcome?,
            };
            if count == 0 {
                return if self.in_frame() { Err(FrameError::Truncated) } else { Ok(Progress::Closed) };
            }
            self.have += count;
            if self.have == HEADER {
                self.body = vec![0; body_length(self.header)?];
            }
            if self.have >= HEADER && self.have == HEADER + self.body.len() {
                self.have = 0;
                return Ok(Progress::Ready(Frame {
                    text: std::mem::take(&mut self.body),
                    descriptors: std::mem::take(&mut self.descriptors),
                }));
            }
        }
    }

    fn read_some(
        &mut self,
        socket: BorrowedFd<'_>,
        own: impl FnMut(OwnedFd) -> D,
    ) -> rustix::io::Result<Result<usize, FrameError>> {
        let first = self.have == 0;
        let target = match self.have.checked_sub(HEADER) {
            None => &mut self.header[self.have..],
            Some(at) => &mut self.body[at..],
        };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_IN_MESSAGE))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(target)], &mut control, flags)?;
        let before = self.descriptors.len();
        let arrived = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        });
        self.descriptors.extend(arrived.flatten().map(own));
        if received.flags.contains(ReturnFlags::CTRUNC) || self.descriptors.len() > MAX_DESCRIPTORS {
            return Ok(Err(FrameError::TooManyDescriptors));
        }
        if !first && self.descriptors.len() > before {
            return Ok(Err(FrameError::StrayDescriptors));
        }
        Ok(Ok(received.bytes))
    }
}

/// A frame that is being sent.
#[derive(Debug)]
pub struct FrameWriter<D = OwnedFd> {
    bytes: Vec<u8>,
    sent: usize,
    descriptors: Vec<D>,
}

impl<D: AsFd> FrameWriter<D> {
    /// `bytes` as [`encode`] made them, with at most [`MAX_DESCRIPTORS`] descriptors.
    ///
    /// # Errors
    /// [`FrameError::TooManyDescriptors`].
    pub fn new(bytes: Vec<u8>, descriptors: Vec<D>) -> Result<Self, FrameError> {
        if descriptors.len() > MAX_DESCRIPTORS {
            return Err(FrameError::TooManyDescriptors);
        }
        Ok(Self { bytes, sent: 0, descriptors })
    }

    /// Sends as much as the socket accepts. `Closed` if the peer has closed the connection.
    ///
    /// # Errors
    /// [`FrameError::Socket`].
    pub fn write<S: AsFd>(&mut self, socket: S) -> Result<Progress<()>, FrameError> {
        use rustix::io::Errno;
        while self.sent < self.bytes.len() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            let borrowed: Vec<BorrowedFd<'_>> = self.descriptors.iter().map(AsFd::as_fd).collect();
            if !borrowed.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&borrowed)) {
                return Err(FrameError::TooManyDescriptors);
            }
            let piece = [IoSlice::new(&self.bytes[self.sent..])];
            match rustix::net::sendmsg(socket.as_fd(), &piece, &mut control, SendFlags::NOSIGNAL) {
                Ok(count) => {
                    self.sent += count;
                    self.descriptors.clear();
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(Progress::Blocked),
                Err(Errno::PIPE | Errno::CONNRESET) => return Ok(Progress::Closed),
                Err(error) => return Err(FrameError::Socket(error.into())),
            }
        }
        Ok(Progress::Ready(()))
    }
}

#[cfg(test)]
mod tests;
