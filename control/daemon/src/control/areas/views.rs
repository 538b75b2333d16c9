//! Views: queries about an area's contents to its holder, and the holder's answers (Arrakis'
//! upcall).
//!
//! 1. A holder that shows a view registers it for its grant
//!    ([`Request::Attend`](sietch_protocol::Request::Attend)). Queries go to the last connection
//!    that registered.
//! 2. Every user that may read the area may query it. The query goes out as a notice. The answer
//!    comes as a request of the holder. Only the requester waits for it, for at most [`LIMIT`]. If
//!    the holder's process or connection ends, the wait ends at once.
//! 3. A holder *owes* an answer for every query that it was sent, in time or late. A holder that
//!    owes [`MOST_OWED`] answers is sent no more queries: it is stopped or broken, and further
//!    queries would only fill its socket. Late answers are discarded and counted.
//! 4. An answer is checked against its query before it is passed on: kind, names, order, seals and
//!    size. A mismatch is refused and logged with the holder's name. It affects only the requester.

use std::time::Duration;

use sietch_protocol::closer::SentDescriptor;
use sietch_protocol::view::{ViewError, ViewOperation, ViewReply, ViewRequest};
use sietch_protocol::{ErrorKind, ErrorReply, Notice, Reply, sealed};
use tokio::sync::oneshot;

use crate::control::controller::{Client, Control, refuse};
use crate::control::event::{Answer, Event};
use crate::control::tables::PendingView;
use crate::log_budget;
use crate::state::GrantRecord;

/// The time that a holder has to answer. An iteration of a busy data loop takes milliseconds.
const LIMIT: Duration = Duration::from_secs(1);
/// Answers that one connection may owe: with the longest paths they fit the buffer of its socket,
/// so that the daemon never waits for it.
const MOST_OWED: usize = 16;

/// How an error names the holder.
fn named(record: &GrantRecord) -> String {
    format!("pid {} (`{}`)", record.process.pid, record.client)
}

impl Control {
    /// The connection that answers for the view of `record`'s area, if it shows one.
    pub(in crate::control) fn viewer(&self, record: &GrantRecord) -> Option<u64> {
        let shows = |(number, client): (&u64, &Client)| {
            (client.process == record.process && client.views.contains(&record.grant)).then_some(*number)
        };
        self.clients.iter().filter_map(shows).next_back()
    }

    /// Queries the holder of the area `name`. `answer` is completed now or within [`LIMIT`].
    pub(in crate::control) fn query_view(
        &mut self,
        connection: u64,
        name: &str,
        question: ViewRequest,
        answer: oneshot::Sender<Answer>,
    ) {
        match self.try_query_view(connection, name, &question) {
            Ok((path, responder, grant)) => {
                let id = self.views.next;
                let operation = question.operation;
                self.views.waiting.insert(id, PendingView { path, operation, responder, grant, answer });
                self.counters.borrow_mut().view_questions += 1;
                let events = self.events.clone();
                tokio::task::spawn_local(async move {
                    tokio::time::sleep(LIMIT).await;
                    // The send fails only when the daemon has ended.
                    let _ = events.send(Event::ViewOverdue { question: id }).await;
                });
            }
            Err(error) => {
                self.respond(answer, Err(error));
            }
        }
    }

    fn try_query_view(
        &mut self,
        connection: u64,
        name: &str,
        question: &ViewRequest,
    ) -> Result<(String, u64, u64), ErrorReply> {
        let (path, ..) = self.readable(connection, name)?;
        let uid = self.client(connection)?.process.uid;
        let what = format!("view of {}", path.full());
        if let Err(cause) = question.check() {
            return Err(refuse(ErrorKind::Invalid, what, cause, "write components with `/` between them"));
        }
        let Some(record) = self.holder(&path.label(), false).cloned() else {
            let fix = "only a running program shows a view of its area";
            return Err(refuse(ErrorKind::Unknown, what, "no process holds it", fix));
        };
        let Some(responder) = self.viewer(&record) else {
            let cause = format!("{} shows none", named(&record));
            let fix = "it may be reconnecting: try again; programs that use Client::show do";
            return Err(refuse(ErrorKind::Unknown, what, cause, fix));
        };
        let owed = self.views.owed.get(&responder).copied().unwrap_or(0);
        if owed >= MOST_OWED {
            let stuck = !self.views.waiting.values().any(|question| question.responder == responder);
            let cause = format!("{} has {owed} questions to answer", named(&record));
            let (kind, fix) = match stuck {
                true => (ErrorKind::Silent, "it is stopped, or its data loop is busy: check that process"),
                false => (ErrorKind::Limit, "send it fewer queries at once"),
            };
            return Err(refuse(kind, what, cause, fix));
        }
        self.views.next += 1;
        let (id, grant) = (self.views.next, record.grant);
        let notice = Notice::View { id, grant, uid, question: question.clone() };
        if !self.send_notice(responder, notice, Vec::new()) {
            let cause = format!("{} does not read its notices", named(&record));
            return Err(refuse(ErrorKind::Failed, what, cause, "check what blocks that process"));
        }
        *self.views.owed.entry(responder).or_default() += 1;
        Ok((path.full(), responder, grant))
    }

    /// The answer of a holder.
    pub(in crate::control) fn shown(
        &mut self,
        connection: u64,
        id: u64,
        outcome: Result<ViewReply, ViewError>,
        descriptors: Vec<SentDescriptor>,
    ) -> Result<Reply, ErrorReply> {
        if let Some(owed) = self.views.owed.get_mut(&connection) {
            *owed = owed.saturating_sub(1);
        }
        let expected = self.views.waiting.get(&id).is_some_and(|question| question.responder == connection);
        let Some(question) = expected.then(|| self.views.waiting.remove(&id)).flatten() else {
            let what = format!("view question {id}");
            return Err(refuse(
                ErrorKind::Unknown,
                what,
                "no request waits for that answer",
                "answer within a second",
            ));
        };
        let what = format!("view of {}", question.path);
        let Some(record) = self.grants.get(&question.grant) else {
            let ended =
                refuse(ErrorKind::Failed, what, "its area was released or revoked meanwhile", "try again");
            self.respond(question.answer, Err(ended));
            return Ok(Reply::Done);
        };
        let (pid, client) = (record.process.pid, record.client.clone());
        let answered = match outcome {
            Ok(answer) => check(answer, question.operation, descriptors).map_err(|why| {
                if log_budget::admits(record.process.uid, &why) {
                    tracing::warn!(pid, client, area = question.path, why, "a view's answer is refused");
                }
                self.counters.borrow_mut().view_answers_refused += 1;
                let cause = format!("pid {pid} (`{client}`) answered with what is no answer: {why}");
                refuse(ErrorKind::Failed, what, cause, "see what that program is")
            }),
            Err(ViewError::Missing) => {
                Err(refuse(ErrorKind::Unknown, what, "there is no such file", "list the directory"))
            }
            Err(reason @ (ViewError::NotDirectory | ViewError::IsDirectory)) => {
                Err(refuse(ErrorKind::Invalid, what, reason.to_string(), "query its kind first"))
            }
            Err(reason) => {
                let cause = format!("pid {pid} (`{client}`) cannot: {}", reason.shown());
                Err(refuse(ErrorKind::Failed, what, cause, "see its own log"))
            }
        };
        self.respond(question.answer, answered);
        Ok(Reply::Done)
    }

    /// The time of a question is up, unless it was answered.
    pub(in crate::control) fn view_overdue(&mut self, id: u64) {
        if let Some(question) = self.views.waiting.remove(&id) {
            self.counters.borrow_mut().view_timeouts += 1;
            self.no_answer(question, ErrorKind::Silent, "has not answered within a second");
        }
    }

    /// A connection has closed: ends the queries that it was to answer.
    pub(in crate::control) fn end_views_of(&mut self, connection: u64) {
        self.views.owed.remove(&connection);
        self.give_up_views("has closed its connection", |question| question.responder == connection);
    }

    /// A grant has ended, and its view with it.
    pub(in crate::control) fn view_has_ended(&mut self, grant: u64) {
        self.give_up_views("has released it", |question| question.grant == grant);
    }

    fn give_up_views(&mut self, why: &str, lost: impl Fn(&PendingView) -> bool) {
        let lost = |(id, question): (&u64, &PendingView)| lost(question).then_some(*id);
        for id in self.views.waiting.iter().filter_map(lost).collect::<Vec<_>>() {
            if let Some(question) = self.views.waiting.remove(&id) {
                self.no_answer(question, ErrorKind::Failed, why);
            }
        }
    }

    fn no_answer(&self, question: PendingView, kind: ErrorKind, why: &str) {
        let holder = self.grants.get(&question.grant).map_or_else(|| "its holder".to_owned(), named);
        let fix = "it is stopped, busy, or has ended: try again";
        let error = refuse(kind, format!("view of {}", question.path), format!("{holder} {why}"), fix);
        self.respond(question.answer, Err(error));
    }
}

/// What is passed on, or what is wrong with it.
fn check(answer: ViewReply, ask: ViewOperation, descriptors: Vec<SentDescriptor>) -> Result<Answer, String> {
    answer.check(ask)?;
    match (ask, &descriptors[..]) {
        (ViewOperation::Read { length, .. }, [bytes]) => {
            sealed::check(bytes, length.into()).map_err(|error| error.to_string())?;
        }
        (ViewOperation::Stat | ViewOperation::List { .. }, []) => {}
        _ => return Err(format!("{} descriptors came with it", descriptors.len())),
    }
    // A sealed memfd of at most that length.
    let descriptors =
        descriptors.into_iter().filter_map(SentDescriptor::into_trusted).map(Into::into).collect();
    Ok(Answer { body: Reply::View(answer), descriptors })
}
