use proptest::prelude::*;

use super::*;
use crate::limits::SECOND;

fn key(source: u32, identification: u32) -> Key {
    Key { source: Address::v4(source), destination: Address::v4(9), identification, protocol: 17 }
}

fn take(all: &mut Fragments, key: Key, offset: usize, more: bool, bytes: &[u8], now: u64) -> Outcome {
    let payload = Payload::from(bytes);
    let outcome = all.take(key, &Fragment { protocol: 17, offset, more, payload }, now);
    let cost: usize = all.packets.iter().map(Partial::cost).sum();
    assert_eq!(all.bytes, cost);
    assert!(cost <= FRAGMENT_MEMORY && all.packets.len() <= FRAGMENTED_PACKETS);
    outcome
}

proptest! {
    #[test]
    fn fragments_in_any_order_make_the_packet(
        length in 1usize..20_000, step in 50usize..200, order in any::<u64>(), twice in any::<bool>(),
    ) {
        let bytes: Vec<u8> = (0..length).map(|at| (at * 7) as u8).collect();
        let step = step * 8;
        let mut parts: Vec<(usize, &[u8])> = bytes.chunks(step).enumerate().map(|(at, part)| (at * step, part)).collect();
        let mut shuffle = order;
        for at in (1..parts.len()).rev() {
            shuffle = shuffle.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            parts.swap(at, (shuffle >> 33) as usize % (at + 1));
        }
        let mut all = Fragments::new();
        for (count, (offset, part)) in parts.iter().enumerate() {
            let more = offset + part.len() < length;
            let outcome = take(&mut all, key(1, 5), *offset, more, part, SECOND);
            if count + 1 == parts.len() {
                prop_assert_eq!(outcome, Outcome::Whole(17, bytes.clone()));
            } else {
                prop_assert_eq!(outcome, Outcome::Waiting);
                if twice {
                    prop_assert_eq!(take(&mut all, key(1, 5), *offset, more, part, SECOND), Outcome::Waiting);
                }
            }
        }
        prop_assert_eq!((all.packets.len(), all.bytes), (0, 0));
    }

    #[test]
    fn any_fragments_stay_within_the_bounds(
        parts in proptest::collection::vec((0u32..40, 0u32..12, 0usize..9000, any::<bool>(), 0usize..1600), 1..600),
    ) {
        let mut all = Fragments::new();
        for (step, (source, id, offset, more, length)) in parts.into_iter().enumerate() {
            let now = SECOND + step as u64 * SECOND / 10;
            while all.expire(now).is_some() {}
            take(&mut all, key(source, id), offset & !7, more, &vec![1; length], now);
        }
        while all.expire(1000 * SECOND).is_some() {}
        prop_assert_eq!((all.packets.len(), all.bytes, all.deadline()), (0, 0, NEVER));
    }
}

#[test]
fn overlaps_and_contradictions_make_the_packet_void() {
    // (offset, more, length) after a first part of bytes 16 to 32.
    for (offset, more, length) in
        [(8, true, 16), (16, true, 8), (24, true, 16), (0, true, 64), (0, false, 24), (16, false, 16)]
    {
        let mut all = Fragments::new();
        take(&mut all, key(1, 1), 16, true, &[1; 16], SECOND);
        assert_eq!(take(&mut all, key(1, 1), offset, more, &vec![2; length], SECOND), Outcome::Refused);
        // What would have completed it comes too late, until the name is free again.
        assert_eq!(take(&mut all, key(1, 1), 0, true, &[1; 16], SECOND), Outcome::Refused);
        assert_eq!(take(&mut all, key(1, 1), 32, false, &[1; 16], SECOND), Outcome::Refused);
        assert!(all.expire(SECOND + FRAGMENT_LIFETIME).is_some());
        assert_eq!(
            take(&mut all, key(1, 1), 0, false, &[1; 16], 90 * SECOND),
            Outcome::Whole(17, vec![1; 16])
        );
    }
    let mut all = Fragments::new();
    take(&mut all, key(1, 1), 16, false, &[1; 16], SECOND);
    assert_eq!(take(&mut all, key(1, 1), 32, true, &[1; 16], SECOND), Outcome::Refused, "beyond the end");
    for (offset, more, length) in [(0, true, 7), (0, true, 0), (65_528, false, 9)] {
        assert_eq!(take(&mut all, key(1, 2), offset, more, &vec![0; length], SECOND), Outcome::Refused);
    }
}

#[test]
fn a_flood_of_one_source_costs_no_other_source() {
    let mut all = Fragments::new();
    take(&mut all, key(7, 7), 0, true, &[1; 16], SECOND);
    for id in 0..10_000 {
        take(&mut all, key(1, id), 8, true, &[1; 1480], SECOND);
    }
    assert_eq!(take(&mut all, key(7, 7), 16, false, &[1; 8], SECOND), Outcome::Whole(17, vec![1; 24]));
}
