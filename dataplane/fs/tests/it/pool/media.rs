//! Crash enumeration of changes of the media: at every boundary of every medium, what is left opens
//! with the media of before or of after, with all data; and the change can be made again.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use sietch_fs::pool::{Belonging, MediaError, Member, Pool, belonging, format};
use sietch_sim::Random;
use sietch_sim::seeds::{self, Budget};

use super::life::{Items, KIND_RUN, Known, Verdict, judge, live, options, value_run};
use super::world::{Device, Fence, Kind, MEDIA, Phase, World};

/// Blocks of the media at the end, and when the pool is formatted. The third one joins later.
const BLOCKS: [usize; MEDIA] = [640, 48, 40];
const FORMATTED: [usize; 2] = [512, 24];

fn world(seed: u64, ignored: Option<Fence>) -> World {
    World::of(BLOCKS, seed, ignored)
}

/// The media that the pool has, as a service finds them: those that the home's table means. The
/// others are apart, by their numbers.
type Found = (Vec<Member<Device>>, BTreeMap<usize, Member<Device>>);

fn members(world: &World) -> Result<Found, String> {
    let mut places = Vec::new();
    for at in 1..MEDIA {
        let mut all = world.members();
        let other = all.remove(at);
        let found = belonging(all.remove(0), other).map_err(|error| error.to_string())?;
        if let Belonging::Member(place) = found {
            places.push((place, at));
        }
    }
    places.sort_unstable();
    let mut all: BTreeMap<usize, _> = world.members().into_iter().enumerate().collect();
    let given = std::iter::once(0).chain(places.into_iter().map(|(_, at)| at));
    Ok((given.filter_map(|at| all.remove(&at)).collect(), all))
}

/// An open pool, and the media that do not belong to it.
type Open = (Pool<Device>, BTreeMap<usize, Member<Device>>);

fn open_any(world: &World) -> Result<Open, String> {
    world.set_phase(Phase::Open);
    let (members, others) = members(world)?;
    let mut pool = Pool::open(members).map_err(|error| error.to_string())?;
    pool.readers_at(u64::MAX);
    Ok((pool, others))
}

/// Opens; `None`: the power was lost.
fn open(world: &World) -> Option<Open> {
    match open_any(world) {
        Ok(open) => Some(open),
        Err(_) if world.is_off() => None,
        Err(error) => panic!("{error}"),
    }
}

/// The outcome of a change; `None`: the power was lost.
fn made<T>(world: &World, result: Result<T, MediaError>) -> Option<T> {
    match result {
        Ok(done) => Some(done),
        Err(_) if world.is_off() => None,
        Err(error) => panic!("{error}"),
    }
}

/// Takes all data off the medium in a slot; `None`: the power was lost.
fn empty(world: &World, pool: &mut Pool<Device>, slot: usize, known: &mut Known) -> Option<()> {
    world.set_phase(Phase::Commit);
    let mut items = known.committed.clone();
    let is_there = |value: &[u8], kind| kind == KIND_RUN && usize::from(value_run(value).0.medium) == slot;
    let there: Items =
        known.committed.clone().into_iter().filter(|(key, value)| is_there(value, key.kind)).collect();
    for (key, value) in there {
        items.remove(&key);
        let removed = pool.remove(key).and_then(|_| pool.free(value_run(&value).0));
        if removed.is_err() && world.is_off() {
            return None;
        }
        removed.expect("room to remove");
    }
    known.pending = Some(items.clone());
    let counters = sietch_fs::pool::Counters { inodes: items.len() as u64, ..pool.root().counters };
    match pool.commit(counters) {
        Ok(_) => (known.committed, known.pending) = (items, None),
        Err(_) if world.is_off() => return None,
        Err(fault) => panic!("{fault}"),
    }
    Some(())
}

/// A pool whose media grow, join, leave and join again, each in a process of its own. `None`: the
/// power was lost.
fn life(world: &World, seed: u64, known: &mut Known) -> Option<()> {
    let mut random = Random::new(seed ^ 0x9e0);
    world.set_phase(Phase::Format);
    let mut first: Vec<_> = world.members().into_iter().take(FORMATTED.len()).collect();
    for (member, blocks) in first.iter_mut().zip(FORMATTED) {
        member.disk.limit(blocks);
    }
    (known.formatted, known.pending) = (false, Some(Items::new()));
    if format(&mut first, &options(1)).is_err() {
        assert!(world.is_off(), "it must format");
        return None;
    }
    *known = Known { formatted: true, ..Known::default() };
    for change in 0..5 {
        let (mut pool, mut others) = open(world)?;
        live(world, &mut pool, 2, &mut random, known)?;
        if change == 3 {
            empty(world, &mut pool, 1, known)?;
        }
        world.set_phase(Phase::Media);
        match change {
            0 => drop(made(world, pool.grow_medium(0, BLOCKS[0] as u32))?),
            1 => drop(made(world, pool.grow_medium(1, BLOCKS[1] as u32))?),
            2 => assert_eq!(made(world, pool.add_medium(others.remove(&2).expect("a medium"), 11))?, 2),
            3 => drop(made(world, pool.remove_medium(1))?),
            _ => assert_eq!(made(world, pool.add_medium(others.remove(&1).expect("a medium"), 12))?, 1),
        }
        live(world, &mut pool, 1, &mut random, known)?;
    }
    Some(())
}

/// What a crash has left is judged, and then the changes are made that are missing.
fn judge_and_finish(world: &World, known: &mut Known) -> Verdict {
    if !known.formatted {
        return Ok(());
    }
    judge(members(world)?.0, known)?;
    let (mut pool, others) = open_any(world)?;
    for slot in [0, 1] {
        let (now, wanted) = (pool.blocks_of(slot), BLOCKS[slot] as u32);
        if now > 0 && now < wanted {
            pool.grow_medium(slot, wanted).map_err(|error| error.to_string())?;
        }
    }
    // One may have superblocks of an addition that was cut short, or of before it left.
    for (at, member) in others {
        pool.add_medium(member, 21 + at as u64).map_err(|error| error.to_string())?;
    }
    drop(pool);
    judge(members(world)?.0, known)
}

fn enumerate(seed: u64, ignored: Option<Fence>, stride: u64) -> Verdict {
    let whole = world(seed, ignored);
    life(&whole, seed, &mut Known::default()).expect("power");
    for medium in 0..MEDIA {
        let mut boundary = 1 + seed % stride;
        while boundary <= whole.boundaries(medium) + 1 {
            let (world, mut known) = (world(seed, ignored), Known::default());
            world.power_off_at(medium, boundary);
            life(&world, seed, &mut known);
            let mut random = Random::new(seed << 32 ^ boundary);
            world.crash(&mut random);
            seeds::explored(1);
            judge_and_finish(&world, &mut known)
                .map_err(|e| format!("seed {seed}, medium {medium}, boundary {boundary}: {e}"))?;
            boundary += stride;
        }
    }
    Ok(())
}

#[test]
fn power_loss_while_the_media_change_leaves_those_of_before_or_of_after() {
    let budget = Budget { seeds: 20, seconds: 5 };
    seeds::run("it pool::media::power_loss_while_the_media", &[1, 2, 3], budget, |seed| {
        // Memory has a boundary for each line that is stored.
        let stride = if seed.is_multiple_of(2) { 53 } else { 1 };
        enumerate(seed, None, stride).expect("the promise");
    });
}

#[test]
fn ignoring_any_fence_of_a_change_of_the_media_is_noticed() {
    let fence = |is_home, kind| Fence { phase: Phase::Media, is_home, kind };
    let listed =
        BTreeSet::from([fence(true, Kind::Flush), fence(true, Kind::Write), fence(false, Kind::Write)]);
    let mut met = BTreeSet::new();
    for seed in [1, 3] {
        let world = world(seed, None);
        life(&world, seed, &mut Known::default()).expect("power");
        met.extend(world.seen().into_iter().filter(|fence| fence.phase == Phase::Media));
    }
    assert_eq!(met, listed, "fences that were met, and fences of the table");
    let is_noticed = |ignored| {
        let catches = |seed| {
            catch_unwind(AssertUnwindSafe(|| enumerate(seed, ignored, 1)))
                .map_or(true, |verdict| verdict.is_err())
        };
        [1, 3, 5, 7].into_iter().any(catches)
    };
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let unnoticed: Vec<&Fence> = listed.iter().filter(|fence| !is_noticed(Some(**fence))).collect();
    let wolf = is_noticed(None);
    std::panic::set_hook(hook);
    assert!(!wolf, "the gate cries wolf");
    assert!(unnoticed.is_empty(), "no test misses {unnoticed:?}");
}
