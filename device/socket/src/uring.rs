//! Kernel sockets through io_uring.
//!
//! 1. A listener has one multishot accept armed, a connection one multishot receive: no request a
//!    connection or a read.
//! 2. Received bytes are in buffers that all connections share ([`buffers`]).
//! 3. A connection has one send in flight. What is sent meanwhile gathers in a second buffer; the
//!    two swap on completion. The buffer in flight is never touched.
//! 4. One `io_uring_enter` an iteration submits everything and runs what the kernel has to finish.
//!    Without anything to submit or to finish, an iteration makes no system call at all.
//! 5. A connection's slot is freed only when no request names it any more: the socket is shut down
//!    first, which ends them.
//! 6. Doorbells are one-shot polls, armed before each sleep: readiness is checked when they are
//!    armed, so none is lost.
//!
//! It must never free memory that the kernel may still write or read: dropping the queue drains it.

mod buffers;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::net::Shutdown;

use sietch_structures::{Key, Slab};

use buffers::Buffers;

use crate::accept_pause::AcceptPause;
use crate::address;
use crate::handler::{Appetite, ConnectionId, Handler, Verdict};
use crate::limits::SEND_QUEUE_BYTES;

/// Submission entries: an iteration with more requests submits in several calls.
const ENTRIES: u32 = 1024;

/// Completion entries: ten thousand connections may all have something to say; the kernel keeps
/// what overflows.
const COMPLETIONS: u32 = 16 * 1024;

/// How often a drop waits 10 ms for requests to end before it gives up and leaks their memory
/// instead.
const DRAIN_ROUNDS: usize = 100;

/// `IORING_ENTER_GETEVENTS`: run what is pending for this task.
const GET_EVENTS: u32 = 1;

/// What a completion is about: the top byte of its user data. The rest is an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    Accept = 1,
    Receive = 2,
    Send = 3,
    Watch = 4,
    Cancel = 5,
}

impl Kind {
    const fn tag(self, index: u32) -> u64 {
        (self as u64) << 56 | index as u64
    }

    const fn of(tag: u64) -> Option<(Self, u32)> {
        let kind = match tag >> 56 {
            1 => Self::Accept,
            2 => Self::Receive,
            3 => Self::Send,
            4 => Self::Watch,
            5 => Self::Cancel,
            _ => return None,
        };
        Some((kind, tag as u32))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Receiving {
    Idle,
    Armed,
    Cancelling,
}

struct Connection {
    socket: OwnedFd,
    user: u64,
    receiving: Receiving,
    /// Whether the owner takes bytes now.
    wanted: bool,
    /// Bytes that arrived while the owner wanted none.
    stash: Vec<u8>,
    /// The peer has ended, and whether the owner was notified.
    ended: bool,
    /// In flight; `sent` bytes of it are done. Not touched while `busy`.
    sending: Vec<u8>,
    sent: usize,
    busy: bool,
    queued: Vec<u8>,
    /// The owner was refused some bytes and waits for `writable`.
    refused: bool,
    /// The owner has closed it: its handler is not called any more.
    closing: bool,
    shut: bool,
}

struct Listener {
    /// `None` once its listening was ended.
    socket: Option<OwnedFd>,
    armed: bool,
}

struct Watch {
    /// `None` once it is forgotten and no request names it.
    descriptor: Option<OwnedFd>,
    token: u64,
    armed: bool,
    forgotten: bool,
}

/// The io_uring implementation of a socket queue.
pub struct Uring {
    // The ring is dropped before the memory that its requests name.
    ring: IoUring,
    buffers: Buffers,
    connections: Slab<Connection>,
    listeners: Vec<Listener>,
    watches: Vec<Watch>,
    /// Requests that found the submission queue full.
    overflow: VecDeque<squeue::Entry>,
    /// Connections with stashed bytes whose owner takes bytes again.
    resumed: Vec<u32>,
    completions: Vec<(u64, i32, u32)>,
    pause: AcceptPause,
    /// Requests in flight, watches included.
    in_flight: usize,
}

impl std::fmt::Debug for Uring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Uring").field("in_flight", &self.in_flight).finish_non_exhaustive()
    }
}

impl Uring {
    pub(crate) fn open() -> io::Result<Self> {
        let ring = IoUring::builder()
            .dontfork()
            .setup_clamp()
            .setup_submit_all()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_cqsize(COMPLETIONS)
            .build(ENTRIES)?;
        let buffers = Buffers::register(&ring)?;
        Ok(Self {
            ring,
            buffers,
            connections: Slab::new(),
            listeners: Vec::new(),
            watches: Vec::new(),
            overflow: VecDeque::new(),
            resumed: Vec::new(),
            completions: Vec::with_capacity(COMPLETIONS as usize),
            pause: AcceptPause::default(),
            in_flight: 0,
        })
    }

    pub(crate) fn listen(&mut self, socket: OwnedFd) -> io::Result<()> {
        self.listeners.push(Listener { socket: Some(socket), armed: false });
        self.arm_listeners();
        self.enter()
    }

    pub(crate) fn watch(&mut self, descriptor: OwnedFd, token: u64) -> io::Result<()> {
        self.watches.push(Watch { descriptor: Some(descriptor), token, armed: false, forgotten: false });
        Ok(())
    }

    pub(crate) fn unwatch(&mut self, token: u64) {
        for index in 0..self.watches.len() {
            let watch = &mut self.watches[index];
            if watch.token != token || watch.forgotten {
                continue;
            }
            watch.forgotten = true;
            if watch.armed {
                let poll = Kind::Watch.tag(index as u32);
                self.push(opcode::AsyncCancel::new(poll).build(), Kind::Cancel, index as u32);
            } else {
                watch.descriptor = None;
            }
        }
    }

    pub(crate) fn set_keepalive(&self, seconds: u64) {
        for socket in self.listeners.iter().filter_map(|listener| listener.socket.as_ref()) {
            address::set_keepalive(socket, seconds);
        }
    }

    pub(crate) fn poll(&mut self, handler: &mut impl Handler) -> io::Result<usize> {
        if self.pause.end_if_over() {
            self.arm_listeners();
        }
        self.enter_if_needed()?;
        let mut batch = std::mem::take(&mut self.completions);
        batch.extend(self.ring.completion().map(|entry| (entry.user_data(), entry.result(), entry.flags())));
        let mut count = batch.len();
        for (tag, result, flags) in batch.drain(..) {
            self.finish(tag, result, flags, handler);
        }
        self.completions = batch;
        for index in std::mem::take(&mut self.resumed) {
            count += 1;
            self.deliver_stash(index, handler);
        }
        self.buffers.publish();
        Ok(count)
    }

    pub(crate) fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        for index in 0..self.watches.len() {
            let watch = &mut self.watches[index];
            if let Some(descriptor) = &watch.descriptor
                && !watch.armed
            {
                let descriptor = types::Fd(descriptor.as_raw_fd());
                watch.armed = true;
                let readable = libc::POLLIN as u32;
                self.push(opcode::PollAdd::new(descriptor, readable).build(), Kind::Watch, index as u32);
            }
        }
        let timeout = self.pause.limit(timeout);
        self.refill();
        if !self.resumed.is_empty() {
            return self.enter();
        }
        let outcome = match timeout {
            None => self.ring.submitter().submit_and_wait(1),
            Some(timeout) => {
                let limit = types::Timespec::from(timeout);
                let arguments = types::SubmitArgs::new().timespec(&limit);
                self.ring.submitter().submit_with_args(1, &arguments)
            }
        };
        tolerate(outcome)
    }

    pub(crate) fn send(&mut self, id: ConnectionId, bytes: &[u8]) -> usize {
        let Some(connection) = self.connections.get_mut(id.0) else {
            return bytes.len();
        };
        let held = if connection.busy { connection.queued.len() } else { 0 };
        let taken = bytes.len().min(SEND_QUEUE_BYTES.saturating_sub(held));
        connection.refused |= taken < bytes.len();
        if connection.busy {
            connection.queued.extend_from_slice(&bytes[..taken]);
        } else if taken > 0 {
            connection.sending.clear();
            connection.sending.extend_from_slice(&bytes[..taken]);
            connection.sent = 0;
            self.send_rest(id.0.index());
        }
        taken
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.enter_if_needed()
    }

    pub(crate) fn resume(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(id.0) else {
            return;
        };
        if connection.wanted || connection.closing {
            return;
        }
        connection.wanted = true;
        self.resumed.push(id.0.index());
    }

    pub(crate) fn close(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connections.get_mut(id.0) {
            connection.closing = true;
            address::bound_last_bytes(&connection.socket);
            self.retire(id.0.index());
        }
    }

    /// Shuts a closing connection down once its bytes are sent, and frees it once nothing names it.
    fn retire(&mut self, index: u32) {
        let Some(connection) = self.connections.at_mut(index) else {
            return;
        };
        if !connection.closing || connection.busy {
            return;
        }
        if !connection.shut {
            connection.shut = true;
            // It fails when the peer has already reset the connection: then it is down.
            let _ = rustix::net::shutdown(&connection.socket, Shutdown::Both);
        }
        if connection.receiving == Receiving::Idle {
            self.connections.remove_at(index);
            if self.pause.end() {
                self.arm_listeners();
            }
        }
    }

    fn finish(&mut self, tag: u64, result: i32, flags: u32, handler: &mut impl Handler) {
        let Some((kind, index)) = Kind::of(tag) else {
            return;
        };
        if !cqueue::more(flags) {
            self.in_flight = self.in_flight.saturating_sub(1);
        }
        match kind {
            Kind::Accept => self.accepted(index, result, flags, handler),
            Kind::Receive => self.received(index, result, flags, handler),
            Kind::Send => self.sent(index, result, handler),
            Kind::Watch => {
                if let Some(watch) = self.watches.get_mut(index as usize) {
                    watch.armed = false;
                    if watch.forgotten {
                        watch.descriptor = None;
                    } else {
                        handler.doorbell(watch.token);
                    }
                }
            }
            Kind::Cancel => {}
        }
    }

    fn accepted(&mut self, listener: u32, result: i32, flags: u32, handler: &mut impl Handler) {
        if !cqueue::more(flags) {
            if let Some(listener) = self.listeners.get_mut(listener as usize) {
                listener.armed = false;
                // It was shut down, and every accept would fail at once.
                if result == -libc::EINVAL {
                    listener.socket = None;
                }
            }
            // Without a free descriptor a new accept would fail at once, over and over.
            if [-libc::EMFILE, -libc::ENFILE, -libc::ENOBUFS, -libc::ENOMEM].contains(&result) {
                self.pause.begin();
            } else {
                self.arm_listeners();
            }
        }
        if result < 0 {
            return;
        }
        // SAFETY: the kernel made this descriptor for the accept that has just completed; it has no
        // other owner.
        let socket = unsafe { OwnedFd::from_raw_fd(result) };
        self.admit(socket, handler);
    }

    pub(crate) fn adopt(&mut self, socket: OwnedFd, handler: &mut impl Handler) {
        // As those that are accepted here: a request for the kernel may wait.
        if rustix::io::ioctl_fionbio(&socket, false).is_ok() && address::prepare(&socket).is_ok() {
            self.admit(socket, handler);
        }
    }

    fn admit(&mut self, socket: OwnedFd, handler: &mut impl Handler) {
        let peer = address::peer(&socket);
        let Some(local) = address::local(&socket) else {
            return;
        };
        let connection = Connection {
            socket,
            user: 0,
            receiving: Receiving::Idle,
            wanted: true,
            stash: Vec::new(),
            ended: false,
            sending: Vec::new(),
            sent: 0,
            busy: false,
            queued: Vec::new(),
            refused: false,
            closing: false,
            shut: false,
        };
        let id = ConnectionId(self.connections.insert(connection));
        match handler.accepted(id, peer, local) {
            Verdict::Accept(user) => {
                if let Some(connection) = self.connections.get_mut(id.0) {
                    connection.user = user;
                }
                self.arm_receive(id.0.index());
            }
            Verdict::Refuse(words) => {
                if let Some(connection) = self.connections.remove_at(id.0.index()) {
                    address::refuse(connection.socket, words);
                }
            }
            Verdict::Release => {
                if let Some(connection) = self.connections.remove_at(id.0.index()) {
                    handler.released(connection.socket);
                }
            }
        }
    }

    fn received(&mut self, index: u32, result: i32, flags: u32, handler: &mut impl Handler) {
        let buffer = cqueue::buffer_select(flags);
        let Some(connection) = self.connections.at_mut(index) else {
            if let Some(buffer) = buffer {
                self.buffers.put(buffer);
            }
            return;
        };
        if !cqueue::more(flags) {
            connection.receiving = Receiving::Idle;
        }
        if let Some(buffer) = buffer {
            let length = usize::try_from(result).unwrap_or(0);
            if length > 0 && !connection.closing {
                let bytes = self.buffers.bytes(buffer, length);
                if connection.wanted {
                    connection.wanted = handler.received(connection.user, bytes) == Appetite::More;
                } else {
                    connection.stash.extend_from_slice(bytes);
                }
            }
            self.buffers.put(buffer);
        }
        let Some(connection) = self.connections.at_mut(index) else {
            return;
        };
        let over = result == 0 && !cqueue::more(flags);
        let harmless = result >= 0 || result == -libc::ENOBUFS || result == -libc::ECANCELED;
        if connection.closing {
            self.retire(index);
        } else if !harmless {
            self.lose(index, handler);
        } else if over {
            connection.ended = true;
            if connection.stash.is_empty() {
                handler.ended(connection.user);
            }
        } else if connection.wanted {
            self.arm_receive(index);
        } else {
            self.stop_receive(index);
        }
    }

    fn deliver_stash(&mut self, index: u32, handler: &mut impl Handler) {
        let Some(connection) = self.connections.at_mut(index) else {
            return;
        };
        if connection.closing || !connection.wanted {
            return;
        }
        if !connection.stash.is_empty() {
            let stash = std::mem::take(&mut connection.stash);
            connection.wanted = handler.received(connection.user, &stash) == Appetite::More;
        }
        if connection.ended {
            handler.ended(connection.user);
        } else if connection.wanted {
            self.arm_receive(index);
        }
    }

    fn sent(&mut self, index: u32, result: i32, handler: &mut impl Handler) {
        let Some(connection) = self.connections.at_mut(index) else {
            return;
        };
        connection.busy = false;
        let Ok(count) = usize::try_from(result) else {
            if result == -libc::EAGAIN || result == -libc::EINTR {
                self.send_rest(index);
            } else {
                connection.queued.clear();
                self.lose(index, handler);
            }
            return;
        };
        connection.sent += count;
        if connection.sent < connection.sending.len() {
            self.send_rest(index);
            return;
        }
        connection.sent = 0;
        connection.sending.clear();
        if !connection.queued.is_empty() {
            std::mem::swap(&mut connection.sending, &mut connection.queued);
            self.send_rest(index);
        }
        let Some(connection) = self.connections.at_mut(index) else {
            return;
        };
        if connection.closing {
            self.retire(index);
        } else if std::mem::take(&mut connection.refused) {
            handler.writable(connection.user);
        }
    }

    /// The connection has failed: notifies the owner, once, and retires it.
    fn lose(&mut self, index: u32, handler: &mut impl Handler) {
        let Some(connection) = self.connections.at_mut(index) else {
            return;
        };
        if !connection.closing {
            connection.closing = true;
            handler.broken(connection.user);
        }
        self.retire(index);
    }

    fn send_rest(&mut self, index: u32) {
        let Some(connection) = self.connections.at_mut(index) else {
            return;
        };
        connection.busy = true;
        let rest = &connection.sending[connection.sent..];
        let length = u32::try_from(rest.len()).unwrap_or(u32::MAX);
        let request = opcode::Send::new(types::Fd(connection.socket.as_raw_fd()), rest.as_ptr(), length)
            .flags(libc::MSG_NOSIGNAL)
            .build();
        self.push(request, Kind::Send, index);
    }

    fn arm_receive(&mut self, index: u32) {
        let Some(connection) = self.connections.at_mut(index) else {
            return;
        };
        if connection.receiving != Receiving::Idle || connection.ended || connection.closing {
            return;
        }
        connection.receiving = Receiving::Armed;
        let socket = types::Fd(connection.socket.as_raw_fd());
        self.push(opcode::RecvMulti::new(socket, buffers::GROUP).build(), Kind::Receive, index);
    }

    fn stop_receive(&mut self, index: u32) {
        let Some(connection) = self.connections.at_mut(index) else {
            return;
        };
        if connection.receiving == Receiving::Armed {
            connection.receiving = Receiving::Cancelling;
            self.push(opcode::AsyncCancel::new(Kind::Receive.tag(index)).build(), Kind::Cancel, index);
        }
    }

    fn arm_listeners(&mut self) {
        for index in 0..self.listeners.len() {
            let listener = &mut self.listeners[index];
            if let Some(socket) = listener.socket.as_ref().filter(|_| !listener.armed) {
                let socket = types::Fd(socket.as_raw_fd());
                listener.armed = true;
                let request = opcode::AcceptMulti::new(socket).flags(libc::SOCK_CLOEXEC).build();
                self.push(request, Kind::Accept, index as u32);
            }
        }
    }

    fn push(&mut self, request: squeue::Entry, kind: Kind, index: u32) {
        self.in_flight += 1;
        let request = request.user_data(kind.tag(index));
        if !self.overflow.is_empty() || !self.offer(&request) {
            self.overflow.push_back(request);
        }
    }

    fn offer(&mut self, request: &squeue::Entry) -> bool {
        // SAFETY: what a request names outlives it. Sockets and send buffers live in a slot that is
        // not freed, and buffers are not touched, before the completion; listeners and watches live
        // as long as the queue; received bytes go to the registered buffers. Dropping the queue
        // waits for all of them.
        unsafe { self.ring.submission().push(request).is_ok() }
    }

    /// Moves waiting requests into the submission queue as far as it has room.
    fn refill(&mut self) {
        while let Some(request) = self.overflow.pop_front() {
            if !self.offer(&request) {
                self.overflow.push_front(request);
                return;
            }
        }
    }

    fn enter_if_needed(&mut self) -> io::Result<()> {
        self.refill();
        let queue = self.ring.submission();
        let needed = !queue.is_empty() || queue.taskrun() || queue.cq_overflow();
        drop(queue);
        if needed { self.enter() } else { Ok(()) }
    }

    /// Submits everything and runs what is pending.
    fn enter(&mut self) -> io::Result<()> {
        loop {
            self.refill();
            let queued = self.ring.submission().len();
            let count = u32::try_from(queued).unwrap_or(u32::MAX);
            // SAFETY: no argument is passed, and `offer` has answered for what the requests name.
            let outcome =
                unsafe { self.ring.submitter().enter::<libc::sigset_t>(count, 0, GET_EVENTS, None) };
            let progress = matches!(outcome, Ok(submitted) if submitted > 0);
            tolerate(outcome)?;
            if self.overflow.is_empty() || !progress {
                return Ok(());
            }
        }
    }
}

/// What only says "not now" is no failure.
fn tolerate(outcome: io::Result<usize>) -> io::Result<()> {
    match outcome {
        Ok(_) => Ok(()),
        Err(error) => match error.raw_os_error() {
            Some(libc::EINTR | libc::ETIME | libc::EBUSY | libc::EAGAIN) => Ok(()),
            _ => Err(error),
        },
    }
}

/// Ignores every event: for draining.
struct IgnoreAll;

impl Handler for IgnoreAll {
    fn accepted(&mut self, _: ConnectionId, _: SocketAddr, _: SocketAddr) -> Verdict {
        Verdict::Refuse(b"")
    }
    fn received(&mut self, _: u64, _: &[u8]) -> Appetite {
        Appetite::More
    }
    fn ended(&mut self, _: u64) {}
    fn broken(&mut self, _: u64) {}
    fn writable(&mut self, _: u64) {}
    fn doorbell(&mut self, _: u64) {}
}

impl Drop for Uring {
    fn drop(&mut self) {
        for index in self.connections.keys().map(Key::index).collect::<Vec<_>>() {
            if let Some(connection) = self.connections.at_mut(index) {
                connection.closing = true;
                connection.queued.clear();
                connection.shut = true;
                // A connection that is already down cannot be shut down.
                let _ = rustix::net::shutdown(&connection.socket, Shutdown::Both);
            }
        }
        // A send to a peer that does not read ends with the shutdown; give the kernel a moment to
        // say so.
        for _ in 0..DRAIN_ROUNDS {
            let busy = !self.connections.is_empty();
            if !busy || self.poll(&mut IgnoreAll).is_err() {
                break;
            }
            for index in self.connections.keys().map(Key::index).collect::<Vec<_>>() {
                self.retire(index);
            }
            let pause = types::Timespec::from(Duration::from_millis(10));
            let _ = self.ring.submitter().submit_with_args(1, &types::SubmitArgs::new().timespec(&pause));
        }
        let stuck: Vec<u32> = self.connections.keys().map(Key::index).collect();
        for index in stuck {
            if let Some(connection) = self.connections.remove_at(index) {
                // Better a leak than memory that the kernel reads after it was reused.
                std::mem::forget(connection.sending);
            }
        }
    }
}
