//! Durations of a command, from one nanosecond to one second, with two significant digits.
//!
//! 1. The buckets are those of the HDR histogram that Redis uses: below 256 each value has its own;
//!    above, each power of two is divided into 128.
//! 2. [`Histogram::distribution`] counts cumulatively at powers of two, as LATENCY HISTOGRAM shows
//!    them: the bucket that begins with the power is included, because Redis' iterator includes it.

/// Longest duration that is distinguished, in nanoseconds.
const LONGEST: u64 = 1_000_000_000;

/// Buckets of each power of two: 128 have more than two significant digits.
const HALF: usize = 128;

/// Index of the bucket of [`LONGEST`], plus one.
const BUCKETS: usize = bucket(LONGEST) + 1;

/// The first power of two that is shown: about a microsecond.
const FIRST_SHOWN: u64 = 1024;

/// Durations of one command.
#[derive(Debug)]
pub(crate) struct Histogram {
    counts: Box<[u64]>,
    total: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS].into_boxed_slice(), total: 0 }
    }
}

/// The bucket of a value.
const fn bucket(value: u64) -> usize {
    if value < 2 * HALF as u64 {
        return value as usize;
    }
    // 7 bits below the highest one.
    let shift = value.ilog2() - HALF.ilog2();
    shift as usize * HALF + (value >> shift) as usize
}

/// The greatest value in the bucket of `value`.
const fn highest(value: u64) -> u64 {
    if value < 2 * HALF as u64 {
        return value;
    }
    let shift = value.ilog2() - HALF.ilog2();
    (((value >> shift) + 1) << shift) - 1
}

impl Histogram {
    /// Adds a duration in nanoseconds.
    pub(crate) fn record(&mut self, nanoseconds: u64) {
        self.counts[bucket(nanoseconds.clamp(1, LONGEST))] += 1;
        self.total += 1;
    }

    /// Adds the durations of another histogram.
    pub(crate) fn add(&mut self, other: &Self) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(count, more)| *count += more);
        self.total += other.total;
    }

    /// Durations recorded.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Pairs of microseconds and the number of durations up to them, where the number grows.
    pub(crate) fn distribution(&self) -> Vec<(u64, u64)> {
        let mut pairs = Vec::new();
        let (mut counted, mut shown, mut next) = (0, 0, 0);
        let mut level = FIRST_SHOWN;
        while shown < self.total {
            let end = (bucket(level) + 1).min(BUCKETS);
            counted += self.counts[next..end].iter().sum::<u64>();
            next = end;
            if counted > shown {
                // Redis' iterator ends with its last bucket, just below this power of two.
                let end = if level > LONGEST { level - 1 } else { highest(level) };
                pairs.push((end / 1000, counted));
                shown = counted;
            }
            level = level.saturating_mul(2);
        }
        pairs
    }

    /// The duration that a share of all (in percent) does not exceed, in nanoseconds.
    pub(crate) fn percentile(&self, percent: f64) -> u64 {
        let wanted = ((percent / 100.0 * self.total as f64).ceil() as u64).clamp(1, self.total.max(1));
        let mut counted = 0;
        for (index, count) in self.counts.iter().enumerate() {
            counted += count;
            if counted >= wanted {
                return highest(lowest(index));
            }
        }
        0
    }
}

/// The least value of a bucket.
fn lowest(index: usize) -> u64 {
    if index < 2 * HALF {
        return index as u64;
    }
    let shift = index / HALF - 1;
    ((index - shift * HALF) as u64) << shift
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_in_a_bucket_of_two_significant_digits() {
        for value in (0..2000).chain((0..30).flat_map(|bit| [(1 << bit) - 1, 1 << bit, (1 << bit) + 1])) {
            let value: u64 = value.clamp(0, LONGEST);
            let (low, high) = (lowest(bucket(value)), highest(value));
            assert!(low <= value && value <= high, "{low} {value} {high}");
            assert!((high - low) * 100 <= low.max(99), "{low} {high}");
            assert_eq!(bucket(high), bucket(low));
            assert!(high >= LONGEST || bucket(high + 1) == bucket(low) + 1);
        }
    }

    #[test]
    fn the_distribution_is_cumulative_and_ends_with_all() {
        let mut histogram = Histogram::default();
        for nanoseconds in [500, 1031, 1032, 33_000, 33_024, 5_000_000_000] {
            histogram.record(nanoseconds);
        }
        // The values at the left are those that redis-server prints for its powers of two.
        assert_eq!(histogram.distribution(), [(1, 2), (2, 3), (33, 4), (66, 5), (1_073_741, 6)]);
        assert_eq!(histogram.total(), 6);
        assert_eq!(Histogram::default().distribution(), []);
    }

    #[test]
    fn percentiles_are_of_the_durations() {
        let mut histogram = Histogram::default();
        (1..=100).for_each(|value| histogram.record(value));
        assert_eq!(
            (histogram.percentile(50.0), histogram.percentile(99.0), histogram.percentile(100.0)),
            (50, 99, 100)
        );
        assert_eq!(Histogram::default().percentile(50.0), 0);
    }
}
