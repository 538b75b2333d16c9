//! Short-lived connections, and idle connections.

use std::io::Read as _;
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use rustix::event::epoll::EventFlags;

use super::sockets::{LISTENER, Taken, Waiting, Watch, connect, listen, nonblocking, put, take};
use crate::error::{Error, system};
use crate::machine::processor_time;
use crate::net::measure::{Meter, Outcome};
use crate::net::work::{CHURN_AT_ONCE, FIRSTS, REQUEST, SILENCE};

/// Answers one request for each connection, then closes: TIME-WAIT is on the server's side.
pub(super) fn serve(
    waiting: Waiting,
    address: SocketAddr,
    ready: impl FnOnce(SocketAddr),
) -> Result<(), Error> {
    let (listener, mut watch) = listen(waiting, address, ready)?;
    let mut free = Vec::new();
    let mut connections: Vec<Option<TcpStream>> = Vec::new();
    let (mut words, mut buffer) = (Vec::new(), [0; REQUEST]);
    loop {
        watch.wait(&mut words)?;
        for &(word, _) in &words {
            if word == LISTENER {
                while let Ok((stream, _)) = listener.accept() {
                    nonblocking(&stream)?;
                    let place = free.pop().unwrap_or_else(|| {
                        connections.push(None);
                        connections.len() - 1
                    });
                    watch.add(&stream, place as u64, EventFlags::IN)?;
                    connections[place] = Some(stream);
                }
                continue;
            }
            let Some(stream) = &mut connections[word as usize] else { continue };
            let done = match take(stream, &mut buffer)? {
                Taken::Bytes(length) => {
                    put(stream, &buffer[..length])?;
                    true
                }
                Taken::Nothing => false,
                Taken::End => true,
            };
            if done {
                connections[word as usize] = None;
                free.push(word as usize);
            }
        }
    }
}

/// Keeps some connections in progress: connect, one request, its answer, close; then the next.
pub(super) fn load(waiting: Waiting, address: SocketAddr, seconds: f64) -> Result<Outcome, Error> {
    let mut watch = Watch::new(waiting)?;
    let mut meter = Meter::new(seconds)?;
    let mut streams: Vec<(TcpStream, Instant)> = Vec::new();
    let open = |watch: &Watch, word: usize| -> Result<(TcpStream, Instant), Error> {
        let begun = Instant::now();
        let mut stream = connect(address)?;
        put(&mut stream, &[1; REQUEST])?;
        nonblocking(&stream)?;
        watch.add(&stream, word as u64, EventFlags::IN)?;
        Ok((stream, begun))
    };
    for word in 0..CHURN_AT_ONCE {
        streams.push(open(&watch, word)?);
    }
    let (mut words, mut buffer) = (Vec::new(), [0; REQUEST]);
    loop {
        watch.wait(&mut words)?;
        for &(word, _) in &words {
            let (stream, begun) = &mut streams[word as usize];
            if matches!(take(stream, &mut buffer)?, Taken::End) {
                meter.record(begun.elapsed().as_nanos() as u64);
                streams[word as usize] = open(&watch, word as usize)?;
            }
        }
        if meter.is_over(Instant::now())? {
            return meter.finish();
        }
    }
}

/// Opens idle connections and measures the kernel memory of one at both ends.
pub(super) fn hold(connections: usize, address: SocketAddr) -> Result<Outcome, Error> {
    let before = kernel_memory()?;
    let held: Vec<TcpStream> = (0..connections).map(|_| connect(address)).collect::<Result<_, _>>()?;
    // The server accepts asynchronously.
    std::thread::sleep(std::time::Duration::from_millis(300));
    let after = kernel_memory()?;
    let each = after.saturating_sub(before) / held.len().max(1) as u64;
    Ok(Outcome { operations: held.len() as u64, elapsed: 1, bytes: Some(each), ..Outcome::default() })
}

/// Leaves some connections silent, with an occasional request: measures the cost of silence and of
/// waking up.
pub(super) fn idle(
    connections: usize,
    address: SocketAddr,
    seconds: f64,
    peer: Option<u32>,
) -> Result<Outcome, Error> {
    let processes: Vec<u32> = peer.into_iter().chain([std::process::id()]).collect();
    let mut streams: Vec<TcpStream> = (0..connections).map(|_| connect(address)).collect::<Result<_, _>>()?;
    let mut buffer = [0; REQUEST];
    let mut request_reply = |stream: &mut TcpStream| -> Result<u64, Error> {
        let begun = Instant::now();
        put(stream, &[1; REQUEST])?;
        stream.read_exact(&mut buffer).map_err(system("reading"))?;
        Ok(begun.elapsed().as_nanos() as u64)
    };
    for stream in &mut streams {
        request_reply(stream)?;
    }
    let mut meter = Meter::new(seconds)?;
    std::thread::sleep(SILENCE);
    let before = processor_time(&processes)?;
    let begun = Instant::now();
    std::thread::sleep(std::time::Duration::from_secs_f64(seconds));
    let busy = processor_time(&processes)? - before;
    let idle = busy as f64 / begun.elapsed().as_nanos() as f64;
    meter.open()?;
    for request in 0..FIRSTS as usize {
        std::thread::sleep(SILENCE);
        meter.record(request_reply(&mut streams[request % connections])?);
    }
    Ok(Outcome { idle: Some(idle), ..meter.finish()? })
}

/// Bytes in the kernel's slabs and socket buffers.
fn kernel_memory() -> Result<u64, Error> {
    let slab = std::fs::read_to_string("/proc/meminfo").map_err(system("reading /proc/meminfo"))?;
    let kilobytes = slab
        .lines()
        .find_map(|line| line.strip_prefix("Slab:")?.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok())
        .unwrap_or(0);
    Ok(kilobytes * 1024)
}
