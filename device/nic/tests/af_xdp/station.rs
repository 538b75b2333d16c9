//! The least that a station must do: send a UDP datagram, and answer one.

use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sietch_nic::af_xdp::{self, CreateError, Granted, Queue, XskLayout};
use sietch_nic::{Frame, NicQueue};

use crate::namespace::{self, KERNEL_ADDRESS, KERNEL_MAC, QUEUE_ADDRESS, QUEUE_END, QUEUE_MAC};
use crate::redirect::{self, Redirect};

/// The MTU of a fresh veth pair.
pub(crate) const MTU: usize = 1500;
/// The port on which the queue's station answers.
pub(crate) const ECHO_PORT: u16 = 7;
/// Ethernet, IPv4 and UDP headers.
pub(crate) const HEADERS: usize = 14 + 20 + 8;
/// How long a test waits for what must come: the limit makes a hang a failure.
const PATIENCE: Duration = Duration::from_secs(20);

/// A granted queue for the veth pair of this namespace, with the program that feeds it.
pub(crate) fn granted() -> (Granted, Redirect) {
    let ifindex = namespace::ifindex(QUEUE_END);
    let layout = XskLayout::for_mtu(ifindex, 0, MTU).expect("an ordinary MTU");
    let granted = af_xdp::create(layout).expect("root makes a queue on its own interface");
    let redirect = redirect::attach(ifindex, granted.socket.as_fd()).expect("root attaches a program");
    (granted, redirect)
}

/// The same, opened.
pub(crate) fn opened() -> (Queue, Redirect) {
    let (granted, redirect) = granted();
    (open(granted, MTU).expect("a fresh grant"), redirect)
}

/// Opens a queue and then binds it, as the holder and the control plane do.
pub(crate) fn open(granted: Granted, mtu: usize) -> Result<Queue, Box<dyn std::error::Error>> {
    let socket = granted.socket.try_clone()?;
    let layout = granted.layout;
    let queue = Queue::open(granted, QUEUE_MAC, mtu)?;
    // The kernel releases the queue of a closed socket later, by a work queue.
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match af_xdp::bind_queue(socket.as_fd(), &layout) {
            Err(CreateError::Busy { .. }) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            outcome => return Ok(outcome.map(|()| queue)?),
        }
    }
}

/// A granted queue for frames of `mtu` bytes.
pub(crate) fn granted_with(mtu: usize) -> Result<(Granted, Redirect), Box<dyn std::error::Error>> {
    granted_of(XskLayout::for_mtu(namespace::ifindex(QUEUE_END), 0, mtu)?)
}

/// The same, of this layout.
pub(crate) fn granted_of(layout: XskLayout) -> Result<(Granted, Redirect), Box<dyn std::error::Error>> {
    let granted = af_xdp::create(layout)?;
    let redirect = redirect::attach(layout.ifindex, granted.socket.as_fd())?;
    Ok((granted, redirect))
}

/// The same, opened.
pub(crate) fn opened_with(mtu: usize) -> Result<(Queue, Redirect), Box<dyn std::error::Error>> {
    let (granted, redirect) = granted_with(mtu)?;
    Ok((open(granted, mtu)?, redirect))
}

/// A kernel socket on the other end, which fails a test rather than hang it.
pub(crate) fn kernel_socket() -> UdpSocket {
    let socket = UdpSocket::bind((KERNEL_ADDRESS, 0)).expect("the address is the kernel end's");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout that is not zero");
    socket
}

/// Waits until frames can be received, or the device reports an error. False after [`PATIENCE`].
pub(crate) fn wait(queue: &impl AsFd) -> bool {
    let mut fds = [PollFd::new(queue, PollFlags::IN)];
    let patience = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    poll(&mut fds, Some(&patience)).expect("poll of a socket") == 1
}

/// Sends a UDP datagram from the queue's station to the kernel's `port`. False if there was no
/// buffer or no slot.
pub(crate) fn transmit(queue: &mut Queue, port: u16, payload: &[u8]) -> bool {
    let Some(mut frame) = queue.allocate(HEADERS + payload.len()) else { return false };
    write_datagram(queue.bytes_mut(&mut frame), port, payload);
    match queue.transmit(frame) {
        Ok(()) => true,
        Err(error) => {
            queue.release(error.into_frame());
            false
        }
    }
}

/// Fills `bytes` with a whole frame; the UDP checksum is zero ("none").
pub(crate) fn write_datagram(bytes: &mut [u8], port: u16, payload: &[u8]) {
    bytes.fill(0);
    bytes[0..6].copy_from_slice(&KERNEL_MAC);
    bytes[6..12].copy_from_slice(&QUEUE_MAC);
    bytes[12..14].copy_from_slice(&0x0800_u16.to_be_bytes());
    let ip = &mut bytes[14..];
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&((28 + payload.len()) as u16).to_be_bytes());
    ip[8] = 64;
    ip[9] = 17;
    ip[12..16].copy_from_slice(&QUEUE_ADDRESS.octets());
    ip[16..20].copy_from_slice(&KERNEL_ADDRESS.octets());
    let sum: u32 = ip[..20].chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    ip[10..12].copy_from_slice(&(!((folded & 0xffff) + (folded >> 16)) as u16).to_be_bytes());
    ip[20..22].copy_from_slice(&ECHO_PORT.to_be_bytes());
    ip[22..24].copy_from_slice(&port.to_be_bytes());
    ip[24..26].copy_from_slice(&((8 + payload.len()) as u16).to_be_bytes());
    ip[28..].copy_from_slice(payload);
}

/// Answers every datagram for [`ECHO_PORT`] that has arrived, in its own buffer, and returns how
/// many.
pub(crate) fn echo(queue: &mut Queue, frames: &mut Vec<Frame>) -> usize {
    queue.receive(frames, 256);
    let mut answered = 0;
    for mut frame in frames.drain(..) {
        let bytes = queue.bytes_mut(&mut frame);
        if !is_for_echo(bytes) {
            queue.release(frame);
            continue;
        }
        turn_around(bytes);
        queue.transmit(frame).expect("the transmit ring is deeper than a batch");
        answered += 1;
    }
    queue.flush().expect("the interface is up");
    answered
}

fn is_for_echo(bytes: &[u8]) -> bool {
    bytes.len() >= HEADERS
        && bytes[12..14] == [8, 0]
        && bytes[23] == 17
        && Ipv4Addr::from([bytes[30], bytes[31], bytes[32], bytes[33]]) == QUEUE_ADDRESS
        && bytes[36..38] == ECHO_PORT.to_be_bytes()
}

fn turn_around(bytes: &mut [u8]) {
    for (left, right, width) in [(0, 6, 6), (26, 30, 4), (34, 36, 2)] {
        for byte in 0..width {
            bytes.swap(left + byte, right + byte);
        }
    }
    // The kernel may have left the checksum to a device that does not exist.
    bytes[40..42].fill(0);
}
