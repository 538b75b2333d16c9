//! Kernel sockets that block or spin, and the epoll that watches them.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use crate::error::{Error, system};

/// How a worker waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::net) enum Waiting {
    /// Sleeps in the kernel.
    Blocking,
    /// Polls in a loop.
    Spinning,
}

/// Connections and the epoll that watches them.
pub(super) struct Watch {
    epoll: OwnedFd,
    events: Vec<Event>,
    waiting: Waiting,
}

/// The listener's word in epoll events; those of connections are their indices.
pub(super) const LISTENER: u64 = u64::MAX;

impl Watch {
    pub(super) fn new(waiting: Waiting) -> Result<Self, Error> {
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(system("creating an epoll"))?;
        Ok(Self { epoll, events: Vec::with_capacity(1024), waiting })
    }

    pub(super) fn add(&self, socket: impl AsFd, word: u64, flags: EventFlags) -> Result<(), Error> {
        epoll::add(&self.epoll, socket, EventData::new_u64(word), flags).map_err(system("watching a socket"))
    }

    /// Waits for events, and fills `words` with the words of the sockets that have some.
    pub(super) fn wait(&mut self, words: &mut Vec<(u64, EventFlags)>) -> Result<(), Error> {
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

/// Creates a listener at `address` and watches it. `ready` gets the address that the kernel chose.
pub(super) fn listen(
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

pub(super) fn connect(address: SocketAddr) -> Result<TcpStream, Error> {
    let stream = TcpStream::connect(address).map_err(system("connecting"))?;
    stream.set_nodelay(true).map_err(system("setting TCP_NODELAY"))?;
    Ok(stream)
}

/// The result of a read: bytes, nothing yet, or the end of the stream.
pub(super) enum Taken {
    Bytes(usize),
    Nothing,
    End,
}

pub(super) fn take(stream: &mut TcpStream, buffer: &mut [u8]) -> Result<Taken, Error> {
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

/// Writes all of `bytes`. Replies are small beside the socket buffer, so after a short write this
/// waits for room.
pub(super) fn put(stream: &mut TcpStream, mut bytes: &[u8]) -> Result<(), Error> {
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

pub(super) fn nonblocking(stream: &TcpStream) -> Result<(), Error> {
    stream.set_nonblocking(true).map_err(system("setting O_NONBLOCK"))
}

pub(super) fn would_block(cause: &io::Error) -> bool {
    matches!(cause.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
