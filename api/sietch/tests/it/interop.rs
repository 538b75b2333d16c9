//! The kernel's TCP, and the programs that people use on it, against Sietch across a veth pair and
//! AF_XDP.
//!
//! 1. Each meeting has a network namespace, a veth pair behind its filters, and an emulated path of
//!    its own ([`meeting`]). Nothing of it is left afterwards: a namespace ends with its last
//!    thread.
//! 2. Sietch is a [`Runtime`](sietch::Runtime) with the same services everywhere ([`services`]);
//!    the kernel's side are plain sockets ([`kernel`]) and foreign programs ([`programs`]).
//! 3. When the kernel's side is content, every connection must end, every buffer come back, and no
//!    filter have refused a frame.
//! 4. [`cells`] are transfers under conditions: IPv4 and IPv6, of the path, of the options that the
//!    kernel uses, of sizes. [`crowd`] are many connections, and connections that end in every way
//!    there is. `cargo xtask soak interop` draws random cells for long.
//!
//! The kernel here may have no netem, so it is the path that loses, repeats, reorders, damages,
//! marks and delays ([`Cable`](sietch_sim::Cable)): behind the socket, in the frames that the
//! kernel sees. `SIETCH_INTEROP_CAPTURE=FILE` lets tcpdump write down the frames of a test.
//!
//! Needs root, the `ip` command and AF_XDP; each foreign program for its own test. What is missing
//! is said, and its tests skipped.

mod cells;
mod crowd;
#[path = "../../examples/http_server.rs"]
mod http_server;
mod kernel;
mod meeting;
#[path = "../../../../dataplane/net/tests/it/veth/pair.rs"]
mod pair;
mod pattern;
mod programs;
mod services;
