//! Socket calls, with the results and errors of Linux. No call blocks: a call that would block
//! returns `EAGAIN` (or `EINPROGRESS`), and the caller retries it later.
//!
//! 1. A socket is `Fresh` until it listens, connects or is accepted. Options that were set before
//!    are applied then.
//! 2. The engine's events change sockets as they come. A new connection waits in its listener's
//!    queue. The end of a flow leaves an error behind, which the next call reports once.
//! 3. Closing a listener resets the connections in its queue, as Linux does.

use std::collections::VecDeque;
use std::net::SocketAddr;

use sietch_net::{Event, EventKind, FlowId};

use super::Host;
use super::socket::{Chosen, Errno, Kind, Outcome, Phase, PollEntry, Socket, Stream};

impl Host {
    pub(super) fn take_event(&mut self, event: &Event) {
        if let EventKind::Accepted { port, remote } = event.kind {
            let stream = Stream::new(event.flow, Phase::Connected, remote);
            let listener = self.sockets.values_mut().find_map(|socket| match &mut socket.kind {
                Kind::Listener { port: listening, queue } if *listening == port => {
                    Some((queue, &socket.chosen))
                }
                _ => None,
            });
            match listener {
                Some((queue, chosen)) => {
                    let chosen = chosen.clone();
                    queue.push_back(stream);
                    self.apply_options(event.flow, &chosen);
                }
                None => self.engine.abort(event.flow),
            }
            return;
        }
        for socket in self.sockets.values_mut() {
            let stream = match &mut socket.kind {
                Kind::Stream(stream) if stream.flow == event.flow => stream,
                Kind::Listener { queue, .. } => {
                    match queue.iter_mut().find(|stream| stream.flow == event.flow) {
                        Some(stream) => stream,
                        None => continue,
                    }
                }
                _ => continue,
            };
            stream.apply(event.kind);
            return;
        }
    }

    fn socket_mut(&mut self, fd: i32) -> Result<&mut Socket, Errno> {
        self.sockets.get_mut(&fd).ok_or(Errno(libc::EBADF))
    }

    pub(super) fn socket_ref(&self, fd: i32) -> Result<&Socket, Errno> {
        self.sockets.get(&fd).ok_or(Errno(libc::EBADF))
    }

    fn stream_mut(&mut self, fd: i32) -> Result<&mut Stream, Errno> {
        match &mut self.socket_mut(fd)?.kind {
            Kind::Stream(stream) => Ok(stream),
            _ => Err(Errno(libc::ENOTCONN)),
        }
    }

    fn open(&mut self, socket: Socket) -> i32 {
        let first = self.first_fd;
        let fd = (first..).find(|fd| !self.sockets.contains_key(fd)).unwrap_or(first);
        self.sockets.insert(fd, socket);
        fd
    }

    /// The flow behind a connected or connecting socket.
    pub fn flow(&self, fd: i32) -> Option<FlowId> {
        match &self.sockets.get(&fd)?.kind {
            Kind::Stream(stream) => Some(stream.flow),
            _ => None,
        }
    }

    /// `socket`.
    ///
    /// # Errors
    /// Anything but a stream socket of IPv4 or IPv6.
    pub fn socket(&mut self, domain: i32, kind: i32, protocol: i32) -> Outcome {
        if domain != libc::AF_INET && domain != libc::AF_INET6 {
            return Err(Errno(libc::EAFNOSUPPORT));
        }
        let base = kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
        if base != libc::SOCK_STREAM || ![0, libc::IPPROTO_TCP].contains(&protocol) {
            return Err(Errno(libc::EPROTONOSUPPORT));
        }
        let nonblocking = kind & libc::SOCK_NONBLOCK != 0;
        let chosen = Chosen::new(self.settings().nagle);
        Ok(self.open(Socket { nonblocking, chosen, port: None, kind: Kind::Fresh }).into())
    }

    /// `bind`. The address is ignored: the machine has one of each family.
    ///
    /// # Errors
    /// Not a fresh socket, or the port is taken.
    pub fn bind(&mut self, fd: i32, address: SocketAddr) -> Outcome {
        let wanted = address.port();
        let taken = self.sockets.iter().any(|(other, socket)| {
            *other != fd && matches!(&socket.kind, Kind::Listener { port, .. } if *port == wanted)
        });
        let socket = self.socket_mut(fd)?;
        if !matches!(socket.kind, Kind::Fresh) || socket.port.is_some() {
            return Err(Errno(libc::EINVAL));
        }
        if taken {
            return Err(Errno(libc::EADDRINUSE));
        }
        socket.port = Some(wanted);
        Ok(0)
    }

    /// `listen`.
    ///
    /// # Errors
    /// Not bound, connected already, or the port is taken.
    pub fn listen(&mut self, fd: i32, backlog: i32) -> Outcome {
        let socket = self.socket_mut(fd)?;
        let port = match (&socket.kind, socket.port) {
            (Kind::Fresh, Some(port)) => port,
            (Kind::Listener { .. }, _) => return Ok(0),
            _ => return Err(Errno(libc::EINVAL)),
        };
        let backlog = u32::try_from(backlog).unwrap_or(0);
        self.engine.listen(port, backlog).map_err(|_| Errno(libc::EADDRINUSE))?;
        self.socket_mut(fd)?.kind = Kind::Listener { port, queue: VecDeque::new() };
        self.poll_engine();
        Ok(0)
    }

    /// `accept`: returns the new socket and the peer's address.
    ///
    /// # Errors
    /// No connection waits, or not a listener.
    pub fn accept(&mut self, fd: i32) -> Result<(i32, SocketAddr), Errno> {
        let socket = self.socket_mut(fd)?;
        let chosen = socket.chosen.clone();
        let Kind::Listener { queue, port } = &mut socket.kind else { return Err(Errno(libc::EINVAL)) };
        let port = *port;
        let stream = queue.pop_front().ok_or(Errno(libc::EAGAIN))?;
        let remote = stream.remote;
        let new =
            self.open(Socket { nonblocking: false, chosen, port: Some(port), kind: Kind::Stream(stream) });
        self.poll_engine();
        Ok((new, remote))
    }

    /// `connect`. It always returns `EINPROGRESS`; [`Host::connected`] returns the outcome.
    ///
    /// # Errors
    /// In progress, connected, or no route to the peer.
    pub fn connect(&mut self, fd: i32, remote: SocketAddr) -> Outcome {
        match &mut self.socket_mut(fd)?.kind {
            Kind::Fresh => {}
            Kind::Stream(stream) => {
                stream.take_error()?;
                return Err(Errno(match stream.phase {
                    Phase::Connecting => libc::EALREADY,
                    Phase::Connected => libc::EISCONN,
                    Phase::Over => libc::ECONNABORTED,
                }));
            }
            Kind::Listener { .. } => return Err(Errno(libc::EISCONN)),
        }
        let flow = self.begin_connection(remote)?;
        let socket = self.socket_mut(fd)?;
        socket.kind = Kind::Stream(Stream::new(flow, Phase::Connecting, remote));
        let chosen = socket.chosen.clone();
        self.apply_options(flow, &chosen);
        self.poll_engine();
        Err(Errno(libc::EINPROGRESS))
    }

    fn begin_connection(&mut self, remote: SocketAddr) -> Result<FlowId, Errno> {
        use sietch_net::ConnectError;
        let SocketAddr::V4(remote) = remote else { return Err(Errno(libc::EAFNOSUPPORT)) };
        self.engine.connect(remote, self.now).map_err(|error| {
            Errno(match error {
                ConnectError::NoRoute(_) | ConnectError::Ourselves(_) => libc::ENETUNREACH,
                ConnectError::NoPort(_) | ConnectError::PortInUse(_) => libc::EADDRNOTAVAIL,
                ConnectError::NoFlow => libc::ENOBUFS,
            })
        })
    }

    /// The outcome of a `connect`: `EAGAIN` while it is in progress.
    ///
    /// # Errors
    /// The reason of the failure, or `EAGAIN`.
    pub fn connected(&mut self, fd: i32) -> Outcome {
        let stream = self.stream_mut(fd)?;
        stream.take_error()?;
        match stream.phase {
            Phase::Connecting => Err(Errno(libc::EAGAIN)),
            Phase::Connected | Phase::Over => Ok(0),
        }
    }

    /// `recv`. With `MSG_PEEK` the bytes stay in the buffer.
    ///
    /// # Errors
    /// Nothing there yet, not connected, or the error that ended the connection.
    pub fn receive_bytes(&mut self, fd: i32, out: &mut [u8], flags: i32) -> Outcome {
        let stream = self.stream_mut(fd)?;
        if stream.phase == Phase::Connecting {
            stream.take_error()?;
            return Err(Errno(libc::EAGAIN));
        }
        let (flow, reads, ended) = (stream.flow, stream.reads, stream.peer_closed);
        let (first, second) = self.engine.received(flow);
        let waiting = first.len() + second.len();
        if waiting > 0 && !out.is_empty() {
            let count = waiting.min(out.len());
            for (place, byte) in out.iter_mut().zip(first.iter().chain(second)) {
                *place = *byte;
            }
            if flags & libc::MSG_PEEK == 0 {
                self.engine.consume(flow, count);
                self.poll_engine();
            }
            return Ok(count as i64);
        }
        self.stream_mut(fd)?.take_error()?;
        if ended || !reads || out.is_empty() { Ok(0) } else { Err(Errno(libc::EAGAIN)) }
    }

    /// `send`. Takes as many bytes as there is room for.
    ///
    /// # Errors
    /// No room, not connected, shut down, or the error that ended the connection.
    pub fn send_bytes(&mut self, fd: i32, data: &[u8]) -> Outcome {
        let stream = self.stream_mut(fd)?;
        stream.take_error()?;
        match stream.phase {
            Phase::Connecting => return Err(Errno(libc::EAGAIN)),
            Phase::Over => return Err(Errno(libc::EPIPE)),
            Phase::Connected if !stream.writes => return Err(Errno(libc::EPIPE)),
            Phase::Connected => {}
        }
        let flow = stream.flow;
        let taken = self.engine.send(flow, data);
        self.poll_engine();
        if taken == 0 && !data.is_empty() { Err(Errno(libc::EAGAIN)) } else { Ok(taken as i64) }
    }

    /// `shutdown`.
    ///
    /// # Errors
    /// Not connected.
    pub fn shutdown(&mut self, fd: i32, how: i32) -> Outcome {
        let stream = self.stream_mut(fd)?;
        if stream.phase != Phase::Connected {
            return Err(Errno(libc::ENOTCONN));
        }
        if how == libc::SHUT_RD || how == libc::SHUT_RDWR {
            stream.reads = false;
        }
        if how == libc::SHUT_WR || how == libc::SHUT_RDWR {
            stream.writes = false;
            let flow = stream.flow;
            self.engine.shutdown_send(flow);
            self.poll_engine();
        }
        Ok(0)
    }

    /// `close`.
    ///
    /// # Errors
    /// No such socket.
    pub fn close(&mut self, fd: i32) -> Outcome {
        let socket = self.sockets.remove(&fd).ok_or(Errno(libc::EBADF))?;
        match socket.kind {
            Kind::Fresh => {}
            Kind::Listener { port, queue } => {
                self.engine.unlisten(port);
                for stream in queue {
                    self.engine.abort(stream.flow);
                }
            }
            Kind::Stream(stream) if socket.chosen.linger == Some(0) => self.engine.abort(stream.flow),
            Kind::Stream(stream) => self.engine.close(stream.flow),
        }
        self.poll_engine();
        Ok(0)
    }

    /// Whether calls on a socket block.
    pub fn blocks(&self, fd: i32) -> bool {
        self.sockets.get(&fd).is_some_and(|socket| !socket.nonblocking)
    }

    /// `fcntl` with `F_GETFL` and `F_SETFL`.
    ///
    /// # Errors
    /// Another command.
    pub fn control(&mut self, fd: i32, command: i32, argument: i64) -> Outcome {
        let socket = self.socket_mut(fd)?;
        match command {
            libc::F_GETFL => {
                Ok(i64::from(libc::O_RDWR | if socket.nonblocking { libc::O_NONBLOCK } else { 0 }))
            }
            libc::F_SETFL => {
                socket.nonblocking = argument & i64::from(libc::O_NONBLOCK) != 0;
                Ok(0)
            }
            _ => Err(Errno(libc::EINVAL)),
        }
    }

    /// `poll`, without waiting. Returns the number of entries with events.
    pub fn poll(&mut self, entries: &mut [PollEntry]) -> i64 {
        let mut count = 0;
        for entry in entries {
            let ready = self.readiness(entry.fd);
            let always = libc::POLLERR | libc::POLLHUP | libc::POLLNVAL;
            entry.revents = ready & (entry.events | always);
            count += i64::from(entry.revents != 0);
        }
        count
    }

    fn readiness(&self, fd: i32) -> i16 {
        let Some(socket) = self.sockets.get(&fd) else { return libc::POLLNVAL };
        let stream = match &socket.kind {
            Kind::Fresh => return libc::POLLOUT | libc::POLLHUP,
            Kind::Listener { queue, .. } => return if queue.is_empty() { 0 } else { libc::POLLIN },
            Kind::Stream(stream) => stream,
        };
        let mut ready = 0;
        if stream.error.is_some() {
            ready |= libc::POLLERR;
        }
        let readable = !self.engine.received(stream.flow).0.is_empty();
        if readable || stream.peer_closed || !stream.reads || stream.error.is_some() {
            ready |= libc::POLLIN;
        }
        if stream.peer_closed || !stream.reads {
            ready |= libc::POLLRDHUP;
        }
        match stream.phase {
            Phase::Connecting => {}
            Phase::Connected => {
                // A third of the buffer must be free, as Linux has it, so that writers are not
                // woken for a byte.
                if !stream.writes
                    || self.engine.send_space(stream.flow) > self.engine.unacknowledged(stream.flow) / 2
                {
                    ready |= libc::POLLOUT;
                }
                if stream.peer_closed && !stream.writes {
                    ready |= libc::POLLHUP;
                }
            }
            Phase::Over => ready |= libc::POLLHUP | libc::POLLOUT,
        }
        ready
    }

    /// Returns the pending error of `SO_ERROR`, and clears it.
    pub(super) fn take_socket_error(&mut self, fd: i32) -> i32 {
        self.stream_mut(fd).ok().and_then(|stream| stream.error.take()).unwrap_or(0)
    }

    pub(super) fn chosen_mut(&mut self, fd: i32) -> Result<&mut Chosen, Errno> {
        Ok(&mut self.socket_mut(fd)?.chosen)
    }

    /// `ioctl` with `FIONREAD` (bytes to read) and `TIOCOUTQ` (bytes not acknowledged).
    ///
    /// # Errors
    /// Another request, or not a connection.
    pub fn query(&mut self, fd: i32, request: u64) -> Outcome {
        let flow = self.stream_mut(fd)?.flow;
        match request {
            libc::FIONREAD => {
                let (first, second) = self.engine.received(flow);
                Ok((first.len() + second.len()) as i64)
            }
            libc::TIOCOUTQ => Ok(self.engine.unacknowledged(flow) as i64),
            _ => Err(Errno(libc::ENOTTY)),
        }
    }
}
