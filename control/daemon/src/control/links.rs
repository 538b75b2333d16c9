//! Point-to-point links: pairs of ends, which ends are acquired, and what happens when one ends.
//!
//! 1. The first end to be acquired creates the pair and gets its side. The other side waits here
//!    until its user acquires it. Then the two ends communicate without the daemon, which keeps
//!    only the means to revoke the link.
//! 2. An endpoint opens once, so a link exists only while both ends hold it. When one end is
//!    released or revoked, or its process ends, the daemon marks the link as revoked in memory and
//!    ends the other end's grant. The other holder is notified by its doorbell and by a notice. It
//!    acquires again to get an end of a fresh pair. So no process waits on memory without a peer.
//! 3. A hostile end can acquire again as often as it likes. Its peer is notified only once for each
//!    time that the peer itself acquired.
//! 4. After a restart of the daemon the two ends continue. The means to revoke the link are lost
//!    then. Ending one end still ends the other by a notice, and the answer to a revocation says
//!    so. An end whose other side was still waiting in the previous daemon is ended, because no
//!    process can ever acquire that side.

use std::collections::btree_map::Entry;

use sietch_nic::shm::{EndpointFds, Pair};
use sietch_protocol::{ErrorKind, ErrorReply, Notice, Reply};

use super::controller::{Control, refuse, state_failed};
use super::event::Answer;
use super::tables::LinkPair;
use crate::configuration::Link;
use crate::device::link::{LinkPlan, descriptors};
use crate::log_budget;
use crate::state::{Device, GrantRecord};

impl Control {
    /// The part of AcquireVnic for end `side` of `link`, after it was found allowed.
    pub(super) fn acquire_link(
        &mut self,
        connection: u64,
        link: &Link,
        side: usize,
    ) -> Result<Answer, ErrorReply> {
        let waiting = self.waiting_pair(link, side);
        let pair = match waiting {
            Some(pair) => pair,
            None => {
                let number = self.state.next().map_err(|error| state_failed(&error))?;
                // The holder of the other end acquired it under an older sietch.toml, so that link
                // has ended.
                self.end_peer(link, side, "sietch.toml now describes another link");
                number
            }
        };
        let plan = LinkPlan::new(link, side, pair);
        let record = self.record(connection, &plan.name, |_| Device::Link(Box::new(plan.clone())))?;
        match self.take_side(&plan, [link.ends[0].uid, link.ends[1].uid]) {
            Ok(end) => {
                self.counters.borrow_mut().grants += 1;
                self.log_grant(&record, "end of a link granted");
                let body = Reply::Vnic(Box::new(plan.grant(record.grant, record.generation)));
                Ok(Answer { body, descriptors: descriptors(end) })
            }
            Err(error) => {
                self.forget(record.grant);
                Err(error)
            }
        }
    }

    /// The pair whose `side` waits to be acquired, if the file still describes the same link.
    fn waiting_pair(&self, link: &Link, side: usize) -> Option<u64> {
        let other = self.holder(&link.ends[1 - side].name, true)?;
        let Device::Link(plan) = &other.device else { return None };
        let same = **plan == LinkPlan::new(link, 1 - side, plan.pair);
        let waits = self.links.0.get(&plan.pair).is_some_and(|made| made.waiting[side].is_some());
        (same && waits).then_some(plan.pair)
    }

    fn end_peer(&mut self, link: &Link, side: usize, why: &str) {
        let other = self.holder(&link.ends[1 - side].name, true).cloned();
        if let Some(other) = other
            && let Device::Link(plan) = &other.device
        {
            self.mark_revoked(other.process.uid, plan);
            self.leave(&other, why);
        }
    }

    /// This side of the pair that waits, or of one that is made now, for the users of its ends.
    fn take_side(&mut self, plan: &LinkPlan, users: [u32; 2]) -> Result<EndpointFds, ErrorReply> {
        let nothing = || {
            let cause = "its other end was released or revoked meanwhile";
            refuse(ErrorKind::Failed, format!("VNIC {}", plan.name), cause, "try again")
        };
        let made = match self.links.0.entry(plan.pair) {
            Entry::Occupied(made) => made.into_mut(),
            Entry::Vacant(vacant) => {
                let pair = plan
                    .create()
                    .map_err(|error| refuse(ErrorKind::Failed, error.what, error.cause, error.fix))?;
                let Pair { near, far, revocation } = pair.charged_to(users);
                vacant.insert(LinkPair { revocation, waiting: [Some(near), Some(far)] })
            }
        };
        made.waiting[plan.side].take().ok_or_else(nothing)
    }

    /// Marks a pair as revoked in the memory of both sides, one of which is of user `uid`. Returns
    /// whether that was possible.
    fn mark_revoked(&mut self, uid: u32, plan: &LinkPlan) -> bool {
        let Some(made) = self.links.0.remove(&plan.pair) else { return false };
        if let Err(error) = made.revocation.revoke() {
            let warning = format!("link {}: cannot mark its memory as revoked: {error}", plan.link);
            self.warn(Some(uid), warning);
        }
        true
    }

    /// Ends the grant of what the holder cannot keep, such as an end whose link has ended, and
    /// notifies it.
    pub(super) fn leave(&mut self, record: &GrantRecord, why: &str) {
        self.forget(record.grant);
        self.counters.borrow_mut().grants_ended += 1;
        let notice = Notice::Revoked {
            grant: record.grant,
            generation: record.generation,
            name: record.name.clone(),
            reason: why.to_owned(),
        };
        self.notify(&record.process, &notice);
        if log_budget::admits(record.process.uid, why) {
            tracing::info!(
                grant = record.grant,
                name = record.name,
                why,
                "{} grant revoked",
                record.device.sort()
            );
        }
        self.unwatch(&record.process);
    }

    /// Ends one end, and with it the other. Returns a text that says what now stops the previous
    /// holder.
    pub(super) fn cut(&mut self, record: &GrantRecord, plan: &LinkPlan) -> String {
        let marked = self.mark_revoked(record.process.uid, plan);
        let met = |other: &&GrantRecord| match &other.device {
            Device::Link(its) => its.pair == plan.pair && other.grant != record.grant,
            _ => false,
        };
        let other = self.grants.values().find(met).cloned();
        let Some(other) = other else {
            return format!("no process held the other end of link {}", plan.link);
        };
        self.leave(&other, "the other end of its link has ended; acquire it again");
        let (pid, peer) = (record.process.pid, other.process.pid);
        if marked {
            return format!("link {} is over, and pid {peer} at its other end leaves it", plan.link);
        }
        format!(
            "pid {peer} at the other end of link {} is notified to leave; the daemon was restarted since the link was made, so \
             end pid {pid} where that must be certain",
            plan.link
        )
    }

    /// After a start: ends of links whose other end is not there any more.
    pub(super) fn drop_unpaired_ends(&mut self) {
        let unpaired = |record: &&GrantRecord| match &record.device {
            Device::Link(plan) => !self.grants.values().any(|other| match &other.device {
                Device::Link(its) => its.pair == plan.pair && other.grant != record.grant,
                _ => false,
            }),
            _ => false,
        };
        for record in self.grants.values().filter(unpaired).cloned().collect::<Vec<_>>() {
            self.leave(&record, "its other end was lost with the previous daemon; acquire it again");
        }
    }
}
