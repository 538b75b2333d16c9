//! Keeping the processes alive, and ending them in order.
//!
//! 1. One task: it waits for a change of a part ([`super::part`]) or for a signal, whichever is
//!    first. Nothing runs on a timer while all is well.
//! 2. Each part is restarted for itself. Whatever becomes of one, the others go on: the daemon
//!    serves `sietch vsa resize` while the store cannot start. Service core and store wait for the
//!    daemon to serve, which they need to start.
//! 3. The banner is printed once each part serves or has failed several times, which it then says.
//!    Only a daemon that cannot be started the first time ends `up`: nothing would be there.
//! 4. At the end it stops store, file systems, service core and daemon, and removes the record. A
//!    second signal, or a child that takes longer than its grace, leads to SIGKILL: logs survive
//!    that.

use std::path::PathBuf;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sietch::StartupReport;
use sietch_protocol::{CallError, Connection};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::child::Reports;
use super::file_systems::FileSystems;
use super::instance::{Claim, Failing, Record};
use super::part::{Event, Part};
use super::plan::Plan;
use super::{banner, detach, instance};
use crate::administration;
use crate::error::Error;
use crate::log_file;
use crate::output;
use crate::paths;
use crate::style::Palette;

/// For the store to flush its log on a slow disk.
const STORE_GRACE: Duration = Duration::from_secs(30);

/// For the service core, which has nothing to save.
const SERVICE_GRACE: Duration = Duration::from_secs(2);

/// For the daemon to remove its devices.
const DAEMON_GRACE: Duration = Duration::from_secs(10);

/// Runs the processes of `plan` until a signal arrives.
pub(super) async fn run(plan: Plan, claim: Claim, detached: bool) -> Result<(), Error> {
    let mut signals = Signals::new()?;
    let mut supervisor = Supervisor::new(plan, claim);
    let mut asked = Asked { rotated: signals.rotated.take(), resumed: signals.resumed.take() };
    let outcome = tokio::select! {
        outcome = supervisor.serve(detached, &mut asked) => outcome,
        () = signals.next() => Ok(()),
    };
    tokio::select! {
        () = supervisor.stop() => {}
        () = signals.next() => supervisor.kill().await,
    }
    outcome
}

/// The signals that end `up`, and SIGHUP.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// SIGHUP, if it means that the terminal is gone.
    hangup: Option<Signal>,
    /// SIGHUP of a process without a terminal: its log was renamed.
    rotated: Option<Signal>,
    /// SIGUSR1: file systems that were unmounted are mounted again.
    resumed: Option<Signal>,
}

/// The signals that ask for something else than the end.
struct Asked {
    rotated: Option<Signal>,
    resumed: Option<Signal>,
}

impl Signals {
    fn new() -> Result<Self, Error> {
        let watch = |kind| signal(kind).map_err(|source| Error::Start { what: "signal handler", source });
        // Under nohup it stays ignored.
        let hangup = if is_hangup_ignored() { None } else { Some(watch(SignalKind::hangup())?) };
        let has_terminal = std::fs::File::open("/dev/tty").is_ok();
        let (hangup, rotated) = if has_terminal { (hangup, None) } else { (None, hangup) };
        let signals = Self {
            interrupt: watch(SignalKind::interrupt())?,
            terminate: watch(SignalKind::terminate())?,
            resumed: Some(watch(SignalKind::user_defined1())?),
            hangup,
            rotated,
        };
        crate::signals::handled();
        Ok(signals)
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            () = received(&mut self.hangup) => {}
        }
    }
}

/// Whether this process was started with SIGHUP ignored.
fn is_hangup_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    // Bit 0 is signal 1.
    ignored & 1 != 0
}

/// Waits for a signal; forever without one.
async fn received(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => {
            signal.recv().await;
        }
        None => std::future::pending().await,
    }
}

struct Supervisor {
    plan: Plan,
    claim: Claim,
    daemon: Part,
    /// The daemon was running before, and this process does not supervise it. Its service core is
    /// not started here, either.
    foreign: bool,
    service: Part,
    store: Part,
    file_systems: FileSystems,
    /// The store's last report, and the bytes of its area.
    ready: StartupReport,
    area: Option<u64>,
    /// What the service core reported of its start; usually nothing.
    warning: String,
}

impl Supervisor {
    fn new(plan: Plan, claim: Claim) -> Self {
        let part = |what: &'static str, log: &str, reports| {
            Part::new(what, format!("the {what}"), plan.data.join(log), reports)
        };
        Self {
            daemon: part("daemon", "daemon.log", Reports::Byte),
            service: part("service core", "service.log", Reports::Line),
            store: part("store", "kv.log", Reports::Line),
            foreign: false,
            file_systems: FileSystems::new(&plan.file_systems, &plan.data),
            ready: StartupReport::default(),
            area: plan.area,
            warning: String::new(),
            plan,
            claim,
        }
    }

    /// Serves until a signal arrives, or the daemon cannot be started for the first time.
    async fn serve(&mut self, detached: bool, asked: &mut Asked) -> Result<(), Error> {
        self.claim.write(&self.record())?;
        self.foreign = self.request(|_| Ok(())).await.is_ok();
        let log = self.plan.data.join("up.log");
        let mut announced = false;
        loop {
            if !announced && self.is_settled() {
                if !self.has_daemon()
                    && let Some(cause) = self.daemon.take_failure()
                {
                    return Err(cause);
                }
                self.claim.write(&self.record())?;
                announced = self.announce().await?;
                if announced && detached {
                    let all = self.failing().is_empty();
                    detach::serve_alone(&log, all)?;
                }
            }
            self.step(announced, asked, detached.then_some(&log)).await;
        }
    }

    /// Waits for the next change, and does what follows from it.
    /// `asked` may have the `log` of a detached `up` opened again.
    async fn step(&mut self, announced: bool, asked: &mut Asked, log: Option<&PathBuf>) {
        let Asked { rotated, resumed } = asked;
        let (has_daemon, serves_core) = (self.has_daemon(), !self.foreign);
        let Self { daemon, service, file_systems, store, .. } = self;
        tokio::select! {
            event = daemon.event(), if serves_core => self.daemon_event(event, announced),
            event = service.event(), if serves_core && has_daemon || service.serves() => {
                self.service_event(event, announced).await;
            }
            event = store.event(), if has_daemon || store.serves() => {
                self.store_event(event, announced).await;
            }
            () = received(rotated), if announced => {
                if let Some(Err(cause)) = log.map(|log| detach::write_to(log)) {
                    say(&format!("SIGHUP: {cause}"));
                }
            }
            () = received(resumed) => file_systems.resume(),
            (part, event) = file_systems.event() => {
                let then = if part.rests() { instance::UNMOUNTED } else { "mounting it again" };
                note(part, &event, announced, then);
            }
        }
        // The record is for display: a full disk is no reason to end anything.
        if let Err(cause) = self.claim.write(&self.record()) {
            say(&cause.to_string());
        }
    }

    fn has_daemon(&self) -> bool {
        self.foreign || self.daemon.serves()
    }

    /// Whether everything serves, or has failed often enough to be reported.
    fn is_settled(&self) -> bool {
        if !self.has_daemon() {
            return self.daemon.is_settled();
        }
        (self.foreign || self.service.is_settled())
            && self.store.is_settled()
            && self.file_systems.are_settled()
    }

    fn daemon_event(&mut self, event: Event, announced: bool) {
        note(&self.daemon, &event, announced, "the store continues; starting it again");
        match event {
            Event::Due => self.daemon.start(self.plan.daemon()),
            Event::Ready(_) => {
                self.service.hurry();
                self.store.hurry();
            }
            Event::Failed | Event::Ended(_) => {}
        }
    }

    async fn service_event(&mut self, event: Event, announced: bool) {
        const THEN: &str =
            "its ports and areas ended with it, programs under `sietch run` continue; starting it again";
        note(&self.service, &event, announced, THEN);
        match event {
            Event::Due => self.service.start(self.plan.service()),
            Event::Ready(warning) => {
                self.warning = warning.trim_end().to_owned();
                if announced && !self.warning.is_empty() {
                    say(&self.warning);
                }
                if self.plan.brokered {
                    self.store.hurry();
                }
            }
            Event::Ended(_) if self.plan.brokered => {
                // Its area ended with the core. The store has acknowledged nothing that is not in
                // it.
                self.store.terminate();
                self.store.stop(STORE_GRACE).await;
            }
            Event::Failed | Event::Ended(_) => {}
        }
    }

    async fn store_event(&mut self, event: Event, announced: bool) {
        note(&self.store, &event, announced, "starting it again");
        match event {
            Event::Due => self.start_store().await,
            Event::Ready(report) => match StartupReport::parse(report.trim_end()) {
                Ok(report) => self.ready = report,
                Err(source) => {
                    self.store.stop(Duration::ZERO).await;
                    self.store.fail(Error::Start { what: "store", source });
                }
            },
            Event::Failed | Event::Ended(_) => {}
        }
    }

    /// Starts the store, with the size that its area has now.
    async fn start_store(&mut self) {
        match self.request(Connection::status).await {
            Ok(status) if self.plan.area.is_some() => {
                let own = status.vsas.iter().find(|vsa| vsa.name == self.plan.settings.vsa);
                self.area = own.map(|vsa| vsa.size).or(self.plan.area);
            }
            Ok(_) => {}
            Err(cause) => {
                // A daemon that was here before has ended: this process runs one from now on.
                self.foreign = false;
                return self.store.fail(cause);
            }
        }
        self.store.start(self.plan.store(self.area));
    }

    fn failing(&self) -> Vec<Failing> {
        let own = [&self.daemon, &self.service, &self.store].into_iter().filter_map(|part| part.failing());
        own.chain(self.file_systems.failing()).collect()
    }

    /// Prints the banner. Returns false if the daemon has ended just now.
    async fn announce(&self) -> Result<bool, Error> {
        let Ok(status) = self.request(Connection::status).await else { return Ok(false) };
        let serving = banner::Serving {
            store: self.store.pid().filter(|_| self.store.serves()).map(|pid| (pid, &self.ready)),
            area: self.area,
            service: self.service.pid(),
            file_systems: self.file_systems.running().collect(),
            failing: self.failing(),
            warning: &self.warning,
        };
        let text = banner::render(&self.plan, &status, &serving, Palette::of_stdout());
        match output::print(&text) {
            // `sietch up | head -1` closes the pipe; the store serves all the same.
            Ok(()) | Err(Error::OutputClosed) => Ok(true),
            Err(other) => Err(other),
        }
    }

    fn record(&self) -> Record {
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        let ready = self.store.serves().then(|| self.ready.clone());
        let (store, data) = (self.store.pid(), self.plan.data.clone());
        let unmounted = self.file_systems.unmounted().collect();
        Record { pid, store, data, ready, failing: self.failing(), unmounted }
    }

    /// Sends the daemon a request, on a thread that may wait.
    async fn request<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Connection) -> Result<T, CallError> + Send + 'static,
    ) -> Result<T, Error> {
        let socket: PathBuf = self.plan.socket.clone();
        let answer =
            tokio::task::spawn_blocking(move || Ok(call(&mut administration::connect_now(&socket)?)?));
        answer.await.unwrap_or_else(|cause| Err(Error::Start { what: "request", source: cause.into() }))
    }

    /// Ends everything in order.
    async fn stop(&mut self) {
        self.store.terminate();
        if !self.store.stop(STORE_GRACE).await {
            say("the store did not stop in time and was killed");
        }
        for name in self.file_systems.stop().await {
            say(&format!("{name} did not end in time and was killed; its log is kept"));
        }
        if self.service.pid().is_some() {
            self.service.terminate();
            self.service.stop(SERVICE_GRACE).await;
            // The service has ended. Its programs go to the kernel, as without it.
            paths::remove_sockets_beside(&self.plan.socket);
        }
        if self.daemon.pid().is_some() && self.request(Connection::shutdown).await.is_err() {
            // It does not answer; a signal has the same effect.
            self.daemon.terminate();
        }
        if !self.daemon.stop(DAEMON_GRACE).await {
            let log = self.plan.data.join("daemon.log");
            say(&format!("the daemon did not stop in time and was killed; see {}", log.display()));
        }
    }

    /// Ends everything at once.
    async fn kill(&mut self) {
        self.store.stop(Duration::ZERO).await;
        self.file_systems.kill().await;
        self.service.stop(Duration::ZERO).await;
        // Only the daemon can remove its devices: it gets a second signal, and a moment.
        self.daemon.terminate();
        self.daemon.stop(Duration::from_secs(1)).await;
    }
}

/// Reports what became of a part. Failed starts are repeated in silence, but for the one after
/// which it counts as failing. Nothing is said before the banner, which has it.
fn note(part: &Part, event: &Event, announced: bool, then: &str) {
    match event {
        Event::Ended(how) => say(&format!("{} ended ({how}); {then}", part.name)),
        Event::Failed if announced && part.has_given_up_hope() => {
            if let Some(failing) = part.failing() {
                say(&failing.to_string());
            }
        }
        Event::Ready(_) if announced => say(&format!("{} is up again", part.name)),
        Event::Due | Event::Ready(_) | Event::Failed => {}
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
