//! The engine on an acquired device.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use sietch::net::{Event, EventKind, FlowId};
use sietch::{Client, HeldGrants, VnicQueue, clock};

use crate::error::{Error, system};

/// Nanoseconds after which a client reads its clock even if nothing arrives.
const POLL_INTERVAL: u64 = 20_000_000;

/// How long the device of the previous block may take to become free.
const TIMEOUT: Duration = Duration::from_secs(3);

pub(super) type Stack = sietch::Stack<VnicQueue>;

/// Names the action of Sietch's API that failed.
pub(super) fn failed<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
    action: &'static str,
) -> impl FnOnce(E) -> Error {
    move |cause| Error::System { action, cause: std::io::Error::other(cause) }
}

/// Acquires the device with this name.
pub(super) fn open((socket, name): (&Path, &str)) -> Result<Stack, Error> {
    let mut client = Client::connect(socket, "bench").map_err(failed("connecting to the daemon"))?;
    let begun = Instant::now();
    let vnic = loop {
        match client.acquire_vnic(name) {
            Ok(vnic) => break vnic,
            // The worker of the previous block has just ended.
            Err(_) if begun.elapsed() < TIMEOUT => std::thread::sleep(Duration::from_millis(5)),
            Err(cause) => return Err(failed("acquiring a device")(cause)),
        }
    };
    let config = vnic.engine_config([3; 16]);
    let lease = client.hold().map_err(failed("holding a device"))?;
    Ok(Stack::new(vnic.queue, &config).with_grants(HeldGrants { lease, grants: vec![vnic.grant] }))
}

/// One iteration of a client: handles events until the clock must be read.
pub(super) fn iterate(stack: &mut Stack) -> Result<(), Error> {
    stack.poll(Some(clock::now() + POLL_INTERVAL)).map_err(system("driving a queue"))?;
    Ok(())
}

/// Connects `count` flows, each with its number as user data, and waits for all of them.
pub(super) fn connect(stack: &mut Stack, address: SocketAddr, count: usize) -> Result<Vec<FlowId>, Error> {
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
        iterate(stack)?;
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
