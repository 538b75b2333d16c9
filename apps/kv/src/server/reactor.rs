//! The reactor: one iteration over all devices. It neither sleeps nor reads a clock, so the
//! simulator drives it in virtual time over a simulated link and disk.

use std::io;
use std::time::Duration;

use sietch::Doorbell;
use sietch::disk::DiskQueue;
use sietch::nic::NicQueue;
use sietch::stream::poller::SleepLimit;
use sietch_socket::SocketQueue;

use super::latency::LatencyAttribution;
use super::log_writer::LogWriter;
use super::transport::routes::{Connection, Routes};
use super::transport::sockets::SocketEvents;
use super::transport::spread::{Intake, NewClient};
use super::transport::streams::StreamTransport;
use super::transport::vnic::VnicTransport;
use crate::foundation::client_id::ClientId;
use crate::foundation::client_path::ClientPath;
use crate::foundation::metrics::Usage;
use crate::shard::{Now, Shard};

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
    pub(super) shard: Shard,
    log_writer: Option<LogWriter<D>>,
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
        mut shard: Shard,
        log_writer: Option<LogWriter<D>>,
        vnic: Option<VnicTransport<Q>>,
        sockets: Option<SocketQueue>,
    ) -> Self {
        if let Some(log_writer) = &log_writer {
            log_writer.initialize(&mut shard);
        }
        Self {
            shard,
            log_writer,
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

    /// Counts the last iteration, which took so many nanoseconds.
    pub fn note_iteration(&mut self, nanoseconds: u64) {
        self.shard.note_iteration(nanoseconds);
    }

    /// Publishes the causes of long iterations.
    pub(super) fn note_latency(&mut self, latency: &LatencyAttribution) {
        self.shard.note_latency(latency.own, latency.faults);
    }

    /// Publishes the resources that the process uses.
    pub(super) fn note_usage(&mut self, usage: Usage) {
        self.shard.persistence_mut().usage = usage;
    }

    /// The shard.
    pub fn shard(&self) -> &Shard {
        &self.shard
    }

    /// The log writer.
    pub fn log_writer(&self) -> Option<&LogWriter<D>> {
        self.log_writer.as_ref()
    }

    /// Ends the reactor and returns its log writer, to be closed.
    pub fn into_log_writer(self) -> Option<LogWriter<D>> {
        self.log_writer
    }

    /// The VNIC's transport.
    pub fn vnic(&self) -> Option<&VnicTransport<Q>> {
        self.vnic.as_ref()
    }

    /// The VNIC's transport, to answer inquiries about it.
    pub fn vnic_mut(&mut self) -> Option<&mut VnicTransport<Q>> {
        self.vnic.as_mut()
    }

    /// The kernel sockets.
    pub fn sockets_mut(&mut self) -> Option<&mut SocketQueue> {
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
    /// already.
    ///
    /// # Errors
    /// The kernel sockets' queue is broken.
    pub fn sleep(&mut self, timeout: Option<Duration>) -> io::Result<()>
    where
        Q: Doorbell,
    {
        let Some(sockets) = &mut self.sockets else { return Ok(()) };
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
        slept
    }

    /// Doorbells that were notified since the last call, by token.
    pub fn take_doorbells(&mut self, out: &mut Vec<u64>) {
        out.append(&mut self.doorbells);
    }

    /// Why the VNIC's device failed, if it did since the last call.
    pub fn take_vnic_failure(&mut self) -> Option<io::Error> {
        self.vnic_failed.take()
    }

    /// Serves on another VNIC, after the last one was detached.
    pub fn attach_vnic(&mut self, vnic: VnicTransport<Q>) {
        self.vnic = Some(vnic);
    }

    /// Detaches the VNIC and closes its clients: it was revoked, or its device failed.
    pub fn detach_vnic(&mut self) -> Option<VnicTransport<Q>> {
        for id in self.routes.clients(|connection| matches!(connection, Connection::Flow(_))) {
            self.routes.remove(id);
            self.shard.disconnect(id);
        }
        self.vnic.take()
    }

    /// Stops accepting, reading and running. Later iterations only make effects durable and send
    /// replies.
    pub fn stop_input(&mut self) {
        self.ending = true;
        if let Some(vnic) = &mut self.vnic {
            vnic.stop();
        }
    }

    /// Closes every connection after its output, and sends the last segments.
    ///
    /// # Errors
    /// A device has failed.
    pub fn close_clients(&mut self, now: Now) -> io::Result<()> {
        for id in self.routes.clients(|_| true) {
            if let Some(connection) = self.routes.remove(id) {
                self.shard.disconnect(id);
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
        // While the log cannot take the effects of earlier commands, no command runs: the clients'
        // windows fill.
        let held = self.is_held();
        let mut busy = false;
        if !held {
            busy |= self.take_input(now)?;
        }
        let runs = !held && !self.ending;
        if runs && self.shard.next_deadline().is_some_and(|due| due <= now.monotonic_ns) {
            self.shard.tick(now);
            busy = true;
        }
        match &mut self.log_writer {
            Some(log_writer) => busy |= log_writer.iterate(&mut self.shard, now),
            None => {
                self.shard.journal().clear();
                self.shard.seal(0);
            }
        }
        busy |= self.send_output(now);
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

    /// Whether replies or commands wait for the log.
    fn waits_for_disk(&self) -> bool {
        self.log_writer.as_ref().is_some_and(LogWriter::is_awaited)
    }

    /// Whether no command may run, because the log cannot take effects.
    pub(super) fn is_held(&self) -> bool {
        self.log_writer
            .as_ref()
            .is_some_and(|log_writer| log_writer.is_blocked() || log_writer.is_compacting_for_room())
    }

    fn next_deadline(&self) -> Option<u64> {
        if self.is_held() {
            // Nothing else can be done before the log progresses.
            return self.log_writer.as_ref().and_then(LogWriter::next_deadline);
        }
        let vnic = self.vnic.as_ref().and_then(VnicTransport::next_deadline);
        let log_writer = self.log_writer.as_ref().and_then(LogWriter::next_deadline);
        let streams = self.streams.as_ref().and_then(StreamTransport::next_deadline);
        [vnic, log_writer, streams, self.shard.next_deadline()].into_iter().flatten().min()
    }

    fn take_input(&mut self, now: Now) -> io::Result<bool> {
        let mut busy = false;
        if let Some(vnic) = &mut self.vnic {
            busy |= vnic.poll(&mut self.shard, &mut self.routes, &mut self.writable, now);
        }
        if let Some(streams) = &mut self.streams {
            let Self { shard, routes, writable, ending, intake, .. } = self;
            busy |= streams.poll(shard, routes, writable, now, *ending, intake.spread());
        }
        let mut kernel_clients = Vec::new();
        for client in self.intake.take_arrived() {
            busy = true;
            match (client, &mut self.streams) {
                (NewClient::Kernel(socket), _) => kernel_clients.push(socket),
                (NewClient::Memory(stream), Some(streams)) if !self.ending => {
                    streams.adopt(stream, &mut self.shard, &mut self.routes, now);
                }
                (NewClient::Memory(_), _) => {}
            }
        }
        let keepalive = self.shard.settings().tcp_keepalive;
        if let Some(sockets) = &mut self.sockets {
            if keepalive != self.keepalive {
                self.keepalive = keepalive;
                sockets.set_keepalive(keepalive);
            }
            let mut listener = SocketEvents {
                shard: &mut self.shard,
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
        let mut ready = std::mem::take(&mut self.ready);
        self.shard.take_ready(&mut ready);
        ready.append(&mut self.writable);
        let busy = !ready.is_empty();
        for id in ready.drain(..) {
            self.serve(id, now);
        }
        self.ready = ready;
        busy
    }

    fn serve(&mut self, id: ClientId, now: Now) {
        let Some(route) = self.routes.get(id) else { return };
        let (connection, stalled) = (route.connection, route.stalled);
        loop {
            let bytes = self.shard.output(id);
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
            self.shard.consumed(id, sent);
            if !all {
                break;
            }
        }
        if self.shard.wants_close(id) {
            self.drop_client(id, connection);
        } else if stalled && !self.ending && self.shard.accepts_input(id) {
            match connection {
                Connection::Flow(flow) => {
                    if let Some(vnic) = &mut self.vnic {
                        vnic.read(flow, id, &mut self.shard, &mut self.routes, now);
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
        self.shard.disconnect(id);
        self.close(connection);
    }
}

#[cfg(test)]
mod tests;
