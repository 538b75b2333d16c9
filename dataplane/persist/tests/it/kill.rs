//! `kill -9` on real files: a process works on a log, a queue and a map and says what is durable.
//! It is killed in the middle, again and again.
//!
//! 1. The child is this test program itself. It writes a line for each thing that is durable, and
//!    one before each that it begins.
//! 2. The parent reads a drawn number of lines, kills it, reads what was still written, and opens
//!    the areas as the next child will.
//! 3. `SIETCH_SIM_SEEDS=n` sets the rounds.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sietch_disk::{BlockingQueue, area};
use sietch_persist::{Entry, FormatOptions, Log, Map, Options, Queue, QueueOptions};

const SIZE: u64 = 4 << 20;
const VARIABLE: &str = "SIETCH_KILL_DIRECTORY";

fn disk(directory: &Path, name: &str) -> BlockingQueue {
    let fd = area::open(&directory.join(name), SIZE).expect("its last owner is dead");
    BlockingQueue::open(fd, SIZE).expect("a file")
}

fn open(directory: &Path) -> (Queue<BlockingQueue>, Map<BlockingQueue>) {
    let (queue, _) = Queue::open(disk(directory, "queue"), QueueOptions::default()).expect("the queue opens");
    let (map, _) = Map::open(disk(directory, "map"), Options::default()).expect("the map opens");
    (queue, map)
}

/// The log, and the numbers of its records.
fn open_log(directory: &Path) -> (Log<BlockingQueue>, Vec<u64>) {
    let mut found = Vec::new();
    let (log, _) = Log::open(disk(directory, "log"), Options::default(), &mut |entry| {
        let Entry::Record(_, bytes) = entry else { return Err("an unexpected snapshot".into()) };
        if bytes != payload(number(bytes)) {
            return Err("a record is damaged".into());
        }
        found.push(number(bytes));
        Ok(())
    })
    .expect("the log opens");
    (log, found)
}

/// The number of an entry or a value.
fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes and more"))
}

fn payload(n: u64) -> Vec<u8> {
    let mut bytes = n.to_le_bytes().to_vec();
    bytes.resize(8 + (n * 7919 % 3000) as usize, n as u8);
    bytes
}

#[test]
#[ignore = "the child of the other test"]
fn child() {
    let Some(directory) = std::env::var_os(VARIABLE) else { return };
    let (mut queue, mut map) = open(Path::new(&directory));
    let (mut log, logged) = open_log(Path::new(&directory));
    let mut recent = VecDeque::new();
    let mut n = map
        .get(b"last")
        .map_or(0, number)
        .max(queue.iter().map(|(_, bytes, _)| number(bytes)).max().unwrap_or(0))
        .max(logged.last().copied().unwrap_or(0));
    let mut out = std::io::stdout().lock();
    let mut say = |what: &str, n: u64| {
        // A failed write means that the parent has ended: the child ends too.
        writeln!(out, "\n{what} {n}").and_then(|()| out.flush()).expect("a parent");
    };
    loop {
        n += 1;
        say("begin", n);
        let sent = queue.send(&payload(n)).expect("room");
        map.put(format!("key {}", n % 40).as_bytes(), &payload(n)).expect("room");
        let put = map.put(b"last", &n.to_le_bytes()).expect("room");
        while queue.poll(n).expect("a disk that works") < sent {}
        say("sent", n);
        while map.poll().expect("a disk that works") < put {}
        say("put", n);
        let appended = log.append(&payload(n)).expect("room");
        log.submit().expect("a disk that works");
        while log.poll().expect("a disk that works") < appended {}
        say("logged", n);
        recent.push_back((appended, n));
        // The last few are kept, and that is said before.
        if recent.len() > 40 && !log.is_truncating() {
            recent.drain(..30);
            let (keep, first) = recent[0];
            say("head", first);
            log.truncate(keep).expect("a disk that works");
        }
        while queue.len() > 8
            && let Some(delivery) = queue.receive(1, n, 3)
        {
            let (receipt, m) = (delivery.receipt, number(delivery.payload));
            say("take", m);
            let removed = queue.acknowledge(&[receipt]).expect("room");
            while queue.poll(n).expect("a disk that works") < removed {}
            say("removed", m);
        }
    }
}

/// What the parent knows.
#[derive(Default)]
struct Known {
    begun: u64,
    put: u64,
    /// The last number that was durable under each key.
    keys: BTreeMap<u64, u64>,
    there: BTreeSet<u64>,
    unsure: BTreeSet<u64>,
    /// Records that are durable, from the head on.
    logged: BTreeSet<u64>,
}

impl Known {
    fn note(&mut self, line: &str) {
        let Some((what, n)) = line.split_once(' ') else { return };
        let Ok(n) = n.parse() else { return };
        match what {
            "begin" => {
                self.begun = n;
                self.unsure.insert(n);
            }
            "sent" => {
                self.unsure.remove(&n);
                self.there.insert(n);
            }
            "put" => {
                self.put = n;
                self.keys.insert(n % 40, n);
            }
            "take" => {
                self.there.remove(&n);
                self.unsure.insert(n);
            }
            "removed" => {
                self.unsure.remove(&n);
            }
            "logged" => drop(self.logged.insert(n)),
            "head" => self.logged = self.logged.split_off(&n),
            _ => {}
        }
    }

    fn judge(&mut self, directory: &Path, round: u64) {
        let (queue, map) = open(directory);
        let found: BTreeSet<u64> = queue
            .iter()
            .map(|(_, bytes, _)| {
                assert!(bytes == payload(number(bytes)), "round {round}: an entry is damaged");
                number(bytes)
            })
            .collect();
        let lost: Vec<&u64> = self.there.difference(&found).collect();
        assert!(lost.is_empty(), "round {round}: lost {lost:?}");
        let strange: Vec<&u64> =
            found.iter().filter(|n| !self.there.contains(n) && !self.unsure.contains(n)).collect();
        assert!(strange.is_empty(), "round {round}: back again {strange:?}");
        for key in self.keys.keys() {
            assert!(map.get(format!("key {key}").as_bytes()).is_some(), "round {round}: key {key} is lost");
        }
        let last = map.get(b"last").map_or(0, number);
        assert!((self.put..=self.begun).contains(&last), "round {round}: {last}, {} was durable", self.put);
        for (key, value) in map.iter().filter(|(key, _)| *key != b"last") {
            let n = number(value);
            assert!(value == payload(n) && key == format!("key {}", n % 40).as_bytes(), "round {round}: {n}");
            // Numbers go up: an older one than was durable is a lost change.
            let durable = self.keys.get(&(n % 40)).copied().unwrap_or_default();
            assert!(
                (durable..=self.begun).contains(&n),
                "round {round}: {n} under a key, {durable} was durable"
            );
        }
        let (_, records) = open_log(directory);
        assert!(records.is_sorted_by(|a, b| a < b), "round {round}: records out of order");
        assert!(records.last().is_none_or(|last| *last <= self.begun), "round {round}: an invented record");
        let missing: Vec<_> = self.logged.iter().filter(|n| !records.contains(n)).collect();
        assert!(missing.is_empty(), "round {round}: records {missing:?} are lost");
        self.logged = records.into_iter().collect();
        (self.there, self.put) = (found, last);
        self.unsure.clear();
    }
}

fn one_round(directory: &Path, lines: usize, known: &mut Known) {
    let program = std::env::current_exe().expect("this test");
    let mut child = Command::new(program)
        .args(["--exact", "kill::child", "--ignored", "--nocapture"])
        .env(VARIABLE, directory)
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .expect("this test again");
    let mut reader = BufReader::new(child.stdout.take().expect("piped"));
    let mut line = String::new();
    for read in 0.. {
        if read == lines {
            child.kill().expect("ours");
        }
        line.clear();
        // What was written before the kill is still in the pipe; a line that was cut off says
        // nothing.
        if reader.read_line(&mut line).expect("a pipe") == 0 || !line.ends_with('\n') {
            break;
        }
        known.note(line.trim_end());
    }
    let status = child.wait().expect("ours");
    assert!(status.code().is_none(), "the child ended by itself: {status}");
}

#[test]
fn kill_9_loses_nothing_that_was_durable() {
    let rounds =
        std::env::var("SIETCH_SIM_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(20u64).min(1000);
    let directory: PathBuf = std::env::temp_dir().join(format!("sietch-kill-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a writable temporary directory");
    for name in ["log", "queue", "map"] {
        area::create(&directory.join(name), SIZE, &mut |_| {}).expect("room");
    }
    Queue::format(&mut disk(&directory, "queue"), FormatOptions::new(1)).expect("large enough");
    Log::format(&mut disk(&directory, "log"), FormatOptions::new(3)).expect("large enough");
    Map::format(&mut disk(&directory, "map"), FormatOptions::new(2)).expect("large enough");
    let mut known = Known::default();
    for round in 0..rounds {
        // Some die at once, in recovery; some live for hundreds of changes.
        let lines = (round * round * 37 % 400) as usize + usize::from(round % 3 == 0) * 300;
        one_round(&directory, lines, &mut known);
        known.judge(&directory, round);
    }
    assert!(known.begun > 100, "only {} changes", known.begun);
    drop(std::fs::remove_dir_all(&directory));
}
