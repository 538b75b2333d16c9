use sietch_structures::{Random, crc32c};

use super::layout::begin_checksum;
use super::*;
use crate::change::{Change, NewAttributes, Place};
use crate::inode::{InodeNumber, Kind, Timestamp};
use crate::limits::{MAX_FILE, MAX_RECORD_DATA, MAX_TARGET, MAX_XATTR_VALUE};
use crate::name::Cookie;

const IDENTITY: LogIdentity = LogIdentity { log: 2, epoch: 9, seed: 77 };
const POSITION: u64 = 640;
const NOW: Timestamp = Timestamp { seconds: 1_700_000_000, nanoseconds: 5 };
const INODE: InodeNumber = InodeNumber(12);
const LONG: [u8; 255] = [b'n'; 255];

fn place(name: &[u8]) -> Place<'_> {
    Place { directory: InodeNumber(1), cookie: Cookie(4096), name }
}

fn create<'a>(kind: Kind, place: Option<Place<'a>>, target: &'a [u8]) -> Change<'a> {
    Change::Create { inode: INODE, place, kind, mode: 0o644, uid: 1, gid: 2, device: 0, target }
}

fn rename<'a>(from: &'a [u8], to: &'a [u8], replaced: Option<u64>, exchange: bool) -> Change<'a> {
    let replaced = replaced.map(InodeNumber);
    Change::Rename { inode: INODE, from: place(from), to: place(to), replaced, exchange }
}

/// Changes that a log takes, with what they carry: of each kind, and at the limits.
fn valid() -> Vec<(Change<'static>, Vec<u8>)> {
    static TARGET: [u8; MAX_TARGET] = [b't'; MAX_TARGET];
    let attributes = NewAttributes {
        mode: Some(0o7777),
        gid: Some(u32::MAX),
        atime: Some(NOW),
        ..NewAttributes::default()
    };
    let set = |attributes| Change::SetAttributes { inode: INODE, attributes };
    let reserve =
        |zero| Change::Reserve { inode: INODE, offset: 4096, length: MAX_FILE - 4096, size: MAX_FILE, zero };
    let device = Change::Create {
        inode: INODE,
        place: Some(place(b"d")),
        kind: Kind::BlockDevice,
        mode: 0o7777,
        uid: u32::MAX,
        gid: u32::MAX,
        device: u64::MAX,
        target: &[],
    };
    let plain = [
        create(Kind::File, Some(place(b"a")), &[]),
        create(Kind::File, None, &[]),
        create(Kind::Directory, Some(place(&LONG)), &[]),
        device,
        Change::Link { inode: INODE, place: place(&LONG) },
        Change::Unlink { inode: INODE, place: place(b"name") },
        rename(b"a", b"b", None, false),
        rename(&LONG, &LONG[1..], Some(13), false),
        rename(b"a", &LONG, Some(u64::MAX), true),
        Change::Truncate { inode: INODE, size: MAX_FILE },
        reserve(true),
        reserve(false),
        Change::Punch { inode: INODE, offset: MAX_FILE - 1, length: 1 },
        set(attributes),
        set(NewAttributes::default()),
        Change::RemoveXattr { inode: INODE, name: &LONG },
        Change::Free { inode: InodeNumber(u64::MAX) },
    ];
    let write = |length| Change::Write { inode: INODE, offset: MAX_FILE - u64::from(length), length };
    let xattr = |length| Change::SetXattr { inode: INODE, name: b"user.a", length };
    let mut all: Vec<_> = plain.into_iter().map(|change| (change, Vec::new())).collect();
    all.push((create(Kind::Symlink, Some(place(b"s")), &TARGET), TARGET.to_vec()));
    for length in [1, 63, 64, 65, MAX_RECORD_DATA] {
        all.push((write(length as u32), vec![7; length]));
    }
    for length in [0, 100, MAX_XATTR_VALUE] {
        all.push((xattr(length as u32), vec![7; length]));
    }
    all
}

/// The bytes of a record, without a check.
fn encode(stamp: Stamp, change: &Change<'_>, payload: &[u8]) -> Vec<u8> {
    let front = front_bytes(change);
    let mut bytes = vec![0; front + payload.len().next_multiple_of(LINE)];
    bytes[front..front + payload.len()].copy_from_slice(payload);
    encode_front(&IDENTITY, POSITION, stamp, change, payload.len(), &mut bytes[..front]);
    seal(&mut bytes);
    bytes
}

/// Makes the checksum right, as who knows the seed can.
fn seal(bytes: &mut [u8]) {
    begin_checksum(&IDENTITY, POSITION, bytes);
    let checksum = crc32c(bytes);
    finish(bytes, checksum);
}

const STAMP: Stamp = Stamp { sequence: 5, unproven: 3, time: NOW };

#[test]
fn every_valid_change_is_taken_and_read_back() {
    for (change, payload) in valid() {
        assert_eq!(check(NOW, &change, payload.len()), Ok(()), "{change:?}");
        let mut bytes = encode(STAMP, &change, &payload);
        assert!(bytes.len() <= MAX_RECORD);
        let header = Header::peek(&IDENTITY, &bytes).expect("a header of this log");
        assert_eq!((header.sequence(), header.time(), header.proven()), (5, NOW, 1));
        assert_eq!((header.length(), header.checked_length()), (bytes.len(), bytes.len()));
        assert!(header.is_genuine(&IDENTITY, POSITION, &mut bytes));
        assert!(!header.is_genuine(&IDENTITY, POSITION + 64, &mut bytes));
        assert_eq!(decode(&header, &bytes), Ok((change, &payload[..])));
    }
}

#[test]
fn a_hostile_record_is_refused_or_is_the_encoding_of_what_it_says() {
    let mut dice = Random::new(1);
    let (mut refused, mut taken) = (0, 0);
    for (change, payload) in valid().into_iter().filter(|(_, payload)| payload.len() < 5000) {
        let genuine = encode(STAMP, &change, &payload);
        for _ in 0..3000 {
            let mut bytes = genuine.clone();
            for _ in 0..dice.between(1, 3) {
                // Most fields are in the first lines.
                let byte = 8 + dice.index(bytes.len().min(160) - 8);
                bytes[byte] =
                    if dice.chance(500) { dice.word() as u8 } else { bytes[byte] ^ 1 << dice.below(8) };
            }
            seal(&mut bytes);
            let Some(header) = Header::peek(&IDENTITY, &bytes) else { continue };
            if header.is_pad() || header.length() != bytes.len() {
                // The reader judges another number of bytes; they must not make it panic.
                let _ = (header.check_pad(), decode(&header, &bytes));
                continue;
            }
            match decode(&header, &bytes) {
                Ok((change, payload)) => {
                    let unproven = u16::from_le_bytes([bytes[46], bytes[47]]);
                    let stamp = Stamp { sequence: header.sequence(), unproven, time: header.time() };
                    assert_eq!(check(header.time(), &change, payload.len()), Ok(()));
                    assert!(encode(stamp, &change, payload) == bytes, "another encoding of {change:?}");
                    taken += 1;
                }
                Err(_) => refused += 1,
            }
        }
    }
    assert!(refused > 5000 && taken > 5000, "{refused} refused, {taken} taken");
}

#[test]
fn random_bytes_are_never_decoded_to_something_invalid() {
    let mut dice = Random::new(2);
    let mut bytes = vec![0; 4096];
    let genuine = encode(STAMP, &Change::Free { inode: INODE }, &[]);
    for _ in 0..100_000 {
        dice.fill(&mut bytes[..200]);
        // The fields that a header must have; kind, lengths and the rest stay random.
        bytes[..8].copy_from_slice(&genuine[..8]);
        bytes[16..24].copy_from_slice(&genuine[16..24]);
        bytes[8..12].copy_from_slice(&dice.below(300).to_le_bytes()[..4]);
        bytes[12] %= 16;
        bytes[14] = bytes[14] % 4 + 1;
        let header = Header::peek(&IDENTITY, &bytes).expect("a plausible header");
        let length = header.checked_length().min(bytes.len());
        if let Ok((change, payload)) = decode(&header, &bytes[..length]) {
            assert_eq!(check(header.time(), &change, payload.len()), Ok(()));
        }
        let _ = header.check_pad();
    }
}

#[test]
fn a_header_of_another_log_or_with_impossible_lengths_is_none() {
    let genuine = encode(STAMP, &Change::Free { inode: INODE }, &[]);
    assert!(Header::peek(&IDENTITY, &genuine).is_some());
    assert!(Header::peek(&IDENTITY, &genuine[..LINE - 1]).is_none());
    for (byte, value) in [(0, b'T'), (11, 1), (14, 0), (14, 11), (14, 255), (16, 3), (20, 8)] {
        let mut bytes = genuine.clone();
        bytes[byte] = value;
        assert!(Header::peek(&IDENTITY, &bytes).is_none(), "byte {byte} is {value}");
    }
}

#[test]
fn a_front_of_more_lines_than_it_needs_is_refused() {
    let mut bytes = encode(STAMP, &Change::Free { inode: INODE }, &[]);
    bytes.resize(2 * LINE, 0);
    bytes[14] = 2;
    seal(&mut bytes);
    let header = Header::peek(&IDENTITY, &bytes).expect("a plausible header");
    assert_eq!(header.length(), bytes.len());
    assert!(decode(&header, &bytes).is_err());
}

#[test]
fn a_record_behind_too_many_that_were_not_durable_proves_nothing() {
    for (unproven, proven) in [(0, 99_999), (65_534, 34_465), (UNKNOWN, 0)] {
        let stamp = Stamp { sequence: 100_000, unproven, time: NOW };
        let bytes = encode(stamp, &Change::Free { inode: INODE }, &[]);
        assert_eq!(Header::peek(&IDENTITY, &bytes).expect("a header").proven(), proven);
    }
}

/// Changes that no log takes, with what they carry.
fn invalid() -> Vec<(Change<'static>, usize)> {
    static TOO_LONG: [u8; 256] = [b'n'; 256];
    static TARGET: [u8; MAX_TARGET + 1] = [b't'; MAX_TARGET + 1];
    let none = InodeNumber(0);
    let a = place(b"a");
    let late = Timestamp { seconds: 0, nanoseconds: 1_000_000_000 };
    let link = |place| Change::Link { inode: INODE, place };
    let write = |offset, length| Change::Write { inode: INODE, offset, length };
    let reserve = |offset, length, size| Change::Reserve { inode: INODE, offset, length, size, zero: false };
    let punch = |offset, length| Change::Punch { inode: INODE, offset, length };
    let set = |attributes| Change::SetAttributes { inode: INODE, attributes };
    let nothing = NewAttributes::default();
    let mode = Change::Create {
        inode: INODE,
        place: Some(a),
        kind: Kind::File,
        mode: 0o10000,
        uid: 0,
        gid: 0,
        device: 0,
        target: &[],
    };
    let device = Change::Create {
        inode: INODE,
        place: Some(a),
        kind: Kind::Fifo,
        mode: 0,
        uid: 0,
        gid: 0,
        device: 1,
        target: &[],
    };
    let mut all = vec![
        (Change::Free { inode: none }, 0),
        (Change::Free { inode: INODE }, 1),
        (Change::Truncate { inode: INODE, size: MAX_FILE + 1 }, 0),
        (link(Place { directory: none, ..a }), 0),
        (link(Place { directory: INODE, ..a }), 0),
        (link(Place { cookie: Cookie(127), ..a }), 0),
        (link(Place { cookie: Cookie(1 << 63), ..a }), 0),
        (write(0, 0), 0),
        (write(0, 10), 9),
        (write(0, MAX_RECORD_DATA as u32 + 1), MAX_RECORD_DATA + 1),
        (write(MAX_FILE, 1), 1),
        (write(u64::MAX, 1), 1),
        (reserve(0, 0, 0), 0),
        (reserve(0, 1, MAX_FILE + 1), 0),
        (reserve(1, MAX_FILE, 1), 0),
        (reserve(u64::MAX, u64::MAX, 1), 0),
        (punch(0, 0), 0),
        (punch(MAX_FILE, 1), 0),
        (set(NewAttributes { mode: Some(0o10000), ..nothing }), 0),
        (set(NewAttributes { atime: Some(late), ..nothing }), 0),
        (set(NewAttributes { mtime: Some(late), ..nothing }), 0),
        (Change::SetXattr { inode: INODE, name: b"", length: 1 }, 1),
        (Change::SetXattr { inode: INODE, name: &TOO_LONG, length: 1 }, 1),
        (
            Change::SetXattr { inode: INODE, name: b"a", length: MAX_XATTR_VALUE as u32 + 1 },
            MAX_XATTR_VALUE + 1,
        ),
        (Change::SetXattr { inode: INODE, name: b"a", length: 2 }, 1),
        (Change::RemoveXattr { inode: INODE, name: b"a\0" }, 0),
        (rename(b"a", b"a", None, false), 0),
        (rename(b"a", b"b", Some(0), false), 0),
        (rename(b"a", b"b", Some(INODE.0), false), 0),
        (rename(b"a", b"b", None, true), 0),
        (create(Kind::Directory, None, &[]), 0),
        (create(Kind::File, Some(a), b"target"), 6),
        (create(Kind::Symlink, Some(a), b""), 0),
        (create(Kind::Symlink, Some(a), b"a\0b"), 3),
        (create(Kind::Symlink, Some(a), &TARGET), TARGET.len()),
        (mode, 0),
        (device, 0),
    ];
    for name in [&b""[..], b".", b"..", b"a/b", b"a\0", &TOO_LONG] {
        all.push((link(place(name)), 0));
        all.push((Change::Unlink { inode: INODE, place: place(name) }, 0));
        all.push((create(Kind::File, Some(place(name)), &[]), 0));
        all.push((rename(name, b"b", None, false), 0));
        all.push((rename(b"b", name, None, false), 0));
    }
    all
}

#[test]
fn what_the_writer_refuses_the_reader_refuses_too() {
    for (change, payload) in invalid() {
        assert!(check(NOW, &change, payload).is_err(), "{change:?}");
        let names = match &change {
            Change::Create { place: Some(place), .. } | Change::Link { place, .. } => place.name.len(),
            Change::Unlink { place, .. } => place.name.len(),
            Change::Rename { from, to, .. } => from.name.len().max(to.name.len()),
            Change::SetXattr { name, .. } => name.len(),
            _ => 0,
        };
        if names > 255 {
            // The format has no such name.
            continue;
        }
        let payload = match change {
            Change::Create { target, .. } => target.to_vec(),
            _ => vec![1; payload],
        };
        let bytes = encode(STAMP, &change, &payload);
        // A longer payload than any is no header; a shorter one than the change says is another
        // change.
        if let Some(header) = Header::peek(&IDENTITY, &bytes) {
            let read = decode(&header, &bytes);
            assert!(read.is_err() || read.is_ok_and(|(read, _)| read != change), "{change:?}");
        }
    }
    let late = Timestamp { nanoseconds: 1_000_000_000, ..NOW };
    let free = Change::Free { inode: INODE };
    assert!(check(late, &free, 0).is_err());
    let bytes = encode(Stamp { time: late, ..STAMP }, &free, &[]);
    let header = Header::peek(&IDENTITY, &bytes).expect("a plausible header");
    assert!(decode(&header, &bytes).is_err());
}

#[test]
fn a_pad_says_nothing_but_its_length() {
    let stamp = Stamp { time: Timestamp::default(), ..STAMP };
    let mut line = encode_pad(&IDENTITY, POSITION, stamp, 192);
    let checksum = crc32c(&line);
    finish(&mut line, checksum);
    let header = Header::peek(&IDENTITY, &line).expect("a header of this log");
    assert!(header.is_pad() && header.is_genuine(&IDENTITY, POSITION, &mut line));
    assert_eq!((header.length(), header.checked_length(), header.check_pad()), (256, 64, Ok(())));
    for byte in (8..LINE).filter(|byte| !(16..32).contains(byte)) {
        let mut other = line;
        other[byte] ^= 1;
        finish(&mut other, 0);
        let accepted = Header::peek(&IDENTITY, &other)
            .is_some_and(|header| header.check_pad().is_ok() && header.is_pad());
        // Bytes 46 and 47 count records that were not durable.
        assert_eq!(accepted, matches!(byte, 46 | 47 | 9 | 10), "byte {byte}");
    }
}
