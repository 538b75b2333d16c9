//! Closing, duplicating and controlling descriptors, and adopting those that came from elsewhere.

pub(crate) mod adopt;
pub(crate) mod close;
pub(crate) mod control;
pub(crate) mod duplicate;

pub use close::{close, close_range, closefrom};
pub use control::{fcntl, fgetxattr, ioctl, sockatmark};
pub use duplicate::{dup, dup2, dup3};
