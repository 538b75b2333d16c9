//! A log whose writer is hostile: it makes records with right checksums that say what it likes.
//!
//! The digest must refuse what contradicts the file system, do a bounded amount of work for a
//! record, and leave a file system in which a check finds nothing. It must be able to go on: with
//! the next epoch of the log, and after it was closed and opened.

use std::time::{Duration, Instant};

use sietch_fs::change::{NewAttributes, Place};
use sietch_fs::check::{Options, check};
use sietch_fs::digest::{Batch, DigestError};
use sietch_fs::inode::{InodeNumber, Kind, Timestamp};
use sietch_fs::limits::{MAX_FILE, MAX_LINKS};
use sietch_fs::log::{AppendError, Durability, LogIdentity, LogWriter};
use sietch_fs::name::{Cookie, NameKey};
use sietch_fs::{Change, Digest, Fault};
use sietch_sim::Memory;
use sietch_sim::seeds::{self, Budget};
use sietch_structures::Random;

use crate::setup::{Disk, LOG, Media};

const KEY: NameKey = NameKey([7; 16]);
const RING: usize = 1 << 20;
/// Numbers that the writer got.
const NUMBERS: u64 = 24;
/// What a batch of a few records takes at most, on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(5);

/// A pool, and the log of the hostile writer.
struct World {
    media: Media,
    digest: Digest<Disk>,
    writer: LogWriter<Memory>,
}

impl World {
    fn new(pool: usize) -> Self {
        let media = Media::new(pool, RING);
        media.format(KEY);
        let mut digest = media.digest();
        assert_eq!(digest.inode_numbers(NUMBERS).expect("numbers"), 2..2 + NUMBERS);
        let writer = begin(&media, &mut digest);
        Self { media, digest, writer }
    }

    /// Appends a record; `false`: no log takes it.
    fn append(&mut self, change: &Change<'_>, data: &[u8]) -> bool {
        let time = Timestamp { seconds: 7, nanoseconds: 0 };
        match self.writer.append(time, change, data) {
            Ok(_) => true,
            Err(AppendError::Invalid(_)) => false,
            Err(AppendError::Full) => panic!("the log is large enough"),
        }
    }

    /// Digests all of the log. After a record that is refused, a new epoch begins.
    fn digest(&mut self) -> Result<Batch, DigestError> {
        let begun = Instant::now();
        let batch = self.digest.digest(&self.media.log, LOG.log, LOG.seed);
        while self.digest.reap()? {}
        assert!(begun.elapsed() < PATIENCE, "a batch took {:?}", begun.elapsed());
        match &batch {
            Ok(batch) => self.writer.reclaim(batch.state.position),
            Err(_) => self.writer = begin(&self.media, &mut self.digest),
        }
        if batch.as_ref().is_ok_and(|batch| batch.invalid.is_some()) {
            self.writer = begin(&self.media, &mut self.digest);
        }
        batch
    }

    /// Digests records that are all right.
    fn accepts(&mut self, records: u64) {
        let (begun, mut applied) = (Instant::now(), 0);
        loop {
            let batch = self.digest().expect("it digests");
            assert_eq!(batch.invalid, None);
            applied += batch.records;
            if batch.records == 0 {
                break;
            }
        }
        assert!(begun.elapsed() < PATIENCE, "{records} records took {:?}", begun.elapsed());
        assert_eq!(applied, records);
    }

    /// Digests a record that must be refused, and why it was.
    fn refuses(&mut self) -> String {
        let batch = self.digest().expect("it digests");
        batch.invalid.expect("it is refused").cause
    }

    fn check(&mut self) {
        let report = check(self.digest.pool(), Options { data: true }).expect("it can be checked");
        assert_eq!(report.findings, Vec::<String>::new());
    }

    fn reopen(self) -> Self {
        let Self { media, digest, .. } = self;
        drop(digest);
        let mut digest = media.digest();
        digest.free_orphans().expect("orphans are freed");
        while digest.reap().expect("they are removed") {}
        let writer = begin(&media, &mut digest);
        Self { media, digest, writer }
    }
}

fn begin(media: &Media, digest: &mut Digest<Disk>) -> LogWriter<Memory> {
    let state = digest.begin_epoch(LOG.log, LOG.seed).expect("a new epoch");
    let identity = LogIdentity { epoch: state.epoch, ..LOG };
    let mut writer = LogWriter::new(media.log.clone(), identity, Durability::Operation).expect("a log");
    writer.continue_at(state.position, state.sequence + 1);
    writer
}

fn place(directory: u64, name: &str) -> Place<'_> {
    Place { directory: InodeNumber(directory), cookie: KEY.cookie(name.as_bytes()), name: name.as_bytes() }
}

fn create<'a>(inode: u64, place: Option<Place<'a>>, kind: Kind) -> Change<'a> {
    let target: &[u8] = if kind == Kind::Symlink { b"somewhere" } else { b"" };
    let inode = InodeNumber(inode);
    Change::Create { inode, place, kind, mode: 0o755, uid: 0, gid: 0, device: 0, target }
}

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "a name that does not fit one line of the log, by far"];

/// Draws changes that are right now and then, and wrong in every way.
struct Forger {
    random: Random,
}

impl Forger {
    fn inode(&mut self) -> InodeNumber {
        InodeNumber(match self.random.below(40) {
            0 => u64::MAX,
            1 => self.random.word(),
            2 => 0,
            3 => 2 + NUMBERS + self.random.below(2),
            _ => 1 + self.random.below(12),
        })
    }

    fn place(&mut self) -> Place<'static> {
        let name = NAMES[self.random.index(NAMES.len())];
        let mut directory = self.inode();
        if self.random.chance(400) {
            directory = InodeNumber::ROOT;
        }
        let place = place(directory.0, name);
        let cookie = match self.random.below(30) {
            0 => Cookie(self.random.word()),
            1 => Cookie(place.cookie.0 + self.random.below(129)),
            _ => place.cookie,
        };
        Place { cookie, ..place }
    }

    /// A byte of a file, often at an edge.
    fn byte(&mut self) -> u64 {
        let near = self.random.below(3);
        match self.random.below(12) {
            0 => u64::MAX - near,
            1 => MAX_FILE - near,
            2 => (MAX_FILE >> 1) + near,
            3 => (4096 * self.random.below(9)) + near,
            4 => (4096 * self.random.below(9)).saturating_sub(near),
            _ => self.random.below(40_000),
        }
    }

    fn kind(&mut self) -> Kind {
        Kind::from_value(1 + self.random.below(7) as u8).expect("a kind")
    }

    fn name_change(&mut self) -> Change<'static> {
        let inode = self.inode();
        match self.random.below(9) {
            0..=3 => {
                let place = self.random.chance(900).then(|| self.place());
                let kind = match self.random.below(4) {
                    0 | 1 => Kind::Directory,
                    2 => Kind::File,
                    _ => self.kind(),
                };
                create(inode.0, place, kind)
            }
            4 => Change::Link { inode, place: self.place() },
            5 => Change::Unlink { inode, place: self.place() },
            _ => {
                let (from, to) = (self.place(), self.place());
                let replaced = self.random.chance(500).then(|| self.inode());
                Change::Rename { inode, from, to, replaced, exchange: self.random.chance(400) }
            }
        }
    }

    fn data_change(&mut self) -> Change<'static> {
        let inode = self.inode();
        let (offset, other) = (self.byte(), self.byte());
        match self.random.below(6) {
            0 | 1 => Change::Write { inode, offset, length: 1 + self.random.below(9000) as u32 },
            2 => Change::Truncate { inode, size: other },
            3 => Change::Punch { inode, offset, length: other },
            _ => {
                let zero = self.random.chance(500);
                let size = self.byte();
                Change::Reserve { inode, offset, length: other, size, zero }
            }
        }
    }

    fn change(&mut self) -> Change<'static> {
        let inode = self.inode();
        match self.random.below(10) {
            0..=3 => self.name_change(),
            4..=6 => self.data_change(),
            7 => Change::Free { inode },
            8 => {
                let time = Timestamp { seconds: self.random.word().cast_signed(), nanoseconds: 999_999_999 };
                let attributes = NewAttributes {
                    mode: self.random.chance(500).then_some(0o7777),
                    uid: self.random.chance(500).then_some(u32::MAX),
                    mtime: self.random.chance(500).then_some(time),
                    ..NewAttributes::default()
                };
                Change::SetAttributes { inode, attributes }
            }
            _ if self.random.chance(600) => {
                Change::SetXattr { inode, name: b"user.x", length: self.random.below(5000) as u32 }
            }
            _ => Change::RemoveXattr { inode, name: b"user.x" },
        }
    }
}

fn length(change: &Change<'_>) -> usize {
    match *change {
        Change::Write { length, .. } | Change::SetXattr { length, .. } => length as usize,
        _ => 0,
    }
}

#[test]
fn forged_records_never_make_the_file_system_wrong() {
    let budget = Budget { seeds: 150, seconds: 20 };
    seeds::run("forged_records_never_make_the_file_system_wrong", &[], budget, |seed| {
        let mut forger = Forger { random: Random::new(seed) };
        let mut world = World::new(3 << 20);
        let data = vec![seed as u8; 9000];
        let mut applied = 0;
        for _ in 0..60 {
            // One at a time, a refused one takes no others with it.
            for _ in 0..1 + forger.random.below(3) {
                let change = forger.change();
                world.append(&change, &data[..length(&change)]);
            }
            match world.digest() {
                Ok(batch) => applied += batch.records,
                Err(DigestError::Fault(Fault::Full { .. })) => {}
                Err(error) => panic!("{error}"),
            }
            if forger.random.chance(100) {
                world.check();
            }
            if forger.random.chance(30) {
                world = world.reopen();
            }
        }
        world.check();
        world.reopen().check();
        seeds::explored(applied);
    });
}

/// Numbers that no client got are refused: the largest would leave none for others.
#[test]
fn a_number_that_no_client_got_is_refused() {
    let mut world = World::new(3 << 20);
    for number in [2 + NUMBERS, u64::MAX] {
        assert!(world.append(&create(number, Some(place(1, "a")), Kind::File), b""), "a record");
        let cause = world.refuses();
        assert!(cause.contains("number"), "{cause}");
    }
    assert_eq!(world.digest.inode_numbers(2).expect("numbers"), 2 + NUMBERS..4 + NUMBERS);
    world.check();
}

/// The root directory has limits of users, and nothing else of that name.
#[test]
fn a_limit_that_cannot_be_one_is_refused() {
    let mut world = World::new(3 << 20);
    let inode = InodeNumber::ROOT;
    let too_long = vec![b'9'; 60_000];
    let wrong: [(&[u8], &[u8]); 7] = [
        (b"user.sietch.quota.1000", b""),
        (b"user.sietch.quota.1000", b"1 1 1"),
        (b"user.sietch.quota.1000", &too_long),
        (b"user.sietch.quota.4294967295", b"1 1"),
        (b"user.sietch.quota.01", b"1 1"),
        (b"user.sietch.quota.from.1", b"1 1"),
        (b"user.sietch.quota.", b"1 1"),
    ];
    for (name, value) in wrong {
        let change = Change::SetXattr { inode, name, length: value.len() as u32 };
        assert!(world.append(&change, value), "a record");
        let cause = world.refuses();
        assert!(cause.contains("a limit that cannot be one"), "{cause}");
    }
    let name = b"user.sietch.quota.1000";
    let set = Change::SetXattr { inode, name, length: 3 };
    assert!(world.append(&set, b"0 1"), "a record");
    world.accepts(1);
    for change in [Change::RemoveXattr { inode, name }, Change::SetXattr { inode, name, length: 0 }] {
        assert!(world.append(&change, b""), "a record");
        world.refuses();
    }
    // Elsewhere it is a name as any other.
    assert!(world.append(&create(2, Some(place(1, "a")), Kind::File), b""), "a record");
    assert!(world.append(&Change::SetXattr { inode: InodeNumber(2), name, length: 1 }, b"x"), "a record");
    world.accepts(2);
    world.check();
    world.reopen().check();
}

/// A client that reserves what no pool has gets what there is. Others, and the digest itself, still
/// have room.
#[test]
fn a_reservation_of_everything_leaves_room_for_the_digest() {
    let mut world = World::new(3 << 20);
    let inode = InodeNumber(2);
    assert!(world.append(&create(2, Some(place(1, "a")), Kind::File), b""), "a record");
    let all = Change::Reserve { inode, offset: 0, length: MAX_FILE, size: MAX_FILE, zero: false };
    assert!(world.append(&all, b""), "a record");
    for name in ["b", "c", "d", "e"] {
        let number = 3 + u64::from(name.as_bytes()[0] - b'b');
        assert!(world.append(&create(number, Some(place(1, name)), Kind::File), b""), "a record");
        let change = Change::Write { inode: InodeNumber(number), offset: 0, length: 4096 };
        assert!(world.append(&change, &[1; 4096]), "a record");
    }
    world.accepts(10);
    world.check();
    let mut world = world.reopen();
    assert!(world.append(&Change::Unlink { inode, place: place(1, "a") }, b""), "a record");
    assert!(world.append(&Change::Free { inode }, b""), "a record");
    world.accepts(2);
    world.check();
}

/// Many reservations of the same range cost no more than one.
#[test]
fn many_reservations_of_everything_take_little_time() {
    let mut world = World::new(64 << 20);
    let inode = InodeNumber(2);
    assert!(world.append(&create(2, Some(place(1, "a")), Kind::File), b""), "a record");
    for _ in 0..5000 {
        let all = Change::Reserve { inode, offset: 0, length: MAX_FILE, size: MAX_FILE, zero: false };
        assert!(world.append(&all, b""), "a record");
    }
    world.accepts(5001);
    for _ in 0..3000 {
        // Each of these asks whether a block has data, above many that have none.
        assert!(world.append(&Change::Punch { inode, offset: 1, length: 1 }, b""), "a record");
    }
    world.accepts(3000);
    world.check();
}

/// A directory that is at its limit of subdirectories gets no more by an exchange with a file.
#[test]
fn an_exchange_respects_the_limit_of_subdirectories() {
    let mut world = World::new(64 << 20);
    let most = u64::from(MAX_LINKS);
    world.digest.inode_numbers(most + 10).expect("numbers");
    assert!(world.append(&create(2, Some(place(1, "full")), Kind::Directory), b""), "a record");
    assert!(world.append(&create(3, Some(place(2, "file")), Kind::File), b""), "a record");
    assert!(world.append(&create(4, Some(place(1, "directory")), Kind::Directory), b""), "a record");
    for number in 0..most - 2 {
        let name = number.to_string();
        assert!(world.append(&create(5 + number, Some(place(2, &name)), Kind::Directory), b""), "a record");
        if number % 2000 == 1999 {
            world.accepts(2000 + if number == 1999 { 3 } else { 0 });
        }
    }
    world.accepts((most - 2) % 2000);
    let (from, to) = (place(2, "file"), place(1, "directory"));
    let replaced = Some(InodeNumber(4));
    assert!(world.append(&Change::Rename { inode: InodeNumber(3), from, to, replaced, exchange: true }, b""));
    let cause = world.refuses();
    assert!(cause.contains("subdirectories"), "{cause}");
    world.check();
}
