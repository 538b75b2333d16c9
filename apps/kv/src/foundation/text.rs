//! Numbers and patterns exactly as Redis reads and writes them.

pub(crate) mod glob;
pub(crate) mod number;
