//! NIC queues: the one way in which frames enter and leave a data plane.
//!
//! An engine sees [`NicQueue`] and nothing else. Behind it stand
//!
//! - [`wire`]: two queues joined in memory; the simulator and the engines' own tests stand on it,
//! - [`shm`]: one end of a link over shared memory, to another process or to the switch,
//! - [`af_xdp`]: an AF_XDP socket over a UMEM that the control plane granted.
//!
//! [`capture`] copies the frames of any of them for who looks on.
//!
//! What the control plane puts around a queue (XDP programs that filter and limit) lives in `xdp`.
//! The engine never sees it, and an application cannot reach it.

pub mod af_xdp;
pub mod capture;
pub mod namespace;
pub mod queue;
pub mod shm;
pub mod wire;
pub mod xdp;

pub use queue::{Frame, NicQueue, Offloads, TransmitError};
pub use sietch_ring::Untrusted;
