//! The life of a socket: made, named, listening, connected, accepted, shut down.

pub(crate) mod accept;
pub(crate) mod bind;
pub(crate) mod connect;
pub(crate) mod create;
pub(crate) mod listen;
pub(crate) mod names;
pub(crate) mod shutdown;

pub use accept::accept4;
pub use bind::bind;
pub use connect::connect;
pub use create::socket;
pub use listen::listen;
pub use names::{getpeername, getsockname};
pub use shutdown::shutdown;
