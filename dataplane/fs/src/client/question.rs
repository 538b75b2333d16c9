//! A question of an operation to the service, whether there is room: see `room`.

use std::sync::OnceLock;

/// The operation and the client share it until there is an answer.
#[derive(Debug)]
pub(crate) struct Question {
    /// What was digested when it was asked.
    pub digested: u64,
    pub answer: OnceLock<bool>,
}
