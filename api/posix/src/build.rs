//! Which build the library is: what a service is compared with before a program starts.

pub use sietch_protocol::socket_service::Build;
/// The first word of a stream's memory.
pub use sietch_ring::stream::MAGIC;
