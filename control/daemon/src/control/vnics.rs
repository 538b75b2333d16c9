//! VNICs of the kernel: opening, binding, closing, and checking their rings.
//!
//! 1. Another thread makes and removes veth pairs ([`crate::device::worker`]). A request begins the
//!    work, and an event reports its end; the control task serves others in between. The jobs of a
//!    VNIC run in the order in which they were queued.
//! 2. *Opening.* The grant is recorded first, so the name is held from then on. If the process ends
//!    meanwhile, the pair is removed right after it was made.
//! 3. *Closing.* The record stays until the pair is removed: a crash in between leaves a record
//!    that the next start finds. A request for the name waits until then.
//! 4. *Checking rings.* A process whose rings make the kernel walk over invalid entries is killed,
//!    and its VNIC stays revoked.

use std::collections::HashMap;
use std::future::Future;

use sietch_protocol::{ErrorKind, ErrorReply, Protection, QueueLayout, Reply, Request, VnicGrant, VnicKind};
use tokio::sync::oneshot;

use super::controller::{Control, refuse};
use super::event::{Answer, Event};
use super::grants::key;
use super::tables::{Closing, Ending, Waiter};
use crate::configuration::Vnic;
use crate::device::worker::Timed;
use crate::device::{DeviceError, OpenedVnic, RingViolation, UplinkBefore, VnicPlan};
use crate::state::{Device, GrantRecord, StateError};

impl Control {
    /// Runs `work` beside the control task, which then handles the event of its result.
    fn follow<T: 'static>(
        &self,
        work: impl Future<Output = T> + 'static,
        event: impl FnOnce(T) -> Event + 'static,
    ) {
        let events = self.events.clone();
        tokio::task::spawn_local(async move {
            let event = event(work.await);
            // The send fails only when the daemon has ended.
            let _ = events.send(event).await;
        });
    }

    /// Begins to make the VNIC `vnic`, which was found allowed.
    pub(super) fn acquire_veth(&mut self, connection: u64, vnic: &Vnic, answer: oneshot::Sender<Answer>) {
        let name = &vnic.name;
        let recorded = match self.devices.support() {
            Ok(_) => self.record(connection, name, |generation| {
                Device::Vnic(Box::new(VnicPlan::new(vnic, generation)))
            }),
            Err(why) => {
                let (cause, fix) = why.split_once("; ").unwrap_or((&why, "use `--net linux`"));
                Err(refuse(ErrorKind::Unsupported, format!("VNIC {name}"), cause, fix))
            }
        };
        let GrantRecord { grant, process, .. } = match recorded {
            Ok(record) => record,
            Err(error) => {
                self.respond(answer, Err(error));
                return;
            }
        };
        let user = vnic.served.then_some(vnic.uid);
        self.opening.insert(grant);
        if self.uplink.is_none() {
            return self.open_veth(grant, user, answer);
        }
        let before = self.devices.uplink_before(Some(process.uid), self.uplink_kept.clone());
        self.follow(before, move |before| Event::UplinkFound { grant, before, user, answer });
    }

    /// What the uplink is like is known: it is remembered before a VNIC changes it.
    pub(super) fn uplink_found(
        &mut self,
        grant: u64,
        before: Option<UplinkBefore>,
        user: Option<u32>,
        answer: oneshot::Sender<Answer>,
    ) {
        match self.keep_uplink(before) {
            Ok(()) => self.open_veth(grant, user, answer),
            Err(error) => {
                self.opening.remove(&grant);
                // If it is closing already, its record ends with that.
                if !self.closing.contains_key(&grant) {
                    self.forget(grant);
                }
                self.respond(answer, Err(refuse(ErrorKind::Failed, "state", error.cause, error.fix)));
            }
        }
    }

    /// Remembers what the uplink was like, as soon as there is one.
    pub(super) fn keep_uplink(&mut self, before: Option<UplinkBefore>) -> Result<(), StateError> {
        if before.is_some() && before != self.uplink_kept {
            self.state.keep_uplink(before.as_ref())?;
            self.uplink_kept = before;
        }
        Ok(())
    }

    fn open_veth(&mut self, grant: u64, user: Option<u32>, answer: oneshot::Sender<Answer>) {
        let record = self.grants.get(&grant).filter(|_| !self.closing.contains_key(&grant));
        let Some(GrantRecord { device: Device::Vnic(plan), process, .. }) = record else {
            self.opening.remove(&grant);
            self.respond(answer, Err(ended_meanwhile()));
            return;
        };
        let opened = self.devices.open(process.uid, plan);
        self.follow(opened, move |opened| Event::Opened { grant, opened, user, answer });
    }

    /// A VNIC was made, or could not be made.
    pub(super) fn veth_opened(
        &mut self,
        grant: u64,
        opened: Timed<Result<OpenedVnic, DeviceError>>,
        user: Option<u32>,
        answer: oneshot::Sender<Answer>,
    ) {
        self.opening.remove(&grant);
        let record = self.grants.get(&grant).cloned();
        if let Some(record) = &record {
            self.charge(record.process.uid, opened.took);
        }
        // Its end was queued behind its making.
        let record = record.filter(|_| !self.closing.contains_key(&grant));
        let outcome = match (opened.result, record) {
            (Ok(opened), Some(record)) => {
                let Device::Vnic(plan) = &record.device else { return };
                self.counters.borrow_mut().grants += 1;
                self.log_grant(&record, "VNIC granted");
                self.record_opened(grant, opened.mtu, opened.cookie);
                Ok(vnic_answer(&record, plan, opened, user))
            }
            (Err(error), Some(_)) => {
                self.forget(grant);
                Err(refuse(ErrorKind::Failed, error.what, error.cause, error.fix))
            }
            (_, None) => Err(ended_meanwhile()),
        };
        self.respond(answer, outcome);
    }

    /// Remembers the MTU of a VNIC, which may be smaller than the requested one, and the cookie of
    /// its socket.
    fn record_opened(&mut self, grant: u64, mtu: u32, socket: u64) {
        let Some(record) = self.grants.get_mut(&grant) else { return };
        let Device::Vnic(plan) = &mut record.device else { return };
        (plan.mtu, plan.socket) = (mtu, socket);
        let uid = record.process.uid;
        if let Err(error) = self.state.keep(record) {
            self.warn(Some(uid), error.to_string());
        }
    }

    /// Lets frames pass to a process that has mapped the rings. Ends a VNIC that cannot be bound.
    pub(super) fn bind_vnic(&mut self, connection: u64, grant: u64, answer: oneshot::Sender<Answer>) {
        let process = match self.client(connection) {
            Ok(client) => &client.process,
            Err(error) => {
                self.respond(answer, Err(error));
                return;
            }
        };
        let held = !self.opening.contains(&grant) && !self.closing.contains_key(&grant);
        let record = self.grants.get(&grant).filter(|record| held && record.process == *process);
        let Some(GrantRecord { device: Device::Vnic(plan), .. }) = record else {
            let (what, fix) = (format!("grant {grant}"), "name one that was given to this process");
            let refused = refuse(ErrorKind::Unknown, what, "this process has no veth VNIC under it", fix);
            self.respond(answer, Err(refused));
            return;
        };
        let bound = self.devices.bind(process.uid, plan);
        self.follow(bound, move |bound| Event::Bound { grant, bound, answer });
    }

    /// A VNIC was bound, or could not be.
    pub(super) fn veth_bound(
        &mut self,
        grant: u64,
        bound: Result<(), DeviceError>,
        answer: oneshot::Sender<Answer>,
    ) {
        let outcome = match bound {
            Ok(()) => Ok(Reply::Done.into()),
            Err(error) => {
                self.end(grant, "it could not be bound");
                Err(refuse(ErrorKind::Failed, error.what, error.cause, error.fix))
            }
        };
        self.respond(answer, outcome);
    }

    /// Begins to close a VNIC, unless that has begun.
    pub(super) fn close_veth(&mut self, record: &GrantRecord, plan: &VnicPlan, ending: Ending) {
        let grant = record.grant;
        if self.closing.contains_key(&grant) {
            return;
        }
        self.closing.insert(grant, Closing { ending, waiters: Vec::new() });
        let closed = self.devices.close(record.process.uid, plan);
        self.follow(closed, move |closed| Event::Closed { grant, closed });
    }

    /// Registers a request that waits for the end of a VNIC that is closing. Returns it if the VNIC
    /// is not closing.
    pub(super) fn wait_for_close(&mut self, grant: u64, waiter: Waiter) -> Result<(), Waiter> {
        match self.closing.get_mut(&grant) {
            Some(closing) => {
                closing.waiters.push(waiter);
                Ok(())
            }
            None => Err(waiter),
        }
    }

    /// A VNIC is removed, or could not be.
    pub(super) fn veth_closed(&mut self, grant: u64, closed: Timed<Result<(), DeviceError>>) {
        let Some(Closing { ending, waiters }) = self.closing.remove(&grant) else { return };
        let Some(record) = self.grants.get(&grant).cloned() else { return };
        self.charge(record.process.uid, closed.took);
        let (name, pid) = (&record.name, record.process.pid);
        let line = match closed.result {
            Ok(()) => format!("VNIC {name}: taken from pid {pid}; its interface is removed"),
            Err(error) => {
                self.warn(Some(record.process.uid), error.to_string());
                format!("VNIC {name}: taken from pid {pid}, but {error}")
            }
        };
        match ending {
            Ending::Ended(why) => self.ended(&record, &why),
            Ending::Revoked(why) => self.taken(&record, &why, &line),
        }
        for waiter in waiters {
            match waiter {
                Waiter::Release(answer) => {
                    self.respond(answer, Ok(Reply::Done.into()));
                }
                // Its sender has perhaps disconnected.
                Waiter::Revocation(lines) => drop(lines.send(line.clone())),
                Waiter::Acquisition { connection, name, answer } => {
                    let request = Request::AcquireVnic { name };
                    let event = Event::Request { connection, request, descriptors: Vec::new(), answer };
                    self.follow(std::future::ready(event), |event| event);
                }
            }
        }
    }

    /// Whether a VNIC of the kernel is held.
    pub(crate) fn has_vnics(&self) -> bool {
        self.plans().next().is_some()
    }

    /// Begins to check the rings of all VNICs, unless a check runs.
    pub(super) fn check_rings(&mut self) {
        if !std::mem::replace(&mut self.checks_rings, true) {
            self.follow(self.devices.check_rings(), Event::RingsChecked);
        }
    }

    /// Kills a process that makes the kernel walk over invalid entries. Its VNIC stays revoked,
    /// because a restarted process would do the same.
    pub(super) fn rings_checked(&mut self, found: Vec<RingViolation>) {
        self.checks_rings = false;
        for RingViolation { host_interface, what } in found {
            let of = |record: &&GrantRecord| matches!(&record.device, Device::Vnic(plan) if plan.host_interface == host_interface);
            let Some(record) = self.grants.values().find(of).cloned() else { continue };
            let killed = record.process.kill();
            self.devices.repair_rings(host_interface);
            let (name, pid) = (&record.name, record.process.pid);
            let how = match killed {
                Ok(()) => "the process was killed".to_owned(),
                Err(error) => format!("the process could not be killed ({error})"),
            };
            let warning = format!(
                "VNIC {name}: {what}, which costs the host time; {how} (pid {pid}), and the VNIC is revoked; `sietch restore {name}` lets \
                 it be used again"
            );
            self.warn(Some(record.process.uid), warning);
            let revoked = key("VNIC", name);
            if let Err(error) = self.state.set_revoked(&revoked, true) {
                self.warn(Some(record.process.uid), error.to_string());
            }
            self.revoked.insert(revoked);
            self.counters.borrow_mut().holders_killed += 1;
            if let Device::Vnic(plan) = &record.device {
                self.close_veth(&record, plan, Ending::Revoked(format!("{what}; see `sietch status`")));
            }
        }
    }

    /// Answers Status once the VNICs are examined: what is there counts, not what was recorded.
    pub(super) fn show_status(&mut self, answer: oneshot::Sender<Answer>) {
        self.inspect();
        let works = |record: &&GrantRecord| {
            !self.opening.contains(&record.grant) && !self.closing.contains_key(&record.grant)
        };
        let plans = self.grants.values().filter(works).filter_map(|record| match &record.device {
            Device::Vnic(plan) => Some((**plan).clone()),
            Device::Link(_) | Device::Port(_) | Device::Vsa { .. } => None,
        });
        let plans: Vec<VnicPlan> = plans.collect();
        if plans.is_empty() {
            let status = Reply::Status(Box::new(self.status(HashMap::new())));
            self.respond(answer, Ok(status.into()));
            return;
        }
        let examined = self.devices.examine(plans);
        self.follow(examined, |problems| Event::Examined { problems, answer });
    }
}

fn ended_meanwhile() -> ErrorReply {
    refuse(ErrorKind::Revoked, "VNIC", "it was released or revoked meanwhile", "try again")
}

fn vnic_answer(record: &GrantRecord, plan: &VnicPlan, opened: OpenedVnic, user: Option<u32>) -> Answer {
    let body = Reply::Vnic(Box::new(VnicGrant {
        grant: record.grant,
        generation: record.generation,
        name: plan.name.clone(),
        kind: VnicKind::Veth,
        interface: plan.application_interface.clone(),
        mac: plan.mac,
        address: plan.address.address,
        prefix: plan.address.prefix,
        address6: plan.ipv6.map(|(own, _)| own),
        gateway: Some(plan.host_address),
        gateway6: plan.ipv6.map(|(_, host)| host),
        gateway_mac: opened.gateway_mac,
        host_address: Some(plan.host_address),
        peer: None,
        mtu: opened.mtu,
        layout: QueueLayout::AfXdp(opened.layout),
        protection: Protection::KernelEnforced,
        tcp_ports: plan.tcp_ports.clone(),
        udp_ports: plan.udp_ports.clone(),
        peers: plan.peers.clone(),
        peers6: plan.peers6.clone(),
        rate: plan.rate,
        user,
    }));
    Answer { body, descriptors: vec![opened.xsk.into(), opened.umem.into()] }
}
