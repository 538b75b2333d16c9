//! A connection to a server that speaks Redis' protocol, over TCP or a Unix socket.

use std::io::{self, Read, Write};

use crate::reply::Reply;

/// Bytes of a read.
const CHUNK: usize = 1 << 16;

/// A stream, and the bytes that were read beyond the last reply.
pub struct Connection<S> {
    stream: S,
    bytes: Vec<u8>,
}

/// A command as RESP.
#[must_use]
pub fn encode(command: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", command.len()).into_bytes();
    for word in command {
        let word = word.as_ref();
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// The words of a line that has no spaces within words.
#[must_use]
pub fn words(line: &str) -> Vec<Vec<u8>> {
    line.split_whitespace().map(|word| word.as_bytes().to_vec()).collect()
}

impl<S: Read + Write> Connection<S> {
    /// A connection over a stream from which nothing was read yet.
    pub fn new(stream: S) -> Self {
        Self { stream, bytes: Vec::new() }
    }

    /// The stream itself.
    pub fn stream(&mut self) -> &mut S {
        &mut self.stream
    }

    /// Sends a command.
    ///
    /// # Errors
    /// Those of the stream.
    pub fn send(&mut self, command: &[impl AsRef<[u8]>]) -> io::Result<()> {
        self.stream.write_all(&encode(command))
    }

    /// Waits for the next reply.
    ///
    /// # Errors
    /// Those of the stream, its time-out among them; `UnexpectedEof` if it ends.
    pub fn receive(&mut self) -> io::Result<Reply> {
        loop {
            if let Some((reply, rest)) = Reply::parse(&self.bytes) {
                self.bytes.drain(..self.bytes.len() - rest);
                return Ok(reply);
            }
            let there = self.bytes.len();
            self.bytes.resize(there + CHUNK, 0);
            let count = self.stream.read(&mut self.bytes[there..]);
            self.bytes.truncate(there + *count.as_ref().unwrap_or(&0));
            if count? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Sends all commands in one piece and waits for their replies.
    ///
    /// # Errors
    /// As [`Connection::receive`].
    pub fn request_all(&mut self, commands: &[&[Vec<u8>]]) -> io::Result<Vec<Reply>> {
        let request: Vec<u8> = commands.iter().flat_map(|command| encode(command)).collect();
        self.stream.write_all(&request)?;
        commands.iter().map(|_| self.receive()).collect()
    }

    /// Sends one command and waits for its reply.
    ///
    /// # Errors
    /// As [`Connection::receive`].
    pub fn request(&mut self, command: &[impl AsRef<[u8]>]) -> io::Result<Reply> {
        self.send(command)?;
        self.receive()
    }
}
