//! A loop device whose backing file is cut at a random recorded write.
//!
//! 1. A queue or a map works on a real file. A recorder in front of it keeps every write and flush,
//!    in the order of their completion. Beside each it keeps the changes submitted by then, and the
//!    changes known to be durable after that step.
//! 2. For a drawn moment the backing file is rebuilt: what was durable then is on it, of what was
//!    not any subset of its sectors.
//! 3. The file is attached as a loop device, and the structure must recover from the device and go
//!    on.

use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use sietch_disk::{BlockingQueue, Completion, DiskQueue, Operation as Request, Priority, SubmitError, area};
use sietch_persist::Durability;
use sietch_sim::seeds::{self, Budget};

use super::CAPACITY;
use super::subject::{Kind, Knowledge, Operation, Subject, format};
use crate::disk::Random;
use crate::history::Verdict;

/// Bytes of a sector of the loop device.
const SECTOR: usize = 512;

/// A write or a flush that was requested.
struct Event {
    offset: usize,
    /// Empty for a flush.
    bytes: Vec<u8>,
    durable: bool,
    /// Events that had completed when it was submitted.
    submitted: usize,
}

/// A real file's queue, and everything that passed through it.
struct Recorder {
    inner: BlockingQueue,
    flying: Vec<(u64, Event)>,
    tape: Vec<Event>,
}

impl Recorder {
    fn new(inner: BlockingQueue) -> Self {
        Self { inner, flying: Vec::new(), tape: Vec::new() }
    }
}

impl DiskQueue for Recorder {
    fn capacity(&self) -> u64 {
        self.inner.capacity()
    }

    fn block_size(&self) -> usize {
        self.inner.block_size()
    }

    fn physical_block_size(&self) -> usize {
        self.inner.physical_block_size()
    }

    fn depth(&self) -> usize {
        self.inner.depth()
    }

    fn submit_with(&mut self, token: u64, operation: Request, priority: Priority) -> Result<(), SubmitError> {
        let submitted = self.tape.len();
        let (bytes, durable) = match &operation {
            Request::Write { length, buffer, durable, .. } => (buffer[..*length].to_vec(), *durable),
            Request::Flush => (Vec::new(), false),
            Request::Read { .. } => return self.inner.submit_with(token, operation, priority),
            other => panic!("the structures do not ask for {other:?}"),
        };
        let offset = operation.offset() as usize;
        self.inner.submit_with(token, operation, priority)?;
        self.flying.push((token, Event { offset, bytes, durable, submitted }));
        Ok(())
    }

    fn notify(&mut self) -> io::Result<()> {
        self.inner.notify()
    }

    fn complete(&mut self, out: &mut Vec<Completion>) -> usize {
        let before = out.len();
        self.inner.complete(out);
        for completion in &out[before..] {
            if let Some(at) = self.flying.iter().position(|(token, _)| *token == completion.token) {
                self.tape.push(self.flying.remove(at).1);
            }
        }
        out.len() - before
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        self.inner.wait(timeout)
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }
}

/// What may be on the medium if the power fails after `cut` events of `tape`.
fn rebuild(tape: &[Event], cut: usize, random: &mut Random) -> Vec<u8> {
    let mut image = vec![0; CAPACITY];
    let percent = [0, 50, 100, 90][random.below(4) as usize];
    // What a flush that had completed covers.
    let flushed = tape[..cut]
        .iter()
        .filter(|event| event.bytes.is_empty())
        .map(|flush| flush.submitted)
        .max()
        .unwrap_or(0);
    for (index, event) in tape.iter().enumerate() {
        let done = index < cut;
        if !done && event.submitted > cut {
            break;
        }
        let settled = done && (event.durable || index < flushed);
        for (place, sector) in event.bytes.chunks(SECTOR).enumerate() {
            if settled || random.chance(percent) {
                let at = event.offset + place * SECTOR;
                image[at..at + sector.len()].copy_from_slice(sector);
            }
        }
    }
    image
}

/// A loop device, detached when dropped.
struct Loop(PathBuf);

impl Loop {
    fn attach(file: &Path) -> Result<Self, String> {
        let output = Command::new("losetup")
            .args(["--find", "--show"])
            .arg(file)
            .output()
            .map_err(|e| e.to_string())?;
        let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if output.status.success() && said.starts_with("/dev/loop") {
            return Ok(Self(said.into()));
        }
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }

    fn queue(&self) -> BlockingQueue {
        let device = OpenOptions::new().read(true).write(true).open(&self.0).expect("ours");
        BlockingQueue::open(device.into(), CAPACITY as u64).expect("a block device")
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        drop(Command::new("losetup").arg("--detach").arg(&self.0).status());
    }
}

/// A directory removed with the test.
struct TemporaryFolder(PathBuf);

impl TemporaryFolder {
    fn new(seed: u64) -> Self {
        let path = std::env::temp_dir().join(format!("sietch-cut-{}-{seed}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a writable temporary directory");
        Self(path)
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// Works on a real file; what passed through, and how much of it there was each time something was
/// known.
fn record(kind: Kind, place: &TemporaryFolder, seed: u64) -> (Vec<Event>, Vec<(usize, Knowledge)>) {
    let path = place.0.join("area");
    drop(std::fs::remove_file(&path));
    area::create(&path, CAPACITY as u64, &mut |_| {}).expect("room");
    let fd = area::open(&path, CAPACITY as u64).expect("no other owner");
    let mut recorder = Recorder::new(BlockingQueue::open(fd, CAPACITY as u64).expect("a file"));
    format(kind, &mut recorder, u128::from(seed)).expect("large enough");
    let (mut known, mut random) = (Knowledge::default(), Random::new(seed));
    known.history.formatted = true;
    let mut notes = vec![(recorder.tape.len(), known.clone())];
    let durability = if seed.is_multiple_of(2) { Durability::Always } else { Durability::Deferred };
    for _ in 0..2 {
        let mut subject = Subject::open(kind, recorder, durability).expect("formatted");
        known.history.restart(&subject.state());
        for _ in 0..250 {
            subject
                .step(Operation::draw(kind, &mut random), &mut known, &mut random)
                .expect("a disk that works");
            notes.push((subject.log().disk().tape.len(), known.clone()));
        }
        subject.settle(&mut known).expect("a disk that works");
        recorder = subject.into_disk();
        notes.push((recorder.tape.len(), known.clone()));
    }
    (recorder.tape, notes)
}

/// Recovers from a loop device over what a cut left.
fn recover(kind: Kind, device: &Loop, mut known: Knowledge, random: &mut Random) -> Verdict {
    let mut subject =
        Subject::open(kind, device.queue(), Durability::Always).map_err(|e| format!("does not open: {e}"))?;
    subject.judge(&known)?;
    known.history.restart(&subject.state());
    for _ in 0..30 {
        subject.step(Operation::draw(kind, random), &mut known, random).map_err(|e| e.to_string())?;
    }
    subject.settle(&mut known).map_err(|e| e.to_string())?;
    drop(subject.into_disk());
    let again = Subject::open(kind, device.queue(), Durability::Always)
        .map_err(|e| format!("does not open again: {e}"))?;
    again.judge(&known)
}

#[test]
fn a_loop_device_that_was_cut_at_a_recorded_write_recovers() {
    let name = "a_loop_device_that_was_cut_at_a_recorded_write_recovers";
    let place = TemporaryFolder::new(0);
    std::fs::write(place.0.join("probe"), vec![0; CAPACITY]).expect("room");
    if let Err(why) = Loop::attach(&place.0.join("probe")) {
        eprintln!("SKIPPED {name}: needs root and a free loop device: {why}");
        return;
    }
    let budget = Budget { seeds: 3, seconds: 4 };
    seeds::run("it structures::cut::a_loop_device", &[], budget, |seed| {
        let place = TemporaryFolder::new(seed);
        for kind in [Kind::Queue, Kind::Map] {
            let (tape, notes) = record(kind, &place, seed);
            let mut random = Random::new(seed ^ 0x100b);
            for _ in 0..4 {
                let first = notes[0].0;
                let cut = first + random.below((tape.len() - first) as u64 + 1) as usize;
                let image = place.0.join("image");
                std::fs::write(&image, rebuild(&tape, cut, &mut random)).expect("room");
                let device = Loop::attach(&image).expect("one was free before");
                let (_, known) =
                    notes.iter().rev().find(|(length, _)| *length <= cut).expect("the first one");
                seeds::explored(1);
                recover(kind, &device, known.clone(), &mut random)
                    .unwrap_or_else(|e| panic!("{kind:?}, cut after {cut} of {} events: {e}", tape.len()));
            }
        }
    });
}
