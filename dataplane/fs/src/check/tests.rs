//! Each class of damage is found, and named; no damage ends the check.

use sietch_disk::nvm::{Medium as _, NvmQueue};
use sietch_sim::seeds::{self, Budget};
use sietch_sim::{Memory, Random};

use super::{Options, Report, check};
use crate::access::{Caller, Credentials};
use crate::file_system::{Allocation, FileSystem as _, NewInode, OpenMode, WriteAt, XattrMode};
use crate::inode::{InodeNumber, Kind, Timestamp};
use crate::items::{self, LogState};
use crate::limits::BLOCK;
use crate::log::{Durability, LogIdentity, LogWriter};
use crate::name::{Cookie, NameKey};
use crate::pool::{Class, FormatOptions, Member, Pool, Run, format};
use crate::tree::Key;
use crate::{Client, Digest, Inline};

const BYTES: usize = 3 << 20;
const KEY: NameKey = NameKey([7; 16]);
const LOG: LogIdentity = LogIdentity { log: 1, epoch: 1, seed: 5 };
const NOW: Timestamp = Timestamp { seconds: 1_000_000, nanoseconds: 1 };
const BOTH: OpenMode = OpenMode { read: true, write: true, truncate: false };

type Disk = NvmQueue<Memory>;
type Files = Client<Inline<Disk, Memory>, Memory>;

fn open(memory: &Memory) -> Pool<Disk> {
    let mut pool = Pool::open(vec![member(memory)]).expect("a pool");
    pool.readers_at(u64::MAX);
    pool
}

fn member(memory: &Memory) -> Member<Disk> {
    Member { name: "nvm".to_owned(), class: Class::Nvm, disk: NvmQueue::over(memory.clone(), None) }
}

/// Inodes of the file system that [`populated`] makes.
#[derive(Clone, Copy, Debug)]
struct Made {
    folder: InodeNumber,
    inner: InodeNumber,
    file: InodeNumber,
    linked: InodeNumber,
    link: InodeNumber,
    nameless: InodeNumber,
}

struct Maker {
    files: Files,
}

impl Maker {
    fn make(&mut self, directory: InodeNumber, name: &[u8], kind: Kind, target: &[u8]) -> InodeNumber {
        let who = Credentials::root();
        let caller = Caller { credentials: &who, now: NOW };
        let new = NewInode { kind, mode: 0o755, device: 0, target };
        self.files.create(caller, directory, name, &new).expect("a new name").inode
    }

    /// A file with two extents, a hole and a reservation, which ends inside a block.
    fn write(&mut self, file: InodeNumber) {
        let who = Credentials::root();
        let caller = Caller { credentials: &who, now: NOW };
        let handle = self.files.open(caller, file, BOTH).expect("a file");
        self.files.write(caller, handle, WriteAt::Offset(0), &[1; 3 * BLOCK]).expect("room");
        self.files.write(caller, handle, WriteAt::Offset(40_960), &[2; 5000]).expect("room");
        let room = 81_920..90_112;
        self.files.allocate(caller, handle, room, Allocation::ReserveKeepSize).expect("room");
        self.files.close(handle);
        self.files.set_xattr(caller, file, b"user.large", &[3; 3000], XattrMode::Set).expect("room");
        self.files.set_xattr(caller, file, b"user.small", b"x", XattrMode::Set).expect("room");
    }
}

/// A file system of so many bytes, and its client.
fn empty(bytes: usize) -> (Memory, Maker) {
    let (memory, log) = (Memory::new(bytes), Memory::new(256 << 10));
    format(&mut [member(&memory)], &FormatOptions { identity: 7, name_key: KEY }).expect("a pool");
    let mut digest = Digest::new(open(&memory), NOW).expect("a digest");
    let state = digest.begin_epoch(LOG.log, LOG.seed).expect("an epoch");
    let identity = LogIdentity { epoch: state.epoch, ..LOG };
    let writer = LogWriter::new(log.clone(), identity, Durability::Operation).expect("a log");
    let service = Inline::new(digest, log, identity).expect("a service");
    (memory, Maker { files: Client::new(service, writer, LOG.log) })
}

/// A file system with something of each kind.
fn populated() -> (Memory, Made) {
    let (memory, mut maker) = empty(BYTES);
    let folder = maker.make(InodeNumber::ROOT, b"folder", Kind::Directory, &[]);
    let inner = maker.make(folder, b"inner", Kind::Directory, &[]);
    let file = maker.make(inner, b"file", Kind::File, &[]);
    maker.write(file);
    let linked = maker.make(folder, b"linked", Kind::File, &[]);
    let link = maker.make(folder, b"link", Kind::Symlink, &[b't'; 2500]);
    maker.make(folder, b"fifo", Kind::Fifo, &[]);
    let who = Credentials::root();
    let caller = Caller { credentials: &who, now: NOW };
    maker.files.link(caller, linked, inner, b"other").expect("a link");
    let (nameless, _) = maker.files.create_unnamed(caller, folder, 0o600).expect("a file");
    maker.files.service().digest().expect("room");
    (memory, Made { folder, inner, file, linked, link, nameless: nameless.inode })
}

fn checked(memory: &Memory) -> Report {
    check(&mut open(memory), Options { data: true }).expect("a pool without changes")
}

/// Changes items, and returns what is found then.
fn after(change: impl FnOnce(&mut Pool<Disk>, Made)) -> Vec<String> {
    let (memory, made) = populated();
    let mut pool = open(&memory);
    change(&mut pool, made);
    let counters = pool.root().counters;
    pool.commit(counters).expect("room");
    checked(&memory).findings
}

fn shows(findings: &[String], expected: &[&str]) {
    for expected in expected {
        let found = findings.iter().any(|finding| finding.contains(expected));
        assert!(found, "{expected:?} is in none of {findings:#?}");
    }
}

fn edit_inode(pool: &mut Pool<Disk>, inode: InodeNumber, edit: impl FnOnce(&mut crate::base::Inode)) {
    let value = pool.get(items::inode_key(inode)).expect("a pool").expect("an inode");
    let mut found = items::read_inode(&value).expect("an inode");
    edit(&mut found);
    pool.insert(items::inode_key(inode), &items::write_inode(&found)).expect("room");
}

fn insert(pool: &mut Pool<Disk>, key: Key, value: &[u8]) {
    pool.insert(key, value).expect("room");
}

fn remove(pool: &mut Pool<Disk>, key: Key) {
    assert!(pool.remove(key).expect("a pool"), "{key} is there");
}

fn first_extent(pool: &mut Pool<Disk>, file: InodeNumber) -> items::Extent {
    let value = pool.get(items::extent_key(file, 0)).expect("a pool").expect("an extent");
    items::read_extent(0, &value).expect("an extent")
}

fn name_of(pool: &mut Pool<Disk>, directory: InodeNumber, name: &[u8]) -> Key {
    let key = items::entry_key(directory, KEY.cookie(name));
    pool.get(key).expect("a pool").expect("an entry");
    key
}

#[test]
fn a_whole_file_system_has_no_findings() {
    let (memory, _) = populated();
    let report = checked(&memory);
    assert_eq!(report.findings, Vec::<String>::new());
    let totals = report.totals;
    assert_eq!((totals.inodes, totals.directories, totals.nameless), (8, 3, 1));
    assert_eq!((totals.entries, totals.xattrs, totals.extents), (7, 2, 3));
    assert_eq!((totals.data_blocks, totals.reserved_blocks, totals.verified_blocks), (5, 2, 5));
    assert_eq!(report.logs.len(), 1);
}

#[test]
fn an_empty_pool_has_no_findings() {
    let memory = Memory::new(BYTES);
    format(&mut [member(&memory)], &FormatOptions { identity: 7, name_key: KEY }).expect("a pool");
    assert_eq!(checked(&memory).findings, Vec::<String>::new());
}

#[test]
fn damaged_inodes_are_found() {
    let found = after(|pool, made| {
        edit_inode(pool, made.file, |inode| inode.blocks += 2);
        edit_inode(pool, made.linked, |inode| inode.links = 3);
        edit_inode(pool, made.inner, |inode| inode.links = 3);
        edit_inode(pool, made.folder, |inode| inode.size = 9);
        edit_inode(pool, made.link, |inode| inode.size = 2501);
    });
    shows(
        &found,
        &[
            "/folder/inner/file: it says 9 blocks, and its extents have 7; lost: 2 blocks of its data",
            "/folder/linked: it has 3 links and 2 names",
            "/folder/inner: it has 3 links, and should have 2",
            "/folder: it says 9 entries, and has 4; lost: 5 names",
            "/folder/link: its target has 2500 bytes, and it says 2501",
            "user 0 has 9 blocks and 8 inodes, and the item says 7 and 8",
        ],
    );
    assert_eq!(found.len(), 6, "{found:#?}");
    let found = after(|pool, made| {
        edit_inode(pool, made.file, |inode| inode.mtime.nanoseconds = 1_000_000_000);
        edit_inode(pool, made.linked, |inode| inode.applied.1 = 1 << 40);
        edit_inode(pool, made.link, |inode| inode.parent = 1);
        edit_inode(pool, made.inner, |inode| inode.parent = 1);
        edit_inode(pool, made.nameless, |inode| inode.links = 1);
        edit_inode(pool, InodeNumber::ROOT, |inode| inode.parent = made.folder.0);
    });
    shows(
        &found,
        &[
            "a second or more of nanoseconds",
            "record 1099511627776 of log 1 changed it",
            "it is no directory, and has a parent",
            "/folder/inner: its parent is 1, and inode",
            "it has 1 links and no name",
            "the root's parent is",
        ],
    );
    assert_eq!(found.len(), 6, "{found:#?}");
}

#[test]
fn lost_inodes_and_names_are_found() {
    let found = after(|pool, made| remove(pool, items::inode_key(made.file)));
    shows(
        &found,
        &[
            "/folder/inner/file: 1 entries name it, and it does not exist; lost: the file or directory",
            "it has items, and its attributes are not there",
            "it has 7 inodes, and its superblock says 8",
        ],
    );
    let found = after(|pool, made| {
        let key = name_of(pool, made.inner, b"file");
        remove(pool, key);
    });
    shows(
        &found,
        &["no entry names it, it has 1 links", "/folder/inner: it says 2 entries, and has 1; lost: 1 names"],
    );
    let found = after(|pool, made| remove(pool, items::orphan_key(made.nameless)));
    shows(&found, &["no entry names it, it has 0 links, and no mark"]);
    let found = after(|pool, made| insert(pool, items::orphan_key(made.file), &[items::KEPT]));
    shows(&found, &["entries name it, and a mark says that it has no name"]);
    let found = after(|pool, _| insert(pool, items::orphan_key(InodeNumber(77)), &[items::KEPT]));
    shows(&found, &["inode 77, (no name): it is marked as one without a name, and does not exist"]);
    let found = after(|pool, made| insert(pool, items::orphan_key(made.nameless), &[9]));
    shows(&found, &["the mark of an inode without a name has another value"]);
    let found = after(|pool, _| remove(pool, items::inode_key(InodeNumber::ROOT)));
    shows(&found, &["there is no root directory; lost: all paths"]);
    let found = after(|pool, made| insert(pool, items::inode_key(made.folder), b"short"));
    shows(&found, &["/folder: its attributes cannot be read; lost: it, and what is below it"]);
    let found = after(|pool, made| {
        let mut counters = pool.root().counters;
        counters.next_inode = made.file.0;
        pool.commit(counters).expect("room");
    });
    shows(&found, &["/folder/inner/file: its number is not below"]);
}

#[test]
fn damaged_directories_are_found() {
    // A directory that is in itself.
    let found = after(|pool, made| {
        let key = name_of(pool, InodeNumber::ROOT, b"folder");
        remove(pool, key);
        let cookie = KEY.cookie(b"folder");
        insert(
            pool,
            items::entry_key(made.inner, cookie),
            &items::write_entry(made.folder, Kind::Directory, b"folder"),
        );
        edit_inode(pool, made.folder, |inode| inode.parent = made.inner.0);
    });
    shows(&found, &["the root does not lead to it: it is in a cycle"]);
    let found = after(|pool, made| {
        let cookie = KEY.cookie(b"again");
        insert(
            pool,
            items::entry_key(made.inner, cookie),
            &items::write_entry(made.folder, Kind::Directory, b"again"),
        );
    });
    shows(&found, &["/folder: it is a directory with 2 names"]);
    let found = after(|pool, made| {
        let key = name_of(pool, made.inner, b"file");
        insert(pool, key, &items::write_entry(made.file, Kind::Fifo, b"file"));
    });
    shows(&found, &["/folder/inner/file: it is a File, and an entry says Fifo"]);
    let found = after(|pool, made| {
        let key = items::entry_key(made.inner, KEY.cookie(b"again"));
        insert(pool, key, &items::write_entry(made.folder, Kind::File, b"again"));
    });
    shows(&found, &["the entry \"again\" of inode 2 says File, and it is a Directory"]);
    let found = after(|pool, made| {
        let key = name_of(pool, made.inner, b"file");
        remove(pool, key);
        let wrong = Key { offset: key.offset ^ 1 << 40, ..key };
        insert(pool, wrong, &items::write_entry(made.file, Kind::File, b"file"));
    });
    shows(&found, &["the entry \"file\" is at", "lost: the name: it may not be found"]);
    let found = after(|pool, made| {
        let key = name_of(pool, made.inner, b"file");
        let second = Key { offset: key.offset + 1, ..key };
        insert(pool, second, &items::write_entry(made.file, Kind::File, b"file"));
    });
    shows(&found, &["the entry \"file\" is there twice"]);
    let found = after(|pool, made| {
        let key = name_of(pool, made.inner, b"file");
        insert(pool, key, b"\0");
    });
    shows(&found, &["cannot be read; lost: a name, and what it leads to"]);
    let found = after(|pool, made| {
        let key = items::entry_key(made.file, KEY.cookie(b"x"));
        insert(pool, key, &items::write_entry(made.linked, Kind::File, b"x"));
    });
    shows(&found, &["/folder/inner/file: it is a File, and has 1 entries"]);
}

#[test]
fn damaged_extents_are_found() {
    let found = after(|pool, made| remove(pool, items::extent_key(made.file, 0)));
    shows(
        &found,
        &["/folder/inner/file: it says 7 blocks, and its extents have 4; lost: 3 blocks", ": lost"],
    );
    let found = after(|pool, made| insert(pool, items::extent_key(made.file, 0), b"short"));
    shows(&found, &["its extent at block 0 cannot be read"]);
    let found = after(|pool, made| {
        let extent = first_extent(pool, made.file);
        insert(pool, items::extent_key(made.file, 2), &items::write_extent(&extent));
    });
    shows(&found, &["begins before block 3, where another ends", "belong to item", "is /folder/inner/file"]);
    let found = after(|pool, made| {
        let extent = first_extent(pool, made.file);
        insert(pool, items::extent_key(made.file, 100), &items::write_extent(&extent));
        insert(pool, items::extent_key(made.file, u64::MAX - 3), &items::write_extent(&extent));
        insert(pool, items::extent_key(made.link, 0), &items::write_extent(&extent));
    });
    shows(
        &found,
        &[
            "has data behind the end of the file",
            "is behind the largest file",
            "it is a Symlink, and has an extent",
        ],
    );
    let found = after(|pool, made| {
        let run = Run { medium: 3, start: 1 << 30, blocks: 1 };
        let extent = items::Extent { first: 5, run, checksums: vec![7] };
        insert(pool, items::extent_key(made.file, 5), &items::write_extent(&extent));
    });
    shows(&found, &["is on none of 1 media", "block 5 of its data cannot be read"]);
}

#[test]
fn damaged_attributes_and_targets_are_found() {
    let large = KEY.cookie(b"user.large");
    let found = after(|pool, made| remove(pool, items::xattr_key(made.file, large, 2)));
    shows(&found, &["piece 3 of the extended attribute", "of 3000 bytes; lost: the attribute's value"]);
    let found = after(|pool, made| remove(pool, items::xattr_key(made.file, large, 0)));
    shows(&found, &["of an extended attribute at", "that is not there"]);
    let found = after(|pool, made| insert(pool, items::xattr_key(made.file, large, 0), b"no"));
    shows(&found, &["the extended attribute at", "cannot be read"]);
    let found = after(|pool, made| {
        let value = items::write_xattr(b"user.other", b"");
        insert(pool, items::xattr_key(made.file, Cookie(4096), 0), &value);
    });
    shows(&found, &["the extended attribute \"user.other\" is at 4096, and its hash is"]);
    let target = |link: InodeNumber, piece| Key { object: link.0, kind: items::TARGET, offset: piece };
    let found = after(|pool, made| remove(pool, target(made.link, 1)));
    shows(&found, &["piece 2 of its target", "its target has 1476 bytes, and it says 2500"]);
    let found = after(|pool, made| insert(pool, target(made.link, 0), &[0; 1024]));
    shows(&found, &["/folder/link: its target has a byte 0"]);
    let found = after(|pool, made| insert(pool, target(made.file, 0), b"t"));
    shows(&found, &["/folder/inner/file: it is a File, and has an item of another kind"]);
}

#[test]
fn items_that_do_not_exist_are_found() {
    let found = after(|pool, made| {
        insert(pool, Key { object: made.file.0, kind: 99, offset: 0 }, b"");
        insert(pool, Key { object: 0, kind: 99, offset: 0 }, b"");
        let state = LogState { sequence: 9, position: 64, epoch: 1, seed_sum: 0 };
        insert(pool, items::log_key(9), &items::write_log(state));
        insert(pool, Key { offset: 1 << 40, ..items::log_key(9) }, &items::write_log(LogState::default()));
    });
    shows(
        &found,
        &[
            "an item of kind 99, which does not exist",
            "an item of kind 99 of no inode",
            "how far log 9 was applied",
            "how far log 1099511627776 was applied",
        ],
    );
    assert_eq!(found.len(), 4, "{found:#?}");
}

/// Blocks of data of the file, on the medium.
fn data_blocks(memory: &Memory, made: Made) -> Vec<(u64, u32)> {
    let mut pool = open(memory);
    let mut blocks = Vec::new();
    for first in [0, 10] {
        let value = pool.get(items::extent_key(made.file, first)).expect("a pool").expect("an extent");
        let extent = items::read_extent(first, &value).expect("an extent");
        blocks.extend((0..extent.run.blocks).map(|at| (first + u64::from(at), extent.run.start + at)));
    }
    blocks
}

#[test]
fn each_flipped_bit_of_data_is_found() {
    let (mut memory, made) = populated();
    let mut random = Random::new(3);
    for (block, place) in data_blocks(&memory, made) {
        for _ in 0..20 {
            let at = place as usize * BLOCK + random.index(BLOCK / 8) * 8;
            let mut word = [0; 8];
            memory.load(at, &mut word);
            let mut other = word;
            other[random.index(8)] ^= 1 << random.index(8);
            memory.store(at, &other);
            memory.fence();
            let report = checked(&memory);
            assert_eq!((report.findings.len(), report.totals.damaged_blocks), (1, 1));
            let (start, offset) = (block * BLOCK as u64, u64::from(place) * BLOCK as u64);
            let expected = format!(
                "nvm: data at {offset}: inode {}, /folder/inner/file: block {block} of its data does not have its checksum; lost: its bytes {start} to {}",
                made.file,
                start + BLOCK as u64
            );
            assert_eq!(report.findings, [expected]);
            let quick = check(&mut open(&memory), Options::default()).expect("a pool");
            assert_eq!((quick.findings.len(), quick.totals.verified_blocks), (0, 0));
            memory.store(at, &word);
            memory.fence();
        }
    }
}

/// A pool of `bytes`, and files in its root with as many blocks as `files` say.
fn large_files(bytes: usize, files: &[(&[u8], usize)]) -> (Memory, Vec<InodeNumber>) {
    let (memory, mut maker) = empty(bytes);
    let who = Credentials::root();
    let caller = Caller { credentials: &who, now: NOW };
    let mut made = Vec::new();
    for (name, blocks) in files {
        let file = maker.make(InodeNumber::ROOT, name, Kind::File, &[]);
        let handle = maker.files.open(caller, file, BOTH).expect("a file");
        for first in (0..*blocks).step_by(16) {
            let at = WriteAt::Offset((first * BLOCK) as u64);
            let data = vec![1; BLOCK * 16.min(blocks - first)];
            maker.files.write(caller, handle, at, &data).expect("room");
            maker.files.service().digest().expect("room");
        }
        maker.files.close(handle);
        made.push(file);
    }
    (memory, made)
}

/// A file with many damaged blocks does not hide another one.
#[test]
fn every_file_with_damaged_data_is_named() {
    let (mut memory, made) = large_files(48 << 20, &[(b"solid", 3000), (b"striped", 4000)]);
    assert_eq!(checked(&memory).findings, Vec::<String>::new());
    let mut pool = open(&memory);
    for (file, step) in made.into_iter().zip([1, 2]) {
        let mut key = items::extent_key(file, 0);
        while let Some((found, value)) = pool.next(key).expect("a pool") {
            if (found.object, found.kind) != (key.object, key.kind) {
                break;
            }
            let extent = items::read_extent(found.offset, &value).expect("an extent");
            for at in 0..u64::from(extent.run.blocks) {
                if (extent.first + at).is_multiple_of(step) {
                    memory.store((u64::from(extent.run.start) + at) as usize * BLOCK, &[9; 8]);
                }
            }
            key = Key { offset: found.offset + 1, ..found };
        }
    }
    memory.fence();
    let report = checked(&memory);
    shows(
        &report.findings,
        &[
            "/solid: blocks 0 to 2999 of its data do not have their checksums; lost: its bytes 0 to 12288000",
            "/striped: block 0 of its data does not have its checksum",
            "/striped: block 4 of its data does not have its checksum; lost: its bytes 16384 to 20480, and 1997 blocks in 1997 ranges more",
        ],
    );
    assert_eq!((report.findings.len(), report.unlisted, report.unlisted_files), (4, 0, 0));
    assert_eq!(report.totals.damaged_blocks, 5000);
}

#[test]
fn bytes_behind_the_end_of_a_file_are_found() {
    let (mut memory, made) = populated();
    let mut pool = open(&memory);
    let value = pool.get(items::extent_key(made.file, 10)).expect("a pool").expect("an extent");
    let mut extent = items::read_extent(10, &value).expect("an extent");
    let last = (extent.run.start + 1) as usize * BLOCK;
    memory.store(last + 4088, &[1; 8]);
    memory.fence();
    let mut block = [0; BLOCK];
    memory.load(last, &mut block);
    extent.checksums[1] = items::checksum(&block);
    insert(&mut pool, items::extent_key(made.file, 10), &items::write_extent(&extent));
    let counters = pool.root().counters;
    pool.commit(counters).expect("room");
    shows(&checked(&memory).findings, &["/folder/inner/file: block 11 has bytes behind the end of the file"]);
}

/// Nodes are read from the medium, so a rotten one is a finding that says what is lost.
#[test]
fn random_damage_of_the_medium_ends_in_a_report() {
    let (whole, _) = populated();
    let mut image = vec![0; BYTES];
    whole.load(0, &mut image);
    let budget = Budget { seeds: 200, seconds: 5 };
    seeds::run("random_damage_of_the_medium_ends_in_a_report", &[], budget, |seed| {
        let mut random = Random::new(seed);
        let mut memory = Memory::new(BYTES);
        let mut image = image.clone();
        for _ in 0..=random.index(30) {
            // Nodes and superblocks are at the beginning.
            let reach = if random.chance(70) { 160 * BLOCK } else { BYTES };
            let at = random.index(reach);
            let end = BYTES.min(at + 1 + random.index(64));
            image[at..end].iter_mut().for_each(|byte| *byte = random.below(256) as u8);
        }
        memory.store(0, &image);
        memory.fence();
        let Ok(mut pool) = Pool::open(vec![member(&memory)]) else { return };
        drop(check(&mut pool, Options { data: true }));
    });
}

/// Items with checksums that are right, and values that no writer makes.
#[test]
fn random_items_end_in_a_report() {
    let (whole, made) = populated();
    let mut image = vec![0; BYTES];
    whole.load(0, &mut image);
    let budget = Budget { seeds: 200, seconds: 5 };
    seeds::run("random_items_end_in_a_report", &[], budget, |seed| {
        let mut random = Random::new(seed);
        let mut memory = Memory::new(BYTES);
        memory.store(0, &image);
        memory.fence();
        let mut pool = open(&memory);
        let inodes = [0, 1, made.folder.0, made.inner.0, made.file.0, made.link.0, made.linked.0, u64::MAX];
        let kinds = [1, 2, 3, 4, 5, 6, 16, 17, 128, 129, 191, 192, 255];
        for _ in 0..=random.index(40) {
            let (object, kind) = (*random.pick(&inodes), *random.pick(&kinds));
            let near = Key { object, kind, offset: *random.pick(&[0, 1, 10, 128, u64::MAX, u64::MAX - 63]) };
            let Some((key, mut value)) = pool.next(near).expect("a pool") else { continue };
            if random.chance(30) {
                drop(pool.remove(key));
                continue;
            }
            if random.chance(30) {
                value = (0..random.index(1030)).map(|_| random.below(256) as u8).collect();
            }
            for _ in 0..random.index(4) {
                if !value.is_empty() {
                    let at = random.index(value.len());
                    value[at] = *random.pick(&[0, 1, 2, 3, 64, 127, 255]);
                }
            }
            drop(pool.insert(if random.chance(50) { near } else { key }, &value));
        }
        let counters = pool.root().counters;
        pool.commit(counters).expect("room");
        drop(check(&mut pool, Options { data: true }).expect("no changes"));
        assert_eq!(checked(&memory), check(&mut pool, Options { data: true }).expect("no changes"));
    });
}
