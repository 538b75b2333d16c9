//! A log over an area that grows and shrinks while it runs, and while it does not.
//!
//! 1. A life appends and compacts. Now and then it has the area made larger (a new queue, then
//!    [`Log::grow`]) or smaller ([`Log::shrink_to`], then the area is cut, then a new queue). Bytes
//!    behind a cut are lost.
//! 2. Every write, completion and flush is a crash point, also those of growing and shrinking.
//!    Every subset of the sectors at risk, when they are few, else drawn ones, is a possible
//!    medium. It must open with all that was acknowledged, at the size that the area has and in an
//!    area that was enlarged meanwhile.
//! 3. The mutation gate ignores the durability of the superblocks that change the size: some check
//!    must notice.

mod life;

use sietch_disk::MemoryQueue;
use sietch_persist::{
    AppendError, Durability, Entry, FormatOptions, Log, Map, OpenError, Options, Queue, QueueOptions, Read,
    ResizeError, check,
};
use sietch_sim::seeds::{self, Budget};

use crate::disk::{Fence, Media, Random};
use life::{Life, SEGMENT, START, Verdict, payload, recover};

/// Images drawn per crash point when there are too many to try all.
const DRAWS: u64 = 4;

/// Judges one image that a crash could have left.
fn judge(image: Vec<u8>, life: &Life) -> Verdict {
    seeds::explored(1);
    let mut disk = MemoryQueue::from_bytes(image);
    let checked = check(&mut disk);
    let (mut log, found) = match recover(disk, Durability::Always) {
        Ok(opened) => opened,
        Err(OpenError::NotFormatted) if !life.formatted => return Ok(()),
        Err(other) => return Err(format!("does not open: {other}")),
    };
    life.judge(found)?;
    checked.map_err(|e| format!("opens, but does not check: {e}"))?;
    let Ok(sequence) = log.append(&payload(found + 1)) else { return Ok(()) };
    log.submit().map_err(|e| e.to_string())?;
    while log.poll().map_err(|e| e.to_string())? < sequence {}
    let again = recover(MemoryQueue::from_bytes(log.into_disk().into_bytes()), Durability::Always)
        .map_err(|e| format!("does not open a second time: {e}"))?;
    if again.1 == found + 1 { Ok(()) } else { Err(format!("{} records after {}", again.1, found + 1)) }
}

/// Judges the images that power loss could leave now.
fn judge_all(media: &Media, life: &Life, random: &mut Random) -> Verdict {
    let unit = [8, 64, 512][random.below(3) as usize];
    let both = |mut image: Vec<u8>| {
        image.truncate(life.area as usize);
        judge(image.clone(), life)?;
        image.resize(life.area as usize + 3 * SEGMENT as usize, 0);
        judge(image, life).map_err(|e| format!("enlarged: {e}"))
    };
    let at_risk = media.at_risk(unit);
    if at_risk <= 3 {
        for mask in 0..1_u32 << at_risk {
            let mut bit = 0;
            both(media.after_power_loss(unit, || {
                bit += 1;
                mask >> (bit - 1) & 1 == 1
            }))?;
        }
        return Ok(());
    }
    both(media.after_power_loss(unit, || false))?;
    both(media.after_power_loss(unit, || true))?;
    for draw in 0..DRAWS {
        let percent = [3, 50, 97][draw as usize % 3];
        both(media.after_power_loss(unit, || random.chance(percent)))?;
    }
    Ok(())
}

/// Lives three times, until event `budget`. `None`: the disk died.
fn live(seed: u64, budget: usize, ignored: Option<Fence>) -> (Life, Option<()>) {
    let block = if seed.is_multiple_of(2) { 512 } else { 4096 };
    let media = Media::new(vec![0; life::MOST as usize], block, seed);
    media.borrow_mut().budget = budget;
    media.borrow_mut().ignored = ignored;
    let mut life = Life::new(media, seed);
    let done = (|| {
        life.format()?;
        for _ in 0..3 {
            life.run(150)?;
            let left = life.media.borrow().budget;
            life.media.borrow_mut().kill();
            life.media.borrow_mut().budget = left;
        }
        Some(())
    })();
    (life, done)
}

fn enumerate(seed: u64, ignored: Option<Fence>, stride: usize) -> Verdict {
    let mut random = Random::new(seed ^ 0xc0ffee);
    let mut budget = 0;
    loop {
        let (life, survived) = live(seed, budget, ignored);
        judge_all(&life.media.borrow(), &life, &mut random)
            .map_err(|e| format!("seed {seed}, event {budget}: {e}"))?;
        if survived.is_some() {
            return Ok(());
        }
        budget += 1 + random.below(2 * stride as u64 - 1) as usize;
    }
}

#[test]
fn power_loss_while_the_area_changes_size() {
    let (mut grown, mut shrunk) = (0, 0);
    for seed in 1..=12 {
        let life = live(seed, usize::MAX, None).0;
        (grown, shrunk) = (grown + life.grown, shrunk + life.shrunk);
    }
    assert!(grown > 15 && shrunk > 8, "the areas hardly change: {grown}, {shrunk}");
    let budget = Budget { seeds: 12, seconds: 4 };
    seeds::run("it resize::power_loss_while_the_area_changes_size", &[1, 2, 3, 4], budget, |seed| {
        enumerate(seed, None, 2).expect("the promise");
    });
}

/// The superblock of a new size is durable before the size is used: a crash shows it if it is not.
#[test]
fn ignoring_the_fence_of_a_change_of_size_is_noticed() {
    // The class of its requests in `src/log.rs`.
    let fence = Fence::Unknown(9);
    let seen = live(1, usize::MAX, None).0.media.borrow().seen.contains(&fence);
    assert!(seen, "it never happened");
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let catches = |seed| {
        let run = std::panic::AssertUnwindSafe(|| enumerate(seed, Some(fence), 3));
        std::panic::catch_unwind(run).map_or(true, |verdict| verdict.is_err())
    };
    let noticed = (1..=12).any(catches);
    std::panic::set_hook(hook);
    assert!(noticed, "no test misses it");
}

fn open(bytes: Vec<u8>) -> Result<Log<MemoryQueue>, OpenError> {
    Log::open(MemoryQueue::from_bytes(bytes), Options::default(), &mut |_| Ok(())).map(|(log, _)| log)
}

fn settle(log: &mut Log<MemoryQueue>) {
    while !log.is_idle() || log.queued() > 0 {
        log.submit().expect("a disk that works");
        log.poll().expect("a disk that works");
    }
}

fn formatted(segments: u64) -> Log<MemoryQueue> {
    let mut disk = MemoryQueue::new((START + segments * SEGMENT) as usize);
    Log::format(&mut disk, FormatOptions { identity: 7, segment_bytes: Some(SEGMENT as u32) })
        .expect("large enough");
    open(disk.into_bytes()).expect("it was formatted")
}

/// Appends until the area is full, and returns how many records it took.
fn fill(log: &mut Log<MemoryQueue>) -> u32 {
    for count in 0.. {
        match log.append(&[9; 4000]) {
            Ok(_) => settle(log),
            Err(AppendError::Full { .. }) => return count,
            Err(other) => panic!("{other}"),
        }
    }
    0
}

#[test]
fn an_area_that_has_grown_opens_and_is_used_on_request() {
    let mut log = formatted(20);
    let first = fill(&mut log);
    let mut bytes = log.into_disk().into_bytes();
    let larger = START + 60 * SEGMENT;
    bytes.resize(larger as usize, 0);
    let mut log = open(bytes).expect("a larger area is no damage");
    assert_eq!(log.area_bytes(), START + 20 * SEGMENT);
    // An opening continues in a fresh segment, so a few may fit again.
    let more = fill(&mut log);
    assert!(more < 8, "{more}");
    assert!(matches!(log.grow(larger + 1), Err(ResizeError::Area { .. })));
    log.grow(larger).expect("it is there");
    settle(&mut log);
    assert_eq!(log.area_bytes(), larger);
    let second = fill(&mut log);
    assert!(second > first, "{first}, then {second}");
    // And it is so after the next opening.
    let log = open(log.into_disk().into_bytes()).expect("nothing is wrong with it");
    assert_eq!((log.area_bytes(), log.last() > u64::from(first + second)), (larger, true));
}

#[test]
fn an_area_that_was_cut_opens_if_nothing_is_missing_and_names_the_needed_bytes_otherwise() {
    let mut log = formatted(60);
    for _ in 0..10 {
        log.append(&[9; 4000]).expect("room");
        settle(&mut log);
    }
    let bytes = log.close().expect("a disk that works").into_bytes();
    let small = (START + 20 * SEGMENT) as usize;
    let log = open(bytes[..small].to_vec()).expect("what is missing was never used");
    assert_eq!(log.area_bytes(), small as u64);

    let mut log = open(bytes).expect("nothing is wrong with it");
    let used = fill(&mut log);
    assert!(used > 60, "{used}");
    let bytes = log.into_disk().into_bytes();
    let error = open(bytes[..small].to_vec()).map(drop).expect_err("records are missing");
    let OpenError::AreaTooSmall { needed, capacity, .. } = error else { panic!("{error}") };
    assert!(needed > small as u64 && capacity == small as u64);
    // As much as it says is enough to continue reading, or it names more.
    let mut size = needed;
    loop {
        match open(bytes[..size as usize].to_vec()) {
            Ok(log) => break assert!(log.last() > u64::from(used)),
            Err(OpenError::AreaTooSmall { needed, .. }) => {
                assert!(needed > size);
                size = needed;
            }
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn shrinking_is_refused_while_it_would_cut_records_and_works_after_compaction() {
    let mut log = formatted(60);
    fill(&mut log);
    let small = START + 24 * SEGMENT;
    let refused = log.shrink_to(small);
    let Err(ResizeError::Live { least, .. }) = refused else { panic!("{refused:?}") };
    assert!(least > small);
    assert!(matches!(log.shrink_to(START + 3 * SEGMENT), Err(ResizeError::TooSmall { .. })));
    assert!(!log.is_resizing());

    log.begin_snapshot().expect("room");
    log.snapshot_append(b"state").expect("room");
    log.finish_snapshot().expect("it was begun");
    settle(&mut log);
    let last = log.append(b"after").expect("room");
    settle(&mut log);
    log.shrink_to(small).expect("little is left");
    // What is left lay beyond the end: another snapshot moves it.
    for _ in 0..3 {
        if log.is_resizing() {
            assert!(log.should_compact());
            log.begin_snapshot().expect("room");
            log.snapshot_append(b"state again").expect("room");
            log.finish_snapshot().expect("it was begun");
        }
        while log.is_snapshotting() {
            log.poll().expect("a disk that works");
        }
        log.poll().expect("a disk that works");
        settle_size(&mut log);
    }
    assert_eq!((log.area_bytes(), log.is_resizing()), (small, false));
    let mut bytes = log.into_disk().into_bytes();
    bytes.truncate(small as usize);
    let mut log = open(bytes).expect("nothing is missing");
    assert!(log.last() >= last && fill(&mut log) > 10);
}

/// Polls for as long as that changes anything.
fn settle_size(log: &mut Log<MemoryQueue>) {
    for _ in 0..20 {
        log.poll().expect("a disk that works");
    }
}

#[test]
fn a_shrinking_that_is_given_up_leaves_the_whole_area() {
    let mut log = formatted(60);
    // Its records are beyond the new end: the run begins somewhere in the area.
    for _ in 0..24 {
        log.append(&[9; 15_000]).expect("room");
        settle(&mut log);
    }
    log.truncate(log.last()).expect("it is there");
    settle(&mut log);
    log.shrink_to(START + 16 * SEGMENT).expect("one record is left");
    settle_size(&mut log);
    assert!(log.is_resizing() && log.should_compact());
    assert!(log.keep_size() && !log.is_resizing());
    assert_eq!(log.area_bytes(), START + 60 * SEGMENT);
    assert!(fill(&mut log) > 80);
}

#[test]
fn a_cursor_reads_on_over_added_segments() {
    let mut log = formatted(20);
    let first = log.append(b"first").expect("room");
    fill(&mut log);
    let mut cursor = log.cursor(first).expect("it is there");
    let mut bytes = log.into_disk().into_bytes();
    bytes.resize((START + 60 * SEGMENT) as usize, 0);
    let mut log = open(bytes).expect("a larger area is no damage");
    let mut count = 0;
    let mut read = |log: &mut Log<MemoryQueue>| loop {
        match log.read(&mut cursor).expect("nothing is damaged") {
            Read::Record(..) => count += 1,
            Read::Waiting => drop(log.poll().expect("a disk that works")),
            Read::End => return count,
        }
    };
    let before = read(&mut log);
    log.grow(START + 60 * SEGMENT).expect("it is there");
    settle(&mut log);
    let more = fill(&mut log);
    assert_eq!(read(&mut log), before + more);
}

#[test]
fn a_queue_and_a_map_move_by_themselves_when_they_are_to_shrink() {
    const LARGE: u64 = START + 64 * SEGMENT;
    const SMALL: u64 = START + 20 * SEGMENT;
    let mut disk = MemoryQueue::new(LARGE as usize);
    Map::format(&mut disk, FormatOptions::new(1)).expect("large enough");
    let (mut map, _) = Map::open(disk, Options::default()).expect("it was formatted");
    for n in 0..200_u32 {
        map.put(&(n % 8).to_le_bytes(), &[n as u8; 3000]).expect("room");
        map.poll().expect("a disk that works");
    }
    map.shrink_to(SMALL).expect("little of it is live, or it was compacted");
    for _ in 0..100 {
        map.poll().expect("a disk that works");
    }
    assert_eq!(map.log().area_bytes(), SMALL);
    let mut bytes = map.into_disk().into_bytes();
    bytes.truncate(SMALL as usize);
    let (map, _) = Map::open(MemoryQueue::from_bytes(bytes), Options::default()).expect("nothing is missing");
    assert!((192..200_u32).all(|n| map.get(&(n % 8).to_le_bytes()) == Some(&[n as u8; 3000][..])));

    let mut disk = MemoryQueue::new(LARGE as usize);
    Queue::format(&mut disk, FormatOptions::new(1)).expect("large enough");
    let (mut queue, _) = Queue::open(disk, QueueOptions::default()).expect("it was formatted");
    for n in 0..100_u8 {
        let id = queue.send(&[n; 3000]).expect("room");
        while queue.poll(0).expect("a disk that works") < id {}
        if n < 95 {
            let receipt = queue.receive(1, 0, 1).map(|delivery| delivery.receipt).expect("it was sent");
            queue.acknowledge(&[receipt]).expect("it is ours");
        }
    }
    for attempt in 0..20 {
        if queue.shrink_to(SMALL).is_ok() {
            break;
        }
        assert!(attempt < 19, "it never has room");
        for _ in 0..20 {
            queue.poll(0).expect("a disk that works");
        }
    }
    for _ in 0..100 {
        queue.poll(0).expect("a disk that works");
    }
    assert_eq!(queue.log().area_bytes(), SMALL);
    let mut bytes = queue.into_disk().into_bytes();
    bytes.truncate(SMALL as usize);
    let disk = MemoryQueue::from_bytes(bytes);
    let (queue, _) = Queue::open(disk, QueueOptions::default()).expect("nothing is missing");
    let left: Vec<u8> = queue.iter().map(|(_, payload, _)| payload[0]).collect();
    assert_eq!(left, [95, 96, 97, 98, 99]);
}

#[test]
fn a_follower_says_when_the_log_has_outgrown_its_queue() {
    let mut log = formatted(20);
    log.append(b"one").expect("room");
    settle(&mut log);
    let mut bytes = log.into_disk().into_bytes();
    let small = bytes.clone();
    let mut follower = sietch_persist::Follower::open(MemoryQueue::from_bytes(small.clone())).expect("a log");
    let mut seen = Vec::new();
    let mut note = |entry: Entry<'_>| {
        if let Entry::Record(_, payload) = entry {
            seen.push(payload.to_vec());
        }
        Ok(())
    };
    follower.poll(&mut note).expect("nothing is wrong");
    assert_eq!(seen, [b"one"]);
    bytes.resize((START + 40 * SEGMENT) as usize, 0);
    let mut log = open(bytes).expect("a larger area is no damage");
    log.grow(START + 40 * SEGMENT).expect("it is there");
    settle(&mut log);
    let mut cut = log.into_disk().into_bytes();
    cut.truncate(small.len());
    let refused = sietch_persist::Follower::open(MemoryQueue::from_bytes(cut)).map(drop);
    assert!(matches!(refused, Err(sietch_persist::FollowError::Grown { .. })), "{refused:?}");
}
