//! One service gives everything to the next: a new release, with nothing refused and nothing lost.
//!
//! 1. The successor asks with [`RequestKind::TakeOver`] over the administrators' socket. The answer
//!    is [`ReplyKind::Handover`], and then pieces follow on the same connection, each a JSON text
//!    with its descriptors ([`Piece`]): the socket on which programs ask, the listeners with what
//!    waits at them, the connections.
//! 2. The successor says that it has all. Before that the predecessor changes nothing: if the
//!    successor fails, it goes on.
//! 3. Then the predecessor's loop ends. Programs that asked meanwhile wait in the socket's queue,
//!    which both hold.
//!
//! Numbers stay what they were. Text, because both ends may be of different releases: an unknown
//! piece or version is refused by name.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendFlags};
use serde::{Deserialize, Serialize};
use sietch_protocol::socket_service::{
    Arrival, Descriptors, Reply, ReplyKind, receive_message, send_message,
};
use sietch_ring::stream::Memory;
use zerocopy::{FromBytes as _, IntoBytes as _};

use super::listeners::{Open, Waiting};
use super::publish::LeadsTo;
use super::revoked::By;
use super::run::Service;
use super::table::{Application, Connection, ConnectionId, Listener, ListenerId, Names};

/// The version of the pieces.
const VERSION: u32 = 2;
/// Bytes of a piece at most.
const PIECE: usize = 4096;
/// The place of the kernel's socket among the descriptors of a connection.
const BOUND: usize = 3;
/// How long one side waits for the other's next piece.
const PATIENCE: Duration = Duration::from_secs(10);

/// One message. The descriptors are named beside each.
#[derive(Debug, Serialize, Deserialize)]
enum Piece {
    /// The listening socket of the service; the administrators', if there is one; where the kernel
    /// tells of closed placeholders.
    Begin {
        version: u32,
        #[serde(default)]
        administrators: bool,
    },
    /// The service's end of the pair; the kernel's listening socket, if there is one.
    Listener {
        id: ListenerId,
        uid: u32,
        application: [u8; 16],
        namespace: u64,
        name: SocketAddr,
        only_ipv6: bool,
        backlog: u32,
        pid: i32,
        cookie: u64,
        /// A published port: the name of the listener to which it leads, which came before.
        #[serde(default)]
        leads_to: Option<String>,
    },
    /// The common memory and both private pages; the kernel's socket that holds the connecting
    /// program's name, if it was bound to one.
    Connection {
        id: ConnectionId,
        client: (u32, [u8; 16]),
        server: (u32, [u8; 16]),
        namespace: u64,
        names: [SocketAddr; 2],
        accepted: [SocketAddr; 2],
        cookies: [u64; 2],
        #[serde(default)]
        watches: [Option<i32>; 2],
        #[serde(default)]
        bound: bool,
    },
    /// The accepting end's placeholder, which waits at a listener.
    WaitingStream { listener: ListenerId, id: ConnectionId },
    /// A socket of the kernel, which waits at a listener.
    WaitingKernel { listener: ListenerId, arrival: Vec<u8> },
    /// An application that gets nothing any more.
    Revoked { uid: u32, application: [u8; 16] },
    /// That was all.
    End,
    /// The successor has all of it.
    Taken,
}

fn broken(what: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("the hand-over between two services: {what}; start the new one without --succeed"),
    )
}

fn send(to: BorrowedFd<'_>, piece: &Piece, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let text = serde_json::to_vec(piece)?;
    loop {
        match send_message(to, &text, descriptors, SendFlags::empty()) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            // So many are in flight; the successor is taking them.
            Err(rustix::io::Errno::TOOMANYREFS) => std::thread::yield_now(),
            Err(error) => return Err(error.into()),
        }
    }
}

fn receive(from: BorrowedFd<'_>, received: &mut Descriptors) -> io::Result<Piece> {
    let mut bytes = [0; PIECE];
    loop {
        match receive_message(from, &mut bytes, received, RecvFlags::empty()) {
            Ok((0, _)) => return Err(broken("the other side has gone")),
            Ok((length, true)) => {
                return Ok(serde_json::from_slice(bytes.get(..length).unwrap_or_default())?);
            }
            Ok(_) => return Err(broken("descriptors were lost, of which too few are free")),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn wait_for_peer(socket: BorrowedFd<'_>) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(socket)?;
    rustix::fs::fcntl_setfl(socket, flags - rustix::fs::OFlags::NONBLOCK)?;
    set_socket_timeout(socket, Timeout::Send, Some(PATIENCE))?;
    set_socket_timeout(socket, Timeout::Recv, Some(PATIENCE))?;
    Ok(())
}

/// Takes the descriptors of a piece.
fn take<const COUNT: usize>(received: &mut Descriptors) -> io::Result<[OwnedFd; COUNT]> {
    let found: Vec<OwnedFd> = received.iter_mut().filter_map(Option::take).collect();
    <[OwnedFd; COUNT]>::try_from(found).map_err(|_| broken("a piece came without its descriptors"))
}

/// What a hand-over begins with.
#[derive(Debug)]
pub(super) struct Begun {
    /// Where programs ask.
    pub socket: OwnedFd,
    /// Where administrators ask.
    pub administrators: Option<OwnedFd>,
    /// Where the kernel tells of closed placeholders.
    pub ends: Option<OwnedFd>,
}

/// The beginning, from a predecessor that has answered [`ReplyKind::Handover`].
pub(super) fn begin(predecessor: BorrowedFd<'_>) -> io::Result<Begun> {
    wait_for_peer(predecessor)?;
    let mut received = Descriptors::default();
    match receive(predecessor, &mut received)? {
        Piece::Begin { version: VERSION, administrators } => {
            let mut descriptors = received.into_iter().flatten();
            let socket = descriptors.next().ok_or(broken("it begins without its socket"))?;
            let administrators = if administrators { descriptors.next() } else { None };
            Ok(Begun { socket, administrators, ends: descriptors.next() })
        }
        Piece::Begin { version, .. } => Err(broken(&format!("its version {version} is not {VERSION}"))),
        _ => Err(broken("it does not begin")),
    }
}

impl Service {
    /// Gives everything to a successor; whether it has taken it.
    pub(super) fn hand_everything(&self, to: &OwnedFd) -> io::Result<()> {
        let to = to.as_fd();
        wait_for_peer(to)?;
        send_message(to, Reply::new(ReplyKind::Handover).as_bytes(), &[], SendFlags::empty())?;
        let administrators = self.administrators.as_ref().map(AsFd::as_fd);
        let first = std::iter::once(self.server.as_fd()).chain(administrators).chain(self.registry.ends());
        let first: Vec<_> = first.collect();
        send(to, &Piece::Begin { version: VERSION, administrators: administrators.is_some() }, &first)?;
        for (id, found) in self.table.connections() {
            let Some(entry) = self.registry.get(id) else { continue };
            let piece = Piece::Connection {
                id,
                client: (found.client.uid, found.client.id),
                server: (found.server.uid, found.server.id),
                namespace: found.namespace,
                names: [found.names.local, found.names.peer],
                accepted: [found.accepted.local, found.accepted.peer],
                cookies: entry.cookies,
                watches: entry.watches,
                bound: self.names.contains_key(&id),
            };
            let [first, second] = &entry.memory.private;
            let memory = [&entry.memory.common, first, second];
            let sent: Vec<_> = memory.into_iter().chain(self.names.get(&id)).map(AsFd::as_fd).collect();
            send(to, &piece, &sent)?;
        }
        for (id, found) in self.table.listeners() {
            let Some(open) = self.open.get(&id) else { continue };
            if open.leads_to.as_ref().is_some_and(|to| to.vnic.is_some()) {
                // It ends with the VNIC's listener, which its program makes again, and publishes
                // again.
                continue;
            }
            let piece = Piece::Listener {
                id,
                uid: found.application.uid,
                application: found.application.id,
                namespace: found.namespace,
                name: found.name,
                only_ipv6: found.only_ipv6,
                backlog: found.backlog,
                pid: found.pid,
                cookie: open.cookie,
                leads_to: open.leads_to.as_ref().map(|to| to.name.clone()),
            };
            let descriptors: Vec<_> =
                std::iter::once(open.pair.as_fd()).chain(open.kernel.as_ref().map(AsFd::as_fd)).collect();
            send(to, &piece, &descriptors)?;
            for waiting in &open.waiting {
                match waiting {
                    Waiting::Stream(connection, placeholder) => {
                        let piece = Piece::WaitingStream { listener: id, id: *connection };
                        send(to, &piece, &[placeholder.as_fd()])?;
                    }
                    Waiting::Kernel(arrival, socket) => {
                        let arrival = arrival.as_bytes().to_vec();
                        send(to, &Piece::WaitingKernel { listener: id, arrival }, &[socket.as_fd()])?;
                    }
                }
            }
        }
        for Application { uid, id: application } in self.revoked.iter() {
            send(to, &Piece::Revoked { uid, application }, &[])?;
        }
        send(to, &Piece::End, &[])?;
        match receive(to, &mut Descriptors::default())? {
            Piece::Taken => Ok(()),
            _ => Err(broken("the successor says something else than that it has all")),
        }
    }

    /// Takes everything from a predecessor, behind [`begin`].
    pub(super) fn inherit(&mut self, from: BorrowedFd<'_>) -> io::Result<()> {
        let mut received = Descriptors::default();
        loop {
            match receive(from, &mut received)? {
                Piece::Connection {
                    id,
                    client,
                    server,
                    namespace,
                    names,
                    accepted,
                    cookies,
                    watches,
                    bound,
                } => {
                    if let Some(socket) = received[BOUND].take().filter(|_| bound) {
                        self.names.insert(id, socket);
                    }
                    let [common, first, second] = take(&mut received)?;
                    let application = |(uid, id)| Application { uid, id };
                    let names_of = |[local, peer]: [SocketAddr; 2]| Names { local, peer };
                    let connection = Connection {
                        client: application(client),
                        server: application(server),
                        namespace,
                        names: names_of(names),
                        accepted: names_of(accepted),
                    };
                    self.table.restore_connection(id, connection);
                    let memory = Memory { common, private: [first, second] };
                    self.registry.insert(id, memory, cookies, watches);
                }
                Piece::Listener {
                    id,
                    uid,
                    application,
                    namespace,
                    name,
                    only_ipv6,
                    backlog,
                    pid,
                    cookie,
                    leads_to,
                } => {
                    let mut descriptors = received.iter_mut().filter_map(Option::take);
                    let pair = descriptors.next().ok_or(broken("a listener came without its pair"))?;
                    let kernel = descriptors.next();
                    let application = Application { uid, id: application };
                    let listener = Listener { application, namespace, name, only_ipv6, backlog, pid };
                    self.table.restore_listener(id, listener);
                    let leads_to = leads_to.map(|name| LeadsTo { vnic: None, name });
                    let open = Open::new(pair, cookie, kernel, leads_to);
                    self.open_listener(id, open)?;
                }
                Piece::WaitingStream { listener, id } => {
                    let [placeholder] = take(&mut received)?;
                    self.restore_waiting(listener, Waiting::Stream(id, placeholder));
                }
                Piece::WaitingKernel { listener, arrival } => {
                    let [socket] = take(&mut received)?;
                    let arrival =
                        Arrival::read_from_bytes(&arrival).map_err(|_| broken("an arrival is none"))?;
                    self.restore_waiting(listener, Waiting::Kernel(arrival, socket));
                }
                Piece::Revoked { uid, application } => {
                    self.revoked.insert(Application { uid, id: application }, By::Administrator);
                }
                Piece::End => break,
                Piece::Begin { .. } | Piece::Taken => return Err(broken("a piece is out of its order")),
            }
        }
        send(from, &Piece::Taken, &[])
    }

    fn restore_waiting(&mut self, listener: ListenerId, waiting: Waiting) {
        match self.open.get_mut(&listener) {
            Some(open) => {
                open.waiting.push_back(waiting);
                self.watch(listener);
            }
            None => self.let_go(listener, waiting, true),
        }
    }
}
