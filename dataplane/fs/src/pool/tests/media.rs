//! Media that grow, join and leave.

use sietch_disk::MemoryQueue;
use sietch_sim::Random;
use sietch_sim::seeds::{self, Budget};

use super::{
    Class, Counters, KIND_RUN, Member, OPTIONS, Pool, Run, assert_whole, bytes_run, filled, members,
    new_pool, random_key, random_value, reopen, run_bytes,
};
use crate::error::Fault;
use crate::limits::BLOCK;
use crate::pool::limits::{FIRST_BLOCK, MAX_MEDIA};
use crate::pool::superblock::Superblock;
use crate::pool::{Belonging, MediaError, OpenError, belonging};
use crate::tree::Key;

/// The media, one of them with more zeros at its end.
fn longer(pool: Pool<MemoryQueue>, at: usize, blocks: usize) -> Pool<MemoryQueue> {
    let mut members = pool.into_members();
    let name = members[at].name.clone();
    let class = members[at].class;
    let mut bytes = members.remove(at).disk.into_bytes();
    bytes.resize(blocks * BLOCK, 0);
    members.insert(at, Member { name, class, disk: MemoryQueue::from_bytes(bytes) });
    let mut pool = Pool::open(members).expect("a longer medium");
    pool.readers_at(u64::MAX);
    pool
}

fn medium(name: &str, class: Class, blocks: usize) -> Member<MemoryQueue> {
    Member { name: name.to_owned(), class, disk: MemoryQueue::new(blocks * BLOCK) }
}

/// Writes a run wherever the pool wants, and names it.
fn put(pool: &mut Pool<MemoryQueue>, class: Class, number: u64) -> Result<Run, Fault> {
    let run = pool.allocate(class, 4)?;
    pool.write(run, filled(run.blocks, number))?;
    pool.insert(Key::new(7, KIND_RUN, number), &run_bytes(run))?;
    Ok(run)
}

fn assert_data(pool: &mut Pool<MemoryQueue>) -> usize {
    let (mut from, mut count) = (Key::new(7, KIND_RUN, 0), 0);
    while let Some((key, value)) = pool.next(from).expect("memory").filter(|(key, _)| key.object == 7) {
        let run = bytes_run(&value);
        assert!(pool.read(run).expect("memory")[..] == filled(run.blocks, key.offset)[..], "{key}: {run:?}");
        (from, count) = (Key { offset: key.offset + 1, ..key }, count + 1);
    }
    count
}

/// Fills a pool until it refuses. Returns how many runs it took.
fn fill(pool: &mut Pool<MemoryQueue>, first: u64) -> u64 {
    fill_while(pool, first, Class::Nvm, |_| true)
}

/// Fills a pool until it refuses, or a run is not as wanted.
fn fill_while(
    pool: &mut Pool<MemoryQueue>,
    first: u64,
    class: Class,
    is_wanted: impl Fn(Run) -> bool,
) -> u64 {
    let mut number = first;
    loop {
        match put(pool, class, number) {
            Ok(run) => {
                number += 1;
                if !is_wanted(run) {
                    break;
                }
            }
            Err(Fault::Full { .. }) => break,
            Err(fault) => panic!("{fault}"),
        }
    }
    pool.commit(Counters::default()).expect("memory");
    number - first
}

#[test]
fn a_medium_that_grows_takes_more_data_and_loses_none() {
    for (at, blocks) in [(0, 1024), (0, 513), (1, 300), (1, 41)] {
        let mut pool = new_pool(&[512, 40], 100);
        // A full home has no room for the items of data elsewhere.
        let fill = |pool: &mut Pool<MemoryQueue>, first| match at {
            0 => fill(pool, first),
            _ => fill_while(pool, first, Class::Ssd, |run| run.medium == 1),
        };
        let before = fill(&mut pool, 0);
        let total = pool.root().total;
        let mut pool = longer(pool, at, blocks);
        let old = pool.blocks_of(at);
        assert_eq!(pool.root().total, total, "a longer file changes nothing");
        let root = pool.grow_medium(at, blocks as u32).expect("room");
        assert_eq!(root.total, total + blocks as u64 - u64::from(old));
        assert_whole(&mut pool);
        let mut pool = reopen(pool, 100);
        assert_eq!((pool.blocks_of(at), pool.root().total), (blocks as u32, root.total));
        let more = fill(&mut pool, before);
        assert_eq!(more > 10, blocks as u32 - old > 100, "{more} more runs");
        assert_eq!(assert_data(&mut pool) as u64, before + more);
        assert_whole(&mut reopen(pool, 100));
    }
}

#[test]
fn growth_that_cannot_be_is_refused_and_changes_nothing() {
    let mut pool = new_pool(&[512, 40], 100);
    let root = pool.root();
    let mut refuse = |slot: usize, blocks: u32| {
        let error = pool.grow_medium(slot, blocks).expect_err("no growth").to_string();
        assert_eq!(pool.root(), root);
        error
    };
    assert_eq!(refuse(2, 100), "the pool has no medium in slot 2");
    assert_eq!(refuse(9, 100), "the pool has no medium in slot 9");
    assert_eq!(
        refuse(1, 40),
        "medium 1: has 40 blocks of 4096 bytes, and cannot have 40: it only gets larger"
    );
    assert_eq!(refuse(1, 41), "medium 1: should have 41 blocks of 4096 bytes, and there are 40");
    assert_eq!(
        refuse(0, u32::MAX),
        "medium 0: should have 4294967295 blocks of 4096 bytes, and there are 512"
    );
    pool.insert(Key::new(1, 1, 1), b"not committed").expect("room");
    let error = pool.grow_medium(1, 41).expect_err("changes").to_string();
    assert!(error.contains("commit first"), "{error}");
}

#[test]
fn media_are_added_up_to_the_most_and_reopen_in_their_order() {
    let mut pool = new_pool(&[512], 100);
    for slot in 1..MAX_MEDIA {
        let class = [Class::Hdd, Class::Ssd][slot % 2];
        let added = pool.add_medium(medium(&format!("added {slot}"), class, 16 + slot), 100 + slot as u64);
        assert_eq!(added.expect("room"), slot);
        assert_whole(&mut pool);
        let run = pool.allocate(class, 1).expect("room");
        assert_eq!(pool.usage()[usize::from(run.medium)].class, class);
        pool.free(run).expect("taken");
        pool.commit(Counters::default()).expect("memory");
        pool = reopen(pool, 100);
        assert_eq!(pool.slots(), (0..=slot).collect::<Vec<_>>());
    }
    let error = pool.add_medium(medium("one more", Class::Ssd, 100), 999).expect_err("eight");
    assert_eq!(error.to_string(), "the pool has 8 media, and may not have more; take one out first");
    let runs = fill(&mut pool, 0);
    let mut pool = reopen(pool, 10);
    assert_eq!(assert_data(&mut pool) as u64, runs);
    assert!(pool.usage().iter().skip(1).all(|medium| medium.free < medium.blocks), "{:?}", pool.usage());
}

#[test]
fn a_medium_that_is_too_small_is_not_added() {
    let mut pool = new_pool(&[512], 100);
    let error = pool.add_medium(medium("tiny", Class::Ssd, 15), 5).expect_err("too small");
    assert_eq!(error.to_string(), "tiny: has 15 blocks of 4096 bytes and needs 16; choose a larger one");
    assert_eq!(pool.slots(), [0]);
}

/// Frees what is on a medium.
fn empty(pool: &mut Pool<MemoryQueue>, slot: u8) {
    let mut from = Key::new(7, KIND_RUN, 0);
    while let Some((key, value)) = pool.next(from).expect("memory").filter(|(key, _)| key.object == 7) {
        let run = bytes_run(&value);
        if run.medium == slot {
            pool.remove(key).expect("room");
            pool.free(run).expect("taken");
        }
        from = Key { offset: key.offset + 1, ..key };
    }
    pool.commit(Counters::default()).expect("memory");
}

#[test]
fn a_medium_without_data_leaves_and_is_never_taken_for_the_next_one() {
    let mut pool = new_pool(&[512, 40, 60], 100);
    fill(&mut pool, 0);
    let error = pool.remove_medium(0).map(drop).expect_err("the home").to_string();
    assert!(error.contains("only other media can leave"), "{error}");
    let error = pool.remove_medium(1).map(drop).expect_err("in use").to_string();
    assert_eq!(error, "medium 1: has 36 blocks of data; move them first");
    assert!(matches!(pool.remove_medium(3), Err(MediaError::Unknown { slot: 3 })));
    empty(&mut pool, 1);
    let total = pool.root().total;
    let old = pool.remove_medium(1).expect("nothing on it").expect("the medium").disk.into_bytes();
    assert_eq!((pool.root().total, pool.slots()), (total - 36, vec![0, 2]));
    assert!(matches!(pool.remove_medium(1), Err(MediaError::Unknown { slot: 1 })));
    assert_whole(&mut pool);
    let count = assert_data(&mut pool);
    // Its slot stays empty.
    let mut pool = reopen(pool, 100);
    assert_eq!((pool.slots(), assert_data(&mut pool)), (vec![0, 2], count));
    let stray = Run { medium: 1, start: FIRST_BLOCK, blocks: 1 };
    assert!(matches!(pool.read(stray), Err(Fault::Refused { .. })), "a run in an empty slot");
    fill(&mut pool, 1000);
    assert_whole(&mut pool);
    // With the medium that left.
    let old =
        || Member { name: "old".to_owned(), class: Class::Ssd, disk: MemoryQueue::from_bytes(old.clone()) };
    let mut with_old = pool.into_members();
    with_old.insert(1, old());
    let (home, other) = (with_old.remove(0), with_old.remove(0));
    assert_eq!(belonging(home, other).expect("a pool"), Belonging::Former);
}

#[test]
fn a_slot_is_used_again_by_another_medium_only() {
    let mut pool = new_pool(&[512, 40, 60], 100);
    let old = pool.remove_medium(1).expect("nothing on it").expect("the medium").disk.into_bytes();
    let old =
        || Member { name: "old".to_owned(), class: Class::Ssd, disk: MemoryQueue::from_bytes(old.clone()) };
    assert_eq!(pool.add_medium(medium("new", Class::Hdd, 50), 77).expect("a slot"), 1);
    fill(&mut pool, 0);
    let mut members = reopen(pool, 100).into_members();
    let new = std::mem::replace(&mut members[1], old());
    let error = Pool::open(members).map(drop).expect_err("not the medium");
    assert!(matches!(error, OpenError::Left { slot: 1, .. }), "{error}");
    assert!(new.name == "new");
}

#[test]
fn a_leaving_medium_gets_data_only_where_no_other_has_room() {
    let mut pool = new_pool(&[512, 40, 60], 100);
    pool.set_leaving(1);
    pool.set_leaving(0);
    assert_eq!(pool.usage().iter().map(|medium| medium.is_leaving).collect::<Vec<_>>(), [false, true, false]);
    let mut elsewhere = 0;
    for number in 0.. {
        match put(&mut pool, Class::Ssd, number) {
            Ok(run) if run.medium == 1 => break,
            Ok(run) => elsewhere += run.blocks,
            Err(fault) => panic!("{fault}"),
        }
    }
    assert!(elsewhere > 100, "{elsewhere} blocks went elsewhere");
}

#[test]
fn a_pool_has_version_1_until_its_media_change() {
    let version = |pool: Pool<MemoryQueue>| {
        let home = pool.into_members().remove(0).disk.into_bytes();
        let newest = (0..4).filter_map(|copy| {
            let bytes = &home[copy * BLOCK..][..BLOCK];
            Superblock::read(bytes).ok().map(|found| (found.root.generation, bytes[12]))
        });
        newest.max().map(|(_, version)| version)
    };
    let mut pool = new_pool(&[512, 40], 100);
    fill(&mut pool, 0);
    assert_eq!(version(pool), Some(1));
    let mut pool = longer(new_pool(&[512, 40], 100), 1, 50);
    pool.grow_medium(1, 50).expect("room");
    assert_eq!(version(pool), Some(2));
}

/// Tables that no commit has made, with right checksums.
#[test]
fn forged_tables_never_panic_and_always_end() {
    let mut random = Random::new(5);
    let mut pool = longer(new_pool(&[512, 40, 60], 100), 1, 50);
    pool.grow_medium(1, 50).expect("room");
    for _ in 0..50 {
        pool.insert(random_key(&mut random), &random_value(&mut random)).expect("room");
    }
    fill(&mut pool, 0);
    let good: Vec<Vec<u8>> = pool.into_members().into_iter().map(|member| member.disk.into_bytes()).collect();
    let opened = std::sync::atomic::AtomicU64::new(0);
    seeds::run("lib pool::tests::media::forged", &[], Budget { seeds: 2000, seconds: 4 }, |seed| {
        let mut random = Random::new(seed);
        let mut images = good.clone();
        for _ in 0..random.between(1, 3) {
            // Count of media, or the table.
            let at = if random.chance(100) { 49 } else { 120 + random.index(40) };
            let byte = *random.pick(&[0, 1, 2, 3, 41, 255]);
            for copy in 0..4 {
                images[0][copy * BLOCK + at] = byte;
            }
        }
        for copy in 0..4 {
            let copy = &mut images[0][copy * BLOCK..][..BLOCK];
            let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &copy[12..]) as u32;
            copy[8..12].copy_from_slice(&crc.to_le_bytes());
        }
        let mut given = members(&[1, 1, 1]);
        for (member, image) in given.iter_mut().zip(images) {
            member.disk = MemoryQueue::from_bytes(image);
        }
        given.truncate(random.between(1, 3) as usize);
        let Ok(mut pool) = Pool::open(given) else { return };
        opened.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        pool.readers_at(u64::MAX);
        drop(crate::pool::check(&mut pool, &mut |_, _, _| Ok(())));
        drop(pool.grow_medium(random.index(9), random.word() as u32));
        drop(pool.add_medium(medium("new", Class::Ssd, 20), random.word()));
        drop(pool.remove_medium(random.index(9)));
        drop(put(&mut pool, Class::Ssd, 5000));
        drop(pool.commit(Counters::default()));
    });
    assert!(opened.into_inner() > 20, "hardly any of them opens");
    assert_eq!(OPTIONS.identity, 0x5157);
}
