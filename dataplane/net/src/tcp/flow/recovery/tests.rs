use super::*;

#[test]
fn a_reduction_lets_out_its_share_and_conserves_below_it() {
    // Twenty segments in flight, one lost: half the window at the end.
    let mut reduction = Reduction::new(20_000, 10_000);
    let mut pipe = 18_000;
    let window = reduction.window(1000, pipe, false, 1000);
    assert_eq!(window, pipe + 1000, "the first retransmission leaves at once");
    reduction.sent(1000);
    pipe += 1000;
    let mut out = 1;
    for _ in 0..18 {
        pipe -= 1000;
        let window = reduction.window(1000, pipe, false, 1000);
        while pipe + 1000 <= window {
            reduction.sent(1000);
            pipe += 1000;
            out += 1;
        }
    }
    assert!((9..=10).contains(&out), "{out} segments for nineteen delivered");
    assert!(pipe <= 10_000);
    // Heavy losses: what was delivered may leave, and slow start only while nothing more is lost.
    let mut reduction = Reduction::new(20_000, 10_000);
    assert_eq!(reduction.window(1000, 2000, false, 1000), 3000);
    reduction.sent(1000);
    assert_eq!(reduction.window(1000, 2000, true, 1000), 4000);
}

#[test]
fn the_reordering_window_opens_when_reordering_is_seen_and_grows_with_duplicates() {
    let mut rack = Rack::default();
    assert_eq!(rack.window(800, 1000, true), 0);
    assert_eq!(rack.window(800, 1000, false), 200);
    let seen = |sent: u64, end: u32| Delivered {
        bytes: 10,
        original: 10,
        latest: Some((sent, Seq(end), false)),
        lowest_original: Some(Seq(end)),
        ..Delivered::default()
    };
    rack.update(&seen(10, 50), Seq(0), 100, 80);
    rack.update(&seen(5, 30), Seq(0), 110, 80);
    assert_eq!((rack.latest, rack.reordered), ((10, Seq(50)), 1));
    assert_eq!(rack.window(800, 1000, true), 200);
    rack.widen(Seq(0), Seq(100));
    rack.widen(Seq(50), Seq(200));
    assert_eq!(rack.window(800, 1000, true), 400, "once a round");
    rack.widen(Seq(100), Seq(200));
    assert_eq!(rack.window(800, 1000, true), 600);
    for _ in 0..10 {
        rack.widen(Seq(300), Seq(300));
    }
    assert_eq!(rack.window(800, 1000, true), 1000, "never more than a round trip");
    for _ in 0..PERSIST {
        rack.recovered();
    }
    assert_eq!(rack.window(800, 1000, true), 200);
}
