//! The kernel's TCP, and common programs on it, against Sietch across a veth pair and AF_XDP.
//!
//! 1. Each meeting has a network namespace, a veth pair behind its filters, and an emulated path of
//!    its own ([`meeting`]). Nothing of it remains afterwards: a namespace ends with its last
//!    thread.
//! 2. Sietch is a [`Runtime`](sietch::Runtime) with the same services everywhere ([`services`]);
//!    the kernel's side consists of plain sockets ([`kernel`]) and foreign programs ([`programs`]).
//! 3. When the kernel's side has succeeded, every connection must end and every buffer come back.
//!    No filter may have refused a frame.
//! 4. [`cells`] are transfers under conditions: of the IP version, of the path, of the options that
//!    the kernel uses, of sizes. [`crowd`] tests many connections, and connections that end in
//!    every possible way. `cargo xtask soak interop` runs random cells for a long time.
//!
//! The kernel here may have no netem. So the path itself loses, repeats, reorders, damages, marks
//! and delays ([`Cable`](sietch_sim::Cable)): behind the socket, in the frames that the kernel
//! sees. `SIETCH_INTEROP_CAPTURE=FILE` has tcpdump write the frames of a test.
//!
//! Needs root, the `ip` command and AF_XDP; each foreign program for its own test. A missing
//! requirement is reported, and its tests are skipped.

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
