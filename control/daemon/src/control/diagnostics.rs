//! Queries to applications: for their sockets, and for a copy of their frames.
//!
//! 1. An application that answers queries registers each of its grants
//!    ([`Request::Attend`](sietch_protocol::Request::Attend)). Queries go to the last connection
//!    that registered.
//! 2. The query goes out as a notice. The answer comes as a request of the application. Only the
//!    requester waits for it, for at most [`LIMIT`].
//! 3. The daemon checks the answer (kind, seals, size) and passes it on unread.
//! 4. A capture ends with the connection of its requester, or with the grant. A VNIC has at most
//!    one.
//! 5. Only administrators and the VNIC's own user may query it.

use std::collections::BTreeSet;
use std::time::Duration;

use sietch_protocol::closer::SentDescriptor;
use sietch_protocol::message::{MAX_HELD, shown};
use sietch_protocol::{Capturing, ErrorKind, ErrorReply, Notice, Reply, SocketsAnswer, sockets};
use tokio::sync::oneshot;

use super::controller::{Client, Control, refuse};
use super::event::{Answer, Event};
use super::tables::{Capture, DiagnosticKind, DiagnosticQuestion};
use crate::state::{Device, GrantRecord};

/// The time that an application has to answer. An iteration of a busy data loop takes milliseconds.
const LIMIT: Duration = Duration::from_secs(1);
/// The largest ring that is passed to an application, in bytes.
const MAX_RING: u64 = 64 << 20;

impl Control {
    /// Remembers that a connection answers for `grants`, and shows views of `views` among them.
    pub(super) fn attend(
        &mut self,
        connection: u64,
        grants: &[u64],
        views: &[u64],
    ) -> Result<Reply, ErrorReply> {
        let process = self.client(connection)?.process.clone();
        if grants.len() > MAX_HELD {
            let cause = format!("{} grants are over the limit of {MAX_HELD}", grants.len());
            return Err(refuse(ErrorKind::Limit, "attend", cause, "name fewer"));
        }
        let own = |grant: &&u64| self.grants.get(grant).is_some_and(|record| record.process == process);
        let attends: BTreeSet<u64> = grants.iter().filter(own).copied().collect();
        let views = views.iter().filter(|grant| attends.contains(grant)).copied().collect();
        if let Some(client) = self.clients.get_mut(&connection) {
            (client.attends, client.views) = (Some(attends), views);
        }
        Ok(Reply::Done)
    }

    /// Queries the holder of `vnic`. `answer` is completed now or within [`LIMIT`].
    pub(super) fn query_diagnostics(
        &mut self,
        connection: u64,
        vnic: &str,
        descriptors: Vec<SentDescriptor>,
        kind: DiagnosticKind,
        answer: oneshot::Sender<Answer>,
    ) {
        match self.try_ask(connection, vnic, descriptors, kind) {
            Ok((responder, grant)) => {
                let id = self.diagnostics.next;
                self.diagnostics
                    .waiting
                    .insert(id, DiagnosticQuestion { kind, requester: connection, responder, grant, answer });
                let events = self.events.clone();
                tokio::task::spawn_local(async move {
                    tokio::time::sleep(LIMIT).await;
                    // The send fails only when the daemon has ended.
                    let _ = events.send(Event::Overdue { question: id }).await;
                });
            }
            Err(error) => {
                self.respond(answer, Err(error));
            }
        }
    }

    fn try_ask(
        &mut self,
        connection: u64,
        vnic: &str,
        descriptors: Vec<SentDescriptor>,
        kind: DiagnosticKind,
    ) -> Result<(u64, u64), ErrorReply> {
        let uid = self.client(connection)?.process.uid;
        let shown: String = vnic.chars().take(40).collect::<String>().escape_debug().collect();
        let what = format!("VNIC {shown}");
        let Some(record) = self.holder(vnic, true).cloned() else {
            let known = self.configuration.vnics.iter().any(|other| other.name == vnic)
                || self.configuration.link_end(vnic).is_some()
                || self.configuration.port(vnic).is_some();
            let cause = if known { "no process holds it" } else { "there is none of that name" };
            return Err(refuse(ErrorKind::Unknown, what, cause, "see `sietch status`"));
        };
        if record.process.uid != uid && self.check_administrator(connection).is_err() {
            let cause =
                format!("it belongs to uid {}, and this process runs as uid {uid}", record.process.uid);
            return Err(refuse(ErrorKind::Denied, what, cause, "ask as that user or as root"));
        }
        if kind == DiagnosticKind::Capture {
            self.check_ring(&what, &record, &descriptors)?;
        }
        let attends = |(number, client): (&u64, &Client)| {
            let same = client.process == record.process && client.attends(record.grant);
            same.then_some(*number)
        };
        let Some(responder) = self.clients.iter().filter_map(attends).next_back() else {
            let cause =
                format!("pid {} (`{}`) does not listen to questions", record.process.pid, record.client);
            let fix = "it may be reconnecting: try again; programs answer that use Client::hold";
            return Err(refuse(ErrorKind::Silent, what, cause, fix));
        };
        self.diagnostics.next += 1;
        let (id, grant) = (self.diagnostics.next, record.grant);
        let notice = match kind {
            DiagnosticKind::Sockets => Notice::Inquiry { id, grant },
            DiagnosticKind::Capture => Notice::Capture { id, grant },
        };
        let passed = if kind == DiagnosticKind::Capture { descriptors } else { Vec::new() };
        // A sealed memfd of that size ([`Self::check_ring`]).
        let passed = passed.into_iter().filter_map(SentDescriptor::into_trusted).map(Into::into).collect();
        if !self.send_notice(responder, notice, passed) {
            let cause = format!("pid {} does not read its notices", record.process.pid);
            return Err(refuse(ErrorKind::Silent, what, cause, "check what blocks that process"));
        }
        Ok((responder, grant))
    }

    fn check_ring(
        &self,
        what: &str,
        record: &GrantRecord,
        descriptors: &[SentDescriptor],
    ) -> Result<(), ErrorReply> {
        let invalid = |cause: &str| refuse(ErrorKind::Invalid, "capture ring", cause, "use `sietch capture`");
        let [ring] = descriptors else { return Err(invalid("not one descriptor")) };
        sietch_protocol::metrics::check_sealed(ring).map_err(|_| invalid("not a sealed memfd"))?;
        let size =
            rustix::fs::fstat(ring).map_or(u64::MAX, |stat| u64::try_from(stat.st_size).unwrap_or(u64::MAX));
        if size > MAX_RING {
            return Err(invalid("over 64 MiB"));
        }
        let expected = self
            .diagnostics
            .waiting
            .values()
            .any(|question| question.kind == DiagnosticKind::Capture && question.grant == record.grant);
        if expected || self.diagnostics.captures.iter().any(|capture| capture.grant == record.grant) {
            let fix = "end the other `sietch capture` first";
            return Err(refuse(ErrorKind::Busy, what, "its frames are being captured already", fix));
        }
        Ok(())
    }

    /// The answer of an application.
    pub(super) fn inform(
        &mut self,
        connection: u64,
        id: u64,
        outcome: Result<u64, String>,
        mut descriptors: Vec<SentDescriptor>,
    ) -> Result<Reply, ErrorReply> {
        let expected =
            self.diagnostics.waiting.get(&id).is_some_and(|question| question.responder == connection);
        let Some(question) = expected.then(|| self.diagnostics.waiting.remove(&id)).flatten() else {
            let fix = "answer within a second";
            return Err(refuse(
                ErrorKind::Unknown,
                format!("question {id}"),
                "no request waits for that answer",
                fix,
            ));
        };
        let Some(record) = self.grants.get(&question.grant).cloned() else {
            let ended = refuse(
                ErrorKind::Unknown,
                "VNIC",
                "it was released or revoked meanwhile",
                "see `sietch status`",
            );
            self.respond(question.answer, Err(ended));
            return Ok(Reply::Done);
        };
        let (pid, client) = (record.process.pid, record.client.clone());
        let what = format!("VNIC {}", record.name);
        let answered = match (outcome, question.kind) {
            (Err(reason), _) => {
                let cause = format!("pid {pid} cannot: {}", shown(&reason));
                Err(refuse(ErrorKind::Failed, what, cause, "see its own log"))
            }
            (Ok(_), DiagnosticKind::Capture) => {
                self.diagnostics.captures.push(Capture {
                    id,
                    requester: question.requester,
                    grant: question.grant,
                });
                Ok(capturing(&record).into())
            }
            (Ok(omitted), DiagnosticKind::Sockets) => {
                match descriptors.pop().map(|file| (sockets::check(&file), file)) {
                    Some((Ok(_), file)) if descriptors.is_empty() => {
                        let body = Reply::Sockets(SocketsAnswer { pid, client, omitted });
                        Ok(Answer {
                            body,
                            descriptors: file.into_trusted().into_iter().map(Into::into).collect(),
                        })
                    }
                    _ => {
                        let cause = format!("pid {pid} answered with something else");
                        Err(refuse(ErrorKind::Failed, what, cause, "use programs of one version"))
                    }
                }
            }
        };
        let (requester, began) =
            (question.requester, question.kind == DiagnosticKind::Capture && answered.is_ok());
        let received = self.respond(question.answer, answered);
        if began && (!received || !self.clients.contains_key(&requester)) {
            self.end_diagnostics_of(requester);
        }
        Ok(Reply::Done)
    }

    /// The time of a question is up, unless it was answered.
    pub(super) fn overdue(&mut self, id: u64) {
        if let Some(question) = self.diagnostics.waiting.remove(&id) {
            self.give_up(id, question, "has not answered within a second");
        }
    }

    fn give_up(&mut self, id: u64, question: DiagnosticQuestion, why: &str) {
        let (what, cause) = match self.grants.get(&question.grant) {
            Some(record) => {
                let cause = format!("pid {} (`{}`) {why}", record.process.pid, record.client);
                (format!("VNIC {}", record.name), cause)
            }
            None => ("VNIC".to_owned(), "it was released or revoked meanwhile".to_owned()),
        };
        if question.kind == DiagnosticKind::Capture {
            // The application may still receive the ring that it was sent.
            self.end_capture(id, question.grant);
        }
        let fix = "it is stopped, or its data loop is busy or does not poll its lease: try again";
        self.respond(question.answer, Err(refuse(ErrorKind::Silent, what, cause, fix)));
    }

    /// A connection has closed: ends its captures and the queries that it was to answer.
    pub(super) fn end_diagnostics_of(&mut self, connection: u64) {
        let captures = std::mem::take(&mut self.diagnostics.captures);
        let (ended, kept) = captures.into_iter().partition(|capture| capture.requester == connection);
        self.diagnostics.captures = kept;
        for Capture { id, grant, .. } in ended {
            self.end_capture(id, grant);
        }
        let expected =
            |(id, question): (&u64, &DiagnosticQuestion)| (question.responder == connection).then_some(*id);
        for id in self.diagnostics.waiting.iter().filter_map(expected).collect::<Vec<_>>() {
            if let Some(question) = self.diagnostics.waiting.remove(&id) {
                self.give_up(id, question, "has closed its connection");
            }
        }
    }

    /// A grant has ended: ends a capture of its frames.
    pub(super) fn captured_has_ended(&mut self, grant: u64) {
        let captures = std::mem::take(&mut self.diagnostics.captures);
        let (ended, kept) = captures.into_iter().partition(|capture| capture.grant == grant);
        self.diagnostics.captures = kept;
        for Capture { id, requester, .. } in ended {
            self.send_notice(requester, Notice::EndCapture { id, grant }, Vec::new());
        }
    }

    fn end_capture(&mut self, id: u64, grant: u64) {
        let attends = |(number, client): (&u64, &Client)| client.attends(grant).then_some(*number);
        if let Some(holder) = self.clients.iter().filter_map(attends).next_back() {
            self.send_notice(holder, Notice::EndCapture { id, grant }, Vec::new());
        }
    }
}

fn capturing(record: &GrantRecord) -> Reply {
    let (interface, mac, mtu) = match &record.device {
        Device::Vnic(plan) => (plan.application_interface.clone(), plan.mac, plan.mtu),
        Device::Port(plan) => ("switch".to_owned(), plan.mac, plan.mtu),
        Device::Link(plan) => (format!("link {}", plan.link), plan.mac, plan.mtu),
        Device::Vsa { .. } => (String::new(), sietch_protocol::Mac([0; 6]), 0),
    };
    Reply::Capturing(Capturing {
        pid: record.process.pid,
        client: record.client.clone(),
        interface,
        mac,
        mtu,
    })
}
