//! Client throughput and latency while the log is compacted: BGREWRITEAOF under load.
//!
//! 1. Each side holds [`MANY`] keys. Fifty connections SET random keys, and replies are counted in
//!    steps of [`STEP`]. After [`BEFORE`] the control connection requests a rewrite. The load
//!    continues until the rewrite is done, and for [`AFTER`] more.
//! 2. The report has the replies a second before and during the rewrite, its slowest step, and the
//!    longest time without a reply and the 99.9th percentile of latency, before and during. Redis
//!    forks a child that writes; Sietch writes one slice in each iteration, between commands.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::Serialize;

use super::control::ControlConnection;
use super::generator::{Generator, Shape};
use super::limits::{CONNECTIONS, OWN_CORE};
use super::pinned::Pinned;
use super::timeline::{STEP, Timeline};
use crate::error::{Error, system};
use crate::table::{self, median};

/// Keys of a side.
pub(super) const MANY: u64 = 1_000_000;

const BEFORE: Duration = Duration::from_secs(1);
const AFTER: Duration = Duration::from_millis(300);

/// The clients' measurements of one side.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Impact {
    side: &'static str,
    /// Of the rewrite.
    seconds: f64,
    /// Replies a second, step by step.
    before: Vec<f64>,
    during: Vec<f64>,
    /// Longest time without a reply, in milliseconds.
    silence_before: f64,
    silence_during: f64,
    /// Milliseconds within which 99.9 % of the requests were answered.
    tail_before: f64,
    tail_during: f64,
}

/// Fills the sides, and makes each of them rewrite under load. `addresses` are the kernel sockets
/// of the sides, in the same order.
pub(super) fn measure(
    sides: &mut [(&'static str, Generator)],
    addresses: &[SocketAddr],
    value: usize,
) -> Result<Vec<Impact>, Error> {
    let mut all = Vec::new();
    for ((side, generator), &address) in sides.iter_mut().zip(addresses) {
        fill(generator, value)?;
        let shape =
            Shape { writes: 100, connections: CONNECTIONS, pipeline: 1, value, keys: MANY, rate: None };
        let mut control = ControlConnection::connect(address)?;
        let done = AtomicBool::new(false);
        let mut timeline = Timeline::begin();
        let (outcome, took) = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                std::thread::sleep(BEFORE);
                let took = control.compact();
                std::thread::sleep(AFTER);
                done.store(true, Ordering::Relaxed);
                took
            });
            let outcome = Pinned::to(OWN_CORE).and_then(|_pinned| {
                while !done.load(Ordering::Relaxed) {
                    let (_, latencies) = generator
                        .run_noting(shape, STEP, Some(&mut timeline))
                        .map_err(|cause| Error::System { action: "the load generator", cause })?;
                    timeline.note_latencies(latencies);
                }
                Ok(())
            });
            (outcome, waiting.join())
        });
        outcome?;
        let took = took.map_err(|_| system("waiting for a rewrite")(std::io::Error::other("panicked")))??;
        all.push(impact(side, &timeline, took));
    }
    Ok(all)
}

/// Sets every key once.
pub(super) fn fill(generator: &mut Generator, value: usize) -> Result<(), Error> {
    let shape = Shape { writes: 100, connections: CONNECTIONS, pipeline: 16, value, keys: MANY, rate: None };
    let _pinned = Pinned::to(OWN_CORE)?;
    generator.fill(shape).map_err(|cause| Error::System { action: "the load generator", cause })
}

fn impact(side: &'static str, timeline: &Timeline, took: Duration) -> Impact {
    let begin = BEFORE.as_nanos() as u64;
    let end = begin + took.as_nanos() as u64;
    let rate = |count: u64| count as f64 * 1e9 / STEP as f64;
    let steps = |from: u64, to: u64| -> Vec<f64> {
        let range = (from / STEP) as usize..(to.div_ceil(STEP) as usize).min(timeline.steps.len());
        timeline.steps.get(range).unwrap_or_default().iter().map(|&count| rate(count)).collect()
    };
    let silence = |from: u64, to: u64| {
        let inside = timeline.silences.iter().filter(|(at, _)| (from..to).contains(at));
        inside.map(|(_, length)| *length as f64 / 1e6).fold(0.0, f64::max)
    };
    Impact {
        side,
        seconds: took.as_secs_f64(),
        // The first step includes a cold start.
        before: steps(STEP, begin),
        during: steps(begin, end),
        silence_before: silence(STEP, begin),
        silence_during: silence(begin, end + AFTER.as_nanos() as u64),
        tail_before: timeline.tail(STEP, begin),
        tail_during: timeline.tail(begin, end + STEP),
    }
}

/// Prints the measured impact.
pub(super) fn print(all: &[Impact]) {
    if all.is_empty() {
        return;
    }
    println!(
        "\nBGREWRITEAOF with {MANY} keys under SET c{CONNECTIONS} P1; a step is {} ms; silence: the longest time without a reply",
        STEP / 1_000_000
    );
    let rows: Vec<Vec<String>> = all
        .iter()
        .map(|impact| {
            let worst = impact.during.iter().copied().fold(f64::INFINITY, f64::min);
            let worst = if worst.is_finite() { worst } else { 0.0 };
            vec![
                impact.side.to_owned(),
                format!("{:.2}", impact.seconds),
                format!("{:.0}", median(&impact.before)),
                format!("{:.0}", median(&impact.during)),
                format!("{worst:.0}"),
                format!("{:.1}", impact.silence_before),
                format!("{:.1}", impact.silence_during),
                format!("{:.1}", impact.tail_before),
                format!("{:.1}", impact.tail_during),
            ]
        })
        .collect();
    let heading = [
        "server",
        "rewrite s",
        "req/s before",
        "during",
        "worst step",
        "silence ms before",
        "during",
        "p99.9 ms before",
        "during",
    ];
    table::print(&heading, &rows);
}
