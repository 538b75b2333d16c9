//! The identity of a client, as the kernel reports it.
//!
//! 1. SO_PEERCRED gives pid, uid and gid at the moment of `connect`. Access is decided by that uid
//!    alone.
//! 2. A pidfd reports the end of the process. It is opened by number, so the number could meanwhile
//!    belong to another process. After opening it, the socket must not have hung up (so its process
//!    still lived), and the process must have the same user ([`has_user`]). A client may have
//!    passed its socket on. Without the second check, the number could then name a process of
//!    another user, which the daemon would kill in place of the client. A process that loses that
//!    race on purpose gains only that its own grant outlives it.
//! 3. A process is remembered across restarts of the daemon by pid, start time and boot: together
//!    they do not repeat.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags};
use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;

/// The reason why a client cannot be identified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unknown {
    pub cause: &'static str,
    pub fix: &'static str,
}

/// The daemon could not detect when such a process ends.
const OUTSIDE: Unknown = Unknown {
    cause: "the client runs outside the PID namespace of the daemon",
    fix: "run the daemon in the PID namespace of the host, or both in one",
};

const fn unknown(cause: &'static str) -> Unknown {
    Unknown { cause, fix: "connect from a living process" }
}

/// A process that existed once.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Process {
    /// Its number.
    pub pid: u32,
    /// Clock ticks from boot to its start.
    pub start: u64,
    /// Its user when it connected.
    pub uid: u32,
    /// The boot it belongs to.
    pub boot: String,
}

impl Process {
    /// The process at the other end of `socket`, and a pidfd that becomes readable when it ends.
    pub(crate) fn of_peer(socket: &UnixStream) -> Result<(Self, OwnedFd), Unknown> {
        let credentials = socket.peer_cred().map_err(|_| unknown("the kernel does not report the peer"))?;
        // The kernel reports pid 0 for a process that has no number in this PID namespace.
        let number = credentials.pid().and_then(Pid::from_raw).ok_or(OUTSIDE)?;
        let pid = number.as_raw_nonzero().get().cast_unsigned();
        let uid = credentials.uid();
        let pidfd = rustix::process::pidfd_open(number, PidfdFlags::empty())
            .map_err(|_| unknown("the client's process has ended"))?;
        let start = start_time(pid).ok_or(unknown("the client's process has ended"))?;
        let mut sockets = [PollFd::new(socket, PollFlags::empty())];
        let hung_up = match poll(&mut sockets, Some(&Timespec::default())) {
            Ok(_) => sockets[0].revents().intersects(PollFlags::HUP | PollFlags::ERR),
            Err(_) => true,
        };
        if hung_up {
            return Err(unknown("the client has disconnected"));
        }
        if !has_user(pid, uid) {
            return Err(unknown("the client's process is of another user by now"));
        }
        Ok((Self { pid, start, uid, boot: boot().to_owned() }, pidfd))
    }

    /// Kills it, unless it has ended already.
    pub(crate) fn kill(&self) -> rustix::io::Result<()> {
        let Some(pidfd) = self.open() else { return Ok(()) };
        match rustix::process::pidfd_send_signal(pidfd, rustix::process::Signal::KILL) {
            Err(rustix::io::Errno::SRCH) => Ok(()),
            sent => sent,
        }
    }

    /// A pidfd, if this very process still runs.
    pub(crate) fn open(&self) -> Option<OwnedFd> {
        if self.boot != boot() {
            return None;
        }
        let pid = Pid::from_raw(i32::try_from(self.pid).ok()?)?;
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()?;
        (start_time(self.pid)? == self.start).then_some(pidfd)
    }
}

pub(crate) fn boot() -> &'static str {
    static BOOT: OnceLock<String> = OnceLock::new();
    BOOT.get_or_init(|| {
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        id.trim().to_owned()
    })
}

/// Field 22 of `/proc/PID/stat`; a zombie has ended.
fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, field 2, may hold anything, also `)` and spaces: the last `)` ends it.
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace();
    let state = fields.next()?;
    if state == "Z" || state == "X" { None } else { fields.nth(18)?.parse().ok() }
}

/// Whether the process with this number has `uid` among its user ids.
fn has_user(pid: u32, uid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    ids.is_some_and(|ids| ids.split_ascii_whitespace().any(|id| id.parse() == Ok(uid)))
}

/// The uid of a user's name in `/etc/passwd`. Directory services are not consulted: the daemon must
/// start without them.
pub(crate) fn uid_of(name: &str) -> Option<u32> {
    let users = std::fs::read_to_string("/etc/passwd").ok()?;
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == name).then(|| fields.nth(1)?.parse().ok()).flatten()
    })
}

/// 64-bit FNV-1a: names and addresses derived from names must be the same in every release.
pub(crate) fn stable_hash(parts: &[&[u8]]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in parts.iter().flat_map(|part| part.iter().chain([&0xff])) {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_recognised_only_while_it_is_the_same_one() {
        let pid = std::process::id();
        let start = start_time(pid).expect("this process runs");
        let this = Process { pid, start, uid: 0, boot: boot().to_owned() };
        assert!(this.open().is_some());
        assert!(Process { start: start + 1, ..this.clone() }.open().is_none());
        assert!(Process { boot: "another".into(), ..this.clone() }.open().is_none());
        assert!(Process { pid: 0, ..this }.open().is_none());
    }

    #[test]
    fn a_process_is_of_its_user_alone() {
        let (pid, uid) = (std::process::id(), rustix::process::getuid().as_raw());
        assert!(has_user(pid, uid));
        assert!(!has_user(pid, uid + 1));
        assert!(!has_user(0, uid), "there is no such process");
    }

    #[test]
    fn the_process_of_another_user_is_not_taken_for_the_client() {
        if !rustix::process::getuid().is_root() {
            return eprintln!("SKIPPED: needs root");
        }
        // A thread with another user than its process connects: its number leads to the process.
        let other = rustix::process::Uid::from_raw(65_534);
        let connect = move || {
            rustix::thread::set_thread_res_uid(other, other, other).expect("root may");
            std::os::unix::net::UnixStream::pair().expect("a pair")
        };
        let (near, _far) = std::thread::spawn(connect).join().expect("it does not panic");
        near.set_nonblocking(true).expect("a socket");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().expect("a runtime");
        let _context = runtime.enter();
        let near = UnixStream::from_std(near).expect("a socket");
        let found = Process::of_peer(&near).map(|(process, _)| process);
        assert_eq!(found, Err(unknown("the client's process is of another user by now")));
    }

    /// The variable by which a copy of this program detects that it is in a PID namespace of its
    /// own.
    const INSIDE: &str = "SIETCH_TEST_INSIDE";

    #[test]
    fn a_process_outside_the_pid_namespace_is_refused_by_that_name() {
        let name = "identity::tests::a_process_outside_the_pid_namespace_is_refused_by_that_name";
        if std::env::var_os(INSIDE).is_some() {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let _context = runtime.expect("descriptors");
            let _context = _context.enter();
            let input = rustix::io::dup(std::io::stdin()).expect("a descriptor");
            let input = std::os::unix::net::UnixStream::from(input);
            input.set_nonblocking(true).expect("a socket");
            let input = UnixStream::from_std(input).expect("a socket");
            let found = Process::of_peer(&input).map(|(process, _)| process);
            assert_eq!(found, Err(OUTSIDE));
            return;
        }
        if !rustix::process::geteuid().is_root() {
            return eprintln!("SKIPPED {name}: needs root, to make a PID namespace");
        }
        // For a pair, the kernel reports the process that made it.
        let (theirs, _own) = std::os::unix::net::UnixStream::pair().expect("descriptors");
        let mut command = std::process::Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child"]);
        command.arg(std::env::current_exe().expect("a path")).args(["--exact", name]);
        command.env(INSIDE, "").stdin(OwnedFd::from(theirs));
        let output = command.output().expect("unshare is there");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
    }

    #[test]
    fn users_are_known_by_name() {
        assert_eq!(uid_of("root"), Some(0));
        assert_eq!(uid_of("no-such-user"), None);
    }
}
