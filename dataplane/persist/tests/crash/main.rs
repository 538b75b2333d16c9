//! Crash enumeration: every write, completion and flush boundary is a crash point, every subset of the sectors at risk a
//! possible medium (all of them when they are few, else drawn by seed). After each, everything acknowledged is there, then
//! a prefix of the rest, in order, and nothing else.

mod disk;
mod driver;

use std::cell::RefCell;
use std::rc::Rc;

use sietch_disk::MemoryQueue;
use sietch_persist::{Durability, OpenError, check};
use sietch_sim::seeds::{self, Budget};

use disk::{Fence, Media, Phase, Random};
use driver::{CAPACITY, Known, Life, Rebuilt, payload, recover};

/// Images drawn per crash point when there are too many to try all.
const DRAWS: u64 = 6;
const STEPS: u64 = 150;

/// A violation of the promise, in words.
type Verdict = Result<(), String>;

/// Judges one image that a crash could have left.
fn judge(image: Vec<u8>, known: Known) -> Verdict {
    let mut disk = MemoryQueue::from_bytes(image);
    let checked = check(&mut disk);
    let (mut log, found, report) = match recover(disk, Durability::Always) {
        Ok(opened) => opened,
        Err(OpenError::NotFormatted) if !known.formatted => return Ok(()),
        Err(other) => return Err(format!("does not open: {other}")),
    };
    known.judge(&found)?;
    let n = found.n;
    if known.closed && !report.clean {
        return Err("closed in order, but does not know it".into());
    }
    let checked = checked.map_err(|e| format!("opens, but does not check: {e}"))?;
    assert_eq!((checked.records, checked.last_sequence), (report.records, report.last_sequence));
    // A second life: one record more, and then a third.
    let sequence = match log.append(&payload(n + 1)) {
        Ok(sequence) => sequence,
        Err(_) => return Ok(()),
    };
    log.submit().map_err(|e| e.to_string())?;
    while log.poll().map_err(|e| e.to_string())? < sequence {}
    let bytes = log.into_disk().into_bytes();
    let again = recover(MemoryQueue::from_bytes(bytes), Durability::Always)
        .map_err(|e| format!("does not open a second time: {e}"))?;
    if again.1.n != n + 1 { Err(format!("{} records after {}", again.1.n, n + 1)) } else { Ok(()) }
}

/// Judges the images that power loss could leave now.
fn judge_all(media: &Media, known: Known, random: &mut Random) -> Verdict {
    let unit = [8, 64, 512][random.below(3) as usize];
    let at_risk = media.at_risk(unit);
    if at_risk <= 4 {
        for mask in 0..1u32 << at_risk {
            let mut bit = 0;
            let image = media.after_power_loss(unit, || {
                bit += 1;
                mask >> (bit - 1) & 1 == 1
            });
            judge(image, known).map_err(|e| format!("{e} (unit {unit}, mask {mask:b})"))?;
        }
        return Ok(());
    }
    judge(media.after_power_loss(unit, || false), known)?;
    judge(media.after_power_loss(unit, || true), known)?;
    for draw in 0..DRAWS {
        let percent = [3, 50, 97][draw as usize % 3];
        let image = media.after_power_loss(unit, || random.chance(percent));
        judge(image, known).map_err(|e| format!("{e} (unit {unit}, draw {draw})"))?;
    }
    Ok(())
}

struct Run {
    seed: u64,
    durability: Durability,
    ignored: Option<Fence>,
    steps: u64,
    compacts: bool,
    aborts: bool,
}

impl Run {
    fn new(seed: u64) -> Self {
        let durability = if seed.is_multiple_of(3) { Durability::Deferred } else { Durability::Always };
        Self { seed, durability, ignored: None, steps: STEPS, compacts: true, aborts: false }
    }

    /// Lives until event `budget`: formats, lives once, is killed or closes, and lives again.
    fn live(&self, budget: usize) -> (Rc<RefCell<Media>>, Life, bool) {
        let block = if self.seed.is_multiple_of(2) { 512 } else { 4096 };
        let media = Media::new(vec![0; CAPACITY], block, self.seed);
        media.borrow_mut().budget = budget;
        media.borrow_mut().ignored = self.ignored;
        let mut random = Random::new(self.seed);
        let mut life = Life::new(Known::default());
        life.compacts = self.compacts;
        life.aborts = self.aborts;
        let done = (|| {
            life.format(&media, u128::from(self.seed))?;
            for _ in 0..3 {
                life.run(&media, self.durability, self.steps, &mut random)?;
                // The process dies between two lives; the machine goes on.
                let left = media.borrow().budget;
                media.borrow_mut().kill();
                media.borrow_mut().budget = left;
                life = Life::next(&life);
            }
            Some(())
        })();
        (media, life, done.is_some())
    }

    /// Tries every `stride`th event, and the first ones all, as the moment of power loss.
    fn enumerate(&self, stride: usize) -> Verdict {
        let mut random = Random::new(self.seed ^ 0xc0ffee);
        let mut budget = 0;
        loop {
            let (media, life, survived) = self.live(budget);
            judge_all(&media.borrow(), life.known, &mut random)
                .map_err(|e| format!("seed {}, event {budget}: {e}", self.seed))?;
            if survived {
                return Ok(());
            }
            // The first events format the area and open it: fences of their own.
            budget += if budget < 24 { 1 } else { stride };
        }
    }
}

#[test]
fn power_loss_at_every_event_loses_nothing_acknowledged() {
    let (mut snapshots, mut truncations) = (0, 0);
    for seed in 1..=6 {
        let life = Run::new(seed).live(usize::MAX).1;
        (snapshots, truncations) = (snapshots + life.snapshots, truncations + life.truncations);
    }
    assert!(snapshots > 3 && truncations > 3, "the runs hardly compact: {snapshots}, {truncations}");
    let budget = Budget { seeds: 8, seconds: 8 };
    seeds::run("crash power_loss_at_every", &[1, 2, 3, 4, 5, 6], budget, |seed| {
        Run::new(seed).enumerate(1).expect("the promise");
    });
}

/// A process is killed with writes in flight, its successor recovers and acts on what it found, and then the power fails.
#[test]
fn power_loss_after_a_kill_keeps_what_the_successor_saw() {
    let budget = Budget { seeds: 60, seconds: 5 };
    seeds::run("crash power_loss_after_a_kill", &[], budget, |seed| {
        kill_then_power_loss(None, seed..=seed).expect("the promise");
    });
}

fn kill_then_power_loss(ignored: Option<Fence>, seeds: std::ops::RangeInclusive<u64>) -> Verdict {
    for seed in seeds {
        let run = Run { ignored, ..Run::new(seed) };
        let (_, _, survived) = run.live(0);
        assert!(!survived);
        let total = run.live(usize::MAX).0.borrow().events;
        let mut random = Random::new(seed ^ 0xdead);
        for _ in 0..4 {
            let budget = 8 + random.below(total as u64) as usize;
            let extra = random.below(12) as usize;
            let (media, life, _) = run.live(budget);
            if !life.known.formatted {
                continue;
            }
            media.borrow_mut().kill();
            let now = media.borrow().events;
            media.borrow_mut().budget = now + extra;
            let mut next = Life::next(&life);
            next.run(&media, run.durability, 10, &mut random);
            judge_all(&media.borrow(), next.known, &mut random)
                .map_err(|e| format!("seed {seed}, kill at {budget}, then {extra}: {e}"))?;
        }
    }
    Ok(())
}

/// What a killed process had in flight may land after its successor has begun to write: it changes nothing.
#[test]
fn writes_that_land_late_change_nothing() {
    let (mut landed, mut records) = (0, 0);
    for seed in 1..=300 {
        // A snapshot would free segments, and a disk that writes to those after the lock of the area
        // was handed on cannot be defended against.
        let run = Run { steps: 40, compacts: false, ..Run::new(seed) };
        let total = run.live(usize::MAX).0.borrow().events;
        let mut random = Random::new(seed ^ 0x1a7e);
        let (media, life, _) = run.live(8 + random.below(total as u64) as usize);
        if !life.known.formatted {
            continue;
        }
        let lost = media.borrow_mut().kill();
        let mut next = Life::next(&life);
        next.run(&media, run.durability, 12, &mut random).expect("a disk that lives");
        next.known.closed = false;
        let image = media.borrow().after_power_loss(512, || true);
        for (offset, bytes) in lost {
            let mut late = image.clone();
            late[offset..offset + bytes.len()].copy_from_slice(&bytes);
            judge(late, next.known).unwrap_or_else(|e| panic!("seed {seed}, {offset}: {e}"));
            landed += 1;
            records += u32::from(offset >= 16384);
        }
    }
    // Records too: the segments that an opening skips are where they land.
    assert!(landed > 50 && records > 20, "only {landed} writes landed late, {records} of them records");
}

/// Formatting an area that holds a log leaves, wherever it is cut, the old log as it was, or no log, or the new one.
#[test]
fn a_format_cut_short_never_shows_an_older_state() {
    let run = Run::new(2);
    let (old, life, _) = run.live(usize::MAX);
    let image = old.borrow().after_power_loss(512, || true);
    let before = recover(MemoryQueue::from_bytes(image.clone()), Durability::Always)
        .map(|(_, found, _)| found.n)
        .expect("a whole log");
    assert!(life.snapshots > 0 && before > 0);
    let mut random = Random::new(77);
    for budget in 0..16 {
        let media = Media::new(image.clone(), 512, budget as u64);
        media.borrow_mut().budget = budget;
        let done = Life::new(Known::default()).format(&media, 99).is_some();
        for draw in 0..40 {
            let unit = [8, 64, 512][draw % 3];
            let image = media.borrow().after_power_loss(unit, || random.chance(50));
            match recover(MemoryQueue::from_bytes(image), Durability::Always) {
                Ok((_, Rebuilt { n, .. }, _)) => {
                    assert!(n == 0 || n == before && !done, "event {budget}: {n}");
                }
                Err(OpenError::NotFormatted | OpenError::Superblocks) => assert!(!done),
                Err(other) => panic!("event {budget}: {other}"),
            }
        }
    }
}

/// Whether any of the crash tests notices that a fence is ignored.
fn is_noticed(ignored: Option<Fence>) -> bool {
    let noticed = |verdict: Verdict| verdict.is_err();
    let catches = |f: &dyn Fn() -> Verdict| {
        // A broken promise may also show as a failed assertion in the driver.
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).map_or(true, noticed)
    };
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let found = catches(&|| kill_then_power_loss(ignored, 1..=60))
        || (1..=10).any(|seed| catches(&|| Run { ignored, ..Run::new(seed) }.enumerate(5)))
        // Lives long enough to write again to segments that a snapshot has freed.
        || (1..=6).any(|seed| catches(&|| Run { ignored, steps: 900, aborts: true, ..Run::new(seed) }.enumerate(61)));
    std::panic::set_hook(hook);
    found
}

/// The mutation gate: every fence of the log is there for a reason that some crash shows.
#[test]
fn ignoring_any_fence_is_noticed() {
    let mut fences: Vec<Fence> = Vec::new();
    for seed in 1..=20 {
        for &fence in &Run::new(seed).live(usize::MAX).0.borrow().seen {
            if !fences.contains(&fence) {
                fences.push(fence);
            }
        }
    }
    for expected in [
        Fence::LogWrite,
        Fence::Superblock(Phase::Format),
        Fence::Superblock(Phase::Open),
        Fence::Superblock(Phase::Run),
        Fence::Superblock(Phase::Truncate),
        Fence::Superblock(Phase::Close),
        Fence::Flush(Phase::Open),
        Fence::Flush(Phase::Run),
        Fence::Flush(Phase::Truncate),
        Fence::Flush(Phase::Close),
    ] {
        assert!(fences.contains(&expected), "{expected:?} never happened");
    }
    for fence in fences {
        assert!(is_noticed(Some(fence)), "nobody misses {fence:?}");
    }
    assert!(!is_noticed(None), "the gate cries wolf");
}
