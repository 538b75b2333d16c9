//! HEADER

pub(crate) mod arrival;
pub(crate) mod client;
pub(crate) mod publish;
pub(crate) mod reservation;
