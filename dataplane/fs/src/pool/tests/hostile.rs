//! Pools that no commit has made, with right checksums: whatever is called ends, and does not
//! panic.

use sietch_disk::{BLOCK, Buffer, MemoryQueue};
use sietch_sim::Random;
use sietch_sim::seeds::{self, Budget};

use super::{Class, Counters, Member, OPTIONS, Pool, check, members, new_pool, random_key, random_value};
use crate::pool::superblock::Superblock;
use crate::tree::{Key, Node, Pointer, reseal, seed};

type Images = Vec<Vec<u8>>;

fn images(pool: Pool<MemoryQueue>) -> Images {
    pool.into_members().into_iter().map(|member| member.disk.into_bytes()).collect()
}

fn queues(images: Images) -> Vec<Member<MemoryQueue>> {
    let mut members = members(&vec![1; images.len()]);
    for (member, image) in members.iter_mut().zip(images) {
        member.disk = MemoryQueue::from_bytes(image);
    }
    members
}

fn block(image: &[u8], block: u32) -> Buffer {
    let mut bytes = Buffer::new(BLOCK);
    bytes.copy_from_slice(&image[block as usize * BLOCK..][..BLOCK]);
    bytes
}

/// Changes the node below `pointer` that the way of `random` leads to, and all checksums above it.
fn forge(home: &mut [u8], pointer: Pointer, level: u8, random: &mut Random) -> Pointer {
    let seed = seed(OPTIONS.identity);
    let mut bytes = block(home, pointer.block);
    if level > 0 && random.chance(700) {
        let mut node = Node::parse(bytes, seed, pointer, level).expect("committed");
        // The first child has the items of the pool.
        let at = if random.chance(400) { 0 } else { random.index(node.count()) };
        let mut child = forge(home, node.child(at), level - 1, random);
        match random.below(20) {
            0 => child = node.child(random.index(node.count())),
            1 => child.block = random.below(3000) as u32,
            _ => {}
        }
        node.set_child(at, child);
        bytes = node.take_bytes();
    } else {
        for _ in 0..random.between(1, 4) {
            let at = if random.chance(700) { 16 + random.index(400) } else { random.index(BLOCK) };
            bytes[at] = *random.pick(&[0, 1, 2, 255, random.clone().word() as u8]);
        }
        if random.chance(500) {
            // What the pool's own items say is at the end of the first leaf.
            let at = BLOCK - 1 - random.index(120);
            bytes[at] = random.word() as u8;
        }
    }
    let checksum = reseal(&mut bytes, seed, pointer.block);
    let generation = u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes"));
    home[pointer.block as usize * BLOCK..][..BLOCK].copy_from_slice(&bytes);
    Pointer { checksum, generation, ..pointer }
}

fn use_it(images: Images, random: &mut Random) -> bool {
    let Ok(mut pool) = Pool::open_with(queues(images), 10) else { return false };
    pool.readers_at(u64::MAX);
    drop(check(&mut pool, &mut |_, _, _| Ok(())));
    let mut from = Key::MIN;
    // More items than a pool of this size can have would be an endless loop.
    for _ in 0..200_000 {
        let Ok(Some((key, _))) = pool.next(from) else { break };
        assert!(key >= from, "next goes backwards");
        from = match key.offset.checked_add(1) {
            Some(offset) => Key { offset, ..key },
            None => break,
        };
    }
    for _ in 0..60 {
        let key = random_key(random);
        drop(pool.get(key));
        drop(pool.previous(key));
        if random.chance(600) {
            drop(pool.insert(key, &random_value(random)));
        } else {
            drop(pool.remove(key));
        }
        if let Ok(run) = pool.allocate(Class::Ssd, 3) {
            drop(pool.write(run, Buffer::new(3 * BLOCK)));
            drop(pool.free(run));
        }
    }
    drop(pool.commit(Counters::default()));
    drop(check(&mut pool, &mut |_, _, _| Ok(())));
    true
}

#[test]
fn forged_pools_never_panic_and_always_end() {
    let mut random = Random::new(5);
    let mut pool = new_pool(&[2048, 64], 1000);
    for _ in 0..2500 {
        pool.insert(random_key(&mut random), &random_value(&mut random)).expect("room");
    }
    pool.commit(Counters::default()).expect("memory");
    let good = images(pool);
    let opened = std::sync::atomic::AtomicU64::new(0);
    let budget = Budget { seeds: 1500, seconds: 5 };
    seeds::run("lib pool::tests::hostile::forged", &[], budget, |seed| {
        let mut random = Random::new(seed);
        let mut images = good.clone();
        let newest = (0..4).filter_map(|copy| Superblock::read(&block(&images[0], copy)).ok());
        let mut superblock = newest.max_by_key(|found| found.root.generation).expect("committed");
        let root = &mut superblock.root;
        assert!(root.level > 0, "a tree of one node");
        root.pointer = forge(&mut images[0], root.pointer, root.level, &mut random);
        match random.below(30) {
            0 => root.level = random.below(13) as u8,
            1 => root.pointer.block = random.below(4000) as u32,
            2 => superblock.media = random.word() as u8,
            3 => superblock.blocks = random.below(2048) as u32,
            _ => {}
        }
        for copy in 0..4 {
            images[0][copy * BLOCK..][..BLOCK].copy_from_slice(&superblock.write());
        }
        if use_it(images, &mut random) {
            opened.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    });
    assert!(opened.into_inner() > 50, "hardly any of them opens");
}
