//! Crash enumeration: every boundary of every medium is a crash point. What is left then is the
//! last committed state or the one being committed, never a mix, with all data and no block lost.
//!
//! 1. A life formats, opens, changes and commits, is killed, and continues in another process.
//! 2. Crashes are nested: the power fails again while what the first crash has left is opened and
//!    changed.
//! 3. The gate ignores each fence, one after the other, and some crash must show it.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use sietch_fs::pool::Pool;
use sietch_sim::Random;
use sietch_sim::seeds::{self, Budget};

use super::life::{Known, Verdict, format_world, judge, live, open_world};
use super::world::{Fence, Kind, MEDIA, Phase, World};

/// A life: two formats, and three processes of which two are killed. `None`: the power was lost.
fn whole_life(world: &World, seed: u64, known: &mut Known) -> Option<()> {
    let mut random = Random::new(seed ^ 0x11fe);
    for identity in 1..=2 {
        format_world(world, identity, known)?;
        let mut pool = open_world(world)?;
        live(world, &mut pool, 2, &mut random, known)?;
    }
    for _ in 0..2 {
        // Before the next process opens, some writes in flight reach the media.
        world.kill();
        let mut pool = open_world(world)?;
        settle(&mut pool, known);
        live(world, &mut pool, 3, &mut random, known)?;
    }
    Some(())
}

/// After a kill: the state that is there counts.
fn settle(pool: &mut Pool<super::world::Device>, known: &mut Known) {
    let items = super::life::read_all(pool).expect("power");
    if known.pending.as_ref() == Some(&items) {
        known.committed = items;
    }
    known.pending = None;
}

/// Judges a crash at this boundary of this medium, drawn several times.
fn crash_at(seed: u64, ignored: Option<Fence>, medium: usize, boundary: u64, draws: u64) -> Verdict {
    for draw in 0..draws {
        let world = World::new(seed, ignored);
        world.power_off_at(medium, boundary);
        let mut known = Known::default();
        let survived = whole_life(&world, seed, &mut known).is_some();
        let mut random = Random::new(seed << 32 ^ boundary << 8 ^ draw);
        world.crash(&mut random);
        seeds::explored(1);
        judge(world.members(), &mut known)
            .map_err(|e| format!("seed {seed}, medium {medium}, boundary {boundary}, draw {draw}: {e}"))?;
        if survived {
            break;
        }
    }
    Ok(())
}

fn enumerate(seed: u64, ignored: Option<Fence>, stride: u64, draws: u64) -> Verdict {
    let world = World::new(seed, ignored);
    whole_life(&world, seed, &mut Known::default()).expect("power");
    for medium in 0..MEDIA {
        let mut boundary = 1 + seed % stride;
        while boundary <= world.boundaries(medium) + 1 {
            crash_at(seed, ignored, medium, boundary, draws)?;
            boundary += stride;
        }
    }
    Ok(())
}

#[test]
fn power_loss_at_every_boundary_shows_a_committed_state() {
    let budget = Budget { seeds: 20, seconds: 5 };
    seeds::run("it pool::crash::power_loss_at_every", &[1, 3], budget, |seed| {
        // Memory has a boundary for each line that is stored.
        let stride = if seed.is_multiple_of(2) { 41 } else { 1 };
        enumerate(seed, None, stride, 2).expect("the promise");
    });
}

/// The power fails again and again in what follows a power loss or the death of the process.
fn nested(seed: u64, ignored: Option<Fence>) -> Verdict {
    let reference = World::new(seed, ignored);
    whole_life(&reference, seed, &mut Known::default()).expect("power");
    let mut random = Random::new(seed ^ 0x2e57);
    for round in 0..12 {
        let world = World::new(seed, ignored);
        let medium = random.index(MEDIA);
        let dies = random.chance(500);
        if dies {
            world.die_at(random.between(1, reference.steps()));
        } else {
            world.power_off_at(medium, random.between(1, reference.boundaries(medium)));
        }
        let mut known = Known::default();
        whole_life(&world, seed, &mut known);
        for depth in 0..4 {
            if dies && depth == 0 {
                world.kill();
            } else {
                world.crash(&mut random);
            }
            if !known.formatted {
                break;
            }
            let medium = random.index(MEDIA);
            world.power_off_at(medium, world.boundaries(medium) + random.between(1, 60));
            let before = known.clone();
            if let Some(mut pool) = open_world(&world) {
                let Ok(items) = super::life::read_all(&mut pool) else { continue };
                if items != before.committed && before.pending.as_ref() != Some(&items) {
                    return Err(format!("seed {seed}, round {round}, depth {depth}: a mix"));
                }
                known = Known { formatted: true, committed: items, pending: None };
                live(&world, &mut pool, 3, &mut random, &mut known);
            }
        }
        world.crash(&mut random);
        seeds::explored(1);
        judge(world.members(), &mut known).map_err(|e| format!("seed {seed}, round {round}: {e}"))?;
    }
    Ok(())
}

#[test]
fn power_loss_after_power_loss_shows_a_committed_state() {
    let budget = Budget { seeds: 200, seconds: 5 };
    seeds::run("it pool::crash::power_loss_after", &[1, 2], budget, |seed| {
        nested(seed, None).expect("the promise");
    });
}

/// The process dies at every step. The next one acts on what it found, and then the power fails.
fn killed(seed: u64, ignored: Option<Fence>, stride: u64) -> Verdict {
    let reference = World::new(seed, ignored);
    whole_life(&reference, seed, &mut Known::default()).expect("power");
    let mut random = Random::new(seed ^ 0xdead);
    let mut step = 1 + seed % stride;
    while step <= reference.steps() {
        let (world, mut known) = (World::new(seed, ignored), Known::default());
        world.die_at(step);
        whole_life(&world, seed, &mut known);
        world.kill();
        if known.formatted {
            let mut pool = open_world(&world).expect("power");
            let items = super::life::read_all(&mut pool).expect("power");
            if items != known.committed && known.pending.as_ref() != Some(&items) {
                return Err(format!("seed {seed}, step {step}: a mix"));
            }
            known = Known { formatted: true, committed: items, pending: None };
            // Soon: it has only read, or it has not flushed yet.
            let medium = if random.chance(700) { 0 } else { random.index(MEDIA) };
            world.power_off_at(medium, world.boundaries(medium) + random.between(1, 10));
            live(&world, &mut pool, random.below(2), &mut random, &mut known);
        }
        world.crash(&mut random);
        seeds::explored(1);
        judge(world.members(), &mut known).map_err(|e| format!("seed {seed}, step {step}: {e}"))?;
        step += stride;
    }
    Ok(())
}

#[test]
fn power_loss_after_a_death_keeps_what_the_next_process_saw() {
    let budget = Budget { seeds: 20, seconds: 6 };
    seeds::run("it pool::crash::power_loss_after_a_death", &[1, 3, 5], budget, |seed| {
        killed(seed, None, 1).expect("the promise");
    });
}

/// A damaged copy of the superblock is written anew, durably, when the pool is opened.
fn repaired_copy(ignored: Option<Fence>) -> Verdict {
    let (world, mut known) = (World::new(3, ignored), Known::default());
    format_world(&world, 1, &mut known).expect("power");
    let mut pool = open_world(&world).expect("power");
    live(&world, &mut pool, 2, &mut Random::new(1), &mut known).expect("power");
    let generation = pool.root().generation;
    // An ignored fence may have left nothing to rot.
    let byte = |copy: u64| sietch_disk::superblock_copies::offset(generation, copy) as usize + 20;
    world.rot(0, byte(0));
    open_world(&world).expect("power");
    world.disk(0).expect("a disk").crash(sietch_sim::Crash::Nothing);
    world.rot(0, byte(1));
    judge(world.members(), &mut known)
}

#[test]
fn a_damaged_superblock_is_repaired_when_the_pool_is_opened() {
    repaired_copy(None).expect("the promise");
}

/// A crash test, without or with an ignored fence.
type CrashTest = Box<dyn Fn(Option<Fence>) -> Verdict>;

/// The crash tests that may notice an ignored fence.
fn crash_tests() -> Vec<CrashTest> {
    let mut tests: Vec<CrashTest> = vec![Box::new(repaired_copy)];
    tests.extend((1..=10).map(|seed| Box::new(move |ignored| nested(seed, ignored)) as CrashTest));
    tests.extend(
        [1, 3, 5, 7].map(|seed| Box::new(move |ignored| enumerate(seed, ignored, 3, 3)) as CrashTest),
    );
    tests.extend(
        (1..=31).step_by(2).map(|seed| Box::new(move |ignored| killed(seed, ignored, 1)) as CrashTest),
    );
    tests
}

/// Whether a crash test fails. A broken promise may also show as a failed assertion in the life.
fn fails(test: &CrashTest, ignored: Option<Fence>) -> bool {
    catch_unwind(AssertUnwindSafe(|| test(ignored))).map_or(true, |verdict| verdict.is_err())
}

#[test]
fn ignoring_any_fence_is_noticed() {
    let fence = |phase, is_home, kind| Fence { phase, is_home, kind };
    let listed = BTreeSet::from([
        fence(Phase::Format, true, Kind::Erase),
        fence(Phase::Format, true, Kind::Flush),
        fence(Phase::Format, true, Kind::Write),
        fence(Phase::Format, false, Kind::Write),
        fence(Phase::Open, true, Kind::Flush),
        fence(Phase::Open, true, Kind::Write),
        fence(Phase::Commit, true, Kind::Flush),
        fence(Phase::Commit, true, Kind::Write),
        fence(Phase::Commit, false, Kind::Flush),
    ]);
    let mut met = BTreeSet::from([fence(Phase::Open, true, Kind::Write)]);
    for seed in 1..=20 {
        let world = World::new(seed, None);
        whole_life(&world, seed, &mut Known::default()).expect("power");
        met.extend(world.seen());
    }
    assert_eq!(met, listed, "fences that were met, and fences of the table");
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let tests = crash_tests();
    // By the first test that fails. It must not fail without that fault.
    let noticing = |fence: &Fence| tests.iter().position(|test| fails(test, Some(*fence)));
    let noticed: Vec<_> = listed.iter().map(|fence| (fence, noticing(fence))).collect();
    let mut used: BTreeSet<usize> = noticed.iter().filter_map(|(_, test)| *test).collect();
    if seeds::is_soak() {
        used.extend(0..tests.len());
    }
    let wolf = used.iter().any(|test| fails(&tests[*test], None));
    std::panic::set_hook(hook);
    assert!(!wolf, "the gate cries wolf");
    let unnoticed: Vec<_> = noticed.iter().filter(|(_, test)| test.is_none()).collect();
    assert!(unnoticed.is_empty(), "no test misses {unnoticed:?}");
}
