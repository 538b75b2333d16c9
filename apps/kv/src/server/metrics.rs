//! The counters of the loop and its devices, shown to `sietch stat`.
//!
//! One page a layer: `kv`, `log`, `tcp`, `nic`. The loop calls [`MetricsPages::update`] before it
//! sleeps and, while it is busy, once in [`sietch::METRICS_INTERVAL`]. With several shards, `kv`
//! has the sums, and the page `shards` some counters of each ([`cores`]).
//!
//! The resources that the process uses, which `INFO` shows, are read here too. They have an
//! interval of their own: reading them at each sleep would cost too much.

use sietch::disk::DiskQueue;
use sietch::nic::NicQueue;
use sietch::{Kind, Metrics, MetricsError, VnicQueue};
use sietch_ring::thread_doorbell::EventDoorbell;

use super::reactor::Reactor;
use crate::foundation::metrics::Usage;
use crate::shard::Shard;

mod cores;
mod store;

pub(super) use cores::MemberCounters;
use cores::SharedCounters;
use store::{Entries, store};

/// A queue with counters. Queues in memory have none.
pub(super) trait QueueCounters {
    /// Adds the queue's counters.
    fn count(&self, add: &mut dyn FnMut(&str, u64));
}

impl QueueCounters for VnicQueue {
    fn count(&self, add: &mut dyn FnMut(&str, u64)) {
        match self {
            Self::AfXdp(queue) => {
                let counters = queue.counters();
                add("rx_frames", counters.rx_frames);
                add("rx_bytes", counters.rx_bytes);
                add("tx_frames", counters.tx_frames);
                add("tx_bytes", counters.tx_bytes);
                add("kicks", counters.kicks);
                add("tx_backpressure", counters.tx_backpressure);
                add("tx_runts", counters.tx_runts);
                add("rx_multi_buffer", counters.rx_multi_buffer);
                add("rx_oversize", counters.rx_oversize);
                add("invalid_descriptors", counters.invalid_descriptors);
                add("ring_violations", counters.ring_violations);
            }
            Self::Link(endpoint) => {
                let counters = endpoint.counters();
                add("rx_frames", counters.rx_frames);
                add("rx_bytes", counters.rx_bytes);
                add("tx_frames", counters.tx_frames);
                add("tx_bytes", counters.tx_bytes);
                add("notifications", counters.notifications);
                add("tx_backpressure", counters.tx_backpressure);
                add("tx_runts", counters.tx_runts);
                add("invalid_descriptors", counters.invalid_descriptors);
                add("ring_violations", counters.ring_violations);
            }
        }
    }
}

/// The pages of a running store.
#[derive(Debug)]
pub(super) struct MetricsPages {
    pages: Vec<Metrics>,
    members: SharedCounters,
    next: u64,
    /// When the resource usage is read again.
    usage_due: u64,
}

impl MetricsPages {
    /// Pages for the layers of `reactor`, which is core 0's, beside so many other cores.
    pub(super) fn new<Q: NicQueue + QueueCounters, D: DiskQueue>(
        reactor: &Reactor<Q, D>,
        members: usize,
    ) -> Result<Self, MetricsError> {
        let counters = reactor.shard().map_or(0, |shard| store(reactor, shard).len());
        let members = SharedCounters::new(members, counters);
        let mut pages = Vec::new();
        for (label, entries) in layers(reactor, &members) {
            let names: Vec<(&str, Kind)> =
                entries.iter().map(|(name, kind, _)| (name.as_str(), *kind)).collect();
            pages.push(Metrics::new(label, &names)?);
        }
        Ok(Self { pages, members, next: 0, usage_due: 0 })
    }

    /// Where each other core leaves its counters. `coordinator` is the doorbell of core 0.
    pub(super) fn members(&self, coordinator: &EventDoorbell) -> Vec<MemberCounters> {
        self.members.members(coordinator)
    }

    /// The pages, to be shared with the daemon.
    pub(super) fn pages(&self) -> &[Metrics] {
        &self.pages
    }

    /// Whether a busy server should update the pages.
    pub(super) fn is_due(&self, now: u64) -> bool {
        now >= self.next
    }

    /// Publishes the current values, and notes the resource usage if that is due. Returns when to
    /// call again if a page could not be published yet.
    pub(super) fn update<Q: NicQueue + QueueCounters, D: DiskQueue>(
        &mut self,
        reactor: &mut Reactor<Q, D>,
        now: u64,
    ) -> Option<u64> {
        if now >= self.usage_due {
            self.usage_due = now.saturating_add(sietch::METRICS_INTERVAL);
            // Without /proc the usage stays 0.
            let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
            reactor.note_usage(Usage::parse(&stat, rustix::param::page_size() as u64));
        }
        self.next = now.saturating_add(sietch::METRICS_INTERVAL);
        let mut again = None;
        for (label, entries) in layers(reactor, &self.members) {
            // The pages of a detached VNIC stay as they are.
            let Some(page) = self.pages.iter_mut().find(|page| page.label() == label) else { continue };
            page.set_all(0, entries.into_iter().map(|(_, _, value)| value));
            match page.publish(now) {
                Ok(due) => again = [again, due].into_iter().flatten().min(),
                // A failure here is no reason to stop serving; the next try may succeed.
                Err(cause) => tracing::debug!("counters of {label}: {cause}"),
            }
        }
        again
    }
}

/// The values of every layer.
fn layers<Q: NicQueue + QueueCounters, D: DiskQueue>(
    reactor: &Reactor<Q, D>,
    members: &SharedCounters,
) -> Vec<(&'static str, Entries)> {
    let mut layers = Vec::new();
    if let Some(shard) = reactor.shard() {
        let mut entries = store(reactor, shard);
        let shards = members.shards(&entries);
        members.sum(&mut entries);
        layers.push(("kv", entries));
        if !shards.is_empty() {
            layers.push(("shards", shards));
        }
    }
    if let Some(log_writer) = reactor.log_writer() {
        let log = log_writer.log();
        let counters = log.metrics();
        let mut entries = Entries::new();
        counters.each(|name, value| entries.push((name.to_owned(), Kind::Counter, value)));
        let commits = reactor.shard().map(|shard| shard.persistence().commits.clone()).unwrap_or_default();
        for (name, value) in [
            ("commits_timed", commits.timed),
            ("commit_ns", commits.total_ns),
            ("commit_queue_ns", commits.queue_ns),
            ("commit_device_ns", commits.device_ns),
            ("wakeups_timed", commits.wake_ups),
            ("wakeup_ns", commits.wake_up_ns),
        ] {
            entries.push((name.into(), Kind::Counter, value));
        }
        let refused = reactor.shard().map_or(0, Shard::refusals);
        let full = reactor.shard().is_some_and(|shard| log_writer.is_full(shard));
        entries.push(("refused_writes".into(), Kind::Counter, refused));
        entries.push(("full".into(), Kind::Gauge, u64::from(full)));
        entries.push(("longest_commit_ns".into(), Kind::Gauge, commits.longest_ns));
        entries.push(("durable_sequence".into(), Kind::Gauge, log.durable()));
        entries.push(("used_bytes".into(), Kind::Gauge, log.used()));
        entries.push(("capacity_bytes".into(), Kind::Gauge, log.capacity()));
        layers.push(("log", entries));
    }
    if let Some(vnic) = reactor.vnic() {
        let mut entries = Entries::new();
        vnic.engine().metrics().each(|name, value| entries.push((name.to_owned(), Kind::Counter, value)));
        layers.push(("tcp", entries));
        let mut entries = Entries::new();
        vnic.queue().count(&mut |name, value| entries.push((name.to_owned(), Kind::Counter, value)));
        entries.push(("free_buffers".into(), Kind::Gauge, vnic.queue().free_buffers() as u64));
        layers.push(("nic", entries));
    }
    layers
}

#[cfg(test)]
mod tests {
    use sietch::disk::AreaQueue;

    use super::*;
    use crate::foundation::settings::Settings;

    #[test]
    fn a_store_that_sleeps_often_still_reads_its_resource_usage() {
        let mut reactor: Reactor<VnicQueue, AreaQueue> =
            Reactor::new(Shard::new(Settings::default(), 1), None, None, None);
        let mut pages = MetricsPages::new(&reactor, 0).expect("pages");
        let resident = |reactor: &Reactor<VnicQueue, AreaQueue>| {
            reactor.shard().expect("its own").persistence().usage.resident
        };
        let quarter = sietch::METRICS_INTERVAL / 4;
        pages.update(&mut reactor, 1);
        assert_ne!(resident(&reactor), 0, "the first update reads it");
        reactor.note_usage(Usage::default());
        for step in 1..4 {
            pages.update(&mut reactor, 1 + step * quarter);
            assert_eq!(resident(&reactor), 0, "it was read before its interval was over");
        }
        pages.update(&mut reactor, 1 + 4 * quarter);
        assert_ne!(resident(&reactor), 0, "each sleep has put the reading off");
    }
}
