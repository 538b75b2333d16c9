//! A store on a simulated disk, its clients, and an oracle.
//!
//! 1. A [`World`] drives a shard and its log as the server's loop does, in virtual time. Clients
//!    send it commands. A reply that is released to a client is *acknowledged*, and with it every
//!    command that ran before.
//! 2. The oracle is a second shard without a log that runs the same commands. Its state is recorded
//!    after each iteration. So the states that a crash may leave are known: those after some
//!    iteration, no earlier than the last acknowledged one.
//! 3. What clients receive must be, byte by byte, what the oracle answers.
//! 4. A crash or the death of the process ends a shard. The next shard recovers, its state must be
//!    one of the allowed ones, and the oracle returns to that iteration.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};

use sietch_disk::DiskQueue;
use sietch_kv::server::{LogWriter, recover};
use sietch_kv::settings::{Durability, Settings};
use sietch_kv::shard::ClientId;
use sietch_kv::shard::{Now, Shard};
use sietch_sim::{Crash, Media, Random};

mod disk;
mod program;
mod state;

pub(super) use disk::Disk;
pub(super) use program::{command, words};
pub(super) use state::{State, state};

/// A test failure: a promise that was broken.
pub(super) type Verdict = Result<(), String>;

/// The virtual start time, in milliseconds since 1970.
const EPOCH: u64 = 1_800_000_000_000;
const NOWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 1);

pub(super) fn at(nanoseconds: u64) -> Now {
    Now { monotonic_ns: nanoseconds, unix_ms: EPOCH + nanoseconds / 1_000_000 }
}

/// The input of the store in one iteration.
#[derive(Clone, Default)]
struct Step {
    now: u64,
    /// Client and bytes.
    input: Vec<(u64, Vec<u8>)>,
    /// All clients are disconnected first.
    cut: bool,
    /// The state afterwards.
    state: State,
}

/// A shard that answers at once and keeps no data on disk.
struct Oracle {
    shard: Shard,
    clients: BTreeMap<u64, Listener>,
}

/// The replies to a client.
struct Listener {
    id: ClientId,
    expected: Vec<u8>,
    /// The ends of the bytes that it receives in each iteration: (bytes, step).
    marks: Vec<(usize, usize)>,
}

impl Oracle {
    fn new() -> Self {
        Self { shard: Shard::new(Settings::default(), 1), clients: BTreeMap::new() }
    }

    fn run(&mut self, step: &Step, number: usize) {
        let now = at(step.now);
        if step.cut {
            for (_, listener) in std::mem::take(&mut self.clients) {
                self.shard.disconnect(listener.id);
            }
        }
        for (client, bytes) in &step.input {
            let shard = &mut self.shard;
            let listener = self.clients.entry(*client).or_insert_with(|| Listener {
                id: shard.connect(NOWHERE, NOWHERE, now).expect("there are few clients"),
                expected: Vec::new(),
                marks: Vec::new(),
            });
            shard.feed(listener.id, bytes, now);
        }
        if self.shard.next_deadline().is_some_and(|due| due <= step.now) {
            self.shard.tick(now);
        }
        self.shard.seal(0);
        for listener in self.clients.values_mut() {
            let bytes = self.shard.output(listener.id).to_vec();
            if !bytes.is_empty() {
                self.shard.consumed(listener.id, bytes.len());
                listener.expected.extend_from_slice(&bytes);
                listener.marks.push((listener.expected.len(), number));
            }
        }
    }
}

/// The parameters of a world.
#[derive(Clone)]
pub(super) struct Plan {
    pub clients: u64,
    /// Commands that a client sends at a time, at most.
    pub pipeline: u64,
    /// Longest ordinary value.
    pub value: usize,
    pub durability: Durability,
    /// Makes durable writes volatile.
    pub weak: bool,
}

impl Default for Plan {
    fn default() -> Self {
        Self { clients: 4, pipeline: 4, value: 200, durability: Durability::Always, weak: false }
    }
}

pub(super) struct World {
    pub media: Media,
    pub plan: Plan,
    pub now: u64,
    pub shard: Shard,
    pub log_writer: LogWriter<Disk>,
    oracle: Oracle,
    steps: Vec<Step>,
    /// Everything up to this step was acknowledged.
    pub acknowledged: usize,
    /// Client, its name in the shard, and the bytes it has received.
    clients: BTreeMap<u64, (ClientId, usize)>,
    /// The number of clients that have left: their numbers are not used again.
    departed: u64,
    pub random: Random,
    /// A hash of everything that was released.
    pub trace: u64,
}

impl World {
    /// A store on a new area.
    pub(super) fn new(media: Media, plan: Plan, random: Random) -> Result<Self, String> {
        let (shard, log_writer) = open(&media, &plan, 0)?;
        Ok(Self {
            media,
            plan,
            now: 1_000_000_000,
            shard,
            log_writer,
            oracle: Oracle::new(),
            steps: vec![Step::default()],
            acknowledged: 0,
            clients: BTreeMap::new(),
            departed: 0,
            random,
            trace: 0,
        })
    }

    /// One iteration; with `talk`, clients send some commands.
    pub(super) fn iterate(&mut self, talk: bool) -> Verdict {
        self.now += match self.random.below(20) {
            0 => self.random.below(400_000_000),
            _ => self.random.below(2_000_000),
        };
        let mut input = Vec::new();
        if talk && !self.log_writer.is_blocked() {
            for _ in 0..self.random.below(4) {
                let number = self.random.below(self.plan.clients);
                let client = self.departed + number;
                let mut bytes = Vec::new();
                for _ in 0..self.random.between(1, self.plan.pipeline) {
                    // The order in which several blocked clients time out at one instant is
                    // unspecified.
                    command(&mut self.random, self.plan.value, number == 0, &mut bytes);
                }
                input.push((client, bytes));
            }
        }
        self.iterate_with(input)
    }

    /// One iteration with this input.
    pub(super) fn iterate_with(&mut self, input: Vec<(u64, Vec<u8>)>) -> Verdict {
        let now = at(self.now);
        for (client, bytes) in &input {
            let shard = &mut self.shard;
            let (id, _) = *self
                .clients
                .entry(*client)
                .or_insert_with(|| (shard.connect(NOWHERE, NOWHERE, now).expect("there are few clients"), 0));
            shard.feed(id, bytes, now);
        }
        let ticks = self.shard.next_deadline().is_some_and(|due| due <= self.now);
        if ticks {
            self.shard.tick(now);
        }
        if ticks || !input.is_empty() {
            let mut step = Step { now: self.now, input, ..Step::default() };
            let number = self.steps.len();
            self.oracle.run(&step, number);
            step.state = state(&mut self.oracle.shard);
            self.steps.push(step);
        }
        self.log_writer.iterate(&mut self.shard, now);
        self.deliver()
    }

    /// Delivers the released bytes to the clients and compares them.
    fn deliver(&mut self) -> Verdict {
        let mut ready = Vec::new();
        self.shard.take_ready(&mut ready);
        for (client, (id, received)) in &mut self.clients {
            let bytes = self.shard.output(*id).to_vec();
            if bytes.is_empty() {
                continue;
            }
            self.shard.consumed(*id, bytes.len());
            let listener = &self.oracle.clients[client];
            let expected = &listener.expected[*received..];
            if !expected.starts_with(&bytes) {
                return Err(format!(
                    "client {client} received {:?}, not {:?}",
                    String::from_utf8_lossy(&bytes[..bytes.len().min(300)]),
                    String::from_utf8_lossy(&expected[..expected.len().min(300)])
                ));
            }
            *received += bytes.len();
            // The newest step that a released byte belongs to.
            let mark = listener.marks.partition_point(|(end, _)| *end < *received);
            if self.plan.durability == Durability::Always {
                self.acknowledged = self.acknowledged.max(listener.marks[mark].1);
            }
            self.trace = (self.trace ^ *received as u64 ^ client << 32)
                .wrapping_mul(0x0000_0100_0000_01b3)
                .wrapping_add(self.now);
        }
        Ok(())
    }

    /// Iterates without input until all that can be is acknowledged.
    pub(super) fn settle(&mut self) -> Verdict {
        for _ in 0..2000 {
            self.iterate(false)?;
            if self.log_writer.is_settled() || self.media.is_off() {
                return Ok(());
            }
        }
        Err("the log never comes to rest".into())
    }

    /// Adds a client whose replies are returned and not compared. Sends `request`, and iterates
    /// until there is an answer; `None` if none comes.
    pub(super) fn ask(&mut self, request: &[&[u8]]) -> Option<Vec<u8>> {
        let now = at(self.now);
        let id = self.shard.connect(NOWHERE, NOWHERE, now).expect("there are few clients");
        let mut bytes = Vec::new();
        words(&mut bytes, request);
        self.shard.feed(id, &bytes, now);
        let mut answer = None;
        for _ in 0..500 {
            self.now += 1_000_000;
            let now = at(self.now);
            if self.shard.next_deadline().is_some_and(|due| due <= self.now) {
                self.shard.tick(now);
            }
            self.log_writer.iterate(&mut self.shard, now);
            let reply = self.shard.output(id).to_vec();
            if !reply.is_empty() || self.shard.wants_close(id) {
                answer = (!reply.is_empty()).then_some(reply);
                break;
            }
        }
        self.shard.disconnect(id);
        answer
    }

    /// Whether the log has stopped for good.
    pub(super) fn has_failed(&self) -> bool {
        self.log_writer.log().failed().is_some()
    }

    /// Bytes that are released to clients and were not delivered.
    pub(super) fn released(&self) -> usize {
        self.clients.values().map(|(id, _)| self.shard.output(*id).len()).sum()
    }

    /// Closes the store cleanly, and returns the result of its next opening: the state, or the
    /// reason of the refusal.
    pub(super) fn reopen(self, meanwhile: impl FnOnce(&Media)) -> (State, Result<State, String>) {
        let Self { media, plan, now, log_writer, steps, .. } = self;
        log_writer.into_log().close().expect("the disk works");
        meanwhile(&media);
        let last = steps.last().map(|step| step.state.at(at(now).unix_ms)).unwrap_or_default();
        let found = open(&media, &plan, now).map(|(mut shard, _)| state(&mut shard).at(at(now).unix_ms));
        (last, found)
    }

    /// The power fails, `how` decides which data survive, and the store starts again.
    pub(super) fn crash(&mut self, how: Crash) -> Verdict {
        self.media.crash(how);
        self.restart()
    }

    /// The process dies alone, and starts again.
    pub(super) fn kill(&mut self) -> Verdict {
        self.media.kill();
        self.restart()
    }

    /// Recovers; the caller checks the recovered state.
    pub(super) fn restart_unchecked(&mut self) -> Verdict {
        (self.shard, self.log_writer) = open(&self.media, &self.plan, self.now)?;
        self.clients.clear();
        Ok(())
    }

    /// Recovers, and checks the recovered state.
    pub(super) fn restart(&mut self) -> Verdict {
        let mut opened = open(&self.media, &self.plan, self.now);
        while self.media.is_off() {
            // The power failed again, during recovery.
            drop(opened);
            let random = self.random.fork();
            self.media.crash(Crash::Random(random));
            opened = open(&self.media, &self.plan, self.now);
        }
        let (mut shard, log_writer) = opened?;
        let found = self.find(&mut shard)?;
        (self.shard, self.log_writer) = (shard, log_writer);
        self.departed += self.plan.clients;
        self.clients.clear();
        self.steps.truncate(found + 1);
        self.acknowledged = found;
        self.oracle = Oracle::new();
        for (number, step) in self.steps.iter().enumerate().skip(1) {
            self.oracle.run(step, number);
        }
        let mut cut = Step { now: self.now, cut: true, ..Step::default() };
        let number = self.steps.len();
        self.oracle.run(&cut, number);
        cut.state = state(&mut self.oracle.shard);
        self.steps.push(cut);
        self.acknowledged = number;
        Ok(())
    }

    /// Whether the promise holds if this power loss happens; with `again`, the power fails once
    /// more during recovery. The world is not changed.
    pub(super) fn check_crash(&mut self, how: Crash, again: bool) -> Verdict {
        self.media.crash(how);
        if again {
            self.media.power_off_at(self.media.boundaries() + self.random.between(1, 4));
        }
        let mut opened = open(&self.media, &self.plan, self.now);
        while self.media.is_off() {
            drop(opened);
            let random = self.random.fork();
            self.media.crash(Crash::Random(random));
            opened = open(&self.media, &self.plan, self.now);
        }
        let (mut shard, _ledger) = opened?;
        self.find(&mut shard).map(drop)
    }

    /// The step after which the state was that of this shard.
    fn find(&self, shard: &mut Shard) -> Result<usize, String> {
        let now = at(self.now).unix_ms;
        let found = state(shard).at(now);
        let allowed = self.acknowledged..self.steps.len();
        let matching = allowed.clone().rev().find(|number| self.steps[*number].state.at(now) == found);
        matching.ok_or_else(|| {
            let earlier = (0..self.acknowledged).rev().find(|n| self.steps[*n].state.at(now) == found);
            let what = match earlier {
                Some(step) => format!("it is that of step {step}: acknowledged writes are lost"),
                None => {
                    let differences =
                        allowed.clone().map(|n| (found.difference(&self.steps[n].state.at(now)), n));
                    let nearest = differences.min_by_key(|(keys, _)| keys.len());
                    format!("it never was; nearest: {nearest:?}, {:?}", self.plan.durability)
                }
            };
            format!("the state after recovery is none of steps {allowed:?}; {what}")
        })
    }
}

fn open(media: &Media, plan: &Plan, now: u64) -> Result<(Shard, LogWriter<Disk>), String> {
    let mut settings = Settings::default();
    settings.durability = plan.durability;
    let mut shard = Shard::new(settings, 1);
    let disk = Disk::new(media.open(), plan.weak);
    let (log_writer, _) = recover("kv", disk, &mut shard, plan.durability, 7, at(now))
        .map_err(|refusal| format!("recovery refuses: {refusal}"))?;
    assert!(log_writer.log().disk().in_flight() == 0 || media.is_off());
    Ok((shard, log_writer))
}
