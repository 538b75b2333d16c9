//! VNICs over shared memory: one end of a link to another process, be it an application or the
//! switch.
//!
//! 1. `grant`: the control plane makes a pair ([`create_pair`]): two sealed regions and a
//!    socketpair. Each side gets its own region to write, the other's to read only, and its end of
//!    the doorbell.
//! 2. `layout`: a region holds the words and the ring of its owner, and the frames that its owner
//!    sends (`docs/spec/shm-link.md`).
//! 3. `endpoint`: [`Endpoint`] is the queue over it. A frame that is sent is written in place and
//!    never copied by its sender. A small one that is received is copied once, of a large one only
//!    the headers.
//!
//! The peer is hostile. Whatever it writes into its region, no access leaves the mappings, nothing
//! panics, and no call does more work than the ring has slots.

mod endpoint;
mod grant;
mod layout;
#[cfg(test)]
mod tests;

pub use endpoint::{Endpoint, EndpointCounters};
pub use grant::{EndpointFds, OpenError, Pair, Revocation, create_pair};
pub use layout::{LinkLayout, LinkLayoutError};
