//! How long lookups, changes and commits take. It asserts nothing, and runs on request:
//! `cargo test --release -p sietch-fs --test it pool::speed -- --ignored --nocapture`.

use std::time::Instant;

use sietch_disk::NvmQueue;
use sietch_disk::nvm::Mapped;
use sietch_fs::Key;
use sietch_fs::pool::{Class, Counters, Member, Pool, format};
use sietch_sim::Random;

use super::life::options;

const ITEMS: u64 = 300_000;

fn per(started: Instant, count: u64) -> u128 {
    started.elapsed().as_nanos() / u128::from(count)
}

#[test]
#[ignore = "measures"]
fn lookups_changes_and_commits() {
    let disk = NvmQueue::over(Mapped::anonymous(512 << 20).expect("memory"), None);
    let mut members = vec![Member { name: "home".into(), class: Class::Nvm, disk }];
    format(&mut members, &options(1)).expect("large enough");
    let mut pool = Pool::open(members).expect("formatted");
    pool.readers_at(u64::MAX);
    let value = [7; 96];
    let mut random = Random::new(1);
    let started = Instant::now();
    for object in 1..=ITEMS {
        pool.insert(Key::new(object, 1, 0), &value).expect("room");
    }
    println!("insert in order: {} ns", per(started, ITEMS));
    let started = Instant::now();
    pool.commit(Counters::default()).expect("memory");
    println!("commit of it: {} us", started.elapsed().as_micros());
    for round in 0..3 {
        let started = Instant::now();
        for _ in 0..ITEMS {
            let found = pool.get(Key::new(random.between(1, ITEMS), 1, 0)).expect("memory");
            assert!(found.is_some());
        }
        println!("get at random: {} ns", per(started, ITEMS));
        let hot = random.between(1, ITEMS - 100);
        let started = Instant::now();
        for at in 0..ITEMS {
            pool.get(Key::new(hot + at % 100, 1, 0)).expect("memory");
        }
        println!("get of a hot item: {} ns", per(started, ITEMS));
        let started = Instant::now();
        let mut key = Key::new(1, 0, 0);
        let mut count = 0;
        while let Some((found, _)) = pool.next(key).expect("memory") {
            (key, count) = (Key { offset: found.offset + 1, ..found }, count + 1);
        }
        println!("next: {} ns for each of {count}", per(started, count));
        for changes in [1, 10, 1000, 10_000] {
            let started = Instant::now();
            for _ in 0..changes {
                pool.insert(Key::new(random.between(1, ITEMS), 1, 0), &value).expect("room");
            }
            let inserted = per(started, changes);
            let dirty = pool.changed_nodes();
            let started = Instant::now();
            pool.commit(Counters { inodes: round, next_inode: changes }).expect("memory");
            let took = started.elapsed().as_micros();
            println!("replace at random: {inserted} ns; commit of {changes} ({dirty} nodes): {took} us");
        }
        let started = Instant::now();
        for at in 0..1000 {
            let run = pool.allocate(Class::Nvm, 4).expect("room");
            if at % 2 == 0 {
                pool.free(run).expect("allocated");
            }
        }
        println!("allocate and free: {} ns", per(started, 1000));
        let started = Instant::now();
        pool.commit(Counters { inodes: round, next_inode: 5 }).expect("memory");
        println!("commit of it: {} us", started.elapsed().as_micros());
    }
    let started = Instant::now();
    for at in 0..1000 {
        pool.insert(Key::new(random.between(1, ITEMS), 1, 0), &value).expect("room");
        pool.commit(Counters { inodes: 9, next_inode: at }).expect("memory");
    }
    println!("replace and commit: {} ns", per(started, 1000));
    let started = Instant::now();
    for at in 0..1000 {
        pool.insert(Key::new(5, 1, 0), &value).expect("room");
        pool.commit(Counters { inodes: 9, next_inode: at }).expect("memory");
    }
    println!("replace and commit of a hot item: {} ns", per(started, 1000));
    let started = Instant::now();
    let members = pool.into_members();
    let mut pool = Pool::open(members).expect("committed");
    println!("open: {} us", started.elapsed().as_micros());
    assert!(pool.get(Key::new(1, 1, 0)).expect("memory").is_some());
}
