//! An HTTP load balancer: passes requests to its backends in turn, over connections kept alive on
//! both sides. A backend that fails is left out until it answers a health check again.
//!
//! `cargo run --release -p sietch --example http_balancer -- --vnic NAME --backend 10.77.0.3:80
//! --backend 10.77.0.4:80 [--port 80]`
#![forbid(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use sietch::{Arguments, Net, Runtime, TcpStream};

#[path = "http/message.rs"]
mod message;
use message::Head;

/// How long a backend may take to accept a connection, or to answer a health check.
const PATIENCE: Duration = Duration::from_secs(1);

/// Between two health checks.
const CHECK_EVERY: Duration = Duration::from_secs(2);

struct Backend {
    address: SocketAddr,
    healthy: Cell<bool>,
    /// Connections that wait for the next request.
    idle: RefCell<Vec<TcpStream>>,
}

struct Backends {
    all: Vec<Backend>,
    position: Cell<usize>,
}

impl Backends {
    /// The next healthy one.
    fn next(&self) -> Option<&Backend> {
        (0..self.all.len()).find_map(|_| {
            let position = self.position.get();
            self.position.set((position + 1) % self.all.len());
            Some(&self.all[position]).filter(|backend| backend.healthy.get())
        })
    }
}

/// Balances for ever.
pub(crate) async fn serve(net: Net, port: u16, addresses: Vec<SocketAddr>) -> io::Result<()> {
    let backend = |address| Backend { address, healthy: Cell::new(true), idle: RefCell::default() };
    let all = addresses.into_iter().map(backend).collect();
    let backends = Rc::new(Backends { all, position: Cell::new(0) });
    net.spawn(check(net.clone(), Rc::clone(&backends)));
    let mut listener = net.listen(port, 1024)?;
    loop {
        let (client, _) = listener.accept().await?;
        let (handle, backends) = (net.clone(), Rc::clone(&backends));
        // A client that breaks off costs itself its answer.
        net.spawn(async move { converse(&handle, client, &backends).await.ok() });
    }
}

/// Checks whether the failed backends are available again.
async fn check(net: Net, backends: Rc<Backends>) {
    let mut ticks = net.interval(CHECK_EVERY);
    loop {
        ticks.tick().await;
        for backend in backends.all.iter().filter(|backend| !backend.healthy.get()) {
            let ask = async {
                let mut stream = net.connect(backend.address).await?;
                stream.write_all(b"GET / HTTP/1.1\r\nHost: health\r\nConnection: close\r\n\r\n").await?;
                Head::read(&mut stream).await
            };
            backend.healthy.set(matches!(net.timeout(PATIENCE, ask).await, Ok(Ok(Some(_)))));
        }
    }
}

async fn converse(net: &Net, mut client: TcpStream, backends: &Backends) -> io::Result<()> {
    while let Some(request) = Head::read(&mut client).await? {
        if request.length > 0 {
            let sorry =
                message::answer("501 Not Implemented", b"requests with bodies are not passed on\n", false);
            return client.write_all(&sorry).await;
        }
        let Some(keep_alive) = forward(net, &mut client, &request, backends).await? else {
            let sorry = message::answer("503 Service Unavailable", b"no backend answers\n", false);
            return client.write_all(&sorry).await;
        };
        if !(keep_alive && request.keep_alive) {
            break;
        }
    }
    Ok(())
}

/// Forwards one request and returns its answer. Returns whether the connection continues; `None` if
/// no backend answers.
async fn forward(
    net: &Net,
    client: &mut TcpStream,
    request: &Head,
    backends: &Backends,
) -> io::Result<Option<bool>> {
    // A connection kept alive may have been closed meanwhile: each backend gets a second chance
    // with a fresh one.
    for _ in 0..2 * backends.all.len() {
        let Some(backend) = backends.next() else { return Ok(None) };
        let idle = backend.idle.borrow_mut().pop();
        let fresh = idle.is_none();
        let asked = ask(net, idle, backend.address, request).await;
        let Ok((mut stream, answer)) = asked else {
            backend.healthy.set(!fresh);
            continue;
        };
        client.write_all(&answer.bytes).await?;
        relay(&mut stream, client, answer.length).await?;
        if answer.keep_alive {
            backend.idle.borrow_mut().push(stream);
        }
        return Ok(Some(answer.keep_alive));
    }
    Ok(None)
}

/// Sends a request without a body over `idle` or a new connection, and waits for the head of the
/// answer.
async fn ask(
    net: &Net,
    idle: Option<TcpStream>,
    backend: SocketAddr,
    request: &Head,
) -> io::Result<(TcpStream, Head)> {
    let mut stream = match idle {
        Some(stream) => stream,
        None => net.timeout(PATIENCE, net.connect(backend)).await??,
    };
    stream.write_all(&request.bytes).await?;
    let answer = Head::read(&mut stream).await?.ok_or(io::ErrorKind::UnexpectedEof)?;
    Ok((stream, answer))
}

/// Passes the next `length` bytes of `from` on to `to`, in the buffers in which they arrived.
async fn relay(from: &mut TcpStream, to: &mut TcpStream, mut length: u64) -> io::Result<()> {
    while length > 0 {
        let buffer = from.read_zero_copy().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        if buffer.len() as u64 > length {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a backend sent more than it announced"));
        }
        length -= buffer.len() as u64;
        let (first, second) = buffer.into_shared();
        to.write_zero_copy(first).await?;
        to.write_zero_copy(second).await?;
    }
    Ok(())
}

#[allow(dead_code, reason = "the tests take this file as a module")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::from_env()?;
    let backends = arguments.values("--backend")?;
    if backends.is_empty() {
        return Err(
            "say where to pass requests: --backend ADDRESS:PORT, as often as there are backends".into()
        );
    }
    let port = arguments.value("--port")?.unwrap_or(80);
    Runtime::open(&arguments)?.run(|net| serve(net, port, backends))??;
    Ok(())
}
