//! The kernel and the C library, as the library uses them. No code here depends on connections.

pub(crate) mod by_number;
pub(crate) mod cancellation;
pub(crate) mod fork;
pub(crate) mod kernel;
pub(crate) mod memory;
pub(crate) mod multiplexing;
pub(crate) mod originals;
pub(crate) mod processor;
pub(crate) mod seccomp;
pub(crate) mod sys;
