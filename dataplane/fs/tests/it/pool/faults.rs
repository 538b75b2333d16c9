//! Media that fail, lie or rot: what they do is reported with its place, and never gives a wrong
//! item.

use sietch_disk::BLOCK;
use sietch_fs::pool::{Counters, OpenError, Pool, Reader, check};
use sietch_fs::{Fault, Key};
use sietch_sim::Random;
use sietch_sim::disk;
use sietch_sim::seeds::{self, Budget};

use super::life::{
    Items, KIND_RUN, Known, filled, format_world, judge, live, open_world, options, read_all, run_value,
    value_run,
};
use super::world::{Device, HOME, MEDIA, Phase, World};

const EIO: i32 = 5;

/// A world with a pool in it. The seed must be odd: a disk is the home.
fn populated(seed: u64) -> (World, Known) {
    let (world, mut known) = (World::new(seed, None), Known::default());
    format_world(&world, 1, &mut known).expect("power");
    let mut pool = open_world(&world).expect("power");
    live(&world, &mut pool, 12, &mut Random::new(seed), &mut known).expect("power");
    (world, known)
}

/// Changes a few items and commits, and says what the pool should hold then.
fn change_and_commit(pool: &mut Pool<Device>, items: &mut Items, random: &mut Random) -> Result<(), Fault> {
    for _ in 0..12 {
        let key = Key::new(random.between(1, 4), 1, random.below(60));
        let value = vec![random.word() as u8; random.between(0, 900) as usize];
        pool.insert(key, &value)?;
        items.insert(key, value);
    }
    // Data are written too: to the slowest medium.
    let run = pool.allocate(sietch_fs::pool::Class::Hdd, 2)?;
    let number = pool.root().generation;
    pool.write(run, filled(run.blocks, number))?;
    let key = Key::new(5, KIND_RUN, number);
    pool.insert(key, &run_value(run, number))?;
    items.insert(key, run_value(run, number));
    pool.commit(Counters { inodes: items.len() as u64, next_inode: random.word() }).map(drop)
}

#[test]
fn a_write_that_fails_is_named_and_stops_the_pool() {
    let mut failed = 0;
    for seed in [1, 3, 5, 7] {
        for medium in [0, 2] {
            for nth in 1..=6 {
                let (world, mut known) = populated(seed);
                let mut pool = open_world(&world).expect("power");
                world.set_phase(Phase::Commit);
                world.disk(medium).expect("a disk").inject(nth, disk::Fault::Error(EIO));
                let mut items = known.committed.clone();
                let Err(fault) = change_and_commit(&mut pool, &mut items, &mut Random::new(nth)) else {
                    continue;
                };
                failed += 1;
                let text = fault.to_string();
                assert!(text.starts_with(&format!("medium {medium}: write ")), "{text}");
                let again = pool.insert(Key::new(1, 1, 1), b"").expect_err("stopped");
                assert!(matches!(&again, Fault::Stopped { cause, .. } if *cause == text), "{again}");
                assert!(pool.commit(Counters::default()).is_err());
                assert!(matches!(pool.get(Key::new(1, 1, 1)), Err(Fault::Stopped { .. })));
                known.pending = Some(items);
                drop(pool);
                world.kill();
                judge(world.members(), &mut known).expect("one of the two states");
            }
        }
    }
    assert!(failed > 20, "only {failed} writes failed");
}

/// A queued write fails, and a read is the first to see it: the commit fails too.
#[test]
fn a_failed_write_that_a_read_has_reported_fails_the_commit() {
    let (world, mut known) = populated(1);
    let mut pool = open_world(&world).expect("power");
    let run = pool.allocate(sietch_fs::pool::Class::Hdd, 1).expect("room");
    let medium = usize::from(run.medium);
    world.disk(medium).expect("a disk").inject(1, disk::Fault::Error(EIO));
    pool.write(run, filled(1, 1)).expect("queued");
    assert!(pool.read(run).is_err(), "the write failed");
    let fault = pool.commit(Counters { inodes: 1, next_inode: 1 }).expect_err("the write failed");
    assert!(matches!(fault, Fault::Medium { action: "write", .. }), "{fault}");
    drop(pool);
    world.kill();
    judge(world.members(), &mut known).expect("nothing was committed");
}

/// Whether the pool shows these items, or says that it is damaged. Anything else is wrong.
fn shows(world: &World, items: &Items, cause: &str) -> bool {
    let mut pool = match Pool::open_with(world.members(), 20) {
        Ok(pool) => pool,
        Err(OpenError::Fault(Fault::Damaged { medium, .. })) if medium == "medium 0" => return false,
        Err(error) => panic!("{cause}: {error}"),
    };
    match read_all(&mut pool) {
        Ok(found) => {
            assert!(found == *items, "{cause}: {} items instead of {}", found.len(), items.len());
            // Keys that are not there are read too.
            for offset in 0..80 {
                let key = Key::new(2, 1, offset);
                assert_eq!(pool.get(key).expect("every node was read"), items.get(&key).cloned());
            }
            true
        }
        Err(Fault::Damaged { medium, what, .. }) => {
            assert_eq!((medium.as_str(), what.as_str()), ("medium 0", "node"), "{cause}");
            false
        }
        Err(fault) => panic!("{cause}: {fault}"),
    }
}

#[test]
fn a_write_that_is_lost_or_lands_elsewhere_never_gives_a_wrong_item() {
    let budget = Budget { seeds: 40, seconds: 6 };
    let noticed = std::sync::atomic::AtomicU64::new(0);
    seeds::run("it pool::faults::a_write_that_is_lost", &[1, 2, 3], budget, |seed| {
        let mut random = Random::new(seed);
        for nth in 1..=10 {
            let (world, mut known) = populated(seed * 2 + 1);
            let mut pool = open_world(&world).expect("power");
            world.set_phase(Phase::Commit);
            let fault = match random.below(4) {
                0 | 1 => disk::Fault::Lost,
                2 => disk::Fault::Misdirected(BLOCK as u64 * random.between(1, 40)),
                _ => disk::Fault::BitRot,
            };
            world.disk(0).expect("a disk").inject(nth, fault);
            let cause = format!("seed {seed}, write {nth}, {fault:?}");
            let changed = change_and_commit(&mut pool, &mut known.committed, &mut random);
            match changed {
                Ok(()) => {}
                // It read what it had written.
                Err(Fault::Damaged { .. }) => continue,
                Err(fault) => panic!("{cause}: {fault}"),
            }
            drop(pool);
            world.kill();
            if !shows(&world, &known.committed, &cause) {
                noticed.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
        }
    });
    assert!(noticed.into_inner() > 5, "hardly any fault was noticed");
}

/// Every block of the home that a bit of rots: the node is named, or nothing refers to it.
#[test]
fn a_rotten_node_is_named() {
    let (mut named, mut unused) = (0, 0);
    for seed in [1, 3] {
        for block in 4..HOME {
            let (world, known) = populated(seed);
            let bytes = world.disk(0).expect("a disk").image();
            if bytes[block * BLOCK..][..4] != *b"SFTN" {
                continue;
            }
            world.rot(0, block * BLOCK + (block * 37) % BLOCK);
            let mut is_damaged = false;
            match Pool::open_with(world.members(), 20) {
                Ok(mut pool) => {
                    if let Err(fault) = read_all(&mut pool) {
                        let at = (block * BLOCK) as u64;
                        assert!(matches!(fault, Fault::Damaged { offset, .. } if offset == at), "{fault}");
                        is_damaged = true;
                    }
                    let found = check(&mut pool, &mut |key, value, runs| {
                        if key.kind == KIND_RUN {
                            runs.push(value_run(value).0);
                        }
                        Ok(())
                    });
                    let findings = found.expect("no changes").findings;
                    let place = format!("medium 0: node at {} is damaged", block * BLOCK);
                    assert_eq!(findings.iter().any(|finding| finding.starts_with(&place)), is_damaged);
                    assert_eq!(!findings.is_empty(), is_damaged, "{findings:?}");
                    if !is_damaged {
                        assert_eq!(read_all(&mut pool).expect("whole"), known.committed);
                    }
                }
                Err(OpenError::Fault(Fault::Damaged { offset, .. })) => {
                    assert_eq!(offset, (block * BLOCK) as u64);
                    is_damaged = true;
                }
                Err(error) => panic!("{error}"),
            }
            if is_damaged { named += 1 } else { unused += 1 }
        }
    }
    assert!(named > 8 && unused > 8, "{named} nodes in use, {unused} old ones");
}

#[test]
fn a_rotten_superblock_is_named_by_a_check() {
    let (world, _) = populated(1);
    let mut pool = open_world(&world).expect("power");
    let findings = |pool: &mut Pool<Device>| {
        let mut runs = |_: Key, _: &[u8], _: &mut Vec<_>| Ok(());
        let found = check(pool, &mut runs).expect("no changes").findings;
        found.into_iter().filter(|finding| finding.contains("superblock")).collect::<Vec<_>>()
    };
    assert_eq!(findings(&mut pool), Vec::<String>::new());
    let copy = 2 * (pool.root().generation % 2) as usize * BLOCK;
    world.rot(0, copy + 500);
    world.rot(1, 3 * BLOCK + 77);
    assert_eq!(
        findings(&mut pool),
        [
            format!("medium 0: superblock at {copy}: the copy is damaged"),
            "medium 1: superblock at 12288: the copy is damaged".to_owned(),
        ]
    );
}

#[test]
fn media_that_are_not_those_of_the_pool_are_named() {
    let (world, _) = populated(1);
    let (other, mut nothing) = (World::new(5, None), Known::default());
    format_world(&other, 2, &mut nothing).expect("power");
    let error = |members| Pool::<Device>::open(members).map(drop).expect_err("not the pool").to_string();

    let mut members = world.members();
    members.pop();
    assert_eq!(error(members), "the pool has 3 media and 2 are given; name all of them, the home first");
    assert_eq!(error(Vec::new()), "the pool has 1 media and 0 are given; name all of them, the home first");
    let mut members = world.members();
    members.swap(1, 2);
    assert_eq!(
        error(members),
        "medium 2: is medium 2 of its pool and was given as medium 1; change the order"
    );
    let mut members = world.members();
    members.swap(0, 1);
    assert_eq!(
        error(members),
        "medium 1: is medium 1 of its pool and was given as medium 0; change the order"
    );
    let mut members = world.members();
    members[1] = other.members().remove(1);
    assert_eq!(
        error(members),
        format!(
            "medium 1: belongs to pool {:032x}, not to {:032x}; give the medium of this pool",
            options(2).identity,
            options(1).identity
        )
    );
    let mut members = world.members();
    members[2] = World::new(9, None).members().remove(2);
    assert_eq!(error(members), "medium 2: holds no pool; format it, or name the medium that does");
    let root = Pool::open(world.members()).expect("a pool").root();
    assert!(matches!(Reader::new(other.members(), root), Err(OpenError::Foreign { .. })));
}

/// Some bytes of the media are random. Whatever is called then ends, and does not panic.
#[test]
fn random_bytes_on_the_media_never_panic() {
    let budget = Budget { seeds: 300, seconds: 5 };
    seeds::run("it pool::faults::random_bytes", &[], budget, |seed| {
        let mut random = Random::new(seed);
        let (world, _) = populated(2 * (seed % 20) + 1);
        for _ in 0..random.between(1, 30) {
            let medium = random.index(MEDIA);
            let blocks = if random.chance(500) {
                40
            } else {
                world.disk(medium).map_or(1, |d| d.image().len() / BLOCK)
            };
            world.rot(medium, random.index(blocks * BLOCK));
        }
        let Ok(mut pool) = Pool::open_with(world.members(), 5) else { return };
        pool.readers_at(u64::MAX);
        drop(read_all(&mut pool));
        drop(pool.previous(Key::MAX));
        drop(check(&mut pool, &mut |_, _, _| Ok(())));
        let mut items = Items::new();
        drop(change_and_commit(&mut pool, &mut items, &mut random));
    });
}
