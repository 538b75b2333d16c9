//! Moving bytes: `read`, `write`, `send`, `recv` and the calls like them.

pub(crate) mod control_data;
pub(crate) mod fast_open;
pub(crate) mod file;
pub(crate) mod message;
mod names;
pub(crate) mod receive;
pub(crate) mod send;
pub(crate) mod splice;
pub(crate) mod stdio;
pub(crate) mod transfer;
pub(crate) mod vectors;

pub use file::sendfile;
pub use message::{recvmmsg, recvmsg, sendmmsg, sendmsg};
pub use splice::{splice, tee};
pub use stdio::fdopen;
pub use transfer::{preadv2, pwritev2, read, readv, recvfrom, sendto, write, writev};
