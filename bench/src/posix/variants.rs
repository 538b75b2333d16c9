//! The columns of the comparison.

/// A column: which ends run under Sietch, and where the server runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Variant {
    pub name: &'static str,
    pub server: bool,
    pub client: bool,
    pub location: Location,
}

/// The location of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Location {
    /// On the loopback of the measurement's namespace.
    Loopback,
    /// In a namespace of its own, behind a veth pair.
    Veth,
    /// On a VNIC over AF_XDP.
    Vnic,
}

pub(super) const LINUX: Variant =
    Variant { name: "Linux", server: false, client: false, location: Location::Loopback };
pub(super) const SAME: Variant = Variant { name: "Linux again", ..LINUX };
pub(super) const BOTH: Variant =
    Variant { name: "Sietch", server: true, client: true, location: Location::Loopback };
pub(super) const ONE_END: Variant = Variant { name: "Sietch server, kernel client", client: false, ..BOTH };
pub(super) const SERVED: Variant =
    Variant { name: "Sietch VNIC, kernel client", location: Location::Vnic, ..ONE_END };
