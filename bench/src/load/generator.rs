//! A client of the store on an engine of its own.
//!
//! 1. Each connection sends a pipeline of requests for random keys and waits for all replies: the shape of redis-benchmark's load.
//! 2. With a rate it is an open loop: pipelines are due at fixed times and wait for a free connection, and their latency counts from when
//!    they were due, so that a server that stands still is charged for all whom it kept waiting.
//! 3. Replies are counted where they lie in the receive ring. An error reply ends the measurement.

use std::io;
use std::net::SocketAddrV4;

use hdrhistogram::Histogram;
use sietch::net::{EventKind, FlowId};
use sietch::{Doorbell, Stack, clock};

/// What the load is like.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    /// SET, else GET.
    pub set: bool,
    /// Connections.
    pub connections: usize,
    /// Requests that a connection sends before it waits.
    pub pipeline: usize,
    /// Bytes of a value.
    pub value: usize,
    /// Keys that are asked for.
    pub keys: u64,
    /// Requests a second; `None` sends as fast as replies come.
    pub rate: Option<f64>,
}

struct Connection {
    flow: FlowId,
    /// Replies that are still to come.
    awaited: usize,
    due: u64,
}

/// Connections to one server, kept over measurements.
pub(super) struct Generator<Q: Doorbell> {
    stack: Stack<Q>,
    connections: Vec<Connection>,
    seed: u64,
    request: Vec<u8>,
}

impl<Q: Doorbell> Generator<Q> {
    /// Makes the connections and waits for all of them.
    pub fn connect(mut stack: Stack<Q>, server: SocketAddrV4, connections: usize) -> io::Result<Self> {
        let mut all = Vec::new();
        for user in 0..connections {
            let flow = stack.engine.connect(server, clock::now()).map_err(io::Error::other)?;
            stack.engine.set_user(flow, user as u64);
            all.push(Connection { flow, awaited: 0, due: 0 });
        }
        let mut connected = 0;
        while connected < connections {
            stack.poll(None)?;
            while let Some(event) = stack.next_event() {
                match event.kind {
                    EventKind::Connected => connected += 1,
                    EventKind::Closed(why) => return Err(io::Error::other(format!("refused: {why:?}"))),
                    _ => {}
                }
            }
        }
        Ok(Self { stack, connections: all, seed: 0x9e37_79b9_7f4a_7c15, request: Vec::new() })
    }

    /// Sends for `duration` nanoseconds; returns the replies and their latencies in nanoseconds.
    pub fn run(&mut self, shape: Shape, duration: u64) -> io::Result<(u64, Histogram<u64>)> {
        let mut latencies = Histogram::new_with_bounds(1, 60_000_000_000, 3).map_err(io::Error::other)?;
        let begin = clock::now();
        let end = begin + duration;
        let gap = shape.rate.map(|rate| (shape.pipeline as f64 * 1e9 / rate) as u64);
        let mut due = begin;
        let mut idle: Vec<usize> = (0..self.connections.len()).collect();
        let mut replies = 0;
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
            if now >= end && idle.len() == self.connections.len() {
                return Ok((replies, latencies));
            }
            let until = if idle.is_empty() || now >= end { end.max(now + 1_000_000) } else { due };
            self.stack.poll(Some(until))?;
            while let Some(event) = self.stack.next_event() {
                let user = event.user as usize;
                match event.kind {
                    EventKind::Readable => {
                        let count = self.take(user)?;
                        replies += count as u64;
                        let took = clock::now().saturating_sub(self.connections[user].due).max(1);
                        latencies.record_n(took, count as u64).map_err(io::Error::other)?;
                        if count > 0 && self.connections[user].awaited == 0 {
                            idle.push(user);
                        }
                    }
                    EventKind::Closed(why) => {
                        return Err(io::Error::other(format!("the store closed: {why:?}")));
                    }
                    _ => {}
                }
            }
        }
    }

    fn send(&mut self, user: usize, shape: Shape) -> io::Result<()> {
        self.request.clear();
        for _ in 0..shape.pipeline {
            self.seed ^= self.seed << 13;
            self.seed ^= self.seed >> 7;
            self.seed ^= self.seed << 17;
            put(&mut self.request, shape, self.seed % shape.keys.max(1));
        }
        let connection = &mut self.connections[user];
        connection.awaited = shape.pipeline;
        // Everything before was answered: the send buffer is as good as empty.
        if self.stack.engine.send(connection.flow, &self.request) < self.request.len() {
            return Err(io::Error::other("a pipeline does not fit the send buffer; choose a shorter one"));
        }
        Ok(())
    }

    /// Takes the whole replies that have arrived; how many there were.
    fn take(&mut self, user: usize) -> io::Result<usize> {
        let connection = &mut self.connections[user];
        let mut count = 0;
        loop {
            let (first, second) = self.stack.engine.received(connection.flow);
            let (mut used, mut found) = replies(first)?;
            if found == 0 && !second.is_empty() {
                (used, found) = replies(&[first, second].concat())?;
            }
            if found == 0 {
                break;
            }
            self.stack.engine.consume(connection.flow, used);
            count += found;
        }
        connection.awaited = connection.awaited.saturating_sub(count);
        Ok(count)
    }
}

fn put(out: &mut Vec<u8>, shape: Shape, key: u64) {
    out.extend_from_slice(if shape.set { b"*3\r\n$3\r\nSET\r\n" } else { b"*2\r\n$3\r\nGET\r\n" });
    out.extend_from_slice(b"$16\r\nkey:");
    let mut digits = [b'0'; 12];
    let mut rest = key;
    for digit in digits.iter_mut().rev() {
        *digit += (rest % 10) as u8;
        rest /= 10;
    }
    out.extend_from_slice(&digits);
    out.extend_from_slice(b"\r\n");
    if shape.set {
        out.extend_from_slice(format!("${}\r\n", shape.value).as_bytes());
        out.resize(out.len() + shape.value, b'x');
        out.extend_from_slice(b"\r\n");
    }
}

/// Bytes of the whole replies at the beginning of `bytes`, and how many they are.
fn replies(bytes: &[u8]) -> io::Result<(usize, usize)> {
    let (mut used, mut count) = (0, 0);
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
        let shape = Shape { set: true, connections: 1, pipeline: 1, value: 2, keys: 9, rate: None };
        let mut out = Vec::new();
        put(&mut out, shape, 42);
        assert_eq!(out, b"*3\r\n$3\r\nSET\r\n$16\r\nkey:000000000042\r\n$2\r\nxx\r\n");
    }
}
