//! How the load generator reaches a server: kernel sockets, or an engine of its own on an end of a
//! link. The load is the same.
//!
//! Both spin as long as spinning has recently found work, and then sleep, by the same rule
//! ([`Spin`]). Otherwise a part of any difference would be that one of them never sleeps.

use std::io;
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use sietch::net::{EventKind, FlowId};
use sietch::{Doorbell, Idle, Spin, Stack, clock};

/// Events taken at a time.
const BATCH: usize = 64;

/// Bytes read from a socket at a time: more than the replies to a pipeline take.
const CHUNK: usize = 64 << 10;

/// Connections to one server.
pub(super) trait Transport {
    /// Appends the connections on which something has arrived, waiting for the first until `until`
    /// at most. It may return early.
    fn poll(&mut self, until: u64, readable: &mut Vec<usize>) -> io::Result<()>;

    /// Sends all of `bytes`.
    fn send(&mut self, connection: usize, bytes: &[u8]) -> io::Result<()>;

    /// Passes the received bytes to `consume`, and drops as many as it returns.
    fn take(
        &mut self,
        connection: usize,
        consume: &mut dyn FnMut(&[u8]) -> io::Result<usize>,
    ) -> io::Result<()>;
}

fn too_long() -> io::Error {
    io::Error::other("a pipeline does not fit the send buffer; choose a shorter one or smaller values")
}

/// Flows of an engine.
pub(super) struct Flows<Q: Doorbell> {
    stack: Stack<Q>,
    flows: Vec<FlowId>,
}

impl<Q: Doorbell> Flows<Q> {
    /// Connects `count` times and waits for all of them.
    pub(super) fn connect(mut stack: Stack<Q>, server: SocketAddr, count: usize) -> io::Result<Self> {
        let mut flows = Vec::new();
        for user in 0..count {
            let flow = stack.engine.connect(server, clock::now()).map_err(io::Error::other)?;
            stack.engine.set_user(flow, user as u64);
            flows.push(flow);
        }
        let mut connected = 0;
        while connected < count {
            stack.poll(None)?;
            while let Some(event) = stack.next_event() {
                match event.kind {
                    EventKind::Connected => connected += 1,
                    EventKind::Closed(why) => return Err(io::Error::other(format!("refused: {why:?}"))),
                    _ => {}
                }
            }
        }
        Ok(Self { stack, flows })
    }
}

impl<Q: Doorbell> Transport for Flows<Q> {
    fn poll(&mut self, until: u64, readable: &mut Vec<usize>) -> io::Result<()> {
        self.stack.poll(Some(until))?;
        while let Some(event) = self.stack.next_event() {
            match event.kind {
                EventKind::Readable => readable.push(event.user as usize),
                EventKind::Closed(why) => {
                    return Err(io::Error::other(format!("the store closed: {why:?}")));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn send(&mut self, connection: usize, bytes: &[u8]) -> io::Result<()> {
        // Everything before was answered: the send buffer is as good as empty.
        let taken = self.stack.engine.send(self.flows[connection], bytes);
        if taken < bytes.len() { Err(too_long()) } else { Ok(()) }
    }

    fn take(
        &mut self,
        connection: usize,
        consume: &mut dyn FnMut(&[u8]) -> io::Result<usize>,
    ) -> io::Result<()> {
        let flow = self.flows[connection];
        loop {
            let (first, second) = self.stack.engine.received(flow);
            let mut used = consume(first)?;
            if used == 0 && !second.is_empty() {
                used = consume(&[first, second].concat())?;
            }
            if used == 0 {
                return Ok(());
            }
            self.stack.engine.consume(flow, used);
        }
    }
}

struct Socket {
    socket: TcpStream,
    /// Bytes that arrived and were not consumed yet.
    unread: Vec<u8>,
}

/// Kernel sockets, watched by epoll.
pub(super) struct Sockets {
    poll: OwnedFd,
    sockets: Vec<Socket>,
    spin: Spin,
    chunk: Vec<u8>,
}

impl Sockets {
    /// Connects `count` times.
    pub(super) fn connect(server: SocketAddr, count: usize) -> io::Result<Self> {
        let poll = epoll::create(CreateFlags::CLOEXEC)?;
        let mut sockets = Vec::new();
        for user in 0..count {
            let socket = TcpStream::connect(server)?;
            socket.set_nonblocking(true)?;
            socket.set_nodelay(true)?;
            epoll::add(&poll, &socket, EventData::new_u64(user as u64), EventFlags::IN)?;
            sockets.push(Socket { socket, unread: Vec::new() });
        }
        Ok(Self { poll, sockets, spin: Spin::default(), chunk: vec![0; CHUNK] })
    }

    fn wait(&mut self, timeout: Duration, readable: &mut Vec<usize>) -> io::Result<()> {
        let mut raw = [const { MaybeUninit::<epoll::Event>::uninit() }; BATCH];
        let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
        match epoll::wait(&self.poll, &mut raw[..], Some(&timeout)) {
            Ok((events, _)) => readable.extend(events.iter().map(|event| event.data.u64() as usize)),
            Err(Errno::INTR) => {}
            Err(cause) => return Err(cause.into()),
        }
        Ok(())
    }
}

impl Transport for Sockets {
    fn poll(&mut self, until: u64, readable: &mut Vec<usize>) -> io::Result<()> {
        self.wait(Duration::ZERO, readable)?;
        let now = clock::now();
        if !readable.is_empty() {
            self.spin.busy(now);
            return Ok(());
        }
        if until <= now {
            return Ok(());
        }
        match self.spin.idle(now) {
            Idle::Poll => std::hint::spin_loop(),
            Idle::Yield => rustix::thread::sched_yield(),
            Idle::Sleep => self.wait(Duration::from_nanos(until - now), readable)?,
        }
        Ok(())
    }

    fn send(&mut self, connection: usize, bytes: &[u8]) -> io::Result<()> {
        use std::io::Write as _;
        match self.sockets[connection].socket.write(bytes) {
            Ok(count) if count == bytes.len() => Ok(()),
            Ok(_) => Err(too_long()),
            Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => Err(too_long()),
            Err(cause) => Err(cause),
        }
    }

    fn take(
        &mut self,
        connection: usize,
        consume: &mut dyn FnMut(&[u8]) -> io::Result<usize>,
    ) -> io::Result<()> {
        use std::io::Read as _;
        let Socket { socket, unread } = &mut self.sockets[connection];
        match socket.read(&mut self.chunk) {
            Ok(0) => return Err(io::Error::other("the store closed a connection")),
            Ok(count) => unread.extend_from_slice(&self.chunk[..count]),
            Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => {}
            Err(cause) => return Err(cause),
        }
        let used = consume(unread)?;
        unread.drain(..used);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use super::*;

    #[test]
    fn replies_that_come_in_parts_are_shown_whole() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let mut client = Sockets::connect(address, 1).expect("it listens");
        let (mut server, _) = listener.accept().expect("a connection");
        client.send(0, b"get").expect("there is room");
        let mut request = [0; 3];
        server.read_exact(&mut request).expect("it was sent");
        let mut shown = Vec::new();
        for part in [&b"one tw"[..], b"o "] {
            server.write_all(part).expect("it is open");
            let mut readable = Vec::new();
            while readable.is_empty() {
                client.poll(clock::now() + 1_000_000_000, &mut readable).expect("it is open");
            }
            // Only complete words are used.
            let mut whole = |bytes: &[u8]| {
                let used = bytes.iter().rposition(|byte| *byte == b' ').map_or(0, |place| place + 1);
                shown.push(String::from_utf8_lossy(&bytes[..used]).into_owned());
                Ok(used)
            };
            client.take(0, &mut whole).expect("it is open");
        }
        assert_eq!(shown, ["one ", "two "]);
    }
}
