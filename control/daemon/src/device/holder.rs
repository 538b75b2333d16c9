//! Finding a socket among the descriptors of the process that holds it.
//!
//! 1. The holder is not trusted, and a duplicate of its descriptor (`pidfd_getfd`) is closed here:
//!    that takes as long as the holder likes, if the file is of a file system that it serves, or if
//!    it has closed a lingering socket meanwhile. So only what the kernel shows as a socket is
//!    duplicated.
//! 2. What a number stands for may change between the two calls. So a thread that may hang does
//!    this, and [`LIMIT`] later a holder that makes it hang has no socket.
//! 3. The holders of all VNICs are searched at once, so several hostile ones take no longer.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::socket_cookie;
use rustix::process::{PidfdGetfdFlags, pidfd_getfd};

/// How long the descriptors of one holder may take. A thousand take some milliseconds, and the
/// socket is among the first: it was made before the application served any client.
pub(super) const LIMIT: Duration = Duration::from_secs(5);

/// The socket of a holder. The outer error: it is not there, although all descriptors could be
/// read. The inner one: the descriptors could not be read.
pub(super) type SocketFound = Result<Result<OwnedFd, String>, String>;

/// A search that runs.
pub(super) struct Search(Result<Receiver<SocketFound>, String>);

impl Search {
    /// Begins to search the descriptors of process `pid`, which `pidfd` is open on, for the socket
    /// with this cookie. A cookie of 0 is of no socket.
    pub(super) fn begin(cookie: u64, pid: u32, pidfd: OwnedFd) -> Self {
        let (found, result) = sync_channel(1);
        if cookie == 0 {
            return Self(Ok(result));
        }
        let search = move || {
            // It fails if the time is over.
            let _ = found.send(search(cookie, pid, pidfd));
        };
        let spawned = std::thread::Builder::new().name("sietch-adopt".to_owned()).spawn(search);
        Self(spawned.map(|_| result).map_err(|error| format!("no thread can be started ({error})")))
    }

    /// Waits for the result until then.
    pub(super) fn result(self, until: Instant) -> SocketFound {
        let left = until.saturating_duration_since(Instant::now());
        match self.0 {
            Ok(result) => result.recv_timeout(left).unwrap_or_else(|_| {
                Err("its holder keeps the daemon from searching its descriptors".to_owned())
            }),
            Err(why) => Ok(Err(why)),
        }
    }
}

fn search(cookie: u64, pid: u32, pidfd: OwnedFd) -> SocketFound {
    let entries = match std::fs::read_dir(format!("/proc/{pid}/fd")) {
        Ok(entries) => entries,
        Err(error) => return Ok(Err(format!("its holder's descriptors cannot be listed ({error})"))),
    };
    for entry in entries.flatten() {
        // The path of a file begins with a slash.
        let is_socket = std::fs::read_link(entry.path())
            .is_ok_and(|link| link.as_os_str().as_bytes().starts_with(b"socket:"));
        let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let Some(number) = number.filter(|_| is_socket) else { continue };
        match pidfd_getfd(pidfd.as_fd(), number, PidfdGetfdFlags::empty()) {
            Ok(found) if socket_cookie(&found).is_ok_and(|its| its == cookie) => return Ok(Ok(found)),
            // Another one, or closed since.
            Ok(_) | Err(Errno::BADF) => {}
            Err(error) => {
                let cause = format!("its holder's descriptors cannot be seen ({error}; CAP_SYS_PTRACE)");
                return Ok(Err(cause));
            }
        }
    }
    Err("its holder has hidden the socket".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own_pidfd() -> (u32, OwnedFd) {
        let own = rustix::process::getpid();
        let pidfd = rustix::process::pidfd_open(own, rustix::process::PidfdFlags::empty());
        (std::process::id(), pidfd.expect("this process runs"))
    }

    #[test]
    fn the_socket_of_a_holder_is_found_as_long_as_it_has_it() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a free port");
        let cookie = socket_cookie(&socket).expect("a socket");
        let until = || Instant::now() + LIMIT;
        let (pid, pidfd) = own_pidfd();
        let found =
            Search::begin(cookie, pid, pidfd).result(until()).expect("it is there").expect("an own process");
        assert_eq!(socket_cookie(&found), Ok(cookie));
        drop((socket, found));
        let (pid, pidfd) = own_pidfd();
        let found = Search::begin(cookie, pid, pidfd).result(until());
        assert_eq!(found.expect_err("it is closed"), "its holder has hidden the socket");
    }
}
