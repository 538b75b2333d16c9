use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

proptest! {
    #[test]
    fn agrees_with_a_sorted_map(steps in proptest::collection::vec((0u8..4, 0u32..20, 0u64..1000), 1..200)) {
        let (mut timers, mut oracle) = (Timers::<u32>::new(), BTreeMap::<u32, u64>::new());
        for (kind, thing, time) in steps {
            match kind {
                0 => {
                    timers.set(thing, time);
                    oracle.insert(thing, time);
                }
                1 => {
                    timers.no_later(thing, time);
                    let entry = oracle.entry(thing).or_insert(time);
                    *entry = time.min(*entry);
                }
                2 => {
                    timers.set(thing, NEVER);
                    oracle.remove(&thing);
                }
                _ => while let Some(thing) = timers.pop(time) {
                    let due = oracle.remove(&thing).expect("only what was set comes up");
                    prop_assert!(due <= time);
                    prop_assert!(oracle.values().all(|&other| other >= due));
                },
            }
            prop_assert_eq!(timers.earliest(), oracle.values().copied().min().unwrap_or(NEVER));
        }
    }
}
