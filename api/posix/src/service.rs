//! Requests to the socket service, and its messages.

pub(crate) mod arrival;
pub(crate) mod client;
pub(crate) mod publish;
pub(crate) mod reservation;
