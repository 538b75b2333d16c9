//! Golden file: a pool that an earlier version wrote still opens, and an unknown version is refused
//! by name.
//!
//! 1. The file holds the sectors that are not zero, of all media one behind the other: `offset u32,
//!    512 bytes` each.
//! 2. The pool of version 1 has the media that it was formatted with. That of version 2 has a table
//!    of them: one has left, and another one has joined.
//! 3. With `SIETCH_WRITE_GOLDEN=1` a missing file is written by the code at hand. One that exists
//!    is never changed.

use std::path::PathBuf;

use sietch_disk::{BLOCK, MemoryQueue};
use sietch_fs::Key;
use sietch_fs::pool::{
    Belonging, Class, Counters, Member, OpenError, Pool, Root, belonging, format, recorded_media,
};

use super::life::{Items, KIND_RUN, filled, judge_pool, options, read_all, run_value, value_run};

const SECTOR: usize = 512;
/// Blocks of the two media of version 1, and of the one that joins in version 2.
const BLOCKS: [usize; 3] = [512, 16, 40];
/// The key of that one.
const KEY: u64 = 0x0123_4567_89ab_cdef;

/// The media that `area` has.
fn split(area: &[u8]) -> Vec<Member<MemoryQueue>> {
    let kinds = [("home", Class::Nvm), ("disk", Class::Hdd), ("flash", Class::Ssd)];
    let (mut members, mut left) = (Vec::new(), area);
    for ((name, class), blocks) in kinds.into_iter().zip(BLOCKS) {
        if left.is_empty() {
            break;
        }
        let (bytes, behind) = left.split_at(blocks * BLOCK);
        let disk = MemoryQueue::from_bytes(bytes.to_vec());
        members.push(Member { name: name.to_owned(), class, disk });
        left = behind;
    }
    members
}

/// The media of a golden file, which `make` makes if it is to be written.
fn golden(name: &str, media: usize, make: fn() -> Vec<u8>) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if !path.exists() && std::env::var_os("SIETCH_WRITE_GOLDEN").is_some() {
        let mut packed = Vec::new();
        for (index, sector) in make().chunks(SECTOR).enumerate() {
            if sector.iter().any(|byte| *byte != 0) {
                packed.extend(((index * SECTOR) as u32).to_le_bytes());
                packed.extend(sector);
            }
        }
        std::fs::write(&path, packed).expect("a writable directory");
    }
    let packed = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut area = vec![0; BLOCKS[..media].iter().sum::<usize>() * BLOCK];
    for sector in packed.chunks(4 + SECTOR) {
        let at = u32::from_le_bytes([sector[0], sector[1], sector[2], sector[3]]) as usize;
        area[at..at + SECTOR].copy_from_slice(&sector[4..]);
    }
    area
}

fn area() -> Vec<u8> {
    golden("pool-v1", 2, make)
}

fn value(n: u64) -> Vec<u8> {
    vec![n as u8; (n as usize * 131) % 1201]
}

/// What the pool holds, but for its run.
fn items() -> Items {
    (0..24).filter(|n| n % 5 != 3).map(|n| (Key::new(1 + n / 7, n as u8 % 3, n * n), value(n))).collect()
}

/// Two commits: one with more items, one that removes some and writes data.
fn make() -> Vec<u8> {
    let mut members = split(&vec![0; (BLOCKS[0] + BLOCKS[1]) * BLOCK]);
    format(&mut members, &options(0x5157_5055)).expect("large enough");
    let mut pool = Pool::open(members).expect("formatted");
    let removed = |n: u64| Key::new(1 + n / 7, n as u8 % 3, n * n);
    for n in 0..24 {
        pool.insert(removed(n), &value(n)).expect("room");
    }
    pool.commit(Counters { inodes: 24, next_inode: 30 }).expect("memory");
    for n in (0..24).filter(|n| n % 5 == 3) {
        assert!(pool.remove(removed(n)).expect("memory"));
    }
    let run = pool.allocate(Class::Hdd, 1).expect("room");
    pool.write(run, filled(1, 9)).expect("memory");
    pool.insert(Key::new(8, KIND_RUN, 9), &run_value(run, 9)).expect("room");
    pool.commit(Counters { inodes: 20, next_inode: 31 }).expect("memory");
    pool.into_members().into_iter().flat_map(|member| member.disk.into_bytes()).collect()
}

/// That of version 1, in which another medium has taken the place of the disk, in another slot. The
/// disk's bytes stay in the file, as those of a medium that left.
fn make_with_table() -> Vec<u8> {
    let mut members = split(&[make(), vec![0; BLOCKS[2] * BLOCK]].concat());
    let flash = members.remove(2);
    let mut pool = Pool::open(members).expect("a pool");
    assert_eq!(pool.add_medium(flash, KEY).expect("room"), 2);
    let key = Key::new(8, KIND_RUN, 9);
    let (old, number) = value_run(&pool.get(key).expect("memory").expect("an item"));
    let new = pool.allocate(Class::Ssd, 1).expect("room");
    assert_eq!((old.medium, new.medium), (1, 2));
    pool.write(new, filled(1, number)).expect("memory");
    pool.insert(key, &run_value(new, number)).expect("room");
    pool.free(old).expect("it was in use");
    pool.commit(Counters { inodes: 20, next_inode: 31 }).expect("memory");
    let generation = pool.root().generation;
    pool.readers_at(generation);
    let disk = pool.remove_medium(1).expect("nothing is on it").expect("the disk");
    let mut members = pool.into_members();
    members.insert(1, disk);
    members.into_iter().flat_map(|member| member.disk.into_bytes()).collect()
}

/// The media of the golden file of version 2, with the one that left.
fn with_table() -> Vec<Member<MemoryQueue>> {
    split(&golden("pool-v2", 3, make_with_table))
}

/// The pool has all of its items, and takes another one.
fn verify_and_change(pool: &mut Pool<MemoryQueue>) {
    let mut found = read_all(pool).expect("whole");
    judge_pool(pool, &found).expect("whole");
    assert!(found.remove(&Key::new(8, KIND_RUN, 9)).is_some());
    assert_eq!(found, items());
    pool.insert(Key::new(1, 0, 1), b"new").expect("room");
    pool.commit(Counters::default()).expect("memory");
}

#[test]
fn a_pool_of_version_2_opens() {
    // Both generations have the table.
    let area = golden("pool-v2", 3, make_with_table);
    assert_eq!([0, 1, 2, 3].map(|copy| area[copy * BLOCK + 12]), [2; 4]);
    let mut members = with_table();
    drop(members.remove(1));
    let recorded = recorded_media(members).expect("the media of the pool");
    assert_eq!(recorded, [(Class::Nvm, 512), (Class::Ssd, 40)]);
    let mut members = with_table();
    drop(members.remove(1));
    let mut pool = Pool::open(members).expect("it opens");
    let root = pool.root();
    assert_eq!((root.generation, root.counters.inodes, root.counters.next_inode), (6, 20, 31));
    assert_eq!((pool.slots(), pool.blocks_of(2)), (vec![0, 2], 40));
    verify_and_change(&mut pool);
}

/// The medium that has left is not taken for the one that joined, nor the other way round.
#[test]
fn the_table_of_version_2_says_which_media_belong_to_the_pool() {
    let belongs = |at: usize| {
        let mut members = with_table();
        let other = members.remove(at);
        belonging(members.remove(0), other).expect("a pool")
    };
    assert_eq!((belongs(1), belongs(2)), (Belonging::Former, Belonging::Member(1)));
    let mut members = with_table();
    drop(members.remove(2));
    let error = Pool::open(members).map(drop).expect_err("the disk has left");
    assert!(matches!(error, OpenError::Swapped { found: 1, given: 2, .. }), "{error}");
    let error = Pool::open(with_table()).map(drop).expect_err("one medium too many");
    assert!(matches!(error, OpenError::Swapped { .. }), "{error}");
}

#[test]
fn a_pool_of_version_1_opens() {
    let mut pool = Pool::open(split(&area())).expect("it opens");
    let root = pool.root();
    assert_eq!((root.generation, root.counters.inodes, root.counters.next_inode), (3, 20, 31));
    assert_eq!(Root::from_bytes(&root.to_bytes()), Some(root));
    assert_eq!(pool.name_key(), options(0).name_key);
    verify_and_change(&mut pool);
}

#[test]
fn an_unknown_version_is_refused_by_name() {
    let mut area = area();
    for copy in 0..4 {
        let copy = &mut area[copy * BLOCK..][..BLOCK];
        copy[12..16].copy_from_slice(&7u32.to_le_bytes());
        let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &copy[12..]) as u32;
        copy[8..12].copy_from_slice(&crc.to_le_bytes());
    }
    let error = Pool::open(split(&area)).map(drop).expect_err("an unknown version");
    assert!(matches!(error, OpenError::Version { found: 7, known: 2, .. }), "{error}");
}
