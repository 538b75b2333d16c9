use super::*;

/// Pauses of `gap` nanoseconds, polled every 100: returns how long each was spun for.
fn spun(spin: &mut Spin, gap: u64, pauses: usize) -> u64 {
    let mut now = 1;
    let mut last = 0;
    for _ in 0..pauses {
        let begin = now;
        last = gap;
        while now < begin + gap {
            if spin.idle(now) == Idle::Sleep {
                last = now - begin;
                now = begin + gap;
                break;
            }
            now += 100;
        }
        spin.busy(now);
        now += 1000;
    }
    last
}

#[test]
fn short_pauses_are_bridged() {
    let mut spin = Spin::up_to(LONGEST);
    assert_eq!(spun(&mut spin, 5_000, 100), 5_000);
    assert!(spin.budget() < LONGEST, "it has learnt that less will do");
}

#[test]
fn long_pauses_are_hardly_spun_for() {
    let mut spin = Spin::up_to(LONGEST);
    assert!(spun(&mut spin, 1_000_000, 20) <= SHORTEST + 100);
}

#[test]
fn after_long_pauses_traffic_is_noticed_again() {
    let mut spin = Spin::up_to(LONGEST);
    spun(&mut spin, 1_000_000, 20);
    assert_eq!(spun(&mut spin, 20_000, 3), 20_000);
}

#[test]
fn the_core_is_given_away_while_spinning() {
    let mut spin = Spin::up_to(LONGEST);
    let yields: Vec<u64> =
        (1..=900).map(|poll| poll * 10).filter(|now| spin.idle(*now) == Idle::Yield).collect();
    assert_eq!(yields, [2010, 4010, 6010, 8010]);
    spin.busy(9_500);
    assert_eq!(spin.idle(9_600), Idle::Poll, "the next pause begins anew");
    assert_eq!(spin.idle(11_600), Idle::Yield);
}

#[test]
fn one_core_never_spins() {
    let mut spin = Spin::up_to(0);
    assert_eq!(spin.idle(7), Idle::Sleep);
    spin.busy(9);
    assert_eq!(spin.idle(10), Idle::Sleep);
}

/// Two loops, each of which answers the other after `work`, or after being woken, which takes
/// `wake` more.
#[test]
fn two_loops_that_wait_for_each_other_wake_up_for_good() {
    let (work, wake) = (8_000, 30_000);
    let mut sides = [Spin::up_to(LONGEST), Spin::up_to(LONGEST)];
    for spin in &mut sides {
        spun(spin, 1_000_000, 15);
    }
    let mut asleep = [true, true];
    let mut waits = [0, 0];
    for round in 0..200 {
        let (me, other) = (round % 2, 1 - round % 2);
        // The other side waits as long as this side works, and as long as this side's own wake-up
        // took.
        waits[other] = work + if asleep[me] { wake } else { 0 };
        asleep[other] = sides[other].budget() < waits[other];
        spun(&mut sides[other], waits[other] + if asleep[other] { wake } else { 0 }, 1);
    }
    assert_eq!(asleep, [false, false], "waits of {waits:?}");
}

#[test]
#[cfg_attr(miri, ignore = "a million polls take minutes")]
fn on_a_contended_core_the_loop_sleeps_at_once_and_tries_more_and_more_seldom() {
    let mut spin = Spin::up_to(LONGEST);
    let (mut now, mut tried, begun) = (1_000_000_000, 0, 1_000_000_000);
    while now < begun + 10_000_000_000 {
        match spin.idle(now) {
            Idle::Poll => now += 500,
            Idle::Yield => {
                // Another's slice; then there is something to do.
                now += 4_000_000;
                tried += 1;
                spin.busy(now);
            }
            Idle::Sleep => {
                now += 20_000;
                spin.busy(now);
            }
        }
    }
    assert!((20..60).contains(&tried), "{tried}");
    // With spare cores the spinner never sleeps.
    let mut spin = Spin::up_to(u64::MAX);
    for _ in 0..100 {
        now += 4_000_000;
        assert_ne!(spin.idle(now), Idle::Sleep);
    }
}
