//! RESP, the protocol of Redis: requests are parsed in place, replies are appended to a client's
//! output, and errors have Redis' words.

mod fault;
mod reply;
mod request;

pub(crate) use fault::{Fault, text_before_zero};
pub(crate) use reply::Reply;
pub(crate) use request::{Limits, Parser, PipelineBatch, Progress, ProtocolError};

#[cfg(test)]
mod tests;
