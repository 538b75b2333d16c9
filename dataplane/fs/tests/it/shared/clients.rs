//! Clients that share a file or a directory for long, that do not answer, and that fill the pool.

use rustix::io::Errno;
use sietch_fs::Base as _;
use sietch_fs::FileSystem as _;
use sietch_fs::access::{Caller, Credentials};
use sietch_fs::file_system::{Handle, NewInode, OpenMode, WriteAt, XattrMode};
use sietch_fs::inode::{InodeNumber, Kind};
use sietch_fs::lease::{MAX_WAITING, Mode, Times};
use sietch_fs_oracle::program::generate::Mix;

use super::world::{Peer, Plan, World};
use crate::setup::BIRTH;

const ROOT: InodeNumber = InodeNumber::ROOT;
const READ_WRITE: OpenMode = OpenMode { read: true, write: true, truncate: false };
const FILE: NewInode<'_> = NewInode { kind: Kind::File, mode: 0o644, device: 0, target: &[] };
/// What an operation takes.
const OPERATION: u64 = 10_000;

fn caller(credentials: &Credentials) -> Caller<'_> {
    Caller { credentials, now: BIRTH }
}

/// What a client makes of its tries.
#[derive(Debug, Default)]
struct Progress {
    done: [u64; 4],
    longest: [u64; 4],
    waited: [u64; 4],
}

/// Clients try in turns, time passes, and the service does its work.
fn alternate(
    world: &World,
    rounds: u64,
    mut attempt: impl FnMut(usize, &mut Peer, u64) -> Result<(), Errno>,
) -> Progress {
    let mut progress = Progress::default();
    for round in 0..rounds {
        for (index, slot) in world.slots.iter().enumerate() {
            let result = match &mut *slot.client.borrow_mut() {
                Some(client) => attempt(index, client, round),
                None => continue,
            };
            match result {
                Ok(()) => {
                    progress.done[index] += 1;
                    progress.waited[index] = 0;
                }
                Err(Errno::AGAIN) => progress.waited[index] += 1,
                Err(errno) => panic!("client {index} in round {round}: {errno}"),
            }
            progress.longest[index] = progress.longest[index].max(progress.waited[index]);
            world.pass(OPERATION);
            world.service(|core| core.step().map(drop));
        }
    }
    progress
}

fn once<T>(world: &World, index: usize, call: impl FnMut(&mut Peer) -> Result<T, Errno>) -> T {
    world.call(index, call).expect("the call succeeds")
}

/// A file that all clients have open.
fn shared_file(world: &World) -> Vec<Handle> {
    let root = Credentials::root();
    let made = once(world, 0, |client| client.create(caller(&root), ROOT, b"file", &FILE));
    let handles = (0..world.slots.len())
        .map(|index| once(world, index, |client| client.open(caller(&root), made.inode, READ_WRITE)));
    handles.collect()
}

fn quiet(plan: Plan) -> World {
    let world = World::new(plan);
    world.is_quiet.set(true);
    world
}

fn world(clients: usize) -> World {
    quiet(Plan::new(clients, 1, Mix::ALL))
}

/// A lease passes after its minimum time, not after each operation; and each client gets its part.
#[test]
fn clients_that_append_to_one_file_all_get_on() {
    let world = world(2);
    let handles = shared_file(&world);
    let before = world.core.borrow().counts();
    let root = Credentials::root();
    let progress = alternate(&world, 3000, |index, client, _| {
        client.write(caller(&root), handles[index], WriteAt::End, b"0123456789abcdef").map(drop)
    });
    world.result().expect("the world goes on");
    let passed = world.core.borrow().counts().grants - before.grants;
    let done: u64 = progress.done.iter().sum();
    assert!(done > 2500, "{progress:?}");
    assert!(passed * 20 < done, "the lease passed {passed} times for {done} operations");
    for index in 0..2 {
        assert!(progress.done[index] * 3 > done, "{progress:?}");
        // Twice the minimum time of a lease.
        assert!(progress.longest[index] * OPERATION < 4 * Times::default().hold, "{progress:?}");
    }
    let size = once(&world, 0, |client| client.lookup(caller(&root), ROOT, b"file")).size;
    assert_eq!(size, 16 * done);
}

#[test]
fn clients_that_create_in_one_directory_all_get_on() {
    let world = world(3);
    let root = Credentials::root();
    let mut next = [0; 4];
    let progress = alternate(&world, 2000, |index, client, _| {
        let name = format!("{index}-{}", next[index]);
        client.create(caller(&root), ROOT, name.as_bytes(), &FILE)?;
        next[index] += 1;
        Ok(())
    });
    world.result().expect("the world goes on");
    let done: u64 = progress.done.iter().sum();
    for index in 0..3 {
        assert!(progress.done[index] * 5 > done, "{progress:?}");
    }
    assert!(done > 1500, "{progress:?}");
    let entries = once(&world, 1, |client| client.attributes(ROOT)).size;
    assert_eq!(entries, done);
}

/// Readers share; a writer among them gets its turn, and so do they.
#[test]
fn readers_and_a_writer_all_get_on() {
    let world = world(4);
    let handles = shared_file(&world);
    let root = Credentials::root();
    let progress = alternate(&world, 2000, |index, client, round| {
        if index == 0 {
            let bytes = round.to_le_bytes();
            return client.write(caller(&root), handles[0], WriteAt::Offset(0), &bytes).map(drop);
        }
        client.read(handles[index], 0, &mut [0; 8]).map(drop)
    });
    world.result().expect("the world goes on");
    assert!(progress.done.iter().all(|done| *done > 300), "{progress:?}");
}

/// What only one client uses is never revoked.
#[test]
fn clients_with_files_of_their_own_do_not_wait() {
    let world = world(2);
    let root = Credentials::root();
    let handles: Vec<_> = (0..2)
        .map(|index| {
            let name = format!("{index}");
            let made =
                once(&world, index, |client| client.create(caller(&root), ROOT, name.as_bytes(), &FILE));
            once(&world, index, |client| client.open(caller(&root), made.inode, READ_WRITE))
        })
        .collect();
    let before = world.core.borrow().counts();
    let progress = alternate(&world, 50, |index, client, _| {
        client.write(caller(&root), handles[index], WriteAt::End, &[1; 100]).map(drop)
    });
    assert_eq!(progress.done[..2], [50, 50]);
    assert_eq!(world.core.borrow().counts(), before);
}

/// A client that does not answer is fenced: what it acknowledged stays, and it does nothing more.
#[test]
fn a_client_that_never_answers_is_fenced() {
    let mut plan = Plan::new(2, 1, Mix::ALL);
    plan.times.answer = 20_000_000;
    let world = quiet(plan);
    let root = Credentials::root();
    let made = once(&world, 1, |client| client.create(caller(&root), ROOT, b"file", &FILE));
    let handle = once(&world, 1, |client| client.open(caller(&root), made.inode, READ_WRITE));
    once(&world, 1, |client| client.write(caller(&root), handle, WriteAt::End, b"acknowledged"));
    world.slots[1].is_silent.set(true);
    let found = once(&world, 0, |client| client.lookup(caller(&root), ROOT, b"file"));
    assert_eq!(found.size, 12);
    assert!(world.core.borrow().ended(World::number(1)).is_some());
    let zombie = world.call(1, |client| client.write(caller(&root), handle, WriteAt::End, b"lost"));
    assert_eq!(zombie, Err(Errno::IO));
    assert_eq!(world.call(1, |client| client.read(handle, 0, &mut [0; 4])), Err(Errno::IO));
    world.settle();
    assert_eq!(once(&world, 0, |client| client.attributes(found.inode)).size, 12);
    world.result().expect("the other client goes on");
    // It can come back as a new client.
    world.join(1);
    let again = once(&world, 1, |client| client.lookup(caller(&root), ROOT, b"file"));
    assert_eq!(again.size, 12);
}

/// A client that asks for an inode by a number that another one has not used yet.
#[test]
fn a_number_that_another_client_asked_for_is_not_used() {
    let world = world(2);
    let root = Credentials::root();
    let first = once(&world, 0, |client| client.create(caller(&root), ROOT, b"first", &FILE)).inode;
    for number in first.0 + 1..first.0 + 4 {
        let found = world.call(1, |client| client.attributes(InodeNumber(number)));
        assert_eq!(found, Err(Errno::NOENT));
    }
    for name in ["a", "b", "c"] {
        let made = once(&world, 0, |client| client.create(caller(&root), ROOT, name.as_bytes(), &FILE));
        assert!(made.inode.0 >= first.0 + 4, "{}", made.inode);
        let found = once(&world, 1, |client| client.lookup(caller(&root), ROOT, name.as_bytes()));
        assert_eq!(found.inode, made.inode);
    }
    world.settle();
    world.result().expect("both go on");
}

/// The last reference goes when the client has no lease, and before the removal of the name is
/// digested.
#[test]
fn a_file_without_a_name_that_its_maker_gave_up_is_freed() {
    let world = world(1);
    let root = Credentials::root();
    let made = once(&world, 0, |client| client.create(caller(&root), ROOT, b"file", &FILE)).inode;
    let handle = once(&world, 0, |client| client.open_created(made, READ_WRITE));
    once(&world, 0, |client| client.unlink(caller(&root), ROOT, b"file"));
    once(&world, 0, |client| {
        client.give_up(made);
        client.close(handle);
        Ok(())
    });
    world.settle();
    let left = world.core.borrow_mut().digest_mut().base().inode(made);
    assert_eq!(left.expect("no fault").map(|found| found.links), None);
    world.result().expect("it goes on");
}

/// A kernel that merely knows a file does not learn that another client removed it, and would keep
/// it, with the room and the quota of its owner, for as long as it likes.
#[test]
fn what_a_kernel_knows_does_not_stay_when_another_client_removes_it_unless_it_is_open() {
    let world = world(2);
    let root = Credentials::root();
    let exists = |inode| {
        world.settle();
        world.core.borrow_mut().digest_mut().base().inode(inode).expect("no fault").is_some()
    };
    let make = |name: &[u8]| once(&world, 0, |client| client.create(caller(&root), ROOT, name, &FILE)).inode;
    let unlink = |name: &[u8]| once(&world, 0, |client| client.unlink(caller(&root), ROOT, name));

    let known = make(b"known");
    once(&world, 1, |client| client.know(known));
    unlink(b"known");
    assert!(!exists(known));
    assert_eq!(world.call(1, |client| client.attributes(known)), Err(Errno::NOENT));
    once(&world, 1, |client| {
        client.forget(known, 1);
        Ok(())
    });

    let open = make(b"open");
    once(&world, 1, |client| client.know(open));
    let handle = once(&world, 1, |client| client.open(caller(&root), open, READ_WRITE));
    unlink(b"open");
    assert!(exists(open));
    // With a lease again, so that the client frees it itself.
    once(&world, 1, |client| client.write(caller(&root), handle, WriteAt::End, b"still there"));
    once(&world, 1, |client| {
        client.close(handle);
        Ok(())
    });
    assert!(!exists(open));
    world.result().expect("both go on");
}

/// A kernel drops what is removed through it, unless a program uses it: as a working directory.
#[test]
fn what_a_kernel_knows_stays_when_its_own_client_removes_it() {
    let world = world(2);
    let root = Credentials::root();
    let made = once(&world, 0, |client| client.create(caller(&root), ROOT, b"file", &FILE)).inode;
    once(&world, 0, |client| client.know(made));
    once(&world, 0, |client| client.link(caller(&root), made, ROOT, b"second"));
    once(&world, 0, |client| client.unlink(caller(&root), ROOT, b"file"));
    once(&world, 0, |client| client.unlink(caller(&root), ROOT, b"second"));
    // Another client that asks for it changes nothing.
    assert_eq!(once(&world, 1, |client| client.attributes(made)).links, 0);
    world.settle();
    assert_eq!(once(&world, 0, |client| client.attributes(made)).links, 0);
    once(&world, 0, |client| {
        client.forget(made, 1);
        Ok(())
    });
    world.settle();
    let left = world.core.borrow_mut().digest_mut().base().inode(made);
    assert_eq!(left.expect("no fault").map(|found| found.links), None);
    world.result().expect("both go on");
}

/// A refusal is of the request for one inode: an operation that waits for another one goes on.
#[test]
fn a_refused_lease_is_reported_to_the_operation_that_needs_it() {
    let world = world(2);
    let root = Credentials::root();
    let made = once(&world, 1, |client| client.create(caller(&root), ROOT, b"file", &FILE)).inode;
    let numbers = world.core.borrow_mut().inode_numbers(World::number(1), 100).expect("numbers");
    // As if the client had asked for one after the other, and cancelled each.
    let inodes = || numbers.clone().take(MAX_WAITING + 1).map(InodeNumber);
    let ask = |inode| world.core.borrow_mut().request_lease(World::number(0), inode, Mode::Exclusive);
    inodes().for_each(|inode| ask(inode).expect("no fault"));
    let refused = world.call(0, |client| client.attributes(made));
    assert_eq!(refused.map(|found| found.inode), Err(Errno::NOLCK), "its own request is one too many");
    let cancel = |inode| world.core.borrow_mut().cancel_lease(World::number(0), inode);
    inodes().for_each(|inode| cancel(inode).expect("no fault"));
    // Now its own request waits, and one of the others is refused.
    world.is_in_turns.set(true);
    let waits = world.call(0, |client| client.attributes(made));
    assert_eq!(waits.map(|found| found.inode), Err(Errno::AGAIN));
    inodes().for_each(|inode| ask(inode).expect("no fault"));
    inodes().for_each(|inode| cancel(inode).expect("no fault"));
    world.is_in_turns.set(false);
    assert_eq!(once(&world, 0, |client| client.attributes(made)).inode, made);
    world.result().expect("both go on");
}

/// A user waits for what another client has, and others of its own client do not.
#[test]
fn a_user_that_waits_for_a_lease_does_not_keep_others_from_its_client() {
    let mut plan = Plan::new(2, 1, Mix::ALL);
    plan.users = Some(2);
    let world = quiet(plan);
    let root = Credentials::root();
    let made = once(&world, 1, |client| client.create(caller(&root), ROOT, b"file", &FILE)).inode;
    let own = once(&world, 0, |client| client.create(caller(&root), ROOT, b"own", &FILE)).inode;
    world.slots[1].is_silent.set(true);
    world.is_in_turns.set(true);
    for _ in 0..100 {
        let waits = world.call(0, |client| client.attributes(made));
        assert_eq!(waits.map(|found| found.size), Err(Errno::AGAIN));
        assert_eq!(world.call(2, |client| client.attributes(own)).map(|found| found.inode), Ok(own));
    }
    world.slots[1].is_silent.set(false);
    world.is_in_turns.set(false);
    assert_eq!(once(&world, 0, |client| client.attributes(made)).inode, made);
    world.result().expect("both go on");
}

/// A client whose service lets it wait for few leases at a time, and users that wait for more.
fn many_users_wait(each: impl Fn(&World, usize)) {
    const USERS: usize = 2 * MAX_WAITING;
    let mut plan = Plan::new(2, 1, Mix::ALL);
    plan.users = Some(USERS);
    let world = quiet(plan);
    let root = Credentials::root();
    let made: Vec<_> = (0..USERS)
        .map(|number| {
            let name = number.to_string();
            once(&world, 1, |client| client.create(caller(&root), ROOT, name.as_bytes(), &FILE)).inode
        })
        .collect();
    once(&world, 0, |client| client.attributes(ROOT));
    world.slots[1].is_silent.set(true);
    world.is_in_turns.set(true);
    for _ in 0..3 {
        for (number, inode) in made.iter().enumerate() {
            // The slots of client 0.
            let user = 2 * number;
            let waits = world.call(user, |client| client.attributes(*inode));
            assert_eq!(waits.map(|found| found.inode), Err(Errno::AGAIN), "user {number}");
            each(&world, user);
            world.service(|core| core.step().map(drop));
        }
    }
    world.slots[1].is_silent.set(false);
    world.result().expect("both go on");
}

#[test]
fn more_users_than_a_client_may_wait_for_leases_are_not_refused() {
    many_users_wait(|_, _| ());
}

#[test]
fn requests_of_users_that_gave_up_do_not_count() {
    many_users_wait(World::give_up);
}

/// A user that is not tried again keeps nothing from another client.
#[test]
fn a_user_that_gives_up_leaves_its_leases() {
    let mut plan = Plan::new(3, 1, Mix::ALL);
    plan.users = Some(2);
    let world = quiet(plan);
    let root = Credentials::root();
    let mut made = [1, 2].map(|index: usize| {
        let name = format!("{index}");
        let made = once(&world, index, |client| client.create(caller(&root), ROOT, name.as_bytes(), &FILE));
        (made.inode, index)
    });
    // Client 0 gets the first one, and waits for the second one, which comes later in their order.
    made.sort();
    let [(first, other), (second, last)] = made;
    let both = |client: &mut Peer| {
        client.hold(first, Mode::Exclusive)?;
        client.hold(second, Mode::Exclusive)
    };
    world.slots[last].is_silent.set(true);
    world.is_in_turns.set(true);
    for _ in 0..10 {
        assert_eq!(world.call(0, both), Err(Errno::AGAIN));
        world.pass(2 * Times::default().hold);
        world.advance(other);
        world.service(|core| core.step().map(drop));
    }
    let wants = |client: &mut Peer| client.hold(first, Mode::Exclusive);
    for _ in 0..10 {
        assert_eq!(world.call(other, wants), Err(Errno::AGAIN), "client 0 keeps it");
        world.pass(2 * Times::default().hold);
        world.advance(0);
    }
    world.give_up(0);
    world.advance(0);
    for _ in 0..10 {
        world.pass(2 * Times::default().hold);
        world.service(|core| core.step().map(drop));
    }
    assert_eq!(world.call(other, wants), Ok(()), "client 0 gave it back");
    world.slots[last].is_silent.set(false);
    world.result().expect("all go on");
}

/// A client remembers that a file has no capabilities, as long as it has the lease.
#[test]
fn a_write_takes_capabilities_that_another_client_set() {
    let world = world(2);
    let handles = shared_file(&world);
    let root = Credentials::root();
    let inode = once(&world, 0, |client| client.lookup(caller(&root), ROOT, b"file")).inode;
    let name = b"security.capability";
    let write = |client: &mut Peer| client.write(caller(&root), handles[0], WriteAt::End, b"x");
    once(&world, 0, write);
    once(&world, 1, |client| client.set_xattr(caller(&root), inode, name, b"all", XattrMode::Set));
    once(&world, 0, write);
    let found = world.call(1, |client| client.xattr(caller(&root), inode, name));
    assert_eq!(found, Err(Errno::NODATA));
}

/// Writes files of a size until there is no room; the number of them.
fn fill(world: &World, index: usize, name: &str, bytes: usize) -> u64 {
    let root = Credentials::root();
    for number in 0.. {
        let name = format!("{name}{number}");
        let made = world.call(index, |client| client.create(caller(&root), ROOT, name.as_bytes(), &FILE));
        let written = made.and_then(|made| {
            let handle = world.call(index, |client| client.open(caller(&root), made.inode, READ_WRITE))?;
            let data = vec![number as u8 + 1; bytes];
            let written =
                world.call(index, |client| client.write(caller(&root), handle, WriteAt::End, &data));
            once(world, index, |client| {
                client.close(handle);
                Ok(())
            });
            written
        });
        match written {
            Ok(_) => {}
            Err(Errno::NOSPC) => return number,
            Err(errno) => panic!("client {index}, file {number}: {errno}"),
        }
    }
    0
}

fn small_pool(clients: usize) -> World {
    let plan = Plan::new(clients, 3, Mix::ALL);
    quiet(Plan { pool: 6 << 20, log: 4 << 20, ..plan })
}

/// All that clients wrote fits, and what one does not use another one gets.
#[test]
fn clients_share_a_pool_that_gets_full() {
    const BYTES: usize = 100 << 10;
    let alone = small_pool(1);
    let most = fill(&alone, 0, "a", BYTES);
    let world = small_pool(3);
    // The first two have budgets, and promise little.
    let few: u64 = 2;
    let root = Credentials::root();
    for index in 0..2 {
        let name = format!("small{index}");
        once(&world, index, |client| client.create(caller(&root), ROOT, name.as_bytes(), &FILE));
    }
    let third = fill(&world, 2, "c", BYTES);
    assert!(third + few >= most, "{third} files, and {most} of a client that is alone");
    let first = fill(&world, 0, "a", BYTES / 4);
    assert!(first < 16, "{first} more files in a full pool");
    // Digesting it all does not fail.
    world.settle();
    world.result().expect("what was written fits");
    for number in 0..third {
        let name = format!("c{number}");
        let found = once(&world, 1, |client| client.lookup(caller(&root), ROOT, name.as_bytes()));
        let handle = once(&world, 1, |client| client.open(caller(&root), found.inode, READ_WRITE));
        let mut bytes = vec![0; BYTES];
        let expected = if found.size == 0 { 0 } else { BYTES };
        assert_eq!(once(&world, 1, |client| client.read(handle, 0, &mut bytes)), expected);
        assert!(bytes[..expected].iter().all(|byte| *byte == number as u8 + 1));
        once(&world, 1, |client| {
            client.close(handle);
            Ok(())
        });
        once(&world, 1, |client| client.unlink(caller(&root), ROOT, name.as_bytes()));
    }
    world.settle();
    let again = fill(&world, 0, "d", BYTES);
    assert!(again + first / 4 + 1 + few >= most, "{again} files after all others were removed");
    world.result().expect("what was written fits");
}

/// Clients that write at the same time never promise more than there is.
#[test]
fn clients_that_fill_a_pool_together_lose_nothing() {
    let world = small_pool(2);
    let handles = shared_file(&world);
    let root = Credentials::root();
    let mut written = 0;
    let mut is_full = [false; 2];
    for round in 0..4000_usize {
        let index = round % 2;
        let result = match &mut *world.slots[index].client.borrow_mut() {
            Some(client) => client.write(caller(&root), handles[index], WriteAt::End, &[7; 20_000]),
            None => break,
        };
        match result {
            Ok(_) => written += 20_000,
            Err(Errno::AGAIN) => {}
            Err(Errno::NOSPC) => is_full[index] = true,
            Err(errno) => panic!("client {index} in round {round}: {errno}"),
        }
        world.pass(OPERATION);
        world.service(|core| core.step().map(drop));
    }
    assert_eq!(is_full, [true; 2]);
    world.settle();
    world.result().expect("what was written fits");
    assert!(written > 3 << 20, "{written} bytes of a pool of 6 MiB");
    let found = once(&world, 1, |client| client.lookup(caller(&root), ROOT, b"file"));
    assert_eq!(found.size, written);
}
