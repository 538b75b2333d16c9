//! Each type behaves like its plain counterpart of the standard library, in all its
//! representations.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

fn names() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        6 => (0..400u32).prop_map(|n| format!("n{n}").into_bytes()),
        6 => (0..400i32).prop_map(|n| (n - 200).to_string().into_bytes()),
        1 => (60..70usize).prop_map(|length| vec![b'x'; length]),
    ]
}

#[derive(Debug, Clone)]
enum ListStep {
    Push(bool, u8),
    PushMany(bool, u16),
    Pop(bool),
    Set(usize, u8),
    Insert(usize, u8),
    Remove(u8, usize, bool),
    Trim(usize, usize),
}

fn list_step() -> impl Strategy<Value = ListStep> {
    prop_oneof![
        (any::<bool>(), 0..9u8).prop_map(|(front, x)| ListStep::Push(front, x)),
        (any::<bool>(), 1..400u16).prop_map(|(front, n)| ListStep::PushMany(front, n)),
        any::<bool>().prop_map(ListStep::Pop),
        (0..1000usize, 0..9u8).prop_map(|(at, x)| ListStep::Set(at, x)),
        (0..1000usize, 0..9u8).prop_map(|(at, x)| ListStep::Insert(at, x)),
        (0..9u8, 1..200usize, any::<bool>()).prop_map(|(x, n, back)| ListStep::Remove(x, n, back)),
        (0..100usize, 100..1500usize).prop_map(|(start, count)| ListStep::Trim(start, count)),
    ]
}

/// The oracle's side of [`ListStep::Remove`]: the positions of what goes.
fn equal(oracle: &[Vec<u8>], element: &[u8], limit: usize, back: bool) -> Vec<usize> {
    let mut places: Vec<usize> = (0..oracle.len()).filter(|&at| oracle[at] == element).collect();
    if back {
        places.reverse();
    }
    places.truncate(limit);
    places.sort_unstable();
    places
}

/// What a value takes in effects is no more than it says, and not much less, under keys of any
/// length.
fn is_bounded(value: &Value) -> Result<(), TestCaseError> {
    for length in [0, 10, 5000] {
        let key = vec![b'k'; length];
        let mut bytes = Vec::new();
        value.commands(&key, &mut |command| crate::data::journal::encode(&mut bytes, 15, command));
        let bound = value.dumped(length);
        prop_assert!(bytes.len() <= bound, "{} bytes, {bound} at most", bytes.len());
        prop_assert!(bound <= 4 * bytes.len() + 2 * length + 2000, "{bound} for {} bytes", bytes.len());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn a_list_is_a_vector(steps in prop::collection::vec(list_step(), 1..60)) {
        let mut list = List::new();
        let mut oracle: Vec<Vec<u8>> = Vec::new();
        for step in steps {
            match step {
                ListStep::Push(front, x) => {
                    list.push(front, &[x]);
                    oracle.insert(if front { 0 } else { oracle.len() }, vec![x]);
                }
                ListStep::PushMany(front, many) => for n in 0..many {
                    list.push(front, &[(n % 9) as u8]);
                    oracle.insert(if front { 0 } else { oracle.len() }, vec![(n % 9) as u8]);
                },
                ListStep::Pop(front) => {
                    let expected = if oracle.is_empty() { None }
                        else { Some(oracle.remove(if front { 0 } else { oracle.len() - 1 })) };
                    prop_assert_eq!(list.pop(front).map(Vec::from), expected);
                }
                ListStep::Set(at, x) => {
                    prop_assert_eq!(list.set(at, &[x, x]), at < oracle.len());
                    if let Some(old) = oracle.get_mut(at) { *old = vec![x, x]; }
                }
                ListStep::Insert(at, x) => {
                    let at = at.min(oracle.len());
                    list.insert(at, &[x]);
                    oracle.insert(at, vec![x]);
                }
                ListStep::Remove(x, limit, back) => {
                    let head = oracle.len() / 2;
                    let places = equal(&oracle, &[x], limit, back);
                    let of_head = places.iter().filter(|&&at| at < head).count();
                    prop_assert_eq!(list.remove_equal(&[x], limit, back, head), (places.len(), of_head));
                    places.iter().rev().for_each(|&at| _ = oracle.remove(at));
                }
                ListStep::Trim(start, count) => {
                    list.trim(start, count);
                    oracle = oracle.into_iter().skip(start).take(count).collect();
                }
            }
            prop_assert_eq!(list.len(), oracle.len());
            let middle = oracle.len() / 3;
            prop_assert_eq!(list.get(middle), oracle.get(middle).map(Vec::as_slice));
            prop_assert!(list.iter_from(middle).eq(oracle.iter().skip(middle)));
        }
        prop_assert!(list.iter().eq(oracle.iter()));
        prop_assert!(list.iter().rev().eq(oracle.iter().rev()));
        while list.len() > 0 { list.pop_back(); }
        prop_assert!(list.memory() < 4096);
    }

    #[test]
    fn a_set_is_a_set(steps in prop::collection::vec((any::<bool>(), names()), 1..700), seed in any::<u64>()) {
        let mut set = Set::new(seed);
        let mut oracle = BTreeSet::new();
        for (put, name) in steps {
            if put {
                prop_assert_eq!(set.insert(&name), oracle.insert(name.clone()));
            } else {
                prop_assert_eq!(set.remove(&name), oracle.remove(&name));
            }
            prop_assert_eq!(set.contains(&name), oracle.contains(&name));
        }
        prop_assert_eq!(set.len(), oracle.len());
        let mut seen = BTreeSet::new();
        let mut cursor = 0;
        loop {
            cursor = set.scan(cursor, 10, &mut |member| { seen.insert(member.to_vec()); });
            if cursor == 0 { break; }
        }
        prop_assert_eq!(seen, oracle.clone());
        prop_assert_eq!(set.to_vec().into_iter().collect::<BTreeSet<_>>(), oracle);
        is_bounded(&Value::Set(Box::new(set)))?;
    }

    #[test]
    fn a_hash_is_a_map(steps in prop::collection::vec((any::<bool>(), names(), names()), 1..500), seed in any::<u64>()) {
        let mut hash = Hash::new(seed);
        let mut oracle = BTreeMap::new();
        for (put, name, value) in steps {
            if put {
                prop_assert_eq!(hash.insert(&name, &value), oracle.insert(name.clone(), value).is_none());
            } else {
                prop_assert_eq!(hash.remove(&name), oracle.remove(&name).is_some());
            }
            prop_assert_eq!(hash.get(&name), oracle.get(&name).map(Vec::as_slice));
        }
        let all: BTreeMap<_, _> = hash.iter().map(|field| (field.name.to_vec(), field.value.to_vec())).collect();
        prop_assert_eq!(hash.len(), all.len());
        is_bounded(&Value::Hash(Box::new(hash)))?;
        prop_assert_eq!(all, oracle);
    }

    #[test]
    fn a_sorted_set_keeps_order_and_ranks(steps in prop::collection::vec((0..5u8, names(), -20..20i32), 1..900), seed in any::<u64>()) {
        let mut sorted = SortedSet::new(seed);
        let mut oracle: BTreeMap<Vec<u8>, i32> = BTreeMap::new();
        for (kind, name, score) in steps {
            if kind == 0 {
                prop_assert_eq!(sorted.remove(&name), oracle.remove(&name).map(f64::from));
            } else {
                prop_assert_eq!(sorted.insert(&name, f64::from(score)), oracle.insert(name, score).map(f64::from));
            }
        }
        sorted.check();
        let mut order: Vec<(i32, Vec<u8>)> = oracle.iter().map(|(name, &score)| (score, name.clone())).collect();
        order.sort();
        let forward: Vec<_> = sorted.range(0, usize::MAX, false).map(|(name, score)| (score as i32, name.to_vec())).collect();
        prop_assert_eq!(&forward, &order);
        let middle = order.len() / 3;
        let mut backward: Vec<_> = sorted.range(middle, usize::MAX, true).map(|(name, score)| (score as i32, name.to_vec())).collect();
        backward.reverse();
        prop_assert_eq!(&backward[..], &order[..order.len() - middle]);
        for (rank, (score, name)) in order.iter().enumerate().step_by(7) {
            prop_assert_eq!(sorted.rank(name), Some(rank));
            prop_assert_eq!(sorted.score(name), Some(f64::from(*score)));
        }
        for bound in [-21, -3, 0, 19] {
            let expected = order.partition_point(|(score, _)| *score < bound);
            prop_assert_eq!(sorted.partition_point(&|score, _| score < f64::from(bound)), expected);
        }
        let taken = sorted.remove_range(middle, 50);
        prop_assert_eq!(taken.len(), 50.min(order.len() - middle));
        sorted.check();
        is_bounded(&Value::SortedSet(Box::new(sorted)))?;
    }
}

#[test]
fn a_big_sorted_set_grows_and_shrinks_in_order() {
    let mut sorted = SortedSet::new(7);
    for n in 0..20_000u32 {
        let scattered = n.wrapping_mul(2_654_435_761);
        sorted.insert(format!("m{n}").as_bytes(), f64::from(scattered));
    }
    sorted.check();
    let scores: Vec<f64> = sorted.range(0, 20_000, false).map(|(_, score)| score).collect();
    assert!(scores.is_sorted() && scores.len() == 20_000);
    for n in (0..20_000u32).filter(|n| n % 10 != 3) {
        assert!(sorted.remove(format!("m{n}").as_bytes()).is_some());
    }
    sorted.check();
    assert_eq!(sorted.range(0, 20_000, true).count(), 2000);
    assert!(!sorted.release(100));
    while !sorted.release(500) {}
}

#[test]
fn encodings_change_where_redis_changes_them() {
    let mut set = Set::new(1);
    (0..512).for_each(|n| assert!(set.insert(n.to_string().as_bytes())));
    assert_eq!(set.encoding(), "intset");
    set.insert(b"512");
    assert_eq!(set.encoding(), "hashtable");
    let mut hash = Hash::new(1);
    (0..512).for_each(|n| assert!(hash.insert(n.to_string().as_bytes(), &[b'v'; 64])));
    hash.insert(b"0", b"");
    assert_eq!((hash.encoding(), hash.len()), ("listpack", 512));
    hash.insert(b"512", b"");
    assert_eq!((hash.encoding(), hash.len()), ("hashtable", 513));
    hash.remove(b"512");
    assert_eq!(hash.encoding(), "hashtable");
    let mut hash = Hash::new(1);
    hash.insert(b"f", &[b'v'; 65]);
    assert_eq!(hash.encoding(), "hashtable");
    let mut sorted = SortedSet::new(1);
    (0..128).for_each(|n| assert!(sorted.insert(n.to_string().as_bytes(), 1.0).is_none()));
    assert_eq!(sorted.encoding(), "listpack");
    sorted.insert(b"128", 1.0);
    assert_eq!((sorted.encoding(), sorted.len()), ("skiplist", 129));
    for (text, encoding) in
        [(&b"12"[..], "int"), (b"012", "embstr"), (&[b'x'; 44], "embstr"), (&[b'x'; 45], "raw")]
    {
        assert_eq!(StringValue::new(text).encoding(), encoding);
    }
    let mut string = StringValue::new(b"1");
    string.grow().push(b'2');
    assert_eq!((string.encoding(), string.integer()), ("raw", Some(12)));
}

#[test]
fn commands_rebuild_a_value() {
    let mut sorted = SortedSet::new(1);
    (0..200).for_each(|n| assert!(sorted.insert(format!("m{n}").as_bytes(), f64::from(n) / 3.0).is_none()));
    let value = Value::SortedSet(Box::new(sorted.clone()));
    let mut rebuilt = SortedSet::new(2);
    value.commands(b"k", &mut |command| {
        assert_eq!(command[..2], [&b"ZADD"[..], b"k"]);
        assert!(command.len() <= 2 + COMMAND_ELEMENTS);
        for pair in command[2..].chunks(2) {
            rebuilt.insert(pair[1], crate::foundation::text::number::parse_float(pair[0]).unwrap());
        }
    });
    assert!(rebuilt.range(0, 200, false).eq(sorted.range(0, 200, false)));
}
