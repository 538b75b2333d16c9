//! UDP echo.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::stack::{Stack, failed, iterate};
use crate::error::{Error, system};
use crate::net::measure::{Meter, Outcome};
use crate::net::work::{stamp, stamped};

/// After this silence a datagram counts as lost, and another takes its place.
const LOST: Duration = Duration::from_millis(50);

pub(super) fn serve(mut stack: Stack, port: u16) -> Result<(), Error> {
    let mut copy = Vec::new();
    loop {
        stack.poll(None).map_err(system("driving a queue"))?;
        while stack.next_event().is_some() {
            while let Some((remote, payload)) = stack.engine.udp_peek(port) {
                copy.clear();
                copy.extend_from_slice(payload);
                stack.engine.udp_pop(port);
                // A full queue loses the reply, as UDP may.
                let _ = stack.engine.udp_transmit(&mut stack.queue, port, remote, &copy);
            }
        }
    }
}

pub(super) fn load(
    mut stack: Stack,
    bytes: usize,
    window: usize,
    address: SocketAddr,
    seconds: f64,
) -> Result<Outcome, Error> {
    const PORT: u16 = 9;
    stack.engine.udp_bind(PORT).map_err(failed("binding a UDP port"))?;
    let mut meter = Meter::new(seconds)?;
    let begun = Instant::now();
    let mut out = vec![0; bytes];
    let mut last_reply = begun;
    let mut due = window;
    loop {
        let now = Instant::now();
        for _ in 0..due {
            stamp(&mut out, (now - begun).as_nanos() as u64);
            // A refused datagram and a lost one both count as lost.
            let _ = stack.engine.udp_transmit(&mut stack.queue, PORT, address, &out);
        }
        due = 0;
        iterate(&mut stack)?;
        let now = Instant::now();
        if meter.is_over(now)? {
            return meter.finish();
        }
        while stack.next_event().is_some() {
            while let Some((_, payload)) = stack.engine.udp_peek(PORT) {
                last_reply = now;
                due += 1;
                if let Some(sent) = stamped(payload) {
                    meter.record(((now - begun).as_nanos() as u64).saturating_sub(sent));
                }
                stack.engine.udp_pop(PORT);
            }
        }
        if now - last_reply > LOST {
            last_reply = now;
            due = window;
        }
    }
}
