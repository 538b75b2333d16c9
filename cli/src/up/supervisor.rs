//! Keeping the processes alive, and ending them in order.
//!
//! 1. One task: it waits for the end of a child or for a signal, whichever is first. Nothing runs
//!    on a timer while all is well.
//! 2. A failed start is repeated [`STARTS`] times with growing pauses: leftovers of an earlier,
//!    killed `up` may still be ending. After that its error ends `up`.
//! 3. A child that had served and ends is restarted without limit, at most every [`RESTART_PAUSE`].
//!    A file system that cannot be shown again stays away, and is no reason to end the others.
//! 4. At the end it stops store, file systems, service core and daemon, and removes the record. A
//!    second signal, or a child that takes longer than its grace, leads to SIGKILL: logs survive
//!    that.

use std::path::PathBuf;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sietch::StartupReport;
use sietch_protocol::{CallError, Connection};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::child::Child;
use super::file_systems::FileSystems;
use super::instance::{Claim, Record};
use super::plan::Plan;
use super::{banner, detach};
use crate::administration;
use crate::error::Error;
use crate::log_file;
use crate::output;
use crate::paths;
use crate::style::Palette;

/// Attempts at a start. With the pauses between them about two seconds.
const STARTS: u32 = 4;

/// The first pause between two attempts; each next one is three times as long.
const FIRST_PAUSE: Duration = Duration::from_millis(150);

/// Between restarts of a child that had served: bounds the cost of a store that ends at once.
const RESTART_PAUSE: Duration = Duration::from_millis(200);

/// For the store to flush its log on a slow disk.
const STORE_GRACE: Duration = Duration::from_secs(30);

/// For the service core, which has nothing to save.
const SERVICE_GRACE: Duration = Duration::from_secs(2);

/// For the daemon to remove its devices.
const DAEMON_GRACE: Duration = Duration::from_secs(10);

/// Runs the processes of `plan` until a signal arrives.
pub(super) async fn run(plan: Plan, claim: Claim, detached: bool) -> Result<(), Error> {
    let mut signals = Signals::new()?;
    let file_systems = FileSystems::new(&plan.file_systems, &plan.data);
    let mut supervisor =
        Supervisor { plan, claim, daemon: Daemon::None, service: None, file_systems, store: None };
    let outcome = tokio::select! {
        outcome = supervisor.serve(detached) => outcome,
        () = signals.next() => Ok(()),
    };
    tokio::select! {
        () = supervisor.stop() => {}
        () = signals.next() => supervisor.kill().await,
    }
    outcome
}

/// The signals that end `up`.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    fn new() -> Result<Self, Error> {
        let watch = |kind| signal(kind).map_err(|source| Error::Start { what: "signal handler", source });
        let signals = Self {
            interrupt: watch(SignalKind::interrupt())?,
            terminate: watch(SignalKind::terminate())?,
            hangup: watch(SignalKind::hangup())?,
        };
        crate::signals::handled();
        Ok(signals)
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }
}

/// The daemon, and which process supervises it.
enum Daemon {
    None,
    /// Started here.
    Supervised(Box<Child>),
    /// It was running before, and this process does not supervise it.
    Unsupervised,
}

struct Supervisor {
    plan: Plan,
    claim: Claim,
    daemon: Daemon,
    service: Option<Child>,
    file_systems: FileSystems,
    store: Option<(Child, StartupReport)>,
}

impl Supervisor {
    /// Serves until a signal arrives, or a start has finally failed.
    async fn serve(&mut self, detached: bool) -> Result<(), Error> {
        self.claim.write(&self.record())?;
        self.bring_up().await?;
        self.file_systems.start().await?;
        self.announce().await?;
        if detached {
            detach::serve_alone(&self.plan.data.join("up.log"))?;
        }
        loop {
            let Self { plan, daemon, service, file_systems, store, .. } = self;
            let ended = tokio::select! {
                how = store_ended(store) => {
                    *store = None;
                    format!("the store ended ({how})")
                }
                how = service_ended(service) => {
                    *service = None;
                    if plan.brokered && let Some((mut child, _)) = store.take() {
                        // Its area ended with the core. The store has acknowledged nothing that is
                        // not in it.
                        child.terminate();
                        child.wait_or_kill(STORE_GRACE).await;
                    }
                    format!("the service core ended ({how}), and its ports and areas with it; programs under `sietch run` continue")
                }
                (name, how) = file_systems.ended() => {
                    self.show_again(&name, &how).await;
                    continue;
                }
                how = daemon_ended(daemon) => {
                    *daemon = Daemon::None;
                    format!("the daemon ended ({how}); the store continues")
                }
            };
            say(&format!("{ended}; starting it again"));
            tokio::time::sleep(RESTART_PAUSE).await;
            self.bring_up().await?;
            say("all is up again");
        }
    }

    /// Shows a file system again whose process has ended.
    async fn show_again(&mut self, name: &str, how: &str) {
        say(&format!("the file system {name} ended ({how}); mounting it again"));
        tokio::time::sleep(RESTART_PAUSE).await;
        match self.file_systems.restart(name).await {
            Ok(()) => say(&format!("the file system {name} is there again")),
            Err(cause) => {
                say(&format!("the file system {name} stays away until the next `sietch up`: {cause}"));
            }
        }
    }

    /// Starts every process that does not run.
    async fn bring_up(&mut self) -> Result<(), Error> {
        let mut pause = FIRST_PAUSE;
        for attempt in 1.. {
            match self.try_bring_up().await {
                Ok(()) => break,
                Err(cause) if attempt >= STARTS => return Err(cause),
                Err(_) => tokio::time::sleep(pause).await,
            }
            pause *= 3;
        }
        self.claim.write(&self.record())
    }

    async fn try_bring_up(&mut self) -> Result<(), Error> {
        if matches!(self.daemon, Daemon::Unsupervised) && self.request(|_| Ok(())).await.is_err() {
            self.daemon = Daemon::None;
        }
        if matches!(self.daemon, Daemon::None) {
            self.start_daemon().await?;
        }
        if self.service.is_none() && matches!(self.daemon, Daemon::Supervised(_)) {
            self.start_service().await?;
        }
        if self.store.is_none() {
            self.start_store().await?;
        }
        Ok(())
    }

    async fn start_daemon(&mut self) -> Result<(), Error> {
        if self.request(|_| Ok(())).await.is_ok() {
            self.daemon = Daemon::Unsupervised;
            return Ok(());
        }
        let log = self.plan.data.join("daemon.log");
        // The child is recorded before the wait, so that a signal meanwhile finds it.
        self.daemon = Daemon::Supervised(Box::new(Child::start("daemon", self.plan.daemon(), &log)?));
        let Daemon::Supervised(child) = &mut self.daemon else { return Ok(()) };
        let outcome = child.ready_byte().await;
        if outcome.is_err() {
            self.daemon = Daemon::None;
        }
        outcome
    }

    async fn start_service(&mut self) -> Result<(), Error> {
        let log = self.plan.data.join("service.log");
        let child = self.service.insert(Child::start("service core", self.plan.service(), &log)?);
        let outcome = child.ready_byte().await;
        if outcome.is_err() {
            self.service = None;
        }
        outcome
    }

    async fn start_store(&mut self) -> Result<(), Error> {
        let log = self.plan.data.join("kv.log");
        let child = Child::start("store", self.plan.store(), &log)?;
        let (child, ready) = self.store.insert((child, StartupReport::default()));
        let outcome = match child.ready_line().await {
            Ok(line) => {
                StartupReport::parse(line.trim_end()).map_err(|source| Error::Start { what: "store", source })
            }
            Err(cause) => Err(cause),
        };
        match outcome {
            Ok(said) => *ready = said,
            Err(cause) => {
                if let Some((mut child, _)) = self.store.take() {
                    child.wait_or_kill(Duration::ZERO).await;
                }
                return Err(cause);
            }
        }
        Ok(())
    }

    /// Prints the banner, and updates the record.
    async fn announce(&self) -> Result<(), Error> {
        let status = self.request(Connection::status).await?;
        let Some((child, ready)) = &self.store else { return Ok(()) };
        let pids = (child.pid(), self.service.as_ref().and_then(Child::pid));
        let shown: Vec<_> = self.file_systems.running().collect();
        let text = banner::render(&self.plan, &status, ready, pids, &shown, Palette::of_stdout());
        match output::print(&text) {
            // `sietch up | head -1` closes the pipe; the store serves all the same.
            Ok(()) | Err(Error::OutputClosed) => Ok(()),
            Err(other) => Err(other),
        }
    }

    fn record(&self) -> Record {
        let (store, ready) = match &self.store {
            Some((child, ready)) => (child.pid(), Some(ready.clone())),
            None => (None, None),
        };
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        Record { pid, store, data: self.plan.data.clone(), ready }
    }

    /// Sends the daemon a request, on a thread that may wait.
    async fn request<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Connection) -> Result<T, CallError> + Send + 'static,
    ) -> Result<T, Error> {
        let socket: PathBuf = self.plan.socket.clone();
        let answer = tokio::task::spawn_blocking(move || Ok(call(&mut administration::connect(&socket)?)?));
        answer.await.unwrap_or_else(|cause| Err(Error::Start { what: "request", source: cause.into() }))
    }

    /// Ends everything in order.
    async fn stop(&mut self) {
        if let Some((child, _)) = &mut self.store {
            child.terminate();
            if !child.wait_or_kill(STORE_GRACE).await {
                say("the store did not stop in time and was killed");
            }
        }
        self.store = None;
        for name in self.file_systems.stop().await {
            say(&format!("the file system {name} did not end in time and was killed; its log is kept"));
        }
        if let Some(mut service) = self.service.take() {
            service.terminate();
            service.wait_or_kill(SERVICE_GRACE).await;
            // The service has ended. Its programs go to the kernel, as without it.
            paths::remove_sockets_beside(&self.plan.socket);
        }
        if matches!(self.daemon, Daemon::Supervised(_)) && self.request(Connection::shutdown).await.is_err() {
            // It does not answer; a signal has the same effect.
            if let Daemon::Supervised(child) = &self.daemon {
                child.terminate();
            }
        }
        if let Daemon::Supervised(child) = &mut self.daemon
            && !child.wait_or_kill(DAEMON_GRACE).await
        {
            say(&format!("the daemon did not stop in time and was killed; see {}", child.log().display()));
        }
        self.daemon = Daemon::None;
    }

    /// Ends everything at once.
    async fn kill(&mut self) {
        if let Some((mut child, _)) = self.store.take() {
            child.wait_or_kill(Duration::ZERO).await;
        }
        self.file_systems.kill().await;
        if let Some(mut service) = self.service.take() {
            service.wait_or_kill(Duration::ZERO).await;
        }
        if let Daemon::Supervised(child) = &mut self.daemon {
            // Only the daemon can remove its devices: it gets a second signal, and a moment.
            child.terminate();
            child.wait_or_kill(Duration::from_secs(1)).await;
        }
    }
}

async fn store_ended(store: &mut Option<(Child, StartupReport)>) -> String {
    match store {
        Some((child, _)) => child.ended().await,
        None => std::future::pending().await,
    }
}

async fn service_ended(service: &mut Option<Child>) -> String {
    match service {
        Some(child) => child.ended().await,
        None => std::future::pending().await,
    }
}

async fn daemon_ended(daemon: &mut Daemon) -> String {
    match daemon {
        Daemon::Supervised(child) => child.ended().await,
        Daemon::None | Daemon::Unsupervised => std::future::pending().await,
    }
}

/// Writes a line to standard error, or drops it if standard error is a full pipe. A reader that has
/// stopped reading must not keep `up` from restarting the store.
fn say(what: &str) {
    let error = std::io::stderr();
    let line = format!("sietch: {what}\n");
    let _ = log_file::bound(&error);
    // A pipe that is ready takes a page at least (pipe(7)).
    let mut ready = [PollFd::new(&error, PollFlags::OUT)];
    if poll(&mut ready, Some(&Timespec::default())) == Ok(1) {
        let _ = rustix::io::write(&error, line.as_bytes());
    }
}
