//! Sietch's side: the poll-style API with its default settings, as a careful program would use it.
//!
//! 1. A server is on a VNIC over AF_XDP or at an end of a link, a client at the other end of the
//!    link; the daemon grants all of them.
//! 2. Both spin as long as spinning has recently found work, and then sleep on their doorbells.
//!    Nothing is tuned for the measurement.
//! 3. Received bytes are read and consumed in place, and bulk data is sent without a copy, as the
//!    API intends. The kernel's sides use read and write, which are the only calls of its sockets.

mod bulk;
mod churn;
mod rpc;
mod stack;
mod udp;

use std::net::SocketAddr;
use std::path::Path;

use super::measure::Outcome;
use super::work::Work;
use crate::error::Error;
use stack::{failed, open};

/// Serves `work` on a device until the process is ended. Calls `ready` with the address once it
/// listens.
pub(super) fn serve(
    work: Work,
    way: (&Path, &str),
    address: SocketAddr,
    ready: impl FnOnce(SocketAddr),
) -> Result<(), Error> {
    let mut stack = open(way)?;
    if matches!(work, Work::UdpEcho { .. }) {
        stack.engine.udp_bind(address.port()).map_err(failed("binding a UDP port"))?;
    } else {
        stack.engine.listen(address.port(), 4096).map_err(failed("listening"))?;
    }
    ready(address);
    match work {
        Work::UdpEcho { .. } => udp::serve(stack, address.port()),
        Work::Rpc { bytes, .. } | Work::Fair { bytes, .. } => rpc::serve(stack, bytes),
        Work::Bulk { .. } => bulk::serve(stack),
        Work::Churn => churn::serve(stack),
        Work::Hold { .. } | Work::Idle { .. } => rpc::serve(stack, super::work::REQUEST),
    }
}

/// Loads the server at `address` for `seconds`. `peer` is the server's process.
pub(super) fn load(
    work: Work,
    way: (&Path, &str),
    address: SocketAddr,
    seconds: f64,
    peer: Option<u32>,
) -> Result<Outcome, Error> {
    let stack = open(way)?;
    match work {
        Work::UdpEcho { bytes, window } => udp::load(stack, bytes, window, address, seconds),
        Work::Rpc { bytes, connections, pipeline } => {
            rpc::load(stack, (bytes, connections, pipeline), address, seconds, false)
        }
        Work::Fair { bytes, connections } => {
            rpc::load(stack, (bytes, connections, 1), address, seconds, true)
        }
        Work::Bulk { flows } => bulk::load(stack, flows, address, seconds),
        Work::Churn => churn::load(stack, address, seconds),
        Work::Hold { connections } => churn::hold(stack, connections, address, peer),
        Work::Idle { connections } => churn::idle(stack, connections, address, seconds, peer),
    }
}
