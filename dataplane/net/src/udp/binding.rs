//! A bound port.

use super::receive_queue::ReceiveQueue;
use crate::events::CloseReason;
use crate::packet::{Address, EcnCodepoint};

/// A bound port.
#[derive(Debug)]
pub(crate) struct Binding {
    pub port: u16,
    pub received: ReceiveQueue,
    /// An event is due.
    pub ready: bool,
    /// The only peer whose datagrams are taken, if there is one.
    pub connected: Option<(Address, u16)>,
    /// The ECN field of its datagrams.
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
