use std::collections::HashMap;

use super::*;
use crate::Random;

#[test]
fn a_stale_key_finds_nothing() {
    let mut slab = Slab::new();
    let first = slab.insert('a');
    assert_eq!(slab.remove(first), Some('a'));
    let second = slab.insert('b');
    assert_eq!(second.index(), first.index());
    assert_eq!(slab.get(first), None);
    assert_eq!(slab.get_mut(first), None);
    assert_eq!(slab.remove(first), None);
    assert_eq!((slab.get(second), slab.at(first.index())), (Some(&'b'), Some(&'b')));
    assert_eq!((slab.len(), slab.keys().collect::<Vec<_>>()), (1, vec![second]));
}

#[test]
fn a_generation_is_never_zero() {
    let mut slab = Slab::new();
    let key = slab.insert(());
    slab.remove(key);
    slab.entries[0].generation = NonZeroU32::MAX;
    let last = slab.insert(());
    assert_eq!(last.generation(), u32::MAX);
    slab.remove(last);
    assert_eq!(slab.insert(()).generation(), 1);
}

#[test]
fn a_key_survives_as_a_word() {
    let mut slab = Slab::new();
    slab.insert(1);
    let key = slab.insert(2);
    assert_eq!(Key::from_word(key.to_word()), Some(key));
    assert_eq!(Key::from_word(0), None);
    // Words from elsewhere: without a generation, and of an index that was never used.
    assert_eq!(Key::from_word(1), None);
    assert_eq!(Key::from_word(u64::MAX).map(|forged| slab.get(forged)), Some(None));
}

#[test]
fn behaves_as_a_map_from_keys_to_values() {
    let mut random = Random::new(1);
    let (mut slab, mut model, mut keys) = (Slab::new(), HashMap::new(), Vec::new());
    for value in 0..10_000 {
        if random.chance(550) {
            let key = slab.insert(value);
            assert_eq!(model.insert(key, value), None, "a key is given once");
            keys.push(key);
        } else if !keys.is_empty() {
            let key = *random.pick(&keys);
            assert_eq!(slab.remove(key), model.remove(&key));
        }
        assert_eq!(slab.len(), model.len());
        if !keys.is_empty() {
            let key = *random.pick(&keys);
            assert_eq!(slab.get(key), model.get(&key));
        }
    }
    let found: HashMap<Key, i32> = slab.iter().map(|(key, value)| (key, *value)).collect();
    assert_eq!(found, model);
    assert!(slab.iter().all(|(key, _)| slab.key_at(key.index()) == Some(key)));
}
