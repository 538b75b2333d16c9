//! Limits of users, where several clients share the file system.

use std::ops::Range;

use rustix::io::Errno;
use sietch_fs::FileSystem as _;
use sietch_fs::access::{Caller, Credentials};
use sietch_fs::check::{Options, check};
use sietch_fs::file_system::{Allocation, AttributeChange, NewInode, OpenMode, WriteAt, XattrMode};
use sietch_fs::inode::{InodeNumber, Kind};
use sietch_fs::quota::{Amount, attribute, limit_value, read_line};
use sietch_fs_oracle::program::generate::Mix;
use sietch_structures::Random;

use super::world::{Plan, World};
use crate::setup::BIRTH;

const ROOT: InodeNumber = InodeNumber::ROOT;
const FILE: NewInode<'_> = NewInode { kind: Kind::File, mode: 0o666, device: 0, target: &[] };
const BOTH: OpenMode = OpenMode { read: true, write: true, truncate: false };

fn caller(credentials: &Credentials) -> Caller<'_> {
    Caller { credentials, now: BIRTH }
}

fn world_of(clients: usize) -> World {
    let world = World::new(Plan::new(clients, 1, Mix::ALL));
    world.is_quiet.set(true);
    open_root(&world);
    world
}

fn open_root(world: &World) {
    let (root, open) =
        (Credentials::root(), AttributeChange { mode: Some(0o777), ..AttributeChange::default() });
    world.call(0, |client| client.set_attributes(caller(&root), ROOT, None, &open)).expect("room");
}

/// Client 1 sets a limit of user 1000.
fn limit(world: &World, blocks: u64, inodes: u64) {
    let (root, name, value) = (Credentials::root(), attribute(1000), limit_value(blocks * 4096, inodes));
    let set = world.call(1, |client| {
        client.set_xattr(caller(&root), ROOT, name.as_bytes(), value.as_bytes(), XattrMode::Set)
    });
    set.expect("root may");
    // A client that does nothing notices it by a thread of its own.
    for index in 0..world.slots.len() {
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

fn reserve(world: &World, index: usize, file: InodeNumber, blocks: Range<u64>) -> Result<(), Errno> {
    let who = Credentials::user(1000, 1000);
    let handle = world.call(index, |client| client.open(caller(&who), file, BOTH))?;
    let range = blocks.start * 4096..blocks.end * 4096;
    let done = world.call(index, |client| {
        client.allocate(caller(&who), handle, range.clone(), Allocation::ReserveKeepSize)
    });
    let closed = world.call(index, |client| {
        client.close(handle);
        Ok(())
    });
    done.and(closed)
}

fn whole(world: &World) {
    for index in 0..world.slots.len() {
        while world.core.borrow_mut().digest(World::number(index)).expect("room").records > 0 {}
    }
    let mut core = world.core.borrow_mut();
    let report = check(core.digest_mut().pool(), Options { data: true }).expect("a pool without changes");
    assert_eq!(report.findings, Vec::<String>::new());
}

/// The directory passes between the clients, and with it what each has logged.
#[test]
fn a_limit_binds_every_client() {
    let world = world_of(2);
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

/// Blocks and inodes of user 1000, when all logs are digested.
fn used(world: &World) -> Amount {
    whole(world);
    for index in 0..world.slots.len() {
        world.advance(index);
    }
    let (root, name) = (Credentials::root(), attribute(1000));
    let line = world.call(0, |client| client.xattr(caller(&root), ROOT, name.as_bytes())).expect("root may");
    let line = String::from_utf8(line).expect("text");
    read_line(line.trim_end()).expect("a line").1.used
}

/// Each client has a file of its own, and reserves as much as the limit at once.
#[test]
fn clients_that_reserve_room_stay_within_a_limit_together() {
    let world = world_of(3);
    let files = ["a", "b", "c"].map(|name| create(&world, 0, name).expect("no limit"));
    // Each has the leases on its own file: nothing but the limit makes a client wait.
    (0..3).for_each(|index| assert_eq!(write(&world, index, files[index], 0), Ok(())));
    limit(&world, 60, 0);
    let reserved: Vec<_> = (0..3).map(|index| reserve(&world, index, files[index], 0..40)).collect();
    assert_eq!(reserved, [Ok(()), Err(Errno::DQUOT), Err(Errno::DQUOT)]);
    assert_eq!(reserve(&world, 2, files[2], 0..19), Ok(()));
    // What one client gives back, the others have.
    let who = Credentials::user(1000, 1000);
    world.call(0, |client| client.unlink(caller(&who), ROOT, b"a")).expect("the owner may");
    assert_eq!(reserve(&world, 1, files[1], 0..41), Ok(()));
    assert_eq!(used(&world), Amount { blocks: 60, inodes: 2 });
    // To overwrite needs nothing.
    assert_eq!(write(&world, 1, files[1], 3), Ok(()));
    assert_eq!(write(&world, 0, files[2], 3), Ok(()));
    assert_eq!(write(&world, 0, files[2], 21), Err(Errno::DQUOT));
    whole(&world);
}

/// A limit of many shares: clients add without the leases of each other, up to the last eighth.
#[test]
fn clients_that_share_a_large_limit_stay_within_it() {
    let world = world_of(3);
    let files = ["a", "b", "c"].map(|name| create(&world, 0, name).expect("no limit"));
    (0..3).for_each(|index| assert_eq!(write(&world, index, files[index], 0), Ok(())));
    limit(&world, 1280, 0);
    // Within a share, no client waits for another one, which answers nothing.
    world.slots.iter().for_each(|slot| slot.is_silent.set(true));
    for (index, file) in files.iter().enumerate() {
        world.slots[index].is_silent.set(false);
        (1..=10).for_each(|block| assert_eq!(write(&world, index, *file, block), Ok(())));
        world.slots[index].is_silent.set(true);
    }
    world.slots.iter().for_each(|slot| slot.is_silent.set(false));
    let (mut blocks, mut full) = ([11; 3], 0);
    for round in 0.. {
        let index = (round * 7 + round / 5) % 3;
        let at = blocks[index];
        let added = if round % 11 == 0 { 30 } else { 1 };
        match reserve(&world, index, files[index], at..at + added) {
            Ok(()) => blocks[index] += added,
            Err(Errno::DQUOT) if added == 1 => full += 1,
            other => assert_eq!(other, Err(Errno::DQUOT)),
        }
        if full == 3 {
            break;
        }
    }
    // Nothing is refused before the limit.
    assert_eq!(blocks.iter().sum::<u64>(), 1280);
    assert_eq!(used(&world), Amount { blocks: 1280, inodes: 3 });
}

/// Each way to have more, in each order of three clients that do not wait for the digest.
#[test]
fn no_way_of_several_clients_leads_past_a_limit() {
    let mut refused = 0;
    for seed in 1..=20 {
        let world = World::new(Plan::new(3, seed, Mix::ALL));
        world.is_quiet.set(true);
        let mut random = Random::new(seed);
        open_root(&world);
        let files: Vec<_> =
            (0..6).map(|file| create(&world, file % 3, &format!("file {file}")).expect("no limit")).collect();
        let (blocks, inodes) = (20 + random.below(150), 8 + random.below(60));
        limit(&world, blocks, inodes);
        let who = Credentials::user(1000, 1000);
        for number in 0..300 {
            let index = random.below(3) as usize;
            let file = files[random.below(6) as usize];
            let at: u64 = random.below(200);
            let name = format!("name {number}");
            let new = NewInode { kind: Kind::Directory, ..FILE };
            let done = match random.below(10) {
                0..=2 => write(&world, index, file, at),
                3 | 4 => reserve(&world, index, file, at..at + 1 + random.below(30)),
                5 => create(&world, index, &name).map(drop),
                6 => world
                    .call(index, |client| client.create(caller(&who), ROOT, name.as_bytes(), &new).map(drop)),
                7 => world
                    .call(index, |client| client.link(caller(&who), file, ROOT, name.as_bytes()).map(drop)),
                8 => {
                    let size = AttributeChange { size: Some(at * 4096 + 7), ..AttributeChange::default() };
                    world
                        .call(index, |client| client.set_attributes(caller(&who), file, None, &size))
                        .map(drop)
                }
                _ => world.call(index, |client| {
                    client.set_xattr(caller(&who), file, b"user.a", &[7; 2000], XattrMode::Set)
                }),
            };
            assert!(matches!(done, Ok(()) | Err(Errno::DQUOT)), "seed {seed}, {number}: {done:?}");
            refused += u32::from(done.is_err());
        }
        world.result().expect("no failure");
        let used = used(&world);
        assert!(
            used.blocks <= blocks && used.inodes <= inodes,
            "seed {seed}: {used:?} of {blocks}, {inodes}"
        );
    }
    assert!(refused > 1000, "{refused}");
}
