//! The service's side of one connection with an application.
//!
//! 1. Two streams of bytes, each with an end of its own: what the application has sent, and what it
//!    is to receive.
//! 2. A doorbell each way. The application sleeps in the kernel and says so; [`Channel::ring`]
//!    wakes it then, and costs a system call only then. The host says with [`Channel::arm`] what it
//!    waits for itself, and hears of it through its loop.
//! 3. The application's end of the doorbell closes when its last holder is gone, however it went:
//!    [`Channel::departed`].
//!
//! Everything that a channel says of the application's doings comes from memory that the
//! application writes. An implementation validates what it reads, so that the worst that comes of
//! nonsense is [`Departure::Reset`] of this one connection.

use rustix::io::Errno;
use sietch_ring::Untrusted;
use sietch_ring::stream::waiters::NotifiedSleeps;

use super::settings::Settings;

/// How an application's side ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// It closed having read everything: what it sent is still to be delivered.
    Finished,
    /// It left something unread, wanted a reset, or wrote nonsense: the peer is reset.
    Reset,
}

/// What the host waits for at a channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// That the application sends something, or ends.
    pub data: bool,
    /// That it makes room.
    pub room: bool,
}

/// What a host needs of a connection with an application.
pub trait Channel {
    /// Offers up to `limit` bytes that the application has sent to `take`, in pieces; takes out of
    /// the stream as many as that says it took, and stops at the first piece of which it did not
    /// take all. Returns how many were taken.
    fn drain(&mut self, limit: usize, take: impl FnMut(Untrusted<'_>) -> usize) -> usize;

    /// Whether the application has sent anything that was not taken.
    fn has_sent(&self) -> bool;

    /// Whether the application will send nothing more and everything that it sent was taken.
    fn has_ended(&self) -> bool;

    /// Whether the application's socket options have changed since [`Channel::take_settings`].
    fn has_settings(&self) -> bool;

    /// The application's socket options, if they have changed since the last time.
    fn take_settings(&mut self) -> Option<Settings>;

    /// Whether the application has written what no honest one writes: the connection is reset.
    fn is_broken(&self) -> bool;

    /// Gives the application as many of `bytes` as there is room for, and says how many.
    fn deliver(&mut self, bytes: &[u8]) -> usize;

    /// Whether there is room for more.
    fn has_room(&self) -> bool;

    /// Tells the application that nothing more will come.
    fn finish(&mut self);

    /// Wakes the application if it sleeps for something that was done since the last time, unless
    /// it was rung in this sleep of it already.
    fn ring(&mut self, rung: &mut NotifiedSleeps);

    /// Asks to be rung when the application has done what is wanted. Whoever arms looks once more
    /// before he sleeps.
    fn arm(&mut self, wanted: Wanted);

    /// As [`Channel::arm`], by who is about to sleep for many channels, all of which it looks at
    /// when it wakes: an application rings once for all that are armed with the same number, which
    /// is never 0 and never used again.
    fn arm_among_many(&mut self, wanted: Wanted, sleep: u64);

    /// Takes back what was asked with either.
    fn disarm(&mut self, wanted: Wanted);

    /// To be called when the loop was rung for this channel, so that it can be rung again.
    fn answer(&mut self);

    /// The last holder of the application's side is gone. How has it ended?
    fn departed(&mut self) -> Departure;

    /// Tells an application that waits for its connection that it is there.
    fn establish(&mut self);

    /// Tells it that it failed.
    fn fail(&mut self, error: Errno);

    /// Ends the connection towards the application: it can still read what it was given, and then
    /// gets `error`. To be dropped after that.
    fn break_off(&mut self, error: Errno);
}
