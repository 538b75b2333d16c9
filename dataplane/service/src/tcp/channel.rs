//! The service's side of one connection with an application.
//!
//! 1. Two streams of bytes, each with an end of its own: what the application has sent, and what it
//!    is to receive.
//! 2. A doorbell each way. The application sleeps in the kernel and publishes that; then
//!    [`Channel::notify`] wakes it, and costs a system call only then. The host publishes with
//!    [`Channel::arm`] what it waits for itself, and is notified through its loop.
//! 3. The application's end of the doorbell closes when its last holder closes it or ends:
//!    [`Channel::hung_up`].
//!
//! The application writes the memory in which a channel sees what it does. An implementation
//! validates what it reads, so the worst result of invalid values is [`Hangup::Reset`] of this one
//! connection.

use rustix::io::Errno;
use sietch_ring::Untrusted;
use sietch_ring::stream::Hangup;
use sietch_ring::stream::waiters::NotifiedSleeps;

use super::socket_options::SocketOptions;

/// The actions of an application that a host waits for at a channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WakeOn {
    /// It sends something, ends its stream, or sets socket options.
    pub data: bool,
    /// It makes room in its ring.
    pub room: bool,
}

/// A connection with an application, as a host needs it.
pub(super) trait Channel {
    /// Offers up to `limit` bytes that the application has sent to `take`, in pieces, and removes
    /// as many from the stream as `take` returns. Stops at the first piece of which `take` did not
    /// take all. Returns how many bytes were taken.
    fn drain(&mut self, limit: usize, take: impl FnMut(Untrusted<'_>) -> usize) -> usize;

    /// Returns whether the application has sent bytes that were not taken.
    fn has_sent(&self) -> bool;

    /// Returns whether the application has ended its stream, and everything that it sent was taken.
    fn has_ended(&self) -> bool;

    /// Returns whether the application's socket options have changed since
    /// [`Channel::take_socket_options`].
    fn has_new_socket_options(&self) -> bool;

    /// Returns the application's socket options, if they have changed since the last call.
    fn take_socket_options(&mut self) -> Option<SocketOptions>;

    /// Returns whether the application has written invalid values: then the connection is reset.
    fn is_broken(&self) -> bool;

    /// Gives the application as many of `bytes` as there is room for. Returns how many.
    fn deliver(&mut self, bytes: &[u8]) -> usize;

    /// Returns whether there is room for more.
    fn has_room(&self) -> bool;

    /// Ends the stream to the application.
    fn finish(&mut self);

    /// Wakes the application if it sleeps for something that was done since the last call, unless
    /// it was notified in this sleep already. `notified` has the sleeps in which it was.
    fn notify(&mut self, notified: &mut NotifiedSleeps);

    /// Requests a notification when the application does one of these actions. The caller checks
    /// once more after arming, before it sleeps.
    fn arm(&mut self, wake_on: WakeOn);

    /// Like [`Channel::arm`], by a caller that is about to sleep for many channels and checks all
    /// of them when it wakes. An application notifies once for all channels that are armed with the
    /// same `sleep`, which is never 0 and never used again.
    fn arm_among_many(&mut self, wake_on: WakeOn, sleep: u64);

    /// Withdraws the request of either.
    fn disarm(&mut self, wake_on: WakeOn);

    /// Clears the doorbell after a notification, so that the next one is seen.
    fn clear_notification(&mut self);

    /// Returns how the application's side has ended, after its last holder closed it. `Finished`:
    /// it closed having read everything, and what it sent is still to be delivered. `Reset`: it
    /// left something unread, requested a reset, or wrote invalid values; the peer is reset.
    fn hung_up(&mut self) -> Hangup;

    /// Reports to an application that its connection is established.
    fn establish(&mut self);

    /// Reports to an application that its connection failed.
    fn fail(&mut self, error: Errno);

    /// Ends the connection towards the application. It can still read what it was given, and then
    /// gets `error`. The caller drops the channel after that.
    fn abort_with(&mut self, error: Errno);
}
