//! Clients that know the expected answers.

use std::collections::VecDeque;

use sietch_net::{Engine, Event, EventKind, FlowId};
use sietch_sim::Random;

use super::{SECOND, address};

/// A client closes its connection after this time without progress.
const STALLED: u64 = 90 * SECOND;
/// The time between two connections, so that no segment of the first is in flight any more.
const REST: u64 = 15 * SECOND;

/// The data of a client of the first kind. All of it is in keys of its own.
#[derive(Debug, Clone)]
enum Command {
    Set(Vec<u8>),
    Append(Vec<u8>),
    Increment,
    Push(Vec<u8>),
    Pop,
    Delete,
    Get,
    /// A transaction: both or neither.
    Both(Vec<u8>),
}

/// The values of its keys.
#[derive(Debug, Clone, Default)]
struct Model {
    text: Option<Vec<u8>>,
    count: u64,
    list: VecDeque<Vec<u8>>,
}

/// The behaviour of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Runs this number of commands, over as many connections as necessary.
    Worker { commands: u32 },
    /// Sends an invalid request, and gets an error.
    Malformed,
    /// Sends requests, half-closes, and still gets the answers.
    HalfCloser,
    /// Requests megabytes, and reads them late and slowly.
    SlowReader,
    /// Sends half a request and then nothing more.
    Abandoner,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Resting { until: u64 },
    Connecting,
    Open,
    Done,
}

pub(crate) struct Client {
    pub number: usize,
    pub role: Role,
    phase: Phase,
    flow: FlowId,
    /// Bytes to be sent.
    outgoing: Vec<u8>,
    /// Bytes that must arrive, and how many have arrived.
    expected: Vec<u8>,
    got: usize,
    /// Commands whose answers are outstanding, with the ends of the answers.
    pending: VecDeque<(Command, usize)>,
    /// The state after the last answer.
    model: Model,
    /// The state after the last command sent.
    ahead: Model,
    /// After a connection was lost: the possible states, depending on how many pending commands
    /// have run. The answer must fit one of them.
    candidates: Vec<(Model, Vec<u8>)>,
    answered: Vec<u8>,
    left: u32,
    ended: bool,
    progress_at: u64,
    reads_at: u64,
    pub reconnections: u32,
}

fn words(out: &mut Vec<u8>, words: &[&[u8]]) {
    out.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        bulk(out, word);
    }
}

fn bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(format!("${}\r\n", bytes.len()).as_bytes());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

impl Model {
    /// Runs a command, and returns its answer.
    fn run(&mut self, command: &Command) -> Vec<u8> {
        let optional = |bytes: Option<&Vec<u8>>| {
            let Some(bytes) = bytes else { return b"$-1\r\n".to_vec() };
            let mut out = Vec::new();
            bulk(&mut out, bytes);
            out
        };
        let integer = |number: usize| format!(":{number}\r\n").into_bytes();
        match command {
            Command::Set(bytes) => {
                self.text = Some(bytes.clone());
                b"+OK\r\n".to_vec()
            }
            Command::Append(bytes) => {
                let text = self.text.get_or_insert_default();
                text.extend_from_slice(bytes);
                integer(text.len())
            }
            Command::Increment => {
                self.count += 1;
                integer(self.count as usize)
            }
            Command::Push(bytes) => {
                self.list.push_back(bytes.clone());
                integer(self.list.len())
            }
            Command::Pop => {
                let popped = self.list.pop_front();
                optional(popped.as_ref())
            }
            Command::Delete => integer(usize::from(self.text.take().is_some())),
            Command::Get => optional(self.text.as_ref()),
            Command::Both(bytes) => {
                self.count += 1;
                self.list.push_back(bytes.clone());
                let counts = [integer(self.count as usize), integer(self.list.len())].concat();
                [&b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n"[..], &counts].concat()
            }
        }
    }

    /// The answer to the request for all data.
    fn whole(&self) -> Vec<u8> {
        let mut out = b"+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*3\r\n".to_vec();
        match &self.text {
            Some(bytes) => bulk(&mut out, bytes),
            None => out.extend_from_slice(b"$-1\r\n"),
        }
        match self.count {
            0 => out.extend_from_slice(b"$-1\r\n"),
            count => bulk(&mut out, count.to_string().as_bytes()),
        }
        out.extend_from_slice(format!("*{}\r\n", self.list.len()).as_bytes());
        self.list.iter().for_each(|element| bulk(&mut out, element));
        out
    }
}

impl Client {
    pub(crate) fn new(number: usize, role: Role, at: u64) -> Self {
        let left = if let Role::Worker { commands } = role { commands } else { 0 };
        Self {
            number,
            role,
            phase: Phase::Resting { until: at },
            flow: FlowId::NONE,
            outgoing: Vec::new(),
            expected: Vec::new(),
            got: 0,
            pending: VecDeque::new(),
            model: Model::default(),
            ahead: Model::default(),
            candidates: Vec::new(),
            answered: Vec::new(),
            left,
            ended: false,
            progress_at: 0,
            reads_at: 0,
            reconnections: 0,
        }
    }

    pub(crate) fn flow(&self) -> Option<FlowId> {
        matches!(self.phase, Phase::Connecting | Phase::Open).then_some(self.flow)
    }

    /// Whether it has finished. Workers keep their connections.
    pub(crate) fn is_done(&self) -> bool {
        match self.role {
            Role::Worker { .. } => {
                let idle = self.left == 0 && self.pending.is_empty() && self.candidates.is_empty();
                idle && self.phase == Phase::Open
            }
            Role::Abandoner => self.phase == Phase::Open || self.phase == Phase::Done,
            _ => self.phase == Phase::Done,
        }
    }

    pub(crate) fn describe(&self) -> String {
        format!(
            "client {} {:?} {:?}: {} of {} bytes, {} pending, {} left, {} candidates",
            self.number,
            self.role,
            self.phase,
            self.got,
            self.expected.len(),
            self.pending.len(),
            self.left,
            self.candidates.len()
        )
    }

    pub(crate) fn next_deadline(&self) -> Option<u64> {
        match self.phase {
            Phase::Resting { until } => Some(until),
            Phase::Connecting => Some(self.progress_at + STALLED),
            Phase::Open if !self.is_done() && self.reads_at > 0 => {
                Some(self.reads_at.min(self.progress_at + STALLED))
            }
            Phase::Open if !self.is_done() => Some(self.progress_at + STALLED),
            _ => None,
        }
    }

    pub(crate) fn handle_event(&mut self, event: &Event, now: u64) {
        match event.kind {
            EventKind::Connected => {
                self.phase = Phase::Open;
                self.progress_at = now;
                self.begin(now);
            }
            EventKind::PeerClosed => self.ended = true,
            EventKind::Closed(_) => self.lose(now),
            _ => {}
        }
    }

    /// Sends the first request on a connection.
    fn begin(&mut self, now: u64) {
        match self.role {
            Role::Worker { .. } => {
                let key = |kind: &str| format!("{kind}{}", self.number).into_bytes();
                let mut out = Vec::new();
                words(&mut out, &[b"MULTI"]);
                words(&mut out, &[b"GET", &key("s")]);
                words(&mut out, &[b"GET", &key("n")]);
                words(&mut out, &[b"LRANGE", &key("l"), b"0", b"-1"]);
                words(&mut out, &[b"EXEC"]);
                self.outgoing = out;
            }
            Role::Malformed => {
                let text =
                    ["*1\r\n$x\r\n", "*1\r\n+OK\r\n", "*99999999999\r\n", "*1\r\n$-7\r\n"][self.number % 4];
                self.outgoing = text.as_bytes().to_vec();
                self.expected = b"-ERR Protocol error".to_vec();
            }
            Role::HalfCloser => {
                for count in 0..50 {
                    words(&mut self.outgoing, &[b"ECHO", format!("{count}").as_bytes()]);
                    bulk(&mut self.expected, format!("{count}").as_bytes());
                }
            }
            Role::SlowReader => {
                let big = vec![b'x'; 20_000];
                words(&mut self.outgoing, &[b"SET", b"big", &big]);
                self.expected = b"+OK\r\n".to_vec();
                for _ in 0..150 {
                    words(&mut self.outgoing, &[b"GET", b"big"]);
                    bulk(&mut self.expected, &big);
                }
                self.reads_at = now + 20 * SECOND;
            }
            Role::Abandoner => self.outgoing = b"*2\r\n$3\r\nGET\r\n$100\r\nabc".to_vec(),
        }
    }

    /// The connection was lost.
    fn lose(&mut self, now: u64) {
        if !matches!(self.role, Role::Worker { .. }) {
            self.phase = Phase::Done;
            return;
        }
        self.reconnections += 1;
        if self.candidates.is_empty() {
            // Any number of the unanswered commands may have run, in their order.
            let mut model = self.model.clone();
            self.candidates.push((model.clone(), model.whole()));
            for (command, _) in self.pending.drain(..) {
                model.run(&command);
                self.candidates.push((model.clone(), model.whole()));
            }
        }
        self.outgoing.clear();
        self.expected.clear();
        self.answered.clear();
        self.got = 0;
        self.ended = false;
        self.phase = Phase::Resting { until: now + REST };
    }

    pub(crate) fn work(&mut self, engine: &mut Engine, now: u64, random: &mut Random) {
        match self.phase {
            Phase::Resting { until } if until <= now => {
                self.flow = engine.connect(address(), now).expect("there is a route");
                self.phase = Phase::Connecting;
                self.progress_at = now;
                if self.candidates.is_empty() {
                    self.candidates.push((self.model.clone(), self.model.whole()));
                }
            }
            Phase::Connecting if self.progress_at + STALLED <= now => self.give_up(engine, now),
            Phase::Open => {
                self.read(engine, now, random);
                self.talk(random);
                let sent = engine.send(self.flow, &self.outgoing);
                self.outgoing.drain(..sent);
                if self.role == Role::HalfCloser && self.outgoing.is_empty() {
                    engine.shutdown_send(self.flow);
                }
                self.end(engine, now);
            }
            _ => {}
        }
    }

    fn give_up(&mut self, engine: &mut Engine, now: u64) {
        engine.abort(self.flow);
        self.lose(now);
    }

    fn read(&mut self, engine: &mut Engine, now: u64, random: &mut Random) {
        if now < self.reads_at {
            return;
        }
        let mut bytes = vec![0; 16 << 10];
        let length = engine.read(self.flow, &mut bytes);
        if length > 0 {
            self.progress_at = now;
            self.take(&bytes[..length]);
            if self.role == Role::SlowReader {
                self.reads_at = now + random.below(SECOND / 20) + 1;
            } else if length == bytes.len() {
                self.read(engine, now, random);
            }
        } else if self.role == Role::SlowReader {
            self.reads_at = 0;
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        if matches!(self.role, Role::Worker { .. }) && !self.candidates.is_empty() {
            self.answered.extend_from_slice(bytes);
            let answered = &self.answered;
            let fits = self.candidates.iter().any(|(_, whole)| whole.starts_with(answered));
            assert!(
                fits,
                "client {} finds {:?}, not one of {:?}",
                self.number,
                String::from_utf8_lossy(answered),
                self.candidates.iter().map(|(_, whole)| String::from_utf8_lossy(whole)).collect::<Vec<_>>()
            );
            if let Some((model, _)) = self.candidates.iter().find(|(_, whole)| whole == answered) {
                (self.model, self.ahead) = (model.clone(), model.clone());
                self.candidates.clear();
            }
            return;
        }
        let rest = &self.expected[self.got..];
        let tail = self.role == Role::Malformed;
        let length = if tail { bytes.len().min(rest.len()) } else { bytes.len() };
        assert!(
            rest.starts_with(&bytes[..length]),
            "client {} {:?} received {:?}, not {:?}",
            self.number,
            self.role,
            String::from_utf8_lossy(&bytes[..length.min(200)]),
            String::from_utf8_lossy(&rest[..rest.len().min(200)])
        );
        self.got += length;
        while let Some((command, _)) = self.pending.pop_front_if(|(_, end)| *end <= self.got) {
            self.model.run(&command);
        }
    }

    /// A worker sends more commands, if few are pending.
    fn talk(&mut self, random: &mut Random) {
        let ready = self.candidates.is_empty() && self.pending.len() < 12 && !self.ended;
        if !matches!(self.role, Role::Worker { .. }) || !ready {
            return;
        }
        for _ in 0..self.left.min(random.between(1, 6) as u32) {
            self.left -= 1;
            let most = if random.chance(50) { 5000 } else { 60 };
            let mut value = vec![b'a'; random.index(most)];
            value.iter_mut().for_each(|byte| *byte += random.below(26) as u8);
            let command = match random.below(10) {
                0 | 1 => Command::Set(value),
                2 => Command::Append(value),
                3 | 4 => Command::Increment,
                5 => Command::Push(value),
                6 => Command::Pop,
                7 => Command::Delete,
                8 => Command::Get,
                _ => Command::Both(value),
            };
            self.say(&command);
            let answer = self.ahead.run(&command);
            self.expected.extend_from_slice(&answer);
            self.pending.push_back((command, self.expected.len()));
        }
    }

    fn say(&mut self, command: &Command) {
        let [text, count, list] = ["s", "n", "l"].map(|kind| format!("{kind}{}", self.number).into_bytes());
        let out = &mut self.outgoing;
        match command {
            Command::Set(value) => words(out, &[b"SET", &text, value]),
            Command::Append(value) => words(out, &[b"APPEND", &text, value]),
            Command::Increment => words(out, &[b"INCR", &count]),
            Command::Push(value) => words(out, &[b"RPUSH", &list, value]),
            Command::Pop => words(out, &[b"LPOP", &list]),
            Command::Delete => words(out, &[b"DEL", &text]),
            Command::Get => words(out, &[b"GET", &text]),
            Command::Both(value) => {
                words(out, &[b"MULTI"]);
                words(out, &[b"INCR", &count]);
                words(out, &[b"RPUSH", &list, value]);
                words(out, &[b"EXEC"]);
            }
        }
    }

    /// Ends a finished connection.
    fn end(&mut self, engine: &mut Engine, now: u64) {
        let all = self.got == self.expected.len();
        match self.role {
            Role::Worker { .. } => {
                if self.ended || (!self.is_done() && self.progress_at + STALLED <= now) {
                    self.give_up(engine, now);
                } else if self.is_done() {
                    self.progress_at = now;
                }
            }
            Role::SlowReader if all && self.outgoing.is_empty() => {
                engine.close(self.flow);
                self.phase = Phase::Done;
            }
            Role::Malformed | Role::HalfCloser if engine.at_end(self.flow) => {
                assert!(all, "client {} {:?} was cut off after {} bytes", self.number, self.role, self.got);
                engine.close(self.flow);
                self.phase = Phase::Done;
            }
            Role::Abandoner => {}
            // The server may be down: these try once.
            _ if self.progress_at + STALLED <= now => self.give_up(engine, now),
            _ => {}
        }
    }

    /// The server was restarted: a worker that had finished checks once more whether all data are
    /// there.
    pub(crate) fn come_back(&mut self, engine: &mut Engine, now: u64) {
        if matches!(self.role, Role::Worker { .. }) {
            self.give_up(engine, now);
        }
    }

    /// Disconnects for good.
    pub(crate) fn leave(&mut self, engine: &mut Engine) {
        if self.flow().is_some() {
            engine.abort(self.flow);
        }
        self.phase = Phase::Done;
    }
}
