//! Short-lived connections, and idle connections.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use sietch::clock;
use sietch::net::{EventKind, FlowId};

use super::stack::{Stack, connect, failed, iterate};
use crate::error::{Error, system};
use crate::machine::processor_time;
use crate::net::measure::{Meter, Outcome};
use crate::net::work::{CHURN_AT_ONCE, FIRSTS, REQUEST, SILENCE};

/// Answers one request for each connection, then closes: TIME-WAIT is on the server's side.
pub(super) fn serve(mut stack: Stack) -> Result<(), Error> {
    let mut buffer = [0; REQUEST];
    loop {
        stack.poll(None).map_err(system("driving a queue"))?;
        while let Some(event) = stack.next_event() {
            if event.kind == EventKind::Readable {
                let length = stack.engine.read(event.flow, &mut buffer);
                stack.engine.send(event.flow, &buffer[..length]);
                stack.engine.close(event.flow);
            }
        }
    }
}

/// Keeps some connections in progress: connect, one request, its answer, close; then the next.
pub(super) fn load(mut stack: Stack, address: SocketAddr, seconds: f64) -> Result<Outcome, Error> {
    let mut meter = Meter::new(seconds)?;
    let mut begun = vec![Instant::now(); CHURN_AT_ONCE];
    let open = |stack: &mut Stack, user: usize| -> Result<Instant, Error> {
        let now = Instant::now();
        let flow = stack.engine.connect(address, clock::now()).map_err(failed("connecting"))?;
        stack.engine.set_user(flow, user as u64);
        Ok(now)
    };
    for (user, begun) in begun.iter_mut().enumerate() {
        *begun = open(&mut stack, user)?;
    }
    let mut buffer = [0; REQUEST];
    loop {
        iterate(&mut stack)?;
        while let Some(event) = stack.next_event() {
            let user = event.user as usize;
            match event.kind {
                EventKind::Connected => {
                    stack.engine.send(event.flow, &[1; REQUEST]);
                }
                EventKind::Readable => {
                    stack.engine.read(event.flow, &mut buffer);
                }
                EventKind::PeerClosed => {
                    stack.engine.close(event.flow);
                    meter.record(begun[user].elapsed().as_nanos() as u64);
                    begun[user] = open(&mut stack, user)?;
                }
                EventKind::Closed(why) => {
                    return Err(failed("reading")(format!("a connection was closed: {why:?}")));
                }
                _ => {}
            }
        }
        if meter.is_over(Instant::now())? {
            return meter.finish();
        }
    }
}

/// Opens idle connections and measures the memory of one at both ends: the growth of the two
/// processes.
pub(super) fn hold(
    mut stack: Stack,
    connections: usize,
    address: SocketAddr,
    peer: Option<u32>,
) -> Result<Outcome, Error> {
    let processes = [Some(std::process::id()), peer];
    let memory = || processes.iter().flatten().map(|pid| resident(*pid)).sum::<Result<u64, Error>>();
    // The first connection allocates what all of them share.
    connect(&mut stack, address, 1)?;
    let before = memory()?;
    let held = connect(&mut stack, address, connections)?;
    let after = memory()?;
    let each = after.saturating_sub(before) / held.len().max(1) as u64;
    Ok(Outcome { operations: held.len() as u64, elapsed: 1, bytes: Some(each), ..Outcome::default() })
}

/// Leaves some connections silent, with an occasional request: measures the cost of silence and of
/// waking up.
pub(super) fn idle(
    mut stack: Stack,
    connections: usize,
    address: SocketAddr,
    seconds: f64,
    peer: Option<u32>,
) -> Result<Outcome, Error> {
    let processes: Vec<u32> = peer.into_iter().chain([std::process::id()]).collect();
    let flows = connect(&mut stack, address, connections)?;
    for flow in &flows {
        request_reply(&mut stack, *flow)?;
    }
    let mut meter = Meter::new(seconds)?;
    rest(&mut stack, SILENCE)?;
    let before = processor_time(&processes)?;
    let begun = Instant::now();
    rest(&mut stack, Duration::from_secs_f64(seconds))?;
    let busy = processor_time(&processes)? - before;
    let idle = busy as f64 / begun.elapsed().as_nanos() as f64;
    meter.open()?;
    for request in 0..FIRSTS as usize {
        rest(&mut stack, SILENCE)?;
        meter.record(request_reply(&mut stack, flows[request % connections])?);
    }
    Ok(Outcome { idle: Some(idle), ..meter.finish()? })
}

/// Drives the engine for a while without requests.
fn rest(stack: &mut Stack, time: Duration) -> Result<(), Error> {
    let until = clock::now() + time.as_nanos() as u64;
    while clock::now() < until {
        stack.poll(Some(until)).map_err(system("driving a queue"))?;
        while stack.next_event().is_some() {}
    }
    Ok(())
}

/// One request and its answer; returns the time between them.
fn request_reply(stack: &mut Stack, flow: FlowId) -> Result<u64, Error> {
    let begun = Instant::now();
    stack.engine.send(flow, &[1; REQUEST]);
    let mut missing = REQUEST;
    while missing > 0 {
        iterate(stack)?;
        while let Some(event) = stack.next_event() {
            if event.kind == EventKind::Readable {
                missing = missing.saturating_sub(stack.engine.read(flow, &mut [0; REQUEST]));
            }
        }
    }
    Ok(begun.elapsed().as_nanos() as u64)
}

/// Bytes of a process in memory.
fn resident(process: u32) -> Result<u64, Error> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))
        .map_err(system("reading a process' memory"))?;
    let kilobytes = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    let missing = || system("reading a process' memory")(std::io::Error::other("no VmRSS"));
    Ok(kilobytes.ok_or_else(missing)? * 1024)
}
