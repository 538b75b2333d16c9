//! Bytes in one direction, as fast as possible.

use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use rustix::event::epoll::EventFlags;

use super::sockets::{LISTENER, Taken, Waiting, Watch, connect, listen, nonblocking, take, would_block};
use crate::error::{Error, system};
use crate::net::measure::{Meter, Outcome};
use crate::net::work::BULK_WRITE;

pub(super) fn serve(
    waiting: Waiting,
    address: SocketAddr,
    ready: impl FnOnce(SocketAddr),
) -> Result<(), Error> {
    let (listener, mut watch) = listen(waiting, address, ready)?;
    let mut connections: Vec<Option<(TcpStream, usize)>> = Vec::new();
    let (mut words, mut buffer) = (Vec::new(), vec![0; BULK_WRITE]);
    loop {
        watch.wait(&mut words)?;
        for &(word, _) in &words {
            if word == LISTENER {
                super::rpc::accept(&listener, &watch, &mut connections)?;
            } else if let Some((stream, _)) = &mut connections[word as usize]
                && matches!(take(stream, &mut buffer)?, Taken::End)
            {
                connections[word as usize] = None;
            }
        }
    }
}

pub(super) fn load(
    flows: usize,
    waiting: Waiting,
    address: SocketAddr,
    seconds: f64,
) -> Result<Outcome, Error> {
    let mut watch = Watch::new(waiting)?;
    let mut streams = Vec::with_capacity(flows);
    for word in 0..flows {
        let stream = connect(address)?;
        if flows > 1 || waiting == Waiting::Spinning {
            nonblocking(&stream)?;
            watch.add(&stream, word as u64, EventFlags::OUT)?;
        }
        streams.push(stream);
    }
    let data = vec![3; BULK_WRITE];
    let mut meter = Meter::new(seconds)?;
    let mut words = vec![(0, EventFlags::OUT)];
    loop {
        if flows > 1 {
            watch.wait(&mut words)?;
        }
        for &(word, _) in &words {
            use std::io::Write as _;
            match streams[word as usize].write(&data) {
                Ok(length) => meter.count(length as u64),
                Err(cause) if would_block(&cause) => {}
                Err(cause) => return Err(system("writing")(cause)),
            }
        }
        if meter.is_over(Instant::now())? {
            return meter.finish();
        }
    }
}
