//! Sietch's side: the poll-style API with its default settings, as a careful program would use it.
//!
//! 1. A server is on a VNIC of the daemon or at an end of a link; a client is at the other end of the link.
//! 2. Both spin as long as that has paid lately and sleep on their doorbells then: nothing is tuned for the measurement but the sizes
//!    of buffers for bulk, which the kernel tunes by itself, and the number of flows.

mod bulk;
mod churn;
mod rpc;
mod udp;

use std::net::SocketAddr;
use std::path::Path;
use std::time::Instant;

use sietch::net::{Config, Event};
use sietch::{Client, Doorbell, Held, Stack, clock};

use super::handover::{self, LINK_CLIENT, LINK_SERVER};
use super::measure::Outcome;
use super::work::Work;
use crate::error::{Error, system};

/// Flows of an engine: more than any work has.
const FLOWS: usize = 16 * 1024;

/// Buffer of a connection in each direction at most; the kernel's grow to 6 MiB.
const BUFFER: usize = 2 << 20;

/// Nanoseconds after which a client looks at its clock though nothing arrives.
const LOOK: u64 = 20_000_000;

/// Why something of ours failed.
pub(super) fn failed<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
    action: &'static str,
) -> impl FnOnce(E) -> Error {
    move |cause| Error::System { action, cause: std::io::Error::other(cause) }
}

fn sized(mut config: Config, work: Work) -> Config {
    config.flows = FLOWS;
    if matches!(work, Work::Bulk { .. }) {
        (config.receive_buffer, config.send_buffer) = (BUFFER, BUFFER);
    }
    config
}

/// Serves `work` until the process is ended; `ready` is told the address once it answers.
pub(super) fn serve(
    work: Work,
    socket: &Path,
    way: &str,
    address: SocketAddr,
    ready: impl FnOnce(SocketAddr),
) -> Result<(), Error> {
    if way == "link" {
        let config = sized(Config::new(LINK_SERVER, 24, [2; 16]), work);
        return serve_on(Stack::new(handover::take(2)?, &config), work, address, ready);
    }
    let mut client = Client::connect(socket, "bench").map_err(failed("connecting to the daemon"))?;
    let vnic = client.acquire_vnic(way).map_err(failed("acquiring a VNIC"))?;
    let config = sized(vnic.engine_config([3; 16]), work);
    let lease = client.hold().map_err(failed("holding a VNIC"))?;
    let stack = Stack::new(vnic.queue, &config).holding(Held { lease, grants: vec![vnic.grant] });
    serve_on(stack, work, address, ready)
}

fn serve_on<Q: Doorbell>(
    mut stack: Stack<Q>,
    work: Work,
    address: SocketAddr,
    ready: impl FnOnce(SocketAddr),
) -> Result<(), Error> {
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
        Work::Hold { .. } => rpc::serve(stack, super::work::REQUEST),
    }
}

/// Loads the server at `address` for `seconds`, over the link that waits in stdin.
pub(super) fn load(
    work: Work,
    address: SocketAddr,
    seconds: f64,
    peer: Option<u32>,
) -> Result<Outcome, Error> {
    let config = sized(Config::new(LINK_CLIENT, 24, [1; 16]), work);
    let stack = Stack::new(handover::take(1)?, &config);
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
    }
}

/// One turn of a client: events that are due before the clock must be looked at.
fn turn<Q: Doorbell>(stack: &mut Stack<Q>) -> Result<(), Error> {
    stack.poll(Some(clock::now() + LOOK)).map_err(system("driving a queue"))?;
    Ok(())
}

/// Connects `count` flows, each with its number attached, and waits for all of them. What else happens is given to `other`.
fn connect<Q: Doorbell>(
    stack: &mut Stack<Q>,
    address: SocketAddr,
    count: usize,
) -> Result<Vec<sietch::net::FlowId>, Error> {
    use sietch::net::EventKind;
    let mut flows = Vec::with_capacity(count);
    let mut connected = 0;
    let begun = Instant::now();
    while connected < count {
        // As many at once as a backlog takes.
        while flows.len() < count && flows.len() - connected < 256 {
            let flow = stack.engine.connect(address, clock::now()).map_err(failed("connecting"))?;
            stack.engine.set_user(flow, flows.len() as u64);
            flows.push(flow);
        }
        turn(stack)?;
        while let Some(Event { kind, .. }) = stack.next_event() {
            match kind {
                EventKind::Connected => connected += 1,
                EventKind::Closed(why) => {
                    return Err(failed("connecting")(format!("a connection was closed: {why:?}")));
                }
                _ => {}
            }
        }
        if begun.elapsed().as_secs() > 20 {
            return Err(failed("connecting")(format!("{connected} of {count} connected in 20 s")));
        }
    }
    Ok(flows)
}
