//! What the overlay counts and drops, beside a plain account of the same.

use std::ops::Range;

use sietch_disk::BLOCK;

use super::ranges::{Ranges, Source};
use super::{Logged, Overlay, State};
use crate::base::Inode;
use crate::inode::{InodeNumber, Kind, Timestamp};
use crate::name::Cookie;

/// A sum over all pieces.
fn logged(ranges: &Ranges) -> u64 {
    let logged = ranges.pieces().filter(|(_, source)| matches!(source, Source::Log(_)));
    logged.map(|(range, _)| range.end - range.start).sum()
}

#[test]
fn bytes_in_the_log_are_counted_as_pieces_come_and_go() {
    let mut random = 1_u64;
    let mut below = |end: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) % end
    };
    for _ in 0..200 {
        let mut ranges = Ranges::default();
        for position in 0..60 {
            let start = below(8 * BLOCK as u64);
            let range: Range<u64> = start..start + 1 + below(2 * BLOCK as u64);
            match below(8) {
                0 => ranges.truncate(start, position),
                1 => {
                    let position = position.saturating_sub(below(30));
                    let stays = |(_, source): &(Range<u64>, Source)| match source {
                        Source::Log(at) => at >> 20 >= position,
                        _ => false,
                    };
                    let expected: Vec<_> = ranges.pieces().filter(stays).collect();
                    ranges.expire(position);
                    let is_logged = |(_, source): &(_, Source)| matches!(source, Source::Log(_));
                    assert_eq!(ranges.pieces().filter(is_logged).collect::<Vec<_>>(), expected);
                }
                2 => ranges.put(range, Source::Hole, position),
                3 => ranges.put(range, Source::Zeros, position),
                _ => ranges.put(range, Source::Log(position << 20), position),
            }
            assert_eq!(ranges.logged_bytes(), logged(&ranges));
        }
        ranges.expire(u64::MAX);
        assert!(ranges.is_empty(), "{ranges:?}");
        assert_eq!(ranges.logged_bytes(), 0);
    }
}

fn file() -> Inode {
    let time = Timestamp::default();
    Inode {
        kind: Kind::File,
        mode: 0o644,
        links: 1,
        uid: 0,
        gid: 0,
        device: 0,
        size: 0,
        blocks: 0,
        parent: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        applied: (0, 0),
    }
}

#[test]
fn of_records_in_a_row_those_before_a_position_expire_and_later_ones_stay() {
    let (mut overlay, inode, other) = (Overlay::default(), InodeNumber(7), InodeNumber(8));
    for (inode, positions) in [(inode, 0..4), (other, 4..6), (inode, 6..8)] {
        for position in positions {
            let state = overlay.inodes.entry(inode).or_insert_with(|| State::of(file(), false));
            state.ranges.put(position * 10..position * 10 + 10, Source::Log(position), position);
            state.logged = position;
            overlay.touched(inode, position);
        }
    }
    for position in 0..=8 {
        overlay.expire(position);
        let bytes = |inode| overlay.state(inode).map(|state| state.ranges.logged_bytes());
        let left = |of: [Range<u64>; 2]| {
            of.into_iter().map(|of| of.end.saturating_sub(of.start.max(position))).sum::<u64>() * 10
        };
        assert_eq!(bytes(inode), Some(left([0..4, 6..8])).filter(|bytes| *bytes > 0), "{position}");
        assert_eq!(bytes(other), Some(left([4..6, 6..6])).filter(|bytes| *bytes > 0), "{position}");
    }
}

#[test]
fn entries_of_a_directory_expire_by_their_last_record() {
    let (mut overlay, directory) = (Overlay::default(), InodeNumber(7));
    // Each place is set twice: at position `n`, and at `n + 10`.
    for position in 0..20 {
        let state = overlay.inodes.entry(directory).or_insert_with(|| State::of(file(), false));
        let target = (position < 15).then_some((InodeNumber(100 + position), Kind::File));
        let name = format!("{}", position % 10).into_bytes().into();
        let entry = Logged { name, target, is_new: true, logged: position };
        state.set_entry(Cookie(position % 10), entry);
        state.logged = position;
        overlay.touched(directory, position);
    }
    for position in 0..20 {
        overlay.expire(position);
        let state = overlay.state(directory).expect("the last record is not digested");
        let left: Vec<_> = state.entries.iter().map(|(cookie, entry)| (cookie.0, entry.logged)).collect();
        let expected: Vec<_> = (position.max(10)..20).map(|logged| (logged - 10, logged)).collect();
        assert_eq!(left, expected, "{position}");
    }
    overlay.expire(20);
    assert!(overlay.state(directory).is_none());
}
