//! The control task's events: restoring what an earlier daemon left, handling each event, and
//! ending.
//!
//! 1. [`Control::restore`] runs once, before the first event. It adopts each recorded grant whose
//!    process runs and whose device works. It removes the devices of all others.
//! 2. [`Control::handle`] handles one event at a time, so no state needs a lock. A request is
//!    answered at once, or its `answer` goes to work that runs elsewhere and comes back as an
//!    event.
//! 3. Every request needs a handshake first. Requests of administrators are checked last, and only
//!    over their own socket.
//! 4. When a connection closes, its queries, captures and service-core role end. The grants of its
//!    process stay for [`GRACE`], so that the process can reconnect.
//! 5. When a process ends, all its grants end. The pidfd reports that, not the socket: a child may
//!    have inherited the socket.
//!
//! A handler must not block: file and device work runs on blocking threads, or is asynchronous.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use sietch_protocol::closer::SentDescriptor;
use sietch_protocol::message::{MAX_HELD, is_name};
use sietch_protocol::{ErrorKind, ErrorReply, Notice, PROTOCOL, Reply, Request, Welcome};
use tokio::sync::oneshot;

use super::areas::shown_area;
use super::controller::{Client, Control, GRACE, MOST_PAGES, refuse};
use super::event::{Answer, Event, Outgoing};
use super::grants::key;
use super::tables::DiagnosticKind;
use crate::device::{Adoption, VnicPlan};
use crate::error::Error;
use crate::identity::Process;
use crate::options::VERSION;
use crate::state::{Device, GrantRecord, Remembered};

impl Control {
    /// Adopts what an earlier daemon left, and removes orphans.
    pub(crate) async fn restore(&mut self, remembered: Remembered) -> Result<(), Error> {
        self.revoked = remembered.revoked;
        self.uplink_kept = remembered.uplink;
        // Before anything of it is changed: this daemon may not come to its end.
        let before = self.devices.uplink_before(None, self.uplink_kept.clone()).await;
        self.keep_uplink(before)?;
        let grants = remembered.grants.into_iter().map(|(grant, record)| {
            let pidfd = record.process.open();
            (grant, record, pidfd)
        });
        let grants: Vec<_> = grants.collect();
        let held = grants.iter().filter_map(|(grant, record, pidfd)| match (&record.device, pidfd) {
            (Device::Vnic(plan), Some(pidfd)) => {
                let (plan, pid) = ((**plan).clone(), record.process.pid);
                Some((*grant, Adoption { plan, pid, pidfd: pidfd.try_clone().ok()? }))
            }
            _ => None,
        });
        let (numbers, adoptions): (Vec<u64>, Vec<Adoption>) = held.unzip();
        let mut adopted: BTreeMap<u64, _> =
            numbers.into_iter().zip(self.devices.adopt(adoptions).await).collect();
        for (grant, record, pidfd) in grants {
            let revoked = self.revoked.contains(&key(record.device.sort(), &record.name));
            let adopted = match (&record.device, &pidfd) {
                (_, None) => Err("its process has ended".to_owned()),
                // The state had no room for the end of the grant.
                _ if revoked => Err("it was revoked".to_owned()),
                // The two ends of a link hold all there is of it, as do holder and switch of a
                // port.
                (Device::Vsa { .. } | Device::Link(_) | Device::Port(_), Some(_)) => Ok(()),
                (Device::Vnic(_), Some(_)) => match adopted.remove(&grant) {
                    Some(adopted) => adopted.map_err(|error| error.to_string()),
                    None => Err("no descriptor is left".to_owned()),
                },
            };
            match (adopted, pidfd) {
                (Ok(()), Some(pidfd)) => {
                    self.watch(&record.process, pidfd);
                    tracing::info!(grant, name = record.name, pid = record.process.pid, "adopted");
                    self.grants.insert(grant, record);
                    self.counters.borrow_mut().grants_adopted += 1;
                }
                (adopted, _) => {
                    let why = adopted.err().unwrap_or_default();
                    tracing::info!(grant, name = record.name, why, "not adopted");
                    match &record.device {
                        Device::Vnic(plan) => {
                            let closed = self.devices.close(record.process.uid, plan).await;
                            closed.result.unwrap_or_else(|error| {
                                self.warn(Some(record.process.uid), error.to_string())
                            });
                        }
                        _ => self.unmake(&record),
                    }
                    self.counters.borrow_mut().orphans_removed += 1;
                    self.state.forget(grant)?;
                }
            }
        }
        self.drop_unpaired_ends();
        self.leave_areas();
        let plans: Vec<VnicPlan> = self.plans().cloned().collect();
        match self.devices.remove_others(plans).await {
            Ok(removed) => self.counters.borrow_mut().orphans_removed += removed.len() as u64,
            Err(error) => self.warn(None, error.to_string()),
        }
        Ok(())
    }

    /// Handles one event; `Break` ends the daemon.
    pub(crate) async fn handle(&mut self, event: Event) -> ControlFlow<()> {
        match event {
            Event::Connected { connection, process, administers, pidfd, outbox } => {
                self.watch(&process, pidfd);
                let (attends, views) = (None, BTreeSet::new());
                let (name, pages) = (String::new(), Vec::new());
                let client = Client { process, administers, name, outbox, pages, attends, views };
                self.clients.insert(connection, client);
            }
            Event::Request { connection, request, descriptors, answer } => {
                return self.request(connection, request, descriptors, answer).await;
            }
            Event::Disconnected { connection } => self.disconnected(connection),
            Event::Exited(process) => self.exited(&process),
            Event::Alone { process, epoch } => {
                let connected = self.clients.values().any(|client| client.process == process);
                if !connected && self.watches.get(&process).is_some_and(|watch| watch.epoch == epoch) {
                    self.end_all(&process, "its process has not reconnected");
                }
            }
            Event::Area { grant, name, result, answer } => self.area_ready(grant, &name, result, answer),
            Event::Worked { path, change, result, requester, answer } => {
                self.worked(&path, change, result, requester.as_ref(), answer);
            }
            Event::Overdue { question } => self.overdue(question),
            Event::ViewOverdue { question } => self.view_overdue(question),
            Event::Inspect => self.inspect(),
            Event::Shut { label, left, result } => self.shut_done(label, left, result),
            Event::CheckRings => self.check_rings(),
            Event::UplinkFound { grant, before, user, answer } => {
                self.uplink_found(grant, before, user, answer);
            }
            Event::Opened { grant, opened, user, answer } => self.veth_opened(grant, opened, user, answer),
            Event::Bound { grant, bound, answer } => self.veth_bound(grant, bound, answer),
            Event::Closed { grant, closed } => self.veth_closed(grant, closed),
            Event::Examined { problems, answer } => {
                let status = Reply::Status(Box::new(self.status(problems.into_iter().collect())));
                self.respond(answer, Ok(status.into()));
            }
            Event::RingsChecked(found) => self.rings_checked(found),
            Event::Stop(why) => {
                tracing::info!(why, "ending");
                self.take_down(why).await;
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }

    async fn request(
        &mut self,
        connection: u64,
        request: Request,
        descriptors: Vec<SentDescriptor>,
        answer: oneshot::Sender<Answer>,
    ) -> ControlFlow<()> {
        let stop = matches!(request, Request::Shutdown);
        let Some((request, answer)) = self.wait_for_broker(connection, request, answer) else {
            return ControlFlow::Continue(());
        };
        self.counters.borrow_mut().requests += 1;
        let outcome = match request {
            Request::AcquireVsa { name } => match self.begin_vsa(connection, &name) {
                Ok(record) => {
                    self.prepare_area(record, answer);
                    return ControlFlow::Continue(());
                }
                Err(error) => Err(error),
            },
            Request::CreateVsa { .. }
            | Request::ResizeVsa { .. }
            | Request::TrimVsa { .. }
            | Request::DeleteVsa { .. }
            | Request::ListVsas { .. }
            | Request::Volumes => {
                self.store(connection, request, answer);
                return ControlFlow::Continue(());
            }
            Request::AcquireVnic { name } => {
                self.acquire_vnic(connection, name, answer);
                return ControlFlow::Continue(());
            }
            Request::BindVnic { grant } => {
                self.bind_vnic(connection, grant, answer);
                return ControlFlow::Continue(());
            }
            Request::Release { grant } => {
                self.release(connection, grant, answer);
                return ControlFlow::Continue(());
            }
            Request::Status | Request::Stat { .. } | Request::Revoke { .. } => {
                let known = self.client(connection).map(|_| ());
                match known.and_then(|()| self.check_administrator(connection)) {
                    Ok(()) => {
                        self.administer_later(request, answer);
                        return ControlFlow::Continue(());
                    }
                    Err(error) => Err(error),
                }
            }
            Request::ReadVsa { name } => self.open_for_reading(connection, &name),
            Request::ReadVsaAt { name, offset, length } => {
                self.read_piece(connection, &name, offset, length, answer);
                return ControlFlow::Continue(());
            }
            Request::View { name, question } => {
                self.query_view(connection, &name, question, answer);
                return ControlFlow::Continue(());
            }
            Request::Sockets { vnic } => {
                self.query_diagnostics(connection, &vnic, descriptors, DiagnosticKind::Sockets, answer);
                return ControlFlow::Continue(());
            }
            Request::Capture { vnic } => {
                self.query_diagnostics(connection, &vnic, descriptors, DiagnosticKind::Capture, answer);
                return ControlFlow::Continue(());
            }
            other => self.answer(connection, other, descriptors),
        };
        let stop = stop && outcome.is_ok();
        if stop {
            self.take_down("requested").await;
        }
        self.respond(answer, outcome);
        if stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn answer(
        &mut self,
        connection: u64,
        request: Request,
        descriptors: Vec<SentDescriptor>,
    ) -> Result<Answer, ErrorReply> {
        if let Request::Hello { protocol, client } = request {
            return self.hello(connection, protocol, client).map(Into::into);
        }
        self.client(connection)?;
        match request {
            Request::Serve { ports, storage } => {
                self.serve(connection, &ports, storage.as_ref()).map(Into::into)
            }
            Request::Detached { grant } => self.detached(connection, grant).map(Into::into),
            Request::Reshaped { grant } => self.reshaped(connection, grant).map(Into::into),
            Request::Attend { grants, views } => self.attend(connection, &grants, &views).map(Into::into),
            Request::Show { id, outcome } => self.shown(connection, id, outcome, descriptors).map(Into::into),
            Request::Inform { id, outcome } => {
                self.inform(connection, id, outcome, descriptors).map(Into::into)
            }
            Request::Adopt { grants } => {
                if grants.len() > MAX_HELD {
                    let cause = format!("{} grants are over the limit of {MAX_HELD}", grants.len());
                    return Err(refuse(ErrorKind::Limit, "adopt", cause, "name them in parts"));
                }
                let process = self.client(connection)?.process.clone();
                let held = grants.iter().map(|held| self.adopt(&process, *held)).collect();
                Ok(Reply::Adopted(held).into())
            }
            Request::PublishMetrics { label } => self.publish(connection, label, descriptors).map(Into::into),
            other => {
                self.check_administrator(connection)?;
                self.administer(other).map(Into::into)
            }
        }
    }

    fn hello(&mut self, connection: u64, protocol: u32, client: String) -> Result<Reply, ErrorReply> {
        if protocol != PROTOCOL {
            let cause = format!("the client speaks protocol {protocol}, this daemon {PROTOCOL}");
            return Err(refuse(ErrorKind::Version, "handshake", cause, "use programs of one version"));
        }
        if !is_name(&client) {
            let fix = "use 1 to 32 letters, digits, `-` and `_`";
            return Err(refuse(ErrorKind::Invalid, "handshake", "the client's name is no name", fix));
        }
        let administrator = self.check_administrator(connection).is_ok();
        if let Some(entry) = self.clients.get_mut(&connection) {
            entry.name = client;
        }
        let (daemon, generation) = (VERSION.to_owned(), self.state.starts);
        Ok(Reply::Welcome(Welcome { protocol, daemon, generation, pid: std::process::id(), administrator }))
    }

    fn publish(
        &mut self,
        connection: u64,
        label: String,
        descriptors: Vec<SentDescriptor>,
    ) -> Result<Reply, ErrorReply> {
        let invalid =
            |cause: String| refuse(ErrorKind::Invalid, "metrics page", cause, "make it with metrics::Page");
        if !is_name(&label) {
            return Err(invalid("the label is no name".to_owned()));
        }
        let [page] = <[SentDescriptor; 1]>::try_from(descriptors)
            .map_err(|given| invalid(format!("{} descriptors instead of one", given.len())))?;
        sietch_protocol::metrics::check_sealed(&page).map_err(|error| invalid(error.to_string()))?;
        let serves = self.serves(connection);
        let most = if serves { 2 * MAX_HELD } else { MOST_PAGES };
        let ports: BTreeSet<String> = if serves { self.held_ports().collect() } else { BTreeSet::new() };
        let shown = |grants: &BTreeMap<u64, GrantRecord>, label: &str| {
            !serves || ports.contains(label) || shown_area(grants, label).is_some()
        };
        let grants = &self.grants;
        if let Some(client) = self.clients.get_mut(&connection) {
            // Pages of ports that have ended make room.
            client.pages.retain(|(other, _)| *other != label && shown(grants, other));
            if client.pages.len() >= most {
                return Err(refuse(
                    ErrorKind::Limit,
                    "metrics page",
                    format!("this connection shows {most} already"),
                    "put more counters on one page",
                ));
            }
            client.pages.push((label, page));
        }
        Ok(Reply::Done)
    }

    pub(super) fn disconnected(&mut self, connection: u64) {
        self.end_diagnostics_of(connection);
        self.end_views_of(connection);
        self.service_core_closed(connection);
        let Some(client) = self.clients.remove(&connection) else { return };
        let process = client.process;
        if self.clients.values().any(|other| other.process == process) {
            return;
        }
        if self.grants.values().any(|record| record.process == process) {
            let epoch = self.watches.get(&process).map_or(0, |watch| watch.epoch);
            let events = self.events.clone();
            tokio::task::spawn_local(async move {
                tokio::time::sleep(GRACE).await;
                let _ = events.send(Event::Alone { process, epoch }).await;
            });
        } else {
            self.unwatch(&process);
        }
    }

    fn exited(&mut self, process: &Process) {
        // A child may have inherited the socket: it is not the process that the kernel named.
        self.clients.retain(|_, client| client.process != *process);
        self.end_all(process, "its process has ended");
        self.watches.remove(process);
    }

    async fn take_down(&mut self, why: &str) {
        let notice = Notice::ShuttingDown { reason: why.to_owned() };
        for client in self.clients.values() {
            // A client that does not read its notices sees only the end of its connection.
            let _ = client.outbox.try_send(Outgoing { notice: notice.clone(), descriptors: Vec::new() });
        }
        for record in self.grants.values().cloned().collect::<Vec<_>>() {
            let Device::Vnic(plan) = &record.device else {
                self.end(record.grant, "the daemon ends");
                continue;
            };
            // Also one that is closing already: a second close finds nothing, which is no error.
            let closed = self.devices.close(record.process.uid, plan).await;
            closed.result.unwrap_or_else(|error| self.warn(Some(record.process.uid), error.to_string()));
            self.ended(&record, "the daemon ends");
        }
        self.devices.finish().await;
        if self.uplink_kept.take().is_some()
            && let Err(error) = self.state.keep_uplink(None)
        {
            tracing::warn!(%error, "what the uplink was like is remembered still");
        }
    }
}
