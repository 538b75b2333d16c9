//! AF_XDP queues against the kernel's own stack across a veth pair.

mod grants;
mod hostile;
mod large;
mod namespace;
mod redirect;
mod station;
mod traffic;
