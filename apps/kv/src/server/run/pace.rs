//! The pace of a core's loop: what it notes about its iterations, and what it does after one in
//! which nothing happened.

use super::idle::IdlePolicy;
use super::process::has_single_core;
use crate::server::latency::LatencyAttribution;
use crate::server::metrics::QueueCounters;
use crate::server::reactor::Reactor;
use crate::shard::LONG_ITERATION_NS;
use sietch::Idle;
use sietch::disk::DiskQueue;
use sietch::nic::NicQueue;

/// See the module.
#[derive(Debug)]
pub(super) struct Pace {
    idle_policy: IdlePolicy,
    /// When the last iteration began, unless the core has slept or yielded since.
    before: Option<u64>,
    latency: LatencyAttribution,
}

impl Pace {
    /// The pace of a loop that is about to begin, one of so many. With more loops than processors,
    /// polling would take the processor from the loop that is waited for.
    pub(super) fn new(loops: usize) -> Self {
        let mut latency = LatencyAttribution::default();
        latency.refresh();
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let crowded = has_single_core() || loops > processors;
        Self { idle_policy: IdlePolicy::new(crowded), before: None, latency }
    }

    /// An iteration begins at `now`: counts the last one.
    pub(super) fn begin<Q: NicQueue + QueueCounters, D: DiskQueue>(
        &mut self,
        reactor: &mut Reactor<Q, D>,
        now: u64,
    ) {
        let Some(before) = self.before.replace(now) else { return };
        let took = now.saturating_sub(before);
        reactor.note_iteration(took);
        if took >= LONG_ITERATION_NS {
            self.latency.long_iteration();
            reactor.note_latency(&self.latency);
        }
    }

    /// Something happened in the iteration that began at `now`.
    pub(super) fn busy(&mut self, now: u64) {
        self.idle_policy.busy(now);
    }

    /// The counters were published, which takes time that belongs to no iteration.
    pub(super) fn published(&mut self) {
        self.latency.refresh();
        self.before = None;
    }

    /// After an iteration that began at `now` and found nothing: polls again soon, or yields the
    /// core. True: the loop should sleep. `disk` and `rings` as in [`IdlePolicy::idle`].
    pub(super) fn rests(&mut self, now: u64, disk: bool, rings: bool) -> bool {
        match self.idle_policy.idle(now, disk, rings) {
            Idle::Poll => std::hint::spin_loop(),
            // The time of other threads on the core does not count as a long iteration.
            Idle::Yield => {
                self.before = None;
                rustix::thread::sched_yield();
            }
            Idle::Sleep => {
                self.before = None;
                return true;
            }
        }
        false
    }
}
