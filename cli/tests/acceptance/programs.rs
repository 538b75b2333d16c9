//! Random programs of commands on the store and on a redis-server, with the store killed at random
//! points: replies and stored data are equal.
//!
//! 1. A program ([`generate`]) runs command by command, first on the store, then on the
//!    redis-server. One command in a hundred is huge ([`huge`]). Replies are compared as
//!    [`Comparison`] says.
//! 2. A command that the store refuses because its area would be too full is not sent to Redis. It
//!    must have changed nothing.
//! 3. The store is killed at random points: between commands, during a command, and during
//!    recovery. A command whose reply has come is there afterwards. A command whose reply has not
//!    come is there as a whole or not at all.
//! 4. The data of both are compared after each kill and each program ([`state`]). At the end `kv
//!    check` finds no damage.
//!
//! A failure prints the seed. `SIETCH_SIM_SECONDS` runs longer, `KV_COMPATIBILITY_SEED` begins with
//! that seed.

use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::Signal;
use sietch_kv_programs::connection::{Connection, words};
use sietch_kv_programs::generate::{self, Step};
use sietch_kv_programs::oracle::Oracle;
use sietch_kv_programs::reply::{Comparison, Reply};
use sietch_kv_programs::{huge, state};
use sietch_sim::Random;

use crate::testbed::{PATIENCE, Testbed, in_own_network, signal, text, wait_for};

/// One command in this number is huge.
const HUGE: usize = 100;

/// The store is killed before or during one command in this number.
const KILLS: usize = 120;

/// Bytes of the store's area: not enough for all data of the huge commands.
const AREA: &str = "96MiB";

type StoreConnection = Connection<TcpStream>;

/// The store, the redis-server, and the state of the comparison.
struct Pair {
    testbed: Testbed,
    /// The process of `sietch up`, whose child the store is.
    up: i64,
    oracle: Oracle,
    store: StoreConnection,
    random: Random,
    kills: u64,
    /// Of this program.
    killed: bool,
    /// The commands between MULTI and EXEC.
    queued: Vec<Step>,
    /// Whether the store has refused one of them, which Redis has therefore not seen.
    poisoned: bool,
    history: Vec<String>,
    refused: u64,
}

fn connect(testbed: &Testbed) -> io::Result<StoreConnection> {
    let stream = TcpStream::connect_timeout(&testbed.kernel(), PATIENCE)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(4 * PATIENCE))?;
    Ok(Connection::new(stream))
}

fn show(words: &[Vec<u8>]) -> String {
    let shown: Vec<String> = words
        .iter()
        .take(12)
        .map(|word| format!("{:?}", String::from_utf8_lossy(&word[..word.len().min(60)])))
        .collect();
    format!("{} ({} words, {} bytes)", shown.join(" "), words.len(), words.concat().len())
}

/// The store that `sietch up` runs now.
fn store_of(up: i64) -> Option<i64> {
    let children = std::fs::read_to_string(format!("/proc/{up}/task/{up}/children")).ok()?;
    children.split_whitespace().map(|pid| pid.parse().expect("a pid")).find(|pid| {
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        command.split(|byte| *byte == 0).any(|word| word == b"kv")
    })
}

/// The same command. If it means all elements of a collection by a number above the ordinary sizes,
/// the number is made larger.
fn of_all(mut step: Step) -> Step {
    let by_count = ["spop", "srandmember", "hrandfield", "zrandmember", "scan", "sscan", "hscan", "zscan"];
    if by_count.contains(&name_of(&step).as_str()) {
        for word in step.words.iter_mut().filter(|word| [&b"1000"[..], b"10000"].contains(&&word[..])) {
            *word = huge::ALL.into();
        }
    }
    // The store refuses it for large strings: it would need a table of the product of their
    // lengths.
    if name_of(&step) == "lcs" {
        step.comparison = Comparison::Ignore;
    }
    step
}

/// Whether an error says that the area has no room.
fn is_full(text: &[u8]) -> bool {
    text.starts_with(b"MISCONF the storage area is full")
}

fn is_refusal(reply: &Reply) -> bool {
    matches!(reply, Reply::Error(text) if is_full(text))
}

fn name_of(step: &Step) -> String {
    String::from_utf8_lossy(&step.words[0]).to_ascii_lowercase()
}

impl Pair {
    fn redis(&mut self, words: &[Vec<u8>]) -> Reply {
        self.oracle.connection.request(words).expect("redis-server answers")
    }

    fn both(&mut self, line: &str) {
        let words = words(line);
        self.store.request(&words).unwrap_or_else(|cause| panic!("{line}: {cause}"));
        self.redis(&words);
    }

    fn begin(&mut self, seed: u64) {
        self.history.clear();
        self.killed = false;
        self.reset();
        self.both("FLUSHALL");
        self.both(if seed % 2 == 1 { "HELLO 3" } else { "HELLO 2" });
    }

    /// Resets the state of the connections: database, protocol, transaction.
    fn reset(&mut self) {
        self.queued.clear();
        self.poisoned = false;
        self.both("RESET");
    }

    /// Kills the store. The last command may or may not be answered.
    fn kill(&mut self) {
        self.killed = true;
        self.kills += 1;
        let store = wait_for("a store to be started", || store_of(self.up));
        signal(store, Signal::KILL);
        wait_for("the store to end", || (store_of(self.up) != Some(store)).then_some(()));
    }

    /// Waits until a store that was killed serves again; at times it is killed in the course of its
    /// recovery.
    fn recover(&mut self) {
        // Fewer times than `sietch up` tries.
        for _ in 0..2 {
            if self.random.index(4) > 0 {
                break;
            }
            wait_for("a store to be started", || store_of(self.up));
            std::thread::sleep(Duration::from_millis(self.random.below(60)));
            self.kill();
        }
        self.store = wait_for("the store", || {
            let mut store = connect(&self.testbed).ok()?;
            (store.request(&words("PING")).ok()? == Reply::Simple(b"PONG".to_vec())).then_some(store)
        });
    }

    /// Describes the differences between the two, in words.
    fn differences(&mut self) -> String {
        let ours = state::read(&mut self.store).expect("the store answers");
        let theirs = state::read(&mut self.oracle.observer).expect("redis-server answers");
        state::differences(&ours, &theirs)
    }

    fn assert_same(&mut self, when: &str) {
        let differences = self.differences();
        assert!(differences.is_empty(), "{when} the store has, and redis:\n{differences}{}", self.describe());
    }

    fn describe(&self) -> String {
        format!("\nafter:\n  {}", self.history.join("\n  "))
    }

    /// Sends a command and kills the store, possibly while it runs the command.
    fn interrupted(&mut self, step: &Step) {
        self.history.push(show(&step.words));
        let sent = self.store.send(&step.words).is_ok();
        let huge = step.words.concat().len() > 1 << 16 || self.random.index(10) == 0;
        std::thread::sleep(Duration::from_micros(self.random.below(if huge { 200_000 } else { 3000 })));
        self.kill();
        let mut reply = if sent { self.store.receive().ok() } else { None };
        self.history.push(format!("KILL in the course of it; the reply was {}", reply.is_some()));
        self.recover();
        // Redis' connection is still in the transaction that the store's connection was in.
        let unknown = reply.is_none();
        let in_part =
            |reply: &Reply| matches!(reply, Reply::Array(replies) if replies.iter().any(is_refusal));
        if let Some(Reply::Array(replies)) = reply.take_if(|reply| name_of(step) == "exec" && in_part(reply))
        {
            self.without_refused_commands(replies);
        } else if !reply.is_some_and(|reply| self.is_refused(step, &reply)) {
            let before = if unknown { self.differences() } else { "something".into() };
            if !before.is_empty() {
                self.redis(&step.words);
                let after = self.differences();
                assert!(
                    after.is_empty(),
                    "after a kill the store has, and redis without the last command:\n{before}with it:\n{after}{}",
                    self.describe()
                );
            }
        }
        self.reset();
        self.assert_same("after a kill");
    }

    /// Whether the store has refused a command, or the transaction that it ends, for want of room.
    /// Such a command is not sent to Redis.
    fn is_refused(&self, step: &Step, reply: &Reply) -> bool {
        let Reply::Error(text) = reply else { return false };
        let at = text.windows(7).position(|part| part == b"MISCONF");
        is_full(text)
            || (text.starts_with(b"EXECABORT")
                && (self.poisoned || at.is_some_and(|at| is_full(&text[at..]))))
            || (self.poisoned && name_of(step) == "exec")
    }

    /// Runs on Redis the commands of a transaction that the store has not refused. Returns the
    /// replies of both.
    fn without_refused_commands(&mut self, ours: Vec<Reply>) -> (Reply, Reply) {
        self.redis(&words("DISCARD"));
        self.redis(&words("MULTI"));
        let steps = std::mem::take(&mut self.queued);
        for (step, reply) in steps.into_iter().zip(&ours) {
            if is_refusal(reply) {
                self.refused += 1;
            } else {
                self.redis(&step.words);
                self.queued.push(step);
            }
        }
        let ours = ours.into_iter().filter(|reply| !is_refusal(reply)).collect();
        (Reply::Array(ours), self.redis(&words("EXEC")))
    }

    /// The store has not answered a command. That is right only if it has closed the connection, as
    /// Redis has then too: the connection of a subscriber with more than 32 MiB of pending data.
    fn closed_by_both(&mut self, step: &Step, cause: &io::Error) {
        let is_closed = |kind| matches!(kind, io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset);
        let theirs = self.oracle.connection.request(&step.words);
        let both = is_closed(cause.kind()) && theirs.as_ref().is_err_and(|cause| is_closed(cause.kind()));
        assert!(
            both,
            "the store does not answer: {cause}; redis does: {}{}",
            theirs.is_ok(),
            self.describe()
        );
        self.history.push("both close the connection".into());
        self.queued.clear();
        self.poisoned = false;
        self.oracle.reconnect().expect("redis-server listens");
        self.store = connect(&self.testbed).expect("the store listens");
    }

    /// A subscriber requests more than its connection may have pending.
    fn closed_subscriber(&mut self) {
        self.begin(1);
        for line in ["SETRANGE large 40000000 x", "SUBSCRIBE channel", "GET large", "GET absent"] {
            let words = words(line);
            let comparison = Comparison::Exact;
            self.step(&Step { words, comparison, settled: true, first: false, huge: true });
        }
        assert!(self.history.iter().any(|line| line == "both close the connection"), "{}", self.describe());
    }

    /// One command on both sides.
    fn step(&mut self, step: &Step) {
        self.history.push(show(&step.words));
        let ours = match self.store.request(&step.words) {
            Ok(reply) => reply,
            Err(cause) => return self.closed_by_both(step, &cause),
        };
        if self.is_refused(step, &ours) {
            self.refused += 1;
            self.history.push("refused: the area is full".into());
            self.poisoned |= !self.queued.is_empty();
            if name_of(step) == "exec" {
                self.reset();
            }
            return;
        }
        let name = name_of(step);
        let (ours, theirs) = match ours {
            Reply::Array(replies) if name == "exec" && replies.iter().any(is_refusal) => {
                self.without_refused_commands(replies)
            }
            ours => (ours, self.redis(&step.words)),
        };
        if !self.same(&name, step, theirs.clone(), ours.clone()) {
            let cut = |reply: Reply| reply.to_string().chars().take(2000).collect::<String>();
            panic!("here:  {}\nredis: {}{}", cut(ours), cut(theirs), self.describe());
        }
    }

    fn same(&mut self, name: &str, step: &Step, theirs: Reply, ours: Reply) -> bool {
        // The encoding of a value belongs to the process' memory: a restart chooses it anew.
        let comparison = if self.killed && name == "object" { Comparison::Ignore } else { step.comparison };
        if theirs == Reply::Simple(b"QUEUED".to_vec()) {
            self.queued.push(Step { comparison, ..step.clone() });
            return ours == theirs;
        }
        let modes = if matches!(name, "exec" | "discard" | "reset") {
            std::mem::take(&mut self.queued)
        } else {
            Vec::new()
        };
        match (&ours, &theirs) {
            (Reply::Array(ours), Reply::Array(theirs)) if name == "exec" => {
                ours.len() == theirs.len()
                    && modes.len() == ours.len()
                    && modes.iter().zip(ours.iter().cloned().zip(theirs.iter().cloned())).all(
                        |(step, (ours, theirs))| {
                            step.comparison.normal(ours) == step.comparison.normal(theirs)
                        },
                    )
            }
            _ => comparison.normal(ours) == comparison.normal(theirs),
        }
    }

    /// Runs a command; in one of `times` cases the store is killed meanwhile. Returns whether it
    /// was.
    fn at_risk(&mut self, step: &Step, times: usize) -> bool {
        // Without its reply it is unknown which commands of a transaction the store would have
        // refused.
        let known = name_of(step) != "exec" || !self.queued.iter().any(|step| step.huge);
        let kill = self.random.index(times) == 0 && known;
        if kill {
            self.interrupted(step)
        } else {
            self.step(step)
        }
        kill
    }

    fn program(&mut self, seed: u64) {
        self.begin(seed);
        // The rest of a command sequence that a kill has cut off is left out.
        let mut cut_off = false;
        for step in generate::program(seed).into_iter().map(of_all) {
            cut_off &= !step.first;
            if cut_off {
                continue;
            }
            if step.first && self.random.index(HUGE) == 0 {
                let huge = huge::step(&mut self.random);
                self.at_risk(&huge, 4);
            }
            let risk = if step.settled { KILLS } else { usize::MAX };
            cut_off = self.at_risk(&step, risk);
        }
        self.assert_same("at the end");
    }
}

#[test]
fn replies_and_data_are_those_of_redis_wherever_the_store_is_killed() {
    in_own_network("replies_and_data_are_those_of_redis_wherever_the_store_is_killed", || {
        let Some(oracle) = Oracle::start() else {
            eprintln!("SKIPPED: needs redis-server 7.0 in the path");
            return;
        };
        let testbed = Testbed::new("programs");
        testbed.configure(&testbed.configuration().replace("64MiB", AREA));
        let up = testbed.up(&["--net", "linux"]);
        let store = connect(&testbed).expect("the store listens");
        let fresh = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_secs());
        let first = crate::number("KV_COMPATIBILITY_SEED", fresh());
        let until = Instant::now() + Duration::from_secs(crate::number("SIETCH_SIM_SECONDS", 20));
        let (random, pid) = (Random::new(first), up.pid());
        let mut pair = Pair {
            testbed,
            up: pid,
            oracle,
            store,
            random,
            kills: 0,
            killed: false,
            queued: Vec::new(),
            poisoned: false,
            history: Vec::new(),
            refused: 0,
        };
        pair.closed_subscriber();
        let mut programs = 0;
        while Instant::now() < until {
            let seed = first + programs;
            eprintln!("seed {seed}: {} kills, {} refused", pair.kills, pair.refused);
            pair.program(seed);
            programs += 1;
        }
        up.stop();
        let checked = pair.testbed.run(&["kv", "check", &pair.testbed.area().display().to_string()]);
        assert!(checked.status.success(), "{}{}", text(&checked.stdout), text(&checked.stderr));
        eprintln!(
            "{programs} programs from seed {first}, {} kills, {} refused: all alike",
            pair.kills, pair.refused
        );
    });
}
