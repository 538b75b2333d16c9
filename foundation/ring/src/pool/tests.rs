use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{BufferPool, Owner};

#[derive(Clone, Debug)]
enum Step {
    Take(Owner),
    Pass(u32, Owner, Owner),
    Put(u32, Owner),
}

fn holder() -> impl Strategy<Value = Owner> {
    prop_oneof![Just(Owner::Engine), Just(Owner::Receive), Just(Owner::Transmit)]
}

fn step() -> impl Strategy<Value = Step> {
    // Indices past the end too: they stand for what a hostile ring holds.
    let buffer = prop_oneof![9 => 0..12_u32, 1 => any::<u32>()];
    prop_oneof![
        holder().prop_map(Step::Take),
        (buffer.clone(), holder(), holder()).prop_map(|(buffer, from, to)| Step::Pass(buffer, from, to)),
        (buffer, holder()).prop_map(|(buffer, from)| Step::Put(buffer, from)),
    ]
}

proptest! {
    #[test]
    #[cfg_attr(miri, ignore = "random programs take minutes")]
    fn every_buffer_has_one_owner(steps in prop::collection::vec(step(), 0..200)) {
        const COUNT: u32 = 8;
        let mut pool = BufferPool::new(COUNT);
        let mut owned = BTreeMap::new();
        for step in steps {
            match step {
                Step::Take(owner) => match pool.take(owner) {
                    Some(buffer) => prop_assert!(buffer < COUNT && owned.insert(buffer, owner).is_none()),
                    None => prop_assert_eq!(owned.len(), COUNT as usize),
                },
                Step::Pass(buffer, from, to) => {
                    let expected = owned.get(&buffer) == Some(&from);
                    prop_assert_eq!(pool.pass(buffer, from, to), expected);
                    if expected {
                        owned.insert(buffer, to);
                    }
                }
                Step::Put(buffer, from) => {
                    let expected = owned.get(&buffer) == Some(&from);
                    prop_assert_eq!(pool.put(buffer, from), expected);
                    if expected {
                        owned.remove(&buffer);
                    }
                }
            }
            prop_assert_eq!(pool.free(), COUNT as usize - owned.len());
        }
    }
}
