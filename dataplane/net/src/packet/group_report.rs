//! Reports of joined groups (RFC 3376, RFC 3810).
//!
//! ```text
//!  IGMPv3 report   | 0x22 | 0 | checksum | 0 | records |
//!                                     each record: | change | 0 | sources: 0 | group |
//!  MLDv2 report    | 143  | 0 | checksum | 0 | records |   the same, with an address of 16 bytes
//! ```
//!
//! Reports of either family carry the router alert option and go one hop (RFC 3376 section 4, RFC
//! 3810 section 5).

use super::{Address, checksum, ipv4, ipv6};

/// Protocol number of IGMP.
pub(crate) const IGMP: u8 = 2;
/// Type of an IGMP query.
pub(crate) const IGMP_QUERY: u8 = 0x11;
const IGMP_REPORT: u8 = 0x22;
const MLD_REPORT: u8 = 143;
/// All routers that receive IGMP reports, `224.0.0.22`.
const IGMP_ROUTERS: u32 = 0xe000_0016;
/// The router alert options of IPv4 (RFC 2113) and, in its hop-by-hop header, of IPv6 (RFC 2711).
const ALERT_V4: [u8; 4] = [148, 4, 0, 0];
const ALERT_V6: [u8; 8] = [ipv6::ICMP, 0, 5, 2, 0, 0, 1, 0];

/// Where reports of a family go.
pub(crate) fn routers(v4: bool) -> Address {
    if v4 { Address::v4(IGMP_ROUTERS) } else { Address::MLD_ROUTERS }
}

/// A report with one record for each group: its change and the group.
pub(crate) fn message(local: &Address, v4: bool, records: &[(u8, Address)]) -> Vec<u8> {
    let [high, low] = (records.len() as u16).to_be_bytes();
    let kind = if v4 { IGMP_REPORT } else { MLD_REPORT };
    let mut message = vec![kind, 0, 0, 0, 0, 0, high, low];
    for (change, group) in records {
        message.extend_from_slice(&[*change, 0, 0, 0]);
        message.extend_from_slice(if v4 { &group.octets()[12..] } else { group.octets() });
    }
    let length = message.len() as u32;
    let pseudo = if v4 { 0 } else { checksum::pseudo_header(local, &routers(v4), ipv6::ICMP, length) };
    let check = checksum::finish(pseudo + checksum::sum(&message));
    message[2..4].copy_from_slice(&check);
    message
}

/// Bytes of a report with its network header.
pub(crate) fn packet(local: &Address, remote: &Address, message: &[u8]) -> Vec<u8> {
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
