//! The interface of congestion control: its inputs and its result.

/// What an acknowledgement says. Quantities are bytes, times nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Acknowledged {
    /// Newly acknowledged bytes.
    pub bytes: u32,
    /// Of them, those whose packets were CE-marked.
    pub ce_marked: u32,
    /// The round trip of the newest segment that it covers and that was sent once; zero if there is
    /// no sample.
    pub rtt: u64,
    /// Bytes outstanding before it.
    pub in_flight: u32,
    /// Payload of a full segment.
    pub mss: u32,
    /// The time.
    pub now: u64,
    /// The window or the rate held the sender back and no loss recovery is active: they may grow.
    pub grow: bool,
}

/// The state of a flow at an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moment {
    /// Bytes outstanding: from the oldest unacknowledged to the highest sent (FlightSize of RFC
    /// 5681).
    pub in_flight: u32,
    /// Payload of a full segment.
    pub mss: u32,
    /// The time.
    pub now: u64,
}

/// An algorithm that sizes the congestion window.
pub(crate) trait CongestionControl {
    /// The rate to pace at in bytes a second, if the algorithm works by rates.
    fn pacing_rate(&self) -> Option<u64> {
        None
    }
    /// Something new was acknowledged.
    fn acknowledged(&mut self, what: &Acknowledged);
    /// A loss was found, the first in this window of data: the window is reduced.
    fn enter_recovery(&mut self, at: Moment);
    /// All that was outstanding when recovery began is acknowledged.
    fn exit_recovery(&mut self);
    /// The peer echoes a CE mark, the first in this window of data.
    fn ce_marked(&mut self, at: Moment);
    /// The retransmission timer fired for the first time on these data.
    fn timed_out(&mut self, at: Moment);
    /// The last reduction was spurious: nothing had been lost.
    fn undo(&mut self);
    /// The flow has been idle for a retransmission timeout (RFC 5681 section 4.1) and is about to
    /// send.
    fn restart(&mut self, at: Moment);
}
