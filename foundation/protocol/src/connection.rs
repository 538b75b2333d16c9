//! A client's connection to the daemon, blocking with a time limit.
//!
//! 1. [`Connection::connect`] connects and exchanges versions.
//! 2. [`Connection::call`] sends one request and waits for its reply; notices that arrive meanwhile
//!    are kept in order for [`Connection::take_notice`].
//! 3. The socket can be polled beside others ([`AsFd`]): when it is readable, call
//!    [`Connection::take_notice`].
//! 4. After any error but [`CallError::Refused`] the connection cannot be used: connect again, and
//!    send [`Request::Adopt`] if the daemon's generation has changed. The grants of the application
//!    keep working meanwhile.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use crate::PROTOCOL;
use crate::administration;
use crate::frame::{self, FrameError, FrameReader, FrameWriter, Progress};
use crate::message::{
    AdoptedGrant, Capturing, ClientFrame, ErrorReply, HeldGrant, Notice, Reply, Request, ServerFrame,
    SocketsAnswer, StatGroup, Status, Target, VnicGrant, VsaGrant, Welcome,
};
use crate::sealed;
use crate::storage::{AreaStatus, HeldStorage, VolumeStatus};
use crate::types::QueueLayout;
use crate::view::{ViewError, ViewOperation, ViewReply, ViewRequest};

/// How long a call waits by default: creating and writing a large VSA takes many seconds.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// Notices kept for the caller. The daemon sends at most one for each grant and one when it ends.
const MAX_NOTICES: usize = 256;

/// The most groups of counters [`Connection::stat`] and areas [`Connection::vsas`] take, so that a
/// broken daemon cannot hold it for ever.
const MAX_GROUPS: usize = 4096;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// No daemon listens there.
    #[error("daemon at {path}: {source}; start it with `sietch up` or `sietch daemon`")]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The daemon refused. The connection is fine.
    #[error("{0}")]
    Refused(#[source] ErrorReply),
    /// The versions differ.
    #[error("daemon speaks protocol {theirs}, this program {ours}; use programs of one version")]
    Version {
        /// The daemon's.
        theirs: u32,
        /// This crate's.
        ours: u32,
    },
    /// The connection broke.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The daemon closed the connection.
    #[error("daemon: closed the connection; it was stopped or restarted: reconnect")]
    Closed,
    /// No answer in time.
    #[error("daemon: no answer within {} s; see whether it is stopped or the disk is slow", .0.as_secs())]
    Timeout(Duration),
    /// An answer that does not fit the request.
    #[error("daemon: an answer that does not fit the request ({0}); use programs of one version")]
    Unexpected(&'static str),
}

/// The descriptors of a VNIC.
#[derive(Debug)]
pub enum VnicDescriptors {
    /// Of a veth VNIC.
    AfXdp {
        /// The bound AF_XDP socket.
        socket: OwnedFd,
        /// The memfd of its UMEM.
        umem: OwnedFd,
    },
    /// Of a shared-memory VNIC.
    Shared(SharedDescriptors),
}

/// One side of a shared-memory queue pair.
#[derive(Debug)]
pub struct SharedDescriptors {
    /// The region that this side alone writes.
    pub own: OwnedFd,
    /// The other side's region, for reading.
    pub peer: OwnedFd,
    /// This side's end of the doorbell.
    pub doorbell: OwnedFd,
}

impl VnicDescriptors {
    /// In the order in which an answer passes them.
    fn arrange(layout: QueueLayout, descriptors: Vec<OwnedFd>) -> Option<Self> {
        match layout {
            QueueLayout::AfXdp(_) => {
                let [socket, umem] = descriptors.try_into().ok()?;
                Some(Self::AfXdp { socket, umem })
            }
            QueueLayout::Shared(_) => {
                let [own, peer, doorbell] = descriptors.try_into().ok()?;
                Some(Self::Shared(SharedDescriptors { own, peer, doorbell }))
            }
        }
    }
}

/// A connection after its handshake.
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
    reader: FrameReader,
    next_id: u64,
    notices: VecDeque<(Notice, Vec<OwnedFd>)>,
    timeout: Duration,
    welcome: Welcome,
}

impl Connection {
    /// Connects to the daemon's socket at `path` as `client` (a name for display). `timeout` bounds
    /// this and each later call.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn connect(path: &Path, client: &str, timeout: Duration) -> Result<Self, CallError> {
        let socket = open(path, timeout)
            .map_err(|source| CallError::Connect { path: path.to_owned(), source: source.into() })?;
        Self::handshake(socket, client, timeout)
    }

    /// Connects over the administrators' socket if this process can reach it ([`administration`]),
    /// else over the public socket at `path`: then the daemon refuses administrators' requests.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn connect_as_administrator(path: &Path, client: &str, timeout: Duration) -> Result<Self, CallError> {
        match open(&administration::administrator_socket(path), timeout) {
            Ok(socket) => Self::handshake(socket, client, timeout),
            Err(error) if administration::is_unreachable(error) => Self::connect(path, client, timeout),
            Err(source) => Err(CallError::Connect { path: path.to_owned(), source: source.into() }),
        }
    }

    /// Performs the handshake over a connected stream socket.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn handshake(socket: OwnedFd, client: &str, timeout: Duration) -> Result<Self, CallError> {
        let flags = rustix::fs::fcntl_getfl(&socket).map_err(into_error)?;
        rustix::fs::fcntl_setfl(&socket, flags | OFlags::NONBLOCK).map_err(into_error)?;
        let welcome = Welcome {
            protocol: PROTOCOL,
            daemon: String::new(),
            generation: 0,
            pid: 0,
            administrator: false,
        };
        let mut connection = Self {
            socket,
            reader: FrameReader::new(),
            next_id: 0,
            notices: VecDeque::new(),
            timeout,
            welcome,
        };
        let hello = Request::Hello { protocol: PROTOCOL, client: client.to_owned() };
        match connection.call(&hello, &[])? {
            (Reply::Welcome(welcome), _) if welcome.protocol == PROTOCOL => connection.welcome = welcome,
            (Reply::Welcome(welcome), _) => {
                return Err(CallError::Version { theirs: welcome.protocol, ours: PROTOCOL });
            }
            _ => return Err(CallError::Unexpected("no welcome")),
        }
        Ok(connection)
    }

    /// Bounds each later call by `timeout`.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// The daemon's side of the handshake.
    pub fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// Sends a request with descriptors and waits for its reply and the reply's descriptors.
    ///
    /// # Errors
    /// See [`CallError`]; an error reply is [`CallError::Refused`].
    pub fn call(
        &mut self,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(Reply, Vec<OwnedFd>), CallError> {
        let deadline = Instant::now() + self.timeout;
        let id = self.next_id;
        self.next_id += 1;
        let bytes = frame::encode(&ClientFrame { id, request: request.clone() })?;
        let mut writer = FrameWriter::new(bytes, descriptors.to_vec())?;
        loop {
            match writer.write(&self.socket)? {
                Progress::Ready(()) => break,
                Progress::Blocked => self.wait(PollFlags::OUT, deadline)?,
                // Why it refused and closed may be there to read.
                Progress::Closed => break,
            }
        }
        loop {
            let arrived = match self.reader.read(&self.socket)? {
                Progress::Ready(arrived) => arrived,
                Progress::Blocked => {
                    self.wait(PollFlags::IN, deadline)?;
                    continue;
                }
                Progress::Closed => return Err(CallError::Closed),
            };
            match frame::decode(&arrived.text)? {
                ServerFrame::Notice(notice) => self.keep(notice, arrived.descriptors)?,
                ServerFrame::Reply { body: Reply::Error(error), .. } => {
                    return Err(CallError::Refused(error));
                }
                ServerFrame::Reply { id: answered, body } if answered == id => {
                    return Ok((body, arrived.descriptors));
                }
                ServerFrame::Reply { .. } => {
                    return Err(CallError::Unexpected("another request's id"));
                }
            }
        }
    }

    /// The oldest notice with its descriptors, if one has arrived. Never waits.
    ///
    /// # Errors
    /// [`CallError::Closed`] when the daemon has ended: reconnect and adopt.
    pub fn take_notice(&mut self) -> Result<Option<(Notice, Vec<OwnedFd>)>, CallError> {
        if let Some(notice) = self.notices.pop_front() {
            return Ok(Some(notice));
        }
        match self.reader.read(&self.socket)? {
            Progress::Ready(arrived) => match frame::decode(&arrived.text)? {
                ServerFrame::Notice(notice) => Ok(Some((notice, arrived.descriptors))),
                ServerFrame::Reply { .. } => Err(CallError::Unexpected("a reply to no request")),
            },
            Progress::Blocked => Ok(None),
            Progress::Closed => Err(CallError::Closed),
        }
    }

    /// Acquires a VNIC. Returns its description and its descriptors.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn acquire_vnic(&mut self, name: &str) -> Result<(VnicGrant, VnicDescriptors), CallError> {
        let (reply, descriptors) = self.call(&Request::AcquireVnic { name: name.to_owned() }, &[])?;
        let Reply::Vnic(grant) = reply else {
            return Err(CallError::Unexpected("no VNIC"));
        };
        let made_of = VnicDescriptors::arrange(grant.layout, descriptors)
            .ok_or(CallError::Unexpected("another number of descriptors"))?;
        Ok((*grant, made_of))
    }

    /// Binds the VNIC of `grant`, whose rings must be mapped.
    ///
    /// # Errors
    /// See [`CallError`]; refused, the grant has ended.
    pub fn bind_vnic(&mut self, grant: u64) -> Result<(), CallError> {
        self.done(&Request::BindVnic { grant }, &[])
    }

    /// Declares that this connection reads notices and answers inquiries for `grants`.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn attend(&mut self, grants: Vec<u64>) -> Result<(), CallError> {
        self.attend_with_views(grants, Vec::new())
    }

    /// The same, and that it serves views of the areas of `views`, which are among `grants`.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn attend_with_views(&mut self, grants: Vec<u64>, views: Vec<u64>) -> Result<(), CallError> {
        self.done(&Request::Attend { grants, views }, &[])
    }

    /// Sends a request about the view of the VSA `name` to its holder. Returns the reply, and the
    /// bytes of a piece.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn view(&mut self, name: &str, question: ViewRequest) -> Result<(ViewReply, Vec<u8>), CallError> {
        let operation = question.operation;
        let (reply, descriptors) = self.call(&Request::View { name: name.to_owned(), question }, &[])?;
        let Reply::View(answer) = reply else { return Err(CallError::Unexpected("no view")) };
        answer.check(operation).map_err(CallError::Unexpected)?;
        match (operation, &descriptors[..]) {
            (ViewOperation::Read { length, .. }, [piece]) => {
                let bytes = sealed::read(piece, length.into());
                Ok((answer, bytes.map_err(|_| CallError::Unexpected("no piece"))?))
            }
            (_, []) => Ok((answer, Vec::new())),
            _ => Err(CallError::Unexpected("another number of descriptors")),
        }
    }

    /// Answers the request `id` about a view.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn answer_view(
        &mut self,
        id: u64,
        outcome: Result<ViewReply, ViewError>,
        piece: Option<BorrowedFd<'_>>,
    ) -> Result<(), CallError> {
        self.done(&Request::Show { id, outcome }, piece.as_slice())
    }

    /// Makes this connection the one of the service core, which still has `ports`. New ports come
    /// as notices.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn serve(&mut self, ports: Vec<HeldGrant>) -> Result<(), CallError> {
        self.done(&Request::Serve { ports, storage: None }, &[])
    }

    /// As [`Connection::serve`], for a service core that serves storage areas too, and still has
    /// those of `storage`.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn serve_with_storage(
        &mut self,
        ports: Vec<HeldGrant>,
        storage: HeldStorage,
    ) -> Result<(), CallError> {
        self.done(&Request::Serve { ports, storage: Some(storage) }, &[])
    }

    /// For the service core: no request to the area of `grant` is in flight any more.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn detached(&mut self, grant: u64) -> Result<(), CallError> {
        self.done(&Request::Detached { grant }, &[])
    }

    /// For the service core: the area of `grant` has its new extents.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn reshaped(&mut self, grant: u64) -> Result<(), CallError> {
        self.done(&Request::Reshaped { grant }, &[])
    }

    /// The sockets of the holder of the VNIC `vnic`: the holder, and the file for
    /// [`crate::sockets::read`].
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn sockets(&mut self, vnic: &str) -> Result<(SocketsAnswer, OwnedFd), CallError> {
        match self.call(&Request::Sockets { vnic: vnic.to_owned() }, &[])? {
            (Reply::Sockets(answer), mut descriptors) if descriptors.len() == 1 => {
                Ok((answer, descriptors.remove(0)))
            }
            _ => Err(CallError::Unexpected("no sockets")),
        }
    }

    /// Has the holder of the VNIC `vnic` copy its frames into `ring` until this connection ends.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn capture(&mut self, vnic: &str, ring: BorrowedFd<'_>) -> Result<Capturing, CallError> {
        match self.call(&Request::Capture { vnic: vnic.to_owned() }, &[ring])? {
            (Reply::Capturing(capturing), _) => Ok(capturing),
            _ => Err(CallError::Unexpected("no capture")),
        }
    }

    /// Answers inquiry `id`.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn answer_inquiry(
        &mut self,
        id: u64,
        outcome: Result<u64, String>,
        file: Option<BorrowedFd<'_>>,
    ) -> Result<(), CallError> {
        self.done(&Request::Inform { id, outcome }, file.as_slice())
    }

    /// Opens the VSA `name`, which is one file.
    ///
    /// # Errors
    /// See [`CallError`]; an area in memory that has grown while it was held has several.
    pub fn acquire_vsa(&mut self, name: &str) -> Result<(VsaGrant, OwnedFd), CallError> {
        let (grant, files) = self.acquire_vsa_descriptors(name)?;
        match <[OwnedFd; 1]>::try_from(files) {
            Ok([file]) => Ok((grant, file)),
            Err(_) => {
                self.release(grant.grant)?;
                Err(CallError::Unexpected("several segments of memory"))
            }
        }
    }

    /// Acquires the VSA `name`: its file, or the segments of its memory ([`VsaGrant::segments`]),
    /// or the memory and doorbell of its broker ([`VsaGrant::broker`]).
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn acquire_vsa_descriptors(&mut self, name: &str) -> Result<(VsaGrant, Vec<OwnedFd>), CallError> {
        let (reply, files) = self.call(&Request::AcquireVsa { name: name.to_owned() }, &[])?;
        let Reply::Vsa(grant) = reply else {
            return Err(CallError::Unexpected("no VSA"));
        };
        let expected = if grant.broker.is_some() { 2 } else { grant.segments.len().max(1) };
        if files.len() != expected {
            return Err(CallError::Unexpected("another number of descriptors than of segments"));
        }
        Ok((*grant, files))
    }

    /// Resizes the VSA `name`, which this process holds. For an area in memory this returns the
    /// descriptors of its segments, to be mapped in the place of the previous ones
    /// ([`AreaStatus::segments`]). For any other area it returns none, because its descriptor stays
    /// the same.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn resize_held_vsa(
        &mut self,
        name: &str,
        size: u64,
    ) -> Result<(AreaStatus, Vec<OwnedFd>), CallError> {
        let (reply, files) = self.call(&Request::ResizeVsa { name: name.to_owned(), size }, &[])?;
        let Reply::Area(area) = reply else {
            return Err(CallError::Unexpected("no area"));
        };
        if !files.is_empty() && files.len() != area.segments.len().max(1) {
            return Err(CallError::Unexpected("another number of descriptors than of segments"));
        }
        Ok((*area, files))
    }

    /// Creates the VSA `name` of `size` bytes, for user `uid` or this process' own.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn create_vsa(&mut self, name: &str, size: u64, uid: Option<u32>) -> Result<AreaStatus, CallError> {
        self.area(&Request::CreateVsa { name: name.to_owned(), size, uid })
    }

    /// Gives the VSA `name` another size.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn resize_vsa(&mut self, name: &str, size: u64) -> Result<AreaStatus, CallError> {
        self.area(&Request::ResizeVsa { name: name.to_owned(), size })
    }

    /// Makes a range of the VSA `name` read as zeros, without a length up to its end.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn trim_vsa(
        &mut self,
        name: &str,
        offset: u64,
        length: Option<u64>,
    ) -> Result<AreaStatus, CallError> {
        self.area(&Request::TrimVsa { name: name.to_owned(), offset, length })
    }

    /// Removes the VSA `name` and its data.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn delete_vsa(&mut self, name: &str) -> Result<(), CallError> {
        self.done(&Request::DeleteVsa { name: name.to_owned() }, &[])
    }

    /// All VSAs that this user may see, in the order of their paths.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn vsas(&mut self) -> Result<Vec<AreaStatus>, CallError> {
        let mut areas = Vec::new();
        let mut cursor = Some(0);
        while let Some(at) = cursor {
            let (Reply::Areas(page), _) = self.call(&Request::ListVsas { cursor: at }, &[])? else {
                return Err(CallError::Unexpected("no areas"));
            };
            areas.extend(page.areas);
            cursor = page.next.filter(|&next| next > at && areas.len() < MAX_GROUPS);
        }
        Ok(areas)
    }

    /// The volumes.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn volumes(&mut self) -> Result<Vec<VolumeStatus>, CallError> {
        match self.call(&Request::Volumes, &[])? {
            (Reply::Volumes(volumes), _) => Ok(volumes),
            _ => Err(CallError::Unexpected("no volumes")),
        }
    }

    /// Opens the VSA `name` for reading alone: what it is, and its file. Without a file it is read
    /// with [`Connection::read_vsa_at`].
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn read_vsa(&mut self, name: &str) -> Result<(AreaStatus, Option<OwnedFd>), CallError> {
        match self.call(&Request::ReadVsa { name: name.to_owned() }, &[])? {
            (Reply::Reading(area), mut descriptors) if descriptors.len() <= 1 => {
                Ok((*area, descriptors.pop()))
            }
            _ => Err(CallError::Unexpected("no area")),
        }
    }

    /// Reads at most `length` bytes, at most [`MAX_PIECE`](crate::message::MAX_PIECE), of the VSA
    /// `name` from `offset` on.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn read_vsa_at(&mut self, name: &str, offset: u64, length: u32) -> Result<Vec<u8>, CallError> {
        let request = Request::ReadVsaAt { name: name.to_owned(), offset, length };
        match self.call(&request, &[])? {
            (Reply::Piece, descriptors) if descriptors.len() == 1 => {
                sealed::read(&descriptors[0], length.into()).map_err(|_| CallError::Unexpected("no piece"))
            }
            _ => Err(CallError::Unexpected("no piece")),
        }
    }

    fn area(&mut self, request: &Request) -> Result<AreaStatus, CallError> {
        match self.call(request, &[])? {
            (Reply::Area(area), _) => Ok(*area),
            _ => Err(CallError::Unexpected("no area")),
        }
    }

    /// Releases a grant.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn release(&mut self, grant: u64) -> Result<(), CallError> {
        self.done(&Request::Release { grant }, &[])
    }

    /// Names the grants that this process still holds to a restarted daemon.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn adopt(&mut self, grants: Vec<HeldGrant>) -> Result<Vec<AdoptedGrant>, CallError> {
        match self.call(&Request::Adopt { grants }, &[])? {
            (Reply::Adopted(grants), _) => Ok(grants),
            _ => Err(CallError::Unexpected("nothing adopted")),
        }
    }

    /// Shares a metrics page with the daemon.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn publish_metrics(&mut self, label: &str, page: BorrowedFd<'_>) -> Result<(), CallError> {
        self.done(&Request::PublishMetrics { label: label.to_owned() }, &[page])
    }

    /// All devices and their holders.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn status(&mut self) -> Result<Status, CallError> {
        match self.call(&Request::Status, &[])? {
            (Reply::Status(status), _) => Ok(*status),
            _ => Err(CallError::Unexpected("no status")),
        }
    }

    /// All counters.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn stat(&mut self) -> Result<Vec<StatGroup>, CallError> {
        let mut groups = Vec::new();
        let mut cursor = Some(0);
        while let Some(at) = cursor {
            let (Reply::Stat(stat), _) = self.call(&Request::Stat { cursor: at }, &[])? else {
                return Err(CallError::Unexpected("no counters"));
            };
            groups.extend(stat.group);
            cursor = stat.next.filter(|&next| next > at && groups.len() < MAX_GROUPS);
        }
        Ok(groups)
    }

    /// Revokes `target`. Returns one line for each grant that was revoked.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn revoke(&mut self, target: Target) -> Result<Vec<String>, CallError> {
        match self.call(&Request::Revoke { target }, &[])? {
            (Reply::Revoked(lines), _) => Ok(lines),
            _ => Err(CallError::Unexpected("nothing revoked")),
        }
    }

    /// Permits a revoked name again.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn restore(&mut self, name: &str) -> Result<(), CallError> {
        self.done(&Request::Restore { name: name.to_owned() }, &[])
    }

    /// Has the daemon read `sietch.toml` again.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn reload(&mut self) -> Result<(), CallError> {
        self.done(&Request::Reload, &[])
    }

    /// Ends the daemon.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn shutdown(&mut self) -> Result<(), CallError> {
        self.done(&Request::Shutdown, &[])
    }

    fn done(&mut self, request: &Request, descriptors: &[BorrowedFd<'_>]) -> Result<(), CallError> {
        match self.call(request, descriptors)? {
            (Reply::Done, _) => Ok(()),
            _ => Err(CallError::Unexpected("not done")),
        }
    }

    fn keep(&mut self, notice: Notice, descriptors: Vec<OwnedFd>) -> Result<(), CallError> {
        if self.notices.len() >= MAX_NOTICES {
            return Err(CallError::Unexpected("a flood of notices"));
        }
        self.notices.push_back((notice, descriptors));
        Ok(())
    }

    fn wait(&self, flags: PollFlags, deadline: Instant) -> Result<(), CallError> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(CallError::Timeout(self.timeout));
        }
        let left = Timespec::try_from(left).map_err(|_| CallError::Timeout(self.timeout))?;
        match poll(&mut [PollFd::new(&self.socket, flags)], Some(&left)) {
            Ok(0) => Err(CallError::Timeout(self.timeout)),
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(into_error(error).into()),
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn into_error(error: rustix::io::Errno) -> FrameError {
    FrameError::Socket(error.into())
}

fn open(path: &Path, timeout: Duration) -> rustix::io::Result<OwnedFd> {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // A full backlog makes a blocking connect wait; the send time limit bounds that wait.
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(timeout))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

#[cfg(test)]
mod tests;
