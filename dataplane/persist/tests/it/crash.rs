//! Crash enumeration: every write, completion and flush boundary is a crash point. Every subset of
//! the sectors at risk is a possible medium (all of them when they are few, else drawn by seed).
//! After each crash the log holds everything acknowledged, then a prefix of the rest, in order, and
//! nothing else.
//!
//! 1. Appends, truncations, snapshots, openings and closings follow each other by seed, so a crash
//!    falls into each of them.
//! 2. Crashes are nested: the power fails again at every event of the recovery from a crash, and
//!    sometimes once more in that of the second.
//! 3. The gate (`gate`) takes each fence away, one after the other, and some crash must show it.

mod driver;
mod gate;
mod suite;

use std::cell::RefCell;
use std::rc::Rc;

use sietch_disk::MemoryQueue;
use sietch_persist::{Durability, OpenError, check};
use sietch_sim::seeds::{self, Budget};

use crate::disk::{Fence, Media, Random};
use driver::{CAPACITY, Known, Life, Rebuilt, payload, recover};

/// Images drawn per crash point when there are too many to try all.
const DRAWS: u64 = 6;
/// Sectors at risk up to which every subset of them is tried: in CI, and in a long run.
const EXHAUSTIVE: [usize; 2] = [4, 10];
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
    if checked.proven < known.proven {
        return Err(format!("proves {} records with {known:?}", checked.proven));
    }
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

/// Judges the images that power loss could leave now: all of them where no more than `few` sectors
/// are at risk.
fn judge_all(media: &Media, known: Known, few: usize, random: &mut Random) -> Verdict {
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
            judge(image, known).map_err(|e| format!("{e} (unit {unit}, mask {mask:b})"))?;
        }
        return Ok(());
    }
    seeds::explored(2 + DRAWS);
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

    fn media(&self, image: Vec<u8>, budget: usize) -> Rc<RefCell<Media>> {
        let (block, physical) = [(512, 512), (4096, 4096), (512, 4096), (4096, 4096)][self.seed as usize % 4];
        let media = Media::new(image, block, self.seed);
        media.borrow_mut().physical = physical;
        media.borrow_mut().budget = budget;
        media.borrow_mut().ignored = self.ignored;
        media
    }

    /// Lives until event `budget`: formats, lives once, is killed or closes, and lives again.
    fn live(&self, budget: usize) -> (Rc<RefCell<Media>>, Life, bool) {
        let media = self.media(vec![0; CAPACITY], budget);
        let mut random = Random::new(self.seed);
        let mut life = Life::new(Known::default());
        life.compacts = self.compacts;
        life.aborts = self.aborts;
        // A truncation writes superblocks too: without them each lasts until its segments are
        // written again.
        life.truncates = !self.aborts;
        life.proofs = !self.aborts;
        let done = (|| {
            life.format(&media, u128::from(self.seed))?;
            for _ in 0..3 {
                life.run(&media, self.durability, self.steps, &mut random)?;
                // The process dies between two lives; the machine continues.
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
            judge_all(&media.borrow(), life.known, EXHAUSTIVE[usize::from(seeds::is_soak())], &mut random)
                .map_err(|e| format!("seed {}, event {budget}: {e}", self.seed))?;
            if survived {
                return Ok(());
            }
            // The first events format the area and open it: fences of their own.
            budget += if budget < 24 { 1 } else { stride };
        }
    }

    /// The power fails at every event of the recovery from `image` and of a few steps behind it;
    /// `depth` says how often in a row.
    fn nest(&self, image: &[u8], known: Known, depth: u64, random: &mut Random) -> Verdict {
        for budget in 0.. {
            let media = self.media(image.to_vec(), budget);
            let mut life = Life::new(known);
            let survived = life.run(&media, self.durability, 6, &mut random.clone()).is_some();
            let media = media.borrow();
            judge_all(&media, life.known, EXHAUSTIVE[0], random)
                .map_err(|e| format!("{e} (depth {depth}, event {budget})"))?;
            if depth > 1 && random.chance(12) {
                let again = media.after_power_loss(64, || random.chance(50));
                self.nest(&again, life.known, depth - 1, random)?;
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
            let (media, life, _) = self.live(budget);
            if !life.known.formatted {
                continue;
            }
            let unit = [8, 64, 512][random.below(3) as usize];
            let image = media.borrow().after_power_loss(unit, || random.chance(50));
            self.nest(&image, life.known, 3, &mut random)
                .map_err(|e| format!("seed {}, event {budget}: {e}", self.seed))?;
        }
        Ok(())
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
    let budget = Budget { seeds: 8, seconds: 6 };
    seeds::run("it crash::power_loss_at_every", &[1, 2, 3, 4, 5, 6], budget, |seed| {
        Run::new(seed).enumerate(1).expect("the promise");
    });
}

/// A process is killed with writes in flight, its successor recovers and acts on what it found, and
/// then the power fails.
#[test]
fn power_loss_after_a_kill_keeps_the_records_that_the_successor_saw() {
    let budget = Budget { seeds: 60, seconds: 4 };
    seeds::run("it crash::power_loss_after_a_kill", &[], budget, |seed| {
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
            judge_all(&media.borrow(), next.known, EXHAUSTIVE[0], &mut random)
                .map_err(|e| format!("seed {seed}, kill at {budget}, then {extra}: {e}"))?;
        }
    }
    Ok(())
}

/// What a killed process had in flight may land after its successor has begun to write: it changes
/// nothing.
#[test]
fn writes_that_land_late_change_nothing() {
    let (mut landed, mut records) = (0, 0);
    for seed in 1..=300 {
        // A snapshot would free segments, and a disk that writes to those after the lock of the
        // area was passed on cannot be defended against.
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

/// Whether the superblock before the newest names what is not there any more: it must never be
/// shown.
fn has_outgrown_its_past(image: &[u8]) -> bool {
    let generation = |copy: usize| &image[copy * 4096 + 16..][..8];
    let read = |copy| u64::from_le_bytes(generation(copy).try_into().expect("eight bytes"));
    let newest = if read(0) > read(2) { 0 } else { 8192 };
    let mut past = image.to_vec();
    past[newest..newest + 8192].fill(0);
    recover(MemoryQueue::from_bytes(past), Durability::Always).is_err()
}

/// Formatting an area that holds a log leaves, wherever it is cut, the old log as it was, or no
/// log, or the new one.
fn format_cut_short(ignored: Option<Fence>) -> Verdict {
    let mut formatted = 0;
    for seed in 10..=26 {
        // Long enough that segments of older superblocks are written again.
        let (old, _, _) = Run { steps: 700, aborts: true, ..Run::new(seed) }.live(usize::MAX);
        let image = old.borrow().after_power_loss(512, || true);
        if !has_outgrown_its_past(&image) {
            continue;
        }
        formatted += 1;
        let (_, Rebuilt { n: before, .. }, _) =
            recover(MemoryQueue::from_bytes(image.clone()), Durability::Always).expect("a whole log");
        let mut random = Random::new(77);
        for (budget, draw) in (0..16).flat_map(|budget| (0..15).map(move |draw| (budget, draw))) {
            let media = Run { ignored, ..Run::new(seed) }.media(image.clone(), budget);
            let done = Life::new(Known::default()).format(&media, 99).is_some();
            let unit = [8, 64, 4096][draw % 3];
            let image = media.borrow().after_power_loss(unit, || random.chance(50));
            let fits = match recover(MemoryQueue::from_bytes(image), Durability::Always) {
                Ok((_, Rebuilt { n, .. }, _)) => n == 0 || n == before && !done,
                Err(OpenError::NotFormatted | OpenError::Superblocks) => !done,
                Err(other) => return Err(format!("seed {seed}, event {budget} of a format: {other}")),
            };
            if !fits {
                return Err(format!("seed {seed}, event {budget} of a format shows another state"));
            }
        }
    }
    assert!(formatted > 2, "only {formatted} logs worth formatting");
    Ok(())
}

#[test]
fn a_format_cut_short_never_shows_an_older_state() {
    format_cut_short(None).expect("the promise");
}

/// The power fails again and again while what it left is being recovered.
#[test]
fn power_loss_in_the_recovery_from_a_power_loss() {
    let budget = Budget { seeds: 20, seconds: 4 };
    seeds::run("it crash::power_loss_in_the_recovery", &[1, 2, 3, 4], budget, |seed| {
        Run::new(seed).nested().expect("the promise");
    });
}
