use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::limits::{MILLISECOND, SECOND};
use crate::tables::timers::Timers;

const TICK: u64 = 1 << TICK_BITS;

/// Steps: insert after a delay, cancel, move time on, or sleep until the wheel says so.
#[derive(Clone, Debug)]
enum Step {
    Insert(u32, u64),
    Cancel(u32),
    Pass(u64),
    Sleep,
}

fn delay() -> impl Strategy<Value = u64> {
    prop_oneof![0..10 * TICK, 0..MILLISECOND, 0..SECOND, 0..40 * SECOND]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u32..20, delay()).prop_map(|(thing, delay)| Step::Insert(thing, delay)),
        1 => (0u32..20).prop_map(Step::Cancel),
        1 => delay().prop_map(Step::Pass),
        4 => Just(Step::Sleep),
    ]
}

proptest! {
    #[test]
    fn everything_comes_up_once_never_early_and_at_most_a_tick_late(
        start in 0..60 * SECOND,
        steps in proptest::collection::vec(step(), 1..200),
    ) {
        let (mut wheel, mut oracle) = (TimingWheel::<u32>::new(), BTreeMap::<u32, u64>::new());
        let mut now = start;
        wheel.pop(now);
        for step in steps {
            match step {
                Step::Insert(thing, delay) => {
                    wheel.insert(thing, now + delay);
                    oracle.insert(thing, now + delay);
                }
                Step::Cancel(thing) => {
                    wheel.cancel(thing);
                    oracle.remove(&thing);
                }
                Step::Pass(time) => now += time,
                Step::Sleep => if wheel.earliest() != NEVER {
                    now = now.max(wheel.earliest());
                },
            }
            while let Some(thing) = wheel.pop(now) {
                let due = oracle.remove(&thing).expect("only what was inserted comes up");
                prop_assert!(due <= now);
            }
            prop_assert!(oracle.values().all(|&due| due + TICK > now), "something is late");
            prop_assert_eq!(wheel.count, oracle.len());
            prop_assert_eq!(wheel.is_empty(), oracle.is_empty());
            if let Some(&first) = oracle.values().min() {
                prop_assert!(wheel.earliest() < first + TICK && wheel.earliest() != NEVER);
            } else {
                prop_assert_eq!(wheel.earliest(), NEVER);
            }
        }
    }
}

#[test]
fn far_deadlines_cost_few_wake_ups() {
    let mut wheel = TimingWheel::<u32>::new();
    wheel.insert(7, 100 * SECOND + 1);
    let mut wakes = 0;
    loop {
        wakes += 1;
        let now = wheel.earliest();
        if wheel.pop(now).is_some() {
            assert!((100 * SECOND + 1..100 * SECOND + 1 + TICK).contains(&now));
            break;
        }
    }
    assert!(wakes < 12, "{wakes}");
}

/// `cargo test --release -p sietch-net timing_wheel -- --ignored --nocapture`: what a paced flow's
/// sending time costs here and in the heap.
#[test]
#[ignore = "measures; run in release"]
fn cost_beside_the_heap() {
    const EVENTS: u64 = 2_000_000;
    for things in [100_u32, 1_000, 10_000, 100_000, 1_000_000] {
        // Each thing comes up, and again after 100 us to 1.1 ms.
        let next =
            |now: u64, thing: u32| now + 100_000 + u64::from(thing).wrapping_mul(2_654_435_761) % MILLISECOND;
        let (mut wheel, mut heap) = (TimingWheel::<u32>::new(), Timers::<u32>::new());
        for thing in 0..things {
            wheel.insert(thing, next(0, thing));
            heap.set(thing, next(0, thing));
        }
        let begin = std::time::Instant::now();
        let (mut now, mut events) = (0, 0);
        while events < EVENTS {
            now = wheel.earliest().max(now);
            while let Some(thing) = wheel.pop(now) {
                wheel.insert(thing, next(now, thing));
                events += 1;
            }
        }
        let on_wheel = begin.elapsed().as_nanos() as u64 / events;
        let begin = std::time::Instant::now();
        let (mut now, mut events) = (0, 0);
        while events < EVENTS {
            now = heap.earliest().max(now);
            while let Some(thing) = heap.pop(now) {
                heap.set(thing, next(now, thing));
                events += 1;
            }
        }
        let on_heap = begin.elapsed().as_nanos() as u64 / events;
        eprintln!("{things:8} things: wheel {on_wheel:4} ns, heap {on_heap:4} ns an event");
    }
}
