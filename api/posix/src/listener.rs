//! Listening sockets: registered with the service, and registered again when the service restarts.

pub(crate) mod kernel_socket;
pub(crate) mod register;
pub(crate) mod reregister;
