//! A storage area behind a broker: an application on one side of shared memory, a service core with
//! the volume on the other.
//!
//! 1. Where areas are extents on one file or device there is no descriptor that names one area
//!    alone, so none is granted. The application gets one sealed memfd with two rings and room for
//!    data ([`layout`]), and a doorbell. The service core gets the same memory and the other end of
//!    the doorbell ([`create_pair`]).
//! 2. [`BrokerQueue`] is the application's side, a [`crate::DiskQueue`] like any other. A request
//!    is cut into pieces of at most [`MAX_PIECE`] bytes. Each piece takes pages of the data region
//!    for as long as it is in flight, so requests may be longer than the region.
//! 3. [`BrokerHost`] is the service core's side. It copies each submission once, before it reads
//!    any field. It copies data in and out of the region by address alone. It takes no submission
//!    whose completion would find no room.
//! 4. Either side may write anything anywhere in the memory at any time. No access leaves the
//!    mapping, nothing panics, and no call does more work than the rings have slots.
//! 5. A doorbell is a pair of sockets and a word for each side: it costs a system call only when
//!    the other side sleeps. Its hang-up says that the other side is dead: then every request under
//!    way fails with `ENOTCONN`, and so does every later one.
//! 6. [`VolumeLease`] is how the control plane knows that nothing that a service core wrote can
//!    land any more.
//!
//! `docs/spec/broker.md` is the reference. What a request may touch is decided by the broker
//! (`sietch-service`), not here.

mod client;
mod grant;
mod host;
pub mod layout;
mod lease;
mod pages;
mod region;

pub use client::BrokerQueue;
pub use grant::{BrokerFds, BrokerPair, create_pair, peer_socket};
pub use host::BrokerHost;
pub use layout::{BrokerLayout, MAX_PIECE, Submission};
pub use lease::VolumeLease;
