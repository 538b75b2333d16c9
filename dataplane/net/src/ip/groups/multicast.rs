//! Groups: joining and leaving, reports, queries. Only datagrams are taken from groups.

use std::net::IpAddr;

use crate::context::Context;
use crate::ip::Ip;
use crate::ip::outgoing::{Body, NextHop, Outgoing};
use crate::limits::{MILLISECOND, UDP_SEND_QUEUE};
use crate::packet::{Address, AddressIndex, Payload, checksum, group_report, icmp};

/// Why a group was not joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupError {
    /// It is no group, or the engine has no address of its family.
    #[error("{0} cannot be joined: it names no group, or there is no address of its family")]
    NoGroup(IpAddr),
    /// There are too many.
    #[error("all {} groups are in use: leave one first", crate::limits::GROUPS)]
    Full,
}

impl Ip {
    /// See `Engine::join`.
    ///
    /// # Errors
    /// See [`GroupError`].
    pub(crate) fn join(&mut self, cx: &mut Context, group: IpAddr) -> Result<(), GroupError> {
        let address = Address::from(group);
        if !address.is_multicast() || cx.addresses.source_for(&address).is_none() {
            return Err(GroupError::NoGroup(group));
        }
        if !self.groups.join(address, cx.now) {
            return Err(GroupError::Full);
        }
        cx.pending = true;
        Ok(())
    }

    /// See `Engine::leave`.
    pub(crate) fn leave(&mut self, cx: &mut Context, group: IpAddr) -> bool {
        let known = self.groups.leave(group.into(), cx.now);
        cx.pending |= known;
        known
    }

    pub(in crate::ip) fn receive_igmp(&mut self, cx: &mut Context, payload: Payload<'_>) {
        let Some(header) = payload.head.first_chunk::<8>() else {
            cx.metrics.malformed += 1;
            return;
        };
        if !checksum::is_valid(payload.sum()) {
            cx.metrics.bad_checksum += 1;
        } else if header[0] == group_report::IGMP_QUERY {
            // In tenths of a second; queries of version 1 have no time, which means ten seconds.
            let tenths = if header[1] == 0 { 100 } else { u64::from(header[1].min(127)) };
            self.groups_queried(cx, true, tenths * 100 * MILLISECOND);
        } else {
            cx.metrics.frames_ignored += 1;
        }
    }

    /// A router has requested the groups of a family within a time.
    fn groups_queried(&mut self, cx: &Context, v4: bool, within: u64) {
        let random = cx.secret.hash_word(cx.now);
        self.groups.queried(v4, within, random, cx.now);
    }

    /// Queues the reports that are due.
    #[inline]
    pub(crate) fn run_groups(&mut self, cx: &mut Context) {
        if self.groups.deadline() <= cx.now {
            self.queue_reports(cx);
        }
    }

    #[cold]
    fn queue_reports(&mut self, cx: &mut Context) {
        let due = self.groups.take_due(cx.now);
        for v4 in [true, false] {
            let records: Vec<_> = due
                .iter()
                .filter(|(group, _)| group.is_v4() == v4)
                .map(|(group, change)| (*change as u8, *group))
                .collect();
            if !records.is_empty() && cx.outgoing.len() < UDP_SEND_QUEUE {
                Self::queue_report(cx, v4, &records);
            }
        }
    }

    fn queue_report(cx: &mut Context, v4: bool, records: &[(u8, Address)]) {
        let remote = group_report::routers(v4);
        let Some(index) = cx.addresses.source_for(&remote).or_else(|| v4.then_some(AddressIndex::V4)) else {
            return;
        };
        let local = cx.addresses.get(index);
        let body = Body::Report { message: group_report::message(&local, v4, records) };
        let next_hop = NextHop::Link(remote.group_mac());
        cx.outgoing.push_back(Outgoing { local, remote, next_hop, body });
        cx.pending = true;
        cx.metrics.group_reports += 1;
    }

    /// A query of MLD (RFC 3810 section 5.1): milliseconds in the first half of the word behind the
    /// checksum.
    pub(in crate::ip) fn receive_mld(&mut self, cx: &Context, message: &icmp::Message<'_>) {
        self.groups_queried(cx, false, u64::from((message.rest >> 16).min(0x7fff)) * MILLISECOND);
    }
}
