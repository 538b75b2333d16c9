//! Sietch's side: the poll-style API with its default settings, as a careful program would use it.
//!
//! 1. A server is on a VNIC over AF_XDP or at an end of a link, a client at the other end of the
//!    link; the daemon grants all of them.
//! 2. Both spin as long as that has paid lately and sleep on their doorbells then. Nothing is tuned
//!    for the measurement.
//! 3. Received bytes are looked at and consumed where they lie, and bulk is lent instead of copied:
//!    that is what the API is for. The kernel's sides read and write, which is all that its sockets
//!    have.

mod bulk;
mod churn;
mod rpc;
mod udp;

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use sietch::net::{Event, EventKind, FlowId};
use sietch::{Client, HeldGrants, VnicQueue, clock};

use super::measure::Outcome;
use super::work::Work;
use crate::error::{Error, system};

/// Nanoseconds after which a client looks at its clock though nothing arrives.
const LOOK: u64 = 20_000_000;

/// How long a device of the block before may take to come back.
const PATIENCE: Duration = Duration::from_secs(3);

type Stack = sietch::Stack<VnicQueue>;

/// Why something of ours failed.
fn failed<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
    action: &'static str,
) -> impl FnOnce(E) -> Error {
    move |cause| Error::System { action, cause: std::io::Error::other(cause) }
}

/// Acquires the device with this name.
fn open((socket, name): (&Path, &str)) -> Result<Stack, Error> {
    let mut client = Client::connect(socket, "bench").map_err(failed("connecting to the daemon"))?;
    let begun = Instant::now();
    let vnic = loop {
        match client.acquire_vnic(name) {
            Ok(vnic) => break vnic,
            // The worker of the block before has just ended.
            Err(_) if begun.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(5)),
            Err(cause) => return Err(failed("acquiring a device")(cause)),
        }
    };
    let config = vnic.engine_config([3; 16]);
    let lease = client.hold().map_err(failed("holding a device"))?;
    Ok(Stack::new(vnic.queue, &config).with_grants(HeldGrants { lease, grants: vec![vnic.grant] }))
}

/// Serves `work` on a device until the process is ended; `ready` is told the address once it
/// answers.
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

/// One turn of a client: events that are due before the clock must be looked at.
fn turn(stack: &mut Stack) -> Result<(), Error> {
    stack.poll(Some(clock::now() + LOOK)).map_err(system("driving a queue"))?;
    Ok(())
}

/// Connects `count` flows, each with its number attached, and waits for all of them. What else
/// happens is given to `other`.
fn connect(stack: &mut Stack, address: SocketAddr, count: usize) -> Result<Vec<FlowId>, Error> {
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
