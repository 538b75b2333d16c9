//! Bytes in one direction, as many as go.

use std::net::SocketAddr;
use std::time::Instant;

use sietch::net::EventKind;
use sietch::{Doorbell, Stack};

use super::{connect, turn};
use crate::error::{Error, system};
use crate::net::measure::{Meter, Outcome};
use crate::net::work::BULK_WRITE;

pub(super) fn serve<Q: Doorbell>(mut stack: Stack<Q>) -> Result<(), Error> {
    // The kernel's reader has its bytes copied out; so has ours.
    let mut buffer = vec![0; BULK_WRITE];
    loop {
        stack.poll(None).map_err(system("driving a queue"))?;
        while let Some(event) = stack.next_event() {
            match event.kind {
                EventKind::Readable => while stack.engine.read(event.flow, &mut buffer) > 0 {},
                EventKind::PeerClosed => stack.engine.close(event.flow),
                _ => {}
            }
        }
    }
}

pub(super) fn load<Q: Doorbell>(
    mut stack: Stack<Q>,
    flows: usize,
    address: SocketAddr,
    seconds: f64,
) -> Result<Outcome, Error> {
    let flows = connect(&mut stack, address, flows)?;
    let data = vec![3; BULK_WRITE];
    let mut meter = Meter::new(seconds)?;
    for flow in flows {
        while stack.engine.send(flow, &data) == data.len() {}
    }
    loop {
        turn(&mut stack)?;
        while let Some(event) = stack.next_event() {
            if event.kind != EventKind::Writable {
                continue;
            }
            loop {
                let taken = stack.engine.send(event.flow, &data);
                meter.count(taken as u64);
                if taken < data.len() {
                    break;
                }
            }
        }
        if meter.is_over(Instant::now())? {
            return meter.finish();
        }
    }
}
