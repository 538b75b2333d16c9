//! Packets in parts as they arrive, and what is done with a packet once it is whole
//! ([`crate::fragments`] has the rules).
//!
//! 1. A part that is all of its packet (RFC 6946) is not kept, and disturbs no others.
//! 2. Who sent the first part of a packet that does not come whole in time is told (RFC 792, RFC
//!    4443 section 3.3).
//! 3. TCP and UDP are delivered as if they had come whole. Echo requests are not answered: the
//!    answer would not fit a frame. Extension headers behind the fragment header are not followed.

use super::errors::{Report, error_quote};
use super::{Disposition, Engine, Origin};
use crate::fragments::{Key, Outcome, Part};
use crate::packet::{Address, Payload, ipv4, ipv6, tcp, udp};

impl Engine {
    /// Takes a part of an IPv4 packet.
    #[cold]
    pub(super) fn receive_part_v4(
        &mut self,
        origin: &Origin,
        header: &ipv4::Header,
        payload: Payload<'_>,
        packet: Payload<'_>,
    ) -> Disposition {
        let Some([a, b, c, d]) = packet.head.get(4..8).and_then(|bytes| bytes.first_chunk::<4>()).copied()
        else {
            return Disposition::Release;
        };
        let flags = u16::from_be_bytes([c, d]);
        let offset = usize::from(flags & 0x1fff) * 8;
        let part = Part { protocol: header.protocol, offset, more: flags & 0x2000 != 0, payload };
        let key = Key {
            source: origin.remote,
            destination: Address::v4(header.destination),
            identification: u32::from(u16::from_be_bytes([a, b])),
            protocol: header.protocol,
        };
        self.receive_part(origin, key, &part, packet)
    }

    /// Takes a part of an IPv6 packet.
    #[cold]
    pub(super) fn receive_part_v6(
        &mut self,
        origin: &Origin,
        destination: Address,
        upper: &ipv6::Upper<'_>,
        packet: Payload<'_>,
    ) -> Disposition {
        let Some(fragment) = upper.fragment else { return Disposition::Release };
        let ipv6::Fragment { identification, offset, more } = fragment;
        let part = Part { protocol: upper.protocol, offset, more, payload: upper.payload };
        self.receive_part(
            origin,
            Key { source: origin.remote, destination, identification, protocol: 0 },
            &part,
            packet,
        )
    }

    fn receive_part(
        &mut self,
        origin: &Origin,
        key: Key,
        part: &Part<'_>,
        packet: Payload<'_>,
    ) -> Disposition {
        self.metrics.fragments += 1;
        if part.offset == 0 && !part.more {
            return self.deliver(origin, &key.destination, part.protocol, part.payload, packet);
        }
        match self.fragments.take(key, part, self.now) {
            Outcome::Waiting => {
                if part.offset == 0 {
                    self.fragments.note_first(&key, origin, error_quote(&origin.remote, packet));
                }
                Disposition::Release
            }
            Outcome::Refused => {
                self.metrics.fragments_dropped += 1;
                Disposition::Release
            }
            Outcome::Whole(protocol, bytes) => {
                self.metrics.reassembled += 1;
                self.deliver(origin, &key.destination, protocol, Payload::from(&bytes), packet)
            }
        }
    }

    fn deliver(
        &mut self,
        origin: &Origin,
        local: &Address,
        protocol: u8,
        payload: Payload<'_>,
        packet: Payload<'_>,
    ) -> Disposition {
        match protocol {
            ipv4::TCP => match tcp::Segment::parse(payload, &origin.remote, local, self.unchecked) {
                Ok(segment) => self.dispatch_segment(origin, &segment),
                Err(reason) => return self.malformed(reason),
            },
            ipv4::UDP => match udp::Datagram::parse(payload, &origin.remote, local, self.unchecked) {
                Ok(datagram) => self.receive_datagram(origin, &datagram, packet),
                Err(reason) => return self.malformed(reason),
            },
            _ => self.metrics.frames_ignored += 1,
        }
        Disposition::Release
    }

    #[cold]
    fn forget_parts(&mut self) {
        while let Some(first) = self.fragments.expire(self.now) {
            self.metrics.fragments_dropped += 1;
            if let Some((origin, begin)) = first {
                self.report(&origin, Report::reassembly_time_exceeded(&origin.remote), Payload::from(&begin));
            }
        }
    }

    /// Forgets packets whose parts did not come in time, and tells who sent them.
    #[inline]
    pub(crate) fn run_fragments(&mut self) {
        if self.fragments.deadline() <= self.now {
            self.forget_parts();
        }
    }
}
