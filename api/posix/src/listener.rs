//! HEADER

pub(crate) mod kept;
pub(crate) mod register;
pub(crate) mod reregister;
