//! What can go wrong between Sietch and the kernel's XDP.

use std::io;

use thiserror::Error;

use super::assembler::AssembleError;

/// Why a filter could not be built, attached, changed or found again.
#[derive(Debug, Error)]
pub enum XdpError {
    /// A `bpf(2)` call failed.
    #[error("bpf: {what}: {source}; needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON (run as root)")]
    Bpf {
        /// The call and its object.
        what: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel's verifier refused a program.
    #[error("bpf: the kernel refused program {program}: {source}; its verifier says:\n{log}")]
    Verifier {
        /// The program's name.
        program: &'static str,
        /// The kernel's answer.
        source: io::Error,
        /// The verifier's log, empty if it wrote none.
        log: String,
    },
    /// A program cannot be assembled: a mistake in Sietch.
    #[error("program {program} cannot be assembled: {source}")]
    Assemble {
        /// The program's name.
        program: &'static str,
        /// Why.
        source: AssembleError,
    },
    /// A netlink request failed.
    #[error("netlink: {what}: {source}{}{message}", if message.is_empty() { "" } else { ": " })]
    Netlink {
        /// The request and its interface.
        what: String,
        /// The kernel's words, if it had any.
        message: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Some XDP program sits on the interface already.
    #[error(
        "interface {ifindex} carries XDP program {program} already: remove it (`ip link set dev NAME xdp off`) \
         or choose another interface"
    )]
    Occupied {
        /// The interface.
        ifindex: u32,
        /// Kernel's id of the program that is there.
        program: u32,
    },
    /// What is attached is not Sietch's, so it is left alone.
    #[error("interface {ifindex}: {reason}; it is left as it is")]
    Foreign {
        /// The interface.
        ifindex: u32,
        /// What was expected and not found.
        reason: String,
    },
    /// A rule cannot be enforced as written.
    #[error("VNIC rules: {0}")]
    Rules(String),
    /// An interface setting could not be changed.
    #[error("interface {ifindex}: {what}: {source}")]
    Interface {
        /// The interface.
        ifindex: u32,
        /// What was tried.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}
