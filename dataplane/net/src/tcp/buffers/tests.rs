use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

proptest! {
    #[test]
    fn a_ring_is_a_queue_of_bytes(steps in proptest::collection::vec((any::<bool>(), 0usize..9000), 1..60)) {
        let mut pool = Pool::new(1 << 20);
        let (mut ring, mut oracle) = (Ring::default(), VecDeque::new());
        let mut next = 0u8;
        for (push, amount) in steps {
            if push && oracle.len() + amount <= 64 << 10 {
                let data: Vec<u8> = (0..amount).map(|_| { next = next.wrapping_mul(5).wrapping_add(3); next }).collect();
                prop_assert!(ring.reserve(&mut pool, ring.len() + amount, 64 << 10));
                ring.write_at(ring.len(), &data);
                ring.extend(amount);
                oracle.extend(data);
            } else {
                ring.consume(amount);
                oracle.drain(..amount.min(oracle.len()));
            }
            let (first, second) = ring.slices();
            prop_assert_eq!([first, second].concat(), oracle.iter().copied().collect::<Vec<_>>());
            if ring.is_empty() {
                ring.release(&mut pool);
                prop_assert_eq!(pool.used(), 0);
            }
        }
    }
}

#[test]
fn the_pool_refuses_past_its_limit_and_takes_back() {
    let mut pool = Pool::new(8192);
    let mut rings: [Ring; 3] = Default::default();
    assert!(rings[0].reserve(&mut pool, 1, 4096));
    assert!(rings[1].reserve(&mut pool, 1, 4096));
    assert!(!rings[2].reserve(&mut pool, 1, 4096));
    rings[0].release(&mut pool);
    assert!(rings[2].reserve(&mut pool, 1, 4096));
    assert!(!rings[1].reserve(&mut pool, 5000, 4096), "a ring has its own bound");
}
