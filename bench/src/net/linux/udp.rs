//! UDP echo with `recvfrom` and `sendto`.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use super::sockets::{Waiting, would_block};
use crate::error::{Error, system};
use crate::net::measure::{Meter, Outcome};
use crate::net::work::{LARGEST_DATAGRAM, stamp, stamped};

/// After this silence a datagram counts as lost, and another takes its place.
const LOST: Duration = Duration::from_millis(50);

fn socket(waiting: Waiting, address: SocketAddr) -> Result<UdpSocket, Error> {
    let socket = UdpSocket::bind(address).map_err(system("binding a UDP socket"))?;
    socket.set_nonblocking(waiting == Waiting::Spinning).map_err(system("setting O_NONBLOCK"))?;
    Ok(socket)
}

pub(super) fn serve(
    waiting: Waiting,
    address: SocketAddr,
    ready: impl FnOnce(SocketAddr),
) -> Result<(), Error> {
    let socket = socket(waiting, address)?;
    ready(socket.local_addr().map_err(system("reading the socket's address"))?);
    let mut buffer = [0; LARGEST_DATAGRAM];
    loop {
        match socket.recv_from(&mut buffer) {
            Ok((length, peer)) => {
                // A full buffer loses the reply, as UDP may.
                let _ = socket.send_to(&buffer[..length], peer);
            }
            Err(cause) if would_block(&cause) => {}
            Err(cause) => return Err(system("receiving")(cause)),
        }
    }
}

pub(super) fn load(
    bytes: usize,
    window: usize,
    waiting: Waiting,
    address: SocketAddr,
    seconds: f64,
) -> Result<Outcome, Error> {
    let any: SocketAddr = if address.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    let socket = socket(waiting, any)?;
    socket.connect(address).map_err(system("connecting a UDP socket"))?;
    socket.set_read_timeout(Some(LOST)).map_err(system("setting a timeout"))?;
    let mut meter = Meter::new(seconds)?;
    let begun = Instant::now();
    let mut out = vec![0; bytes];
    let mut buffer = [0; LARGEST_DATAGRAM];
    let mut send = |now: Instant| {
        stamp(&mut out, (now - begun).as_nanos() as u64);
        // A refused datagram and a lost one both count as lost.
        let _ = socket.send(&out);
    };
    let mut last_reply = Instant::now();
    for _ in 0..window {
        send(last_reply);
    }
    loop {
        let received = socket.recv(&mut buffer);
        let now = Instant::now();
        if meter.is_over(now)? {
            return meter.finish();
        }
        match received {
            Ok(length) => {
                last_reply = now;
                if let Some(sent) = stamped(&buffer[..length]) {
                    meter.record(((now - begun).as_nanos() as u64).saturating_sub(sent));
                }
                send(now);
            }
            Err(cause) if would_block(&cause) => {
                if now - last_reply > LOST {
                    last_reply = now;
                    for _ in 0..window {
                        send(now);
                    }
                }
            }
            Err(cause) => return Err(system("receiving")(cause)),
        }
    }
}
