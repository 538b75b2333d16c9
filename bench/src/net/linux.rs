//! The kernel's side: plain sockets, as a careful program would use them.
//!
//! 1. *Blocking*: a thread sleeps in `recvfrom`, `read` (one connection) or `epoll_wait` (several).
//! 2. *Spinning*: the same program with non-blocking calls in a loop; it burns its core.
//! 3. Requests and replies of one wake-up leave in one `write` for each connection, so that
//!    pipelining costs the kernel no more calls than Sietch.

mod bulk;
mod churn;
mod rpc;
mod sockets;
mod udp;

use std::net::SocketAddr;

use super::measure::Outcome;
use super::work::{REQUEST, Work};
use crate::error::Error;

pub(super) use rpc::reply_size;
pub(super) use sockets::Waiting;

/// Serves `work` at `address` until the process is ended. Calls `ready` with the address
/// once it listens.
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
