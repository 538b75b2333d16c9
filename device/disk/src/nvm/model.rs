//! How slow DRAM makes itself to stand in for slower memory, or for a rotating disk.
//!
//! 1. Each request takes the time of its bytes at the bandwidth, one request after the other. A
//!    latency is added to each, which the next one does not wait for.
//! 2. With a [`Seek`], a request first waits until the head is where it begins: nothing if the one
//!    before ended there; else the shorter of passing over what is between them, if that is ahead,
//!    and of a seek with half a rotation, which is the mean wait for a sector. Others wait
//!    meanwhile.
//! 3. A seek takes as long as the square root of its distance says. It is what measured disks do
//!    but for long seeks, where it is nearly linear (C. Ruemmler and J. Wilkes, An introduction to
//!    disk drive modeling, IEEE Computer 27(3), 1994).
//!
//! A rotating disk that caches writes is not modelled: a write takes as long as a read.

use std::fmt;
use std::time::Duration;

/// Latency added to each request, and a bandwidth that all of them share. What is measured with a
/// model says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Model {
    /// Added to each read.
    pub read_latency: Duration,
    /// Added to each write and flush.
    pub write_latency: Duration,
    /// Bytes a second, reads and writes together; 0: no limit.
    pub bandwidth: u64,
    /// How the head of a rotating disk moves; `None`: every place is as near.
    pub seek: Option<Seek>,
}

/// How the head of a rotating disk moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seek {
    /// To the next track.
    pub shortest: Duration,
    /// From the first byte to the last.
    pub longest: Duration,
    /// Half a rotation: the mean wait for a sector, once the head is on its track.
    pub half_rotation: Duration,
}

/// To the next track and to settle there: about a millisecond in data sheets of disks with 7200
/// rotations a minute.
const SHORTEST_SEEK: Duration = Duration::from_micros(1000);
/// So that a random access takes 10 ms in the mean, as the talk of Strata says of a disk (SOSP
/// 2017): half a rotation, the shortest seek, and 8/15 of the rest, which is the mean of the square
/// root of the distance of two random places.
const LONGEST_SEEK: Duration = Duration::from_micros(10_060);
/// Of 7200 rotations a minute.
const HALF_ROTATION: Duration = Duration::from_micros(4167);
/// As the talk says: 0.25 GB/s.
const ROTATING_BANDWIDTH: u64 = 250_000_000;

impl Model {
    /// A rotating disk of 7200 rotations a minute: 10 ms for a random access in the mean, 0.25 GB a
    /// second.
    pub const ROTATING_DISK: Self = Self {
        read_latency: Duration::ZERO,
        write_latency: Duration::ZERO,
        bandwidth: ROTATING_BANDWIDTH,
        seek: Some(Seek { shortest: SHORTEST_SEEK, longest: LONGEST_SEEK, half_rotation: HALF_ROTATION }),
    };

    /// How long the memory is busy with `bytes`.
    pub(super) fn transfer(&self, bytes: u64) -> Duration {
        let nanoseconds =
            (u128::from(bytes) * 1_000_000_000).checked_div(u128::from(self.bandwidth)).unwrap_or(0);
        Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }

    /// How long it takes until the head, which is at `head`, is at `offset`, in an area of so many
    /// bytes.
    pub(super) fn position(&self, capacity: u64, head: u64, offset: u64) -> Duration {
        let Some(seek) = self.seek.filter(|_| head != offset) else { return Duration::ZERO };
        let part = head.abs_diff(offset) as f64 / capacity.max(1) as f64;
        let stroke = seek.longest.saturating_sub(seek.shortest);
        let moved = seek.shortest + stroke.mul_f64(part.min(1.0).sqrt()) + seek.half_rotation;
        match offset.checked_sub(head) {
            Some(between) if self.bandwidth > 0 => moved.min(self.transfer(between)),
            _ => moved,
        }
    }
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "model: +{} ns a read, +{} ns a write",
            self.read_latency.as_nanos(),
            self.write_latency.as_nanos()
        )?;
        if self.bandwidth > 0 {
            write!(f, ", {} MB/s", self.bandwidth / 1_000_000)?;
        }
        if let Some(Seek { shortest, longest, half_rotation }) = self.seek {
            let (shortest, longest) = (shortest.as_micros(), longest.as_micros());
            let half_rotation = half_rotation.as_micros();
            write!(f, ", a seek of {shortest} to {longest} us and {half_rotation} us of rotation")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: Model = Model::ROTATING_DISK;
    const CAPACITY: u64 = 1 << 40;
    const BLOCK: u64 = 4096;

    /// The time of blocks at these places, one after the other.
    fn time(places: impl Iterator<Item = u64>) -> Duration {
        let mut head = 0;
        let mut sum = Duration::ZERO;
        for offset in places {
            sum += DISK.position(CAPACITY, head, offset) + DISK.transfer(BLOCK);
            head = offset + BLOCK;
        }
        sum
    }

    #[test]
    fn random_blocks_pay_for_seeks_and_adjacent_ones_do_not() {
        const COUNT: u64 = 10_000;
        let adjacent = time((0..COUNT).map(|block| block * BLOCK));
        assert_eq!(adjacent, DISK.transfer(BLOCK) * COUNT as u32);
        // Knuth's multiplier spreads the places evenly.
        let place = |at: u64| at.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (CAPACITY / BLOCK) * BLOCK;
        let mean = time((1..=COUNT).map(|at| place(at * at))) / COUNT as u32;
        assert!((9_900..10_200).contains(&mean.as_micros()), "{mean:?} for a random block");
    }

    #[test]
    fn a_seek_takes_longer_the_farther_it_goes() {
        let from = |head, offset| DISK.position(CAPACITY, head, offset);
        assert_eq!(from(BLOCK, BLOCK), Duration::ZERO);
        // Backwards by a block: nearly a whole rotation, in the mean half of one.
        assert!(from(BLOCK, 0) >= SHORTEST_SEEK + HALF_ROTATION);
        assert_eq!(from(CAPACITY, 0), LONGEST_SEEK + HALF_ROTATION);
        assert!(from(CAPACITY, CAPACITY / 2) < from(CAPACITY, CAPACITY / 4));
        // A small gap passes below the head.
        assert_eq!(from(0, 10 * BLOCK), DISK.transfer(10 * BLOCK));
        // Places behind the end, and an empty area.
        assert_eq!(DISK.position(0, u64::MAX, 0), LONGEST_SEEK + HALF_ROTATION);
    }

    #[test]
    fn memory_has_no_seeks() {
        let model = Model { seek: None, ..DISK };
        assert_eq!(model.position(CAPACITY, 0, CAPACITY), Duration::ZERO);
        assert!(DISK.to_string().ends_with("250 MB/s, a seek of 1000 to 10060 us and 4167 us of rotation"));
        assert!(model.to_string().ends_with("250 MB/s"));
    }
}
