//! The client's side, and sending and receiving of messages with descriptors for both sides.
//!
//! 1. [`call`]: connect, send, receive, close. If the service is missing, stopped or sends an
//!    invalid answer, the result is an error number; nothing hangs. After a service did not answer
//!    in time, the next calls do not wait for it: it counts as absent for a while, which doubles.
//! 2. Descriptors are returned in a fixed array. Unexpected ones are closed. If a message carries
//!    more than fit, the kernel drops them (`MSG_CTRUNC`), and the message counts as damaged.
//! 3. [`receive_arrival`] returns the kernel's own result where there is no message: the
//!    placeholder's flags decide whether it sleeps, and the program sees EINTR and EAGAIN
//!    unchanged.
//!
//! All system calls are made directly (rustix), not through the C library, whose names a preloaded
//! library replaces. The only exception is the closing of an [`OwnedFd`], which passes `close`:
//! such a library must pass through descriptors that it does not manage.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_linger, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use zerocopy::IntoBytes;

use super::{
    ANSWER_MS, ARRIVAL_BYTES, Arrival, BacklogChange, Build, MAX_DESCRIPTORS, REPLY_BYTES,
    RESET_UNTIL_ACCEPTED, Reply, ReplyKind, Request, RequestKind, VERSION,
};
use crate::frame::MOST_IN_MESSAGE;

/// The time before which the service counts as absent, in milliseconds of the monotonic clock, and
/// the next duration. A service that did not answer is not called again at once, because each call
/// would wait [`ANSWER_MS`] for it. It is kept for this process, which has one service.
static ABSENT_UNTIL: AtomicU64 = AtomicU64::new(0);
static PAUSE: AtomicU64 = AtomicU64::new(FIRST_PAUSE);
const FIRST_PAUSE: u64 = 2 * ANSWER_MS;
const LONGEST_PAUSE: u64 = 6 * ANSWER_MS;

fn milliseconds() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    (now.tv_sec as u64).wrapping_mul(1000).wrapping_add(now.tv_nsec as u64 / 1_000_000)
}

/// Whether the service may be called; one call is permitted after each pause.
fn may_call(now: u64, until: &AtomicU64, pause: &AtomicU64) -> bool {
    let absent = until.load(Ordering::Relaxed);
    absent == 0
        || now >= absent
            && until
                .compare_exchange(
                    absent,
                    now + pause.load(Ordering::Relaxed),
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                )
                .is_ok()
}

/// Notes how a call ended.
fn note(now: u64, timed_out: bool, until: &AtomicU64, pause: &AtomicU64) {
    if timed_out {
        let length = pause.load(Ordering::Relaxed);
        until.store(now + length, Ordering::Relaxed);
        pause.store((2 * length).min(LONGEST_PAUSE), Ordering::Relaxed);
    } else if until.load(Ordering::Relaxed) != 0 {
        until.store(0, Ordering::Relaxed);
        pause.store(FIRST_PAUSE, Ordering::Relaxed);
    }
}

/// The descriptors of a message: the first ones are filled.
pub type Descriptors = [Option<OwnedFd>; MAX_DESCRIPTORS];

/// Sends a request to the service at `path` and waits for its answer.
///
/// The descriptors of the answer are in `received`, as many as [`super::ReplyKind::descriptors`]
/// returns.
///
/// # Errors
/// Those of `socket` and `connect` (`ENOENT`, `ECONNREFUSED`: no service); `ETIMEDOUT`: it does not
/// answer; `EPROTO`: no answer, or none that this version understands. `EMFILE`: there was no room
/// for the descriptors.
pub fn call(
    path: &[u8],
    request: &Request,
    send: &[BorrowedFd<'_>],
    received: &mut Descriptors,
) -> Result<Reply, Errno> {
    if ABSENT_UNTIL.load(Ordering::Relaxed) != 0 && !may_call(milliseconds(), &ABSENT_UNTIL, &PAUSE) {
        return Err(Errno::TIMEDOUT);
    }
    let answer = connect(path).and_then(|socket| call_on(socket.as_fd(), request, send, received));
    let timed_out = matches!(answer, Err(Errno::TIMEDOUT));
    // The clock is read where it matters alone.
    if timed_out || ABSENT_UNTIL.load(Ordering::Relaxed) != 0 {
        note(milliseconds(), timed_out, &ABSENT_UNTIL, &PAUSE);
    }
    answer
}

/// The kind of service that answers at a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HelloReply {
    /// A service whose messages are of this version, and its build if the answer has one.
    SameVersion(Option<Build>),
    /// A service of another version, and its build if the answer has one.
    OtherVersion(u16, Option<Build>),
}

/// Sends a hello to the service at `path`, which may be of another version.
///
/// # Errors
/// As [`call`]; a refusal's.
pub fn greet(path: &[u8], application: [u8; 16]) -> Result<HelloReply, Errno> {
    let mut received = Descriptors::default();
    let request = Request::new(RequestKind::Hello, application);
    let (bytes, length, _) = exchange(connect(path)?.as_fd(), &request, &[], &mut received)?;
    let bytes = bytes.get(..length).unwrap_or_default();
    let (version, build) = Build::of_reply(bytes).ok_or(Errno::PROTO)?;
    if version != VERSION {
        return Ok(HelloReply::OtherVersion(version, build));
    }
    let reply = Reply::parse(bytes).map_err(|_| Errno::PROTO)?;
    match reply.kind() {
        ReplyKind::Welcome => Ok(HelloReply::SameVersion(build)),
        ReplyKind::Refused => Err(reply.error()),
        _ => Err(Errno::PROTO),
    }
}

fn connect(path: &[u8]) -> Result<OwnedFd, Errno> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let patience = Some(Duration::from_millis(ANSWER_MS));
    set_socket_timeout(&socket, Timeout::Send, patience)?;
    set_socket_timeout(&socket, Timeout::Recv, patience)?;
    loop {
        match rustix::net::connect(&socket, &address) {
            Ok(()) | Err(Errno::ISCONN) => return Ok(socket),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Err(Errno::TIMEDOUT),
            Err(error) => return Err(error),
        }
    }
}

/// The same over a connection that is there already.
///
/// # Errors
/// As [`call`].
pub fn call_on(
    socket: BorrowedFd<'_>,
    request: &Request,
    send: &[BorrowedFd<'_>],
    received: &mut Descriptors,
) -> Result<Reply, Errno> {
    let (bytes, length, complete) = exchange(socket, request, send, received)?;
    let reply = Reply::parse(bytes.get(..length).unwrap_or_default()).map_err(|_| Errno::PROTO)?;
    if !complete {
        clear(received);
        return Err(Errno::MFILE);
    }
    let fits = match (reply.kind(), count(received)) {
        // Of a VNIC it has none.
        (ReplyKind::Listener, count) => count <= 1,
        (kind, count) => count == kind.descriptors(),
    };
    if !fits {
        clear(received);
        return Err(Errno::PROTO);
    }
    Ok(reply)
}

/// Sends a request and waits for an answer: its bytes, their number, and whether all descriptors
/// arrived.
fn exchange(
    socket: BorrowedFd<'_>,
    request: &Request,
    send: &[BorrowedFd<'_>],
    received: &mut Descriptors,
) -> Result<([u8; REPLY_BYTES], usize, bool), Errno> {
    loop {
        match send_message(socket, request.as_bytes(), send, SendFlags::empty()) {
            Ok(()) => break,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Err(Errno::TIMEDOUT),
            // It may have answered (that it is full, say) and hung up before it read.
            Err(Errno::PIPE | Errno::CONNRESET) => break,
            Err(error) => return Err(error),
        }
    }
    let mut bytes = [0; REPLY_BYTES];
    loop {
        match receive_message(socket, &mut bytes, received, RecvFlags::empty()) {
            Ok((length, complete)) => return Ok((bytes, length, complete)),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Err(Errno::TIMEDOUT),
            Err(error) => return Err(error),
        }
    }
}

/// The result of receiving from a listener's placeholder.
#[derive(Debug)]
pub enum Incoming {
    /// A connection, and its descriptors, as many as [`Arrival::descriptors`] returns.
    Arrived(Arrival),
    /// The service has closed the listener, or has ended.
    Closed,
    /// A connection for whose descriptors this process had no room: `EMFILE`. It is lost, except
    /// with [`receive_sole_arrival`].
    NoRoom,
    /// Something that is no arrival; it was thrown away, and the call may be made again.
    Damaged,
}

/// Receives one connection from a listener's placeholder. `flags` are those of `recvmsg`
/// (`MSG_DONTWAIT`); close-on-exec is always set.
///
/// # Errors
/// The kernel's, unchanged: `EAGAIN`, `EINTR`, `EBADF`, ...
pub fn receive_arrival(
    placeholder: BorrowedFd<'_>,
    flags: RecvFlags,
    received: &mut Descriptors,
) -> Result<Incoming, Errno> {
    let mut bytes = [0; ARRIVAL_BYTES];
    let (length, complete) = receive_message(placeholder, &mut bytes, received, flags)?;
    Ok(incoming(bytes.get(..length).unwrap_or_default(), complete, received))
}

/// As [`receive_arrival`], without sleeping, for a process that alone receives from the
/// placeholder, in one thread. A connection without room ([`Incoming::NoRoom`]) is not lost: it
/// goes on waiting.
///
/// 1. The message is read with its descriptors and stays queued (`MSG_PEEK`): the kernel makes room
///    for them, or says that there is none, in one step. No other thread can take the numbers in
///    between.
/// 2. Then the message is taken without its descriptors. Another receiver could take it between the
///    two steps: then both would have the connection, and the next one would be lost.
///
/// # Errors
/// The kernel's: `EAGAIN` if nothing waits.
pub fn receive_sole_arrival(
    placeholder: BorrowedFd<'_>,
    received: &mut Descriptors,
) -> Result<Incoming, Errno> {
    // One byte more: a message that is too long is damaged, and does not stay for ever.
    let mut bytes = [0; ARRIVAL_BYTES + 1];
    let (flags, mut surplus) = (RecvFlags::DONTWAIT | RecvFlags::PEEK, false);
    let (length, complete) = receive_all(placeholder, &mut bytes, received, flags, |descriptor| {
        surplus = true;
        drop(descriptor);
    })?;
    // The same for one with too many descriptors.
    let found = incoming(bytes.get(..length).unwrap_or_default(), complete || surplus, received);
    if matches!(found, Incoming::Closed | Incoming::NoRoom) {
        return Ok(found);
    }
    loop {
        match rustix::net::recv(placeholder, &mut [0_u8; 1], RecvFlags::DONTWAIT) {
            Ok(_) => return Ok(found),
            Err(Errno::INTR) => {}
            Err(errno) => {
                clear(received);
                return Err(errno);
            }
        }
    }
}

/// What a message is. Its descriptors stay in `received` only if it is an arrival.
fn incoming(bytes: &[u8], complete: bool, received: &mut Descriptors) -> Incoming {
    let found = match Arrival::parse(bytes) {
        _ if bytes.is_empty() => Incoming::Closed,
        Err(_) => Incoming::Damaged,
        Ok(_) if !complete => Incoming::NoRoom,
        Ok(arrival) if count(received) == arrival.descriptors() => return Incoming::Arrived(arrival),
        Ok(_) => Incoming::Damaged,
    };
    clear(received);
    found
}

/// Takes the socket of a connection of the kernel that arrived. From now on its close is an end,
/// and no reset.
///
/// # Errors
/// `ECONNABORTED`: there is none.
pub fn take_kernel_socket(arrival: &Arrival, received: &mut Descriptors) -> Result<OwnedFd, Errno> {
    let socket = received[0].take().ok_or(Errno::CONNABORTED)?;
    if arrival.flags & RESET_UNTIL_ACCEPTED != 0 {
        // It fails only if a filter of the program's system calls forbids it.
        let _ = set_socket_linger(&socket, None);
    }
    Ok(socket)
}

/// Receives one connection from a listener's placeholder, and only its first descriptor; the kernel
/// drops the others. None: there was no room for that one either, and the connection is lost.
///
/// # Errors
/// The kernel's; `ECONNABORTED` for a message that is no arrival.
pub fn receive_first(
    placeholder: BorrowedFd<'_>,
    flags: RecvFlags,
) -> Result<(Arrival, Option<OwnedFd>), Errno> {
    let mut bytes = [0; ARRIVAL_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let message = rustix::net::recvmsg(placeholder, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags)?;
    let first = control.drain().find_map(|piece| match piece {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    let arrival =
        Arrival::parse(bytes.get(..message.bytes).unwrap_or_default()).map_err(|_| Errno::CONNABORTED)?;
    Ok((arrival, first))
}

/// Notifies the service that the program has called `listen` again.
///
/// # Errors
/// Those of `send`. The caller may ignore them.
pub fn change_backlog(placeholder: BorrowedFd<'_>, backlog: u32) -> Result<(), Errno> {
    let message = BacklogChange::new(backlog);
    send_message(placeholder, message.as_bytes(), &[], SendFlags::DONTWAIT)
}

/// Sends one message with descriptors (at most [`MAX_DESCRIPTORS`]); never raises SIGPIPE.
///
/// # Errors
/// Those of `sendmsg`; `EINVAL` for too many descriptors.
pub fn send_message(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::INVAL);
    }
    let flags = flags | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags).map(|_| ())
}

/// Receives one message: its length (0: the end), and whether all of it and of its descriptors were
/// there.
///
/// # Errors
/// Those of `recvmsg`.
pub fn receive_message(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    received: &mut Descriptors,
    flags: RecvFlags,
) -> Result<(usize, bool), Errno> {
    // Dropped, that is closed.
    receive_all(socket, bytes, received, flags, drop)
}

/// As [`receive_message`], for a receiver that must not be kept waiting. A descriptor too many is
/// given to `surplus`. The kernel closes none in the receiver's name, which may take as long as its
/// sender likes (`SO_LINGER`).
///
/// # Errors
/// Those of `recvmsg`.
pub fn receive_all(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    received: &mut Descriptors,
    flags: RecvFlags,
    mut surplus: impl FnMut(OwnedFd),
) -> Result<(usize, bool), Errno> {
    clear(received);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_IN_MESSAGE))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let message = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, flags)?;
    let mut places = received.iter_mut();
    let mut complete = !message.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
    for piece in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = piece {
            for descriptor in descriptors {
                match places.next() {
                    Some(place) => *place = Some(descriptor),
                    None => {
                        complete = false;
                        surplus(descriptor);
                    }
                }
            }
        }
    }
    Ok((message.bytes, complete))
}

fn clear(received: &mut Descriptors) {
    received.iter_mut().for_each(|place| *place = None);
}

fn count(received: &Descriptors) -> usize {
    received.iter().take_while(|place| place.is_some()).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_service_that_did_not_answer_one_call_a_pause_waits_for_it() {
        let (until, pause) = (AtomicU64::new(0), AtomicU64::new(FIRST_PAUSE));
        assert!(may_call(1000, &until, &pause));
        note(1000, true, &until, &pause);
        assert!(!may_call(1000 + FIRST_PAUSE - 1, &until, &pause));
        let after = 1000 + FIRST_PAUSE;
        assert!(may_call(after, &until, &pause), "one call checks whether it is back");
        assert!(!may_call(after, &until, &pause), "and the others do not wait for that");
        note(after, true, &until, &pause);
        assert!(!may_call(after + 2 * FIRST_PAUSE - 1, &until, &pause), "the pause has doubled");
        note(after, false, &until, &pause);
        assert!(may_call(after, &until, &pause) && may_call(after, &until, &pause));
        assert_eq!(pause.load(Ordering::Relaxed), FIRST_PAUSE);
    }
}
