//! The bench's own programs, for loads that no Debian package offers. They use plain sockets and
//! `epoll` of the C library and contain no Sietch code, so they run under `sietch run` like any
//! other program.
//!
//! 1. `rpc-server` echoes its input. `rpc` is an open loop: request *n* of all connections together
//!    is due at *n* / rate. Its latency counts from that time, even if the client sends it later
//!    (no coordinated omission). The client never sleeps, so only the server sleeps and is woken.
//! 2. `memcached` keeps one request of each connection in flight: nine `get` for each `set`.
//! 3. `silent-server` accepts connections and sends nothing. `silent` connects and sleeps: half of
//!    the instances in `recv`, half in `epoll_wait`.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};

use super::results::ClientReport;
use super::rows::RPC_BYTES;
use crate::error::{Error, system};
use crate::machine::Cpu;

/// How long the load runs before requests count.
const WARM_UP: Duration = Duration::from_millis(100);

/// How long before that time the machine's processor time is read. The reading itself delays some
/// requests.
const READING: Duration = Duration::from_millis(10);

/// How long after the end replies may arrive.
const LAST: Duration = Duration::from_secs(2);

/// The most bytes that one `read` takes.
const READ: usize = 16 * 1024;

/// The number of keys in memcached, and the bytes of each value.
const KEYS: u64 = 10_000;
const VALUE: usize = 64;

/// The token of a server's listener.
const LISTENER: Token = Token(usize::MAX);

/// The role of the program.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Arguments {
    /// rpc-server, rpc, memcached, memcached-fill, silent-server, silent
    role: String,
    #[arg(long)]
    address: SocketAddr,
    #[arg(long, default_value_t = 1)]
    connections: usize,
    /// Requests a second
    #[arg(long, default_value_t = 1)]
    rate: u64,
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Sleep in `epoll_wait` instead of `recv`
    #[arg(long)]
    epoll: bool,
}

/// Runs in the given role.
///
/// # Errors
/// A socket call failed, or the peer sent something unexpected.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Error> {
    match arguments.role.as_str() {
        "rpc-server" => serve(arguments.address, true),
        "silent-server" => serve(arguments.address, false),
        "silent" => silent(arguments.address, arguments.epoll),
        "memcached-fill" => fill(arguments.address),
        "memcached" => print(&memcached(arguments)?),
        "rpc" => print(&rpc(arguments)?),
        other => Err(fault(&format!("there is no role {other}"))),
    }
}

fn fault(what: &str) -> Error {
    system("measuring")(std::io::Error::other(what.to_owned()))
}

fn print(report: &ClientReport) -> Result<(), Error> {
    let text = serde_json::to_string(report).map_err(|cause| fault(&cause.to_string()))?;
    println!("{text}");
    Ok(())
}

/// Latencies of a block.
struct Tally {
    latency: Histogram<u64>,
    opens: Instant,
    closes: Instant,
    operations: u64,
}

impl Tally {
    fn new(seconds: f64) -> Result<Self, Error> {
        let latency =
            Histogram::new_with_bounds(1, 10_000_000_000, 3).map_err(|cause| fault(&cause.to_string()))?;
        let opens = Instant::now() + WARM_UP;
        Ok(Self { latency, opens, closes: opens + Duration::from_secs_f64(seconds), operations: 0 })
    }

    /// Counts an operation that began at `begin`.
    fn done(&mut self, begin: Instant, now: Instant) {
        self.operations += 1;
        if begin >= self.opens && begin < self.closes {
            self.latency.saturating_record(((now - begin).as_nanos() as u64).max(1));
        }
    }

    fn report(&self) -> Result<ClientReport, Error> {
        if self.latency.is_empty() {
            return Err(fault("nothing was answered"));
        }
        let at = |part| Some(self.latency.value_at_quantile(part) as f64 / 1e3);
        Ok(ClientReport {
            operations: self.operations as f64,
            rate: self.latency.len() as f64 / (self.closes - self.opens).as_secs_f64(),
            least: Some(self.latency.min() as f64 / 1e3),
            p50: at(0.5),
            p99: at(0.99),
            p999: at(0.999),
            counted_cpu_us: None,
        })
    }
}

fn watch(poll: &Poll, stream: &mut TcpStream, token: usize) -> Result<(), Error> {
    poll.registry().register(stream, Token(token), Interest::READABLE).map_err(system("epoll_ctl"))
}

fn connect(address: SocketAddr, poll: &Poll, token: usize) -> Result<TcpStream, Error> {
    let stream = std::net::TcpStream::connect(address).map_err(system("connecting"))?;
    stream.set_nodelay(true).map_err(system("setting TCP_NODELAY"))?;
    stream.set_nonblocking(true).map_err(system("making a socket non-blocking"))?;
    let mut stream = TcpStream::from_std(stream);
    watch(poll, &mut stream, token)?;
    Ok(stream)
}

/// Waits, or polls once; signals are ignored.
fn wait(poll: &mut Poll, events: &mut Events, limit: Option<Duration>) -> Result<(), Error> {
    match poll.poll(events, limit) {
        Err(cause) if cause.kind() != ErrorKind::Interrupted => Err(system("epoll_wait")(cause)),
        _ => Ok(()),
    }
}

/// Writes all of a message that fits in any send buffer.
fn put(stream: &mut TcpStream, mut bytes: &[u8]) -> Result<(), Error> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(cause) if cause.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
            Err(cause) if cause.kind() == ErrorKind::Interrupted => {}
            Err(cause) => return Err(system("writing")(cause)),
        }
    }
    Ok(())
}

/// Reads; `None` if there is nothing, no bytes at the end.
fn take<'a>(stream: &mut TcpStream, buffer: &'a mut [u8]) -> Result<Option<&'a [u8]>, Error> {
    match stream.read(buffer) {
        Ok(count) => Ok(Some(&buffer[..count])),
        Err(cause) if matches!(cause.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(None),
        Err(cause) if cause.kind() == ErrorKind::ConnectionReset => Ok(Some(&[])),
        Err(cause) => Err(system("reading")(cause)),
    }
}

/// Accepts connections; echoes their input if `answers`.
fn serve(address: SocketAddr, answers: bool) -> Result<(), Error> {
    let mut listener = TcpListener::bind(address).map_err(system("listening"))?;
    let mut poll = Poll::new().map_err(system("epoll_create"))?;
    poll.registry().register(&mut listener, LISTENER, Interest::READABLE).map_err(system("epoll_ctl"))?;
    let mut streams: Vec<Option<TcpStream>> = Vec::new();
    let (mut events, mut buffer) = (Events::with_capacity(512), vec![0; READ]);
    loop {
        wait(&mut poll, &mut events, None)?;
        for event in &events {
            if event.token() == LISTENER {
                while let Ok((mut stream, _)) = listener.accept() {
                    stream.set_nodelay(true).map_err(system("setting TCP_NODELAY"))?;
                    let place = streams.iter().position(Option::is_none).unwrap_or(streams.len());
                    watch(&poll, &mut stream, place)?;
                    if place == streams.len() {
                        streams.push(None);
                    }
                    streams[place] = Some(stream);
                }
                continue;
            }
            let Some(place) = streams.get_mut(event.token().0) else { continue };
            while let Some(stream) = place {
                match take(stream, &mut buffer)? {
                    None => break,
                    Some([]) => *place = None,
                    Some(bytes) if answers => put(stream, bytes)?,
                    Some(_) => {}
                }
            }
        }
    }
}

fn rpc(arguments: &Arguments) -> Result<ClientReport, Error> {
    struct Connection {
        stream: TcpStream,
        due: VecDeque<Instant>,
        pending: usize,
    }
    let mut poll = Poll::new().map_err(system("epoll_create"))?;
    let mut connections = Vec::new();
    for token in 0..arguments.connections {
        let stream = connect(arguments.address, &poll, token)?;
        connections.push(Connection { stream, due: VecDeque::with_capacity(64), pending: 0 });
    }
    let (mut events, mut buffer) = (Events::with_capacity(512), vec![0; READ]);
    let mut tally = Tally::new(arguments.seconds)?;
    let begin = Instant::now();
    let period = Duration::from_nanos(1_000_000_000 / arguments.rate.max(1));
    let (mut sent, mut due, mut now) = (0u64, begin, begin);
    // Of the machine: the time of the reading, its value, and how many requests had been answered.
    let (mut first, mut last) = (None, None);
    while now < tally.closes + LAST && (now < tally.closes || tally.operations < sent) {
        while due <= now && due < tally.closes {
            let at = (sent % connections.len().max(1) as u64) as usize;
            put(&mut connections[at].stream, &[5; RPC_BYTES])?;
            connections[at].due.push_back(due);
            (sent, due) = (sent + 1, due + period);
        }
        wait(&mut poll, &mut events, Some(Duration::ZERO))?;
        for event in &events {
            let connection = &mut connections[event.token().0];
            while let Some(bytes) = take(&mut connection.stream, &mut buffer)? {
                if bytes.is_empty() {
                    return Err(fault("the server closed a connection"));
                }
                now = Instant::now();
                connection.pending += bytes.len();
                while connection.pending >= RPC_BYTES {
                    let due =
                        connection.due.pop_front().ok_or_else(|| fault("more replies than requests"))?;
                    tally.done(due, now);
                    connection.pending -= RPC_BYTES;
                }
            }
        }
        now = Instant::now();
        let place = if now >= tally.closes { &mut last } else { &mut first };
        if place.is_none() && now + READING >= tally.opens {
            *place = Some((Cpu::read()?.busy, tally.operations));
        }
    }
    if tally.operations < sent {
        return Err(fault(&format!("{} of {sent} requests were not answered", sent - tally.operations)));
    }
    let mut report = tally.report()?;
    if let (Some((before, from)), Some((after, to))) = (first, last) {
        report.counted_cpu_us = Some((after - before) as f64 / 1e3 / ((to - from) as f64).max(1.0));
    }
    Ok(report)
}

fn set(key: u64, options: &str) -> Vec<u8> {
    format!("set key:{key:05} 0 0 {VALUE}{options}\r\n{}\r\n", "x".repeat(VALUE)).into_bytes()
}

/// Writes every key once.
fn fill(address: SocketAddr) -> Result<(), Error> {
    let mut stream = std::net::TcpStream::connect(address).map_err(system("connecting"))?;
    for key in 0..KEYS {
        stream.write_all(&set(key, " noreply")).map_err(system("writing"))?;
    }
    stream.write_all(&set(0, "")).map_err(system("writing"))?;
    let mut reply = [0; 8];
    stream.read_exact(&mut reply).map_err(system("reading"))?;
    if &reply == b"STORED\r\n" { Ok(()) } else { Err(fault("the last set was not stored")) }
}

fn memcached(arguments: &Arguments) -> Result<ClientReport, Error> {
    struct Connection {
        stream: TcpStream,
        sent: Instant,
        reply: Vec<u8>,
        /// The end of the expected reply.
        last: &'static [u8],
    }
    let mut poll = Poll::new().map_err(system("epoll_create"))?;
    let mut connections = Vec::new();
    for token in 0..arguments.connections {
        let stream = connect(arguments.address, &poll, token)?;
        connections.push(Connection { stream, sent: Instant::now(), reply: Vec::new(), last: b"" });
    }
    let (mut events, mut buffer) = (Events::with_capacity(512), vec![0; READ]);
    let mut tally = Tally::new(arguments.seconds)?;
    let gets: Vec<Vec<u8>> = (0..KEYS).map(|key| format!("get key:{key:05}\r\n").into_bytes()).collect();
    let sets: Vec<Vec<u8>> = (0..KEYS).map(|key| set(key, "")).collect();
    let mut number = 0u64;
    let mut send_request = |connection: &mut Connection, now| {
        number += 1;
        // A step that has no common divisor with the number of keys visits all of them.
        let key = (number * 7919 % KEYS) as usize;
        let (request, last): (_, &[u8]) =
            if number.is_multiple_of(10) { (&sets[key], b"STORED\r\n") } else { (&gets[key], b"END\r\n") };
        (connection.sent, connection.last) = (now, last);
        connection.reply.clear();
        put(&mut connection.stream, request)
    };
    let mut now = Instant::now();
    for connection in &mut connections {
        send_request(connection, now)?;
    }
    while now < tally.closes {
        wait(&mut poll, &mut events, Some(LAST))?;
        if events.is_empty() {
            return Err(fault("no reply"));
        }
        for event in &events {
            let connection = &mut connections[event.token().0];
            while let Some(bytes) = take(&mut connection.stream, &mut buffer)? {
                connection.reply.extend_from_slice(bytes);
                if bytes.is_empty() || connection.reply.starts_with(b"ERROR") {
                    return Err(fault("the server refused a request"));
                }
                if connection.reply.ends_with(connection.last) {
                    now = Instant::now();
                    tally.done(connection.sent, now);
                    send_request(connection, now)?;
                }
            }
        }
    }
    tally.report()
}

/// Connects, reports it, and sleeps until it is killed.
fn silent(address: SocketAddr, epoll: bool) -> Result<(), Error> {
    if epoll {
        let mut poll = Poll::new().map_err(system("epoll_create"))?;
        let _stream = connect(address, &poll, 0)?;
        println!("connected");
        let mut events = Events::with_capacity(1);
        wait(&mut poll, &mut events, None)?;
    } else {
        let mut stream = std::net::TcpStream::connect(address).map_err(system("connecting"))?;
        println!("connected");
        // No data arrives.
        let _ = stream.read(&mut [0]).map_err(system("reading"))?;
    }
    Err(fault("the silent server sent bytes"))
}
