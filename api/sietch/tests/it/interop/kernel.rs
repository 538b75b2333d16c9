//! The kernel's side: plain sockets. Every wait has a limit.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType, sockopt};

use super::meeting::{Conditions, Family, PATIENCE};
use super::pattern::Pattern;
use super::services::TRANSFER;

/// The start of a transfer: the bytes that the client sends, and the bytes that it requests.
pub(crate) fn head(up: u64, down: u64) -> [u8; 16] {
    let mut head = [0; 16];
    head[..8].copy_from_slice(&up.to_be_bytes());
    head[8..].copy_from_slice(&down.to_be_bytes());
    head
}

/// The numbers in a head.
pub(crate) fn counts(head: &[u8; 16]) -> (u64, u64) {
    let both = u128::from_be_bytes(*head);
    ((both >> 64) as u64, both as u64)
}

/// A socket with the options of the conditions, not connected.
fn socket(conditions: &Conditions) -> io::Result<rustix::fd::OwnedFd> {
    let family = match conditions.family {
        Family::V4 => AddressFamily::INET,
        Family::V6 => AddressFamily::INET6,
    };
    let socket = rustix::net::socket(family, SocketType::STREAM, None)?;
    sockopt::set_tcp_congestion(&socket, conditions.congestion)?;
    if let Some(bytes) = conditions.kernel_buffer {
        sockopt::set_socket_recv_buffer_size(&socket, bytes)?;
    }
    Ok(socket)
}

fn patient(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// A connection to `port` of Sietch, from `source`.
pub(crate) fn connect_from(source: IpAddr, port: u16, conditions: &Conditions) -> io::Result<TcpStream> {
    let socket = socket(conditions)?;
    if source != conditions.family.kernel() {
        rustix::net::bind(&socket, &SocketAddr::new(source, 0))?;
    }
    rustix::net::connect(&socket, &SocketAddr::new(conditions.family.sietch(), port))?;
    patient(socket.into())
}

/// A connection to `port` of Sietch. A bad path may lose every ARP request; then it tries again.
pub(crate) fn connect(port: u16, conditions: &Conditions) -> io::Result<TcpStream> {
    for _ in 0..5 {
        match connect_from(conditions.family.kernel(), port, conditions) {
            Err(error) if conditions.link.is_some() && error.kind() == io::ErrorKind::HostUnreachable => {}
            outcome => return outcome,
        }
    }
    Err(io::ErrorKind::HostUnreachable.into())
}

/// A listening port of the kernel's.
pub(crate) fn listen(port: u16, conditions: &Conditions) -> io::Result<TcpListener> {
    let socket = socket(conditions)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &SocketAddr::new(conditions.family.kernel(), port))?;
    rustix::net::listen(&socket, 4096)?;
    Ok(socket.into())
}

/// The next connection, within [`PATIENCE`].
pub(crate) fn accept(listener: &TcpListener) -> io::Result<TcpStream> {
    let deadline = Instant::now() + PATIENCE;
    listener.set_nonblocking(true)?;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                return patient(stream);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(error),
        }
    }
}

fn send(mut stream: TcpStream, (total, pattern): (u64, Pattern)) -> io::Result<()> {
    let (mut buffer, mut sent) = (vec![0; 64 << 10], 0);
    while sent < total {
        let length = (total - sent).min(buffer.len() as u64) as usize;
        pattern.fill(sent, &mut buffer[..length]);
        stream.write_all(&buffer[..length])?;
        sent += length as u64;
    }
    stream.shutdown(Shutdown::Write)
}

/// Reads to the end; fails unless it is what was expected.
pub(crate) fn receive(mut stream: &TcpStream, (total, pattern): (u64, Pattern)) -> io::Result<()> {
    let (mut buffer, mut got) = (vec![0; 64 << 10], 0);
    loop {
        let count = match stream.read(&mut buffer) {
            Ok(0) => break,
            // A wait with a limit is interrupted when the whole machine pauses for a moment.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            outcome => outcome?,
        };
        pattern.check(got, &buffer[..count]);
        got += count as u64;
    }
    assert_eq!(got, total, "the stream ended early, or late");
    Ok(())
}

/// Sends and receives at once, so many bytes of these patterns each.
fn transfer(stream: TcpStream, out: (u64, Pattern), expect: (u64, Pattern)) -> io::Result<()> {
    let writing = stream.try_clone()?;
    let writer = std::thread::spawn(move || send(writing, out));
    let received = receive(&stream, expect);
    writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)).and(received)
}

/// A transfer with Sietch's service.
pub(crate) fn transfer_with_sietch(conditions: &Conditions, up: u64, down: u64) {
    let mut stream = connect(TRANSFER, conditions).expect("Sietch accepts");
    stream.write_all(&head(up, down)).expect("the connection is open");
    transfer(stream, (up, Pattern(1)), (down, Pattern(2))).expect("Sietch continues to the end");
}

/// A transfer that Sietch begins.
pub(crate) fn accept_transfer(listener: &TcpListener) {
    let mut stream = accept(listener).expect("Sietch connects");
    let mut bytes = [0; 16];
    stream.read_exact(&mut bytes).expect("the head arrives");
    let (up, down) = counts(&bytes);
    transfer(stream, (down, Pattern(2)), (up, Pattern(1))).expect("Sietch continues to the end");
}

/// Requests 32 bytes and checks the answer.
pub(crate) fn ask(stream: &mut TcpStream, number: u32) -> io::Result<()> {
    let request = [number.to_be_bytes(); 8].concat();
    let mut answer = [0; 32];
    stream.write_all(&request)?;
    stream.read_exact(&mut answer)?;
    assert_eq!(answer, *request, "another one's answer");
    Ok(())
}

/// Closing such a stream resets the connection.
pub(crate) fn reset_at_close(stream: &TcpStream) {
    sockopt::set_socket_linger(stream, Some(Duration::ZERO)).expect("a socket can");
}
