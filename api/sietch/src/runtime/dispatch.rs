//! Passes the engine's events to connections, listeners and bound ports, which wake the tasks that
//! wait.

use std::net::SocketAddr;
use std::rc::Rc;

use sietch_net::{Event, EventKind, FlowId};

use super::sockets::{Connection, PendingConnection};
use super::state::Core;

/// Handles and removes all `events`.
pub(super) fn dispatch(core: &Core, events: &mut Vec<Event>) {
    // A flow's number is attached when it is accepted. Its other events of the same batch follow
    // and do not carry the number yet.
    let mut newest: Option<Rc<Connection>> = None;
    for event in events.drain(..) {
        match event.kind {
            EventKind::Datagram { port } => wake_reader(core, port),
            EventKind::Accepted { port, remote } => newest = accept(core, event.flow, port, remote),
            kind => {
                let connections = core.connections.borrow();
                let known = connections.get(event.user).or(newest.as_ref());
                if let Some(connection) = known.filter(|connection| connection.flow == event.flow) {
                    connection.handle(kind);
                }
            }
        }
    }
}

/// Puts a new connection in its listener's queue, or resets it if the queue is full.
fn accept(core: &Core, flow: FlowId, port: u16, remote: SocketAddr) -> Option<Rc<Connection>> {
    let listening = core.listening.borrow().iter().find(|listening| listening.port == port).cloned();
    let listening = listening.filter(|listening| listening.pending.borrow().len() < listening.backlog);
    let Some(listening) = listening else {
        core.engine.borrow_mut().abort(flow);
        return None;
    };
    let connection = Connection::new(flow, true);
    let number = core.connections.borrow_mut().insert(&connection);
    core.engine.borrow_mut().set_user(flow, number);
    let pending = PendingConnection { connection: Rc::clone(&connection), number, remote };
    listening.pending.borrow_mut().push_back(pending);
    listening.acceptor.wake();
    Some(connection)
}

/// Wakes the task that waits for a datagram at `port`.
fn wake_reader(core: &Core, port: u16) {
    let bound = core.bound.borrow().iter().find(|bound| bound.port == port).cloned();
    if let Some(bound) = bound {
        bound.reader.wake();
    }
}
