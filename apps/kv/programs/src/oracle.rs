//! A private redis-server, which ends with the test.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::connection::Connection;

/// Attempts to connect, at intervals of a twentieth of a second.
const TRIES: usize = 200;

/// Longest wait for a reply: a program must not contain a command that blocks for ever.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running server and a connection to it.
pub struct Oracle {
    child: Child,
    directory: PathBuf,
    /// The connection to that server.
    pub connection: Connection<UnixStream>,
    /// A second connection, which does not disturb the state of the first.
    pub observer: Connection<UnixStream>,
}

fn connect(socket: &Path) -> io::Result<Connection<UnixStream>> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(Connection::new(stream))
}

impl Oracle {
    /// Starts a server without persistence; `None` if there is none of version 7.0.
    #[must_use]
    pub fn start() -> Option<Self> {
        let version = Command::new("redis-server").arg("--version").output().ok()?;
        if !String::from_utf8_lossy(&version.stdout).contains("v=7.0.") {
            return None;
        }
        // Several tests of a process may run one each.
        static STARTED: AtomicU64 = AtomicU64::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let name = format!("sietch-kv-oracle-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).ok()?;
        let socket = directory.join("redis.sock");
        let mut child = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--hz", "500"])
            .args(["--enable-debug-command", "local", "--unixsocket"])
            .arg(&socket)
            .arg("--dir")
            .arg(&directory)
            .env("LC_ALL", "C")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        for _ in 0..TRIES {
            if let (Ok(first), Ok(second)) = (connect(&socket), connect(&socket)) {
                return Some(Self { child, directory, connection: first, observer: second });
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = child.kill();
        let _ = child.wait();
        let _ = std::fs::remove_dir_all(&directory);
        None
    }

    /// Connects again after the server has closed the connection.
    ///
    /// # Errors
    /// The server has ended.
    pub fn reconnect(&mut self) -> io::Result<()> {
        self.connection = connect(&self.directory.join("redis.sock"))?;
        Ok(())
    }
}

impl Drop for Oracle {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
