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

/// Thresholds of every size, and a seed.
fn rules() -> impl Strategy<Value = Rules> {
    let size = || prop_oneof![Just(0), Just(1), Just(5), Just(128), Just(512), Just(100_000)];
    let list = prop_oneof![Just(-5), Just(-2), Just(-1), Just(1), Just(3), Just(200)];
    (any::<u64>(), [size(), size(), size()], list).prop_map(|(seed, sizes, list)| {
        let mut rules = Rules::with_seed(seed);
        let names = ["hash-max-listpack-entries", "zset-max-listpack-entries", "set-max-intset-entries"];
        for (name, size) in names.into_iter().zip(sizes) {
            rules.limits.set(name, &size.to_string()).expect("a number");
        }
        rules.limits.set("list-max-listpack-size", &list.to_string()).expect("a number");
        rules
    })
}

/// An element of a list: integers and strings, some of them longer than a small list may be.
fn element(x: u8) -> Vec<u8> {
    match x {
        0 => Vec::new(),
        1..4 => (i64::from(x) - 2).to_string().into_bytes(),
        4 => vec![b'l'; 300],
        5 => vec![b'l'; 3000],
        17 => vec![b'l'; 9000],
        x => format!("element {x}").into_bytes(),
    }
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
        value.view().commands(&key, &mut |command| crate::data::journal::encode(&mut bytes, 15, command));
        let bound = value.view().dumped(length);
        prop_assert!(bytes.len() <= bound, "{} bytes, {bound} at most", bytes.len());
        prop_assert!(bound <= 4 * bytes.len() + 2 * length + 2000, "{bound} for {} bytes", bytes.len());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn a_list_is_a_vector(rules in rules(), steps in prop::collection::vec(list_step(), 1..60)) {
        let (mut list, rules) = (List::new(), rules);
        let mut oracle: Vec<Vec<u8>> = Vec::new();
        for step in steps {
            match step {
                ListStep::Push(front, x) => {
                    list.push(front, &element(x), &rules);
                    oracle.insert(if front { 0 } else { oracle.len() }, element(x));
                }
                ListStep::PushMany(front, many) => for n in 0..many {
                    list.push(front, &element((n % 9) as u8), &rules);
                    oracle.insert(if front { 0 } else { oracle.len() }, element((n % 9) as u8));
                },
                ListStep::Pop(front) => {
                    let expected = if oracle.is_empty() { None }
                        else { Some(oracle.remove(if front { 0 } else { oracle.len() - 1 })) };
                    prop_assert_eq!(list.pop(front).map(Vec::from), expected);
                }
                ListStep::Set(at, x) => {
                    prop_assert_eq!(list.set(at, &element(x + 9), &rules), at < oracle.len());
                    if let Some(old) = oracle.get_mut(at) { *old = element(x + 9); }
                }
                ListStep::Insert(at, x) => {
                    let at = at.min(oracle.len());
                    list.insert(at, &element(x), &rules);
                    oracle.insert(at, element(x));
                }
                ListStep::Remove(x, limit, back) => {
                    let head = oracle.len() / 2;
                    let places = equal(&oracle, &element(x), limit, back);
                    let of_head = places.iter().filter(|&&at| at < head).count();
                    prop_assert_eq!(list.remove_equal(&element(x), limit, back, head), (places.len(), of_head));
                    places.iter().rev().for_each(|&at| _ = oracle.remove(at));
                }
                ListStep::Trim(start, count) => {
                    list.trim(start, count);
                    oracle = oracle.into_iter().skip(start).take(count).collect();
                }
            }
            prop_assert_eq!(list.view().len(), oracle.len());
            let middle = oracle.len() / 3;
            prop_assert_eq!(list.view().get(middle).map(|element| element.to_vec()), oracle.get(middle).cloned());
            prop_assert_eq!(list.view().content(), oracle.iter().map(|element| argument(element.len())).sum::<usize>());
            prop_assert!(list.view().iter_from(middle).map(|element| element.to_vec()).eq(oracle.iter().skip(middle).cloned()));
        }
        prop_assert!(list.view().iter().map(|element| element.to_vec()).eq(oracle.iter().cloned()));
        prop_assert!(list.view().iter().rev().map(|element| element.to_vec()).eq(oracle.iter().rev().cloned()));
        while list.view().len() > 0 { list.pop(false); }
        prop_assert!(list.view().memory() < 512, "{}", list.view().memory());
        prop_assert_eq!(list.view().content(), 0);
    }

    #[test]
    fn a_set_is_a_set(steps in prop::collection::vec((any::<bool>(), names()), 1..700), rules in rules()) {
        let mut set = Set::new();
        let mut oracle = BTreeSet::new();
        for (put, name) in steps {
            if put {
                prop_assert_eq!(set.insert(&name, &rules), oracle.insert(name.clone()));
            } else {
                prop_assert_eq!(set.remove(&name), oracle.remove(&name));
            }
            prop_assert_eq!(set.view().contains(&name), oracle.contains(&name));
        }
        prop_assert_eq!(set.view().len(), oracle.len());
        let mut seen = BTreeSet::new();
        let mut cursor = 0;
        loop {
            cursor = set.view().scan(cursor, 10, &mut |member| { seen.insert(member.to_vec()); });
            if cursor == 0 { break; }
        }
        prop_assert_eq!(seen, oracle.clone());
        prop_assert_eq!(set.view().to_vec().into_iter().collect::<BTreeSet<_>>(), oracle);
        is_bounded(&Value::Set(set))?;
    }

    #[test]
    fn a_hash_is_a_map(steps in prop::collection::vec((any::<bool>(), names(), names()), 1..500), rules in rules()) {
        let mut hash = Hash::new();
        let mut oracle = BTreeMap::new();
        for (put, name, value) in steps {
            if put {
                prop_assert_eq!(hash.insert(&name, &value, &rules), oracle.insert(name.clone(), value).is_none());
            } else {
                prop_assert_eq!(hash.remove(&name), oracle.remove(&name).is_some());
            }
            prop_assert_eq!(hash.view().get(&name).map(|value| value.to_vec()), oracle.get(&name).cloned());
        }
        let all: BTreeMap<_, _> = hash.view().iter().map(|field| (field.name.to_vec(), field.value.to_vec())).collect();
        prop_assert_eq!(hash.view().len(), all.len());
        let content = |text: &[u8]| argument(text.len());
        let exact: usize = hash.view().iter().map(|field| content(&field.name) + content(&field.value)).sum();
        prop_assert_eq!(hash.view().content(), exact);
        is_bounded(&Value::Hash(hash))?;
        prop_assert_eq!(all, oracle);
    }

    #[test]
    fn a_sorted_set_keeps_order_and_ranks(steps in prop::collection::vec((0..5u8, names(), -20..20i32), 1..900), rules in rules()) {
        let mut sorted = SortedSet::new();
        let mut oracle: BTreeMap<Vec<u8>, i32> = BTreeMap::new();
        for (kind, name, score) in steps {
            if kind == 0 {
                prop_assert_eq!(sorted.remove(&name), oracle.remove(&name).map(f64::from));
            } else {
                prop_assert_eq!(sorted.insert(&name, f64::from(score), &rules), oracle.insert(name, score).map(f64::from));
            }
        }
        sorted.check();
        let mut order: Vec<(i32, Vec<u8>)> = oracle.iter().map(|(name, &score)| (score, name.clone())).collect();
        order.sort();
        let forward: Vec<_> = sorted.view().range(0, usize::MAX, false).map(|(name, score)| (score as i32, name.to_vec())).collect();
        prop_assert_eq!(&forward, &order);
        let middle = order.len() / 3;
        let mut backward: Vec<_> = sorted.view().range(middle, usize::MAX, true).map(|(name, score)| (score as i32, name.to_vec())).collect();
        backward.reverse();
        prop_assert_eq!(&backward[..], &order[..order.len() - middle]);
        for (rank, (score, name)) in order.iter().enumerate().step_by(7) {
            prop_assert_eq!(sorted.view().rank(name), Some(rank));
            prop_assert_eq!(sorted.view().score(name), Some(f64::from(*score)));
        }
        for bound in [-21, -3, 0, 19] {
            let expected = order.partition_point(|(score, _)| *score < bound);
            prop_assert_eq!(sorted.view().partition_point(&|score, _| score < f64::from(bound)), expected);
        }
        let taken = sorted.remove_range(middle, 50);
        prop_assert_eq!(taken.len(), 50.min(order.len() - middle));
        sorted.check();
        is_bounded(&Value::SortedSet(sorted))?;
    }
}

#[test]
fn a_big_sorted_set_grows_and_shrinks_in_order() {
    let (mut sorted, rules) = (SortedSet::new(), Rules::with_seed(7));
    for n in 0..20_000u32 {
        let scattered = n.wrapping_mul(2_654_435_761);
        sorted.insert(format!("m{n}").as_bytes(), f64::from(scattered), &rules);
    }
    sorted.check();
    let scores: Vec<f64> = sorted.view().range(0, 20_000, false).map(|(_, score)| score).collect();
    assert!(scores.is_sorted() && scores.len() == 20_000);
    for n in (0..20_000u32).filter(|n| n % 10 != 3) {
        assert!(sorted.remove(format!("m{n}").as_bytes()).is_some());
    }
    sorted.check();
    assert_eq!(sorted.view().range(0, 20_000, true).count(), 2000);
    assert!(!sorted.release(100));
    while !sorted.release(500) {}
}

#[test]
fn encodings_change_where_redis_changes_them() {
    let rules = Rules::with_seed(1);
    let mut set = Set::new();
    (0..512).for_each(|n| assert!(set.insert(n.to_string().as_bytes(), &rules)));
    assert_eq!(set.view().encoding(), "intset");
    set.insert(b"512", &rules);
    assert_eq!(set.view().encoding(), "hashtable");
    let mut hash = Hash::new();
    (0..512).for_each(|n| assert!(hash.insert(n.to_string().as_bytes(), &[b'v'; 64], &rules)));
    hash.insert(b"0", b"", &rules);
    assert_eq!((hash.view().encoding(), hash.view().len()), ("listpack", 512));
    hash.insert(b"512", b"", &rules);
    assert_eq!((hash.view().encoding(), hash.view().len()), ("hashtable", 513));
    hash.remove(b"512");
    assert_eq!(hash.view().encoding(), "hashtable");
    for (name, value) in [(1, 65), (65, 1)] {
        let mut hash = Hash::new();
        hash.insert(&vec![b'n'; name], &vec![b'v'; value], &rules);
        assert_eq!(hash.view().encoding(), "hashtable");
    }
    let mut sorted = SortedSet::new();
    (0..128).for_each(|n| assert!(sorted.insert(n.to_string().as_bytes(), 1.0, &rules).is_none()));
    assert_eq!(sorted.view().encoding(), "listpack");
    sorted.insert(b"128", 1.0, &rules);
    assert_eq!((sorted.view().encoding(), sorted.view().len()), ("skiplist", 129));
    let mut sorted = SortedSet::new();
    sorted.insert(&[b'm'; 64], 1.0, &rules);
    assert_eq!(sorted.view().encoding(), "listpack");
    sorted.insert(&[b'm'; 65], 1.0, &rules);
    assert_eq!(sorted.view().encoding(), "skiplist");
    for (text, encoding) in
        [(&b"12"[..], "int"), (b"012", "embstr"), (&[b'x'; 44], "embstr"), (&[b'x'; 45], "raw")]
    {
        assert_eq!(StringValue::new(text).view().encoding(), encoding);
    }
    let mut string = StringValue::new(b"1");
    string.grow().push(b'2');
    assert_eq!((string.view().encoding(), string.view().integer()), ("raw", Some(12)));
}

#[test]
fn commands_rebuild_a_value() {
    let rules = Rules::with_seed(1);
    let mut sorted = SortedSet::new();
    (0..200).for_each(|n| {
        assert!(sorted.insert(format!("m{n}").as_bytes(), f64::from(n) / 3.0, &rules).is_none());
    });
    let value = Value::SortedSet(sorted.clone());
    let mut rebuilt = SortedSet::new();
    value.view().commands(b"k", &mut |command| {
        assert_eq!(command[..2], [&b"ZADD"[..], b"k"]);
        assert!(command.len() <= 2 + view::COMMAND_ELEMENTS);
        for pair in command[2..].chunks(2) {
            rebuilt.insert(pair[1], crate::foundation::text::number::parse_float(pair[0]).unwrap(), &rules);
        }
    });
    let all = |set: &SortedSet| -> Vec<(Vec<u8>, f64)> {
        set.view().range(0, 200, false).map(|(name, score)| (name.to_vec(), score)).collect()
    };
    assert_eq!(all(&rebuilt), all(&sorted));
}

/// Past the limits of packed forms a collection is a table, and has the name that Redis gives it.
#[test]
fn thresholds_beyond_the_limits_change_names_only() {
    let mut rules = Rules::with_seed(1);
    for name in ["hash-max-listpack-entries", "hash-max-listpack-value", "zset-max-listpack-entries"] {
        rules.limits.set(name, "1000000").expect("a number");
    }
    rules.limits.set("set-max-intset-entries", "1000000").expect("a number");
    let (mut hash, mut long, mut sorted, mut set) = (Hash::new(), Hash::new(), SortedSet::new(), Set::new());
    for n in 0..20_000u32 {
        let text = n.to_string().into_bytes();
        assert!(hash.insert(&text, &text, &rules) && set.insert(&text, &rules));
        assert!(sorted.insert(&text, f64::from(n), &rules).is_none());
    }
    long.insert(b"f", &vec![b'v'; 200_000], &rules);
    assert_eq!((hash.view().encoding(), long.view().encoding()), ("listpack", "listpack"));
    assert_eq!((sorted.view().encoding(), set.view().encoding()), ("listpack", "intset"));
    sorted.check();
    assert!(hash.view().scan(0, 10, &mut |_| {}) > 0, "it is a table that is scanned in parts");
    rules = Rules::with_seed(1);
    hash.insert(b"0", b"1", &rules);
    long.insert(b"g", b"1", &rules);
    sorted.insert(b"x", 1.0, &rules);
    set.insert(b"-1", &rules);
    assert_eq!((hash.view().encoding(), long.view().encoding()), ("hashtable", "listpack"));
    assert_eq!((sorted.view().encoding(), set.view().encoding()), ("skiplist", "hashtable"));
    assert_eq!((hash.view().len(), sorted.view().len(), set.view().len()), (20_000, 20_001, 20_001));
}

/// The figures of `value.rs`: what an element of 8 bytes takes.
#[test]
fn an_element_takes_what_the_table_says() {
    let rules = Rules::with_seed(1);
    let (mut list, mut hash, mut sorted, mut set) = (List::new(), Hash::new(), SortedSet::new(), Set::new());
    for n in 0..100_000u32 {
        let text = format!("e{n:07}").into_bytes();
        list.push(n % 2 == 0, &text, &rules);
        hash.insert(&text, &text, &rules);
        set.insert(&text, &rules);
        sorted.insert(&text, f64::from(n), &rules);
    }
    let each = |memory: usize, most: usize| assert!(memory <= most * 100_000, "{memory}, not {most} each");
    each(list.view().memory(), 11);
    each(hash.view().memory(), 36);
    each(set.view().memory(), 36);
    each(sorted.view().memory(), 110);
}
