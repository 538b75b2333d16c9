//! Runs the server on real devices, from start to end.
//!
//! 1. Acquire the storage area (unless no log is kept) and the VNIC from the control plane;
//!    recover; open the transports; start a thread for each shard but the first ([`members`]);
//!    report that the store serves ([`start`], [`devices`]).
//! 2. Iterate. After an iteration in which nothing happened, poll for as long as that has paid
//!    lately ([`idle`]), then sleep on every doorbell ([`doorbells`]).
//! 3. A revoked VNIC is closed with its clients; everything else continues. So it does if the
//!    socket service revokes the store, whose clients through memory end. A VNIC that was a link is
//!    acquired again ([`lost_devices`], [`reacquire`]). So is an area whose service core ended:
//!    once it is granted, the store ends, and its supervisor restarts it.
//! 4. At SIGTERM, SIGINT, SHUTDOWN, or the end of the daemon, the server stops reading, makes all
//!    effects durable, and closes the log in order ([`shutdown`]).
//!
//! This thread is core 0. It alone has the lease, the signals, the VNIC, the log, the key view and
//! the counters' pages, and it accepts all clients.

use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use sietch::disk::{AreaQueue, DiskQueue as _};
use sietch::{Lease, Vnic, VnicQueue};
use sietch_ring::thread_doorbell::EventDoorbell;

use super::key_view::KeyView;
use super::metrics::MetricsPages;
use super::reactor::Reactor;
use super::{Error, Options};
use crate::shard::Now;

mod devices;
mod doorbells;
mod idle;
mod lost_devices;
mod members;
mod pace;
mod password;
mod process;
mod reacquire;
mod shutdown;
mod start;
mod wake_up;

use doorbells::{AREA_GRANTED, CORES, LEASE, LINK_GRANTED, LINK_LEASE, SIGNAL};
use members::Members;
use pace::Pace;
use process::{clock, is_readable, raise_file_limit, signals};
use reacquire::Reacquisition;
use wake_up::WakeUpMeter;

/// Nanoseconds after which core 0 checks that all members run, if nothing else wakes it.
const MEMBERS_CHECKED: u64 = 1_000_000_000;

/// Serves until it is requested to stop.
///
/// # Errors
/// The store cannot start, or its log fails at the end.
pub fn run(options: Options) -> Result<(), Error> {
    let files = raise_file_limit();
    let signals = signals()?;
    let mut server = Server::start(options, signals, files)?;
    let outcome = server.serve();
    let ended = server.end();
    outcome.and(ended)
}

/// The server with all its devices.
struct Server {
    reactor: Reactor<VnicQueue, AreaQueue>,
    lease: Lease,
    report: MetricsPages,
    /// The key view of the area, if there is one.
    key_view: Option<KeyView>,
    vnic_grant: Option<sietch::Grant>,
    /// The socket of the daemon and the name of the VNIC, if it is a link: it is acquired again
    /// when its peer ends.
    link: Option<(PathBuf, String)>,
    /// The lease of a link that was acquired again.
    link_lease: Option<Lease>,
    reacquiring_link: Option<Reacquisition<(Vnic, Lease)>>,
    /// The socket of the daemon, and the reacquisition of an area whose service core ended.
    path: PathBuf,
    reacquiring_area: Option<Reacquisition<()>>,
    area_granted: bool,
    /// The address that nothing serves, and when to listen there again, in monotonic nanoseconds.
    unserved: Option<(SocketAddr, u64)>,
    area: String,
    port: u16,
    stopping: bool,
    /// The threads of the other cores, if there are several.
    members: Option<Members>,
    /// How the other cores wake this one.
    cores_doorbell: Option<EventDoorbell>,
    /// Readable at SIGTERM and SIGINT.
    signals: UnixStream,
}

impl Server {
    /// Iterates until the store must stop.
    fn serve(&mut self) -> Result<(), Error> {
        let mut doorbells = Vec::new();
        let mut pace = Pace::new(1 + self.members.as_ref().map_or(0, Members::count));
        let mut wake_ups = WakeUpMeter::open();
        while !self.stopping {
            let now = clock();
            pace.begin(&mut self.reactor, now.monotonic_ns);
            let iteration = self
                .reactor
                .iterate(now)
                .map_err(|cause| Error::System { action: "kernel sockets", cause })?;
            self.reactor.take_doorbells(&mut doorbells);
            for doorbell in doorbells.drain(..) {
                self.handle_doorbell(doorbell);
            }
            if let Some(cause) = self.reactor.take_vnic_failure() {
                tracing::warn!("the VNIC has failed: {cause}; its clients were closed");
                self.forget_vnic();
            }
            if let Some(address) = self.reactor.take_ended_listener() {
                self.note_revocation(address);
            }
            self.listen_again(now.monotonic_ns);
            if let Some(cause) = self.members.as_mut().and_then(Members::failure) {
                return Err(cause);
            }
            self.reacquire_area();
            if self.area_granted {
                return Err(Error::AreaReturned { name: self.area.clone() });
            }
            if self.reactor.shard().is_some_and(|shard| shard.shutdown_requested().is_some()) {
                self.stopping = true;
            }
            // While the reactor takes no input, it reports no doorbell either.
            self.stopping |= self.reactor.is_held() && is_readable(&self.signals);
            let more_requests = self.answer_key_view(now);
            if iteration.busy || more_requests {
                pace.busy(now.monotonic_ns);
                if self.report.is_due(now.monotonic_ns) {
                    self.report.update(&mut self.reactor, now.monotonic_ns);
                    pace.published();
                }
            } else if iteration.disk && self.disk_needs_iterations() {
                // Nothing else notices that the disk has completed it.
            } else if pace.rests(now.monotonic_ns, iteration.disk, self.reactor.has_rings()) {
                // While nothing waits for the disk, no commit has this wake-up in it.
                let measured = if iteration.disk { wake_ups.begin() } else { None };
                self.sleep(now, iteration.deadline)?;
                if let Some(wake_up) = measured.and_then(|waited| wake_ups.end(waited)) {
                    self.reactor.note_wake_up(wake_up);
                }
            }
        }
        Ok(())
    }

    /// Answers requests of the key view. Returns whether another iteration should follow soon.
    fn answer_key_view(&mut self, now: Now) -> bool {
        let Some(key_view) = &mut self.key_view else { return false };
        let mut more = key_view.is_wanted(&self.lease);
        let here = more && self.reactor.gather_stores();
        let Some(log_writer) = self.reactor.log_writer() else { return false };
        // Effects that are not in the log yet have no sequence to wait for.
        if here && !log_writer.is_blocked() {
            more = key_view.answer(&self.lease, &self.reactor.stores(), now, log_writer.log().last());
        }
        // An answer must never show effects that a failed log lacks.
        let partly = log_writer.is_awaited() || log_writer.has_failed();
        key_view.send_answers(&self.lease, if partly { log_writer.log().durable() } else { u64::MAX });
        more
    }

    /// Whether the disk has a request in flight that only another iteration completes, because the
    /// disk has no doorbell.
    fn disk_needs_iterations(&self) -> bool {
        let disk = self.reactor.log_writer().map(|log_writer| log_writer.log().disk());
        disk.is_some_and(|disk| disk.in_flight() > 0 && disk.doorbell().is_none())
    }

    /// Sleeps until a doorbell is notified or a deadline has come.
    fn sleep(&mut self, now: Now, deadline: Option<u64>) -> Result<(), Error> {
        let again = self.report.update(&mut self.reactor, now.monotonic_ns);
        // The end of a member just before the sleep begins wakes no core.
        let check = self.members.as_ref().map(|_| now.monotonic_ns.saturating_add(MEMBERS_CHECKED));
        let unserved = self.unserved.map(|(_, due)| due);
        let deadline = [deadline, again, check, unserved].into_iter().flatten().min();
        let timeout = deadline.map(|due| Duration::from_nanos(due.saturating_sub(now.monotonic_ns)));
        if timeout == Some(Duration::ZERO) {
            return Ok(());
        }
        self.reactor.sleep(timeout).map_err(|cause| Error::System { action: "sleeping", cause })
    }

    /// Does what the doorbell of this token is there for.
    fn handle_doorbell(&mut self, doorbell: u64) {
        match doorbell {
            SIGNAL => self.stopping = true,
            CORES => {
                if let Some(doorbell) = &self.cores_doorbell {
                    doorbell.clear();
                }
            }
            AREA_GRANTED => self.end_area_reacquisition(),
            LINK_GRANTED => {
                if let Err(cause) = self.adopt_link() {
                    tracing::warn!("the link cannot be used: {cause}");
                }
            }
            LEASE | LINK_LEASE => {
                self.lease.clear_doorbell();
                if let Some(lease) = &self.link_lease {
                    lease.clear_doorbell();
                }
                if self.vnic_grant.as_ref().is_some_and(sietch::Grant::is_revoked) {
                    tracing::warn!("the VNIC was revoked; its clients were closed");
                    self.reactor.detach_vnic();
                    self.forget_vnic();
                }
                if let (Some(grant), Some(transport)) = (&self.vnic_grant, self.reactor.vnic_mut()) {
                    // Either lease may hold the VNIC.
                    for lease in std::iter::once(&self.lease).chain(&self.link_lease) {
                        transport.answer(lease, grant);
                    }
                }
                if self.lease.is_ending() {
                    self.stopping = true;
                }
            }
            // The iteration polls queue and disk anyway.
            _ => {}
        }
    }
}
