//! Changes for tests: of every kind, with their data.

use sietch_structures::Random;

use sietch_disk::nvm::Medium;
use sietch_fs::change::{Change, NewAttributes, Place, Record};
use sietch_fs::inode::{InodeNumber, Kind, MODE_BITS, Timestamp};
use sietch_fs::limits::{MAX_FILE, MAX_RECORD_DATA, MAX_TARGET, MAX_XATTR_NAME, MAX_XATTR_VALUE};
use sietch_fs::log::{LogIdentity, LogWriter};
use sietch_fs::name::{Cookie, FIRST_COOKIE, MAX_NAME};

pub(super) const IDENTITY: LogIdentity = LogIdentity { log: 7, epoch: 3, seed: 0x0123_4567_89ab_cdef };

/// Kinds of changes.
pub(super) const KINDS: u64 = 12;

/// What a test keeps of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    pub sequence: u64,
    pub time: Timestamp,
    /// The change as text: comparable, and shown when a test fails.
    pub change: String,
    pub data: Vec<u8>,
}

impl Kept {
    pub(super) fn of(record: &Record<'_>) -> Self {
        let data = record.data.1.to_vec();
        Self { sequence: record.sequence, time: record.time, change: format!("{:?}", record.change), data }
    }
}

/// A change that owns its bytes.
#[derive(Clone, Debug)]
pub(super) struct Owned {
    pub time: Timestamp,
    kind: u64,
    numbers: [u64; 8],
    first: Vec<u8>,
    second: Vec<u8>,
    pub data: Vec<u8>,
}

fn length(dice: &mut Random, least: usize, most: usize) -> usize {
    match dice.below(10) {
        0 => least,
        1 => most,
        2 => dice.between(least as u64, most as u64) as usize,
        _ => dice.between(least as u64, (least + 40).min(most) as u64) as usize,
    }
}

fn name(dice: &mut Random, most: usize) -> Vec<u8> {
    let mut bytes = vec![0; length(dice, 1, most)];
    dice.fill(&mut bytes);
    for byte in &mut bytes {
        if matches!(byte, 0 | b'/' | b'.') {
            *byte = b'_';
        }
    }
    bytes
}

fn time(dice: &mut Random) -> Timestamp {
    let seconds = match dice.below(8) {
        0 => i64::MIN,
        1 => i64::MAX,
        _ => dice.below(1 << 33) as i64,
    };
    Timestamp {
        seconds,
        nanoseconds: if dice.chance(100) { 999_999_999 } else { dice.below(1 << 29) as u32 },
    }
}

impl Owned {
    /// A random change of the kind, with at most so many bytes of data.
    pub(super) fn new(dice: &mut Random, kind: u64, most: usize) -> Self {
        let mut numbers = [0; 8];
        for number in &mut numbers {
            *number = match dice.below(8) {
                0 => 0,
                1 => u64::MAX,
                _ => dice.word(),
            };
        }
        let data = match kind {
            4 => length(dice, 1, most.min(MAX_RECORD_DATA)),
            9 => length(dice, 0, most.min(MAX_XATTR_VALUE)),
            0 => length(dice, 1, most.min(MAX_TARGET)),
            _ => 0,
        };
        let names = if matches!(kind, 9 | 10) { MAX_XATTR_NAME } else { MAX_NAME };
        let mut owned = Self {
            time: time(dice),
            kind,
            numbers,
            first: name(dice, names),
            second: name(dice, names),
            data: vec![0; data],
        };
        if owned.second == owned.first {
            // A rename to the same name is refused.
            owned.second = if owned.first == b"a" { b"b".to_vec() } else { b"a".to_vec() };
        }
        dice.fill(&mut owned.data);
        if kind == 0 {
            owned.data.iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = 1);
        }
        owned
    }

    pub(super) fn random(dice: &mut Random, most: usize) -> Self {
        let kind = if dice.chance(400) { 4 } else { dice.below(KINDS) };
        Self::new(dice, kind, most)
    }

    fn place(&self, directory: u64, cookie: u64, second: bool) -> Place<'_> {
        let cookie = (cookie % i64::MAX.cast_unsigned()).max(FIRST_COOKIE.0);
        let name = if second { &self.second } else { &self.first };
        Place { directory: InodeNumber(directory.max(1) & !1 | 2), cookie: Cookie(cookie), name }
    }

    /// The range that two numbers make.
    fn range(&self) -> (u64, u64) {
        let offset = self.numbers[1] % MAX_FILE;
        (offset, (self.numbers[2] % (MAX_FILE - offset)).max(1))
    }

    pub(super) fn change(&self) -> Change<'_> {
        let n = &self.numbers;
        // Inodes are odd and directories even, so that none is in itself.
        let inode = InodeNumber(n[0] | 1);
        let (offset, length) = self.range();
        match self.kind {
            0 => self.create(inode),
            1 => Change::Link { inode, place: self.place(n[1], n[2], false) },
            2 => Change::Unlink { inode, place: self.place(n[1], n[2], false) },
            3 => {
                let replaced = (!n[5].is_multiple_of(3)).then_some(InodeNumber(n[6] & !1 | 2));
                Change::Rename {
                    inode,
                    from: self.place(n[1], n[2], false),
                    to: self.place(n[3], n[4], true),
                    replaced,
                    exchange: n[5] % 3 == 2,
                }
            }
            4 => {
                let length = self.data.len() as u32;
                let offset = (n[1] % MAX_FILE).min(MAX_FILE - u64::from(length));
                Change::Write { inode, offset, length }
            }
            5 => Change::Truncate { inode, size: n[1] % (MAX_FILE + 1) },
            6 => Change::Reserve {
                inode,
                offset,
                length,
                size: n[3] % (MAX_FILE + 1),
                zero: n[4].is_multiple_of(2),
            },
            7 => Change::Punch { inode, offset, length },
            8 => Change::SetAttributes { inode, attributes: self.attributes() },
            9 => Change::SetXattr { inode, name: &self.first, length: self.data.len() as u32 },
            10 => Change::RemoveXattr { inode, name: &self.first },
            _ => Change::Free { inode },
        }
    }

    fn create(&self, inode: InodeNumber) -> Change<'_> {
        let n = &self.numbers;
        let kind = Kind::from_value((n[1] % 7 + 1) as u8).expect("values 1 to 7");
        let is_device = matches!(kind, Kind::CharacterDevice | Kind::BlockDevice);
        let unnamed = kind == Kind::File && n[2].is_multiple_of(4);
        Change::Create {
            inode,
            place: (!unnamed).then(|| self.place(n[3], n[4], false)),
            kind,
            mode: n[5] as u16 & MODE_BITS,
            uid: n[5] as u32,
            gid: n[6] as u32,
            device: if is_device { n[7] } else { 0 },
            target: if kind == Kind::Symlink { &self.data } else { &[] },
        }
    }

    fn attributes(&self) -> NewAttributes {
        let (n, present) = (&self.numbers, self.numbers[1]);
        let other = Timestamp { seconds: n[4] as i64, nanoseconds: (n[5] % 1_000_000_000) as u32 };
        NewAttributes {
            mode: (present & 1 != 0).then_some(n[2] as u16 & MODE_BITS),
            uid: (present & 2 != 0).then_some(n[2] as u32),
            gid: (present & 4 != 0).then_some(n[3] as u32),
            atime: (present & 8 != 0).then_some(other),
            mtime: (present & 16 != 0).then_some(self.time),
        }
    }

    /// The data that the writer wants beside the change.
    pub(super) fn argument(&self) -> &[u8] {
        if matches!(self.kind, 4 | 9) { &self.data } else { &[] }
    }

    /// The bytes that the record carries.
    fn carried(&self) -> Vec<u8> {
        match self.change() {
            Change::Create { target, .. } => target.to_vec(),
            _ => self.argument().to_vec(),
        }
    }

    pub(super) fn kept(&self, sequence: u64) -> Kept {
        Kept { sequence, time: self.time, change: format!("{:?}", self.change()), data: self.carried() }
    }

    pub(super) fn append<M: Medium>(
        &self,
        writer: &mut LogWriter<M>,
    ) -> Result<sietch_fs::log::Appended, sietch_fs::log::AppendError> {
        writer.append(self.time, &self.change(), self.argument())
    }
}
