//! Fragments as they arrive ([`super`] has the rules).
//!
//! 1. A fragment that is a whole packet (RFC 6946) is not stored, and does not affect others.
//! 2. The sender of the first fragment of a packet that does not complete in time gets an ICMP
//!    error (RFC 792, RFC 4443 section 3.3).
//! 3. Reassembled TCP and UDP payloads are delivered as any other. Echo requests are not answered,
//!    because the reply would not fit a frame. Extension headers behind the fragment header are not
//!    followed.

use crate::context::Context;
use crate::ip::Ip;
use crate::ip::fragments::{Fragment, Key, Outcome};
use crate::ip::icmp::{ErrorMessage, error_quote};
use crate::ip::input::{Input, Upper};
use crate::ip::origin::Origin;
use crate::packet::{Address, Payload, ipv4, ipv6};

impl Ip {
    /// Takes a fragment of an IPv4 packet.
    #[cold]
    pub(in crate::ip) fn receive_fragment_v4<'a>(
        &mut self,
        cx: &mut Context,
        origin: &Origin,
        header: &ipv4::Header,
        payload: Payload<'a>,
        packet: Payload<'a>,
    ) -> Input<'a> {
        let Some([a, b, c, d]) = packet.head.get(4..8).and_then(|bytes| bytes.first_chunk::<4>()).copied()
        else {
            return Input::Done;
        };
        let flags = u16::from_be_bytes([c, d]);
        let offset = usize::from(flags & 0x1fff) * 8;
        let fragment = Fragment { protocol: header.protocol, offset, more: flags & 0x2000 != 0, payload };
        let key = Key {
            source: origin.remote,
            destination: Address::v4(header.destination),
            identification: u32::from(u16::from_be_bytes([a, b])),
            protocol: header.protocol,
        };
        self.receive_fragment(cx, origin, key, &fragment, packet)
    }

    /// Takes a fragment of an IPv6 packet.
    #[cold]
    pub(in crate::ip) fn receive_fragment_v6<'a>(
        &mut self,
        cx: &mut Context,
        origin: &Origin,
        destination: Address,
        upper: &ipv6::Upper<'a>,
        packet: Payload<'a>,
    ) -> Input<'a> {
        let Some(header) = upper.fragment else { return Input::Done };
        let ipv6::Fragment { identification, offset, more } = header;
        let fragment = Fragment { protocol: upper.protocol, offset, more, payload: upper.payload };
        self.receive_fragment(
            cx,
            origin,
            Key { source: origin.remote, destination, identification, protocol: 0 },
            &fragment,
            packet,
        )
    }

    fn receive_fragment<'a>(
        &mut self,
        cx: &mut Context,
        origin: &Origin,
        key: Key,
        fragment: &Fragment<'a>,
        packet: Payload<'a>,
    ) -> Input<'a> {
        cx.metrics.fragments += 1;
        if fragment.offset == 0 && !fragment.more {
            return Input::Upper(Upper {
                origin: *origin,
                destination: key.destination,
                protocol: fragment.protocol,
                to_group: false,
                payload: fragment.payload,
                packet,
            });
        }
        match self.fragments.take(key, fragment, cx.now) {
            Outcome::Waiting => {
                if fragment.offset == 0 {
                    self.fragments.note_first(&key, origin, error_quote(&origin.remote, packet));
                }
                Input::Done
            }
            Outcome::Refused => {
                cx.metrics.fragments_dropped += 1;
                Input::Done
            }
            Outcome::Whole(protocol, bytes) => {
                cx.metrics.reassembled += 1;
                Input::Reassembled { origin: *origin, destination: key.destination, protocol, bytes, packet }
            }
        }
    }

    #[cold]
    fn expire_fragments(&mut self, cx: &mut Context) {
        while let Some(first) = self.fragments.expire(cx.now) {
            cx.metrics.fragments_dropped += 1;
            if let Some((origin, begin)) = first {
                self.send_error(
                    cx,
                    &origin,
                    ErrorMessage::reassembly_time_exceeded(&origin.remote),
                    Payload::from(&begin),
                );
            }
        }
    }

    /// Drops packets that did not complete in time, and sends errors about them.
    #[inline]
    pub(crate) fn run_fragments(&mut self, cx: &mut Context) {
        if self.fragments.deadline() <= cx.now {
            self.expire_fragments(cx);
        }
    }
}
