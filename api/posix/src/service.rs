//! Requests to the socket service, and what comes from it.

pub(crate) mod arrival;
pub(crate) mod client;
pub(crate) mod publish;
pub(crate) mod reservation;
