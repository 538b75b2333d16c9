//! The kernel and the C library, as the library uses them. Nothing here knows of connections.

pub(crate) mod fork;
pub(crate) mod kernel;
pub(crate) mod memory;
pub(crate) mod multiplexing;
pub(crate) mod originals;
pub(crate) mod processor;
pub(crate) mod seccomp;
pub(crate) mod sys;
