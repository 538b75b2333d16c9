//! Bytes of a client of the store, and records of its journal.

use std::net::SocketAddr;

use sietch_kv::settings::Settings;
use sietch_kv::shard::{Now, Shard};

const NOW: Now = Now { monotonic_ns: 1_000_000_000, unix_ms: 1_700_000_000_000 };

/// Input of two clients: a byte says which and how many of the next bytes come at once.
pub(crate) fn commands(mut data: &[u8]) {
    let mut shard = Shard::new(Settings::default(), 1);
    let address = SocketAddr::from(([127, 0, 0, 1], 6379));
    let clients = [0, 1].map(|_| shard.connect(address, address, NOW).expect("room"));
    let mut now = NOW;
    while let [head, rest @ ..] = data {
        let length = (usize::from(head >> 1) * 4).max(1).min(rest.len());
        let client = clients[usize::from(head & 1)];
        shard.feed(client, &rest[..length], now);
        data = &rest[length..];
        for client in clients {
            let waiting = shard.output(client).len();
            shard.consumed(client, waiting);
        }
        now.monotonic_ns += 1_000_000;
        now.unix_ms += 1;
        shard.tick(now);
    }
}

/// A record of the journal, or of a snapshot.
pub(crate) fn journal(data: &[u8]) {
    let Some((kind, record)) = data.split_first() else { return };
    let mut shard = Shard::new(Settings::default(), 1);
    let replayed = if kind & 1 == 0 { shard.replay(1, record, NOW) } else { shard.replay_snapshot(record) };
    if replayed.is_ok() && shard.finish_recovery().is_ok() {
        shard.tick(NOW);
    }
}
