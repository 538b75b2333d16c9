//! Limits of users: what is counted, what is refused, and what a crash or a hostile item leaves.

mod in_steps;
mod uncounted;

use std::collections::BTreeMap;

use rustix::io::Errno;
use sietch_fs::access::{Caller, Credentials};
use sietch_fs::check::{Options, check};
use sietch_fs::file_system::{
    Allocation, AttributeChange, NewInode, OpenMode, RenameMode, WriteAt, XattrMode,
};
use sietch_fs::inode::{Attributes, InodeNumber, Kind};
use sietch_fs::name::NameKey;
use sietch_fs::pool::Pool;
use sietch_fs::quota::{Amount, Quota, attribute, limit_value, list_attribute, read_line};
use sietch_fs::{FileSystem as _, Key, OWN_KINDS};
use sietch_sim::Random;
use sietch_sim::seeds::{self, Budget};

use crate::setup::{BIRTH, FileSystem, Media, check_whole, findings};

const KEY: NameKey = NameKey([7; 16]);
const ROOT: InodeNumber = InodeNumber::ROOT;
const BLOCK: u64 = 4096;
const BOTH: OpenMode = OpenMode { read: true, write: true, truncate: false };
const FILE: NewInode<'_> = NewInode { kind: Kind::File, mode: 0o666, device: 0, target: &[] };
/// The kinds of the items of users, and of the mark that they are counted.
const USER: u8 = OWN_KINDS + 2;
const COUNTED: u8 = OWN_KINDS + 3;

/// A file system whose root directory everybody may write to.
struct Files {
    media: Media,
    client: FileSystem,
}

fn user(uid: u32) -> Credentials {
    if uid == 0 { Credentials::root() } else { Credentials::user(uid, uid) }
}

impl Files {
    fn new() -> Self {
        Self::sized(16 << 20, 1 << 20)
    }

    fn sized(pool: usize, log: usize) -> Self {
        let media = Media::new(pool, log);
        media.format(KEY);
        let mut client = media.open().expect("a file system");
        let root = user(0);
        let open = AttributeChange { mode: Some(0o777), ..AttributeChange::default() };
        client.set_attributes(caller(&root), ROOT, None, &open).expect("room");
        Self { media, client }
    }

    /// After a restart of the service.
    fn reopened(self) -> Self {
        let Self { media, client } = self;
        drop(client);
        let client = media.open().expect("a file system");
        Self { media, client }
    }

    fn set(&mut self, by: u32, uid: u32, blocks: u64, inodes: u64) -> Result<(), Errno> {
        let (who, name) = (user(by), attribute(uid));
        let value = limit_value(blocks * BLOCK, inodes);
        self.client.set_xattr(caller(&who), ROOT, name.as_bytes(), value.as_bytes(), XattrMode::Set)
    }

    fn limit(&mut self, uid: u32, blocks: u64, inodes: u64) {
        self.set(0, uid, blocks, inodes).expect("root may");
    }

    fn shown(&mut self, by: u32, uid: u32) -> Result<Quota, Errno> {
        let (who, name) = (user(by), attribute(uid));
        let line = self.client.xattr(caller(&who), ROOT, name.as_bytes())?;
        let line = String::from_utf8(line).expect("text");
        let (found, quota) = read_line(line.trim_end()).expect("a line");
        assert_eq!(found, uid);
        Ok(quota)
    }

    /// Blocks and inodes of a user.
    fn used(&mut self, uid: u32) -> (u64, u64) {
        let used = self.shown(0, uid).expect("root may").used;
        (used.blocks, used.inodes)
    }

    fn create(&mut self, by: u32, name: &str) -> Result<InodeNumber, Errno> {
        let who = user(by);
        self.client.create(caller(&who), ROOT, name.as_bytes(), &FILE).map(|made| made.inode)
    }

    fn write(&mut self, by: u32, file: InodeNumber, offset: u64, length: usize) -> Result<(), Errno> {
        let who = user(by);
        let handle = self.client.open(caller(&who), file, BOTH).expect("a file");
        let written = self.client.write(caller(&who), handle, WriteAt::Offset(offset), &vec![7; length]);
        self.client.close(handle);
        written.map(drop)
    }

    fn allocate(&mut self, by: u32, file: InodeNumber, blocks: std::ops::Range<u64>) -> Result<(), Errno> {
        let who = user(by);
        let handle = self.client.open(caller(&who), file, BOTH).expect("a file");
        let range = blocks.start * BLOCK..blocks.end * BLOCK;
        let done = self.client.allocate(caller(&who), handle, range, Allocation::Reserve);
        self.client.close(handle);
        done
    }

    fn change(&mut self, by: u32, file: InodeNumber, change: AttributeChange) -> Result<Attributes, Errno> {
        let who = user(by);
        self.client.set_attributes(caller(&who), file, None, &change)
    }

    fn truncate(&mut self, by: u32, file: InodeNumber, size: u64) {
        let change = AttributeChange { size: Some(size), ..AttributeChange::default() };
        self.change(by, file, change).expect("the owner may");
    }

    fn chown(&mut self, file: InodeNumber, uid: u32) {
        let change = AttributeChange { uid: Some(uid), ..AttributeChange::default() };
        self.change(0, file, change).expect("root may");
    }

    fn unlink(&mut self, by: u32, name: &str) {
        let who = user(by);
        self.client.unlink(caller(&who), ROOT, name.as_bytes()).expect("the owner may");
    }

    fn end(self) {
        assert_eq!(check_whole(self.client), Ok(()));
    }
}

fn caller(credentials: &Credentials) -> Caller<'_> {
    Caller { credentials, now: BIRTH }
}

#[test]
fn at_its_limit_a_user_may_overwrite_and_not_add() {
    let mut files = Files::new();
    files.limit(1000, 4, 2);
    let file = files.create(1000, "a").expect("the first");
    assert_eq!(files.write(1000, file, 0, 4 * 4096), Ok(()));
    assert_eq!(files.write(1000, file, 4 * BLOCK, 1), Err(Errno::DQUOT));
    // Bytes of blocks that are there need nothing, whether they are digested or not.
    for _ in 0..20 {
        assert_eq!(files.write(1000, file, 4095, 8192), Ok(()));
    }
    assert_eq!(files.used(1000), (4, 1));
    assert_eq!(files.write(1000, file, 4095, 8192), Ok(()));
    // What crosses the limit is refused as a whole.
    assert_eq!(files.write(1000, file, 3 * BLOCK, 4097), Err(Errno::DQUOT));
    let size = files.client.attributes(file).expect("a file").size;
    assert_eq!(size, 4 * BLOCK);
    files.create(1000, "b").expect("the second");
    assert_eq!(files.create(1000, "c"), Err(Errno::DQUOT));
    let who = user(1000);
    let unnamed = files.client.create_unnamed(caller(&who), ROOT, 0o600).map(drop);
    assert_eq!(unnamed, Err(Errno::DQUOT));
    for kind in [Kind::Directory, Kind::Symlink, Kind::Fifo] {
        let new = NewInode { kind, target: if kind == Kind::Symlink { b"x" } else { b"" }, ..FILE };
        let made = files.client.create(caller(&who), ROOT, b"d", &new).map(drop);
        assert_eq!(made, Err(Errno::DQUOT), "{kind:?}");
    }
    // A further name is no inode.
    assert!(files.client.link(caller(&who), file, ROOT, b"e").is_ok());
    // What another user makes does not count.
    files.create(1001, "f").expect("no limit");
    files.end();
}

#[test]
fn what_was_removed_is_free_before_anything_is_refused() {
    let mut files = Files::new();
    files.limit(1000, 64, 3);
    for round in 0..8 {
        let file = files.create(1000, "a").expect("an inode is free");
        assert_eq!(files.write(1000, file, 0, 64 * 4096), Ok(()), "round {round}");
        assert_eq!(files.write(1000, file, 64 * BLOCK, 1), Err(Errno::DQUOT));
        files.truncate(1000, file, 10 * BLOCK);
        assert_eq!(files.write(1000, file, 10 * BLOCK, 54 * 4096), Ok(()));
        files.unlink(1000, "a");
    }
    // A file that replaces another one frees it.
    let who = user(1000);
    for _ in 0..8 {
        let file = files.create(1000, "new").expect("an inode is free");
        assert_eq!(files.write(1000, file, 0, 30 * 4096), Ok(()));
        let renamed = files.client.rename(caller(&who), (ROOT, b"new"), (ROOT, b"old"), RenameMode::Replace);
        assert_eq!(renamed, Ok(()));
    }
    assert_eq!(files.used(1000), (30, 1));
    files.end();
}

#[test]
fn a_file_without_a_name_counts_until_it_is_closed() {
    let mut files = Files::new();
    files.limit(1000, 8, 2);
    let file = files.create(1000, "a").expect("room");
    files.write(1000, file, 0, 8 * 4096).expect("room");
    let who = user(1000);
    let handle = files.client.open(caller(&who), file, BOTH).expect("a file");
    files.unlink(1000, "a");
    assert_eq!(files.used(1000), (8, 1));
    let other = files.create(1000, "b").expect("the second inode");
    assert_eq!(files.write(1000, other, 0, 1), Err(Errno::DQUOT));
    assert_eq!(files.create(1000, "c"), Err(Errno::DQUOT));
    files.client.close(handle);
    assert_eq!(files.write(1000, other, 0, 8 * 4096), Ok(()));
    files.create(1000, "c").expect("the second inode");
    // One name of two is no room.
    assert!(files.client.link(caller(&who), other, ROOT, b"d").is_ok());
    files.unlink(1000, "b");
    assert_eq!(files.used(1000), (8, 2));
    files.end();
}

#[test]
fn holes_are_free_and_reserved_room_counts_once() {
    let mut files = Files::new();
    files.limit(1000, 10, 0);
    let file = files.create(1000, "a").expect("no limit of inodes");
    files.truncate(1000, file, 1 << 30);
    files.write(1000, file, 1000 * BLOCK, 4096).expect("one block");
    assert_eq!(files.used(1000), (1, 1));
    assert_eq!(files.allocate(1000, file, 0..9), Ok(()));
    // The room is the file's, before and after the digest.
    assert_eq!(files.write(1000, file, 0, 9 * 4096), Ok(()));
    assert_eq!(files.used(1000), (10, 1));
    assert_eq!(files.allocate(1000, file, 0..10), Err(Errno::DQUOT));
    assert_eq!(files.allocate(1000, file, 1000..1001), Ok(()));
    let who = user(1000);
    let handle = files.client.open(caller(&who), file, BOTH).expect("a file");
    let punched = files.client.allocate(caller(&who), handle, 0..5 * BLOCK, Allocation::Punch);
    assert_eq!(punched, Ok(()));
    files.client.close(handle);
    assert_eq!(files.allocate(1000, file, 20..25), Ok(()));
    assert_eq!(files.used(1000), (10, 1));
    files.end();
}

#[test]
fn the_owner_pays_and_root_is_never_refused() {
    let mut files = Files::new();
    files.limit(1000, 2, 1);
    files.limit(0, 1, 1);
    let file = files.create(1000, "a").expect("the first");
    // Another user writes to it.
    assert_eq!(files.write(1001, file, 0, 2 * 4096), Ok(()));
    assert_eq!(files.write(1001, file, 2 * BLOCK, 1), Err(Errno::DQUOT));
    assert_eq!(files.write(0, file, 2 * BLOCK, 4096), Ok(()));
    assert_eq!(files.used(1000), (3, 1));
    assert_eq!(files.write(1000, file, 3 * BLOCK, 1), Err(Errno::DQUOT));
    // Root's own limit, and that of who gets a file, bind others only.
    let own = files.create(0, "own").expect("root");
    assert_eq!(files.write(0, own, 0, 5 * 4096), Ok(()));
    files.chown(own, 1000);
    // The undigested record counts at its new owner.
    assert_eq!(files.create(1000, "b"), Err(Errno::DQUOT));
    assert_eq!(files.used(1000), (8, 2));
    files.chown(file, 1001);
    assert_eq!((files.used(1000), files.used(1001)), ((5, 1), (3, 1)));
    // A file that changes its owner between its records and their digest.
    let moved = files.create(1001, "moved").expect("no limit");
    files.write(1001, moved, 0, 4096).expect("no limit");
    files.chown(moved, 1002);
    files.unlink(1002, "own");
    files.chown(moved, 1003);
    assert_eq!((files.used(1001), files.used(1002), files.used(1003)), ((3, 1), (0, 0), (1, 1)));
    assert_eq!(files.used(1000), (0, 0));
    files.end();
}

#[test]
fn a_write_of_several_records_is_refused_before_the_first() {
    let mut files = Files::sized(32 << 20, 16 << 20);
    files.limit(1000, 600, 0);
    let file = files.create(1000, "a").expect("no limit of inodes");
    assert_eq!(files.write(1000, file, 0, 601 * 4096), Err(Errno::DQUOT));
    assert_eq!(files.client.attributes(file).expect("a file").size, 0);
    assert_eq!(files.write(1000, file, 0, 600 * 4096), Ok(()));
    assert_eq!(files.write(1000, file, 1, 599 * 4096), Ok(()));
    files.end();
}

#[test]
fn limits_are_set_by_root_and_the_owner_and_shown_to_whom_they_bind() {
    let mut files = Files::new();
    files.chown(ROOT, 500);
    assert_eq!(files.set(1000, 1000, 9, 9), Err(Errno::PERM));
    assert_eq!(files.set(500, 1000, 9, 8), Ok(()));
    assert_eq!(files.shown(1001, 1000), Err(Errno::PERM));
    let limit = Amount { blocks: 9, inodes: 8 };
    assert_eq!(files.shown(1000, 1000), Ok(Quota { used: Amount::ZERO, limit }));
    assert_eq!(files.shown(500, 1000).map(|quota| quota.limit), Ok(limit));
    let list = list_attribute(0);
    let other = user(1000);
    assert_eq!(files.client.xattr(caller(&other), ROOT, list.as_bytes()), Err(Errno::PERM));
    // It is no attribute: it is not listed, and no other inode has it.
    let root = user(0);
    assert_eq!(files.client.xattr_names(caller(&root), ROOT), Ok(Vec::new()));
    for wrong in ["", "1", "x 1", "1 1 1", "-1 1"] {
        let name = attribute(7);
        let set =
            files.client.set_xattr(caller(&root), ROOT, name.as_bytes(), wrong.as_bytes(), XattrMode::Set);
        assert_eq!(set, Err(Errno::INVAL), "{wrong:?}");
    }
    for wrong in ["x", "4294967295", "from.1", ""] {
        let name = format!("user.sietch.quota.{wrong}");
        let set = files.client.set_xattr(caller(&root), ROOT, name.as_bytes(), b"1 1", XattrMode::Set);
        assert_eq!(set, Err(Errno::INVAL), "{wrong:?}");
    }
    // To remove it takes the limit away.
    let name = attribute(1000);
    assert_eq!(files.client.remove_xattr(caller(&root), ROOT, name.as_bytes()), Ok(()));
    assert_eq!(files.shown(0, 1000), Ok(Quota::default()));
    files.set(0, 1000, 1, 1).expect("root may");
    let mut files = files.reopened();
    assert_eq!(files.shown(0, 1000).map(|quota| quota.limit), Ok(Amount { blocks: 1, inodes: 1 }));
    files.end();
}

/// As of every attribute: `XATTR_CREATE` and `XATTR_REPLACE` of `setxattr(2)`.
#[test]
fn a_limit_is_created_or_replaced_as_an_attribute_is() {
    let mut files = Files::new();
    let root = user(0);
    let name = attribute(1000);
    let mut set = |blocks: u64, mode| {
        let value = limit_value(blocks * BLOCK, 0);
        files.client.set_xattr(caller(&root), ROOT, name.as_bytes(), value.as_bytes(), mode)
    };
    assert_eq!(set(1, XattrMode::Replace), Err(Errno::NODATA));
    assert_eq!(set(2, XattrMode::Create), Ok(()));
    assert_eq!(set(3, XattrMode::Create), Err(Errno::EXIST));
    assert_eq!(set(4, XattrMode::Replace), Ok(()));
    assert_eq!(files.shown(0, 1000).map(|quota| quota.limit.blocks), Ok(4));
    // A user without a limit has no such attribute.
    files.limit(1000, 0, 0);
    let value = limit_value(BLOCK, 0);
    let replaced =
        files.client.set_xattr(caller(&root), ROOT, name.as_bytes(), value.as_bytes(), XattrMode::Replace);
    assert_eq!(replaced, Err(Errno::NODATA));
    files.end();
}

/// All lines of the list.
fn listed(client: &mut FileSystem) -> BTreeMap<u32, Quota> {
    let (root, mut users, mut from) = (user(0), BTreeMap::new(), 0);
    loop {
        let list = client.xattr(caller(&root), ROOT, list_attribute(from).as_bytes()).expect("root may");
        assert!(list.len() <= sietch_fs::limits::MAX_XATTR_VALUE);
        let list = String::from_utf8(list).expect("text");
        let Some(last) = list.lines().last() else { return users };
        from = read_line(last).expect("a line").0 + 1;
        for line in list.lines() {
            let (uid, quota) = read_line(line).expect("a line");
            assert!(users.insert(uid, quota).is_none(), "user {uid} is there twice");
        }
    }
}

#[test]
fn many_users_are_counted_and_listed() {
    const USERS: u32 = 5000;
    let mut files = Files::new();
    for uid in 1..=USERS {
        let file = files.create(0, &uid.to_string()).expect("room");
        files.chown(file, uid);
    }
    let last = u32::MAX - 1;
    files.limit(last, 1 << 50, u64::MAX);
    let users = listed(&mut files.client);
    assert_eq!(users.len(), USERS as usize + 2);
    for uid in 1..=USERS {
        assert_eq!(users[&uid].used, Amount { blocks: 0, inodes: 1 });
    }
    assert_eq!(users[&last].limit, Amount { blocks: 1 << 50, inodes: u64::MAX });
    // Who has nothing, and no limit, takes no item.
    for uid in 1..=USERS {
        files.unlink(0, &uid.to_string());
    }
    files.limit(last, 0, 0);
    assert_eq!(listed(&mut files.client).into_keys().collect::<Vec<_>>(), [0]);
    files.end();
}

fn item(kind: u8, offset: u64) -> Key {
    Key { object: 0, kind, offset }
}

/// Changes the items of a file system that is not open.
fn edited(files: Files, edit: impl FnOnce(&mut Pool<crate::setup::Disk>)) -> Media {
    let Files { media, client } = files;
    drop(client);
    let mut pool = Pool::open(media.members()).expect("a pool");
    pool.readers_at(u64::MAX);
    edit(&mut pool);
    let counters = pool.root().counters;
    pool.commit(counters).expect("room");
    media
}

fn names(media: &Media) -> Vec<String> {
    let mut pool = Pool::open(media.members()).expect("a pool");
    check(&mut pool, Options { data: true }).expect("a pool without changes").findings
}

/// A file system with files of three users, all of it digested.
fn populated() -> Files {
    let mut files = Files::new();
    for (uid, blocks) in [(1000, 3), (1001, 5), (1002, 0)] {
        let file = files.create(uid, &uid.to_string()).expect("room");
        files.write(uid, file, 0, blocks * 4096).expect("room");
    }
    files.limit(1000, 3, 1);
    files
}

#[test]
fn wrong_items_are_named_and_counted_again() {
    let forged =
        |blocks: u64, inodes: u64| [blocks, inodes, 1 << 40, 5].map(u64::to_le_bytes).as_flattened().to_vec();
    let media = edited(populated(), |pool| {
        pool.insert(item(USER, 1000), &forged(u64::MAX, u64::MAX)).expect("room");
        pool.insert(item(USER, 1001), &forged(1, 0)).expect("room");
        pool.insert(item(USER, 1002), b"short").expect("room");
        pool.insert(item(USER, 1 << 32), &forged(1, 1)).expect("room");
        pool.insert(item(USER, 7), &forged(1, 1)).expect("room");
        pool.insert(item(COUNTED, 0), &77u64.to_le_bytes()).expect("room");
        pool.insert(item(COUNTED, 1), &77u64.to_le_bytes()).expect("room");
    });
    let found = names(&media);
    for expected in [
        "user 1000 has 3 blocks and 1 inodes, and the item says 18446744073709551615 and 18446744073709551615",
        "user 1001 has 5 blocks and 1 inodes, and the item says 1 and 0",
        "user 1002 has 0 blocks and 1 inodes, and the item says 0 and 0",
        "what user 1002 has cannot be read",
        "what user 4294967296 has cannot be read",
        "user 7 has 0 blocks and 0 inodes, and the item says 1 and 1",
        "the number of users with a limit cannot be read",
        "sietch fs quota FOLDER --recount",
    ] {
        assert!(found.iter().any(|finding| finding.contains(expected)), "{expected:?} is not in {found:#?}");
    }
    // Sums saturate, and the file system works.
    let mut client = media.open().expect("a file system");
    let mut files = Files { media: media.clone(), client };
    assert_eq!(files.create(1000, "more"), Err(Errno::DQUOT), "more inodes than any limit");
    files.limit(1000, 0, 0);
    files.create(1000, "more").expect("no limit");
    files.create(1002, "other").expect("no limit");
    assert_eq!(files.used(1000), (u64::MAX / BLOCK, u64::MAX));
    let faults = files.client.service().faults().to_vec();
    assert!(faults.iter().any(|fault| fault.contains("user 1002")), "{faults:?}");
    client = files.client;
    assert!(client.service().owner().recount().expect("room"));
    assert_eq!(findings(client), Vec::<String>::new());
    let client = media.open().expect("a file system");
    let mut files = Files { media, client };
    assert_eq!((files.used(1000), files.used(1002), files.used(7)), ((3, 2), (0, 2), (0, 0)));
    // A limit that was forged is a limit.
    let limit = files.shown(0, 1001).expect("root may").limit;
    assert_eq!(limit, Amount { blocks: 1 << 40, inodes: 5 });
    files.end();
}

/// What users have, as `stat` says of all files.
fn expected(files: &mut Files, all: &BTreeMap<String, InodeNumber>) -> BTreeMap<u32, (u64, u64)> {
    let mut users: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for inode in all.values() {
        let found = files.client.attributes(*inode).expect("a file");
        let user = users.entry(found.uid).or_default();
        *user = (user.0 + found.blocks / 8, user.1 + 1);
    }
    users
}

/// Blocks of a range that a file does not have.
fn missing(files: &mut Files, file: InodeNumber, blocks: std::ops::Range<u64>) -> u64 {
    let base = sietch_fs::client::Service::base(files.client.service());
    let mut extents = u64::MAX;
    let there = sietch_fs::Base::allocated(base, file, blocks.clone(), &mut extents).expect("memory");
    blocks.end - blocks.start - there
}

const LIMITS: [(u32, u64, u64); 3] = [(1000, 12, 4), (1001, 40, 0), (1002, 0, 3)];

/// Random operations of users with limits. Each refusal is right: with all digested, the operation
/// needs more than is left. No user has more than the limit.
#[test]
fn refusals_are_exact_in_random_programs() {
    seeds::run(
        "it quotas::refusals_are_exact_in_random_programs",
        &[],
        Budget { seeds: 30, seconds: 5 },
        |seed| {
            let mut random = Random::new(seed);
            let mut files = Files::sized(16 << 20, 256 << 10);
            for (uid, blocks, inodes) in LIMITS {
                files.limit(uid, blocks, inodes);
            }
            let mut all: BTreeMap<String, InodeNumber> = BTreeMap::new();
            for _ in 0..300 {
                step(&mut files, &mut all, &mut random);
                if random.below(20) == 0 {
                    files.client.service().digest().expect("room");
                }
                if random.below(100) == 0 {
                    files.media.crash(&mut random);
                    files = files.reopened();
                    all.retain(|name, _| {
                        let root = user(0);
                        files.client.lookup(caller(&root), ROOT, name.as_bytes()).is_ok()
                    });
                }
            }
            // Of what is not digested, `stat` knows no exact blocks.
            files.used(0);
            files.client.advance();
            let users = expected(&mut files, &all);
            for (uid, blocks, inodes) in LIMITS {
                let used = files.used(uid);
                assert_eq!(used, users.get(&uid).copied().unwrap_or_default(), "user {uid}");
                assert!(blocks == 0 || used.0 <= blocks, "user {uid} has {used:?}");
                assert!(inodes == 0 || used.1 <= inodes, "user {uid} has {used:?}");
            }
            files.end();
        },
    );
}

/// One operation of a random user.
fn step(files: &mut Files, all: &mut BTreeMap<String, InodeNumber>, random: &mut Random) {
    let (uid, most, most_inodes) = LIMITS[random.index(LIMITS.len())];
    let name = format!("{uid}-{}", random.below(6));
    let Some(file) = all.get(&name).copied() else {
        match files.create(uid, &name) {
            Ok(inode) => drop(all.insert(name, inode)),
            Err(errno) => {
                assert_eq!(errno, Errno::DQUOT);
                assert_eq!(files.used(uid).1, most_inodes, "the last inode was refused");
            }
        }
        return;
    };
    let (first, count) = (random.below(30), 1 + random.below(8));
    let done = match random.below(8) {
        0..4 => files.write(uid, file, first * BLOCK + 1, (count * BLOCK) as usize - 1),
        4 => files.allocate(uid, file, first..first + count),
        5 => {
            files.truncate(uid, file, first * BLOCK + random.below(3));
            return;
        }
        _ => {
            files.unlink(uid, &name);
            all.remove(&name);
            return;
        }
    };
    if let Err(errno) = done {
        assert_eq!(errno, Errno::DQUOT);
        let (used, _) = files.used(uid);
        let need = missing(files, file, first..first + count);
        assert!(used + need > most, "user {uid} has {used} of {most} blocks, and needs {need}");
    }
}

/// The digest of others' records takes long, and users who are refused do not make them wait for
/// it. Only who may have less by the user's own records waits.
#[test]
fn who_is_refused_again_does_not_wait_for_the_records_of_others() {
    let mut files = Files::new();
    files.limit(1000, 2, 0);
    let (file, other) = (files.create(1000, "a").expect("room"), files.create(1001, "b").expect("room"));
    files.write(1000, file, 0, 2 * 4096).expect("room");
    assert_eq!(files.write(1000, file, 2 * BLOCK, 1), Err(Errno::DQUOT));
    files.write(1001, other, 0, 4096).expect("no limit");
    files.unlink(1001, "b");
    let before = files.client.service().totals().records;
    for _ in 0..3 {
        assert_eq!(files.write(1000, file, 2 * BLOCK, 1), Err(Errno::DQUOT));
    }
    assert_eq!(files.client.service().totals().records, before);
    files.truncate(1000, file, BLOCK);
    assert_eq!(files.write(1000, file, 2 * BLOCK, 1), Ok(()));
    assert!(files.client.service().totals().records > before);
    files.end();
}

/// All operations wait while extents are looked up, and a range may have millions.
#[test]
fn a_reservation_looks_at_few_extents() {
    const EACH: u64 = 1100;
    let mut files = Files::sized(64 << 20, 8 << 20);
    let file = files.create(1000, "a").expect("no limit");
    for extent in 0..3 * EACH {
        files.allocate(1000, file, 2 * extent..2 * extent + 1).expect("no limit");
    }
    // A part in the middle, with as many around it.
    files.limit(1000, 4 * EACH, 0);
    assert_eq!(files.allocate(1000, file, 2 * EACH..4 * EACH), Err(Errno::DQUOT));
    // Few are in it, or few around it: the count is exact.
    assert_eq!(files.allocate(1000, file, 2 * EACH..2 * EACH + 200), Ok(()));
    files.limit(1000, 6 * EACH - 1, 0);
    assert_eq!(files.allocate(1000, file, 0..6 * EACH), Err(Errno::DQUOT));
    files.limit(1000, 6 * EACH, 0);
    assert_eq!(files.allocate(1000, file, 0..6 * EACH), Ok(()));
    assert_eq!(files.used(1000), (6 * EACH, 1));
    // A write looks at all blocks of its data.
    assert_eq!(files.write(1000, file, 2 * EACH * BLOCK, (2 * EACH * BLOCK) as usize), Ok(()));
    assert_eq!(files.write(1000, file, 6 * EACH * BLOCK, 1), Err(Errno::DQUOT));
    files.end();
}

/// What frees nothing is no reason to wait for the digest before something is refused.
#[test]
fn who_frees_nothing_and_is_refused_does_not_wait_either() {
    let mut files = Files::new();
    files.limit(1000, 3, 0);
    let (file, other) = (files.create(1000, "a").expect("room"), files.create(1001, "b").expect("room"));
    files.write(1000, file, 0, 2 * 4096).expect("room");
    files.allocate(1000, file, 5..6).expect("room");
    files.truncate(1000, file, 9 * BLOCK);
    assert!(files.client.link(caller(&user(1000)), file, ROOT, b"c").is_ok());
    assert_eq!(files.write(1000, file, 2 * BLOCK, 1), Err(Errno::DQUOT));
    files.write(1001, other, 0, 4096).expect("no limit");
    let before = files.client.service().totals().records;
    let punch = |files: &mut Files, range| {
        let who = user(1000);
        let handle = files.client.open(caller(&who), file, BOTH).expect("a file");
        files.client.allocate(caller(&who), handle, range, Allocation::Punch).expect("room");
        files.client.close(handle);
    };
    let own = AttributeChange { uid: Some(1000), ..AttributeChange::default() };
    for round in 0..3 {
        match round {
            // The same size; less of a hole, and of the last block.
            0 => {
                [9 * BLOCK, 7 * BLOCK, 6 * BLOCK, 6 * BLOCK - 1].map(|size| files.truncate(1000, file, size))
            }
            1 => [2 * BLOCK..5 * BLOCK, 1..2, BLOCK + 1..2 * BLOCK - 1, 3 * BLOCK - 1..3 * BLOCK]
                .map(|range| punch(&mut files, range)),
            _ => {
                files.unlink(1000, "c");
                files.change(1000, file, own).expect("its owner");
                [(); 4]
            }
        };
        assert_eq!(files.write(1000, file, 2 * BLOCK, 1), Err(Errno::DQUOT), "round {round}");
        assert_eq!(files.client.service().totals().records, before, "round {round}");
        // What is there can be overwritten.
        assert_eq!(files.write(1000, file, 1, 8000), Ok(()), "round {round}");
        assert_eq!(files.allocate(1000, file, 5..6), Ok(()), "round {round}");
    }
    // A hole that begins and ends inside a block that was never written frees that block.
    files.used(1000);
    let before = files.client.service().totals().records;
    punch(&mut files, 5 * BLOCK + 1..5 * BLOCK + 2);
    assert_eq!(files.write(1000, file, 2 * BLOCK, 1), Ok(()));
    assert!(files.client.service().totals().records > before);
    assert_eq!(files.used(1000), (3, 1));
    files.end();
}

/// A user may ask many times. No other operation waits for a digest because of that.
#[test]
fn users_see_their_own_usage_as_it_is_digested() {
    let mut files = Files::new();
    files.limit(1000, 9, 9);
    let file = files.create(1000, "a").expect("room");
    files.write(1000, file, 0, 3 * 4096).expect("room");
    let before = files.client.service().totals().records;
    let digested = Quota { used: Amount::ZERO, limit: Amount { blocks: 9, inodes: 9 } };
    for _ in 0..3 {
        assert_eq!(files.shown(1000, 1000), Ok(digested));
    }
    assert_eq!(files.client.service().totals().records, before);
    assert_eq!(files.used(1000), (3, 1));
    let exact = Amount { blocks: 3, inodes: 1 };
    assert_eq!(files.shown(1000, 1000).map(|quota| quota.used), Ok(exact));
    files.end();
}

/// Limits that were set by another start are known, and so is what the log had of users by then.
#[test]
fn a_client_that_starts_with_limits_refuses_nothing_wrongly() {
    let mut files = Files::new();
    files.limit(1000, 2, 0);
    let file = files.create(1000, "a").expect("room");
    files.write(1000, file, 0, 2 * 4096).expect("room");
    let mut files = files.reopened();
    files.unlink(1000, "a");
    let file = files.create(1000, "b").expect("room");
    assert_eq!(files.write(1000, file, 0, 2 * 4096), Ok(()));
    files.end();
}
