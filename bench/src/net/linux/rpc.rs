//! Requests and replies of a fixed size over TCP.
//!
//! 1. The server answers all complete requests of one `read` with one `write`.
//! 2. The client keeps `pipeline` requests of each connection in flight: it sends one request for
//!    each reply of a `read`, in one `write`.
//! 3. With one connection a blocking client sleeps in `read`, which is the kernel's shortest way;
//!    with several in `epoll_wait`.

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

use rustix::event::epoll::EventFlags;

use super::sockets::{LISTENER, Taken, Waiting, Watch, connect, listen, nonblocking, put, take};
use crate::error::{Error, system};
use crate::net::measure::{Meter, Outcome, Shares};

/// Bytes that one `read` takes at most.
const READ: usize = 64 * 1024;

pub(super) fn serve(
    bytes: usize,
    waiting: Waiting,
    address: SocketAddr,
    ready: impl FnOnce(SocketAddr),
) -> Result<(), Error> {
    let (listener, mut watch) = listen(waiting, address, ready)?;
    let mut connections: Vec<Option<(TcpStream, usize)>> = Vec::new();
    let (mut words, mut buffer, reply) = (Vec::new(), vec![0; READ], vec![7; READ + bytes]);
    loop {
        watch.wait(&mut words)?;
        for &(word, _) in &words {
            if word == LISTENER {
                accept(&listener, &watch, &mut connections)?;
                continue;
            }
            let place = &mut connections[word as usize];
            let Some((stream, pending)) = place else { continue };
            match take(stream, &mut buffer)? {
                Taken::Nothing => {}
                Taken::End => *place = None,
                Taken::Bytes(length) => {
                    *pending += length;
                    let whole = *pending / bytes;
                    *pending %= bytes;
                    if whole > 0 {
                        put(stream, &reply[..whole * reply_size(bytes)])?;
                    }
                }
            }
        }
    }
}

/// A request larger than 64 bytes is answered by 64.
pub(in crate::net) const fn reply_size(bytes: usize) -> usize {
    if bytes > 64 { 64 } else { bytes }
}

pub(super) fn accept(
    listener: &TcpListener,
    watch: &Watch,
    connections: &mut Vec<Option<(TcpStream, usize)>>,
) -> Result<(), Error> {
    while let Ok((stream, _)) = listener.accept() {
        nonblocking(&stream)?;
        stream.set_nodelay(true).map_err(system("setting TCP_NODELAY"))?;
        let place = connections.iter().position(Option::is_none).filter(|_| connections.len() > 4096);
        let place = place.unwrap_or(connections.len());
        watch.add(&stream, place as u64, EventFlags::IN)?;
        if place == connections.len() {
            connections.push(None);
        }
        connections[place] = Some((stream, 0));
    }
    Ok(())
}

struct Client {
    stream: TcpStream,
    sent: VecDeque<Instant>,
    pending: usize,
    answered: u64,
}

pub(super) fn load(
    bytes: usize,
    connections: usize,
    pipeline: usize,
    waiting: Waiting,
    address: SocketAddr,
    seconds: f64,
    fair: bool,
) -> Result<Outcome, Error> {
    let mut watch = Watch::new(waiting)?;
    let alone = connections == 1;
    let mut clients = Vec::with_capacity(connections);
    for word in 0..connections {
        let stream = connect(address)?;
        if !alone || waiting == Waiting::Spinning {
            nonblocking(&stream)?;
        }
        watch.add(&stream, word as u64, EventFlags::IN)?;
        clients.push(Client { stream, sent: VecDeque::new(), pending: 0, answered: 0 });
    }
    let (request, mut buffer) = (vec![5; bytes * pipeline], vec![0; READ]);
    let mut meter = Meter::new(seconds)?;
    for client in &mut clients {
        client.sent.extend((0..pipeline).map(|_| Instant::now()));
        put(&mut client.stream, &request)?;
    }
    let mut words = vec![(0, EventFlags::IN)];
    loop {
        if !alone {
            watch.wait(&mut words)?;
        }
        for &(word, _) in &words {
            exchange(&mut clients[word as usize], &mut buffer, &request, bytes, &mut meter)?;
        }
        if meter.is_over(Instant::now())? {
            break;
        }
    }
    let mut outcome = meter.finish()?;
    if fair {
        outcome.flows = Shares::of(clients.iter().map(|client| client.answered));
    }
    Ok(outcome)
}

fn exchange(
    client: &mut Client,
    buffer: &mut [u8],
    request: &[u8],
    bytes: usize,
    meter: &mut Meter,
) -> Result<(), Error> {
    let length = match take(&mut client.stream, buffer)? {
        Taken::Bytes(length) => length,
        Taken::Nothing => return Ok(()),
        Taken::End => return Err(system("reading")(std::io::Error::other("the server closed a connection"))),
    };
    let now = Instant::now();
    client.pending += length;
    let whole = client.pending / reply_size(bytes);
    client.pending %= reply_size(bytes);
    for sent in client.sent.drain(..whole) {
        meter.record((now - sent).as_nanos() as u64);
    }
    client.answered += if meter.is_open() { whole as u64 } else { 0 };
    client.sent.extend((0..whole).map(|_| now));
    put(&mut client.stream, &request[..whole * bytes])
}
