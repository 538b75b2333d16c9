//! Golden file: a pool that an earlier version wrote still opens, and an unknown version is refused
//! by name.
//!
//! 1. The file holds the sectors that are not zero, of all media one behind the other: `offset u32,
//!    512 bytes` each.
//! 2. With `SIETCH_WRITE_GOLDEN=1` a missing file is written by the code at hand. One that exists
//!    is never changed.

use std::path::PathBuf;

use sietch_disk::{BLOCK, MemoryQueue};
use sietch_fs::Key;
use sietch_fs::pool::{Class, Counters, Member, OpenError, Pool, Root, format};

use super::life::{Items, KIND_RUN, filled, judge_pool, options, read_all, run_value};

const SECTOR: usize = 512;
/// Blocks of the two media.
const BLOCKS: [usize; 2] = [512, 16];

fn split(area: &[u8]) -> Vec<Member<MemoryQueue>> {
    let (home, other) = area.split_at(BLOCKS[0] * BLOCK);
    let member = |name: &str, class, bytes: &[u8]| Member {
        name: name.to_owned(),
        class,
        disk: MemoryQueue::from_bytes(bytes.to_vec()),
    };
    vec![member("home", Class::Nvm, home), member("disk", Class::Hdd, other)]
}

fn area() -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/pool-v1");
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
    let mut area = vec![0; (BLOCKS[0] + BLOCKS[1]) * BLOCK];
    for sector in packed.chunks(4 + SECTOR) {
        let at = u32::from_le_bytes([sector[0], sector[1], sector[2], sector[3]]) as usize;
        area[at..at + SECTOR].copy_from_slice(&sector[4..]);
    }
    area
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

#[test]
fn a_pool_of_version_1_opens() {
    let mut pool = Pool::open(split(&area())).expect("it opens");
    let root = pool.root();
    assert_eq!((root.generation, root.counters.inodes, root.counters.next_inode), (3, 20, 31));
    assert_eq!(Root::from_bytes(&root.to_bytes()), Some(root));
    assert_eq!(pool.name_key(), options(0).name_key);
    let mut found = read_all(&mut pool).expect("whole");
    judge_pool(&mut pool, &found).expect("whole");
    assert!(found.remove(&Key::new(8, KIND_RUN, 9)).is_some());
    assert_eq!(found, items());
    pool.insert(Key::new(1, 0, 1), b"new").expect("room");
    pool.commit(Counters::default()).expect("memory");
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
