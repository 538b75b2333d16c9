//! A bound port.

use super::receive_queue::ReceiveQueue;
use crate::events::CloseReason;
use crate::packet::{Address, EcnCodepoint};

/// A bound port.
#[derive(Debug)]
pub(crate) struct Binding {
    pub port: u16,
    pub received: ReceiveQueue,
    /// There is something that the application was not told of.
    pub ready: bool,
    /// The only peer whose datagrams are taken, if there is one.
    pub connected: Option<(Address, u16)>,
    /// What its datagrams say of their sender.
    pub ecn: EcnCodepoint,
    pub error: Option<CloseReason>,
}

impl Binding {
    pub(super) fn new(port: u16) -> Self {
        Self {
            port,
            received: ReceiveQueue::default(),
            ready: false,
            connected: None,
            ecn: EcnCodepoint::NotEct,
            error: None,
        }
    }
}
