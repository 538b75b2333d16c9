//! A connection to a server's kernel socket, beside the load: for INFO and compaction.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::error::{Error, system};

/// Between two polls of a compaction's state: a few iterations of a busy server.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// How long a compaction may take: a hundred times as long as that of a million keys.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A connection for single commands.
pub(super) struct ControlConnection(BufReader<TcpStream>);

impl ControlConnection {
    /// Connects.
    pub(super) fn connect(server: SocketAddr) -> Result<Self, Error> {
        let stream = TcpStream::connect(server).map_err(system("connecting to a server"))?;
        stream.set_read_timeout(Some(TIMEOUT)).map_err(system("connecting to a server"))?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Sends a line and returns the reply: a status, or the bytes of a bulk.
    pub(super) fn send(&mut self, words: &str) -> Result<String, Error> {
        let sending = || system("sending a command to a server");
        self.0.get_mut().write_all(format!("{words}\r\n").as_bytes()).map_err(sending())?;
        let mut line = String::new();
        self.0.read_line(&mut line).map_err(sending())?;
        let Some(length) = line.strip_prefix('$') else { return Ok(line) };
        let length: usize = length.trim().parse().unwrap_or(0);
        let mut bytes = vec![0; length + 2];
        self.0.read_exact(&mut bytes).map_err(sending())?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// A number among the fields of INFO persistence.
    pub(super) fn field(&mut self, name: &str) -> Result<f64, Error> {
        let text = self.send("INFO persistence")?;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.and_then(|value| value.trim().parse().ok()).ok_or_else(|| Error::Program {
            program: "INFO persistence".into(),
            what: format!("has no number {name}"),
            fix: "use redis-server 7.0 and this Sietch",
        })
    }

    /// Requests a compaction (a rewrite, as Redis calls it) and waits until it is done.
    pub(super) fn compact(&mut self) -> Result<Duration, Error> {
        let begin = Instant::now();
        self.send("BGREWRITEAOF")?;
        loop {
            std::thread::sleep(POLL_INTERVAL);
            if self.field("aof_rewrite_in_progress")? + self.field("aof_rewrite_scheduled")? == 0.0 {
                return Ok(begin.elapsed());
            }
            if begin.elapsed() > TIMEOUT {
                let what = "a compaction does not end".into();
                return Err(Error::Program {
                    program: "bench load".into(),
                    what,
                    fix: "see the server's log",
                });
            }
        }
    }
}
