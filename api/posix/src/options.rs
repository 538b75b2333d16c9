//! Socket options that the library remembers, and how sockets inherit them.

pub(crate) mod inherit;
pub(crate) mod known;
pub(crate) mod others;
