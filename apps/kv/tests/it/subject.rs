//! The side under test: a shard with two clients, without sockets and a log.

use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use sietch_kv::settings::Settings;
use sietch_kv::shard::{ClientId, Now, Shard};
use sietch_kv_programs::connection::encode;
use sietch_kv_programs::reply::Reply;

/// A shard with two clients.
pub(crate) struct Subject {
    pub(crate) shard: Shard,
    /// The client that runs commands.
    pub(crate) client: ClientId,
    /// The client that observes it.
    pub(crate) observer: ClientId,
    now: Now,
    sequence: u64,
}

impl Subject {
    /// A shard at the time of the host.
    pub(crate) fn new(seed: u64) -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
        let now = Now { monotonic_ns: 1_000_000_000, unix_ms: unix.as_millis() as u64 };
        let mut shard = Shard::new(Settings::default(), seed);
        let address = SocketAddr::from(([127, 0, 0, 1], 40_000));
        let client = shard.connect(address, address, now).expect("the first client");
        let observer = shard.connect(address, address, now).expect("the second client");
        Self { shard, client, observer, now, sequence: 0 }
    }

    fn drain(&mut self, id: ClientId) -> Vec<u8> {
        self.sequence += 1;
        self.shard.seal(self.sequence);
        self.shard.durable(self.sequence);
        let output = self.shard.output(id).to_vec();
        self.shard.consumed(id, output.len());
        output
    }

    /// Runs a command, and returns what its client has received.
    pub(crate) fn request(&mut self, id: ClientId, command: &[Vec<u8>]) -> Vec<u8> {
        self.shard.feed(id, &encode(command), self.now);
        let output = self.drain(id);
        if !output.is_empty() {
            return output;
        }
        // It blocks, and no other client will wake it: let its timeout pass.
        self.now.monotonic_ns += 1_000_000_000;
        self.shard.tick(self.now);
        self.drain(id)
    }

    /// Deletes the keys whose time is over.
    pub(crate) fn expire(&mut self) {
        self.shard.tick(self.now);
    }

    /// The messages to a client since the last call.
    pub(crate) fn messages(&mut self, id: ClientId) -> Vec<Reply> {
        let output = self.drain(id);
        let mut bytes = output.as_slice();
        let mut messages = Vec::new();
        while let Some((reply, rest)) = Reply::parse(bytes) {
            bytes = &bytes[bytes.len() - rest..];
            messages.push(reply);
        }
        messages
    }
}
