//! Queues and maps: whatever is done to them, and wherever a crash cuts it short, opening finds a
//! state that they went through. It is no earlier than the last state known to be durable.
//!
//! 1. Operations are drawn from one set (`subject`) and judged by one oracle (`history`).
//! 2. Crash enumeration: every write, completion and flush is a crash point. Every subset of the
//!    sectors at risk, when they are few, else drawn ones, is a possible medium. Sectors tear at 8,
//!    64 or 512 bytes. Lives follow each other, so crashes fall into recovery and into compaction
//!    too.
//! 3. The mutation gate ignores each kind of fence, one after the other, and a crash must show it.
//! 4. Faults of the disk are answered by an error, never by a state that there never was.

mod cut;
mod extremes;
mod faults;
mod nvm;
mod subject;

use std::cell::RefCell;
use std::rc::Rc;

use sietch_disk::MemoryQueue;
use sietch_persist::{Durability, OpenError};
use sietch_sim::seeds::{self, Budget};

use crate::disk::{CrashDisk, Fence, Media, Phase, Random};
use crate::history::Verdict;
use subject::{Kind, Knowledge, Operation, Subject, format};

const CAPACITY: usize = 16384 + 16 * 16384;
/// Images drawn per crash point when there are too many to try all.
const DRAWS: usize = 3;
/// Sectors at risk up to which every subset of them is tried: in CI, and in a long run.
const EXHAUSTIVE: [usize; 2] = [3, 9];
const STEPS: u64 = 120;

/// Judges one image that a crash could have left, and lives on from it.
fn judge(kind: Kind, image: Vec<u8>, known: &Knowledge) -> Verdict {
    let disk = MemoryQueue::from_bytes(image);
    let mut subject = match Subject::open(kind, disk, Durability::Always) {
        Ok(opened) => opened,
        Err(OpenError::NotFormatted) if !known.history.formatted => return Ok(()),
        Err(other) => return Err(format!("does not open: {other}")),
    };
    subject.judge(known)?;
    let mut known = known.clone();
    known.history.restart(&subject.state());
    known.closed = false;
    subject.settle(&mut known).map_err(|e| e.to_string())?;
    let again = Subject::open(kind, subject.into_disk(), Durability::Always)
        .map_err(|e| format!("does not open a second time: {e}"))?;
    again.judge(&known).map_err(|e| format!("the second time: {e}"))
}

/// Judges the images that power loss could leave now: all of them where no more than `few` sectors
/// are at risk.
fn judge_all(kind: Kind, media: &Media, known: &Knowledge, few: usize, random: &mut Random) -> Verdict {
    let unit = [8, 64, 512][random.below(3) as usize];
    let at_risk = media.at_risk(unit);
    if at_risk <= few {
        seeds::explored(1 << at_risk);
        for mask in 0..1u32 << at_risk {
            let mut bit = 0;
            let image = media.after_power_loss(unit, || {
                bit += 1;
                mask >> (bit - 1) & 1 == 1
            });
            judge(kind, image, known).map_err(|e| format!("{e} (unit {unit}, mask {mask:b})"))?;
        }
        return Ok(());
    }
    seeds::explored(2 + DRAWS as u64);
    judge(kind, media.after_power_loss(unit, || false), known)?;
    judge(kind, media.after_power_loss(unit, || true), known)?;
    for draw in 0..DRAWS {
        let percent = [50, 3, 97][draw % 3];
        let image = media.after_power_loss(unit, || random.chance(percent));
        judge(kind, image, known).map_err(|e| format!("{e} (unit {unit}, draw {draw})"))?;
    }
    Ok(())
}

struct Run {
    kind: Kind,
    seed: u64,
    durability: Durability,
    ignored: Option<Fence>,
    steps: u64,
}

impl Run {
    fn new(kind: Kind, seed: u64) -> Self {
        let durability = if seed.is_multiple_of(3) { Durability::Deferred } else { Durability::Always };
        Self { kind, seed, durability, ignored: None, steps: STEPS }
    }

    fn media(&self, image: Vec<u8>, budget: usize) -> Rc<RefCell<Media>> {
        let block = if self.seed.is_multiple_of(2) { 512 } else { 4096 };
        let media = Media::new(image, block, self.seed);
        media.borrow_mut().budget = budget;
        media.borrow_mut().ignored = self.ignored;
        media
    }

    /// Formats and lives three times, until event `budget`.
    fn live(&self, budget: usize) -> (Rc<RefCell<Media>>, Knowledge, bool) {
        let media = self.media(vec![0; CAPACITY], budget);
        let mut random = Random::new(self.seed);
        let mut known = Knowledge::default();
        let done = (|| {
            media.borrow_mut().phase = Phase::Format;
            format(self.kind, &mut CrashDisk::new(&media), u128::from(self.seed)).ok()?;
            known.history.formatted = true;
            for _ in 0..3 {
                self.one_life(&media, &mut known, self.steps, &mut random)?;
                let left = media.borrow().budget;
                media.borrow_mut().kill();
                media.borrow_mut().budget = left;
            }
            Some(())
        })();
        (media, known, done.is_some())
    }

    /// `None`: the disk died.
    fn one_life(
        &self,
        media: &Rc<RefCell<Media>>,
        known: &mut Knowledge,
        steps: u64,
        random: &mut Random,
    ) -> Option<()> {
        media.borrow_mut().phase = Phase::Open;
        // From here on a crash may leave what an opening has begun.
        let closed = std::mem::take(&mut known.closed);
        let mut subject = match Subject::open(self.kind, CrashDisk::new(media), self.durability) {
            Ok(opened) => opened,
            Err(OpenError::Failed(_)) => return None,
            Err(other) => panic!("a disk that works: {other}"),
        };
        known.closed = closed;
        subject.judge(known).unwrap_or_else(|wrong| panic!("seed {}: {wrong}", self.seed));
        known.history.restart(&subject.state());
        known.closed = false;
        media.borrow_mut().phase = Phase::Run;
        for _ in 0..steps {
            subject.step(Operation::draw(self.kind, random), known, random).ok()?;
        }
        if random.chance(40) {
            media.borrow_mut().phase = Phase::Close;
            subject.close(known).ok()?;
        }
        Some(())
    }

    fn enumerate(&self, stride: usize) -> Verdict {
        let mut random = Random::new(self.seed ^ 0xc0ffee);
        let mut budget = 1;
        loop {
            let (media, known, survived) = self.live(budget);
            let few = EXHAUSTIVE[usize::from(seeds::is_soak())];
            judge_all(self.kind, &media.borrow(), &known, few, &mut random)
                .map_err(|e| format!("{:?}, seed {}, event {budget}: {e}", self.kind, self.seed))?;
            if survived {
                return Ok(());
            }
            budget += 1 + random.below(2 * stride as u64 - 1) as usize;
        }
    }

    /// The power fails at every event of the recovery from `image` and of a few steps behind it;
    /// `depth` says how often in a row.
    fn nest(&self, image: &[u8], known: &Knowledge, depth: u64, random: &mut Random) -> Verdict {
        for budget in 0.. {
            let media = self.media(image.to_vec(), budget);
            let mut known = known.clone();
            let survived = self.one_life(&media, &mut known, 6, &mut random.clone()).is_some();
            let media = media.borrow();
            judge_all(self.kind, &media, &known, EXHAUSTIVE[0], random)
                .map_err(|e| format!("{e} (depth {depth}, event {budget})"))?;
            if depth > 1 && random.chance(12) {
                let again = media.after_power_loss(64, || random.chance(50));
                self.nest(&again, &known, depth - 1, random)?;
            }
            if survived {
                break;
            }
        }
        Ok(())
    }

    /// A crash somewhere, and then crashes in its recovery.
    fn nested(&self) -> Verdict {
        let total = self.live(usize::MAX).0.borrow().events;
        let mut random = Random::new(self.seed ^ 0x2e57);
        for _ in 0..3 {
            let budget = 8 + random.below(total as u64) as usize;
            let (media, known, _) = self.live(budget);
            if !known.history.formatted {
                continue;
            }
            let unit = [8, 64, 512][random.below(3) as usize];
            let image = media.borrow().after_power_loss(unit, || random.chance(50));
            self.nest(&image, &known, 3, &mut random)
                .map_err(|e| format!("{:?}, seed {}, event {budget}: {e}", self.kind, self.seed))?;
        }
        Ok(())
    }

    /// A process is killed with writes in flight, its successor recovers and continues, and then
    /// the power fails.
    fn kill_then_power_loss(&self) -> Verdict {
        let total = self.live(usize::MAX).0.borrow().events;
        let mut random = Random::new(self.seed ^ 0xdead);
        for _ in 0..4 {
            let budget = 8 + random.below(total as u64) as usize;
            let extra = random.below(12) as usize;
            let (media, mut known, _) = self.live(budget);
            if !known.history.formatted {
                continue;
            }
            media.borrow_mut().kill();
            let now = media.borrow().events;
            media.borrow_mut().budget = now + extra;
            self.one_life(&media, &mut known, 10, &mut random);
            judge_all(self.kind, &media.borrow(), &known, EXHAUSTIVE[0], &mut random).map_err(|e| {
                format!("{:?}, seed {}, kill at {budget}, then {extra}: {e}", self.kind, self.seed)
            })?;
        }
        Ok(())
    }
}

/// No crash but the end of the process, for many operations: compaction and truncation by the way.
fn long_life(kind: Kind, seed: u64) -> Knowledge {
    let mut random = Random::new(seed);
    let mut known = Knowledge::default();
    let mut disk = MemoryQueue::new(CAPACITY);
    format(kind, &mut disk, u128::from(seed)).expect("large enough");
    for life in 0..4 {
        let mut subject = Subject::open(kind, disk, Durability::Always).expect("an undamaged area");
        subject.judge(&known).unwrap_or_else(|wrong| panic!("{kind:?}, seed {seed}, life {life}: {wrong}"));
        known.history.restart(&subject.state());
        known.closed = false;
        for _ in 0..random.below(1500) {
            let operation = Operation::draw(kind, &mut random);
            subject.step(operation, &mut known, &mut random).expect("a disk that works");
            assert!(subject.log().used() <= CAPACITY as u64 / 2);
        }
        assert_eq!(subject.state(), *known.history.state(), "{kind:?}, seed {seed}");
        disk = match life {
            0 => subject.into_disk(),
            1 => subject.close(&mut known).expect("a disk that works"),
            _ => {
                subject.settle(&mut known).expect("a disk that works");
                subject.into_disk()
            }
        };
    }
    known
}

#[test]
fn a_queue_and_a_map_hold_their_entries() {
    let (mut truncations, mut snapshots) = ([0; 2], [0; 2]);
    for (place, kind) in [Kind::Queue, Kind::Map].into_iter().enumerate() {
        for seed in 1..=60 {
            let known = long_life(kind, seed);
            truncations[place] += known.truncations;
            snapshots[place] += known.snapshots;
        }
    }
    assert!(truncations[0] > 50 && snapshots[0] > 50, "queue: {truncations:?}, {snapshots:?}");
    assert!(snapshots[1] > 50, "map: {snapshots:?}");
}

#[test]
fn power_loss_in_the_life_of_a_queue() {
    let budget = Budget { seeds: 10, seconds: 4 };
    seeds::run("it structures::power_loss_in_the_life_of_a_queue", &[1, 2, 3, 4], budget, |seed| {
        Run::new(Kind::Queue, seed).enumerate(2).expect("the promise");
    });
}

#[test]
fn power_loss_in_the_life_of_a_map() {
    let budget = Budget { seeds: 10, seconds: 4 };
    seeds::run("it structures::power_loss_in_the_life_of_a_map", &[1, 2, 3, 4], budget, |seed| {
        Run::new(Kind::Map, seed).enumerate(2).expect("the promise");
    });
}

#[test]
fn power_loss_after_a_kill() {
    let budget = Budget { seeds: 60, seconds: 3 };
    seeds::run("it structures::power_loss_after_a_kill", &[], budget, |seed| {
        for kind in [Kind::Queue, Kind::Map] {
            Run::new(kind, seed).kill_then_power_loss().expect("the promise");
        }
    });
}

/// The power fails again and again while what it left is being recovered.
#[test]
fn power_loss_in_the_recovery_from_a_power_loss() {
    let budget = Budget { seeds: 10, seconds: 4 };
    seeds::run("it structures::power_loss_in_the_recovery", &[1, 2, 332_749_522_679], budget, |seed| {
        for kind in [Kind::Queue, Kind::Map] {
            Run::new(kind, seed).nested().expect("the promise");
        }
    });
}

/// The mutation gate: each fence that is met in the life of a structure is there for a reason that
/// a crash of a queue or of a map shows. (Blanking belongs to formatting, and has its crash in the
/// gate of the log.)
#[test]
fn ignoring_any_fence_is_noticed() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let mut fences: Vec<Fence> = Vec::new();
    for (kind, seed) in
        [Kind::Queue, Kind::Map].into_iter().flat_map(|kind| (1..=9).map(move |seed| (kind, seed)))
    {
        for &fence in &Run::new(kind, seed).live(usize::MAX).0.borrow().seen {
            if !fences.contains(&fence) && fence != Fence::Blank {
                fences.push(fence);
            }
        }
    }
    let catches = |run: &dyn Fn() -> Verdict| {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).map_or(true, |verdict| verdict.is_err())
    };
    let is_noticed = |ignored: Option<Fence>, rounds: u64| {
        (1..=rounds).any(|seed| {
            [Kind::Map, Kind::Queue].into_iter().any(|kind| {
                let run = Run { ignored, ..Run::new(kind, seed) };
                catches(&|| run.kill_then_power_loss()) || catches(&|| run.enumerate(9))
            })
        })
    };
    let unnoticed: Vec<&Fence> = fences.iter().filter(|fence| !is_noticed(Some(**fence), 60)).collect();
    let wolf = is_noticed(None, 6);
    std::panic::set_hook(hook);
    assert!(fences.len() > 8, "only {fences:?} were met");
    assert!(unnoticed.is_empty(), "no test misses {unnoticed:?}");
    assert!(!wolf, "the gate cries wolf");
}
