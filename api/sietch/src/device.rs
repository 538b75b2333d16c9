//! The devices that the daemon granted, ready to be driven, and the doorbells that a loop sleeps
//! on.

mod doorbell;
mod grant;
mod no_device;
mod vnic;
mod vnic_queue;
mod vsa;

pub use doorbell::{DiskDoorbell, Doorbell};
pub use grant::Grant;
pub use no_device::NoDevice;
pub use vnic::{GrantedVnic, Vnic, socket_layout};
pub use vnic_queue::VnicQueue;
pub use vsa::{GrantedVsa, Vsa};
