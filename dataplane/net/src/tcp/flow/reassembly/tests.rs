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

fn reported(ranges: &Reassembly, count: usize) -> Vec<(u32, u32)> {
    let mut blocks = SackBlocks::default();
    ranges.report(count, &mut blocks);
    blocks.as_slice().iter().map(|block| (block.0.0, block.1.0)).collect()
}

#[test]
fn the_range_that_grew_last_is_reported_first_and_the_others_follow() {
    let mut ranges = Reassembly::default();
    for start in [10, 30, 50, 70, 90] {
        assert!(ranges.insert(Seq(start), Seq(start + 5)));
    }
    assert_eq!(reported(&ranges, 3), [(90, 95), (70, 75), (50, 55)]);
    assert!(ranges.insert(Seq(35), Seq(40)));
    assert_eq!(reported(&ranges, 3), [(30, 40), (90, 95), (70, 75)]);
    // One fills the gap between two: they are one, and it is the latest.
    assert!(ranges.insert(Seq(75), Seq(90)));
    assert_eq!(reported(&ranges, 4), [(70, 95), (30, 40), (50, 55), (10, 15)]);
    assert_eq!(ranges.advance(Seq(45)), Seq(45));
    assert_eq!(reported(&ranges, 4), [(70, 95), (50, 55)]);
    assert_eq!(ranges.advance(Seq(50)), Seq(55));
    assert_eq!(reported(&ranges, 4), [(70, 95)]);
}

#[test]
fn bytes_that_arrive_again_are_found() {
    let mut ranges = Reassembly::default();
    assert!(ranges.insert(Seq(10), Seq(20)));
    assert_eq!(ranges.duplicate(Seq(0), Seq(10)), None);
    assert_eq!(ranges.duplicate(Seq(20), Seq(30)), None);
    assert_eq!(ranges.duplicate(Seq(5), Seq(15)), Some((Seq(10), Seq(15))));
    assert_eq!(ranges.duplicate(Seq(12), Seq(40)), Some((Seq(12), Seq(20))));
}

proptest! {
    /// Every reported range has arrived, no range is reported twice, and all are reported if there
    /// are few.
    #[test]
    fn reports_are_true(pieces in proptest::collection::vec((1..SPAN, 1..40u32, any::<bool>()), 1..120)) {
        let mut ranges = Reassembly::default();
        let mut next = Seq(0);
        for (at, length, advance) in pieces {
            ranges.insert(Seq(at).max(next), Seq(at + length).max(next));
            if advance {
                next = ranges.advance(next.plus(length / 2));
            }
            let seen = reported(&ranges, 4);
            let all: Vec<_> = ranges.ranges().iter().map(|range| (range.0.0, range.1.0)).collect();
            prop_assert!(seen.iter().all(|block| all.contains(block)));
            prop_assert!((1..seen.len()).all(|at| !seen[..at].contains(&seen[at])));
            prop_assert_eq!(seen.len(), all.len().min(4));
        }
    }
}

#[test]
fn acknowledgements_of_one_batch_report_every_range() {
    let mut reassembly = Reassembly::default();
    for at in 0..10u32 {
        assert!(reassembly.insert(Seq(100 * at + 50), Seq(100 * at + 100)));
    }
    let mut seen = std::collections::HashSet::new();
    for following in (0..10).rev() {
        let mut blocks = SackBlocks::default();
        reassembly.report_in_turn(following, 3, &mut blocks);
        assert_eq!(blocks.as_slice().len(), 3);
        seen.extend(blocks.as_slice().iter().map(|range| range.0.0));
        if following == 0 {
            assert_eq!(blocks.as_slice()[0].0, Seq(950), "the latest comes first in the last answer");
        }
    }
    assert_eq!(seen.len(), 10);
}
