//! The socket: start, accept, frames, and the limits that keep hostile clients cheap.
//!
//! 1. [`serve`] sets everything up in an order that a second daemon or a crash cannot disturb:
//!    lock, configuration, state, adoption, socket. It ends when [`Control`] ends, and then removes
//!    what was set up.
//! 2. Each connection has a task. It reads one request, passes it to the control task, and writes
//!    the answer. Only then it reads on: a client cannot queue work. Notices may be written in
//!    between.
//! 3. Administrators use a socket of their own ([`sietch_protocol::administration`]), with a limit
//!    of its own ([`limits::MAX_ADMINISTRATORS`]): many other clients cannot keep them out. The
//!    public socket accepts no request for administration.
//! 4. A client costs at most: one task, one frame of input, [`limits::OUTBOX`] notices,
//!    [`limits::MAX_CONNECTIONS_PER_UID`] connections for its user, and [`limits::REQUESTS`]. The
//!    daemon drops it if its handshake or a started frame takes longer than [`limits::READ_LIMIT`],
//!    or if it does not read an answer within [`limits::WRITE_LIMIT`].
//! 5. What a client sends, and its connection, are closed by threads that may hang: closing a
//!    descriptor takes as long as its sender likes ([`sietch_protocol::closer`]).

mod accept;
mod connection;
mod limits;
mod socket;

use std::cell::RefCell;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::rc::Rc;

use sietch_protocol::administration;
use sietch_protocol::closer::Closer;
use tokio::net::UnixListener;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use accept::{Listeners, accept};
use connection::Shared;
use limits::{DEVICE_SECONDS, EVENTS, FAREWELL, QUEUE};

use crate::allowance::UserAllowances;
use crate::configuration::Configuration;
use crate::control::{Control, Event};
use crate::device::VnicDevices;
use crate::device::worker::Devices;
use crate::directories::{file_error, make_directory};
use crate::error::Error;
use crate::identity::stable_hash;
use crate::locations::Locations;
use crate::lock::Lock;
use crate::metrics::Counters;
use crate::options::Options;
use crate::state::State;
use crate::volume::Volumes;

/// Runs the daemon.
pub(crate) async fn serve<D, F>(options: Options, make: F) -> Result<(), Error>
where
    D: VnicDevices,
    F: FnOnce(&str) -> D + Send + 'static,
{
    // The first step, so that a signal during the start takes effect after the start.
    let signals = Signals::new()?;
    let locations = Locations::of_this_user();
    let configuration =
        Configuration::load_or_create(options.configuration.as_deref().unwrap_or(&locations.configuration))?;
    let data = options.data.or_else(|| configuration.daemon.data.clone()).unwrap_or(locations.data);
    let socket = options.socket.or_else(|| configuration.daemon.socket.clone()).unwrap_or(locations.socket);
    // Others could lock a file that they can open, and so keep the daemon from starting.
    make_directory(&data, 0o700)?;
    let lock = Lock::take(&data, &socket)?;
    // Volumes come first: they take back room that the state may need.
    let volumes = Volumes::open(&data, &configuration.volumes, None)?;
    let (state, remembered) = State::open(&data)?;
    // The same data directory has the same name, whatever path leads to it.
    let real = data.canonicalize().map_err(|error| file_error(&data, "resolve it", error))?;
    let instance = format!("{:08x}", stable_hash(&[real.as_os_str().as_encoded_bytes()]) >> 32);
    let failed = |source| Error::Start { action: "start the thread of its devices", source };
    let devices = Devices::start(move || make(&instance)).await.map_err(failed)?;
    let counters = Rc::new(RefCell::new(Counters::default()));
    let device_seconds = Rc::new(RefCell::new(UserAllowances::new(DEVICE_SECONDS)));
    let (events, incoming) = mpsc::channel(EVENTS);
    let mut control = Control::new(
        configuration,
        data,
        state,
        volumes,
        devices,
        options.uplink,
        options.starts_store,
        counters.clone(),
        device_seconds.clone(),
        events.clone(),
    );
    control.restore(remembered).await?;
    control.log_unfit_areas();
    let listeners = Listeners { open: listen(&socket)?, administrators: listen_for_administrators(&socket)? };
    if let Some(ready) = options.ready {
        // The process that waited for it may have ended.
        let _ = rustix::io::write(&ready, b"1");
    }
    tracing::info!(socket = %socket.display(), "ready");
    let (stop, stopped) = oneshot::channel();
    let shared = Shared { events, counters, device_seconds, closer: Closer::default(), spare_files: 0 };
    let acceptor = tokio::task::spawn_local(accept(listeners, shared, stopped));
    let finished = control_loop(&mut control, incoming, signals).await;
    // The name is removed first: no client may connect to a daemon that ends.
    if let Err(error) = std::fs::remove_file(&socket) {
        tracing::warn!(%error, socket = %socket.display(), "the socket could not be removed");
    }
    administration::remove(&socket);
    control.close_clients();
    drop(stop);
    // A client that has not read its last notice by then never will.
    let _ = timeout(FAREWELL, acceptor).await;
    tracing::info!("ended");
    drop(lock);
    finished
}

struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> Result<Self, Error> {
        use tokio::signal::unix::{SignalKind, signal};
        let fail = |source| Error::Start { action: "handle signals", source };
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).map_err(fail)?,
            terminate: signal(SignalKind::terminate()).map_err(fail)?,
        })
    }
}

async fn control_loop(
    control: &mut Control,
    mut incoming: mpsc::Receiver<Event>,
    mut signals: Signals,
) -> Result<(), Error> {
    let mut inspection = tokio::time::interval(crate::control::INSPECTION);
    let mut ring_check = tokio::time::interval(crate::control::RING_CHECK_INTERVAL);
    ring_check.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let event = tokio::select! {
            event = incoming.recv() => match event {
                Some(event) => event,
                None => Event::Stop("its event queue ended"),
            },
            _ = inspection.tick() => Event::Inspect,
            _ = ring_check.tick(), if control.has_vnics() => Event::CheckRings,
            _ = signals.interrupt.recv() => Event::Stop("SIGINT"),
            _ = signals.terminate.recv() => Event::Stop("SIGTERM"),
        };
        if control.handle(event).await.is_break() {
            return Ok(());
        }
    }
}

/// Binds the socket. The lock is held, so a socket that is there belongs to a daemon that is dead.
fn listen(path: &Path) -> Result<UnixListener, Error> {
    if let Some(directory) = path.parent() {
        make_directory(directory, 0o755)?;
    }
    match std::fs::symlink_metadata(path) {
        Ok(found) if !std::os::unix::fs::FileTypeExt::is_socket(&found.file_type()) => {
            let source = io::Error::other("something that is no socket has that name");
            return Err(file_error(path, "make the socket", source));
        }
        Ok(_) if std::os::unix::net::UnixStream::connect(path).is_ok() => {
            let pid = "unknown (it has another data directory)".to_owned();
            return Err(Error::AlreadyRunning { path: path.into(), pid, socket: path.into() });
        }
        Ok(_) => std::fs::remove_file(path)
            .map_err(|error| file_error(path, "remove a dead daemon's socket", error))?,
        Err(_) => {}
    }
    let failed = |error| file_error(path, "make the socket", error);
    let listener = UnixListener::bind(path).map_err(failed)?;
    // In place of the length that binding has chosen, which is the system's greatest.
    rustix::net::listen(&listener, QUEUE).map_err(|error| failed(error.into()))?;
    // Every user may connect: the uid decides on each request, and administration has another
    // socket.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))
        .map_err(|error| file_error(path, "open the socket to all users", error))?;
    Ok(listener)
}

/// Binds the socket of administrators. What has its name is of a dead daemon, as with the other.
fn listen_for_administrators(open: &Path) -> Result<UnixListener, Error> {
    let path = administration::administrator_socket(open);
    let failed = |error| file_error(&path, "make the administrators' socket", error);
    let socket = administration::listen(open, rustix::net::SocketType::STREAM).map_err(failed)?;
    UnixListener::from_std(socket.into()).map_err(failed)
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

    use super::*;

    #[test]
    fn few_connections_wait_before_one_of_another_user() {
        let folder = std::env::temp_dir().join(format!("sietch-daemon-queue-{}", std::process::id()));
        let path = folder.join("control.sock");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().expect("a runtime");
        let _context = runtime.enter();
        // Nothing accepts.
        let listening = listen(&path).expect("a folder of this test's own");
        let address = SocketAddrUnix::new(&path).expect("a short path");
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let connect = || {
            let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
            rustix::net::connect(&socket, &address).map(|()| socket)
        };
        let mut waiting = Vec::new();
        let full = loop {
            match connect() {
                Ok(socket) => waiting.push(socket),
                Err(error) => break error,
            }
        };
        assert_eq!(full, rustix::io::Errno::AGAIN);
        assert!(waiting.len() <= 1 + QUEUE as usize, "{}", waiting.len());
        drop(listening);
        std::fs::remove_dir_all(&folder).expect("it is there");
    }
}
