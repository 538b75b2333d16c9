//! What a received ICMP error says.

/// What an error says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IcmpError {
    /// The packet is larger than the MTU of the next link.
    TooBig(usize),
    /// Nothing listens at the port, or the host does not know the protocol.
    Refused,
    /// There is no route to the host, or it is prohibited.
    Unreachable,
    /// Something that may pass: a routing loop, a header that a router refused.
    Transient,
}
