//! Shards in one thread, with queues between them and a log in memory.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use sietch_kv::settings::Settings;
use sietch_kv::shard::{
    Announcements, ClientId, Now, Placement, Replies, Requests, Shard, Totals, exclusive,
};
use sietch_kv_programs::connection::encode;
use sietch_kv_programs::reply::Reply;
use sietch_sim::Random;

/// Steps after which a store that still has work is considered to be stuck.
const MOST_STEPS: usize = 200_000;

/// A key of a shard of `count`.
pub(super) fn key_of(shard: usize, count: usize) -> String {
    let placement = Placement::new(0, count);
    (0..)
        .map(|number| format!("k{number}"))
        .find(|key| placement.shard_of(key.as_bytes()) == shard)
        .expect("one")
}

pub(super) fn text(bytes: Vec<u8>) -> String {
    String::from_utf8_lossy(&bytes).into_owned()
}

enum Message {
    Requests(Requests),
    Replies(Replies),
    Announcements(Announcements),
}

/// A client, by its shard and its identity there.
pub(super) type Handle = (usize, ClientId);

/// Some shards of one store.
#[expect(clippy::vec_box, reason = "shards move between cores in their boxes")]
pub(super) struct Cluster {
    pub(super) shards: Vec<Box<Shard>>,
    /// By sender and receiver.
    queues: Vec<Vec<VecDeque<Message>>>,
    /// By shard: the number of its last record, and the last that is durable.
    numbers: Vec<(u64, u64)>,
    /// The log.
    pub(super) records: Vec<Vec<u8>>,
    pub(super) now: Now,
    pub(super) random: Random,
    /// What each client has received.
    received: BTreeMap<Handle, Vec<u8>>,
    /// Clients that do not read.
    pub(super) stalled: Vec<Handle>,
    /// Clients that the shards have closed.
    pub(super) closed: Vec<Handle>,
    pub(super) sections: usize,
    /// Nothing becomes durable.
    pub(super) hold_durability: bool,
}

impl Cluster {
    pub(super) fn new(count: usize, seed: u64) -> Self {
        Self::with(count, seed, &Settings::default())
    }

    pub(super) fn with(count: usize, seed: u64, settings: &Settings) -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
        let now = Now { monotonic_ns: 1_000_000_000, unix_ms: unix.as_millis() as u64 };
        let totals = Arc::new(Totals::new(count));
        let shard = |own| {
            let placement = Placement::new(own, count);
            let mut shard = Shard::with_placement(settings.clone(), seed, placement, Arc::clone(&totals));
            shard.enable_journal(true);
            Box::new(shard)
        };
        Self {
            shards: (0..count).map(shard).collect(),
            queues: (0..count).map(|_| (0..count).map(|_| VecDeque::new()).collect()).collect(),
            numbers: vec![(0, 0); count],
            records: Vec::new(),
            now,
            random: Random::new(seed ^ 0x5eed),
            received: BTreeMap::new(),
            stalled: Vec::new(),
            closed: Vec::new(),
            sections: 0,
            hold_durability: false,
        }
    }

    pub(super) fn connect(&mut self, shard: usize) -> Handle {
        let address = SocketAddr::from(([127, 0, 0, 1], 40_000));
        let id = self.shards[shard].connect(address, address, self.now).expect("fewer than maxclients");
        self.received.insert((shard, id), Vec::new());
        (shard, id)
    }

    pub(super) fn disconnect(&mut self, client: Handle) {
        self.shards[client.0].disconnect(client.1);
        self.received.remove(&client);
    }

    /// Feeds bytes to a client's shard.
    pub(super) fn send(&mut self, client: Handle, bytes: &[u8]) {
        self.shards[client.0].feed(client.1, bytes, self.now);
        if self.random.index(2) == 0 {
            self.end_iteration(client.0);
        }
    }

    pub(super) fn send_command(&mut self, client: Handle, line: &str) {
        self.send(client, format!("{line}\r\n").as_bytes());
    }

    /// Ends a shard's iteration: its effects go to the log, its messages into the queues.
    pub(super) fn end_iteration(&mut self, number: usize) {
        let shard = &mut self.shards[number];
        if let Some(record) = shard.journal().take() {
            self.numbers[number].0 += 1;
            self.records.push(record);
        }
        shard.seal(self.numbers[number].0);
        let mut ready = Vec::new();
        shard.take_ready(&mut ready);
        for id in ready {
            let reads = !self.stalled.contains(&(number, id));
            let output = if reads { shard.output(id).to_vec() } else { Vec::new() };
            shard.consumed(id, output.len());
            if let Some(received) = self.received.get_mut(&(number, id)) {
                received.extend_from_slice(&output);
            }
            if shard.wants_close(id) {
                shard.disconnect(id);
                self.closed.push((number, id));
            }
        }
        for to in 0..self.queues.len() {
            let queue = &mut self.queues[number][to];
            queue.extend(shard.take_requests(to).map(Message::Requests));
            queue.extend(shard.take_replies(to).map(Message::Replies));
            queue.extend(shard.take_announcements(to).map(Message::Announcements));
        }
    }

    fn deliver(&mut self, from: usize, to: usize) {
        let (shard, now) = (&mut self.shards[to], self.now);
        match self.queues[from][to].pop_front() {
            Some(Message::Requests(requests)) => shard.serve_requests(from, requests, now),
            Some(Message::Replies(replies)) => shard.accept_replies(from, replies, now),
            Some(Message::Announcements(list)) => shard.accept_announcements(from, list, now),
            None => {}
        }
    }

    fn section(&mut self) {
        for number in 0..self.shards.len() {
            self.end_iteration(number);
        }
        exclusive::run(&mut self.shards, self.now);
        self.sections += 1;
        let record = self.shards[0].journal().take();
        self.records.extend(record);
        for number in 0..self.shards.len() {
            self.numbers[number].0 += 1;
            self.end_iteration(number);
        }
    }

    fn is_due(&self, number: usize) -> bool {
        self.shards[number].next_deadline().is_some_and(|due| due <= self.now.monotonic_ns)
    }

    /// Does one thing that the seed chooses. Returns false if there is nothing to do.
    pub(super) fn step(&mut self) -> bool {
        let count = self.shards.len();
        let mut choices: Vec<(u8, usize, usize)> = Vec::new();
        for number in 0..count {
            choices.extend(
                (0..count).filter(|&to| !self.queues[number][to].is_empty()).map(|to| (0, number, to)),
            );
            choices.extend(self.is_due(number).then_some((1, number, 0)));
            let waits = self.numbers[number].1 < self.numbers[number].0 && !self.hold_durability;
            choices.extend(waits.then_some((2, number, 0)));
            choices.extend(self.shards[number].wants_exclusive().then_some((3, 0, 0)));
        }
        if choices.is_empty() {
            return false;
        }
        match choices[self.random.index(choices.len())] {
            (0, from, to) => {
                self.deliver(from, to);
                // A shard may handle several messages in one iteration.
                if self.random.index(2) == 0 {
                    self.end_iteration(to);
                }
            }
            (1, number, _) => {
                self.shards[number].tick(self.now);
                self.end_iteration(number);
            }
            (2, number, _) => {
                let (last, durable) = self.numbers[number];
                let more = 1 + self.random.index((last - durable) as usize) as u64;
                self.numbers[number].1 = durable + more;
                self.shards[number].durable(durable + more);
                self.end_iteration(number);
            }
            _ => self.section(),
        }
        true
    }

    /// Goes on until there is nothing to do.
    pub(super) fn settle(&mut self) {
        for _ in 0..MOST_STEPS {
            (0..self.shards.len()).for_each(|number| self.end_iteration(number));
            if !self.step() {
                return;
            }
        }
        panic!("the shards never come to rest");
    }

    /// Lets time pass, and everything that is due happen.
    pub(super) fn pass(&mut self, milliseconds: u64) {
        self.now.monotonic_ns += milliseconds * 1_000_000;
        self.now.unix_ms += milliseconds;
        for number in 0..self.shards.len() {
            self.shards[number].tick(self.now);
        }
        self.settle();
    }

    /// Lets a client read again, and waits until it has everything.
    pub(super) fn read_again(&mut self, client: Handle) {
        self.stalled.retain(|stalled| *stalled != client);
        let output = self.shards[client.0].output(client.1).to_vec();
        self.shards[client.0].consumed(client.1, output.len());
        if let Some(received) = self.received.get_mut(&client) {
            received.extend_from_slice(&output);
        }
        self.settle();
    }

    /// What a client has received since the last call.
    pub(super) fn take(&mut self, client: Handle) -> Vec<u8> {
        self.received.get_mut(&client).map(std::mem::take).unwrap_or_default()
    }

    /// Runs an inline command alone, and returns the reply.
    pub(super) fn request(&mut self, client: Handle, line: &str) -> String {
        self.send_command(client, line);
        self.settle();
        String::from_utf8_lossy(&self.take(client)).into_owned()
    }

    /// Runs commands in one pipeline. While replies are missing, a command is blocked: time passes.
    pub(super) fn request_all(&mut self, client: Handle, commands: &[&[Vec<u8>]]) -> Vec<Reply> {
        let bytes: Vec<u8> = commands.iter().flat_map(|command| encode(command)).collect();
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let length = 1 + self.random.index(rest.len());
            let (part, more) = rest.split_at(length);
            self.send(client, part);
            rest = more;
            for _ in 0..self.random.index(4) {
                self.step();
            }
        }
        self.settle();
        let (mut replies, mut received) = (Vec::new(), Vec::new());
        for _ in 0..100 {
            received.extend(self.take(client));
            let mut at = received.as_slice();
            while let Some((reply, rest)) = Reply::parse(at) {
                at = &at[at.len() - rest..];
                replies.push(reply);
            }
            received = at.to_vec();
            if replies.len() >= commands.len() {
                break;
            }
            self.pass(1000);
        }
        replies
    }

    /// A store of one shard with what the log has.
    pub(super) fn recovered(&self) -> Cluster {
        let mut one = Cluster::new(1, 7);
        one.now = self.now;
        for (sequence, record) in self.records.iter().enumerate() {
            one.shards[0]
                .replay(sequence as u64 + 1, record, self.now)
                .expect("an order that can be repeated");
        }
        one.shards[0].finish_recovery().expect("nothing is damaged");
        one
    }
}

/// All keys of a store, with their values and expiries.
pub(super) fn state(cluster: &mut Cluster) -> Vec<String> {
    let client = cluster.connect(0);
    let words =
        |line: &str| -> Vec<Vec<u8>> { line.split(' ').map(|word| word.as_bytes().to_vec()).collect() };
    let mut ask = |words: &[Vec<u8>]| cluster.request_all(client, &[words]).remove(0);
    let mut found = Vec::new();
    for database in 0..16 {
        ask(&words(&format!("SELECT {database}")));
        let Reply::Array(keys) = ask(&words("KEYS *")) else { panic!("KEYS gives an array") };
        for key in keys {
            let Reply::Bulk(name) = key else { panic!("KEYS gives strings") };
            let with = |line: &str| -> Vec<Vec<u8>> {
                let mut command = words(line);
                command.insert(1, name.clone());
                command
            };
            let kind = ask(&with("TYPE"));
            let expires = ask(&with("PEXPIRETIME"));
            let Reply::Simple(text) = &kind else { panic!("TYPE gives a word") };
            let mut value = match &text[..] {
                b"string" => vec![ask(&with("GET"))],
                b"list" => vec![ask(&with("LRANGE 0 -1"))],
                b"set" => elements(ask(&with("SMEMBERS")), 1),
                b"hash" => elements(ask(&with("HGETALL")), 2),
                b"zset" => vec![ask(&with("ZRANGE 0 -1 WITHSCORES"))],
                // Its time is over.
                _ => continue,
            };
            value.sort();
            let value: Vec<String> = value.iter().map(Reply::to_string).collect();
            let name = String::from_utf8_lossy(&name);
            found.push(format!("{database} {name} {kind} {expires} {}", value.join(" ")));
        }
    }
    cluster.disconnect(client);
    found.sort();
    found
}

fn elements(reply: Reply, together: usize) -> Vec<Reply> {
    let Reply::Array(elements) = reply else { panic!("an array") };
    elements.chunks(together).map(|part| Reply::Array(part.to_vec())).collect()
}

/// Seeds of a run: the same each time, or others with `SIETCH_SIM_FRESH=1`. `KV_CLUSTER_SEED=n`
/// runs one again, and `KV_CLUSTER_SEEDS=n` runs more or fewer.
pub(super) fn seeds(count: u64) -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let count = number("KV_CLUSTER_SEEDS").unwrap_or(count);
    match number("KV_CLUSTER_SEED") {
        Some(seed) => seed..seed + 1,
        None => {
            let first = sietch_sim::seeds::first(1);
            first..first + count
        }
    }
}
