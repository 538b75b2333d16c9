//! The counters of one core: its shard, and its clients by their way.

use sietch::Kind;
use sietch::disk::DiskQueue;
use sietch::nic::NicQueue;

use crate::foundation::client_path::ClientPath;
use crate::server::reactor::Reactor;
use crate::server::transport::streams::StreamTransport;
use crate::shard::Shard;

/// The counters of a layer: name, kind, and value.
pub(super) type Entries = Vec<(String, Kind, u64)>;

/// The counters of a core: always the same ones, in the same order.
pub(super) fn store<Q: NicQueue, D: DiskQueue>(reactor: &Reactor<Q, D>, shard: &Shard) -> Entries {
    let counters = shard.metrics();
    let mut entries = Entries::new();
    let mut add = |name: &str, value| entries.push((name.to_owned(), Kind::Counter, value));
    add("commands", counters.commands);
    add("connections", counters.connections);
    add("refused", counters.refused);
    add("input_bytes", counters.input_bytes);
    add("output_bytes", counters.output_bytes);
    add("hits", counters.hits);
    add("misses", counters.misses);
    add("expired", counters.expired);
    add("evicted", counters.evicted);
    add("effects", counters.effects);
    add("errors", counters.errors);
    add("protocol_errors", counters.protocol_errors);
    add("query_limit_closed", counters.query_limit_closed);
    add("output_limit_closed", counters.output_limit_closed);
    add("idle_closed", counters.idle_closed);
    add("long_iterations", counters.long_iterations);
    add("own_long_iterations", counters.own_long_iterations);
    add("long_iteration_faults", counters.long_iteration_faults);
    add("http_closed", counters.http_closed);
    add("replayed", counters.replayed);
    add("replay_skipped", counters.replay_skipped);
    add("forwarded", counters.forwarded);
    add("exclusive_sections", counters.exclusive_sections);
    entries.push(("longest_iteration_ns".into(), Kind::Gauge, counters.longest_iteration_ns));
    entries.push(("clients".into(), Kind::Gauge, shard.clients() as u64));
    for (name, path) in [
        ("memory_clients", ClientPath::Memory),
        ("kernel_clients", ClientPath::Kernel),
        ("vnic_clients", ClientPath::Vnic),
    ] {
        entries.push((name.into(), Kind::Gauge, reactor.clients_on(path)));
    }
    let registered = reactor.streams().is_some_and(StreamTransport::is_registered);
    entries.push(("memory_listeners".into(), Kind::Gauge, u64::from(registered)));
    entries.push(("keys".into(), Kind::Gauge, shard.keys() as u64));
    entries.push(("memory_bytes".into(), Kind::Gauge, shard.used_memory()));
    entries
}
