//! The kernel's side: plain sockets, as a careful program would use them.
//!
//! 1. *Blocking*: a thread sleeps in `recvfrom`, `read` (one connection) or `epoll_wait` (several).
//! 2. *Spinning*: the same program with non-blocking calls in a loop; it burns its core.
//! 3. Requests and replies of one wake-up leave in one `write` a connection, so that pipelining
//!    costs the kernel no more calls than us.

mod bulk;
mod churn;
mod rpc;
mod udp;

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use super::measure::Outcome;
use super::work::{REQUEST, Work};
use crate::error::{Error, system};

pub(super) use rpc::reply_size;

/// How a worker waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waiting {
    /// Sleeps in the kernel.
    Blocking,
    /// Asks again and again.
    Spinning,
}

/// Serves `work` at `address` until the process is ended. `ready` is told the address once it
/// answers.
pub(super) fn serve(
    work: Work,
    waiting: Waiting,
    address: SocketAddr,
    ready: impl FnOnce(SocketAddr),
) -> Result<(), Error> {
    match work {
        Work::UdpEcho { .. } => udp::serve(waiting, address, ready),
        Work::Rpc { bytes, .. } | Work::Fair { bytes, .. } => rpc::serve(bytes, waiting, address, ready),
        Work::Bulk { .. } => bulk::serve(waiting, address, ready),
        Work::Churn => churn::serve(waiting, address, ready),
        Work::Hold { .. } | Work::Idle { .. } => rpc::serve(REQUEST, waiting, address, ready),
    }
}

/// Loads the server at `address` for `seconds`.
pub(super) fn load(
    work: Work,
    waiting: Waiting,
    address: SocketAddr,
    seconds: f64,
    peer: Option<u32>,
) -> Result<Outcome, Error> {
    match work {
        Work::UdpEcho { bytes, window } => udp::load(bytes, window, waiting, address, seconds),
        Work::Rpc { bytes, connections, pipeline } => {
            rpc::load(bytes, connections, pipeline, waiting, address, seconds, false)
        }
        Work::Fair { bytes, connections } => {
            rpc::load(bytes, connections, 1, waiting, address, seconds, true)
        }
        Work::Bulk { flows } => bulk::load(flows, waiting, address, seconds),
        Work::Churn => churn::load(waiting, address, seconds),
        Work::Hold { connections } => churn::hold(connections, address),
        Work::Idle { connections } => churn::idle(connections, address, seconds, peer),
    }
}

/// Connections and the epoll that watches them.
struct Watch {
    epoll: OwnedFd,
    events: Vec<Event>,
    waiting: Waiting,
}

/// The word of the listener among those of connections.
const LISTENER: u64 = u64::MAX;

impl Watch {
    fn new(waiting: Waiting) -> Result<Self, Error> {
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(system("creating an epoll"))?;
        Ok(Self { epoll, events: Vec::with_capacity(1024), waiting })
    }

    fn add(&self, socket: impl AsFd, word: u64, flags: EventFlags) -> Result<(), Error> {
        epoll::add(&self.epoll, socket, EventData::new_u64(word), flags).map_err(system("watching a socket"))
    }

    /// Fills `words` with those of sockets that have something to say.
    fn wait(&mut self, words: &mut Vec<(u64, EventFlags)>) -> Result<(), Error> {
        words.clear();
        self.events.clear();
        let timeout = match self.waiting {
            Waiting::Blocking => None,
            Waiting::Spinning => Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 }),
        };
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.events), timeout) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => {}
            Err(cause) => return Err(system("waiting for sockets")(cause)),
        }
        words.extend(self.events.iter().map(|event| (event.data.u64(), event.flags)));
        Ok(())
    }
}

/// A listener at `address`, watched; `ready` is told where it really is.
fn listen(
    waiting: Waiting,
    address: SocketAddr,
    ready: impl FnOnce(SocketAddr),
) -> Result<(TcpListener, Watch), Error> {
    let listener = TcpListener::bind(address).map_err(system("listening"))?;
    // The standard library's backlog is 128; a thousand clients connect at once.
    rustix::net::listen(&listener, 4096).map_err(system("listening"))?;
    let address = listener.local_addr().map_err(system("reading the listener's address"))?;
    listener.set_nonblocking(true).map_err(system("setting O_NONBLOCK"))?;
    let watch = Watch::new(waiting)?;
    watch.add(&listener, LISTENER, EventFlags::IN)?;
    ready(address);
    Ok((listener, watch))
}

fn connect(address: SocketAddr) -> Result<TcpStream, Error> {
    let stream = TcpStream::connect(address).map_err(system("connecting"))?;
    stream.set_nodelay(true).map_err(system("setting TCP_NODELAY"))?;
    Ok(stream)
}

/// What a read brought: bytes, nothing yet, or the end.
enum Taken {
    Bytes(usize),
    Nothing,
    End,
}

fn take(stream: &mut TcpStream, buffer: &mut [u8]) -> Result<Taken, Error> {
    match stream.read(buffer) {
        Ok(0) => Ok(Taken::End),
        Ok(length) => Ok(Taken::Bytes(length)),
        Err(cause) if matches!(cause.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
            Ok(Taken::Nothing)
        }
        Err(cause) if cause.kind() == ErrorKind::ConnectionReset => Ok(Taken::End),
        Err(cause) => Err(system("reading")(cause)),
    }
}

/// Writes all of `bytes`; replies are small beside the socket buffer, so that a short write is
/// waited out.
fn put(stream: &mut TcpStream, mut bytes: &[u8]) -> Result<(), Error> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(length) => bytes = &bytes[length..],
            Err(cause) if cause.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
            Err(cause) if matches!(cause.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
                return Ok(());
            }
            Err(cause) => return Err(system("writing")(cause)),
        }
    }
    Ok(())
}

fn nonblocking(stream: &TcpStream) -> Result<(), Error> {
    stream.set_nonblocking(true).map_err(system("setting O_NONBLOCK"))
}

fn would_block(cause: &io::Error) -> bool {
    matches!(cause.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
