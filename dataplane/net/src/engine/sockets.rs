//! The list of all sockets of an engine: what `sietch ss` shows.

use std::net::SocketAddr;

use super::Engine;
use crate::tcp::connections::four_tuple::FourTuple;
use crate::tcp::flow::id::FlowId;
use crate::tcp::info::FlowInfo;

/// What kind of socket an entry of [`Engine::sockets`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketKind {
    /// A listening port: how many connections wait for the application, and at most how many may.
    Listener {
        /// Connections that the application has not taken.
        waiting: u32,
        /// Most of them.
        backlog: u32,
    },
    /// A half-open passive connection.
    HalfOpen,
    /// A connection.
    Flow(FlowId),
    /// A connection that is over, whose name is kept for a while.
    TimeWait,
    /// A bound UDP port.
    Udp {
        /// Datagrams that wait for the application.
        waiting: usize,
    },
}

/// One line of a listing of sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketInfo {
    /// What it is.
    pub kind: SocketKind,
    /// Our end.
    pub local: SocketAddr,
    /// The other end, if it has one.
    pub remote: Option<SocketAddr>,
    /// All about a flow.
    pub flow: Option<FlowInfo>,
}

impl Engine {
    fn own_end(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.cx.addresses.v4().into(), port)
    }

    fn ends(&self, tuple: &FourTuple) -> (SocketAddr, SocketAddr) {
        let local = SocketAddr::new(self.cx.addresses.get(tuple.local).into(), tuple.local_port);
        (local, SocketAddr::new(tuple.remote.into(), tuple.remote_port))
    }

    /// Every socket: listeners, half-open connections, flows, connections in TIME-WAIT, UDP ports.
    pub fn sockets(&self) -> impl Iterator<Item = SocketInfo> + '_ {
        let listeners = self.tcp.listeners().map(|(port, listener)| SocketInfo {
            kind: SocketKind::Listener { waiting: listener.waiting, backlog: listener.backlog },
            local: self.own_end(port),
            remote: None,
            flow: None,
        });
        let named = |kind, tuple| {
            let (local, remote) = self.ends(tuple);
            SocketInfo { kind, local, remote: Some(remote), flow: None }
        };
        let half_open = self.tcp.half_open().map(move |tuple| named(SocketKind::HalfOpen, tuple));
        let flows = self.flows().map(|(id, info)| SocketInfo {
            kind: SocketKind::Flow(id),
            local: info.local,
            remote: Some(info.remote),
            flow: Some(info),
        });
        let waiting = self.tcp.time_waits().map(move |tuple| named(SocketKind::TimeWait, tuple));
        let ports = self.udp.bound().map(|(port, waiting)| SocketInfo {
            kind: SocketKind::Udp { waiting },
            local: self.own_end(port),
            remote: None,
            flow: None,
        });
        listeners.chain(half_open).chain(flows).chain(waiting).chain(ports)
    }
}
