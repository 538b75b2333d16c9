//! State transfer: a service gives everything to its successor, so that a new release starts with
//! nothing refused and nothing lost.
//!
//! 1. The successor asks with
//!    [`RequestKind::TakeOver`](sietch_protocol::socket_service::RequestKind) over the
//!    administrators' socket. The answer is [`ReplyKind::Handover`]. Then records follow on the
//!    same connection, each a JSON text with its descriptors ([`Record`]). They hold the socket on
//!    which programs connect, the listeners with what waits at them, and the connections.
//! 2. The successor confirms that it has everything. Before that the predecessor changes nothing,
//!    so it continues if the successor fails.
//! 3. Then the predecessor's loop ends. Requests that arrived meanwhile wait in the socket's queue,
//!    which both hold.
//!
//! Numbers of listeners and connections stay the same. The records are text because the two
//! services may be different releases: an unknown record or version is refused by name.

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

use super::listeners::DeliveredCopy;
use super::listeners::entry::{OpenListener, PendingConnection, PublishTarget};
use super::state::SocketService;
use super::table::{ConnectionId, Listener, ListenerId};
use crate::requests::application::{Application, Connection, Names};
use crate::requests::revocation::RevokedBy;

/// The version of the records.
const VERSION: u32 = 2;
/// Most bytes of a record.
const RECORD: usize = 4096;
/// The index of the bound socket among the descriptors of a connection.
const BOUND: usize = 3;
/// How long one side waits for the other's next record.
const PATIENCE: Duration = Duration::from_secs(10);

/// One message. Each comment lists the descriptors that go with it.
#[derive(Debug, Serialize, Deserialize)]
enum Record {
    /// The listening socket of the service; the administrators', if there is one; the inotify
    /// descriptor that reports closed placeholders.
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
        /// For a published port: the name of the listener to which it leads.
        #[serde(default)]
        leads_to: Option<String>,
    },
    /// The common memory and both private pages; the kernel's socket that keeps the connecting
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
        /// The ends of which the kernel has reported the close. A former release leaves it out.
        #[serde(default)]
        closed: [bool; 2],
        #[serde(default)]
        bound: bool,
    },
    /// The accepting end's placeholder, which waits at a listener.
    WaitingStream { listener: ListenerId, id: ConnectionId },
    /// A socket of the kernel, which waits at a listener.
    WaitingKernel { listener: ListenerId, arrival: Vec<u8> },
    /// A revoked application.
    Revoked { uid: u32, application: [u8; 16] },
    /// The last record.
    End,
    /// The successor has everything.
    Taken,
}

fn broken(what: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("the state transfer between two services: {what}; start the new one without --succeed"),
    )
}

fn send(to: BorrowedFd<'_>, piece: &Record, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let text = serde_json::to_vec(piece)?;
    loop {
        match send_message(to, &text, descriptors, SendFlags::empty()) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            // Too many descriptors are in flight; the successor is receiving them.
            Err(rustix::io::Errno::TOOMANYREFS) => std::thread::yield_now(),
            Err(error) => return Err(error.into()),
        }
    }
}

fn receive(from: BorrowedFd<'_>, received: &mut Descriptors) -> io::Result<Record> {
    let mut bytes = [0; RECORD];
    loop {
        match receive_message(from, &mut bytes, received, RecvFlags::empty()) {
            Ok((0, _)) => return Err(broken("the other side has closed")),
            Ok((length, true)) => {
                return Ok(serde_json::from_slice(bytes.get(..length).unwrap_or_default())?);
            }
            Ok(_) => return Err(broken("descriptors were lost: too few are free")),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn set_patience(socket: BorrowedFd<'_>) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(socket)?;
    rustix::fs::fcntl_setfl(socket, flags - rustix::fs::OFlags::NONBLOCK)?;
    set_socket_timeout(socket, Timeout::Send, Some(PATIENCE))?;
    set_socket_timeout(socket, Timeout::Recv, Some(PATIENCE))?;
    Ok(())
}

/// Takes the descriptors of a record.
fn take<const COUNT: usize>(received: &mut Descriptors) -> io::Result<[OwnedFd; COUNT]> {
    let found: Vec<OwnedFd> = received.iter_mut().filter_map(Option::take).collect();
    <[OwnedFd; COUNT]>::try_from(found).map_err(|_| broken("a record came without its descriptors"))
}

/// What a state transfer begins with.
#[derive(Debug)]
pub(super) struct TransferStart {
    /// The socket on which programs connect.
    pub socket: OwnedFd,
    /// The socket on which administrators connect.
    pub administrators: Option<OwnedFd>,
    /// The inotify descriptor that reports closed placeholders.
    pub closes: Option<OwnedFd>,
}

/// Receives the beginning from a predecessor that has answered [`ReplyKind::Handover`].
pub(super) fn begin(predecessor: BorrowedFd<'_>) -> io::Result<TransferStart> {
    set_patience(predecessor)?;
    let mut received = Descriptors::default();
    match receive(predecessor, &mut received)? {
        Record::Begin { version: VERSION, administrators } => {
            let mut descriptors = received.into_iter().flatten();
            let socket = descriptors.next().ok_or(broken("it begins without its socket"))?;
            let administrators = if administrators { descriptors.next() } else { None };
            Ok(TransferStart { socket, administrators, closes: descriptors.next() })
        }
        Record::Begin { version, .. } => Err(broken(&format!("its version {version} is not {VERSION}"))),
        _ => Err(broken("it does not begin")),
    }
}

impl SocketService {
    /// Sends everything to a successor, and waits until it has taken it.
    ///
    /// # Errors
    /// The successor has ended, or does not confirm.
    pub(super) fn transfer_all(&self, to: &OwnedFd) -> io::Result<()> {
        let to = to.as_fd();
        set_patience(to)?;
        send_message(to, Reply::new(ReplyKind::Handover).as_bytes(), &[], SendFlags::empty())?;
        let administrators = self.administrators.as_ref().map(AsFd::as_fd);
        let first =
            std::iter::once(self.server.as_fd()).chain(administrators).chain(self.registry.close_events());
        let first: Vec<_> = first.collect();
        send(to, &Record::Begin { version: VERSION, administrators: administrators.is_some() }, &first)?;
        for (id, found) in self.table.connections() {
            let Some(entry) = self.registry.get(id) else { continue };
            let record = Record::Connection {
                id,
                client: (found.client.uid, found.client.id),
                server: (found.server.uid, found.server.id),
                namespace: found.namespace,
                names: [found.names.local, found.names.peer],
                accepted: [found.accepted.local, found.accepted.peer],
                cookies: entry.cookies,
                watches: entry.watches,
                closed: entry.closed,
                bound: self.bound_sockets.contains_key(&id),
            };
            let [first, second] = &entry.memory.private;
            let memory = [&entry.memory.common, first, second];
            let sent: Vec<_> =
                memory.into_iter().chain(self.bound_sockets.get(&id)).map(AsFd::as_fd).collect();
            send(to, &record, &sent)?;
        }
        for (id, found) in self.table.listeners() {
            let Some(open) = self.listeners.get(&id) else { continue };
            if open.leads_to.as_ref().is_some_and(|to| to.vnic.is_some()) {
                // It closes with the VNIC's listener; the program makes both again.
                continue;
            }
            let record = Record::Listener {
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
            send(to, &record, &descriptors)?;
            for waiting in &open.waiting {
                match waiting {
                    PendingConnection::Stream(connection, placeholder) => {
                        let record = Record::WaitingStream { listener: id, id: *connection };
                        send(to, &record, &[placeholder.as_fd()])?;
                    }
                    PendingConnection::Kernel(arrival, socket) => {
                        let arrival = arrival.as_bytes().to_vec();
                        send(to, &Record::WaitingKernel { listener: id, arrival }, &[socket.as_fd()])?;
                    }
                }
            }
        }
        for Application { uid, id: application } in self.revoked.iter() {
            send(to, &Record::Revoked { uid, application }, &[])?;
        }
        send(to, &Record::End, &[])?;
        match receive(to, &mut Descriptors::default())? {
            Record::Taken => Ok(()),
            _ => Err(broken("the successor sends something else than its confirmation")),
        }
    }

    /// Receives everything from a predecessor, after [`begin`].
    ///
    /// # Errors
    /// The predecessor has ended, or a record is invalid.
    pub(super) fn inherit(&mut self, from: BorrowedFd<'_>) -> io::Result<()> {
        let mut received = Descriptors::default();
        loop {
            match receive(from, &mut received)? {
                Record::Connection {
                    id,
                    client,
                    server,
                    namespace,
                    names,
                    accepted,
                    cookies,
                    watches,
                    closed,
                    bound,
                } => {
                    if let Some(socket) = received[BOUND].take().filter(|_| bound) {
                        self.bound_sockets.insert(id, socket);
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
                    self.registry.restore(id, memory, cookies, watches, closed);
                }
                Record::Listener {
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
                    let leads_to = leads_to.map(|name| PublishTarget { vnic: None, name });
                    let open = OpenListener::new(pair, cookie, kernel, leads_to);
                    self.open_listener(id, open)?;
                }
                Record::WaitingStream { listener, id } => {
                    let [placeholder] = take(&mut received)?;
                    self.restore_waiting(listener, PendingConnection::Stream(id, placeholder));
                }
                Record::WaitingKernel { listener, arrival } => {
                    let [socket] = take(&mut received)?;
                    let arrival =
                        Arrival::read_from_bytes(&arrival).map_err(|_| broken("an arrival is invalid"))?;
                    self.restore_waiting(listener, PendingConnection::Kernel(arrival, socket));
                }
                Record::Revoked { uid, application } => {
                    self.revoked.insert(Application { uid, id: application }, RevokedBy::Administrator);
                }
                Record::End => break,
                Record::Begin { .. } | Record::Taken => return Err(broken("a record is out of order")),
            }
        }
        send(from, &Record::Taken, &[])
    }

    fn restore_waiting(&mut self, listener: ListenerId, waiting: PendingConnection) {
        match self.listeners.get_mut(&listener) {
            Some(open) => {
                open.waiting.push_back(waiting);
                self.watch(listener);
            }
            None => self.close_copy(listener, waiting, DeliveredCopy::Waited),
        }
    }
}
