//! A client and a digest beside each other, with a clock that is simulated.

use super::*;

const MIB_BYTES: u64 = 1 << 20;
/// Bytes of a record with 4 KiB of data.
const RECORD: u64 = 4096 + 128;

/// A client that logs as fast as it can, and a digest.
#[derive(Clone, Copy)]
struct Plan {
    log: u64,
    record: u64,
    /// Nanoseconds of an append.
    append: u64,
    /// Nanoseconds in which the digest takes a MiB, at first and from the middle on.
    digest: [u64; 2],
    /// Bytes of a batch, at most.
    batch: u64,
    /// The digest begins when this part of the log is full.
    begins: u64,
}

/// What a run showed.
#[derive(Debug, Default)]
struct Outcome {
    /// Nanoseconds of the longest wait, and how many there were.
    longest: u64,
    waits: u64,
    /// The log was full.
    fulls: u64,
    logged: u64,
    elapsed: u64,
    /// Nanoseconds in which the digest did nothing after its first batch.
    idle: u64,
}

const PLAN: Plan = Plan {
    log: 128 * MIB_BYTES,
    record: RECORD,
    append: 800,
    digest: [700_000, 700_000],
    batch: 32 * MIB_BYTES,
    begins: 2,
};

fn run(plan: Plan, bytes: u64, is_paced: bool) -> Outcome {
    let (mut pacer, mut speed, mut outcome) = (Pacer::new(plan.log), Speed::default(), Outcome::default());
    let (mut now, mut logged, mut digested) = (0, 0, 0);
    // Its end in time and in the log; since when there is none.
    let (mut batch, mut idle_since): (Option<(u64, u64)>, Option<u64>) = (None, None);
    while logged < bytes {
        if let Some((end, position)) = batch
            && end <= now
        {
            let took = plan.digest[usize::from(position > bytes / 2)] * (position - digested) / MIB_BYTES;
            speed.took(position - digested, Duration::from_nanos(took));
            (digested, batch, idle_since) = (position, None, Some(end));
        }
        if batch.is_none() && logged - digested >= plan.log / plan.begins {
            let position = logged.min(digested + plan.batch);
            let took = plan.digest[usize::from(position > bytes / 2)] * (position - digested) / MIB_BYTES;
            // The digest that did not wait for records went on at once.
            let begun = if idle_since.is_some_and(|since| now - since > plan.append * 2) {
                outcome.idle += idle_since.map_or(0, |since| now - since);
                now
            } else {
                idle_since.unwrap_or(now)
            };
            batch = Some((begun + took, position));
        }
        let next_commit = batch.map(|(end, _)| end);
        if logged + plan.record > digested + plan.log {
            let end = next_commit.expect("the digest works where the log is full");
            outcome.fulls += 1;
            outcome.longest = outcome.longest.max(end - now);
            now = end;
            continue;
        }
        now += plan.append;
        logged += plan.record;
        if is_paced && pacer.is_due(logged) && pacer.step(now, logged, digested, speed.nanos()) {
            let pause = PAUSE.as_nanos() as u64;
            let end = next_commit.filter(|end| *end > now).map_or(now + pause, |end| end.min(now + pause));
            outcome.longest = outcome.longest.max(end - now);
            outcome.waits += 1;
            now = end;
        }
    }
    Outcome { logged, elapsed: now, ..outcome }
}

/// Bytes a second of the client.
fn rate(outcome: &Outcome) -> f64 {
    outcome.logged as f64 / outcome.elapsed as f64
}

#[test]
fn a_client_that_is_faster_than_the_digest_waits_often_and_shortly() {
    for log in [128, 64, 1024] {
        for batch in [4, 16, log / 4] {
            let plan = Plan { log: log * MIB_BYTES, batch: batch * MIB_BYTES, ..PLAN };
            let bytes = 40 * plan.log;
            let (without, with) = (run(plan, bytes, false), run(plan, bytes, true));
            assert!(without.fulls > 0, "{log} {batch}: {without:?}");
            assert_eq!(with.fulls, 0, "{log} {batch}: {with:?}");
            assert!(with.longest <= PAUSE.as_nanos() as u64);
            assert!(rate(&with) > 0.98 * rate(&without), "{log} {batch}: {with:?}, {without:?}");
            assert!(with.idle < with.elapsed / 50, "{log} {batch}: {with:?}");
        }
    }
}

#[test]
fn a_batch_of_half_of_the_log_leaves_a_client_room_until_it_is_done() {
    for log in [64, 128] {
        let log = log * MIB_BYTES;
        let plan = Plan { log, batch: log / 2, ..PLAN };
        let (without, with) = (run(plan, 40 * log, false), run(plan, 40 * log, true));
        assert_eq!(with.fulls, 0, "{with:?}");
        assert!(rate(&with) > 0.93 * rate(&without), "{with:?}, {without:?}");
    }
}

#[test]
fn a_digest_that_becomes_slower_or_faster_is_followed() {
    // Where it becomes far slower at once, the log may be full once: the speed is an average.
    let changes = [([700_000, 2_800_000], 0), ([2_800_000, 700_000], 0), ([200_000, 1_500_000], 1)];
    for (digest, fulls) in changes {
        let plan = Plan { digest, ..PLAN };
        let (without, with) = (run(plan, 10 << 30, false), run(plan, 10 << 30, true));
        assert!(with.fulls <= fulls, "{digest:?}: {with:?}");
        assert!(rate(&with) > 0.97 * rate(&without), "{digest:?}: {with:?}, {without:?}");
    }
}

#[test]
fn a_batch_that_is_late_slows_the_client_before_it_is_done() {
    let mut pacer = Pacer::new(PLAN.log);
    let (mut now, mut logged) = (0, PLAN.log / 2);
    // Five times what the speed says for half of the log.
    let late = 5 * 64 * 700_000;
    while now < late {
        now += PLAN.append;
        logged += RECORD;
        assert!(logged <= PLAN.log, "the log is full after {now} of {late} ns");
        if pacer.is_due(logged) && pacer.step(now, logged, 0, 700_000) {
            now += PAUSE.as_nanos() as u64;
        }
    }
}

#[test]
fn a_client_that_is_slower_than_the_digest_does_not_wait() {
    // 4 KiB in 4 us and a MiB in 0.7 ms: 1.03 against 1.5 GB/s.
    let plan = Plan { append: 4000, ..PLAN };
    let outcome = run(plan, 10 << 30, true);
    assert_eq!((outcome.waits, outcome.fulls), (0, 0), "{outcome:?}");
}

#[test]
fn a_burst_that_fits_half_of_the_log_does_not_wait() {
    let mut pacer = Pacer::new(PLAN.log);
    for logged in (0..PLAN.log / 2).step_by(RECORD as usize) {
        assert!(!pacer.is_due(logged) || !pacer.step(logged / 4, logged, 0, 700_000));
    }
}

#[test]
fn a_client_looks_at_its_clock_once_for_many_records() {
    let mut pacer = Pacer::new(PLAN.log);
    let looks = (0..PLAN.log).step_by(256).filter(|logged| {
        let is_due = pacer.is_due(*logged);
        if is_due {
            pacer.step(0, *logged, 0, 700_000);
        }
        is_due
    });
    assert!(looks.count() as u64 <= PLAN.log / 2 / STEP + 3);
}

#[test]
fn a_digest_that_stands_still_makes_a_client_wait_a_little_at_each_step_and_no_longer() {
    let mut pacer = Pacer::new(MIB_BYTES);
    let (mut now, mut waits) = (0, 0);
    for logged in (0..10 * MIB_BYTES).step_by(RECORD as usize) {
        now += 1000;
        if pacer.is_due(logged) && pacer.step(now, logged, 0, u64::MAX / 4) {
            now += PAUSE.as_nanos() as u64;
            waits += 1;
        }
    }
    assert!(waits > 100 && waits <= 10 * MIB_BYTES / RECORD, "{waits}");
}

#[test]
fn the_smallest_log_is_paced_in_steps_too() {
    let log = sietch_fs::log::MIN_RING;
    let plan = Plan { log, record: 192, batch: log / 4, digest: [70_000_000; 2], ..PLAN };
    let mut pacer = Pacer::new(log);
    assert!(!pacer.is_due(0) || !pacer.step(0, 0, 0, 1));
    let (without, with) = (run(plan, 100 * log, false), run(plan, 100 * log, true));
    assert!(rate(&with) > 0.9 * rate(&without), "{with:?}, {without:?}");
}

#[test]
fn a_slower_batch_counts_at_once_and_a_faster_one_little_and_a_small_one_nothing() {
    let mut speed = Speed::default();
    speed.took(4096, Duration::from_secs(1));
    assert_eq!(speed.nanos(), START);
    speed.took(16 << 20, Duration::from_millis(16 * 3));
    assert_eq!(speed.nanos(), 3_000_000);
    speed.took(16 << 20, Duration::from_millis(16));
    assert_eq!(speed.nanos(), 2_500_000);
    for _ in 0..50 {
        speed.took(16 << 20, Duration::from_millis(16));
    }
    assert!((1_000_000..1_001_000).contains(&speed.nanos()), "{}", speed.nanos());
}
