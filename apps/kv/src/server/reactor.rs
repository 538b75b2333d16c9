//! The reactor: one iteration over all devices. It neither sleeps nor reads a clock, so the
//! simulator drives it in virtual time over a simulated link and disk.

use std::io;
use std::time::Duration;

use sietch::Doorbell;
use sietch::disk::DiskQueue;
use sietch::nic::NicQueue;
use sietch::stream::poller::SleepLimit;
use sietch_socket::SocketQueue;

use super::cores::Cores;
use super::cores::links::Links;
use super::latency::LatencyAttribution;
use super::log_writer::LogWriter;
use super::transport::routes::{Connection, Routes};
use super::transport::sockets::SocketEvents;
use super::transport::spread::{Intake, NewClient};
use super::transport::streams::StreamTransport;
use super::transport::vnic::VnicTransport;
use crate::data::keyspace::Store;
use crate::foundation::client_id::ClientId;
use crate::foundation::client_path::ClientPath;
use crate::foundation::metrics::Usage;
use crate::shard::{Now, Placement, Shard};

/// What an iteration did, and when the next one is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Iteration {
    /// Whether anything happened: another iteration at once may find more.
    pub busy: bool,
    /// When the next iteration is due even without a doorbell, in monotonic nanoseconds.
    pub deadline: Option<u64>,
    /// Whether replies or commands wait for the disk.
    pub disk: bool,
}

/// A shard with its devices.
pub struct Reactor<Q: NicQueue, D: DiskQueue> {
    /// Not there while another core has it.
    pub(super) shard: Option<Box<Shard>>,
    log_writer: Option<LogWriter<D>>,
    /// The other cores, if there are any.
    cores: Option<Cores>,
    /// Clients that have gone while another core had the shard.
    gone: Vec<ClientId>,
    vnic: Option<VnicTransport<Q>>,
    sockets: Option<SocketQueue>,
    streams: Option<StreamTransport>,
    routes: Routes,
    /// How this core gets clients, if it is one of several.
    intake: Intake,
    ready: Vec<ClientId>,
    writable: Vec<ClientId>,
    doorbells: Vec<u64>,
    /// Why the VNIC's device failed; its clients were closed.
    vnic_failed: Option<io::Error>,
    /// The store ends: no input is read or run any more; effects become durable and replies leave.
    ending: bool,
    /// The keepalive of the kernel sockets, in seconds.
    keepalive: u64,
}

impl<Q: NicQueue, D: DiskQueue> Reactor<Q, D> {
    /// A reactor of a shard, its log (`None` with
    /// [`crate::foundation::settings::Durability::None`]) and its devices.
    pub fn new(
        shard: impl Into<Box<Shard>>,
        log_writer: Option<LogWriter<D>>,
        vnic: Option<VnicTransport<Q>>,
        sockets: Option<SocketQueue>,
    ) -> Self {
        let mut shard = shard.into();
        if let Some(log_writer) = &log_writer {
            log_writer.initialize(&mut shard);
        }
        Self {
            shard: Some(shard),
            log_writer,
            cores: None,
            gone: Vec::new(),
            vnic,
            sockets,
            streams: None,
            routes: Routes::default(),
            intake: Intake::default(),
            ready: Vec::new(),
            writable: Vec::new(),
            doorbells: Vec::new(),
            vnic_failed: None,
            ending: false,
            keepalive: 0,
        }
    }

    /// Serves as one core of a store with several. The shard is that of `placement`, and has been
    /// recovered with the others. Core 0 has the log writer, if there is a log.
    pub(super) fn join(&mut self, placement: Placement, links: Box<dyn Links>) {
        let Some(shard) = &self.shard else { return };
        if let Some(log_writer) = &mut self.log_writer {
            log_writer.serve_cores(placement.count());
        }
        self.cores = Some(Cores::new(placement, shard.settings().durability, links));
    }

    /// Counts the last iteration, which took so many nanoseconds.
    pub(crate) fn note_iteration(&mut self, nanoseconds: u64) {
        if let Some(shard) = &mut self.shard {
            shard.note_iteration(nanoseconds);
        }
    }

    /// Publishes the causes of long iterations.
    pub(super) fn note_latency(&mut self, latency: &LatencyAttribution) {
        if let Some(shard) = &mut self.shard {
            shard.note_latency(latency.own, latency.faults);
        }
    }

    /// Notes that the last sleep ended with a wait of so many nanoseconds for a processor.
    pub(super) fn note_wake_up(&mut self, nanoseconds: u64) {
        if let Some(shard) = &mut self.shard {
            shard.persistence_mut().commits.woken(nanoseconds);
        }
    }

    /// Publishes the resources that the process uses.
    pub(super) fn note_usage(&mut self, usage: Usage) {
        if let Some(shard) = &mut self.shard {
            shard.note_usage(usage);
        }
    }

    /// The shard. A member lends it to the coordinator from time to time; it is not there then.
    pub fn shard(&self) -> Option<&Shard> {
        self.shard.as_deref()
    }

    /// Whether the data sets of all cores are here ([`Reactor::stores`]). If not, this asks for
    /// them: they are here between some later iteration and the next.
    pub(super) fn gather_stores(&mut self) -> bool {
        self.cores.as_mut().is_none_or(Cores::show)
    }

    /// The data sets of all cores, in the order of the shards, if they are here.
    pub(super) fn stores(&self) -> Vec<&Store> {
        let others = self.cores.as_ref().map_or(&[][..], Cores::shown);
        let all = self.shard.iter().chain(others);
        all.map(|shard| shard.store()).collect()
    }

    /// The log writer.
    pub(crate) fn log_writer(&self) -> Option<&LogWriter<D>> {
        self.log_writer.as_ref()
    }

    /// Ends the reactor and returns its log writer, to be closed.
    pub(crate) fn into_log_writer(self) -> Option<LogWriter<D>> {
        self.log_writer
    }

    /// The VNIC's transport.
    pub fn vnic(&self) -> Option<&VnicTransport<Q>> {
        self.vnic.as_ref()
    }

    /// The VNIC's transport, to answer inquiries about it.
    pub(crate) fn vnic_mut(&mut self) -> Option<&mut VnicTransport<Q>> {
        self.vnic.as_mut()
    }

    /// The kernel sockets.
    pub(crate) fn sockets_mut(&mut self) -> Option<&mut SocketQueue> {
        self.sockets.as_mut()
    }

    /// Serves clients through memory as well. The server must sleep on their doorbell, too.
    pub(super) fn attach_streams(&mut self, streams: StreamTransport) {
        self.streams = Some(streams);
    }

    /// Shares its clients with other cores.
    pub(super) fn share_clients(&mut self, intake: Intake) {
        self.intake = intake;
    }

    /// The clients through memory.
    pub(super) fn streams(&self) -> Option<&StreamTransport> {
        self.streams.as_ref()
    }

    /// The address on which to listen again, once, if the service has ended the listening socket.
    pub(super) fn take_ended_listener(&mut self) -> Option<std::net::SocketAddr> {
        self.streams.as_mut()?.take_ended()
    }

    /// The number of clients that come on `path`.
    pub(super) fn clients_on(&self, path: ClientPath) -> u64 {
        self.routes.count(path)
    }

    /// Whether clients may send without a doorbell while the server polls.
    pub(super) fn has_rings(&self) -> bool {
        self.vnic.is_some() || self.streams.as_ref().is_some_and(StreamTransport::has_clients)
    }

    /// Sleeps until a doorbell is notified or `timeout` has passed, unless frames or bytes wait
    /// already. While another core has the shard, or a member is held, only another core ends it.
    ///
    /// # Errors
    /// The kernel sockets' queue is broken.
    pub(crate) fn sleep(&mut self, timeout: Option<Duration>) -> io::Result<()>
    where
        Q: Doorbell,
    {
        let Some(sockets) = &mut self.sockets else { return Ok(()) };
        if self.cores.as_mut().is_some_and(|cores| !cores.arm()) {
            return Ok(());
        }
        let has_shard = self.shard.is_some();
        // No input is taken, so bytes that wait in sockets must not end the sleep.
        if let Some(cores) = self.cores.as_mut().filter(|cores| cores.waits_for_message(has_shard)) {
            let slept = cores.wait(timeout);
            cores.disarm();
            return slept;
        }
        if self.vnic.as_mut().is_some_and(|vnic| !vnic.queue_mut().arm()) {
            return Ok(());
        }
        let limit = self.streams.as_mut().map_or(SleepLimit::Unlimited, StreamTransport::prepare_sleep);
        let slept = match (limit, timeout) {
            (SleepLimit::None, _) => Ok(()),
            (SleepLimit::Unlimited, timeout) => sockets.wait(timeout),
            (SleepLimit::Nanoseconds(most), timeout) => {
                let most = Duration::from_nanos(most);
                sockets.wait(Some(timeout.map_or(most, |timeout| timeout.min(most))))
            }
        };
        if let Some(vnic) = &mut self.vnic {
            vnic.queue_mut().disarm();
        }
        if let Some(cores) = &mut self.cores {
            cores.disarm();
        }
        slept
    }

    /// Doorbells that were notified since the last call, by token.
    pub(crate) fn take_doorbells(&mut self, out: &mut Vec<u64>) {
        out.append(&mut self.doorbells);
    }

    /// Why the VNIC's device failed, if it did since the last call.
    pub fn take_vnic_failure(&mut self) -> Option<io::Error> {
        self.vnic_failed.take()
    }

    /// Serves on another VNIC, after the last one was detached.
    pub(crate) fn attach_vnic(&mut self, vnic: VnicTransport<Q>) {
        self.vnic = Some(vnic);
    }

    /// Detaches the VNIC and closes its clients: it was revoked, or its device failed.
    pub(crate) fn detach_vnic(&mut self) -> Option<VnicTransport<Q>> {
        for id in self.routes.clients(|connection| matches!(connection, Connection::Flow(_))) {
            self.routes.remove(id);
            self.disconnect(id);
        }
        self.vnic.take()
    }

    /// Removes a client from the shard, at once or when the shard is back.
    fn disconnect(&mut self, id: ClientId) {
        match &mut self.shard {
            Some(shard) => shard.disconnect(id),
            None => self.gone.push(id),
        }
    }

    /// Stops accepting, reading and running, on all cores. Later iterations only make effects
    /// durable and send replies.
    pub(crate) fn stop_input(&mut self) {
        self.ending = true;
        if let Some(cores) = &mut self.cores {
            cores.stop();
        }
        if let Some(vnic) = &mut self.vnic {
            vnic.stop();
        }
    }

    /// Whether everything that was done before [`Reactor::stop_input`], on any core, is as durable
    /// as replies need it.
    pub(super) fn is_caught_up(&self) -> bool {
        self.log_writer.as_ref().is_none_or(LogWriter::is_caught_up)
            && self.cores.as_ref().is_none_or(Cores::all_stopped)
    }

    /// Whether this core is a member, and the coordinator has said that the store ends.
    pub(super) fn has_ended(&self) -> bool {
        self.cores.as_ref().is_some_and(Cores::has_ended)
    }

    /// Closes every connection after its output, and sends the last segments. Has the other cores
    /// end, if this is the first.
    ///
    /// # Errors
    /// A device has failed.
    pub(crate) fn close_clients(&mut self, now: Now) -> io::Result<()> {
        if let Some(cores) = &mut self.cores {
            cores.end();
        }
        for id in self.routes.clients(|_| true) {
            if let Some(connection) = self.routes.remove(id) {
                self.disconnect(id);
                self.close(connection);
            }
        }
        if let Some(vnic) = &mut self.vnic {
            vnic.emit(now)?;
        }
        self.sockets.as_mut().map_or(Ok(()), SocketQueue::flush)
    }

    fn close(&mut self, connection: Connection) {
        match (connection, &mut self.vnic, &mut self.sockets, &mut self.streams) {
            (Connection::Flow(flow), Some(vnic), _, _) => vnic.close(flow),
            (Connection::Socket(socket), _, Some(sockets), _) => sockets.close(socket),
            (Connection::Stream(stream), _, _, Some(streams)) => streams.close(stream),
            _ => {}
        }
    }

    /// Does one iteration.
    ///
    /// # Errors
    /// The kernel sockets' queue has failed. A failed log or VNIC is no error here: the log then
    /// refuses writes, and the VNIC's clients are closed ([`Reactor::take_vnic_failure`]).
    pub fn iterate(&mut self, now: Now) -> io::Result<Iteration> {
        let mut busy = self.receive();
        if self.shard.is_none() {
            return Ok(self.conclude_without_shard(busy));
        }
        // While the log cannot take the effects of earlier commands, no command runs: the clients'
        // windows fill.
        let held = self.is_held();
        if !held {
            busy |= self.take_input(now)?;
        }
        let Some(shard) = &mut self.shard else { return Ok(self.conclude_without_shard(busy)) };
        if !held {
            // At the end, too: other cores wait for what was forwarded before.
            if let Some(cores) = &mut self.cores {
                busy |= cores.serve(shard, now);
            }
            if !self.ending && shard.next_deadline().is_some_and(|due| due <= now.monotonic_ns) {
                shard.tick(now);
                busy = true;
            }
        } else if let Some(cores) = &mut self.cores {
            busy |= cores.deliver(shard, now);
        }
        if shard.takes_release() {
            // Without a thread the memory stays, until the next time.
            let _ = sietch_ring::heap::release_in_background();
        }
        busy |= self.log_effects(now);
        busy |= self.send_output(now);
        self.conclude();
        self.intake.publish(self.routes.total());
        let mut more = false;
        if let Some(vnic) = &mut self.vnic {
            match vnic.emit(now) {
                Ok(left) => more = left,
                Err(cause) => {
                    self.detach_vnic();
                    self.vnic_failed = Some(cause);
                }
            }
        }
        if let Some(sockets) = &mut self.sockets {
            sockets.flush()?;
        }
        Ok(Iteration { busy: busy || more, deadline: self.next_deadline(), disk: self.waits_for_disk() })
    }

    /// Takes messages of other cores.
    fn receive(&mut self) -> bool {
        let Some(cores) = &mut self.cores else { return false };
        let busy = cores.receive(&mut self.shard, &mut self.log_writer, &mut self.intake);
        if let Some(shard) = &mut self.shard {
            self.gone.drain(..).for_each(|id| shard.disconnect(id));
            shard.note_totals();
            if let Some(log_writer) = &mut self.log_writer {
                log_writer.append_arrived(shard);
            }
        }
        if cores.is_stopping() && !self.ending {
            self.stop_input();
        }
        busy
    }

    /// Has the effects logged, and replies sealed and released. Runs an exclusive section before,
    /// if all shards are here for one and the log has room. Announcements that another core has
    /// not delivered do not keep it back: that core may have to wait for its shard first.
    fn log_effects(&mut self, now: Now) -> bool {
        let mut busy = false;
        let held = self.is_held_by_log();
        if let Some(cores) = &mut self.cores {
            busy = cores.run_section(&mut self.shard, &mut self.log_writer, held, now);
        }
        let Some(shard) = &mut self.shard else { return busy };
        match (&mut self.log_writer, &mut self.cores) {
            (Some(log_writer), cores) => {
                let others = cores.as_mut().map_or(&mut [][..], Cores::others);
                busy |= log_writer.iterate_with(shard, others, now);
            }
            (None, Some(cores)) => busy |= cores.send_effects(shard),
            (None, None) => {
                shard.journal().clear();
                shard.seal(0);
            }
        }
        busy
    }

    /// Sends what other cores must have.
    fn conclude(&mut self) {
        let held = self.is_held();
        let Some(cores) = &mut self.cores else { return };
        cores.conclude(&mut self.shard, &mut self.log_writer, &mut self.intake, held);
        cores.flush();
    }

    /// The end of an iteration without the shard: another core has it.
    fn conclude_without_shard(&mut self, busy: bool) -> Iteration {
        self.conclude();
        Iteration { busy, deadline: None, disk: true }
    }

    /// Whether replies or commands wait for the log.
    fn waits_for_disk(&self) -> bool {
        self.log_writer.as_ref().is_some_and(LogWriter::is_awaited)
            || self.cores.as_ref().is_some_and(Cores::is_awaited)
    }

    /// Whether no command may run, because the log cannot take effects or another core has not
    /// delivered what this one has announced.
    pub(super) fn is_held(&self) -> bool {
        self.is_held_by_log() || self.cores.as_ref().is_some_and(Cores::is_held)
    }

    /// Whether the log that this core writes cannot take effects.
    fn is_held_by_log(&self) -> bool {
        self.log_writer
            .as_ref()
            .is_some_and(|log_writer| log_writer.is_blocked() || log_writer.is_compacting_for_room())
    }

    fn next_deadline(&self) -> Option<u64> {
        let dump = self.cores.as_ref().filter(|cores| cores.has_more()).map(|_| 0);
        if self.is_held() {
            // Nothing else can be done before the log or another core progresses.
            return dump.or_else(|| self.log_writer.as_ref().and_then(LogWriter::next_deadline));
        }
        let vnic = self.vnic.as_ref().and_then(VnicTransport::next_deadline);
        let log_writer = self.log_writer.as_ref().and_then(LogWriter::next_deadline);
        let streams = self.streams.as_ref().and_then(StreamTransport::next_deadline);
        let shard = self.shard.as_ref().and_then(|shard| shard.next_deadline());
        [vnic, log_writer, streams, shard, dump].into_iter().flatten().min()
    }

    fn take_input(&mut self, now: Now) -> io::Result<bool> {
        let mut busy = false;
        let Some(shard) = &mut self.shard else { return Ok(busy) };
        if let Some(vnic) = &mut self.vnic {
            busy |= vnic.poll(shard, &mut self.routes, &mut self.writable, now);
        }
        if let Some(streams) = &mut self.streams {
            let spread = self.intake.spread();
            busy |= streams.poll(shard, &mut self.routes, &mut self.writable, now, self.ending, spread);
        }
        let mut kernel_clients = Vec::new();
        for client in self.intake.take_arrived() {
            busy = true;
            match (client, &mut self.streams) {
                (NewClient::Kernel(socket), _) => kernel_clients.push(socket),
                (NewClient::Memory(stream), Some(streams)) if !self.ending => {
                    streams.adopt(stream, shard, &mut self.routes, now);
                }
                (NewClient::Memory(_), _) => {}
            }
        }
        let keepalive = shard.settings().tcp_keepalive;
        if let Some(sockets) = &mut self.sockets {
            if keepalive != self.keepalive {
                self.keepalive = keepalive;
                sockets.set_keepalive(keepalive);
            }
            let mut listener = SocketEvents {
                shard,
                routes: &mut self.routes,
                now,
                writable: &mut self.writable,
                doorbells: &mut self.doorbells,
                ending: self.ending,
                spread: self.intake.spread(),
            };
            let of_service = self.streams.as_mut().map(StreamTransport::take_kernel_clients);
            for socket in kernel_clients.into_iter().chain(of_service.into_iter().flatten()) {
                sockets.adopt(socket, &mut listener);
            }
            busy |= sockets.poll(&mut listener)? > 0;
        }
        // Any of them may be the streams' own.
        if let Some(streams) = self.streams.as_mut().filter(|_| !self.doorbells.is_empty()) {
            streams.note_doorbell();
        }
        Ok(busy)
    }

    /// Sends released output, closes finished clients, and resumes reading from clients with room
    /// for output.
    fn send_output(&mut self, now: Now) -> bool {
        let Some(shard) = &mut self.shard else { return false };
        let mut ready = std::mem::take(&mut self.ready);
        shard.take_ready(&mut ready);
        ready.append(&mut self.writable);
        let busy = !ready.is_empty();
        for id in ready.drain(..) {
            self.serve(id, now);
        }
        self.ready = ready;
        busy
    }

    fn serve(&mut self, id: ClientId, now: Now) {
        let (Some(route), Some(shard)) = (self.routes.get(id), &mut self.shard) else { return };
        let (connection, stalled) = (route.connection, route.stalled);
        loop {
            let bytes = shard.output(id);
            if bytes.is_empty() {
                break;
            }
            let sent = match connection {
                Connection::Flow(flow) => {
                    self.vnic.as_mut().map_or(bytes.len(), |vnic| vnic.send(flow, bytes))
                }
                Connection::Socket(socket) => {
                    self.sockets.as_mut().map_or(bytes.len(), |sockets| sockets.send(socket, bytes))
                }
                Connection::Stream(stream) => {
                    let sent = self.streams.as_mut().map(|streams| streams.send(stream, bytes));
                    let Some(Ok(sent)) = sent else { return self.drop_client(id, connection) };
                    sent
                }
            };
            let all = sent == bytes.len();
            shard.consumed(id, sent);
            if !all {
                break;
            }
        }
        if shard.wants_close(id) {
            self.drop_client(id, connection);
        } else if stalled && !self.ending && shard.accepts_input(id) {
            match connection {
                Connection::Flow(flow) => {
                    if let Some(vnic) = &mut self.vnic {
                        vnic.read(flow, id, shard, &mut self.routes, now);
                    }
                }
                Connection::Socket(socket) => {
                    if let Some(route) = self.routes.get(id) {
                        route.stalled = false;
                    }
                    if let Some(sockets) = &mut self.sockets {
                        sockets.resume(socket);
                    }
                }
                Connection::Stream(stream) => {
                    if let Some(route) = self.routes.get(id) {
                        route.stalled = false;
                    }
                    if let Some(streams) = &mut self.streams {
                        streams.resume(stream);
                    }
                }
            }
        }
    }

    /// Removes a client and closes its connection.
    fn drop_client(&mut self, id: ClientId, connection: Connection) {
        self.routes.remove(id);
        self.disconnect(id);
        self.close(connection);
    }
}

#[cfg(test)]
mod tests;
