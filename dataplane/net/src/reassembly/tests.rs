use proptest::prelude::*;

use super::*;

const SPAN: u32 = 600;

proptest! {
    /// The oracle is a bitmap of bytes that arrived.
    #[test]
    fn agrees_with_a_bitmap(base in any::<u32>(), pieces in proptest::collection::vec((0..SPAN, 1..40u32), 1..120)) {
        let base = Seq(base);
        let (mut ranges, mut bitmap, mut next) = (Reassembly::default(), vec![false; SPAN as usize + 64], 0u32);
        for (at, length) in pieces {
            let (start, end) = (at.max(next), (at + length).max(next));
            if ranges.insert(base.plus(start), base.plus(end)) {
                bitmap[start as usize..end as usize].fill(true);
            }
            next = ranges.advance(base.plus(next)).since(base);
            let expected = bitmap.iter().take_while(|&&there| there).count() as u32;
            prop_assert_eq!(next, expected);
            bitmap[..next as usize].fill(true);
            let waiting: u32 = ranges.ranges().iter().map(|range| range.1.since(range.0)).sum();
            prop_assert_eq!(waiting as usize, bitmap[next as usize..].iter().filter(|&&there| there).count());
            prop_assert!(ranges.ranges().windows(2).all(|pair| pair[0].1.before(pair[1].0)));
            prop_assert!(ranges.ranges().iter().all(|range| range.0.after(base.plus(next))));
            prop_assert!(ranges.ranges().len() <= REASSEMBLY_RANGES);
        }
    }
}

#[test]
fn refuses_a_range_too_many_but_still_fills_gaps() {
    let mut ranges = Reassembly::default();
    for index in 0..REASSEMBLY_RANGES as u32 {
        assert!(ranges.insert(Seq(index * 10 + 5), Seq(index * 10 + 6)));
    }
    assert!(!ranges.insert(Seq(100_000), Seq(100_001)));
    assert!(ranges.insert(Seq(0), Seq(6)), "a range that touches another is no more than before");
}
