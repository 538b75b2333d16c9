//! The state that the loop and the handles of a socket share: the waiting tasks, and how the socket
//! ended.
//!
//! 1. The engine's events name a flow and the number that was attached to it; the number is the
//!    connection's index in [`Connections`].
//! 2. An accepted connection waits in its [`ListeningPort`] as plain data ([`PendingConnection`])
//!    until a task takes it.
//! 3. A bound UDP port keeps one task that waits to read and one that waits to write.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;

use sietch_net::{CloseReason, EventKind, FlowId};

use super::tasks::WakerCell;

/// What the loop and the handles of a connection share.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) flow: FlowId,
    pub(super) reader: WakerCell,
    pub(super) writer: WakerCell,
    pub(super) connected: Cell<bool>,
    /// The peer has closed its sending side.
    pub(super) peer_closed: Cell<bool>,
    pub(super) closed: Cell<Option<CloseReason>>,
}

impl Connection {
    pub(super) fn new(flow: FlowId, connected: bool) -> Rc<Self> {
        Rc::new(Self {
            flow,
            reader: WakerCell::default(),
            writer: WakerCell::default(),
            connected: Cell::new(connected),
            peer_closed: Cell::new(false),
            closed: Cell::new(None),
        })
    }

    /// Records an event, and wakes the tasks that it concerns.
    pub(super) fn handle(&self, kind: EventKind) {
        match kind {
            EventKind::Readable => self.reader.wake(),
            EventKind::PeerClosed => {
                self.peer_closed.set(true);
                self.reader.wake();
            }
            EventKind::Writable => self.writer.wake(),
            EventKind::Connected => {
                self.connected.set(true);
                self.writer.wake();
            }
            EventKind::Closed(reason) => {
                self.closed.set(Some(reason));
                self.reader.wake();
                self.writer.wake();
            }
            _ => {}
        }
    }
}

/// All connections, by the number attached to their flows (less one: zero is none).
#[derive(Debug, Default)]
pub(super) struct Connections {
    all: Vec<Option<Rc<Connection>>>,
    free: Vec<usize>,
}

impl Connections {
    /// Adds a connection. Returns the number to attach to its flow.
    pub(super) fn insert(&mut self, connection: &Rc<Connection>) -> u64 {
        let connection = Some(Rc::clone(connection));
        let index = self.free.pop().unwrap_or_else(|| {
            self.all.push(None);
            self.all.len() - 1
        });
        self.all[index] = connection;
        index as u64 + 1
    }

    /// The connection with that number.
    pub(super) fn get(&self, number: u64) -> Option<&Rc<Connection>> {
        self.all.get(usize::try_from(number).ok()?.checked_sub(1)?)?.as_ref()
    }

    /// Removes the connection with that number.
    pub(super) fn remove(&mut self, number: u64) {
        let index = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
        if let Some(index) = index
            && self.all.get_mut(index).and_then(Option::take).is_some()
        {
            self.free.push(index);
        }
    }
}

/// A connection that was accepted by the engine and not yet by a task.
#[derive(Debug)]
pub(super) struct PendingConnection {
    pub(super) connection: Rc<Connection>,
    /// Its number in [`Connections`].
    pub(super) number: u64,
    pub(super) remote: SocketAddr,
}

/// A listening TCP port.
#[derive(Debug)]
pub(super) struct ListeningPort {
    pub(super) port: u16,
    pub(super) backlog: usize,
    pub(super) pending: RefCell<VecDeque<PendingConnection>>,
    pub(super) acceptor: WakerCell,
}

/// A bound UDP port.
#[derive(Debug)]
pub(super) struct BoundPort {
    pub(super) port: u16,
    pub(super) reader: WakerCell,
    /// The task that found the send queue full: it has room after every iteration.
    pub(super) writer: WakerCell,
}
