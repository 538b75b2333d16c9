//! Ports of the software switch, and the service core that serves them.
//!
//! 1. The service core is the one connection that sent Serve. Its uid is that of `[service]`, or it
//!    is an administrator. Without a service core no port is granted.
//! 2. Granting a port creates a pair of memory. One side goes to the application, the other with
//!    the rules to the service core, which enforces them. The daemon keeps the means to revoke the
//!    link.
//! 3. When a port ends, the daemon marks it as revoked in memory and notifies the service core.
//!    When a service core ends, its ports end. Their holders are notified, and acquire again when a
//!    new core runs.
//! 4. After a restart of the daemon the two continue. The service core reports which ports it has.
//!    The daemon ends grants that it lacks, and has it drop ports that no process holds any more.

use sietch_protocol::message::MAX_HELD;
use sietch_protocol::{ErrorKind, ErrorReply, HeldGrant, HeldStorage, Notice, Reply};

use super::controller::{Control, SERVICE_CORE_ENDED, refuse};
use super::event::Answer;
use crate::configuration::Port;
use crate::device::link::descriptors;
use crate::device::port::PortPlan;
use crate::state::{Device, GrantRecord};

impl Control {
    /// The process of the service core.
    pub(super) fn service(&self) -> Option<u32> {
        let client = self.ports.service.and_then(|connection| self.clients.get(&connection));
        client.map(|client| client.process.pid)
    }

    /// Whether that connection is the service core's.
    pub(super) fn serves(&self, connection: u64) -> bool {
        self.ports.service == Some(connection)
    }

    /// The names of the ports that are held.
    pub(super) fn held_ports(&self) -> impl Iterator<Item = String> {
        let is_port = |record: &&GrantRecord| matches!(record.device, Device::Port(_));
        self.grants.values().filter(is_port).map(|record| record.name.clone())
    }

    /// The part of AcquireVnic for a port, after it was found allowed.
    pub(super) fn acquire_port(&mut self, connection: u64, port: &Port) -> Result<Answer, ErrorReply> {
        let what = format!("VNIC {}", port.name);
        let Some(service) = self.ports.service else {
            let fix = "start `sietch service`";
            return Err(refuse(
                ErrorKind::Unsupported,
                what,
                "no service core runs, which is its switch",
                fix,
            ));
        };
        let plan = PortPlan::new(port);
        let record = self.record(connection, &plan.name, |_| Device::Port(Box::new(plan.clone())))?;
        let pair = match plan.create(record.generation) {
            Ok(pair) => pair,
            Err(error) => {
                self.forget(record.grant);
                return Err(refuse(ErrorKind::Failed, error.what, error.cause, error.fix));
            }
        };
        let uid = record.process.uid;
        // The service core is one party.
        let pair = pair.charged_to([uid, u32::MAX]);
        let notice = Notice::Port(Box::new(plan.port(record.grant, record.generation, uid)));
        self.ports.revocations.insert(record.grant, pair.revocation);
        if !self.send_notice(service, notice, descriptors(pair.far)) {
            self.forget(record.grant);
            return Err(refuse(ErrorKind::Failed, what, "the service core does not read", "restart it"));
        }
        self.counters.borrow_mut().grants += 1;
        self.log_grant(&record, "port of the switch granted");
        let body = Reply::Vnic(Box::new(plan.grant(record.grant, record.generation)));
        Ok(Answer { body, descriptors: descriptors(pair.near) })
    }

    /// Ends a port. Returns a text that says what now stops its previous holder.
    pub(super) fn unplug(&mut self, record: &GrantRecord) -> String {
        if let Some(revocation) = self.ports.revocations.remove(&record.grant)
            && let Err(error) = revocation.revoke()
        {
            let warning = format!("VNIC {}: cannot mark its memory as revoked: {error}", record.name);
            self.warn(Some(record.process.uid), warning);
        }
        let notice = Notice::Unplug { grant: record.grant };
        let service = self.ports.service;
        if service.is_some_and(|service| self.send_notice(service, notice, Vec::new())) {
            "the switch drops its port".to_owned()
        } else {
            "no service core runs, so its frames reach no destination".to_owned()
        }
    }

    /// Makes a connection the one of the service core.
    pub(super) fn serve(
        &mut self,
        connection: u64,
        has: &[HeldGrant],
        storage: Option<&HeldStorage>,
    ) -> Result<Reply, ErrorReply> {
        let process = self.client(connection)?.process.clone();
        let wanted = self.configuration.service_uid;
        if process.uid != wanted && self.check_administrator(connection).is_err() {
            let cause = format!("it is for uid {wanted}, and this process runs as uid {}", process.uid);
            let fix =
                format!("run as that user, or change [service] in {}", self.configuration.path.display());
            return Err(refuse(ErrorKind::Denied, "service core", cause, fix));
        }
        if has.len() > MAX_HELD || storage.is_some_and(|storage| storage.areas.len() > MAX_HELD) {
            return Err(refuse(
                ErrorKind::Limit,
                "service core",
                "too many ports or areas",
                "name those it was given",
            ));
        }
        if let Some(pid) = self.service().filter(|_| self.ports.service != Some(connection)) {
            let cause = format!("pid {pid} is the service core already");
            return Err(refuse(ErrorKind::Busy, "service core", cause, "end that process first"));
        }
        self.ports.service = Some(connection);
        tracing::info!(pid = process.pid, ports = has.len(), "the service core is here");
        for port in has {
            let is_current = |record: &GrantRecord| {
                record.generation == port.generation && matches!(record.device, Device::Port(_))
            };
            if !self.grants.get(&port.grant).is_some_and(is_current) {
                self.send_notice(connection, Notice::Unplug { grant: port.grant }, Vec::new());
            }
        }
        self.end_ports(has);
        if let Some(storage) = storage {
            self.serve_storage(connection, storage);
        }
        Ok(Reply::Done)
    }

    /// A connection has closed. Ends the ports if it was the service core's connection.
    pub(super) fn service_core_closed(&mut self, connection: u64) {
        if self.ports.service.take_if(|service| *service == connection).is_some() {
            self.end_ports(&[]);
        }
        self.storage_core_closed(connection);
    }

    /// Ends the grants of all ports but those that the service core has.
    fn end_ports(&mut self, but: &[HeldGrant]) {
        let lost = |record: &&GrantRecord| {
            let kept =
                but.iter().any(|port| port.grant == record.grant && port.generation == record.generation);
            matches!(record.device, Device::Port(_)) && !kept
        };
        for record in self.grants.values().filter(lost).cloned().collect::<Vec<_>>() {
            if let Some(revocation) = self.ports.revocations.remove(&record.grant) {
                // The holder is notified as well.
                let _ = revocation.revoke();
            }
            self.leave(&record, SERVICE_CORE_ENDED);
        }
    }
}
