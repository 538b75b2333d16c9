//! As much of HTTP/1.1 (RFC 9112) as the examples need: heads, and bodies whose length is
//! announced.

use std::io;

use sietch::TcpStream;

/// The longest head that is taken.
pub(crate) const LONGEST_HEAD: usize = 16 << 10;

/// The head of a request or an answer, with its blank line, and its description of the body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Head {
    /// The bytes as received.
    pub bytes: Vec<u8>,
    /// Bytes of the body.
    pub length: u64,
    /// Whether the connection remains open afterwards.
    pub keep_alive: bool,
}

impl Head {
    /// Reads one, or `None` if the stream ends before its first byte.
    ///
    /// # Errors
    /// The connection broke, or this is no head that we understand.
    pub(crate) async fn read(stream: &mut TcpStream) -> io::Result<Option<Self>> {
        loop {
            let seen = stream.peek(|first, second| [first, second].concat());
            if let Some(end) = seen.windows(4).position(|four| four == b"\r\n\r\n") {
                stream.consume(end + 4);
                return Self::parse(&seen[..end + 4]).map(Some);
            }
            if seen.len() > LONGEST_HEAD {
                return Err(bad("the head is too long"));
            }
            if !stream.more_than(seen.len()).await? {
                return if seen.is_empty() { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
        }
    }

    /// Understands one.
    ///
    /// # Errors
    /// It is none that we understand.
    pub(crate) fn parse(bytes: &[u8]) -> io::Result<Self> {
        let text = std::str::from_utf8(bytes).map_err(|_| bad("the head is not text"))?;
        let mut lines = text.split("\r\n");
        let first = lines.next().unwrap_or_default();
        let mut head = Self { bytes: bytes.to_vec(), length: 0, keep_alive: first.contains("HTTP/1.1") };
        for line in lines {
            let Some((name, value)) = line.split_once(':') else { continue };
            let value = value.trim();
            if name.eq_ignore_ascii_case("content-length") {
                head.length = value.parse().map_err(|_| bad("a content-length that is no number"))?;
            } else if name.eq_ignore_ascii_case("connection") {
                head.keep_alive = !value.eq_ignore_ascii_case("close");
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                return Err(bad("bodies in chunks are not taken"));
            }
        }
        Ok(head)
    }
}

/// The head of an answer whose body has so many bytes; by itself it answers a request for nothing
/// but the head.
pub(crate) fn head(status: &str, length: usize, keep_alive: bool) -> Vec<u8> {
    let connection = if keep_alive { "keep-alive" } else { "close" };
    format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: {connection}\r\n\r\n").into_bytes()
}

/// An answer with a body of text.
pub(crate) fn answer(status: &str, body: &[u8], keep_alive: bool) -> Vec<u8> {
    let mut bytes = head(status, body.len(), keep_alive);
    bytes.extend_from_slice(body);
    bytes
}

fn bad(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
