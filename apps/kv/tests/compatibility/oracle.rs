//! A private redis-server, gone when the test is.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::reply::Reply;

/// Tries to connect, a twentieth of a second apart.
const TRIES: usize = 200;

/// Longest wait for a reply: a program must not hold a command that waits for ever.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running server and a connection to it.
pub struct Oracle {
    child: Child,
    directory: PathBuf,
    stream: UnixStream,
}

/// A command as RESP.
pub fn encode(command: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", command.len()).into_bytes();
    for word in command {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

impl Oracle {
    /// Starts a server without persistence; `None` if there is none of version 7.0.
    pub fn start() -> Option<Self> {
        let version = Command::new("redis-server").arg("--version").output().ok()?;
        if !String::from_utf8_lossy(&version.stdout).contains("v=7.0.") {
            return None;
        }
        let directory = std::env::temp_dir().join(format!("sietch-kv-oracle-{}", std::process::id()));
        std::fs::create_dir_all(&directory).ok()?;
        let socket = directory.join("redis.sock");
        let mut child = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--hz", "500", "--unixsocket"])
            .arg(&socket)
            .arg("--dir")
            .arg(&directory)
            .env("LC_ALL", "C")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        for _ in 0..TRIES {
            if let Ok(stream) = UnixStream::connect(&socket) {
                stream.set_read_timeout(Some(PATIENCE)).ok()?;
                return Some(Self { child, directory, stream });
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = child.kill();
        let _ = child.wait();
        let _ = std::fs::remove_dir_all(&directory);
        None
    }

    /// The replies to all commands, sent in one piece.
    pub fn ask_all(&mut self, commands: &[&[Vec<u8>]]) -> Vec<Reply> {
        let request: Vec<u8> = commands.iter().flat_map(|command| encode(command)).collect();
        self.stream.write_all(&request).expect("redis-server reads");
        let mut replies = Vec::with_capacity(commands.len());
        let mut bytes: Vec<u8> = Vec::new();
        let mut at = 0;
        let mut chunk = vec![0; 1 << 16];
        while replies.len() < commands.len() {
            match Reply::parse(&bytes[at..]) {
                Some((reply, rest)) => {
                    at = bytes.len() - rest;
                    replies.push(reply);
                }
                None => {
                    let count = self.stream.read(&mut chunk).expect("redis-server answers");
                    assert!(count > 0, "redis-server closed the connection");
                    bytes.extend_from_slice(&chunk[..count]);
                }
            }
        }
        replies
    }
}

impl Drop for Oracle {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
