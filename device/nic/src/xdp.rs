//! XDP: the rules of a VNIC, enforced by the kernel.
//!
//! An AF_XDP socket bypasses everything between a driver and the kernel's stack, so the rules that
//! restrict an application must sit in XDP itself. A VNIC is a veth pair with a program at each end
//! (`docs/spec/xdp.md` draws it):
//!
//! 1. [`receive`] on the application's end: only frames that the grant covers reach its AF_XDP
//!    socket.
//! 2. [`transmit`] on the peer's end, where the socket's frames come out. Only frames that the
//!    grant covers, and no faster than granted, continue to the host's stack or to a physical
//!    interface.
//! 3. [`uplink`] on a physical interface: redirects to each VNIC its frames.
//!
//! Programs are assembled here ([`assembler`], [`frame`]) and loaded with raw `bpf(2)`
//! ([`kernel`]); no compiler is involved. Rules live in maps ([`layout`]), so that changing them
//! reloads nothing. Programs are attached through [`netlink`], so that they outlive the daemon;
//! [`VnicPrograms::adopt`] and [`Uplink::adopt`] find them again.

use std::os::fd::AsFd;

mod assembler;
mod counters;
mod error;
mod frame;
mod kernel;
mod layout;
pub mod netlink;
pub mod offload;
#[cfg(test)]
mod pass;
mod receive;
pub mod software;
mod transmit;
mod uplink;
pub mod vnic;

#[cfg(test)]
mod tests;

pub use counters::{DirectionCounters, Reason, Tally, VnicCounters};
pub use error::XdpError;
pub use kernel::Buffers;
pub use uplink::{Uplink, UplinkCounters};
pub use vnic::{Ipv4Prefix, Ipv6Prefix, VnicPrograms, VnicSpec};

use kernel::{Program, ProgramInfo};

/// The program on `ifindex`, of this or another namespace, if it has the name `name`.
fn attached_program(
    ifindex: u32,
    namespace: Option<i32>,
    name: &'static str,
) -> Result<(Program, ProgramInfo), XdpError> {
    let foreign = |reason| XdpError::Foreign { ifindex, reason };
    let id = netlink::attached_in(ifindex, namespace)?
        .ok_or_else(|| foreign(format!("it carries no XDP program, {name} was expected")))?;
    let program = Program::by_id(id)?;
    let info = program.info()?;
    if !info.is_xdp || info.name != name {
        return Err(foreign(format!(
            "it carries XDP program {:?} (id {id}), {name} was expected",
            info.name
        )));
    }
    Ok((program, info))
}

/// Detaches `program`. An interface that is deleted, or carries no program any more, is no error.
fn detach_if_there(ifindex: u32, program: &Program) -> Result<(), XdpError> {
    match netlink::detach(ifindex, program.as_fd()) {
        Err(XdpError::Netlink { source, .. }) if source.raw_os_error() == Some(libc::ENODEV) => Ok(()),
        Err(XdpError::Occupied { program: 0, .. }) => Ok(()),
        result => result,
    }
}
