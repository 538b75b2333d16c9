//! Why a connection was not opened or a port not bound.

use std::net::{IpAddr, SocketAddr};

/// Why a connection could not be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The peer is off the link and there is no gateway, or its address is no host's.
    #[error("no route to {0}: it is off the link and there is no gateway, or it is no host's address")]
    NoRoute(IpAddr),
    /// The peer is this engine itself. It has no loopback: what it sends leaves on the link.
    #[error(
        "{0} is this end's own address: an engine has no loopback; use a kernel socket, or call within the program"
    )]
    Ourselves(SocketAddr),
    /// No source port is free towards this peer, or so few that none was found.
    #[error("no source port towards {0} was found free: close connections, or allow more ports")]
    NoPort(SocketAddr),
    /// All flows are in use.
    #[error("all flows are in use: close some, or raise the engine's limit")]
    NoFlow,
    /// There is a connection between that port and this peer already, or one in TIME-WAIT.
    #[error("port {0} has a connection to that peer, or had one within a minute: choose another, or none")]
    PortInUse(u16),
}

/// Why a port cannot be listened on or bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListenError {
    /// It is in use.
    #[error("port {0} is in use: choose another, or release it first")]
    InUse(u16),
    /// Too many ports.
    #[error("all port entries are in use: release one first")]
    Full,
}
