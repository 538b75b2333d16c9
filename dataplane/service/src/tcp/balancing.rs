//! Balances VNICs over threads, and decides how many threads there are: arithmetic on loads,
//! without threads.
//!
//! 1. Every [`PERIOD`] each thread reports for what share of the time its VNICs had something to
//!    do. The rest of its time is *idle*.
//! 2. If less than [`SHORT`] of a core is idle over all threads and another thread is allowed, the
//!    VNICs of the busiest thread are split. Some go to a new one. If more than [`PLENTY`] is idle,
//!    the least busy thread ends, and its VNICs go to the others.
//! 3. Between the two bounds only one thing changes. A thread that alone has too little idle time
//!    gives one VNIC to a thread that has room for it.
//!
//! The bounds differ by more than a core, so the same load does not remove a thread that it has
//! just added. See TAS, EuroSys 2019, section 3.4. A VNIC is never split: one thread drives all its
//! flows.

/// Nanoseconds between two samples of the loads.
pub(super) const PERIOD: u64 = 10_000_000;
/// The idle share, in thousandths of a core, below which a thread is added.
pub(super) const SHORT: u32 = 200;
/// The idle share above which a thread ends.
pub(super) const PLENTY: u32 = 1250;
/// A core.
const WHOLE: u32 = 1000;

/// A VNIC and the share of a core that it took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Load {
    /// The number of the VNIC.
    pub vnic: u64,
    /// Thousandths of a core.
    pub share: u32,
}

/// A VNIC that goes to another thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Move {
    /// The number of the VNIC.
    pub vnic: u64,
    /// The thread that has it.
    pub from: usize,
    /// The thread that gets it; the number of threads for a new one.
    pub to: usize,
}

fn total(loads: &[Load]) -> u32 {
    loads.iter().map(|load| load.share).sum::<u32>().min(WHOLE)
}

/// Decides what moves, given the loads of each thread. A thread that has no VNIC afterwards ends.
pub(super) fn decide(threads: &[Vec<Load>], most: usize) -> Vec<Move> {
    let idle: u32 = threads.iter().map(|loads| WHOLE - total(loads)).sum();
    let running = threads.iter().filter(|loads| !loads.is_empty()).count();
    if idle < SHORT && running < most.max(1) {
        return split(threads);
    }
    if idle > PLENTY && running > 1 {
        return merge(threads);
    }
    relieve(threads)
}

/// Splits the busiest thread that has more than one busy VNIC: each load, the largest first, goes
/// to the lesser half.
fn split(threads: &[Vec<Load>]) -> Vec<Move> {
    let busy = |loads: &[Load]| loads.iter().filter(|load| load.share > 0).count();
    let candidates = threads.iter().enumerate().filter(|(_, loads)| busy(loads) > 1);
    let Some((from, loads)) = candidates.max_by_key(|(_, loads)| total(loads)) else { return Vec::new() };
    let to = threads.iter().position(Vec::is_empty).unwrap_or(threads.len());
    let mut sorted = loads.clone();
    sorted.sort_by_key(|load| (std::cmp::Reverse(load.share), load.vnic));
    let (mut stay, mut go) = (0, 0);
    let mut moves = Vec::new();
    for load in sorted {
        if go + load.share <= stay {
            go += load.share;
            moves.push(Move { vnic: load.vnic, from, to });
        } else {
            stay += load.share;
        }
    }
    moves
}

/// Moves the VNICs of the least busy thread, the largest first, each to the thread that has most
/// room then.
fn merge(threads: &[Vec<Load>]) -> Vec<Move> {
    let running = || threads.iter().enumerate().filter(|(_, loads)| !loads.is_empty());
    let Some((from, leaving)) = running().min_by_key(|(_, loads)| total(loads)) else { return Vec::new() };
    let mut others: Vec<(usize, u32)> =
        running().filter(|(index, _)| *index != from).map(|(index, loads)| (index, total(loads))).collect();
    let mut sorted = leaving.clone();
    sorted.sort_by_key(|load| (std::cmp::Reverse(load.share), load.vnic));
    let mut moves = Vec::new();
    for load in sorted {
        let Some((to, taken)) = others.iter_mut().min_by_key(|(_, taken)| *taken) else { return Vec::new() };
        *taken += load.share;
        moves.push(Move { vnic: load.vnic, from, to: *to });
    }
    moves
}

/// Moves one VNIC from a thread without idle time to one that has room for it, and is less busy
/// afterwards than the giver was.
fn relieve(threads: &[Vec<Load>]) -> Vec<Move> {
    let running = || threads.iter().enumerate().filter(|(_, loads)| !loads.is_empty());
    let Some((from, loads)) = running().max_by_key(|(_, loads)| total(loads)) else { return Vec::new() };
    let Some((to, room)) = running().min_by_key(|(_, loads)| total(loads)) else { return Vec::new() };
    let (high, low) = (total(loads), total(room));
    if loads.len() < 2 || from == to || WHOLE - high >= SHORT {
        return Vec::new();
    }
    let fits = |load: &&Load| load.share > 0 && low + load.share + SHORT / 2 < high;
    let best = loads.iter().filter(fits).max_by_key(|load| (load.share, load.vnic));
    best.map(|load| Move { vnic: load.vnic, from, to }).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn apply(threads: &mut Vec<Vec<Load>>, moves: &[Move]) {
        for step in moves {
            let at = threads[step.from].iter().position(|load| load.vnic == step.vnic).expect("it is there");
            let load = threads[step.from].remove(at);
            if step.to == threads.len() {
                threads.push(Vec::new());
            }
            threads[step.to].push(load);
        }
    }

    fn running(threads: &[Vec<Load>]) -> usize {
        threads.iter().filter(|loads| !loads.is_empty()).count()
    }

    /// VNICs with loads on threads; the VNICs of a thread take at most a core together.
    fn machines() -> impl Strategy<Value = (Vec<Vec<Load>>, usize)> {
        let vnics = prop::collection::vec((0_usize..4, 0_u32..=1000), 1..12);
        (vnics, 1_usize..5).prop_map(|(vnics, most)| {
            let mut threads = vec![Vec::new(); most];
            for (vnic, (thread, share)) in vnics.into_iter().enumerate() {
                let thread: &mut Vec<Load> = &mut threads[thread % most];
                let left = WHOLE - total(thread);
                thread.push(Load { vnic: vnic as u64, share: share.min(left) });
            }
            (threads, most)
        })
    }

    proptest! {
        #[test]
        fn every_vnic_stays_on_one_thread_and_a_constant_load_settles((mut threads, most) in machines()) {
            let mut all: Vec<u64> = threads.iter().flatten().map(|load| load.vnic).collect();
            all.sort_unstable();
            let mut rounds = 0;
            loop {
                let before = running(&threads);
                let moves = decide(&threads, most);
                if moves.is_empty() {
                    break;
                }
                apply(&mut threads, &moves);
                let mut now: Vec<u64> = threads.iter().flatten().map(|load| load.vnic).collect();
                now.sort_unstable();
                prop_assert_eq!(&now, &all);
                prop_assert!(running(&threads) <= most && running(&threads) >= 1);
                prop_assert!(running(&threads).abs_diff(before) <= 1);
                rounds += 1;
                prop_assert!(rounds <= 2 * all.len() + most, "it does not settle: {threads:?}");
            }
        }

        #[test]
        fn nothing_moves_on_a_machine_with_one_thread(usages in prop::collection::vec(0_u32..300, 1..8)) {
            let loads = usages.iter().enumerate().map(|(vnic, &share)| Load { vnic: vnic as u64, share }).collect();
            prop_assert_eq!(decide(&[loads], 1), Vec::new());
        }
    }

    #[test]
    fn a_busy_thread_is_split_and_idle_threads_are_merged() {
        let load = |vnic, share| Load { vnic, share };
        let moves = decide(&[vec![load(1, 450), load(2, 450)]], 4);
        assert_eq!(moves, [Move { vnic: 2, from: 0, to: 1 }]);
        assert_eq!(decide(&[vec![load(1, 450)], vec![load(2, 450)]], 4), []);
        let moves = decide(&[vec![load(1, 100)], vec![load(2, 300)]], 4);
        assert_eq!(moves, [Move { vnic: 1, from: 0, to: 1 }]);
        // A single VNIC is never split, however busy.
        assert_eq!(decide(&[vec![load(1, 1000)]], 4), []);
    }
}
