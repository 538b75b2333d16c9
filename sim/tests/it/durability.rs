//! The store keeps what it has acknowledged, whatever happens to disk and process.
//!
//! 1. The power fails at *every* boundary of a short run (each submission and each completion of a
//!    write or flush). Each time, the disk keeps several different subsets of the data that was not
//!    durable.
//! 2. Longer runs lose power and processes at random, in recovery too.
//! 3. After each failure, the state is that of some moment no earlier than the last acknowledgement
//!    (`store`).
//! 4. A disk that fails, fills or rots leads to a clear error, never to silence.
//! 5. The same tests detect a disk whose durable writes are volatile. So they would detect a store
//!    that does not request durability.

mod store;

use std::sync::atomic::{AtomicU64, Ordering};

use sietch_kv::settings::Durability;
use sietch_sim::disk::{Fault, Options};
use sietch_sim::seeds::{self, Budget};
use sietch_sim::{Crash, Media, Random};
use store::{Plan, Verdict, World};

/// A small area, so that compaction is frequent.
const SMALL: usize = 640 << 10;

/// A medium of 512-byte requests. Depending on the seed, its physical blocks have 4096 bytes.
fn media(capacity: usize, tear: usize, random: &mut Random) -> Media {
    let physical = *random.pick(&[512, 4096]);
    Media::new(Options { tear, physical, ..Options::new(capacity) }, random.fork())
}

/// Runs `iterations` iterations on a medium that may lose power at boundary `off`; returns the
/// world as it was then.
fn short_run(
    seed: u64,
    plan: &Plan,
    tear: usize,
    iterations: u64,
    off: Option<u64>,
) -> Result<World, String> {
    let mut random = Random::new(seed);
    let media = media(SMALL, tear, &mut random);
    let mut world = World::new(media, plan.clone(), random)?;
    if let Some(boundary) = off {
        world.media.power_off_at(boundary);
    }
    for iteration in 0..iterations {
        if iteration == iterations / 2 {
            // A compaction in the middle, at any size.
            world.iterate_with(vec![(99, b"BGREWRITEAOF\r\n".to_vec())])?;
        }
        world.iterate(true)?;
        if world.media.is_off() {
            return Ok(world);
        }
    }
    world.settle()?;
    Ok(world)
}

/// The power fails at each boundary of a short run.
fn every_boundary(seed: u64, plan: &Plan, tear: usize, iterations: u64) -> Verdict {
    let whole = short_run(seed, plan, tear, iterations, None)?;
    // Formatting and opening are boundaries too, but nothing is acknowledged in them.
    let first = {
        let mut random = Random::new(seed);
        let media = media(SMALL, tear, &mut random);
        World::new(media, plan.clone(), random)?.media.boundaries()
    };
    let last = whole.media.boundaries();
    if last < first + iterations / 2 {
        return Err(format!("only {} boundaries: this run tests nothing", last - first));
    }
    for boundary in first + 1..=last {
        let mut world = short_run(seed, plan, tear, iterations, Some(boundary))?;
        let silent = world.media.clone();
        for fate in 0..5 {
            let random = Random::new(seed ^ boundary << 8 ^ fate << 40);
            world.media = silent.fork(random.clone());
            let how = match fate {
                0 => Crash::Nothing,
                1 => Crash::Everything,
                _ => Crash::Random(random),
            };
            let verdict = world.check_crash(how, fate == 4);
            seeds::explored(1);
            verdict.map_err(|broken| format!("boundary {boundary}, fate {fate}: {broken}"))?;
        }
    }
    Ok(())
}

#[test]
fn power_may_fail_at_every_boundary() {
    seeds::run("it durability::power_may_fail", &[1, 2], Budget { seeds: 250, seconds: 12 }, |seed| {
        let tear = *Random::new(seed).pick(&[512, 64, 8]);
        every_boundary(seed, &Plan::default(), tear, 24).unwrap_or_else(|broken| panic!("{broken}"));
    });
}

#[test]
fn a_disk_that_breaks_its_word_is_noticed() {
    let plan = Plan { weak: true, ..Plan::default() };
    let noticed = (1..4).filter(|seed| every_boundary(*seed, &plan, 512, 24).is_err()).count();
    assert_eq!(noticed, 3, "durable writes were volatile, and no test noticed");
}

/// A long run with power losses and process deaths at random moments.
fn long_life(seed: u64) -> Result<u64, String> {
    let mut random = Random::new(seed);
    let tear = *random.pick(&[512, 512, 64, 8]);
    let durability = *random.pick(&[Durability::Always, Durability::Always, Durability::Interval]);
    let plan = Plan {
        clients: random.between(1, 8),
        pipeline: *random.pick(&[1, 4, 16]),
        value: *random.pick(&[20, 200, 400]),
        durability,
        weak: false,
    };
    let capacity = if plan.value > 200 { 2 << 20 } else { SMALL };
    let media = media(capacity, tear, &mut random);
    let mut world = World::new(media, plan, random)?;
    for _ in 0..world.random.between(1, 8) {
        for _ in 0..world.random.below(60) {
            world.iterate(true)?;
        }
        seeds::explored(1);
        match world.random.below(5) {
            0 => {
                let later = world.media.boundaries() + world.random.between(1, 40);
                world.media.power_off_at(later);
                for _ in 0..200 {
                    if world.media.is_off() {
                        break;
                    }
                    world.iterate(true)?;
                }
                let fate = Crash::Random(world.random.fork());
                world.crash(fate)?;
            }
            1 => world.kill()?,
            2 => {
                // Twice in a row, the second in the middle of recovery.
                let fate = Crash::Random(world.random.fork());
                world.media.power_off();
                world.media.crash(fate);
                let soon = world.media.boundaries() + world.random.between(1, 6);
                world.media.power_off_at(soon);
                world.restart()?;
            }
            3 => {
                world.settle()?;
                let fate = Crash::Nothing;
                world.crash(fate)?;
            }
            _ => {
                world.kill()?;
                world.kill()?;
                let fate = Crash::Nothing;
                world.crash(fate)?;
            }
        }
    }
    world.settle()?;
    Ok(world.trace)
}

#[test]
fn a_long_life_of_crashes_loses_nothing() {
    let regressions = [258_435_983_249, 258_438_190_520, 258_441_618_626, 274_549_327_448, 283_957_811_015];
    seeds::run("it durability::a_long_life", &regressions, Budget { seeds: 1500, seconds: 14 }, |seed| {
        long_life(seed).unwrap_or_else(|broken| panic!("{broken}"));
    });
}

#[test]
fn a_seed_is_a_history() {
    for seed in 1..4 {
        assert_eq!(long_life(seed), long_life(seed), "seed {seed} had two histories");
    }
}

fn started(seed: u64, capacity: usize, iterations: u64) -> Result<World, String> {
    let mut random = Random::new(seed);
    let media = media(capacity, 512, &mut random);
    let mut world = World::new(media, Plan::default(), random)?;
    for _ in 0..iterations {
        world.iterate(true)?;
    }
    Ok(world)
}

/// A write fails: nothing is acknowledged any more, writes are refused with the reason, and reads
/// still work. Everything that was acknowledged before is there after a restart.
fn failing_disk(seed: u64) -> Verdict {
    const ERRORS: [(i32, &str); 2] = [(5, "Input/output error"), (28, "No space left on device")];
    let mut world = started(seed, SMALL, 20)?;
    let (errno, words) = *world.random.pick(&ERRORS);
    let nth = world.random.between(1, 6);
    world.media.inject(nth, Fault::Error(errno));
    for _ in 0..300 {
        if world.has_failed() {
            break;
        }
        world.iterate(true)?;
    }
    if !world.has_failed() {
        return Err("the disk failed, and the log did not notice".into());
    }
    if world.released() > 0 {
        return Err("something was acknowledged after the failure".into());
    }
    for request in [&[&b"SET"[..], b"a", b"b"][..], &[b"DEL", b"s0"], &[b"RPUSH", b"l0", b"x"]] {
        let reply = String::from_utf8_lossy(&world.ask(request).unwrap_or_default()).into_owned();
        if !reply.starts_with("-MISCONF") || !reply.contains(words) {
            return Err(format!("after the failure a write was answered {reply:?}"));
        }
    }
    if world.ask(&[b"EXISTS", b"s0"]).is_none() {
        return Err("after the failure a read was not answered".into());
    }
    let fate = Crash::Random(world.random.fork());
    world.crash(fate)
}

#[test]
fn a_failing_disk_is_answered_clearly() {
    seeds::run("it durability::a_failing_disk", &[], Budget { seeds: 200, seconds: 4 }, |seed| {
        failing_disk(seed).unwrap_or_else(|broken| panic!("{broken}"));
    });
}

/// A full area refuses commands that need room, with the reason. Deleting makes room; nothing
/// acknowledged is lost.
fn full_area(seed: u64) -> Verdict {
    // Requests of 512 bytes: each deletion takes one, and the reserve of such a small area has room
    // for only a few larger ones.
    let mut random = Random::new(seed);
    let small = Media::new(Options::new(SMALL), random.fork());
    let mut world = World::new(small, Plan::default(), random)?;
    let mut kept = Vec::new();
    let value = vec![b'v'; 3000];
    let refusal = loop {
        let name = format!("k{}", kept.len()).into_bytes();
        let reply = world.ask(&[b"SET", &name, &value]).ok_or("a SET was not answered")?;
        if reply != b"+OK\r\n" {
            break String::from_utf8_lossy(&reply).into_owned();
        }
        kept.push(name);
        if kept.len() > 1000 {
            return Err("the area never fills".into());
        }
    };
    if !refusal.starts_with("-MISCONF") || !refusal.contains("full") {
        return Err(format!("a full area was answered {refusal:?}"));
    }
    let check = |world: &mut World, name: &[u8], length: usize| {
        let reply = world.ask(&[b"STRLEN", name]).unwrap_or_default();
        let right = reply == format!(":{length}\r\n").into_bytes();
        if right { Ok(()) } else { Err(format!("{:?} has {:?}", name, String::from_utf8_lossy(&reply))) }
    };
    for name in &kept {
        check(&mut world, name, value.len())?;
    }
    world.media.crash(Crash::Nothing);
    world.restart_unchecked()?;
    for name in &kept {
        check(&mut world, name, value.len())?;
    }
    let deleted = kept.len() / 2;
    for name in &kept[..deleted] {
        let reply = world.ask(&[b"DEL", name]).unwrap_or_default();
        if reply != b":1\r\n" {
            return Err(format!("DEL in a full area was answered {:?}", String::from_utf8_lossy(&reply)));
        }
    }
    let again = (0..40).any(|_| {
        world.now += 1_000_000_000;
        world.ask(&[b"SET", b"again", b"v"]).is_some_and(|reply| reply == b"+OK\r\n")
    });
    if !again {
        return Err("half was deleted, and writes are still refused".into());
    }
    world.media.crash(Crash::Nothing);
    world.restart_unchecked()?;
    for (place, name) in kept.iter().enumerate() {
        check(&mut world, name, if place < deleted { 0 } else { value.len() })?;
    }
    check(&mut world, b"again", 1)
}

#[test]
fn a_full_area_refuses_and_recovers() {
    for seed in 0..3 {
        full_area(seed).unwrap_or_else(|broken| panic!("{broken}"));
    }
}

/// One bit of a cleanly closed store is wrong: it opens with all its data, or refuses and reports
/// the location.
fn rotten_bit(seed: u64) -> Result<bool, String> {
    let mut world = started(seed, SMALL, 25)?;
    world.settle()?;
    let (byte, bit) = (world.random.index(SMALL), world.random.below(8) as u8);
    // Mostly where the data are.
    let byte = if world.random.chance(700) { byte % (SMALL / 8) } else { byte };
    match world.reopen(|media| media.rot(byte, bit)) {
        (_, Err(refusal)) if refusal.contains("`kv`") && refusal.contains("offset") => Ok(true),
        (_, Err(refusal)) => Err(format!("an unclear refusal: {refusal}")),
        (last, Ok(found)) if found == last => Ok(false),
        (last, Ok(found)) => Err(format!("byte {byte} rotted silently: {:?}", found.difference(&last))),
    }
}

#[test]
fn rot_is_never_silent() {
    let refused = AtomicU64::new(0);
    seeds::run("it durability::rot_is_never", &[], Budget { seeds: 600, seconds: 5 }, |seed| {
        let hit = u64::from(rotten_bit(seed).unwrap_or_else(|broken| panic!("{broken}")));
        refused.fetch_add(hit, Ordering::Relaxed);
    });
    assert!(
        refused.into_inner() > 0 || std::env::var_os("SIETCH_SIM_SEED").is_some(),
        "no bit ever hit anything"
    );
}
