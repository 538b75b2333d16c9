//! What Sietch offers at every meeting, each at a port of its own, and its side of a transfer as a
//! client.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use sietch::{Net, TcpStream};

use super::meeting::Family;
use super::pattern::Pattern;
use super::{http_server, kernel};

/// Two counts of bytes (to be received, to be sent), then a transfer both ways at once.
pub(crate) const TRANSFER: u16 = 7000;
/// Sends back received bytes, until the other side is done.
pub(crate) const ECHO: u16 = 7001;
/// Answers 32 bytes with the same, and closes first.
pub(crate) const ONCE: u16 = 7002;
/// Sends without an end.
pub(crate) const ENDLESS: u16 = 7003;
/// Sends a byte, waits as long as [`PAUSE`], closes its side; reads to the end.
pub(crate) const CLOSING: u16 = 7004;
/// Closes its side at once; reads a count of bytes, and so many of the pattern.
pub(crate) const LISTENER: u16 = 7005;
/// Files by HTTP.
pub(crate) const HTTP: u16 = 80;
/// Passes everything on to the same port of the kernel.
pub(crate) const FORWARDER: u16 = 5201;
/// A port without a listener.
pub(crate) const NO_LISTENER: u16 = 9;

/// See [`CLOSING`].
pub(crate) const PAUSE: Duration = Duration::from_millis(30);

/// The large file of the HTTP service.
pub(crate) const LARGE_FILE: u64 = 8_000_000;

/// Accepts and lets `converse` answer, for ever. A client that disconnects loses only its own
/// answer.
fn offer<F>(net: &Net, port: u16, converse: impl Fn(Net, TcpStream) -> F + 'static)
where
    F: Future<Output = io::Result<()>> + 'static,
{
    let mut listener = net.listen(port, 4096).expect("the port is free");
    let handle = net.clone();
    net.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let task = converse(handle.clone(), stream);
            handle.spawn(async move { task.await.ok() });
        }
    });
}

/// All of them.
pub(crate) async fn all(net: Net, family: Family) {
    offer(&net, TRANSFER, |net, mut stream| async move {
        let mut head = [0; 16];
        stream.read_exact(&mut head).await?;
        let (up, down) = kernel::counts(&head);
        transfer(&net, stream, (down, Pattern(2)), (up, Pattern(1))).await
    });
    offer(&net, ECHO, |_, stream| relay_back(stream));
    offer(&net, ONCE, |_, mut stream| async move {
        let mut request = [0; 32];
        stream.read_exact(&mut request).await?;
        stream.write_all(&request).await
    });
    offer(&net, ENDLESS, |_, mut stream| async move {
        loop {
            stream.write_all(&[7; 4096]).await?;
        }
    });
    offer(&net, CLOSING, |net, mut stream| async move {
        stream.write_all(b"r").await?;
        net.sleep(PAUSE).await;
        stream.shutdown();
        let mut rest = [0; 64];
        while stream.read(&mut rest).await? > 0 {}
        Ok(())
    });
    offer(&net, LISTENER, |_, mut stream| async move {
        stream.write_all(b"I listen").await?;
        stream.shutdown();
        let mut head = [0; 8];
        stream.read_exact(&mut head).await?;
        let got = swallow(&mut stream, Pattern(1)).await?;
        assert_eq!(got, u64::from_be_bytes(head));
        Ok(())
    });
    offer(&net, FORWARDER, move |net, client| async move {
        let server = net.connect(SocketAddr::new(family.kernel(), FORWARDER)).await?;
        pass_on(&net, client, server).await
    });
    let mut large = vec![0; LARGE_FILE as usize];
    Pattern(3).fill(0, &mut large);
    let files = [("/index.html", b"welcome\n".to_vec()), ("/large", large)];
    let files = files.into_iter().map(|(name, bytes)| (name.to_owned(), bytes.into())).collect();
    http_server::serve(net, HTTP, files).await.expect("the port is free");
}

async fn relay_back(mut stream: TcpStream) -> io::Result<()> {
    let mut buffer = vec![0; 16 << 10];
    loop {
        let count = stream.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        stream.write_all(&buffer[..count]).await?;
    }
}

/// Both ways, each with its own end.
async fn pass_on(net: &Net, one: TcpStream, other: TcpStream) -> io::Result<()> {
    let ((mut from_one, mut to_one), (mut from_other, mut to_other)) = (one.split(), other.split());
    let there = net.spawn(async move {
        let mut buffer = vec![0; 64 << 10];
        loop {
            match from_one.read(&mut buffer).await? {
                0 => return Ok::<(), io::Error>(()),
                count => to_other.write_all(&buffer[..count]).await?,
            }
        }
    });
    let mut buffer = vec![0; 64 << 10];
    loop {
        match from_other.read(&mut buffer).await? {
            0 => break,
            count => to_one.write_all(&buffer[..count]).await?,
        }
    }
    drop(to_one);
    there.await.map_err(io::Error::other)?
}

/// Reads to the end; returns the number of bytes.
async fn swallow(stream: &mut TcpStream, pattern: Pattern) -> io::Result<u64> {
    let (mut buffer, mut got) = (vec![0; 64 << 10], 0);
    loop {
        let count = stream.read(&mut buffer).await?;
        if count == 0 {
            return Ok(got);
        }
        pattern.check(got, &buffer[..count]);
        got += count as u64;
    }
}

/// Sends and receives at once, so many bytes of these patterns each.
async fn transfer(
    net: &Net,
    stream: TcpStream,
    send: (u64, Pattern),
    expect: (u64, Pattern),
) -> io::Result<()> {
    let (mut from, mut to) = stream.split();
    let writer = net.spawn(async move {
        let (mut buffer, mut sent) = (vec![0; 32 << 10], 0);
        while sent < send.0 {
            let length = (send.0 - sent).min(buffer.len() as u64) as usize;
            send.1.fill(sent, &mut buffer[..length]);
            to.write_all(&buffer[..length]).await?;
            sent += length as u64;
        }
        Ok::<(), io::Error>(())
    });
    let (mut buffer, mut got) = (vec![0; 64 << 10], 0);
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            break;
        }
        expect.1.check(got, &buffer[..count]);
        got += count as u64;
    }
    assert_eq!(got, expect.0, "the stream ended early, or late");
    writer.await.map_err(io::Error::other)?
}

/// Connects to a port on which a kernel socket is about to listen. A bad path may lose every ARP
/// request, and the host is unreachable then: tries again.
pub(crate) async fn connect(net: &Net, family: Family, port: u16) -> TcpStream {
    loop {
        match net.connect(SocketAddr::new(family.kernel(), port)).await {
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::ConnectionRefused | io::ErrorKind::HostUnreachable
                ) =>
            {
                net.sleep(Duration::from_millis(10)).await;
            }
            outcome => return outcome.expect("the kernel accepts"),
        }
    }
}

/// Connects to the kernel's side of [`kernel::accept_transfer`].
pub(crate) async fn transfer_with_kernel(net: Net, family: Family, port: u16, up: u64, down: u64) {
    let mut stream = connect(&net, family, port).await;
    stream.write_all(&kernel::head(up, down)).await.expect("the connection is open");
    transfer(&net, stream, (up, Pattern(1)), (down, Pattern(2)))
        .await
        .expect("the kernel continues to the end");
}
