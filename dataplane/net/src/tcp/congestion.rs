//! Congestion control: how many bytes may be in flight, and how fast they may leave. Which bytes
//! are lost is decided in `slow`, and so is what leaves during loss recovery; an algorithm is only
//! informed of both.
//!
//! 1. Each acknowledgement is passed as [`Acknowledged`]: the bytes it covers, how many of them
//!    were CE-marked, and a round-trip sample if it gives one. `grow` says whether the window was
//!    what held the sender back.
//! 2. A reduction is reported once per window of data and by its cause: a loss
//!    ([`CongestionControl::enter_recovery`]), a CE mark ([`CongestionControl::ce_marked`]), or a
//!    timeout. [`CongestionControl::undo`] reverts the last reduction if it was spurious.
//! 3. The result is a window in bytes, which the flow copies to its hot state, and possibly a rate,
//!    which `pacing` enforces. Rates and delays are evaluated once per control interval, not once
//!    per segment.
//!
//! An algorithm is a small `Copy` value in an enum: no allocation, no indirect call. Arithmetic is
//! in integers.

use std::fmt;
use std::str::FromStr;

mod control;
mod cubic;
mod dctcp;
mod hystart;
mod new_reno;
pub(crate) mod path_delay;
mod timely;
mod window;

pub(crate) use control::{Acknowledged, CongestionControl, Moment};
pub use cubic::Cubic;
pub use dctcp::Dctcp;
pub use new_reno::NewReno;
pub use timely::Timely;
use window::Window;

/// The algorithms there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Kind {
    /// RFC 5681 and 6582: halves at a loss, one segment more a round trip.
    NewReno,
    /// RFC 9438, with HyStart++ (RFC 9406): grows by the time since the last loss.
    #[default]
    Cubic,
    /// RFC 8257: reduces by the share of CE-marked bytes. For networks whose switches mark early.
    Dctcp,
    /// Mittal et al., SIGCOMM 2015: a rate that follows the change of the round trip. For networks
    /// without ECN.
    Timely,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::NewReno, Self::Cubic, Self::Dctcp, Self::Timely];

    /// Its name, as it is read and as `sietch ss` shows it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NewReno => "newreno",
            Self::Cubic => "cubic",
            Self::Dctcp => "dctcp",
            Self::Timely => "timely",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that no algorithm has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no congestion control `{0}`: use newreno, cubic, dctcp or timely")]
pub struct UnknownAlgorithm(String);

impl FromStr for Kind {
    type Err = UnknownAlgorithm;

    fn from_str(name: &str) -> Result<Self, UnknownAlgorithm> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| UnknownAlgorithm(name.to_owned()))
    }
}

/// The algorithm of a flow with its state.
#[derive(Clone, Copy, Debug)]
pub enum Algorithm {
    /// See [`Kind::NewReno`].
    NewReno(NewReno),
    /// See [`Kind::Cubic`].
    Cubic(Cubic),
    /// See [`Kind::Dctcp`].
    Dctcp(Dctcp),
    /// See [`Kind::Timely`].
    Timely(Timely),
}

// Two cache lines of a flow's cold state.
const _: () = assert!(size_of::<Algorithm>() <= 128);

macro_rules! each {
    ($self:ident, $state:ident => $call:expr) => {
        match $self {
            Algorithm::NewReno($state) => $call,
            Algorithm::Cubic($state) => $call,
            Algorithm::Dctcp($state) => $call,
            Algorithm::Timely($state) => $call,
        }
    };
}

impl Algorithm {
    /// A fresh algorithm with the initial window (RFC 6928) for segments of `mss` bytes.
    pub const fn new(kind: Kind, mss: u32) -> Self {
        match kind {
            Kind::NewReno => Self::NewReno(NewReno::new(mss)),
            Kind::Cubic => Self::Cubic(Cubic::new(mss)),
            Kind::Dctcp => Self::Dctcp(Dctcp::new(mss)),
            Kind::Timely => Self::Timely(Timely::new(mss)),
        }
    }

    /// Which it is.
    pub const fn kind(&self) -> Kind {
        match self {
            Self::NewReno(_) => Kind::NewReno,
            Self::Cubic(_) => Kind::Cubic,
            Self::Dctcp(_) => Kind::Dctcp,
            Self::Timely(_) => Kind::Timely,
        }
    }

    /// Another algorithm that continues from this one's window.
    pub(crate) fn changed_to(&self, kind: Kind, mss: u32) -> Self {
        let (window, threshold) = (self.window(), self.threshold());
        let mut changed = Self::new(kind, mss);
        let resumed = &mut changed;
        each!(resumed, state => state.window.resume(window, threshold));
        changed
    }

    #[inline]
    fn shared(&self) -> &Window {
        each!(self, state => &state.window)
    }

    /// The congestion window in bytes. In recovery: its value afterwards.
    #[inline]
    pub fn window(&self) -> u32 {
        self.shared().size
    }

    /// The slow-start threshold in bytes.
    #[inline]
    pub fn threshold(&self) -> u32 {
        self.shared().threshold
    }

    /// Whether the window grows by as much as is acknowledged.
    #[inline]
    pub(crate) fn in_slow_start(&self) -> bool {
        self.shared().in_slow_start()
    }
}

impl CongestionControl for Algorithm {
    #[inline]
    fn pacing_rate(&self) -> Option<u64> {
        each!(self, state => state.pacing_rate())
    }

    #[inline]
    fn acknowledged(&mut self, what: &Acknowledged) {
        each!(self, state => state.acknowledged(what));
    }

    fn enter_recovery(&mut self, at: Moment) {
        each!(self, state => state.enter_recovery(at));
    }

    fn exit_recovery(&mut self) {
        each!(self, state => state.exit_recovery());
    }

    fn ce_marked(&mut self, at: Moment) {
        each!(self, state => state.ce_marked(at));
    }

    fn timed_out(&mut self, at: Moment) {
        each!(self, state => state.timed_out(at));
    }

    fn undo(&mut self) {
        each!(self, state => state.undo());
    }

    fn restart(&mut self, at: Moment) {
        each!(self, state => state.restart(at));
    }
}

#[cfg(test)]
mod tests;
