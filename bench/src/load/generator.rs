//! One client for every server: the same requests in the same order over every transport
//! ([`super::transport`]).
//!
//! 1. Each connection sends a pipeline of requests for random keys and waits for all replies: the
//!    shape of redis-benchmark's load.
//! 2. With a rate the loop is open: pipelines are due at fixed times and wait for a free
//!    connection. Their latency counts from the due time, so that a stalled server is charged for
//!    every request that it delays.
//! 3. The generator shares the machine with the server, so it does as little work as possible. A
//!    request is a copy of the previous one with another key, and replies are counted in place. An
//!    error reply ends the measurement.

use std::io;

use hdrhistogram::Histogram;
use sietch::clock;
use sietch_structures::XorShift64;

use super::timeline::Timeline;
use super::transport::Transport;

/// Nanoseconds after which every delayed acknowledgement has been sent.
const SETTLING: u64 = 60_000_000;

/// The shape of the load.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    /// SETs in a hundred requests; the others are GETs. The order is random.
    pub writes: u32,
    /// Connections.
    pub connections: usize,
    /// Requests that a connection sends before it waits.
    pub pipeline: usize,
    /// Bytes of a value.
    pub value: usize,
    /// The number of different keys.
    pub keys: u64,
    /// Requests a second; `None` sends as fast as replies come.
    pub rate: Option<f64>,
}

#[derive(Clone, Copy, Default)]
struct Connection {
    /// Outstanding replies.
    awaited: usize,
    due: u64,
}

/// A client with connections to one server, kept over measurements.
pub(super) struct Generator {
    transport: Box<dyn Transport>,
    connections: Vec<Connection>,
    random: XorShift64,
    /// The next key, while keys are taken in order.
    ordered: Option<u64>,
    /// A GET and a SET; only the key changes from request to request.
    get: Vec<u8>,
    set: Vec<u8>,
    /// The buffer for one send.
    pipeline: Vec<u8>,
}

impl Generator {
    /// A client with this number of connections.
    pub(super) fn new(transport: impl Transport + 'static, connections: usize) -> Self {
        let connections = vec![Connection::default(); connections];
        let transport = Box::new(transport);
        Self {
            transport,
            connections,
            random: XorShift64::new(0x9e37_79b9_7f4a_7c15),
            ordered: None,
            get: Vec::new(),
            set: Vec::new(),
            pipeline: Vec::new(),
        }
    }

    /// Sets every key of the shape once, in order.
    pub(super) fn fill(&mut self, shape: Shape) -> io::Result<()> {
        const PIECE: u64 = 50_000_000;
        self.ordered = Some(0);
        while self.ordered.is_some_and(|next| next < shape.keys) {
            self.run(shape, PIECE)?;
        }
        self.ordered = None;
        Ok(())
    }

    /// Sends for `duration` nanoseconds over the first connections, as many as the shape has;
    /// returns the replies and their latencies in nanoseconds.
    pub(super) fn run(&mut self, shape: Shape, duration: u64) -> io::Result<(u64, Histogram<u64>)> {
        self.run_noting(shape, duration, None)
    }

    /// As [`Generator::run`]; replies are also noted in `timeline`.
    pub(super) fn run_noting(
        &mut self,
        shape: Shape,
        duration: u64,
        mut timeline: Option<&mut Timeline>,
    ) -> io::Result<(u64, Histogram<u64>)> {
        let mut latencies = Histogram::new_with_bounds(1, 60_000_000_000, 3).map_err(io::Error::other)?;
        let begin = clock::now();
        let end = begin + duration;
        let gap = shape.rate.map(|rate| (shape.pipeline as f64 * 1e9 / rate) as u64);
        let mut due = begin;
        let count = shape.connections.min(self.connections.len());
        (self.get, self.set) = (request(shape, false), request(shape, true));
        let only = if shape.writes == 0 { &self.get } else { &self.set };
        self.pipeline = only.repeat(shape.pipeline);
        let mut idle: Vec<usize> = (0..count).collect();
        let (mut replies, mut readable) = (0, Vec::new());
        loop {
            let now = clock::now();
            while now < end
                && gap.is_none_or(|_| due <= now)
                && let Some(user) = idle.pop()
            {
                self.connections[user].due = if gap.is_some() { due } else { now };
                due += gap.unwrap_or(0);
                self.send(user, shape)?;
            }
            if now >= end && idle.len() == count {
                return Ok((replies, latencies));
            }
            let until = if idle.is_empty() || now >= end { end.max(now + 1_000_000) } else { due };
            self.transport.poll(until, &mut readable)?;
            for user in readable.drain(..) {
                let count = self.take(user)?;
                replies += count as u64;
                let now = clock::now();
                if let Some(timeline) = &mut timeline {
                    timeline.note(now, count as u64);
                }
                let took = now.saturating_sub(self.connections[user].due).max(1);
                latencies.record_n(took, count as u64).map_err(io::Error::other)?;
                if count > 0 && self.connections[user].awaited == 0 {
                    idle.push(user);
                }
            }
        }
    }

    /// Runs for a moment without requests, so that the last acknowledgements are sent. Otherwise
    /// the server would retransmit its last replies while this side waits for its next block.
    pub(super) fn settle(&mut self) -> io::Result<()> {
        let end = clock::now() + SETTLING;
        let mut readable = Vec::new();
        while clock::now() < end {
            self.transport.poll(end, &mut readable)?;
        }
        Ok(())
    }

    fn send(&mut self, user: usize, shape: Shape) -> io::Result<()> {
        if matches!(shape.writes, 0 | 100) {
            let length = self.pipeline.len() / shape.pipeline.max(1);
            for request in self.pipeline.chunks_exact_mut(length.max(1)) {
                let key = match &mut self.ordered {
                    Some(key) => std::mem::replace(key, *key + 1),
                    None => self.random.word(),
                };
                put_key(request, key % shape.keys.max(1));
            }
        } else {
            self.pipeline.clear();
            for _ in 0..shape.pipeline {
                let set = self.random.word() % 100 < u64::from(shape.writes);
                let begin = self.pipeline.len();
                self.pipeline.extend_from_slice(if set { &self.set } else { &self.get });
                put_key(&mut self.pipeline[begin..], self.random.word() % shape.keys.max(1));
            }
        }
        self.connections[user].awaited = shape.pipeline;
        self.transport.send(user, &self.pipeline)
    }

    /// Consumes the complete replies that have arrived; returns their number.
    fn take(&mut self, user: usize) -> io::Result<usize> {
        let mut count = 0;
        let mut consume = |bytes: &[u8]| {
            let (used, found) = replies(bytes)?;
            count += found;
            Ok(used)
        };
        self.transport.take(user, &mut consume)?;
        let connection = &mut self.connections[user];
        connection.awaited = connection.awaited.saturating_sub(count);
        Ok(count)
    }
}

/// The range of the key's digits in a request.
const KEY: std::ops::Range<usize> = 22..34;

/// A request for the first key, as redis-benchmark writes it.
fn request(shape: Shape, set: bool) -> Vec<u8> {
    let key = "$16\r\nkey:000000000000\r\n";
    if set {
        let value = "x".repeat(shape.value);
        format!("*3\r\n$3\r\nSET\r\n{key}${}\r\n{value}\r\n", shape.value).into_bytes()
    } else {
        format!("*2\r\n$3\r\nGET\r\n{key}").into_bytes()
    }
}

/// Writes this key into `request`.
fn put_key(request: &mut [u8], key: u64) {
    let mut rest = key;
    for digit in request[KEY].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
}

/// The bytes of the complete replies at the start of `bytes`, and their number.
fn replies(bytes: &[u8]) -> io::Result<(usize, usize)> {
    let (mut used, mut count) = (0, 0);
    loop {
        // The form of nearly all replies.
        let length = match &bytes[used..] {
            [b'+', b'O', b'K', b'\r', b'\n', ..] => 5,
            [b'$', tens @ b'1'..=b'9', ones @ b'0'..=b'9', b'\r', b'\n', rest @ ..] => {
                let body = usize::from(tens - b'0') * 10 + usize::from(ones - b'0') + 2;
                if rest.len() < body {
                    return Ok((used, count));
                }
                5 + body
            }
            _ => break,
        };
        used += length;
        count += 1;
    }
    while let Some(end) = bytes[used..].windows(2).position(|two| two == b"\r\n") {
        let line = &bytes[used..used + end];
        let mut length = end + 2;
        match line.first() {
            Some(b'$') => {
                let text = std::str::from_utf8(&line[1..]).unwrap_or_default();
                if let Ok(body) = text.parse::<usize>() {
                    length += body + 2;
                }
            }
            Some(b'+' | b':') => {}
            _ => return Err(io::Error::other(String::from_utf8_lossy(line).into_owned())),
        }
        if used + length > bytes.len() {
            break;
        }
        used += length;
        count += 1;
    }
    Ok((used, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_replies_are_counted_and_parts_are_left() {
        assert_eq!(replies(b"+OK\r\n$3\r\nabc\r\n$-1\r\n$3\r\nab").expect("no error"), (19, 3));
        assert_eq!(replies(b"+O").expect("no error"), (0, 0));
        assert!(replies(b"-ERR no\r\n").is_err());
    }

    #[test]
    fn requests_are_those_of_redis_benchmark() {
        let shape = Shape { writes: 100, connections: 1, pipeline: 1, value: 2, keys: 9, rate: None };
        let mut out = request(shape, true);
        put_key(&mut out, 42);
        assert_eq!(out, b"*3\r\n$3\r\nSET\r\n$16\r\nkey:000000000042\r\n$2\r\nxx\r\n");
    }
}
