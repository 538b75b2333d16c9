//! Several cores with one log on a disk that loses power, in one thread and in any interleaving.
//!
//! 1. Each tag has a client at the core that owns its keys. Operation `n` on a tag is a transaction
//!    that leaves traces of `n` in several keys ([`Tag`]), some of which would show an effect that
//!    was lost or applied twice.
//! 2. One client works on the keys of all tags ([`Crossing`]): in transactions that need all
//!    shards, and in commands that are forwarded to one of them.
//! 3. A crash may come at any boundary of the disk. What is recovered, with any number of shards,
//!    must have every acknowledged operation of each client, and be as after some whole operation.

mod limits;
mod operation;
mod sections;
mod sleep;

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sietch::nic::wire::WireQueue;
use sietch_sim::disk::{self, Crash, Fault, Media, SimDisk};
use sietch_structures::Random;

use super::SECOND;
use crate::foundation::client_id::ClientId;
use crate::foundation::settings::{Durability, Settings};
use crate::server::cores::links::Links;
use crate::server::cores::message::Message;
use crate::server::recover::recover_shards;
use crate::server::{LogWriter, Reactor};
use crate::shard::{Now, Placement, Shard, Totals};

/// Operations that a client has outstanding.
const PIPELINE: u64 = 3;
/// Keys with padding of a tag.
const PADDED: u64 = 4;

/// Clients that each have keys of their own.
const TAGS: usize = 6;

/// How much data there is.
#[derive(Debug, Clone, Copy)]
struct Scale {
    /// Bytes of the area.
    area: usize,
    /// Most bytes of padding of a key.
    padding: u64,
    /// Elements that the list of a tag keeps.
    kept: u64,
    /// Bytes of padding of each.
    element: usize,
    /// The longest that a request of the disk takes, in polls.
    patience: u64,
}

/// Keys and lists are short.
const SMALL: Scale = Scale { area: 1 << 20, padding: 300, kept: 20, element: 0, patience: 3 };

/// The queues between all cores.
type Wires = Arc<Mutex<Vec<VecDeque<Message>>>>;

/// Queues in memory, in which messages take a while.
struct SlowLinks {
    own: usize,
    cores: usize,
    wires: Wires,
    random: Random,
    /// How often nothing seems to have arrived, in thousandths.
    delay: u32,
}

impl Links for SlowLinks {
    fn send(&mut self, to: usize, message: Message) {
        self.wires.lock().expect("one thread")[self.own * self.cores + to].push_back(message);
    }

    fn receive(&mut self) -> Option<(usize, Message)> {
        if self.random.chance(self.delay) {
            return None;
        }
        let first = self.random.index(self.cores);
        let mut wires = self.wires.lock().expect("one thread");
        let mut peers = (first..self.cores).chain(0..first);
        peers.find_map(|from| wires[from * self.cores + self.own].pop_front().map(|message| (from, message)))
    }

    fn flush(&mut self) -> bool {
        true
    }

    fn arm(&mut self) -> bool {
        true
    }

    fn disarm(&mut self) {}

    fn wait(&mut self, _timeout: Option<Duration>) -> io::Result<()> {
        Ok(())
    }
}

/// The keys of one client.
struct Tag {
    name: String,
    client: ClientId,
    core: usize,
    /// Operations that were sent.
    sent: u64,
    /// Operations that were answered.
    acknowledged: u64,
    /// Operations that no crash may undo.
    certain: u64,
    received: Vec<u8>,
}

/// How large the padding of operation `n` is.
fn padding(n: u64, most: u64) -> u64 {
    (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) % most
}

/// Element `n` of a list.
fn element(n: u64, scale: Scale) -> String {
    format!("{n}{}", "e".repeat(scale.element))
}

impl Tag {
    fn command(&self, words: &[&str]) -> Vec<u8> {
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            let word = word.replace('@', &format!("{{{}}}", self.name));
            bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
        }
        bytes
    }

    /// The commands of operation `n`.
    fn operation(&self, n: u64, scale: Scale) -> Vec<u8> {
        let number = n.to_string();
        let padded = format!("{n}:{}", "p".repeat(padding(n, scale.padding) as usize));
        [
            self.command(&["MULTI"]),
            self.command(&["SET", "sequence@", &number]),
            self.command(&["RPUSH", "list@", &element(n, scale)]),
            self.command(&["LTRIM", "list@", &format!("-{}", scale.kept), "-1"]),
            self.command(&["APPEND", "text@", "x"]),
            self.command(&["SET", &format!("padded@{}", n % PADDED), &padded]),
            self.command(&["EXEC"]),
            self.command(&["ECHO", &format!("<{number}>")]),
        ]
        .concat()
    }
}

/// What the client has sent and received that works on the keys of all tags.
#[derive(Default)]
struct Crossing {
    client: Option<ClientId>,
    core: usize,
    sent: u64,
    acknowledged: u64,
    certain: u64,
    received: Vec<u8>,
    /// Operations before the start, and how long the text of each tag was then.
    begin: (u64, [u64; TAGS]),
}

impl Crossing {
    /// The commands of operation `n`.
    fn operation(&self, n: u64, tags: &[Tag]) -> Vec<u8> {
        let far = &tags[n as usize % TAGS];
        let mut bytes = far.command(&["MULTI"]);
        for tag in tags {
            bytes.extend(tag.command(&["APPEND", "crossing@", "x"]));
        }
        bytes.extend(far.command(&["EXEC"]));
        bytes.extend(far.command(&["APPEND", "far@", "y"]));
        if n.is_multiple_of(8) {
            // It aborts a running snapshot.
            bytes.extend_from_slice(b"SELECT 1\r\nSET junk 1\r\nFLUSHDB\r\nSELECT 0\r\n");
        }
        bytes.extend(far.command(&["ECHO", &format!("<{n}>")]));
        bytes
    }

    /// Checks that what this client has done to a data set is whole. Returns how many operations
    /// are there, and how long the text of each tag is.
    fn check(&self, shards: &mut [Box<Shard>], tags: &[Tag], now: Now) -> (u64, [u64; TAGS]) {
        let mut length = |tag: &Tag, key: &str| {
            let shard = owner(shards, tag);
            let client = connect(shard, now);
            let reply = ask(shard, client, &tag.command(&["STRLEN", key]), now);
            shard.disconnect(client);
            reply[1..].trim_end().parse::<u64>().expect("a number")
        };
        let found = length(&tags[0], "crossing@");
        for tag in tags {
            assert_eq!(length(tag, "crossing@"), found, "a transaction is there in part: {}", tag.name);
        }
        let range = self.certain..=self.sent;
        assert!(range.contains(&found), "{found} is not in {range:?}");
        let (mut last, mut far) = (self.begin.1, self.begin.1);
        for n in self.begin.0 + 1..=found {
            last = far;
            far[n as usize % TAGS] += 1;
        }
        let lengths = std::array::from_fn(|number| length(&tags[number], "far@"));
        let whole = lengths == far;
        assert!(whole || (lengths == last && found > self.certain), "{lengths:?} after {found}: {far:?}");
        (found, lengths)
    }
}

/// The shard with the keys of a tag.
fn owner<'a>(shards: &'a mut [Box<Shard>], tag: &Tag) -> &'a mut Shard {
    let owner = Placement::new(0, shards.len()).shard_of(format!("x{{{}}}", tag.name).as_bytes());
    &mut shards[owner]
}

/// A store of several cores.
struct Ensemble {
    crossing: Crossing,
    media: Media,
    reactors: Vec<Reactor<WireQueue, SimDisk>>,
    tags: Vec<Tag>,
    random: Random,
    now: Now,
    scale: Scale,
    durability: Durability,
    wires: Wires,
    /// See [`SlowLinks::delay`].
    delay: u32,
    /// Iterations in which a snapshot had to cover the queue.
    covering: u64,
    /// Clients that receive each operation of a tag, and what each has received.
    subscribers: Vec<(ClientId, Vec<u8>)>,
    /// Iterations in which no command ran, because the area was full.
    held: u64,
    compactions: u64,
    may_fail: bool,
    /// Operations that a subscriber received before they were answered.
    announced: u64,
}

fn shards(count: usize, durability: Durability, seed: u64) -> Vec<Box<Shard>> {
    let totals = Arc::new(Totals::new(count));
    let settings = || Settings { durability, ..Settings::default() };
    let shard = |own| {
        let placement = Placement::new(own, count);
        Box::new(Shard::with_placement(settings(), seed + own as u64, placement, Arc::clone(&totals)))
    };
    (0..count).map(shard).collect()
}

/// The reply to a command that the shard runs at once.
fn ask(shard: &mut Shard, client: ClientId, command: &[u8], now: Now) -> String {
    shard.feed(client, command, now);
    shard.seal(0);
    let reply = String::from_utf8_lossy(shard.output(client)).into_owned();
    shard.consumed(client, reply.len());
    reply
}

fn connect(shard: &mut Shard, now: Now) -> ClientId {
    let address = ([127, 0, 0, 1], 40_000).into();
    shard.connect(address, address, now).expect("fewer than maxclients")
}

/// Checks that a tag is as after an operation from `certain` to `sent`, and returns which.
fn check_tag(shards: &mut [Box<Shard>], tag: &Tag, scale: Scale, now: Now) -> u64 {
    let shard = owner(shards, tag);
    let client = connect(shard, now);
    let mut ask = |words: &[&str]| ask(shard, client, &tag.command(words), now);
    let bulk = |text: &str| format!("${}\r\n{text}\r\n", text.len());
    let sequence = ask(&["GET", "sequence@"]);
    let found: u64 = sequence.lines().nth(1).and_then(|line| line.parse().ok()).unwrap_or(0);
    let range = tag.certain..=tag.sent;
    assert!(range.contains(&found), "{}: {found} is not in {range:?}: {sequence}", tag.name);
    assert_eq!(ask(&["STRLEN", "text@"]), format!(":{found}\r\n"), "{}", tag.name);
    let first = found.saturating_sub(scale.kept) + 1;
    let list: String = (first..=found).map(|n| bulk(&element(n, scale))).collect();
    let list = format!("*{}\r\n{list}", found + 1 - first);
    assert!(ask(&["LRANGE", "list@", "0", "-1"]) == list, "{}: after {found}", tag.name);
    for n in found.saturating_sub(PADDED - 1).max(1)..=found {
        let value = format!("{n}:{}", "p".repeat(padding(n, scale.padding) as usize));
        assert!(ask(&["GET", &format!("padded@{}", n % PADDED)]) == bulk(&value), "{}: {n}", tag.name);
    }
    shard.disconnect(client);
    found
}

/// Everything that a client has received and that was not evaluated yet.
fn received(shard: &mut Shard, client: ClientId, before: &mut Vec<u8>) -> String {
    let output = shard.output(client).to_vec();
    shard.consumed(client, output.len());
    before.extend_from_slice(&output);
    String::from_utf8_lossy(before).into_owned()
}

/// The replies before the first error; there may be one if the log `may_fail`.
fn accepted(text: String, may_fail: bool) -> String {
    let refused = if text.starts_with('-') { Some(0) } else { text.find("\r\n-") };
    assert!(refused.is_none() || may_fail, "{text}");
    text[..refused.unwrap_or(text.len())].to_owned()
}

/// The last operation that was answered, if those up to `before` were; drops what was evaluated.
fn answered(text: &str, before: u64, received: &mut Vec<u8>) -> u64 {
    let mut last = before;
    while text.contains(&format!("<{}>\r\n", last + 1)) {
        last += 1;
    }
    let marker = format!("<{last}>\r\n");
    if let Some(at) = text.find(&marker) {
        received.drain(..at + marker.len());
    }
    last
}

impl Ensemble {
    fn new(scale: Scale, cores: usize, durability: Durability, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let options = disk::Options { tear: 64, patience: scale.patience, ..disk::Options::new(scale.area) };
        let media = Media::new(options, random.fork());
        let tags = (0..TAGS).map(|number| Tag {
            name: format!("tag{number}"),
            client: ClientId { slot: 0, generation: 0 },
            core: 0,
            sent: 0,
            acknowledged: 0,
            certain: 0,
            received: Vec::new(),
        });
        let mut ensemble = Self {
            crossing: Crossing::default(),
            media,
            reactors: Vec::new(),
            tags: tags.collect(),
            random,
            now: Now { monotonic_ns: SECOND, unix_ms: 1_700_000_000_000 },
            scale,
            durability,
            wires: Wires::default(),
            delay: 200,
            covering: 0,
            subscribers: Vec::new(),
            held: 0,
            compactions: 0,
            may_fail: false,
            announced: 0,
        };
        ensemble.start(cores);
        ensemble
    }

    /// Starts with so many cores from what is on the disk.
    fn start(&mut self, cores: usize) {
        let mut all = shards(cores, self.durability, self.random.word() >> 1);
        let disk = self.media.open();
        let recovered = recover_shards("kv", disk, &mut all, self.durability, 7, self.now);
        let (log_writer, _) = recovered.expect("nothing is damaged");
        for tag in &mut self.tags {
            let found = check_tag(&mut all, tag, self.scale, self.now);
            (tag.sent, tag.acknowledged, tag.certain) = (found, found, found);
            tag.received.clear();
            tag.core = Placement::new(0, cores).shard_of(format!("x{{{}}}", tag.name).as_bytes());
            tag.client = connect(&mut all[tag.core], self.now);
        }
        let begin = self.crossing.check(&mut all, &self.tags, self.now);
        let (core, found) = (self.random.index(cores), begin.0);
        let client = Some(connect(&mut all[core], self.now));
        let (sent, acknowledged, certain, received) = (found, found, found, Vec::new());
        self.crossing = Crossing { client, core, sent, acknowledged, certain, received, begin };
        self.wires = Arc::new(Mutex::new((0..cores * cores).map(|_| VecDeque::new()).collect()));
        let mut log_writer = Some(log_writer);
        self.reactors.clear();
        for (own, shard) in all.into_iter().enumerate() {
            let mut reactor = Reactor::new(shard, log_writer.take(), None, None);
            if cores > 1 {
                let (wires, random, delay) = (Arc::clone(&self.wires), self.random.fork(), self.delay);
                let links = SlowLinks { own, cores, wires, random, delay };
                reactor.join(Placement::new(own, cores), Box::new(links));
            }
            self.reactors.push(reactor);
        }
    }

    /// One core feeds its clients' commands to its shard, as a transport would, and iterates.
    fn iterate(&mut self, core: usize, input: bool) {
        self.now.monotonic_ns += 100_000;
        let (now, scale) = (self.now, self.scale);
        let reactor = &mut self.reactors[core];
        let held = reactor.is_held();
        for tag in self.tags.iter_mut().filter(|tag| tag.core == core) {
            let Some(shard) = reactor.shard.as_mut().filter(|_| input && !held) else { continue };
            while tag.sent < tag.acknowledged + PIPELINE && self.random.chance(600) {
                tag.sent += 1;
                shard.feed(tag.client, &tag.operation(tag.sent, scale), now);
            }
        }
        let crossing = &mut self.crossing;
        if let Some(shard) = reactor.shard.as_mut().filter(|_| input && !held && crossing.core == core)
            && crossing.sent < crossing.acknowledged + PIPELINE
            && let Some(client) = crossing.client
        {
            crossing.sent += 1;
            shard.feed(client, &crossing.operation(crossing.sent, &self.tags), now);
        }
        reactor.iterate(now).expect("no device fails here");
        if let Some(log_writer) = reactor.log_writer() {
            self.covering += u64::from(log_writer.needs_all_shards());
            self.held += u64::from(log_writer.is_compacting_for_room());
            assert!(!log_writer.has_failed() || self.may_fail, "the log has failed");
        }
        let Some(shard) = &mut reactor.shard else { return };
        if let Some((client, before)) = self.subscribers.get_mut(core) {
            received(shard, *client, before);
        }
        if core == 0 {
            self.compactions = shard.persistence().compactions;
        }
        let is_certain = self.durability == Durability::Always;
        for tag in self.tags.iter_mut().filter(|tag| tag.core == core) {
            let text = accepted(received(shard, tag.client, &mut tag.received), self.may_fail);
            tag.acknowledged = answered(&text, tag.acknowledged, &mut tag.received);
            tag.certain = if is_certain { tag.certain.max(tag.acknowledged) } else { tag.certain };
        }
        let crossing = &mut self.crossing;
        if crossing.core == core
            && let Some(client) = crossing.client
        {
            let text = accepted(received(shard, client, &mut crossing.received), self.may_fail);
            crossing.acknowledged = answered(&text, crossing.acknowledged, &mut crossing.received);
            crossing.certain = if is_certain { crossing.acknowledged } else { crossing.certain };
        }
    }

    /// Has a client on each core subscribe to events of the tags, before the first operation.
    fn subscribe(&mut self) {
        for core in 0..self.reactors.len() {
            let shard = self.reactors[core].shard.as_mut().expect("no core has begun");
            let client = connect(shard, self.now);
            let command = b"CONFIG SET notify-keyspace-events K$\r\nPSUBSCRIBE *:sequence*\r\n";
            shard.feed(client, command, self.now);
            self.subscribers.push((client, Vec::new()));
        }
        while self.subscribers.iter().any(|(_, received)| !received.ends_with(b":1\r\n")) {
            let core = self.random.index(self.reactors.len());
            self.iterate(core, false);
        }
    }

    /// Notes what the subscriber on a core has received: no crash may undo it.
    fn receive_announcements(&mut self, core: usize) {
        let Some(shard) = &mut self.reactors[core].shard else { return };
        let Some((client, before)) = self.subscribers.get_mut(core) else { return };
        let text = received(shard, *client, before);
        for tag in &mut self.tags {
            let events = text.matches(&format!("sequence{{{}}}\r\n", tag.name)).count() as u64;
            self.announced += events.saturating_sub(tag.certain);
            tag.certain = tag.certain.max(events);
        }
    }

    fn iterate_any(&mut self) {
        let core = self.random.index(self.reactors.len());
        self.iterate(core, true);
    }

    /// What a crash now would leave, with so many shards.
    fn check_crash(&mut self, shards_after: usize) {
        let fork = self.media.fork(self.random.fork());
        fork.crash(Crash::Random(self.random.fork()));
        let mut all = shards(shards_after, self.durability, 99);
        recover_shards("kv", fork.open(), &mut all, self.durability, 7, self.now)
            .expect("nothing is damaged");
        for tag in &self.tags {
            check_tag(&mut all, tag, self.scale, self.now);
        }
        self.crossing.check(&mut all, &self.tags, self.now);
    }

    fn acknowledged(&self) -> u64 {
        self.tags.iter().map(|tag| tag.acknowledged).sum()
    }
}

/// Runs with three cores, and crashes at every boundary that an iteration passes, until everything
/// that is to be seen was seen `enough`.
fn crash_everywhere(scale: Scale, seed: u64, enough: impl Fn(&Ensemble) -> bool) {
    let mut ensemble = Ensemble::new(scale, 3, Durability::Always, seed);
    ensemble.subscribe();
    let (mut boundaries, mut iterations) = (0, 0);
    while !enough(&ensemble) || iterations < 2500 {
        iterations += 1;
        assert!(iterations < 40_000, "seed {seed}: too little happens");
        ensemble.iterate_any();
        (0..3).for_each(|core| ensemble.receive_announcements(core));
        let passed = ensemble.media.boundaries();
        if passed > boundaries {
            boundaries = passed;
            let after = [1, 2, 3, 5][ensemble.random.index(4)];
            ensemble.check_crash(after);
        }
    }
}

#[test]
fn acknowledged_operations_survive_a_crash_at_any_boundary() {
    crash_everywhere(SMALL, 1, |ensemble| {
        let own = ensemble.acknowledged() > 300 && ensemble.announced > 5;
        own && ensemble.crossing.acknowledged > 20 && ensemble.compactions > 1
    });
}

#[test]
fn a_crash_during_a_snapshot_that_covers_what_waits_loses_nothing() {
    crash_everywhere(Scale { padding: 12_000, ..SMALL }, 2, |ensemble| {
        ensemble.covering > 15 && ensemble.held > 20 && ensemble.acknowledged() > 100
    });
}

#[test]
fn large_values_that_change_while_all_cores_dump_them_survive_a_crash() {
    let scale = Scale { area: 24 << 20, kept: 1500, element: 400, ..SMALL };
    let mut ensemble = Ensemble::new(scale, 3, Durability::Always, 3);
    let operator = connect(ensemble.reactors[0].shard.as_mut().expect("it is here"), ensemble.now);
    let (mut asked, mut checked) = (0, 0);
    while ensemble.compactions < 4 {
        ensemble.iterate_any();
        let long = ensemble.tags.iter().all(|tag| tag.acknowledged > 900 + 100 * asked);
        let now = ensemble.now;
        if long && let Some(shard) = &mut ensemble.reactors[0].shard {
            shard.feed(operator, b"BGREWRITEAOF\r\n", now);
            asked += 1;
        }
        let dumps = ensemble.reactors[0].shard().and_then(|shard| shard.persistence().compacting_since());
        if dumps.is_some() && ensemble.random.chance(100) {
            ensemble.check_crash(1 + asked as usize % 3);
            checked += 1;
        }
        assert!(ensemble.acknowledged() < 50_000, "{} compactions", ensemble.compactions);
    }
    assert!(checked > 10, "{checked} crashes");
    ensemble.check_crash(2);
}

#[test]
fn the_number_of_shards_may_change_at_every_crash() {
    let mut compactions = 0;
    for (seed, durability) in [
        (10, Durability::Always),
        (11, Durability::Always),
        (12, Durability::Interval),
        (13, Durability::Never),
    ] {
        let mut ensemble = Ensemble::new(Scale { padding: 3000, ..SMALL }, 1, durability, seed);
        for round in 0..20 {
            let boundary = ensemble.media.boundaries() + 1 + ensemble.random.below(120);
            ensemble.media.power_off_at(boundary);
            let before = ensemble.acknowledged();
            for _ in 0..3000 {
                if ensemble.media.is_off() {
                    break;
                }
                ensemble.iterate_any();
            }
            assert!(round > 0 || ensemble.acknowledged() > before, "seed {seed}: nothing is answered");
            compactions += ensemble.compactions;
            ensemble.media.crash(Crash::Random(ensemble.random.fork()));
            let cores = [1, 2, 3, 5][ensemble.random.index(4)];
            ensemble.start(cores);
        }
    }
    assert!(compactions > 10, "{compactions} compactions");
}

#[test]
fn nothing_is_acknowledged_on_any_core_after_the_log_has_failed() {
    for seed in 20..24 {
        let mut ensemble = Ensemble::new(SMALL, 3, Durability::Always, seed);
        for _ in 0..100 {
            ensemble.iterate_any();
        }
        ensemble.may_fail = true;
        ensemble.media.inject(1 + ensemble.random.below(20), Fault::Error(5));
        for _ in 0..2000 {
            ensemble.iterate_any();
        }
        assert!(ensemble.reactors[0].log_writer().is_some_and(LogWriter::has_failed), "seed {seed}");
        while ensemble.reactors.iter().any(|reactor| reactor.shard.is_none()) {
            let core = ensemble.random.index(3);
            ensemble.iterate(core, false);
        }
        let now = ensemble.now;
        for (core, reactor) in ensemble.reactors.iter_mut().enumerate() {
            let shard = reactor.shard.as_mut().expect("it is here");
            let client = connect(shard, now);
            let tag = ensemble.tags.iter().find(|tag| tag.core == core).expect("each core has one");
            let reply = ask(shard, client, &tag.command(&["SET", "sequence@", "x"]), now);
            assert!(reply.starts_with("-MISCONF"), "seed {seed}, core {core}: {reply}");
        }
        ensemble.may_fail = false;
        ensemble.check_crash(3);
    }
}
