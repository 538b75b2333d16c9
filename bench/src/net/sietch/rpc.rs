//! Requests and replies of a fixed size over TCP: the same programs as for the kernel's sockets.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Instant;

use sietch::net::{EventKind, FlowId};

use super::stack::{Stack, connect, failed, iterate};
use crate::error::{Error, system};
use crate::net::linux::reply_size;
use crate::net::measure::{Meter, Outcome, Shares};

/// Bytes of the prepared replies.
const REPLIES: usize = 64 * 1024;

/// Consumes the complete messages of `size` bytes that have arrived; returns their number.
#[inline]
fn take(stack: &mut Stack, flow: FlowId, size: usize) -> usize {
    let (first, second) = stack.engine.received(flow);
    let whole = (first.len() + second.len()) / size;
    if whole > 0 {
        stack.engine.consume(flow, whole * size);
    }
    whole
}

pub(super) fn serve(mut stack: Stack, bytes: usize) -> Result<(), Error> {
    let size = reply_size(bytes);
    let replies = vec![7; REPLIES];
    loop {
        stack.poll(None).map_err(system("driving a queue"))?;
        while let Some(event) = stack.next_event() {
            match event.kind {
                EventKind::Readable => {
                    let whole = take(&mut stack, event.flow, bytes);
                    if whole > 0 && stack.engine.send(event.flow, &replies[..whole * size]) < whole * size {
                        return Err(failed("sending")("replies do not fit the send buffer"));
                    }
                }
                EventKind::PeerClosed => stack.engine.close(event.flow),
                _ => {}
            }
        }
    }
}

pub(super) fn load(
    mut stack: Stack,
    (bytes, connections, pipeline): (usize, usize, usize),
    address: SocketAddr,
    seconds: f64,
    fair: bool,
) -> Result<Outcome, Error> {
    let size = reply_size(bytes);
    let flows = connect(&mut stack, address, connections)?;
    let request = vec![5; bytes * pipeline];
    let mut sent: Vec<VecDeque<Instant>> = vec![VecDeque::with_capacity(pipeline); connections];
    let mut answered = vec![0u64; connections];
    let mut meter = Meter::new(seconds)?;
    for (flow, sent) in flows.iter().zip(&mut sent) {
        sent.extend((0..pipeline).map(|_| Instant::now()));
        stack.engine.send(*flow, &request);
    }
    loop {
        iterate(&mut stack)?;
        while let Some(event) = stack.next_event() {
            let user = event.user as usize;
            match event.kind {
                EventKind::Readable => {
                    let whole = take(&mut stack, event.flow, size);
                    let now = Instant::now();
                    for sent in sent[user].drain(..whole) {
                        meter.record((now - sent).as_nanos() as u64);
                    }
                    answered[user] += if meter.is_open() { whole as u64 } else { 0 };
                    sent[user].extend((0..whole).map(|_| now));
                    let length = whole * bytes;
                    if whole > 0 && stack.engine.send(event.flow, &request[..length]) < length {
                        return Err(failed("sending")("requests do not fit the send buffer"));
                    }
                }
                EventKind::Closed(why) => {
                    return Err(failed("reading")(format!("a connection was closed: {why:?}")));
                }
                _ => {}
            }
        }
        if meter.is_over(Instant::now())? {
            break;
        }
    }
    let mut outcome = meter.finish()?;
    if fair {
        outcome.flows = Shares::of(answered.iter().copied());
    }
    Ok(outcome)
}
