//! HEADER

pub(crate) mod inherit;
pub(crate) mod known;
