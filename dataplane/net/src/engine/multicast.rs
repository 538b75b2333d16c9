//! Groups: joining and leaving, reports, queries. Datagrams alone are taken from groups.
//!
//! ```text
//!  IGMPv3 report   | 0x22 | 0 | checksum | 0 | records |   records: | change | 0 | sources: 0 | group |
//!  MLDv2 report    | 143  | 0 | checksum | 0 | records |   the same, with an address of 16 bytes
//! ```
//!
//! Reports of either family carry the router alert option and go one hop (RFC 3376 section 4, RFC
//! 3810 section 5).

use std::net::IpAddr;

use super::Engine;
use crate::groups::Change;
use crate::limits::{MILLISECOND, UDP_SEND_QUEUE};
use crate::packet::{Address, Payload, checksum, ethernet, icmp, ipv4, ipv6, udp};
use crate::udp::{Body, NextHop, Outgoing};

use super::{Disposition, Origin};

/// All hosts that understand groups, `224.0.0.1`; all routers that hear reports, `224.0.0.22`.
const ALL_HOSTS: u32 = 0xe000_0001;
const IGMP_ROUTERS: u32 = 0xe000_0016;
const IGMP: u8 = 2;
const IGMP_QUERY: u8 = 0x11;
const IGMP_REPORT: u8 = 0x22;
const MLD_REPORT: u8 = 143;
/// The router alert options of IPv4 (RFC 2113) and, in its hop-by-hop header, of IPv6 (RFC 2711).
const ALERT_V4: [u8; 4] = [148, 4, 0, 0];
const ALERT_V6: [u8; 8] = [ipv6::ICMP, 0, 5, 2, 0, 0, 1, 0];

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

impl Engine {
    /// Takes datagrams to a group from now on, at every bound port; routers and switches are told.
    /// Who joins twice leaves twice.
    ///
    /// # Errors
    /// See [`GroupError`].
    pub fn join(&mut self, group: IpAddr) -> Result<(), GroupError> {
        let address = Address::from(group);
        if !address.is_multicast() || self.addresses.source_for(&address).is_none() {
            return Err(GroupError::NoGroup(group));
        }
        if !self.groups.join(address, self.now) {
            return Err(GroupError::Full);
        }
        self.pending = true;
        Ok(())
    }

    /// Takes no more datagrams to a group. False if it was not joined.
    pub fn leave(&mut self, group: IpAddr) -> bool {
        let known = self.groups.leave(group.into(), self.now);
        self.pending |= known;
        known
    }

    /// Takes an IPv4 packet to a group.
    #[cold]
    pub(super) fn dispatch_group_v4(&mut self, link: &ethernet::Header, packet: Payload<'_>) -> Disposition {
        let (header, payload) = match ipv4::Header::parse(packet) {
            Ok(parsed) => parsed,
            Err(reason) => return self.malformed(reason),
        };
        let (remote, group) = (Address::v4(header.source), Address::v4(header.destination));
        let wanted = self.groups.contains(&group) || header.destination == ALL_HOSTS;
        let meant = group.is_multicast() && group.group_mac() == link.destination;
        if !wanted || !meant || !self.addresses.may_be_source(&remote) {
            self.metrics.wrong_address += 1;
            return Disposition::Release;
        }
        let origin = Origin { mac: link.source, remote, local: 0, ecn: header.ecn };
        match header.protocol {
            _ if header.fragment => self.metrics.fragments += 1,
            IGMP => self.receive_igmp(payload),
            ipv4::UDP => match udp::Datagram::parse(payload, &remote, &group, self.checks) {
                Ok(datagram) => self.receive_group_datagram(&origin, &datagram),
                Err(reason) => return self.malformed(reason),
            },
            _ => self.metrics.frames_ignored += 1,
        }
        Disposition::Release
    }

    fn receive_igmp(&mut self, payload: Payload<'_>) {
        let Some(header) = payload.head.first_chunk::<8>() else {
            self.metrics.malformed += 1;
            return;
        };
        if !checksum::is_valid(payload.sum()) {
            self.metrics.bad_checksum += 1;
        } else if header[0] == IGMP_QUERY {
            // In tenths of a second; those of version 1 say nothing, and mean ten seconds.
            let tenths = if header[1] == 0 { 100 } else { u64::from(header[1].min(127)) };
            self.asked_for_groups(true, tenths * 100 * MILLISECOND);
        } else {
            self.metrics.frames_ignored += 1;
        }
    }

    /// A router wants to know the groups of a family within a time.
    pub(super) fn asked_for_groups(&mut self, v4: bool, within: u64) {
        let dice = self.secret.hash_word(self.now);
        self.groups.asked(v4, within, dice, self.now);
    }

    /// Queues the reports that are due.
    #[inline]
    pub(crate) fn run_groups(&mut self) {
        if self.groups.deadline() <= self.now {
            self.queue_reports();
        }
    }

    #[cold]
    fn queue_reports(&mut self) {
        let due = self.groups.take_due(self.now);
        for v4 in [true, false] {
            let records: Vec<_> = due.iter().filter(|(group, _)| group.is_v4() == v4).collect();
            if !records.is_empty() && self.outgoing.len() < UDP_SEND_QUEUE {
                self.queue_report(v4, &records);
            }
        }
    }

    fn queue_report(&mut self, v4: bool, records: &[&(Address, Change)]) {
        let remote = if v4 { Address::v4(IGMP_ROUTERS) } else { Address::MLD_ROUTERS };
        let Some(place) = self.addresses.source_for(&remote).or_else(|| v4.then_some(0)) else { return };
        let local = self.addresses.get(place);
        let [high, low] = (records.len() as u16).to_be_bytes();
        let kind = if v4 { IGMP_REPORT } else { MLD_REPORT };
        let mut message = vec![kind, 0, 0, 0, 0, 0, high, low];
        for (group, change) in records {
            message.extend_from_slice(&[*change as u8, 0, 0, 0]);
            message.extend_from_slice(if v4 { &group.octets()[12..] } else { group.octets() });
        }
        let pseudo =
            if v4 { 0 } else { checksum::pseudo_header(&local, &remote, ipv6::ICMP, message.len() as u32) };
        let check = checksum::finish(pseudo + checksum::sum(&message));
        message[2..4].copy_from_slice(&check);
        let body = Body::Report { message };
        let next_hop = NextHop::Link(remote.group_mac());
        self.outgoing.push_back(Outgoing { local, remote, next_hop, body });
        self.pending = true;
        self.metrics.group_reports += 1;
    }

    /// Bytes of a report with its network header.
    pub(super) fn report_packet(local: &Address, remote: &Address, message: &[u8]) -> Vec<u8> {
        if remote.is_v4() {
            let mut header = [0; ipv4::HEADER];
            ipv4::emit(&mut header, local.low(), remote.low(), IGMP, ALERT_V4.len() + message.len());
            let mut packet = [&header[..], &ALERT_V4, message].concat();
            // Six words of header, one hop.
            (packet[0], packet[8]) = (0x46, 1);
            packet[10..12].fill(0);
            let check = checksum::finish(checksum::sum(&packet[..ipv4::HEADER + ALERT_V4.len()]));
            packet[10..12].copy_from_slice(&check);
            return packet;
        }
        let mut header = [0; ipv6::HEADER];
        let length = ALERT_V6.len() + message.len();
        ipv6::emit(&mut header, local, remote, ipv6::HOP_BY_HOP, 1, length);
        [&header[..], &ALERT_V6, message].concat()
    }

    /// A query of MLD (RFC 3810 section 5.1): milliseconds in the first half of the word behind the
    /// checksum.
    pub(super) fn receive_mld(&mut self, message: &icmp::Message<'_>) {
        self.asked_for_groups(false, u64::from((message.rest >> 16).min(0x7fff)) * MILLISECOND);
    }
}
