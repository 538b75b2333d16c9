//! The socket role of a service core: unmodified programs' sockets (docs/spec/sockets.md).
//!
//! 1. The socket is made before any privilege is given up: the run directory is root's. It is bound
//!    under a temporary name, opened to every user and then renamed, so that no process finds it
//!    incomplete. A leftover of an earlier service is removed. A service that still answers stays,
//!    or passes everything to the new one (`--succeed`): the new release replaces the old one, and
//!    no program notices. Administrators have a socket of their own ([`administration`]), which is
//!    made at the same time.
//! 2. One thread serves ([`sietch_service::sockets`]). This side shares its counters with the
//!    daemon, on a page of its own.
//! 3. It needs no daemon: `sietch service --sockets-only` runs this role alone, for any user.

use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use sietch::{Kind, Metrics, clock};
use sietch_protocol::administration;
use sietch_protocol::socket_service::{Descriptors, ReplyKind, Request, RequestKind, call_on};
use sietch_protocol::{CallError, Connection, SOCKETS_PAGE};
use sietch_service::Snapshot;
use sietch_service::sockets::{
    Command, CommandSender, Counters, Options, RegionSizes, Rules, SocketReport, Source, limits, run,
};
use sietch_service::tcp::VnicRequest;

use crate::error::Error;
use crate::output;
use crate::paths;
use crate::signals;

/// See the module.
pub(super) struct Sockets {
    path: PathBuf,
    commands: Sender<Command>,
    doorbell: OwnedFd,
    report: Arc<Snapshot<SocketReport>>,
    thread: JoinHandle<std::io::Result<()>>,
    /// The counters' page, and whether the daemon has it.
    page: Option<Metrics>,
    shared: bool,
}

/// The sockets for programs and for administrators.
pub(super) struct Listening {
    socket: Source,
    administrators: Option<OwnedFd>,
}

impl Sockets {
    /// Makes the sockets.
    ///
    /// # Errors
    /// [`Error::SocketService`]: there is one already, or the folder is not ours and cannot be
    /// made.
    pub(super) fn open(path: &Path, succeed: bool) -> Result<Listening, Error> {
        // While it still may.
        limits::raise_descriptors();
        let failed = |source: std::io::Error| Error::SocketService {
            path: path.to_owned(),
            fix: "name another path with `--sockets PATH`",
            source,
        };
        if succeed {
            let predecessor = request_handover(path).map_err(|error| Error::SocketService {
                path: administration::administrator_socket(path),
                fix: "only the user who started the running service, and root, can take it over; without --succeed a new one starts",
                source: error.into(),
            })?;
            return Ok(Listening { socket: Source::Predecessor(predecessor), administrators: None });
        }
        if paths::is_served(path) {
            return Err(Error::SocketService {
                path: path.to_owned(),
                fix: "use that one, or end it first",
                source: std::io::ErrorKind::AddrInUse.into(),
            });
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        make_folder_of(path).map_err(failed)?;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(|error| failed(error.into()))?;
        let administrators = administration::listen(path, SocketType::SEQPACKET).map_err(failed)?;
        let new = path.with_extension(format!("new{}", std::process::id()));
        let _ = std::fs::remove_file(&new);
        let made = SocketAddrUnix::new(&new)
            .and_then(|address| rustix::net::bind(&socket, &address))
            .and_then(|()| rustix::net::listen(&socket, limits::QUEUE));
        made.map_err(|error| failed(error.into()))?;
        let shown = std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o666))
            .and_then(|()| std::fs::rename(&new, path));
        shown.map_err(|error| {
            let _ = std::fs::remove_file(&new);
            failed(error)
        })?;
        Ok(Listening { socket: Source::New(socket), administrators: Some(administrators) })
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// [`Error::Start`]: no descriptors or threads are left.
    pub(super) fn start(listening: Listening, path: PathBuf, rules: Rules) -> Result<Self, Error> {
        let failed = |source| Error::Start { what: "the socket service", source };
        let doorbell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| failed(error.into()))?;
        let (commands, received) = channel();
        let report = Arc::<Snapshot<SocketReport>>::default();
        let thread_doorbell = doorbell.try_clone().map_err(failed)?;
        let thread_report = Arc::clone(&report);
        let Listening { socket, administrators } = listening;
        let region_sizes = RegionSizes { smallest: 14, largest: 22 };
        let options = Options { socket, administrators, rules, region_sizes };
        let thread = std::thread::Builder::new()
            .name("sietch-sockets".to_owned())
            .spawn(move || run(options, &received, &thread_doorbell, &thread_report))
            .map_err(failed)?;
        let page = page().map_err(|cause| tracing::warn!("the socket service: {cause}")).ok();
        Ok(Self { path, commands, doorbell, report, thread, page, shared: false })
    }

    /// A sender of commands to the thread.
    ///
    /// # Errors
    /// No descriptors are left.
    pub(super) fn command_sender(&self) -> std::io::Result<CommandSender> {
        Ok(CommandSender { commands: self.commands.clone(), doorbell: self.doorbell.try_clone()? })
    }

    /// Sets where requests that name a VNIC go.
    pub(super) fn serve_vnics(&self, vnics: Sender<VnicRequest>) {
        // The caller notices a thread that has ended.
        let _ = self.commands.send(Command::Vnics(vnics));
        let _ = rustix::io::write(&self.doorbell, &1_u64.to_ne_bytes());
    }

    /// Whether the thread has ended.
    pub(super) fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// The outcome of the thread.
    ///
    /// # Errors
    /// [`Error::SocketService`].
    pub(super) fn join(self) -> Result<(), Error> {
        let Self { path, commands, doorbell, thread, .. } = self;
        let _ = commands.send(Command::Stop);
        let _ = rustix::io::write(&doorbell, &1_u64.to_ne_bytes());
        let ended = thread.join().unwrap_or_else(|_| Err(std::io::Error::other("it panicked")));
        let fix = "start it again; its log says more";
        ended.map_err(|source| Error::SocketService { path, fix, source })
    }

    /// Notes that the daemon has been restarted.
    pub(super) fn share_again(&mut self) {
        self.shared = false;
    }

    /// Shows the counters to the daemon.
    ///
    /// # Errors
    /// The daemon has ended.
    pub(super) fn publish_counters(&mut self, connection: &mut Connection) -> Result<(), CallError> {
        let shown = self.report.read();
        let Some(page) = &mut self.page else { return Ok(()) };
        page.set_all(0, values(&shown));
        if let Err(cause) = page.publish(clock::now()) {
            tracing::warn!("{SOCKETS_PAGE}: its counters are not shown: {cause}");
        }
        if !self.shared {
            connection.publish_metrics(page.label(), page.as_fd())?;
            self.shared = true;
        }
        Ok(())
    }
}

/// Makes the folder of the socket, which every user may search, if no daemon has made it yet.
fn make_folder_of(path: &Path) -> std::io::Result<()> {
    let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir())
    else {
        return Ok(());
    };
    std::fs::create_dir_all(folder)?;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755))
}

/// A connection to the service at `path`, which is ready to pass everything to this one.
fn request_handover(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC;
    let predecessor = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::net::connect(&predecessor, &SocketAddrUnix::new(administration::administrator_socket(path))?)?;
    let request = Request::new(RequestKind::TakeOver, [0; 16]);
    let reply = call_on(predecessor.as_fd(), &request, &[], &mut Descriptors::default())?;
    if reply.kind() == ReplyKind::Handover { Ok(predecessor) } else { Err(Errno::PERM) }
}

/// Serves this role alone, until a signal ends it or a successor has taken over. `stopping` is true
/// if a signal has already come.
///
/// # Errors
/// [`Error::SocketService`], [`Error::Start`].
pub(super) fn run_alone(
    listening: Listening,
    path: PathBuf,
    rules: Rules,
    stopping: &AtomicBool,
) -> Result<(), Error> {
    let failed = |source| Error::Start { what: "the socket service", source };
    let shown = path.display().to_string();
    let sockets = Sockets::start(listening, path, rules)?;
    let (woken, _waker) = signals::stream().map_err(failed)?;
    let sender = sockets.command_sender().map_err(failed)?;
    let stop = move || {
        signals::wait(woken);
        sender.send(Command::Stop);
    };
    // Without a signal the thread ends with the process.
    let _ = std::thread::Builder::new().name("sietch-signals".to_owned()).spawn(stop).map_err(failed)?;
    if stopping.load(Ordering::Acquire) {
        return sockets.join();
    }
    output::print(&format!("{shown}\n"))?;
    tracing::info!("serving at {shown}");
    let Sockets { path, commands, doorbell, thread, .. } = sockets;
    let ended = thread.join().unwrap_or_else(|_| Err(std::io::Error::other("it panicked")));
    drop((commands, doorbell));
    let fix = "start it again; its log says more";
    ended.map_err(|source| Error::SocketService { path, fix, source })
}

/// Gauges first, then what was counted.
const GAUGES: [&str; 4] = ["applications", "listeners", "connections", "requests"];

fn page() -> Result<Metrics, sietch::MetricsError> {
    let gauges = GAUGES.map(|name| (name, Kind::Gauge));
    let counters = Counters::default().entries().map(|(name, _)| (name, Kind::Counter));
    let entries: Vec<(&str, Kind)> = gauges.into_iter().chain(counters).collect();
    Metrics::new(SOCKETS_PAGE, &entries)
}

/// In the order of the names of a page.
fn values(shown: &SocketReport) -> Vec<u64> {
    let gauges = [shown.applications, shown.listeners, shown.connections, shown.requests];
    let gauges = gauges.map(|value| value as u64);
    gauges.into_iter().chain(shown.counters.entries().map(|(_, value)| value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_requests_wait_before_one_of_another_user() {
        let folder = std::env::temp_dir().join(format!("sietch-queue-{}", std::process::id()));
        let path = folder.join("sockets.sock");
        // Nothing accepts.
        let listening = Sockets::open(&path, false).expect("a folder of this test's own");
        let address = SocketAddrUnix::new(&path).expect("a short path");
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let connect = || {
            let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
            rustix::net::connect(&socket, &address).map(|()| socket)
        };
        let mut waiting = Vec::new();
        let full = loop {
            match connect() {
                Ok(socket) => waiting.push(socket),
                Err(error) => break error,
            }
        };
        assert_eq!(full, Errno::AGAIN);
        assert!(waiting.len() <= 1 + limits::QUEUE as usize, "{}", waiting.len());
        drop(listening);
        std::fs::remove_dir_all(&folder).expect("it is there");
    }
}
