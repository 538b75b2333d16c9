//! What needs more descriptors than there are, where the limit cannot be raised ([`crate::room`]).
//!
//! 1. A child is made that shares this process's memory but has a copy of its descriptors
//!    (`clone(2)`: CLONE_VM without CLONE_FILES; CLONE_VFORK: the caller waits for its end). It
//!    closes a few of its copies, does what is to be done ([`in_copy`]), and its descriptors end
//!    with it.
//! 2. An arrival comes as three descriptors, of which one stays; the kernel's `accept` needs one.
//!    So the child looks at the arrival without taking it (MSG_PEEK), and maps its memory. Then the
//!    caller takes the arrival with room for its first descriptor; the kernel drops the others
//!    ([`take`]).
//! 3. Somebody else who accepts from the same listener may have been faster. So the socket that was
//!    looked at and the one that was taken are compared. If they differ, what was taken cannot be
//!    used: it is closed, which resets that connection, as Linux may end one before it is accepted.
//!
//! The child runs with all signals blocked, and touches nothing of the library's but what is handed
//! to it: the numbers that it knows are not those of the process.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, IntoRawFd as _, OwnedFd};

use rustix::net::RecvFlags;
use sietch_protocol::socket_service::{
    self as protocol, ARRIVAL_BYTES, Arrival, ArrivalKind, Descriptors, Incoming,
};

use crate::end::End;
use crate::sys::{self, Errno, signed};
use crate::wait::signals;
use crate::{apart, confined};

/// Bytes of the child's stack: it receives one message and makes two mappings.
const STACK: usize = 256 << 10;

/// Descriptors that the child closes of its copies: what an arrival needs.
const NEEDED: usize = 3;

/// What the child saw.
enum Seen {
    /// A socket of the kernel, or something that is no connection: nothing was made of it.
    Nothing,
    Stream {
        end: End,
        /// Of its placeholder.
        cookie: u64,
    },
}

/// What was taken.
#[derive(Debug)]
pub enum Taken {
    /// A connection with its placeholder, and its end.
    Stream(Arrival, End),
    /// As [`protocol::receive_arrival`]: whatever needs no more than one descriptor.
    Other(Incoming),
}

/// Takes what waits at a listener, with one free descriptor, without sleeping.
///
/// # Errors
/// `EAGAIN`: nothing waits. `EMFILE`: there is no descriptor, or no child to be had.
/// `ECONNABORTED`: another was faster.
pub fn take(listener: BorrowedFd<'_>, received: &mut Descriptors) -> Result<Taken, Errno> {
    let (end, cookie) = match in_copy(listener.as_raw_fd(), || see(listener))?? {
        Seen::Nothing => {
            let incoming = protocol::receive_arrival(listener, RecvFlags::DONTWAIT, received);
            return incoming.map(Taken::Other).map_err(|errno| errno.raw_os_error());
        }
        Seen::Stream { end, cookie } => (end, cookie),
    };
    let (arrival, placeholder) =
        protocol::receive_first(listener, RecvFlags::DONTWAIT).map_err(|errno| errno.raw_os_error())?;
    let Some(placeholder) = placeholder else { return Err(libc::EMFILE) };
    if arrival.kind() != ArrivalKind::Stream || apart::cookie(placeholder.as_raw_fd()) != Some(cookie) {
        return Err(libc::ECONNABORTED);
    }
    received[0] = Some(placeholder);
    Ok(Taken::Stream(arrival, end))
}

/// What is done in a child, and what came of it.
struct Task<F, T> {
    /// A descriptor that it needs, or -1.
    needs: c_int,
    act: Option<F>,
    done: Option<T>,
}

/// Runs `act` with room for three more descriptors, in a copy of the process's. Of those that are
/// open it may use `needs`.
///
/// # Errors
/// `EMFILE`: there is no child to be had.
pub fn in_copy<T>(needs: c_int, act: impl FnOnce() -> T) -> Result<T, Errno> {
    // Filters may allow no child.
    if confined::is_confined() {
        return Err(libc::EMFILE);
    }
    let mut task = Task { needs, act: Some(act), done: None };
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let arguments = [0, STACK, signed(access), signed(kind | libc::MAP_STACK), signed(-1), 0];
    // SAFETY: a new mapping of its own.
    let stack = unsafe { sys::ask(libc::SYS_mmap, arguments) }.map_err(|_| libc::EMFILE)?;
    let before = signals::block_all();
    run(stack, &mut task);
    signals::restore(before);
    // SAFETY: the mapping of above; nobody runs on it any more.
    let _ = unsafe { sys::ask(libc::SYS_munmap, [stack, STACK, 0, 0, 0, 0]) };
    task.done.ok_or(libc::EMFILE)
}

fn run<F: FnOnce() -> T, T>(stack: usize, task: &mut Task<F, T>) {
    let flags = libc::CLONE_VM | libc::CLONE_VFORK;
    let top = sys::pointer(stack + STACK);
    let argument = std::ptr::from_mut(task).cast::<c_void>();
    // SAFETY: the stack grows down from there; the caller's thread stands still until the child has
    // ended, so that the child may use what is borrowed here, and thread-local variables.
    let process = unsafe { libc::clone(child::<F, T>, top, flags, argument) };
    if process >= 0 {
        let arguments = [signed(process), 0, signed(libc::__WALL), 0, 0, 0];
        // A child without a signal is found by its number alone.
        // SAFETY: the kernel writes nothing.
        let _ = unsafe { sys::ask(libc::SYS_wait4, arguments) };
    }
}

/// What the child does.
extern "C" fn child<F: FnOnce() -> T, T>(argument: *mut c_void) -> c_int {
    // SAFETY: `run`'s, which waits.
    let task = unsafe { &mut *argument.cast::<Task<F, T>>() };
    for other in (0..).filter(|other| *other != task.needs).take(NEEDED) {
        let _ = sys::close(other);
    }
    task.done = task.act.take().map(|act| act());
    0
}

/// Looks at what waits.
fn see(listener: BorrowedFd<'_>) -> Result<Seen, Errno> {
    let mut received = Descriptors::default();
    let mut bytes = [0; ARRIVAL_BYTES];
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let found = protocol::receive_all(listener, &mut bytes, &mut received, flags, keep);
    let seen = match found {
        Ok((length, complete)) => match Arrival::parse(bytes.get(..length).unwrap_or_default()) {
            Ok(arrival) if arrival.kind() == ArrivalKind::Stream && complete => map(&received),
            Ok(arrival) if arrival.kind() == ArrivalKind::Stream => Err(libc::EMFILE),
            _ => Ok(Seen::Nothing),
        },
        Err(errno) => Err(errno.raw_os_error()),
    };
    received.into_iter().flatten().for_each(keep);
    seen
}

/// Leaves a descriptor to the end of the child: its number is of this table, and the library's
/// `close` would forget what the program has at that number.
fn keep(descriptor: OwnedFd) {
    let _ = descriptor.into_raw_fd();
}

fn map(received: &Descriptors) -> Result<Seen, Errno> {
    let [Some(placeholder), Some(common), Some(private), _] = received else {
        return Err(libc::ECONNABORTED);
    };
    let cookie = apart::cookie(placeholder.as_raw_fd()).ok_or(libc::ECONNABORTED)?;
    let end = End::attach(common.as_fd(), private.as_fd()).map_err(|_| libc::ENOMEM)?;
    Ok(Seen::Stream { end, cookie })
}
