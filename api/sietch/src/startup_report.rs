//! The startup report: one line of JSON with which an application announces that it serves.
//!
//! The application writes the line once, after recovery and after its sockets answer. The process
//! that started it reads up to the first newline and closes the pipe.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use serde::{Deserialize, Serialize};

/// The longest line that is read, in bytes: a peer that writes more is no Sietch application.
pub const MAX_LINE: usize = 16 * 1024;

/// How the application serves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StartupReport {
    /// The data path: `af_xdp`, `shm` or `linux`.
    pub network: String,
    /// The reason why no VNIC is used, where one was required or possible.
    pub reason: Option<String>,
    /// Where it answers on its VNIC.
    pub vnic: Option<SocketAddr>,
    /// The same over IPv6.
    pub vnic6: Option<SocketAddr>,
    /// Where it answers on kernel sockets.
    pub kernel: Option<SocketAddr>,
    /// How blocks reach the disk: `io_uring` or `pwritev2`; empty without a log.
    pub storage: String,
    /// When a reply to a write may leave: `always`, `interval`, `never`, or `none` if there is no
    /// log.
    pub durability: String,
    /// Keys there after recovery.
    pub keys: u64,
}

impl StartupReport {
    /// Writes the line. A closed pipe is no error: the process that started the application has
    /// ended or does not read it.
    ///
    /// # Errors
    /// The descriptor cannot be written to.
    pub fn announce(&self, to: impl AsFd) -> io::Result<()> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        let mut rest = line.as_slice();
        while !rest.is_empty() {
            match rustix::io::write(&to, rest) {
                Ok(0) | Err(rustix::io::Errno::PIPE) => return Ok(()),
                Ok(count) => rest = &rest[count..],
                Err(rustix::io::Errno::INTR) => {}
                Err(cause) => return Err(cause.into()),
            }
        }
        Ok(())
    }

    /// Reads the line back.
    ///
    /// # Errors
    /// It is too long, or not such a line.
    pub fn parse(line: &str) -> io::Result<Self> {
        if line.len() > MAX_LINE {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "readiness line is too long"));
        }
        Ok(serde_json::from_str(line)?)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn an_announced_report_is_parsed() {
        let ready = StartupReport {
            network: "af_xdp".into(),
            vnic: "10.83.0.2:6379".parse().ok(),
            durability: "always".into(),
            keys: 12,
            ..StartupReport::default()
        };
        let (mut reader, writer) = std::io::pipe().expect("pipe");
        ready.announce(&writer).expect("announce");
        drop(writer);
        let mut text = String::new();
        reader.read_to_string(&mut text).expect("read");
        assert_eq!(text.lines().count(), 1);
        assert_eq!(StartupReport::parse(text.trim_end()).expect("parse"), ready);
    }

    #[test]
    fn a_closed_pipe_is_no_error_and_an_invalid_line_is_one() {
        let (reader, writer) = std::io::pipe().expect("pipe");
        drop(reader);
        StartupReport::default().announce(&writer).expect("ignored");
        assert!(StartupReport::parse("hello").is_err());
        assert!(StartupReport::parse(&" ".repeat(MAX_LINE + 1)).is_err());
        // A later version may say more.
        assert!(StartupReport::parse("{\"network\":\"linux\",\"news\":1}").is_ok());
    }
}
