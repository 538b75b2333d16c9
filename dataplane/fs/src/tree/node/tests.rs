//! Nodes, against sorted lists; and nodes that are not what they should be.

use sietch_disk::Buffer;
use sietch_sim::Random;

use super::{Key, MAX_VALUE, Node, POINTER, Pointer, ROOM, item_bytes, reseal};
use crate::limits::BLOCK;

const SEED: u32 = 77;
const BLOCK_NUMBER: u32 = 12;

fn pointer(generation: u64, checksum: u32) -> Pointer {
    Pointer { block: BLOCK_NUMBER, generation, checksum }
}

fn key(random: &mut Random) -> Key {
    Key::new(random.below(3), random.below(3) as u8, random.below(1 << 20))
}

fn listed(node: &Node) -> Vec<(Key, Vec<u8>)> {
    (0..node.count()).map(|at| (node.key(at).expect("an item"), node.value(at).to_vec())).collect()
}

fn bytes_of(node: &mut Node) -> Buffer {
    let bytes = node.take_bytes();
    let mut copy = Buffer::new(BLOCK);
    copy.copy_from_slice(&bytes);
    node.return_bytes(bytes);
    copy
}

/// What is inserted, replaced, removed, divided and appended is what a list has; the bytes follow
/// from the items alone.
#[test]
fn a_node_is_a_sorted_list() {
    let mut random = Random::new(1);
    for _ in 0..60 {
        let mut node = Node::new(0, 5);
        let mut list: Vec<(Key, Vec<u8>)> = Vec::new();
        let most = *random.pick(&[0, 16, 300, MAX_VALUE as u64]);
        for _ in 0..600 {
            let key = key(&mut random);
            let mut value = vec![0; random.between(0, most) as usize];
            random.fill(&mut value);
            match node.search(&key) {
                Ok(at) if random.chance(500) => {
                    node.remove(at);
                    list.remove(at);
                }
                Ok(at) if node.used() - list[at].1.len() + value.len() <= ROOM => {
                    node.replace(at, &value);
                    list[at].1 = value;
                }
                Err(at) if node.fits(value.len()) => {
                    node.insert(at, key, &value);
                    list.insert(at, (key, value));
                }
                Err(at) => {
                    let division = node.divide_for(at, value.len());
                    let right = &mut node.split_off(division.keeps);
                    match division.right {
                        Some(at) => right.insert(at, key, &value),
                        None => node.insert(at, key, &value),
                    }
                    list.insert(at, (key, value));
                    assert!(node.count() > 0 && right.count() > 0);
                    assert!(node.used() <= ROOM && right.used() <= ROOM);
                    let mut both = listed(&node);
                    both.extend(listed(right));
                    assert_eq!(both, list);
                    list.truncate(node.count());
                    if node.used() + right.used() <= ROOM {
                        node.append(right, Key::MIN);
                        list = both;
                    }
                }
                Ok(_) => {}
            }
            assert_eq!(listed(&node), list);
            let used: usize = list.iter().map(|(_, value)| item_bytes(value.len())).sum();
            assert_eq!(node.used(), used);
        }
        let mut again = Node::new(0, 5);
        for (at, (key, value)) in list.iter().enumerate() {
            again.insert(at, *key, value);
        }
        let checksum = node.seal(SEED, BLOCK_NUMBER);
        assert_eq!(again.seal(SEED, BLOCK_NUMBER), checksum, "bytes of the past are left");
        let parsed = Node::parse(bytes_of(&mut node), SEED, pointer(5, checksum), 0).expect("sealed");
        assert_eq!(listed(&parsed), list);
    }
}

/// A node of another pool, place, generation or level, or with any other bit, is refused.
#[test]
fn only_the_node_of_the_pointer_is_accepted() {
    let mut node = Node::new(1, 5);
    for at in 0..20 {
        let child = Pointer { block: 90 + at as u32, generation: 4, checksum: 3 };
        node.insert_child(at, Key::new(at as u64, 0, 0), child);
    }
    let sum = node.seal(SEED, BLOCK_NUMBER);
    let parse = |bytes, seed, pointer, level| Node::parse(bytes, seed, pointer, level).map(drop);
    let good = pointer(5, sum);
    assert_eq!(parse(bytes_of(&mut node), SEED, good, 1), Ok(()));
    assert!(parse(bytes_of(&mut node), SEED + 1, good, 1).is_err());
    assert!(parse(bytes_of(&mut node), SEED, Pointer { block: BLOCK_NUMBER + 1, ..good }, 1).is_err());
    assert!(parse(bytes_of(&mut node), SEED, Pointer { generation: 6, ..good }, 1).is_err());
    assert!(parse(bytes_of(&mut node), SEED, Pointer { checksum: sum ^ 1, ..good }, 1).is_err());
    assert!(parse(bytes_of(&mut node), SEED, good, 0).is_err());
    assert!(parse(Buffer::new(0), SEED, good, 1).is_err());
    for bit in 0..BLOCK * 8 {
        let mut bytes = bytes_of(&mut node);
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(parse(bytes, SEED, good, 1).is_err(), "bit {bit}");
    }
}

/// Bytes with a right checksum that no node would have: what is accepted can be used.
#[test]
fn hostile_nodes_never_panic() {
    let mut random = Random::new(2);
    let (mut accepted, mut refused) = (0, 0);
    for _ in 0..20_000 {
        let level = random.below(2) as u8;
        let mut node = Node::new(level, 5);
        for at in 0..random.between(0, 60) as usize {
            let length = if level == 0 { random.below(40) as usize } else { POINTER };
            node.insert(at, Key::new(at as u64, 1, 0), &vec![1; length]);
        }
        let mut bytes = node.take_bytes();
        let slots = 24 + 20 * 61;
        for _ in 0..random.between(1, 6) {
            let at = if random.chance(900) { 16 + random.index(slots) } else { random.index(BLOCK) };
            bytes[at] = random.word() as u8;
        }
        let sum = reseal(&mut bytes, SEED, BLOCK_NUMBER);
        match Node::parse(bytes, SEED, pointer(5, sum), level) {
            Err(_) => refused += 1,
            Ok(mut node) => {
                accepted += 1;
                let items = listed(&node);
                assert!(items.windows(2).all(|pair| pair[0].0 < pair[1].0), "not in order");
                for (key, _) in &items {
                    node.child_for(key);
                }
                while node.count() > 0 {
                    let at = random.index(node.count());
                    if node.used() < ROOM / 2 && random.chance(300) {
                        drop(node.split_off(at));
                    } else {
                        node.remove(at);
                    }
                }
            }
        }
    }
    assert!(accepted > 1000 && refused > 1000, "{accepted} accepted, {refused} refused");
}
