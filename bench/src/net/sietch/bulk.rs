//! Bytes in one direction, as fast as possible.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use sietch::net::{EventKind, FlowId, SharedBytes};

use super::stack::{Stack, connect, iterate};
use crate::error::{Error, system};
use crate::net::measure::{Meter, Outcome};
use crate::net::work::BULK_WRITE;

pub(super) fn serve(mut stack: Stack) -> Result<(), Error> {
    loop {
        stack.poll(None).map_err(system("driving a queue"))?;
        while let Some(event) = stack.next_event() {
            match event.kind {
                EventKind::Readable => {
                    let (first, second) = stack.engine.received(event.flow);
                    let length = first.len() + second.len();
                    stack.engine.consume(event.flow, length);
                }
                EventKind::PeerClosed => stack.engine.close(event.flow),
                _ => {}
            }
        }
    }
}

/// Sends as much as the engine takes, without a copy.
fn fill(stack: &mut Stack, flow: FlowId, data: &SharedBytes) {
    while stack.engine.send_zero_copy(flow, data.clone()).is_ok() {}
}

pub(super) fn load(
    mut stack: Stack,
    flows: usize,
    address: SocketAddr,
    seconds: f64,
) -> Result<Outcome, Error> {
    let flows = connect(&mut stack, address, flows)?;
    let data = SharedBytes::from(Arc::<[u8]>::from(vec![3; BULK_WRITE]));
    let mut meter = Meter::new(seconds)?;
    for flow in flows {
        fill(&mut stack, flow, &data);
    }
    // Much is in the send queue at a time, so only bytes that the peer has acknowledged count.
    let mut counted = 0;
    loop {
        iterate(&mut stack)?;
        while let Some(event) = stack.next_event() {
            if event.kind == EventKind::Writable {
                fill(&mut stack, event.flow, &data);
            }
        }
        let acknowledged = stack.engine.metrics().payload_acknowledged;
        meter.count(acknowledged - std::mem::replace(&mut counted, acknowledged));
        if meter.is_over(Instant::now())? {
            return meter.finish();
        }
    }
}
