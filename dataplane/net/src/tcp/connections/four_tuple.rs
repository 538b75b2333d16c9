//! The four-tuple of a connection, and what follows from it alone.

use crate::context::Context;
use crate::ip::origin::Origin;
use crate::packet::sequence::Seq;
use crate::packet::{Address, AddressIndex, Path, Template, ipv4, tcp};
use crate::siphash::Key;

/// Both ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FourTuple {
    pub remote: Address,
    pub remote_port: u16,
    pub local_port: u16,
    /// The index of our address (`ip/addresses`). There is one IPv4 address, at index 0.
    pub local: AddressIndex,
}

impl FourTuple {
    #[inline]
    pub(crate) fn hash(&self, secret: &Key) -> u64 {
        let ports = u64::from(self.remote_port) << 16 | u64::from(self.local_port);
        if self.remote.is_v4() {
            return secret.hash_word(u64::from(self.remote.low()) << 32 | ports);
        }
        let bits = self.remote.bits();
        secret.hash_triple([(bits >> 64) as u64, bits as u64, u64::from(self.local.0) << 32 | ports])
    }

    /// The connection to which a segment belongs.
    #[inline]
    pub(crate) fn of_segment(origin: &Origin, segment: &tcp::Segment<'_>) -> Self {
        Self {
            remote: origin.remote,
            remote_port: segment.source,
            local_port: segment.destination,
            local: origin.local,
        }
    }

    /// The connection whose frames have these headers.
    pub(crate) fn of_template(template: &Template) -> Self {
        let (remote_port, local_port) = (template.remote_port(), template.local_port());
        Self { remote: template.remote(), remote_port, local_port, local: template.local_index }
    }

    /// The path of frames of this connection whose next hop has this link address.
    pub(crate) fn path(&self, cx: &Context, next_hop: [u8; 6]) -> Path {
        Path {
            mac: cx.mac,
            next_hop,
            local: cx.addresses.get(self.local),
            remote: self.remote,
            local_port: self.local_port,
            remote_port: self.remote_port,
        }
    }

    /// The headers of its frames.
    pub(crate) fn template(&self, cx: &Context, next_hop: [u8; 6]) -> Template {
        let mut template = Template::new(&self.path(cx, next_hop), ipv4::TCP);
        template.local_index = self.local;
        template
    }

    /// The initial sequence number (RFC 6528) and the offset of our timestamps (RFC 7323 section
    /// 5.4): a keyed hash of the four-tuple, that hash plus a clock of four microseconds.
    pub(crate) fn initial_sequence(&self, cx: &Context) -> (Seq, u32) {
        let hash = cx.secret.hash_words(&self.words(cx));
        (Seq((hash as u32).wrapping_add((cx.now >> 12) as u32)), (hash >> 32) as u32)
    }

    /// The four-tuple as words for a keyed hash.
    pub(crate) fn words(&self, cx: &Context) -> [u64; 5] {
        let (remote, local) = (self.remote.bits(), cx.addresses.get(self.local).bits());
        let ports = u64::from(self.remote_port) << 16 | u64::from(self.local_port);
        let half = |bits: u128| [(bits >> 64) as u64, bits as u64];
        let ([a, b], [c, d]) = (half(remote), half(local));
        [a, b, c, d, ports]
    }
}
