use super::*;

const NOTHING: Known = Known::of(0);
const KEY: u32 = 77;

/// The state after `count` short-lived connections, one after the other, at one time.
fn after_short_lived(mut known: Known, count: u64, at: u16) -> Known {
    for _ in 0..count {
        let (kernel, after) = known.begun(KEY, at);
        assert!(!kernel);
        known = after.ended(KEY, at, true);
    }
    known
}

#[test]
fn a_word_holds_the_whole_state() {
    let known = Known { key: u32::MAX - 1, at: 65_535, streak: 16, trial: 31 };
    assert_eq!(Known::of(known.word()), known);
}

#[test]
fn after_a_streak_of_short_lived_ones_the_kernel_gets_all_but_the_trials() {
    let mut known = after_short_lived(NOTHING, MIN_STREAK, 5);
    let mut ours = 0;
    for _ in 0..10 * TRIAL_EVERY {
        let (kernel, after) = known.begun(KEY, 6);
        // The library does not see how long a kernel connection lived.
        known = if kernel { after } else { after.ended(KEY, 6, true) };
        ours += u64::from(!kernel);
    }
    assert_eq!(ours, 10);
}

#[test]
fn one_long_lived_connection_returns_all_to_sietch() {
    let known = after_short_lived(NOTHING, MIN_STREAK, 5).ended(KEY, 5, false);
    assert!(!known.begun(KEY, 5).0);
    assert_eq!(after_short_lived(known, MIN_STREAK - 1, 5).streak, 15);
}

#[test]
fn a_pause_is_forgotten_also_when_the_clock_wraps() {
    let known = after_short_lived(NOTHING, MIN_STREAK, 65_530);
    assert!(known.begun(KEY, 65_530_u16.wrapping_add(FORGET_AFTER)).0);
    assert!(!known.begun(KEY, 65_530_u16.wrapping_add(FORGET_AFTER + 1)).0);
    // Slow ones never make a run.
    let mut known = NOTHING;
    for round in 0..100 {
        known = known.begun(KEY, round * (FORGET_AFTER + 1)).1.ended(KEY, round * (FORGET_AFTER + 1), true);
    }
    assert!(!known.begun(KEY, 100 * (FORGET_AFTER + 1)).0);
}

#[test]
fn another_destination_at_the_same_entry_starts_from_zero() {
    let known = after_short_lived(NOTHING, MIN_STREAK, 5);
    let (kernel, after) = known.begun(KEY + 2, 5);
    assert!(!kernel && after.streak == 0);
    assert_eq!(known.ended(KEY + 2, 5, true).streak, 1);
}

#[test]
fn destinations_differ_in_port_and_address() {
    let name = |text: &str| Name::from(text.parse::<std::net::SocketAddr>().expect(text));
    let keys: std::collections::BTreeSet<_> =
        ["127.0.0.1:80", "127.0.0.1:81", "127.0.0.2:80", "[::1]:80"].map(|text| key(&name(text))).into();
    assert_eq!(keys.len(), 4);
    assert!(!keys.contains(&0));
}
