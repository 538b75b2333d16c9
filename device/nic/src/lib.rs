//! NIC queues: the one way in which frames enter and leave a data plane.
//!
//! An engine sees [`NicQueue`] and nothing else. Its implementations:
//!
//! - [`wire`]: two queues joined in memory, for the simulator and the engines' own tests.
//! - [`shm`]: one end of a link over shared memory, to another process or to the software switch.
//! - [`af_xdp`]: an AF_XDP socket over a UMEM that the control plane granted.
//!
//! [`capture`] copies the frames of any of them to a process that captures.
//!
//! [`xdp`] holds what the control plane puts around a queue: XDP programs that filter and limit.
//! The engine never sees them, and an application cannot reach them.
//!
//! ```
//! use sietch_nic::{NicQueue, wire};
//!
//! let (mut near, mut far) = wire::pair([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], 1500, 64);
//! let mut frame = near.allocate(60).expect("a free buffer");
//! near.bytes_mut(&mut frame).fill(7);
//! near.transmit(frame).expect("room in the ring");
//! near.flush()?;
//!
//! let mut arrived = Vec::new();
//! assert_eq!(far.receive(&mut arrived, 16), 1);
//! let frame = arrived.remove(0);
//! assert_eq!(far.bytes(&frame), [7; 60]);
//! far.release(frame);
//! # Ok::<(), std::io::Error>(())
//! ```

pub mod af_xdp;
pub mod capture;
pub mod namespace;
pub mod queue;
pub mod shm;
pub mod wire;
pub mod xdp;

pub use queue::{Frame, NicQueue, Offloads, TransmitError};
pub use sietch_ring::Untrusted;
