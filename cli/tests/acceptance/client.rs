//! A small blocking client, and a load that checks every reply.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sietch_kv_programs::connection::Connection;
pub(crate) use sietch_kv_programs::connection::encode;
pub(crate) use sietch_kv_programs::reply::Reply;

/// A connection.
pub(crate) struct Client {
    connection: Connection<TcpStream>,
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> io::Result<Self> {
        Self::connect_with(address, Duration::from_secs(10))
    }

    /// With a limit for connecting and for each reply.
    pub(crate) fn connect_with(address: SocketAddr, patience: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, patience)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        Ok(Self { connection: Connection::new(stream) })
    }

    pub(crate) fn send(&mut self, arguments: &[&[u8]]) -> io::Result<()> {
        self.connection.send(arguments)
    }

    pub(crate) fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.connection.stream().write_all(bytes)
    }

    pub(crate) fn receive(&mut self) -> io::Result<Reply> {
        self.connection.receive()
    }

    pub(crate) fn command(&mut self, arguments: &[&[u8]]) -> io::Result<Reply> {
        self.connection.request(arguments)
    }

    /// Words separated by blanks.
    pub(crate) fn request(&mut self, words: &str) -> io::Result<Reply> {
        self.command(&words.split(' ').map(str::as_bytes).collect::<Vec<_>>())
    }

    /// Reads until the peer closes; returns whether it does.
    pub(crate) fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        match self.connection.stream().read_to_end(&mut rest) {
            Ok(_) => true,
            Err(cause) => cause.kind() == io::ErrorKind::ConnectionReset,
        }
    }
}

/// Whether the store answers at `address`.
pub(crate) fn answers(address: SocketAddr) -> bool {
    Client::connect_with(address, Duration::from_secs(2))
        .and_then(|mut client| client.request("PING"))
        .is_ok()
}

/// Ends the threads of a test, also when the test fails.
#[derive(Default)]
pub(crate) struct Stop(AtomicBool);

impl Stop {
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Sets it when dropped.
    pub(crate) fn guard(&self) -> impl Drop + '_ {
        struct Guard<'a>(&'a Stop);
        impl Drop for Guard<'_> {
            fn drop(&mut self) {
                self.0.set();
            }
        }
        Guard(self)
    }
}

/// The measurements of a run of [`load`].
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub replies: u64,
    pub longest: Duration,
}

/// One connection that writes and reads back until it is stopped. An error, or a wrong value, fails
/// the test.
pub(crate) fn load(address: SocketAddr, name: &str, stop: &Stop) -> Seen {
    let mut client = Client::connect(address).expect("connect");
    let mut seen = Seen::default();
    let key = format!("load:{name}");
    let mut round = 0_u64;
    while !stop.is_set() {
        round += 1;
        let value = round.to_string();
        let start = Instant::now();
        let set = client.command(&[b"SET", key.as_bytes(), value.as_bytes()]);
        assert_eq!(set.unwrap_or_else(|cause| panic!("{name}: {cause}")), Reply::ok());
        let get = client.command(&[b"GET", key.as_bytes()]);
        assert_eq!(get.unwrap_or_else(|cause| panic!("{name}: {cause}")).number(), round);
        seen.longest = seen.longest.max(start.elapsed());
        seen.replies += 2;
    }
    seen
}
