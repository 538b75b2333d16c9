//! The seam between the cores: queues of messages, one for each ordered pair of cores.
//!
//! 1. Messages from one core to another arrive in the order in which they were sent. Between
//!    different pairs there is no order.
//! 2. [`Links::send`] never fails and never waits. What the peer's queue has no room for stays with
//!    the sender, in order, until [`Links::flush`] finds room.
//! 3. A core sends during its iteration, and notifies its peers once, with [`Links::flush`].

use std::io;
use std::time::Duration;

use super::message::Message;

/// One core's ends of the queues to and from all other cores.
pub(in crate::server) trait Links: Send {
    /// Sends a message to the core `to`.
    fn send(&mut self, to: usize, message: Message);

    /// The next message that has arrived, and the core that sent it. Each peer gets its turn.
    fn receive(&mut self) -> Option<(usize, Message)>;

    /// Passes on everything that was sent and for which there is room, and notifies each peer that
    /// sleeps and got something. Returns whether everything was passed on. Otherwise the receiver
    /// wakes this core once there is room.
    fn flush(&mut self) -> bool;

    /// Announces that this core is about to sleep until its doorbell. Returns false if a message
    /// has arrived: then the core must not sleep.
    fn arm(&mut self) -> bool;

    /// Ends what [`Links::arm`] began: the core is awake.
    fn disarm(&mut self);

    /// Sleeps between [`Links::arm`] and [`Links::disarm`] until a message has arrived or `timeout`
    /// has passed, whatever else happens.
    ///
    /// # Errors
    /// The doorbell cannot be polled.
    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()>;
}
