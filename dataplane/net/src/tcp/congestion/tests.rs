use super::*;
use crate::limits::{MILLISECOND, SECOND};

const MSS: u32 = 1000;

fn acknowledgement(bytes: u32, now: u64) -> Acknowledged {
    Acknowledged { bytes, ce_marked: 0, rtt: 0, in_flight: bytes, mss: MSS, now, grow: true }
}

fn moment(in_flight: u32, now: u64) -> Moment {
    Moment { in_flight, mss: MSS, now }
}

/// Acknowledges whole windows for `time`, one each `rtt`. Returns the time.
fn run(algorithm: &mut Algorithm, from: u64, time: u64, rtt: u64) -> u64 {
    let mut now = from;
    while now < from + time {
        now += rtt;
        let mut left = algorithm.window();
        while left > 0 {
            let bytes = left.min(2 * MSS);
            algorithm.acknowledged(&Acknowledged { rtt, in_flight: left, ..acknowledgement(bytes, now) });
            left -= bytes;
        }
    }
    now
}

#[test]
fn slow_start_doubles_and_avoidance_adds_one_segment_a_window() {
    let mut reno = Algorithm::new(Kind::NewReno, MSS);
    reno.acknowledged(&acknowledgement(10_000, 1));
    assert_eq!(reno.window(), 20_000);
    reno.enter_recovery(moment(20_000, 2));
    assert_eq!((reno.threshold(), reno.window()), (10_000, 10_000));
    reno.exit_recovery();
    assert_eq!(reno.window(), 10_000);
    for _ in 0..10 {
        reno.acknowledged(&acknowledgement(1000, 4));
    }
    assert_eq!(reno.window(), 11_000);
    reno.timed_out(moment(11_000, 5));
    assert_eq!((reno.threshold(), reno.window()), (5_500, 1000));
}

#[test]
fn the_window_does_not_grow_while_the_application_does_not_use_it() {
    for kind in Kind::ALL {
        let mut algorithm = Algorithm::new(kind, MSS);
        let before = algorithm.window();
        for now in 1..1000 {
            algorithm.acknowledged(&Acknowledged { grow: false, ..acknowledgement(1000, now * MILLISECOND) });
        }
        assert_eq!(algorithm.window(), before, "{kind}");
    }
}

#[test]
fn a_spurious_reduction_is_undone_once() {
    for kind in Kind::ALL {
        let mut algorithm = Algorithm::new(kind, MSS);
        algorithm.acknowledged(&acknowledgement(10_000, 1));
        let (window, threshold) = (algorithm.window(), algorithm.threshold());
        algorithm.timed_out(moment(window, 2));
        assert_eq!(algorithm.window(), MSS, "{kind}");
        algorithm.undo();
        assert_eq!((algorithm.window(), algorithm.threshold()), (window, threshold), "{kind}");
        algorithm.enter_recovery(moment(window, 3));
        let reduced = algorithm.window();
        algorithm.exit_recovery();
        algorithm.undo();
        algorithm.undo();
        assert!(algorithm.window() >= window && reduced < window, "{kind}");
    }
}

#[test]
fn cubic_returns_to_its_former_window_and_grows_beyond() {
    let mut cubic = Algorithm::new(Kind::NewReno, MSS).changed_to(Kind::Cubic, MSS);
    let Algorithm::Cubic(state) = &mut cubic else { unreachable!("it was made one") };
    state.window.resume(1_000_000, 1_000_000);
    cubic.enter_recovery(moment(1_000_000, SECOND));
    cubic.exit_recovery();
    assert_eq!(cubic.window(), 700_000);
    // K = cbrt(300 / 0.4) = 9.09 s on a path of 100 ms.
    let mut now = run(&mut cubic, SECOND, 4 * SECOND, 100 * MILLISECOND);
    let early = cubic.window();
    assert!((930_000..960_000).contains(&early), "concave at first: {early}");
    now = run(&mut cubic, now, 5 * SECOND, 100 * MILLISECOND);
    let w_max = cubic.window();
    assert!((990_000..1_010_000).contains(&w_max), "{w_max}");
    run(&mut cubic, now, 5 * SECOND, 100 * MILLISECOND);
    assert!(cubic.window() > 1_040_000, "convex afterwards: {}", cubic.window());
}

#[test]
fn cubic_is_as_fast_as_new_reno_where_windows_are_small() {
    let (mut cubic, mut reno) = (Algorithm::new(Kind::Cubic, MSS), Algorithm::new(Kind::NewReno, MSS));
    for algorithm in [&mut cubic, &mut reno] {
        algorithm.enter_recovery(moment(20_000, SECOND));
        algorithm.exit_recovery();
        // 100 round trips of a millisecond, in which the cubic curve does not move.
        run(algorithm, SECOND, 100 * MILLISECOND, MILLISECOND);
    }
    let (cubic, reno) = (cubic.window(), reno.window());
    assert!(cubic * 10 > reno * 9 && cubic * 10 < reno * 13, "{cubic} beside {reno}");
}

#[test]
fn cubic_makes_room_when_it_did_not_reach_its_last_peak() {
    let mut cubic = Cubic::new(MSS);
    cubic.window.resume(1_000_000, 1_000_000);
    cubic.enter_recovery(moment(1_000_000, SECOND));
    cubic.enter_recovery(moment(700_000, 2 * SECOND));
    assert_eq!(cubic.window.size, 490_000);
    let mut cubic = Algorithm::Cubic(cubic);
    // W_max is at 0.85 x 700,000.
    run(&mut cubic, 2 * SECOND, 6 * SECOND, 100 * MILLISECOND);
    assert!((585_000..606_000).contains(&cubic.window()), "{}", cubic.window());
}

#[test]
fn slow_start_ends_when_the_round_trip_grows_and_not_for_jitter() {
    let mut cubic = Algorithm::new(Kind::Cubic, MSS);
    let mut now = run(&mut cubic, SECOND, 60 * MILLISECOND, 20 * MILLISECOND);
    assert_eq!(cubic.window(), 80_000);
    // One round of longer round trips, then they are as before: slow start continues.
    now = run(&mut cubic, now, 30 * MILLISECOND, 30 * MILLISECOND);
    now = run(&mut cubic, now, 60 * MILLISECOND, 20 * MILLISECOND);
    assert!(cubic.in_slow_start() && cubic.window() > 400_000, "{}", cubic.window());
    // They stay larger: a quarter of the growth for five rounds, then none.
    let before = cubic.window();
    run(&mut cubic, now, 7 * 32 * MILLISECOND, 32 * MILLISECOND);
    assert!(!cubic.in_slow_start());
    assert!(cubic.window() < before * 8, "{} after {before}", cubic.window());
}

#[test]
fn dctcp_reduces_in_proportion_to_the_marks() {
    let mut dctcp = Dctcp::new(MSS);
    dctcp.window.resume(100_000, 100_000);
    // A tenth of the bytes is marked, for a hundred windows.
    for window in 0..100 {
        for segment in 0..100 {
            let ce_marked = if segment < 10 { MSS } else { 0 };
            let what = Acknowledged { ce_marked, in_flight: 100_000, ..acknowledgement(MSS, window) };
            dctcp.acknowledged(&Acknowledged { grow: false, ..what });
        }
    }
    let share = f64::from(dctcp.alpha()) / 65536.0;
    assert!((0.095..0.105).contains(&share), "{share}");
    dctcp.ce_marked(moment(100_000, 1000));
    assert!((94_700..95_300).contains(&dctcp.window.size), "{}", dctcp.window.size);
    // Without marks the estimate goes to nothing.
    for window in 0..300 {
        dctcp.acknowledged(&Acknowledged {
            in_flight: 95_000,
            grow: false,
            ..acknowledgement(95_000, window)
        });
    }
    assert_eq!(dctcp.alpha(), 0);
}

#[test]
fn timely_grows_without_queueing_and_reduces_with_it() {
    let mut timely = Algorithm::new(Kind::Timely, 1448);
    assert_eq!(timely.pacing_rate(), None);
    let mut now = SECOND;
    let mut samples = |timely: &mut Algorithm, count: u64, rtt: u64| {
        for _ in 0..count {
            now += 2 * rtt;
            let what = Acknowledged { rtt, in_flight: 100_000, mss: 1448, ..acknowledgement(1448, now) };
            timely.acknowledged(&what);
        }
        timely.pacing_rate().expect("there were samples")
    };
    let first = samples(&mut timely, 1, 100_000);
    assert_eq!(first, 144_800_000, "ten segments in 100 microseconds");
    let doubled = samples(&mut timely, 1, 100_000);
    assert_eq!(doubled, 2 * first);
    let between = samples(&mut timely, 3, 300_000);
    assert!(between < doubled, "the queue grows");
    let full = samples(&mut timely, 40, 5_000_000);
    assert!(full < between / 10, "{full} after {between}");
    samples(&mut timely, 60, 100_000);
    let calm = samples(&mut timely, 1, 100_000);
    let again = samples(&mut timely, 2, 100_000);
    assert_eq!(again, calm + 2 * 5 * (14_480_000 / 24), "five steps each interval, after a while");
}

#[test]
fn names_are_read_as_they_are_written() {
    for kind in Kind::ALL {
        assert_eq!(kind.to_string().parse(), Ok(kind));
    }
    assert!("vegas".parse::<Kind>().is_err());
}
