use std::sync::Arc;

use proptest::prelude::*;

use super::{LayoutError, MappedRing, RingLayout};
use crate::mapping::Mapping;
use crate::spsc::{Consumer, Producer};

const PAGE: usize = 4096;

fn memory() -> Arc<Mapping> {
    Arc::new(Mapping::anonymous(PAGE).expect("a page of memory"))
}

const LAYOUT: RingLayout = RingLayout { producer: 0, consumer: 64, flags: 128, slots: 192, capacity: 8 };

#[test]
fn two_threads_pass_entries_in_order() {
    const ENTRIES: u64 = if cfg!(miri) { 2000 } else { 1_000_000 };
    let memory = memory();
    // SAFETY: one producer and one consumer.
    let ends = unsafe {
        (MappedRing::<u64>::new(Arc::clone(&memory), LAYOUT), MappedRing::<u64>::new(memory, LAYOUT))
    };
    let mut producer = Producer::attach(ends.0.expect("it fits")).expect("zeroed words");
    let mut consumer = Consumer::attach(ends.1.expect("it fits")).expect("zeroed words");
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut next = 0;
            while next < ENTRIES {
                while next < ENTRIES && producer.push(next).is_ok() {
                    next += 1;
                }
                if producer.submit() == 0 {
                    std::thread::yield_now();
                }
            }
        });
        let mut expected = 0;
        while expected < ENTRIES {
            while let Some(value) = consumer.pop() {
                assert_eq!(value, expected);
                expected += 1;
            }
            if consumer.release() == 0 {
                std::thread::yield_now();
            }
        }
    });
}

#[test]
fn the_last_slot_may_touch_the_end() {
    let fits = RingLayout { slots: PAGE - 8 * 8, ..LAYOUT };
    // SAFETY: the ring is not used.
    assert!(unsafe { MappedRing::<u64>::new(memory(), fits) }.is_ok());
    let sticks_out = RingLayout { slots: PAGE - 7 * 8, ..LAYOUT };
    // SAFETY: as above.
    let refused = unsafe { MappedRing::<u64>::new(memory(), sticks_out) };
    assert_eq!(refused.err(), Some(LayoutError::Misplaced { layout: sticks_out, length: PAGE }));
}

proptest! {
    /// A layout is accepted only if every byte of it is in the mapping; this writes and reads
    /// them all.
    #[test]
    fn an_accepted_layout_stays_inside(
        producer in 0..PAGE + 64,
        consumer in 0..PAGE + 64,
        flags in prop_oneof![0..PAGE + 64, Just(usize::MAX - 3)],
        slots in prop_oneof![0..PAGE + 64, Just(usize::MAX - 7)],
        capacity in prop_oneof![(0..12_u32).prop_map(|shift| 1 << shift), any::<u32>()],
    ) {
        let layout = RingLayout {
            producer: producer & !3,
            consumer: consumer & !3,
            flags: flags & !3,
            slots: slots & !7,
            capacity,
        };
        let memory = memory();
        // SAFETY: one producer, in this thread.
        let Ok(ring) = (unsafe { MappedRing::<u64>::new(memory, layout) }) else {
            return Ok(());
        };
        prop_assert!(layout.slots + capacity as usize * 8 <= PAGE);
        let mut producer = Producer::attach(ring).expect("zeroed words");
        for value in 0..u64::from(capacity) {
            prop_assert_eq!(producer.push(u64::MAX - value), Ok(()));
        }
        prop_assert_eq!(producer.submit(), capacity);
        prop_assert!(producer.push(0).is_err());
        prop_assert_eq!(producer.violations(), 0);
    }
}
