//! One turn of the loop over whatever devices there are. It sleeps nowhere and reads no clock, so
//! the simulator turns it in virtual time over a simulated link and disk.

use std::io;
use std::time::Duration;

use sietch::Doorbell;
use sietch::disk::DiskQueue;
use sietch::nic::NicQueue;
use sietch_socket::SocketQueue;

use super::kernel::Listener;
use super::ledger::Ledger;
use super::routes::{Place, Routes};
use super::stall::Stalls;
use super::vnic::Door;
use crate::client::ClientId;
use crate::persistence::Usage;
use crate::shard::{Now, Shard};

/// What a turn did and what comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// Whether anything happened: another turn at once may find more.
    pub busy: bool,
    /// When the next turn is due even if no doorbell rings, in monotonic nanoseconds.
    pub deadline: Option<u64>,
    /// Whether replies wait for the disk.
    pub disk: bool,
}

/// A shard with its devices.
pub struct Plane<Q: NicQueue, D: DiskQueue> {
    pub(super) shard: Shard,
    ledger: Option<Ledger<D>>,
    door: Option<Door<Q>>,
    sockets: Option<SocketQueue>,
    routes: Routes,
    ready: Vec<ClientId>,
    writable: Vec<ClientId>,
    doorbells: Vec<u64>,
    /// The VNIC's device failed for this reason; its clients were closed.
    door_failed: Option<io::Error>,
    /// The store ends: nothing more is read or run, only what was run is made durable and answered.
    ending: bool,
    /// The keepalive that the kernel sockets were told, in seconds.
    keepalive: u64,
}

impl<Q: NicQueue, D: DiskQueue> Plane<Q, D> {
    /// Joins a shard with its log (`None`: nothing is kept, [`crate::settings::Durability::None`])
    /// and its devices.
    pub fn new(
        mut shard: Shard,
        ledger: Option<Ledger<D>>,
        door: Option<Door<Q>>,
        sockets: Option<SocketQueue>,
    ) -> Self {
        if let Some(ledger) = &ledger {
            ledger.introduce(&mut shard);
        }
        Self {
            shard,
            ledger,
            door,
            sockets,
            routes: Routes::default(),
            ready: Vec::new(),
            writable: Vec::new(),
            doorbells: Vec::new(),
            door_failed: None,
            ending: false,
            keepalive: 0,
        }
    }

    /// The turn before took so many nanoseconds.
    pub fn note_turn(&mut self, nanoseconds: u64) {
        self.shard.note_turn(nanoseconds);
    }

    /// Whose fault long turns were.
    pub(super) fn note_stalls(&mut self, stalls: &Stalls) {
        self.shard.note_stalls(stalls.own, stalls.faults);
    }

    /// What the process takes of the machine.
    pub(super) fn note_usage(&mut self, usage: Usage) {
        self.shard.persistence_mut().usage = usage;
    }

    /// The shard.
    pub fn shard(&self) -> &Shard {
        &self.shard
    }

    /// The log.
    pub fn ledger(&self) -> Option<&Ledger<D>> {
        self.ledger.as_ref()
    }

    /// Ends the plane and returns its log, to be closed.
    pub fn into_ledger(self) -> Option<Ledger<D>> {
        self.ledger
    }

    /// The VNIC's side.
    pub fn door(&self) -> Option<&Door<Q>> {
        self.door.as_ref()
    }

    /// The VNIC's side, to let it answer for itself.
    pub fn door_mut(&mut self) -> Option<&mut Door<Q>> {
        self.door.as_mut()
    }

    /// The kernel sockets.
    pub fn sockets_mut(&mut self) -> Option<&mut SocketQueue> {
        self.sockets.as_mut()
    }

    /// Sleeps until a doorbell rings or `timeout` has passed, unless frames wait already.
    ///
    /// # Errors
    /// The kernel sockets' queue is broken.
    pub fn sleep(&mut self, timeout: Option<Duration>) -> io::Result<()>
    where
        Q: Doorbell,
    {
        let Some(sockets) = &mut self.sockets else { return Ok(()) };
        if self.door.as_mut().is_some_and(|door| !door.queue_mut().arm()) {
            return Ok(());
        }
        let slept = sockets.wait(timeout);
        if let Some(door) = &mut self.door {
            door.queue_mut().disarm();
        }
        slept
    }

    /// Doorbells that rang since the last call, by token.
    pub fn take_doorbells(&mut self, out: &mut Vec<u64>) {
        out.append(&mut self.doorbells);
    }

    /// Why the VNIC's device failed, if it did since the last call.
    pub fn take_door_failure(&mut self) -> Option<io::Error> {
        self.door_failed.take()
    }

    /// Serves on another VNIC. The one before was given up.
    pub fn open_door(&mut self, door: Door<Q>) {
        self.door = Some(door);
    }

    /// Gives the VNIC up and closes its clients: it was revoked, or its device failed.
    pub fn close_door(&mut self) -> Option<Door<Q>> {
        for id in self.routes.clients(|place| matches!(place, Place::Flow(_))) {
            self.routes.remove(id);
            self.shard.disconnect(id);
        }
        self.door.take()
    }

    /// Nothing more is accepted, read or run from now on; turns only make durable and send what was
    /// run.
    pub fn stop_input(&mut self) {
        self.ending = true;
        if let Some(door) = &mut self.door {
            door.stop();
        }
    }

    /// Closes every connection after what was taken for it, and sends what that says to the peers.
    ///
    /// # Errors
    /// A device is gone.
    pub fn close_clients(&mut self, now: Now) -> io::Result<()> {
        for id in self.routes.clients(|_| true) {
            if let Some(place) = self.routes.remove(id) {
                self.shard.disconnect(id);
                self.close(place);
            }
        }
        if let Some(door) = &mut self.door {
            door.emit(now)?;
        }
        self.sockets.as_mut().map_or(Ok(()), SocketQueue::flush)
    }

    fn close(&mut self, place: Place) {
        match (place, &mut self.door, &mut self.sockets) {
            (Place::Flow(flow), Some(door), _) => door.close(flow),
            (Place::Socket(socket), _, Some(sockets)) => sockets.close(socket),
            _ => {}
        }
    }

    /// Does one turn.
    ///
    /// # Errors
    /// The kernel sockets' queue is broken. A failed log or VNIC is no error of the loop: the first
    /// refuses writes, the second closes its clients ([`Plane::take_door_failure`]).
    pub fn turn(&mut self, now: Now) -> io::Result<Turn> {
        // While the log cannot take what was already run, nothing more is run: the clients' windows
        // fill.
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
        match &mut self.ledger {
            Some(ledger) => busy |= ledger.turn(&mut self.shard, now),
            None => {
                self.shard.journal().clear();
                self.shard.seal(0);
            }
        }
        busy |= self.send_output(now);
        let mut more = false;
        if let Some(door) = &mut self.door {
            match door.emit(now) {
                Ok(left) => more = left,
                Err(cause) => {
                    self.close_door();
                    self.door_failed = Some(cause);
                }
            }
        }
        if let Some(sockets) = &mut self.sockets {
            sockets.flush()?;
        }
        Ok(Turn { busy: busy || more, deadline: self.next_deadline(), disk: self.waits_for_disk() })
    }

    /// Whether replies wait for the log.
    fn waits_for_disk(&self) -> bool {
        self.ledger.as_ref().is_some_and(Ledger::is_awaited)
    }

    /// Whether the log cannot take what was already run.
    pub(super) fn is_held(&self) -> bool {
        self.ledger.as_ref().is_some_and(|ledger| ledger.is_blocked() || ledger.is_compacting_for_room())
    }

    fn next_deadline(&self) -> Option<u64> {
        if self.is_held() {
            // Whatever else is due cannot be done before the log has moved.
            return self.ledger.as_ref().and_then(Ledger::next_deadline);
        }
        let door = self.door.as_ref().and_then(Door::next_deadline);
        let ledger = self.ledger.as_ref().and_then(Ledger::next_deadline);
        [door, ledger, self.shard.next_deadline()].into_iter().flatten().min()
    }

    fn take_input(&mut self, now: Now) -> io::Result<bool> {
        let mut busy = false;
        if let Some(door) = &mut self.door {
            busy |= door.poll(&mut self.shard, &mut self.routes, &mut self.writable, now);
        }
        let keepalive = self.shard.settings().tcp_keepalive;
        if let Some(sockets) = &mut self.sockets {
            if keepalive != self.keepalive {
                self.keepalive = keepalive;
                sockets.set_keepalive(keepalive);
            }
            let mut listener = Listener {
                shard: &mut self.shard,
                routes: &mut self.routes,
                now,
                writable: &mut self.writable,
                doorbells: &mut self.doorbells,
                ending: self.ending,
            };
            busy |= sockets.poll(&mut listener)? > 0;
        }
        Ok(busy)
    }

    /// Sends what may leave; closes who is done; reads again from who has room again.
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
        let (place, stalled) = (route.place, route.stalled);
        loop {
            let bytes = self.shard.output(id);
            if bytes.is_empty() {
                break;
            }
            let sent = match place {
                Place::Flow(flow) => self.door.as_mut().map_or(bytes.len(), |door| door.send(flow, bytes)),
                Place::Socket(socket) => {
                    self.sockets.as_mut().map_or(bytes.len(), |sockets| sockets.send(socket, bytes))
                }
            };
            let all = sent == bytes.len();
            self.shard.consumed(id, sent);
            if !all {
                break;
            }
        }
        if self.shard.wants_close(id) {
            self.routes.remove(id);
            self.shard.disconnect(id);
            self.close(place);
        } else if stalled && !self.ending && self.shard.accepts_input(id) {
            match place {
                Place::Flow(flow) => {
                    if let Some(door) = &mut self.door {
                        door.read(flow, id, &mut self.shard, &mut self.routes, now);
                    }
                }
                Place::Socket(socket) => {
                    if let Some(route) = self.routes.get(id) {
                        route.stalled = false;
                    }
                    if let Some(sockets) = &mut self.sockets {
                        sockets.resume(socket);
                    }
                }
            }
        }
    }
}
