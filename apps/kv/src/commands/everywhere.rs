//! What a command that concerns all shards sees of them. In a store of one shard it is that shard
//! alone.

use super::context::Context;
use crate::clients::Clients;
use crate::data::keyspace::Store;
use crate::foundation::metrics::Metrics;
use crate::foundation::observation::histogram::Histogram;
use crate::foundation::observation::latency::LatencyMonitor;

impl Context<'_> {
    /// The stores of all shards, the own one first. The keys of all are in the own one.
    pub(crate) fn stores(&self) -> impl Iterator<Item = &Store> {
        let others = (0..self.others.count()).map(|number| self.others.store(number));
        std::iter::once(self.data.store_ref()).chain(others)
    }

    /// Changes the stores of all shards.
    pub(crate) fn each_store(&mut self, mut work: impl FnMut(&mut Store)) {
        work(self.data.store());
        (0..self.others.count()).for_each(|number| work(self.others.store_mut(number)));
    }

    /// The clients of all shards, but the one that is being served.
    pub(crate) fn all_clients(&self) -> impl Iterator<Item = &Clients> {
        let others = (0..self.others.count()).map(|number| self.others.clients(number));
        std::iter::once(&*self.clients).chain(others)
    }

    /// Changes the clients of all shards.
    pub(crate) fn each_clients(&mut self, mut work: impl FnMut(&mut Clients)) {
        work(self.clients);
        (0..self.others.count()).for_each(|number| work(self.others.clients_mut(number)));
    }

    /// The store of the shard that writes the log: the first one.
    pub(crate) fn coordinator(&self) -> &Store {
        let own = self.data.store_ref();
        if own.placement().own() == 0 || self.others.count() == 0 { own } else { self.others.store(0) }
    }

    /// The same, to be changed.
    pub(crate) fn coordinator_mut(&mut self) -> &mut Store {
        let is_own = self.data.store_ref().placement().own() == 0 || self.others.count() == 0;
        if is_own { self.data.store() } else { self.others.store_mut(0) }
    }

    /// Gives all shards the settings of this one.
    pub(crate) fn share_settings(&mut self) {
        for number in 0..self.others.count() {
            let store = self.others.store_mut(number);
            store.settings = self.data.settings().clone();
            store.observation.changed = true;
        }
    }

    /// Gives all shards the users of this one.
    pub(crate) fn share_users(&mut self) {
        for number in 0..self.others.count() {
            self.others.store_mut(number).users = self.data.store_ref().users.clone();
        }
    }

    /// The counters of all shards together.
    pub(crate) fn metrics(&self) -> Metrics {
        let mut sum = self.data.store_ref().metrics.clone();
        self.stores().skip(1).for_each(|store| sum.add(&store.metrics));
        sum
    }

    /// Bytes in use, as `maxmemory` counts them.
    pub(crate) fn used_memory(&self) -> u64 {
        self.stores().map(Store::used_memory).sum()
    }

    /// The latency events of all shards together.
    pub(crate) fn latency(&self) -> LatencyMonitor {
        let mut all = LatencyMonitor::default();
        self.stores().for_each(|store| all.add(&store.observation.latency));
        all
    }

    /// The durations of the commands of all shards, by command and subcommand.
    pub(crate) fn histograms(&self) -> std::collections::BTreeMap<(u16, &'static str), Histogram> {
        let mut all = std::collections::BTreeMap::<_, Histogram>::new();
        for (&name, histogram) in self.stores().flat_map(|store| &store.observation.histograms) {
            all.entry(name).or_default().add(histogram);
        }
        all
    }

    /// The durations of the parts of the log's commits, by name.
    pub(crate) fn commit_histograms(&self) -> std::collections::BTreeMap<&'static str, Histogram> {
        let mut all = std::collections::BTreeMap::<_, Histogram>::new();
        for (&part, histogram) in self.stores().flat_map(|store| &store.observation.commits) {
            all.entry(part).or_default().add(histogram);
        }
        all
    }
}
