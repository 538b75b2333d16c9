//! Limits of users, where several clients share the file system.

use rustix::io::Errno;
use sietch_fs::FileSystem as _;
use sietch_fs::access::{Caller, Credentials};
use sietch_fs::check::{Options, check};
use sietch_fs::file_system::{AttributeChange, NewInode, OpenMode, WriteAt, XattrMode};
use sietch_fs::inode::{InodeNumber, Kind};
use sietch_fs::quota::{attribute, limit_value};
use sietch_fs_oracle::program::generate::Mix;

use super::world::{Plan, World};
use crate::setup::BIRTH;

const ROOT: InodeNumber = InodeNumber::ROOT;
const FILE: NewInode<'_> = NewInode { kind: Kind::File, mode: 0o666, device: 0, target: &[] };
const BOTH: OpenMode = OpenMode { read: true, write: true, truncate: false };

fn caller(credentials: &Credentials) -> Caller<'_> {
    Caller { credentials, now: BIRTH }
}

fn world() -> World {
    let world = World::new(Plan::new(2, 1, Mix::ALL));
    world.is_quiet.set(true);
    let (root, open) =
        (Credentials::root(), AttributeChange { mode: Some(0o777), ..AttributeChange::default() });
    world.call(0, |client| client.set_attributes(caller(&root), ROOT, None, &open)).expect("room");
    world
}

/// Client 1 sets a limit of user 1000.
fn limit(world: &World, blocks: u64, inodes: u64) {
    let (root, name, value) = (Credentials::root(), attribute(1000), limit_value(blocks * 4096, inodes));
    let set = world.call(1, |client| {
        client.set_xattr(caller(&root), ROOT, name.as_bytes(), value.as_bytes(), XattrMode::Set)
    });
    set.expect("root may");
    // A client that does nothing notices it by a thread of its own.
    for index in [0, 1] {
        world.advance(index);
    }
}

fn create(world: &World, index: usize, name: &str) -> Result<InodeNumber, Errno> {
    let who = Credentials::user(1000, 1000);
    let made = world.call(index, |client| client.create(caller(&who), ROOT, name.as_bytes(), &FILE));
    made.map(|made| made.inode)
}

fn write(world: &World, index: usize, file: InodeNumber, block: u64) -> Result<(), Errno> {
    let who = Credentials::user(1000, 1000);
    let handle = world.call(index, |client| client.open(caller(&who), file, BOTH))?;
    let written = world.call(index, |client| {
        client.write(caller(&who), handle, WriteAt::Offset(block * 4096), &[1; 4096]).map(drop)
    });
    let closed = world.call(index, |client| {
        client.close(handle);
        Ok(())
    });
    written.and(closed)
}

fn whole(world: &World) {
    for index in [0, 1] {
        while world.core.borrow_mut().digest(World::number(index)).expect("room").records > 0 {}
    }
    let mut core = world.core.borrow_mut();
    let report = check(core.digest_mut().pool(), Options { data: true }).expect("a pool without changes");
    assert_eq!(report.findings, Vec::<String>::new());
}

/// The directory passes between the clients, and with it what each has logged.
#[test]
fn a_limit_binds_every_client() {
    let world = world();
    create(&world, 0, "a").expect("no limit");
    limit(&world, 0, 3);
    create(&world, 0, "b").expect("the second");
    create(&world, 1, "c").expect("the third");
    assert_eq!(create(&world, 0, "d"), Err(Errno::DQUOT));
    assert_eq!(create(&world, 1, "d"), Err(Errno::DQUOT));
    let who = Credentials::user(1000, 1000);
    world.call(1, |client| client.unlink(caller(&who), ROOT, b"a")).expect("the owner may");
    create(&world, 1, "e").expect("the third");
    assert_eq!(create(&world, 0, "f"), Err(Errno::DQUOT));
    whole(&world);
}

/// Each client counts what it has logged itself. So clients with files of their own exceed a limit
/// by what the others have logged and not digested, and by no more.
#[test]
fn clients_together_exceed_a_limit_by_what_is_not_digested() {
    let world = world();
    let files = [create(&world, 0, "a").expect("no limit"), create(&world, 1, "b").expect("no limit")];
    limit(&world, 8, 0);
    let mut written = [0, 0];
    for index in [0, 1] {
        world.advance(index);
        while write(&world, index, files[index], written[index]).is_ok() {
            written[index] += 1;
        }
    }
    // The first one had digested its own records before it was refused.
    assert_eq!(written, [8, 0]);
    for index in [0, 1] {
        world.advance(index);
        assert_eq!(write(&world, index, files[index], 20), Err(Errno::DQUOT));
    }
    limit(&world, 16, 0);
    let mut rounds = 0;
    while (0..2).all(|index| write(&world, index, files[index], 30 + rounds).is_ok()) {
        rounds += 1;
    }
    assert!((4..=8).contains(&rounds), "each has 8 blocks more at most, and both have 8 at least: {rounds}");
    for index in [0, 1] {
        world.advance(index);
        assert_eq!(write(&world, index, files[index], 100), Err(Errno::DQUOT));
    }
    whole(&world);
}
