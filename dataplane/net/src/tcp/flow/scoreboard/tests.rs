use proptest::prelude::*;

use super::*;

const SPAN: u32 = 4000;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Byte {
    sent: u64,
    sacked: bool,
    lost: bool,
    retransmitted: bool,
}

/// The oracle: every byte by itself.
#[derive(Default)]
struct Bytes {
    una: u32,
    bytes: Vec<Byte>,
}

impl Bytes {
    fn flight(&mut self) -> &mut [Byte] {
        &mut self.bytes[self.una as usize..]
    }

    fn detect(&mut self, latest: u64, patience: u64, now: u64) -> (u32, Option<u64>) {
        let (mut marked, mut later) = (0, None);
        for byte in self.flight().iter_mut().filter(|byte| byte.sent < latest && !byte.sacked && !byte.lost) {
            if byte.sent + patience <= now {
                byte.lost = true;
                marked += 1;
            } else {
                later = later.max(Some(byte.sent + patience));
            }
        }
        (marked, later)
    }
}

#[derive(Clone, Debug)]
enum Step {
    Send(u32),
    Acknowledge(u32),
    Sack(u32, u32),
    Detect(u64),
    Lose(u64),
    LoseFirst(u32),
    Unlose,
    Again(u32),
    Forget,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..200u32).prop_map(Step::Send),
        2 => (0..SPAN).prop_map(Step::Acknowledge),
        4 => (0..SPAN, 1..300u32).prop_map(|(at, length)| Step::Sack(at, length)),
        2 => (0..2000u64).prop_map(Step::Detect),
        1 => (0..2000u64).prop_map(Step::Lose),
        1 => (1..200u32).prop_map(Step::LoseFirst),
        1 => Just(Step::Unlose),
        4 => (1..150u32).prop_map(Step::Again),
        1 => Just(Step::Forget),
    ]
}

fn check(board: &Scoreboard, base: Seq, oracle: &mut Bytes) -> Result<(), TestCaseError> {
    let mut at = oracle.una;
    let runs: Vec<Run> = board.older.iter().copied().chain(board.any.then_some(board.newest)).collect();
    for run in &runs {
        let end = run.end.since(base);
        prop_assert!(end > at, "runs follow each other");
        for byte in &oracle.bytes[at as usize..end as usize] {
            let expected = (run.has(mark::SACKED), run.has(mark::LOST), run.has(mark::RETRANSMITTED));
            prop_assert_eq!((byte.sacked, byte.lost, byte.retransmitted), expected);
            prop_assert_eq!(byte.sent, run.sent);
        }
        at = end;
    }
    prop_assert_eq!(at as usize, oracle.bytes.len(), "nothing in flight is forgotten");
    let flight = oracle.flight();
    prop_assert_eq!(board.sacked() as usize, flight.iter().filter(|byte| byte.sacked).count());
    prop_assert_eq!(board.lost() as usize, flight.iter().filter(|byte| byte.lost).count());
    prop_assert!(runs.len() <= RUNS + 1);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// While there are few runs, the board has the same state for each byte as the oracle.
    #[test]
    fn agrees_with_a_board_of_bytes(base in any::<u32>(), steps in proptest::collection::vec(step(), 1..80)) {
        let base = Seq(base);
        let mut board = Scoreboard::default();
        board.reset(base);
        let mut oracle = Bytes::default();
        let mut now = 1000;
        for step in steps {
            now += 100;
            let end = oracle.bytes.len() as u32;
            let place = |at: u32| oracle.una + at % (end - oracle.una + 1);
            match step {
                Step::Send(bytes) => {
                    oracle.bytes.resize((end + bytes) as usize, Byte { sent: now, ..Byte::default() });
                    board.sent(base.plus(end + bytes), now);
                }
                Step::Acknowledge(to) => {
                    let to = place(to);
                    let delivered = board.acknowledge(base.plus(to));
                    let covered = &oracle.bytes[oracle.una as usize..to as usize];
                    let fresh: Vec<_> = covered.iter().filter(|byte| !byte.sacked).collect();
                    prop_assert_eq!(delivered.bytes as usize, fresh.len());
                    prop_assert_eq!(delivered.original as usize, fresh.iter().filter(|byte| !byte.retransmitted).count());
                    if to > oracle.una {
                        prop_assert_eq!(delivered.latest.map(|latest| latest.0), fresh.iter().map(|byte| byte.sent).max());
                        if covered.iter().any(|byte| byte.retransmitted) {
                            prop_assert_eq!(delivered.newest, 0, "Karn's rule");
                        }
                    }
                    oracle.una = to;
                }
                Step::Sack(at, length) => {
                    let first = place(at);
                    let last = (first + length).min(end);
                    let mut delivered = Delivered::default();
                    if first < last {
                        board.sack(base.plus(first), base.plus(last), &mut delivered);
                        let covered = &mut oracle.bytes[first as usize..last as usize];
                        prop_assert_eq!(delivered.bytes as usize, covered.iter().filter(|byte| !byte.sacked).count());
                        for byte in covered {
                            (byte.sacked, byte.lost) = (true, false);
                        }
                    }
                }
                Step::Detect(patience) => {
                    let latest = (now - 50, base.plus(end));
                    prop_assert_eq!(board.detect(latest, patience, now), oracle.detect(latest.0, patience, now));
                }
                Step::Lose(ago) => {
                    board.mark_lost(now - ago.min(now));
                    // The first run is lost at any age: all bytes in the state of the first, up to
                    // one in another state.
                    let runs = board.older.iter().copied().chain(board.any.then_some(board.newest));
                    let first = runs.map(|run| run.end.since(base)).next().unwrap_or(end);
                    let una = oracle.una;
                    for (index, byte) in oracle.flight().iter_mut().enumerate() {
                        let first = una + (index as u32) < first;
                        byte.lost |= !byte.sacked && (first || byte.sent <= now - ago.min(now));
                    }
                }
                Step::LoseFirst(bytes) => {
                    board.mark_first_lost(bytes);
                    oracle.flight().iter_mut().take(bytes as usize).for_each(|byte| byte.lost |= !byte.sacked);
                }
                Step::Unlose => {
                    board.clear_lost();
                    oracle.flight().iter_mut().for_each(|byte| byte.lost = false);
                }
                Step::Again(length) => {
                    let found = oracle.flight().iter().position(|byte| byte.lost).map(|at| at as u32 + oracle.una);
                    prop_assert_eq!(board.first_lost().map(|lost| lost.0.since(base)), found);
                    if let Some((first, last)) = board.first_lost() {
                        let last = last.min(first.plus(length));
                        board.retransmitted(first, last, now);
                        for byte in &mut oracle.bytes[first.since(base) as usize..last.since(base) as usize] {
                            *byte = Byte { sent: now, sacked: false, lost: false, retransmitted: true };
                        }
                    }
                }
                Step::Forget => {
                    board.forget_sacked();
                    oracle.flight().iter_mut().for_each(|byte| byte.sacked = false);
                }
            }
            check(&board, base, &mut oracle)?;
        }
    }

    /// For all acknowledgements of a peer, memory is bounded, and only bytes that it named count as
    /// delivered.
    #[test]
    fn a_flood_of_blocks_is_bounded(
        blocks in proptest::collection::vec((0..50_000u32, 1..40u32), 500..900), send in any::<bool>(),
    ) {
        let mut board = Scoreboard::default();
        board.reset(Seq(0));
        board.sent(Seq(50_000), 1);
        let mut named = vec![false; 60_000];
        let mut end = 50_000;
        for (at, length) in blocks {
            let mut delivered = Delivered::default();
            let last = (at + length).min(50_000);
            if at < last {
                board.sack(Seq(at), Seq(last), &mut delivered);
                named[at as usize..last as usize].fill(true);
            }
            if send {
                end += 10;
                board.sent(Seq(end), 5);
                board.begun = 0;
                board.sack(Seq(end - 5), Seq(end), &mut delivered);
                named[end as usize - 5..end as usize].fill(true);
            }
            prop_assert!(board.len() <= RUNS + 1);
            let mut start = 0u32;
            for run in board.older.iter().chain(board.any.then_some(&board.newest)) {
                let all = named[start as usize..run.end.0 as usize].iter().all(|&named| named);
                prop_assert!(all || !run.has(mark::SACKED));
                start = run.end.0;
            }
            prop_assert_eq!(start, end);
        }
        let delivered = board.acknowledge(Seq(end));
        prop_assert!(delivered.bytes <= end);
        prop_assert_eq!((board.len(), board.sacked(), board.lost()), (0, 0, 0));
    }
}

#[test]
fn segments_within_a_grain_are_one_run_and_one_burst_needs_no_heap() {
    let mut board = Scoreboard::default();
    board.reset(Seq(0));
    board.set_grain(10);
    for step in 0..50 {
        board.sent(Seq((step + 1) * 100), 1000 + u64::from(step));
    }
    assert_eq!(board.len(), 5);
    let delivered = board.acknowledge(Seq(5000));
    assert_eq!((delivered.oldest, delivered.newest), (1010, 1049));
    for step in 0..100 {
        board.sent(Seq(5000 + (step + 1) * 100), 2000 + u64::from(step) * 100);
        board.acknowledge(Seq(5000 + (step + 1) * 100));
        assert_eq!(board.len(), 0);
    }
}
