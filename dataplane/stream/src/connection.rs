//! A connection of a program that links Sietch: through memory, or a kernel's socket where its peer
//! is not under Sietch.
//!
//! 1. No call waits. [`io::ErrorKind::WouldBlock`] means that the [`crate::poller::Poller`] reports
//!    when the call is worth another try.
//! 2. **Without a copy.** [`Connection::try_read_with`] shows received bytes where they are.
//!    [`Connection::try_write_with`] puts bytes where they are sent from; they are published
//!    together, with one doorbell. Memory is shared with the peer, so received bytes can only be
//!    copied out ([`Untrusted`]): a reader that reads them twice could see two values.
//! 3. A kernel's socket has a buffer each way for these two calls. What the kernel does not take at
//!    once is sent by the next write or [`Connection::try_flush`].
//! 4. Bytes come before an error, which is reported once, and then the end ([`crate::outcome`]).
//! 5. Dropped, it is closed: a normal end, or a reset if something was not read. With bytes that
//!    the kernel has not taken it is a reset as well, so that no peer takes a part for the whole.
//! 6. A child of a fork that drops its copy closes its descriptors alone: the connection is its
//!    parent's.
//!
//! It is of one thread: the program's own loop.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::Ordering::Acquire;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_linger, set_tcp_nodelay, socket_error};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType};
use sietch_protocol::socket_service::Name;
use sietch_ring::stream::{Endpoint, Receive, Send, flag, refused_pages, state};
use sietch_ring::{OwnerProcess, Untrusted};

use crate::outcome::{self, SendRefused};
use crate::peer;
use crate::placeholder::Direct;
use crate::service::{self, Connected, SocketService};

/// Bytes of a kernel connection's buffer each way: what the smallest ring of a connection through
/// memory holds, four times.
const BUFFER: usize = 64 << 10;

/// Bytes for which [`Connection::try_more_than`] waits, at most.
pub const MOST_WAITING: usize = BUFFER;

/// Which way a connection goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// Through memory that both programs share.
    Memory,
    /// Through a kernel's socket.
    Kernel,
}

/// A kernel's socket, and bytes that are on their way through this process.
#[derive(Debug)]
pub(crate) struct KernelSocket {
    pub(crate) socket: OwnedFd,
    received: RefCell<Buffered>,
    staged: RefCell<Buffered>,
    /// Whether the kernel may have bytes, or the end; it said so, and no call found otherwise.
    pub(crate) readable: Cell<bool>,
    /// The same of room.
    pub(crate) writable: Cell<bool>,
    /// What the kernel has reported while bytes before it were unread.
    failed: Cell<Option<Errno>>,
}

/// Bytes in order, in a buffer that is allocated when it is first needed.
#[derive(Debug, Default)]
struct Buffered {
    bytes: Vec<u8>,
    begin: usize,
    end: usize,
}

impl Buffered {
    fn unused(&self) -> &[u8] {
        self.bytes.get(self.begin..self.end).unwrap_or_default()
    }

    fn consume(&mut self, bytes: usize) {
        self.begin = (self.begin + bytes).min(self.end);
        if self.begin == self.end {
            (self.begin, self.end) = (0, 0);
        }
    }

    /// Bytes for which there is room.
    fn room(&self) -> usize {
        BUFFER - (self.end - self.begin)
    }

    /// The room, behind the bytes that are there.
    fn space(&mut self) -> &mut [u8] {
        // Twice the size: bytes move only once as many were consumed, however small the pieces are
        // that a program takes.
        if self.bytes.is_empty() {
            self.bytes = vec![0; 2 * BUFFER];
        }
        let room = self.room();
        if self.bytes.len() - self.end < room {
            self.bytes.copy_within(self.begin..self.end, 0);
            (self.begin, self.end) = (0, self.end - self.begin);
        }
        &mut self.bytes[self.end..][..room]
    }

    /// So many bytes of the space are filled.
    fn fill(&mut self, bytes: usize) {
        self.end += bytes.min(self.room());
    }
}

#[derive(Debug)]
pub(crate) enum Transport {
    Memory { placeholder: OwnedFd, end: Endpoint },
    Kernel(KernelSocket),
}

/// See the module.
#[derive(Debug)]
pub struct Connection {
    pub(crate) transport: Transport,
    local: Option<SocketAddr>,
    peer: Option<SocketAddr>,
    owner: OwnerProcess,
}

/// Where [`Connection::try_write_with`] puts bytes.
#[derive(Debug)]
pub struct Space<'a>(Room<'a>);

#[derive(Debug)]
enum Room<'a> {
    Memory(Send<'a>),
    Kernel(&'a mut Buffered),
}

impl Space<'_> {
    /// Bytes that fit now.
    pub fn room(&mut self) -> usize {
        match &mut self.0 {
            Room::Memory(send) => send.room(),
            Room::Kernel(staged) => staged.room(),
        }
    }

    /// Puts as many of `bytes` as fit behind those that were put before. Returns how many.
    pub fn put(&mut self, bytes: &[u8]) -> usize {
        self.put_untrusted(Untrusted::from_slice(bytes))
    }

    /// The same for bytes as [`Connection::try_read_with`] shows them: from ring to ring.
    pub(crate) fn put_untrusted(&mut self, bytes: Untrusted<'_>) -> usize {
        match &mut self.0 {
            Room::Memory(send) => send.copy_untrusted(bytes),
            Room::Kernel(staged) => {
                let now = bytes.len().min(staged.room());
                bytes.copy_to(0, &mut staged.space()[..now]);
                staged.fill(now);
                now
            }
        }
    }

    /// Bytes that are there.
    fn staged(&self) -> u64 {
        match &self.0 {
            Room::Memory(send) => send.staged(),
            Room::Kernel(staged) => staged.unused().len() as u64,
        }
    }
}

fn would_block() -> io::Error {
    io::ErrorKind::WouldBlock.into()
}

/// An interrupted call of a kernel's socket has done nothing, and is made again.
fn repeat<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            answer => return answer,
        }
    }
}

impl KernelSocket {
    fn new(socket: OwnedFd, connected: bool) -> Self {
        Self {
            socket,
            received: RefCell::default(),
            staged: RefCell::default(),
            readable: Cell::new(connected),
            writable: Cell::new(connected),
            failed: Cell::new(None),
        }
    }

    fn receive(&self, out: &mut [u8]) -> io::Result<usize> {
        if let Some(errno) = self.failed.take() {
            return Err(errno.into());
        }
        if !self.readable.get() {
            return Err(would_block());
        }
        let taken = repeat(|| rustix::net::recv(&self.socket, &mut *out, RecvFlags::DONTWAIT));
        if taken.is_err_and(|errno| errno == Errno::AGAIN) {
            self.readable.set(false);
        }
        Ok(taken.map(|(taken, _)| taken)?)
    }

    fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        if !self.writable.get() {
            return Err(would_block());
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let sent = repeat(|| rustix::net::send(&self.socket, bytes, flags));
        if sent.is_err_and(|errno| errno == Errno::AGAIN) {
            self.writable.set(false);
        }
        Ok(sent?)
    }

    /// Sends what is staged.
    fn flush(&self) -> io::Result<()> {
        // Borrowed already: by `try_write_with`, whose program calls this.
        let mut staged = self.staged.try_borrow_mut().map_err(|_| would_block())?;
        while !staged.unused().is_empty() {
            let sent = self.send(staged.unused())?;
            staged.consume(sent);
        }
        Ok(())
    }

    fn read(&self, out: &mut [u8]) -> io::Result<usize> {
        let mut received = self.received.try_borrow_mut().map_err(|_| would_block())?;
        let ready = received.unused();
        if ready.is_empty() {
            return self.receive(out);
        }
        let now = ready.len().min(out.len());
        out[..now].copy_from_slice(&ready[..now]);
        received.consume(now);
        Ok(now)
    }

    fn read_with(&self, take: impl FnOnce([Untrusted<'_>; 2]) -> usize) -> io::Result<Option<usize>> {
        let mut received = self.received.try_borrow_mut().map_err(|_| would_block())?;
        // Behind bytes that the program has not used, as long as there is room for more.
        if received.room() != 0 {
            let got = self.receive(received.space());
            received.fill(got.as_ref().map_or(0, |got| *got));
            match got {
                got if received.unused().is_empty() => return got.map(|_| None),
                // The next read reports it, once the bytes before it are read.
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                    self.failed.set(Errno::from_io_error(&error));
                }
                _ => {}
            }
        }
        let offered = received.unused().len();
        let taken = take([Untrusted::from_slice(received.unused()), Untrusted::EMPTY]).min(offered);
        received.consume(taken);
        Ok(Some(taken))
    }

    fn more_than(&self, bytes: usize) -> io::Result<bool> {
        let mut received = self.received.try_borrow_mut().map_err(|_| would_block())?;
        while received.unused().len() <= bytes {
            match self.receive(received.space()) {
                Ok(0) => return Ok(false),
                Ok(got) => received.fill(got),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(error),
                // The next read reports it, once the bytes before it are read.
                Err(error) => {
                    self.failed.set(Errno::from_io_error(&error));
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn write_with(&self, fill: impl FnOnce(&mut Space<'_>)) -> io::Result<usize> {
        self.flush()?;
        if !self.writable.get() {
            return Err(would_block());
        }
        let put = {
            let mut staged = self.staged.try_borrow_mut().map_err(|_| would_block())?;
            let mut space = Space(Room::Kernel(&mut staged));
            fill(&mut space);
            space.staged() as usize
        };
        match self.flush() {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(put),
        }
    }

    /// Whether bytes wait for the kernel to take them.
    fn has_staged(&self) -> bool {
        self.staged.try_borrow().is_ok_and(|staged| !staged.unused().is_empty())
    }
}

/// Has `act` take bytes from the ring. `act` returns how many there were; nothing is `None` at the
/// end of the stream.
fn read_memory(
    placeholder: Direct<'_>,
    end: &Endpoint,
    mut act: impl FnMut(&mut Receive<'_>) -> usize,
) -> io::Result<Option<usize>> {
    loop {
        // None: the program reads again while it is shown bytes.
        let mut receive = end.receive().ok_or_else(would_block)?;
        let there = act(&mut receive);
        drop(receive);
        if there != 0 {
            peer::notify(placeholder, end, end.room_notification());
            return Ok(Some(there));
        }
        match outcome::nothing(placeholder, end) {
            Some(Ok(())) => return Ok(None),
            Some(Err(errno)) => return Err(errno.into()),
            None => {}
        }
        // Bytes may have come since; an end cannot have been seen before them.
        let more = end.readable() != 0 || end.is_worth_polling() && peer::check_peer_closed(placeholder, end);
        if !more {
            return Err(would_block());
        }
    }
}

/// Bytes that were written.
enum Written {
    Put(usize),
    /// The peer has closed: its kernel would take so many, and answer them with a reset.
    Dropped(usize),
}

/// Has `act` put bytes into the ring, where there is room for one at least.
fn write_memory(
    placeholder: Direct<'_>,
    end: &Endpoint,
    length: usize,
    act: impl FnOnce(Send<'_>) -> usize,
) -> io::Result<Written> {
    loop {
        match outcome::may_send(placeholder, end, length) {
            Ok(None) => {}
            Ok(Some(taken)) => return Ok(Written::Dropped(taken)),
            Err(SendRefused::Broken) => return Err(io::ErrorKind::BrokenPipe.into()),
            Err(SendRefused::Failed(errno)) => return Err(errno.into()),
        }
        if !peer::is_set_up(end) {
            return Err(would_block());
        }
        let mut send = end.send().ok_or_else(would_block)?;
        if length == 0 || send.room() != 0 {
            let put = act(send);
            peer::notify_data(placeholder, end);
            return Ok(Written::Put(put));
        }
        drop(send);
        end.note_full();
        if !peer::check_peer_closed(placeholder, end) {
            return Err(would_block());
        }
    }
}

impl Connection {
    fn new(transport: Transport, local: Option<SocketAddr>, peer: Option<SocketAddr>) -> Self {
        Self { transport, local, peer, owner: OwnerProcess::current() }
    }

    fn of_kernel(socket: OwnedFd, connected: bool) -> Self {
        let _ = set_tcp_nodelay(&socket, true);
        let address = |address: rustix::net::SocketAddrAny| SocketAddr::try_from(address).ok();
        let local = rustix::net::getsockname(&socket).ok().and_then(address);
        let peer = rustix::net::getpeername(&socket).ok().flatten().and_then(address);
        Self::new(Transport::Kernel(KernelSocket::new(socket, connected)), local, peer)
    }

    pub(crate) fn of_memory(placeholder: OwnedFd, end: Endpoint) -> Self {
        // The peer can punch holes into the memory; they must not end this process.
        refused_pages::install_handler();
        let names = end.names();
        let address = |bytes, length| Name { bytes, length }.address();
        let local = address(names.local, names.local_length);
        let peer = address(names.peer, names.peer_length);
        Self::new(Transport::Memory { placeholder, end }, local, peer)
    }

    /// A connection that the kernel is setting up.
    pub(crate) fn connecting(socket: OwnedFd) -> Self {
        Self::of_kernel(socket, false)
    }

    /// A connection that the kernel accepted.
    pub(crate) fn accepted_by_kernel(socket: OwnedFd) -> Self {
        Self::of_kernel(socket, true)
    }

    /// Begins to connect to `remote`: through memory if a program under Sietch listens there, else
    /// through the kernel. [`Connection::try_connected`] says when it is done.
    ///
    /// # Errors
    /// As `connect(2)`; a rule of the service forbids it.
    pub fn connect(service: &impl SocketService, remote: SocketAddr) -> io::Result<Self> {
        let family = if remote.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        let name = Name::from(remote);
        if service::is_local(&name) {
            match service::connect(service, Some(socket.as_fd()), Name::NONE, name) {
                Ok(Connected::Made(made)) => return Ok(Self::of_memory(made.placeholder, made.end)),
                Ok(Connected::Refused(errno)) => return Err(errno.into()),
                Ok(Connected::NotOurs) | Err(_) => {}
            }
        }
        match rustix::net::connect(&socket, &remote) {
            Ok(()) => Ok(Self::of_kernel(socket, true)),
            Err(Errno::INPROGRESS | Errno::INTR) => {
                let mut connection = Self::connecting(socket);
                connection.peer = Some(remote);
                Ok(connection)
            }
            Err(errno) => Err(errno.into()),
        }
    }

    /// Whether the connection is set up.
    ///
    /// # Errors
    /// `WouldBlock`: not yet. Why it failed, once.
    pub fn try_connected(&self) -> io::Result<()> {
        match &self.transport {
            Transport::Memory { placeholder, end } => {
                let private = end.private();
                if !peer::is_set_up(end) {
                    if private.has(flag::HUNG_UP) || peer::check_peer_closed(Direct(placeholder.as_fd()), end)
                    {
                        return Err(outcome::take_error(end).unwrap_or(Errno::CONNREFUSED).into());
                    }
                    return Err(would_block());
                }
                match private.state.load(Acquire) {
                    state::FAILED => Err(outcome::take_error(end).unwrap_or(Errno::CONNABORTED).into()),
                    _ => Ok(()),
                }
            }
            Transport::Kernel(kernel) => {
                let mut entry = [PollFd::new(&kernel.socket, PollFlags::OUT)];
                repeat(|| poll(&mut entry, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })))?;
                if entry[0].revents().is_empty() {
                    kernel.writable.set(false);
                    return Err(would_block());
                }
                socket_error(&kernel.socket)??;
                kernel.readable.set(true);
                kernel.writable.set(true);
                Ok(())
            }
        }
    }

    /// Which way it goes.
    pub const fn path(&self) -> Path {
        match self.transport {
            Transport::Memory { .. } => Path::Memory,
            Transport::Kernel(_) => Path::Kernel,
        }
    }

    /// The own address.
    pub const fn local(&self) -> Option<SocketAddr> {
        self.local
    }

    /// The peer's address.
    pub const fn peer(&self) -> Option<SocketAddr> {
        self.peer
    }

    /// Copies what has arrived; 0 is the end of the stream (or an empty `out`).
    ///
    /// # Errors
    /// `WouldBlock`: nothing has arrived. `ConnectionReset` and others, once.
    pub fn try_read(&self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        match &self.transport {
            Transport::Memory { placeholder, end } => {
                let read = read_memory(Direct(placeholder.as_fd()), end, |receive| receive.read(out))?;
                Ok(read.unwrap_or(0))
            }
            Transport::Kernel(kernel) => kernel.read(out),
        }
    }

    /// Shows what has arrived, where it is, to `take`, which returns how many bytes it has used:
    /// two pieces, the second empty unless the ring wraps. `None` at the end of the stream.
    ///
    /// The bytes of one message may arrive in several calls: a reader that needs more than it is
    /// shown keeps a copy of the part, or returns 0 and asks again when there is more
    /// ([`Connection::available`]).
    ///
    /// # Errors
    /// As [`Connection::try_read`]. After one `take` may have been called: what it was shown is to
    /// be dropped.
    pub fn try_read_with(
        &self,
        mut take: impl FnMut([Untrusted<'_>; 2]) -> usize,
    ) -> io::Result<Option<usize>> {
        match &self.transport {
            Transport::Memory { placeholder, end } => {
                let mut used = 0;
                let read = read_memory(Direct(placeholder.as_fd()), end, |receive| {
                    let pieces = receive.pieces();
                    let offered = pieces[0].len() + pieces[1].len();
                    if offered != 0 {
                        used = take(pieces).min(offered);
                        // The copies of `take` met a page that the kernel refused, and have what
                        // was put in its place.
                        if receive.is_refused() {
                            return 0;
                        }
                        receive.consume(used);
                    }
                    offered
                })?;
                Ok(read.map(|_| used))
            }
            Transport::Kernel(kernel) => kernel.read_with(take),
        }
    }

    /// Bytes that have arrived, as far as they are known without a system call.
    pub fn available(&self) -> usize {
        match &self.transport {
            Transport::Memory { end, .. } => end.readable(),
            Transport::Kernel(kernel) => {
                kernel.received.try_borrow().map_or(0, |received| received.unused().len())
            }
        }
    }

    /// Whether more than `bytes` bytes wait to be read: true; or no more will come: false.
    ///
    /// # Errors
    /// `WouldBlock`: not yet. `InvalidInput`: more than the buffer of a kernel's connection holds
    /// ([`MOST_WAITING`]).
    pub fn try_more_than(&self, bytes: usize) -> io::Result<bool> {
        if bytes >= MOST_WAITING {
            let what = "more than 64 KiB cannot be waited for; take what is there";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        match &self.transport {
            Transport::Memory { placeholder, end } => loop {
                if end.readable() > bytes {
                    return Ok(true);
                }
                if end.private().state.load(Acquire) == state::FAILED || outcome::nothing_more(end, bytes) {
                    return Ok(false);
                }
                if !(end.is_worth_polling() && peer::check_peer_closed(Direct(placeholder.as_fd()), end)) {
                    return Err(would_block());
                }
            },
            Transport::Kernel(kernel) => kernel.more_than(bytes),
        }
    }

    /// Queues as many of `bytes` as there is room for. Returns how many.
    ///
    /// # Errors
    /// `WouldBlock`: there is no room. `BrokenPipe`: the peer has closed, or the own side is shut
    /// down. `ConnectionReset` and others, once.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match &self.transport {
            Transport::Memory { placeholder, end } => {
                let put = |mut send: Send<'_>| send.write(bytes);
                match write_memory(Direct(placeholder.as_fd()), end, bytes.len(), put)? {
                    Written::Put(bytes) | Written::Dropped(bytes) => Ok(bytes),
                }
            }
            Transport::Kernel(kernel) => {
                kernel.flush()?;
                kernel.send(bytes)
            }
        }
    }

    /// Has `fill` put bytes where they are sent from; the peer sees them together. Returns how
    /// many. `fill` is called if there is room for one at least.
    ///
    /// # Errors
    /// As [`Connection::try_write`].
    pub fn try_write_with(&self, fill: impl FnOnce(&mut Space<'_>)) -> io::Result<usize> {
        match &self.transport {
            Transport::Memory { placeholder, end } => {
                let put = |send: Send<'_>| {
                    let mut space = Space(Room::Memory(send));
                    let before = space.staged();
                    fill(&mut space);
                    // Dropped, it is published.
                    (space.staged() - before) as usize
                };
                match write_memory(Direct(placeholder.as_fd()), end, 1, put)? {
                    Written::Put(bytes) => Ok(bytes),
                    Written::Dropped(_) => Err(io::ErrorKind::BrokenPipe.into()),
                }
            }
            Transport::Kernel(kernel) => kernel.write_with(fill),
        }
    }

    /// Gives the kernel what it has not taken yet of earlier writes.
    ///
    /// # Errors
    /// `WouldBlock`: it takes no more now. As [`Connection::try_write`].
    pub fn try_flush(&self) -> io::Result<()> {
        match &self.transport {
            Transport::Memory { .. } => Ok(()),
            Transport::Kernel(kernel) => kernel.flush(),
        }
    }

    /// Sends nothing more: the peer sees the end of the stream. Bytes that
    /// [`Connection::try_flush`] has not passed on are sent first, if the kernel takes them.
    ///
    /// # Errors
    /// `NotConnected`: the connection is over. `WouldBlock`: flush first.
    pub fn try_shutdown(&self) -> io::Result<()> {
        match &self.transport {
            Transport::Memory { placeholder, end } => {
                Ok(outcome::shut_down(Direct(placeholder.as_fd()), end, Shutdown::Write, |change| change())?)
            }
            Transport::Kernel(kernel) => {
                kernel.flush()?;
                Ok(rustix::net::shutdown(&kernel.socket, Shutdown::Write)?)
            }
        }
    }

    /// Makes the close that follows a normal end, which it is unless the service says otherwise.
    pub(crate) fn close_normally(&self) {
        if let Transport::Memory { end, .. } = &self.transport {
            end.abort_on_close(false);
        }
    }

    /// Makes the close that follows a reset.
    pub fn abort_on_close(&self) {
        match &self.transport {
            Transport::Memory { end, .. } => end.abort_on_close(true),
            Transport::Kernel(kernel) => {
                let _ = set_socket_linger(&kernel.socket, Some(Duration::ZERO));
            }
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if !self.owner.is_current() {
            return;
        }
        match &self.transport {
            // The peer asks the kernel soon, which knows the end when the placeholder is closed.
            Transport::Memory { end, .. } => end.closing(),
            Transport::Kernel(kernel) => {
                let _ = kernel.flush();
                // The kernel knows nothing of bytes that were taken from it and not used.
                if kernel.has_staged() || self.available() != 0 {
                    self.abort_on_close();
                }
            }
        }
    }
}
