//! A client that writes what it likes into its log: only that client is ended, and others go on.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use rustix::io::Errno;
use sietch_disk::nvm::Medium;
use sietch_fs::FileSystem as _;
use sietch_fs::access::{Caller, Credentials};
use sietch_fs::change::{Change, NewAttributes, Place};
use sietch_fs::file_system::NewInode;
use sietch_fs::inode::{InodeNumber, Kind};
use sietch_fs::lease::{ClientNumber, Mode, Release, Times};
use sietch_fs::log::{Durability, LogIdentity, LogWriter};
use sietch_fs::pool::Class;
use sietch_fs::shared::SharedDigest;
use sietch_fs_oracle::program::generate::Mix;
use sietch_sim::Memory;
use sietch_sim::seeds::{self, Budget};

use super::world::{KEY, Plan, World};
use crate::setup::{BIRTH, Media};

const ROOT: InodeNumber = InodeNumber::ROOT;
const HOSTILE: ClientNumber = ClientNumber(7);
const SEED: u64 = 0x6666;

/// The hostile client.
struct Hostile<'a> {
    world: &'a World,
    writer: LogWriter<Memory>,
    numbers: std::ops::Range<u64>,
}

impl<'a> Hostile<'a> {
    fn new(world: &'a World) -> Self {
        let memory = Memory::new(256 << 10).joined(&world.media.pool);
        let mut core = world.core.borrow_mut();
        let state = core.join(HOSTILE, memory.clone(), SEED).expect("a new epoch");
        let identity = LogIdentity { log: HOSTILE.0, epoch: state.epoch, seed: SEED };
        let writer = LogWriter::new(memory, identity, Durability::Operation).expect("a log");
        let numbers = core.inode_numbers(HOSTILE, 10).expect("numbers");
        Self { world, writer, numbers }
    }

    fn append(&mut self, change: &Change<'_>) {
        let bytes = match *change {
            Change::Write { length, .. } => length as usize,
            _ => 0,
        };
        self.writer.append(BIRTH, change, &vec![0x66; bytes]).expect("room in the log");
        self.world.core.borrow_mut().logged(HOSTILE, self.writer.next_position());
    }

    /// Has a lease, at once; others answer as they like.
    fn acquire(&self, inode: InodeNumber) -> u64 {
        self.world.core.borrow_mut().request_lease(HOSTILE, inode, Mode::Exclusive).expect("a request");
        for _ in 0..1000 {
            let message = self.world.core.borrow_mut().message(HOSTILE);
            if let Some(sietch_fs::client::Message::Granted(grant)) = message {
                assert_eq!(grant.inode, inode);
                return grant.serial;
            }
            for index in 0..self.world.slots.len() {
                self.world.advance(index);
            }
            self.world.service(|core| core.step().map(drop));
            self.world.pass(1_000_000);
        }
        panic!("no lease");
    }

    /// Gets a budget of at least so many blocks.
    fn get_room(&self, blocks: u64) {
        self.world.core.borrow_mut().request_room(HOSTILE, blocks).expect("a request");
        for _ in 0..1000 {
            for index in 0..self.world.slots.len() {
                self.world.advance(index);
            }
            let message = self.world.core.borrow_mut().message(HOSTILE);
            if let Some(sietch_fs::client::Message::Room(is_there)) = message {
                assert!(is_there, "there are {blocks} blocks");
                return;
            }
        }
        panic!("no room");
    }

    /// A file without a name, which needs no lease.
    fn create_unnamed(&mut self) -> InodeNumber {
        let inode = InodeNumber(self.numbers.next().expect("a number"));
        let change = create(inode, ROOT, "", Kind::File);
        let Change::Create { kind, mode, uid, gid, device, target, .. } = change else { unreachable!() };
        self.append(&Change::Create { inode, place: None, kind, mode, uid, gid, device, target });
        inode
    }

    /// Digests its log, which ends the client; the cause.
    fn ends(self) -> String {
        self.world.service(|core| core.digest(HOSTILE).map(drop));
        let core = self.world.core.borrow();
        core.ended(HOSTILE).expect("the client was ended").to_owned()
    }

    /// Digests its log, all of which is right.
    fn is_accepted(&self) {
        self.world.service(|core| core.digest(HOSTILE).map(drop));
        assert_eq!(self.world.core.borrow().ended(HOSTILE), None);
    }

    fn create(&mut self, name: &str, directory: InodeNumber, kind: Kind) -> InodeNumber {
        let inode = InodeNumber(self.numbers.next().expect("a number"));
        self.append(&create(inode, directory, name, kind));
        inode
    }
}

fn place(directory: InodeNumber, name: &str) -> Place<'_> {
    Place { directory, cookie: KEY.cookie(name.as_bytes()), name: name.as_bytes() }
}

fn create(inode: InodeNumber, directory: InodeNumber, name: &str, kind: Kind) -> Change<'_> {
    let place = Some(place(directory, name));
    Change::Create { inode, place, kind, mode: 0o755, uid: 0, gid: 0, device: 0, target: &[] }
}

/// The other clients go on, and nothing is wrong in the pool.
fn others_go_on(world: World) {
    for _ in 0..60 {
        let index = world.random.borrow_mut().index(world.slots.len());
        world.run_one(index);
    }
    world.compare(0);
    world.result().expect("others go on");
    world.finish().expect("nothing is wrong");
}

fn world(seed: u64) -> World {
    let mut plan = Plan::new(2, seed, Mix::ALL);
    // The hostile client does not answer.
    plan.times.answer = 20_000_000;
    let world = World::new(plan);
    for round in 0..40 {
        world.run_one(round % 2);
    }
    world
}

/// A file of the first client.
fn file(world: &World) -> InodeNumber {
    let root = Credentials::root();
    let caller = Caller { credentials: &root, now: BIRTH };
    let new = NewInode { kind: Kind::File, mode: 0o600, device: 0, target: &[] };
    // The model has it too.
    let mut dual = super::dual::Dual::new(world, 0);
    let made = dual.create(caller, ROOT, b"victim", &new).expect("a file");
    world.real(made.inode)
}

#[test]
fn a_record_without_a_lease_ends_its_client_alone() {
    let world = world(1);
    let victim = file(&world);
    let mut hostile = Hostile::new(&world);
    hostile.append(&Change::Write { inode: victim, offset: 0, length: 4096 });
    let cause = hostile.ends();
    assert!(cause.contains("lease"), "{cause}");
    others_go_on(world);
}

#[test]
fn an_entry_in_a_directory_without_its_lease_is_refused() {
    let world = world(2);
    let mut hostile = Hostile::new(&world);
    hostile.create("hostile", ROOT, Kind::File);
    let cause = hostile.ends();
    assert!(cause.contains("lease"), "{cause}");
    others_go_on(world);
}

#[test]
fn an_inode_number_of_another_client_is_refused() {
    let world = world(3);
    let others = world.core.borrow_mut().inode_numbers(World::number(0), 1).expect("a number");
    let mut hostile = Hostile::new(&world);
    let change = Change::Create {
        inode: InodeNumber(others.start),
        place: None,
        kind: Kind::File,
        mode: 0o600,
        uid: 0,
        gid: 0,
        device: 0,
        target: &[],
    };
    hostile.append(&change);
    let cause = hostile.ends();
    assert!(cause.contains("lease"), "{cause}");
    others_go_on(world);
}

/// Records from before the release are taken, one from behind it is not.
#[test]
fn a_record_behind_the_release_is_refused() {
    let world = world(4);
    let victim = file(&world);
    let mut hostile = Hostile::new(&world);
    hostile.get_room(4);
    let serial = hostile.acquire(victim);
    let attributes = NewAttributes { mode: Some(0o640), ..NewAttributes::default() };
    hostile.append(&Change::SetAttributes { inode: victim, attributes });
    let position = hostile.writer.next_position();
    hostile.append(&Change::Write { inode: victim, offset: 0, length: 100 });
    let release = Release { inode: victim, serial, shares: false, position, is_referenced: false };
    world.core.borrow_mut().release_lease(HOSTILE, release).expect("a release");
    let cause = hostile.ends();
    assert!(cause.contains("lease"), "{cause}");
    world.is_quiet.set(true);
    let root = Credentials::root();
    let caller = Caller { credentials: &root, now: BIRTH };
    let found = world.call(0, |client| client.lookup(caller, ROOT, b"victim")).expect("it is there");
    assert_eq!((found.mode, found.size), (0o640, 0));
}

/// A directory moves only with the lease of the tree, whatever else the client has.
#[test]
fn a_directory_that_moves_without_the_lease_of_the_tree_is_refused() {
    for has_tree in [true, false] {
        let world = world(5);
        let mut hostile = Hostile::new(&world);
        hostile.get_room(10);
        hostile.acquire(ROOT);
        let one = hostile.create("hostile one", ROOT, Kind::Directory);
        let two = hostile.create("hostile two", ROOT, Kind::Directory);
        hostile.is_accepted();
        if has_tree {
            hostile.acquire(sietch_fs::lease::TREE);
        }
        let (from, to) = (place(ROOT, "hostile two"), place(one, "two"));
        hostile.append(&Change::Rename { inode: two, from, to, replaced: None, exchange: false });
        if has_tree {
            hostile.is_accepted();
        } else {
            let cause = hostile.ends();
            assert!(cause.contains("lease"), "{cause}");
        }
    }
}

/// A release that names a position which its log never reaches.
#[test]
fn a_release_behind_the_end_of_the_log_ends_its_client() {
    let world = world(6);
    let victim = file(&world);
    let hostile = Hostile::new(&world);
    let serial = hostile.acquire(victim);
    let position = hostile.writer.next_position() + 6400;
    let release = Release { inode: victim, serial, shares: false, position, is_referenced: true };
    world.core.borrow_mut().release_lease(HOSTILE, release).expect("a release");
    let root = Credentials::root();
    let caller = Caller { credentials: &root, now: BIRTH };
    world.is_quiet.set(true);
    world.call(1, |client| client.lookup(caller, ROOT, b"victim")).expect("it is there");
    world.is_quiet.set(false);
    assert!(world.core.borrow().ended(HOSTILE).is_some());
    others_go_on(world);
}

/// A client that asks for no room, or logs more than it was given: what came before is kept, and
/// nothing else. The cause says how much it had and needed.
#[test]
fn a_record_beyond_the_budget_ends_its_client_alone() {
    for has_asked in [false, true] {
        let world = world(7);
        let mut hostile = Hostile::new(&world);
        if has_asked {
            hostile.get_room(8);
        }
        let budget = world.core.borrow().budget(HOSTILE);
        assert_eq!(budget > 0, has_asked);
        let inode = hostile.create_unnamed();
        if has_asked {
            hostile.append(&Change::Write { inode, offset: 0, length: 8192 });
            hostile.is_accepted();
            let left = world.core.borrow().budget(HOSTILE);
            assert!((budget - 4..budget).contains(&left), "{left} of {budget}");
            hostile.append(&Change::Write { inode, offset: 8192, length: 4096 });
            let length = left * 4096;
            hostile.append(&Change::Reserve { inode, offset: 1 << 20, length, size: 1 << 30, zero: false });
        }
        let cause = hostile.ends();
        let needed = if has_asked { budget - 2..budget + 2 } else { 1..2 };
        let says_need = needed.clone().any(|blocks| cause.contains(&format!("needs {blocks} blocks")));
        assert!(says_need && cause.contains("client 7") && cause.contains("budget"), "{cause}: {needed:?}");
        let core = || world.core.borrow_mut();
        let found = sietch_fs::Base::inode(core().digest_mut().base(), inode).expect("it can be read");
        // The second write came before the record that was refused. Nothing refers to the file.
        assert!(found.is_none_or(|found| found.size == 12288), "{found:?}");
        assert_eq!(core().budget(HOSTILE), 0);
        others_go_on(world);
    }
}

/// A client that fills its log again and again without a budget cannot fill the pool: the records
/// of others are digested.
#[test]
fn a_client_that_ignores_its_budget_cannot_fill_the_pool() {
    let world = world(8);
    let mut hostile = Hostile::new(&world);
    hostile.get_room(20);
    let inode = hostile.create_unnamed();
    let mut rounds = 0;
    while world.core.borrow().is_served(HOSTILE) {
        assert!(rounds < 200, "it has logged more than the pool has");
        let (offset, length) = (rounds * (64 << 10), 64 << 10);
        hostile.append(&Change::Write { inode, offset, length });
        // The service must not fail.
        world.service(|core| core.digest(HOSTILE).map(drop));
        world.result().expect("the service goes on");
        let state = world.core.borrow_mut().digest_mut().log_state(HOSTILE.0).expect("its state");
        hostile.writer.reclaim(state.position);
        rounds += 1;
    }
    let cause = world.core.borrow().ended(HOSTILE).expect("it was ended").to_owned();
    assert!(cause.contains("budget"), "{cause}");
    others_go_on(world);
}

/// Numbers without end: that is one commit, and one range in the table, for many requests.
#[test]
fn a_client_that_asks_for_numbers_again_and_again_costs_no_commits() {
    let world = world(12);
    let hostile = Hostile::new(&world);
    let mut core = world.core.borrow_mut();
    let before = core.digest_mut().root().generation;
    let mut last = hostile.numbers.end;
    for _ in 0..3000 {
        let numbers = core.inode_numbers(HOSTILE, 4096).expect("numbers");
        assert_eq!((numbers.start, numbers.end), (last, last + 4096), "they follow each other");
        last = numbers.end;
        assert!(core.inode_numbers(World::number(0), 1).expect("a number").start < hostile.numbers.start);
    }
    assert_eq!(core.digest_mut().root().generation, before);
    drop(core);
    others_go_on(world);
}

/// Room that was given away and is gone all the same: the service does not end with the client that
/// meets it.
#[test]
fn a_pool_without_the_room_of_a_budget_ends_that_client_alone() {
    let world = world(11);
    let mut hostile = Hostile::new(&world);
    hostile.get_room(200);
    {
        let mut core = world.core.borrow_mut();
        let digest = core.digest_mut();
        while digest.root().free > 20 {
            let free = digest.root().free;
            digest.pool().use_reserve(true);
            digest.pool().allocate(Class::Nvm, (free - 20) as u32).expect("free blocks");
            digest.inode_numbers(1).expect("a commit");
        }
    }
    let inode = hostile.create_unnamed();
    hostile.append(&Change::Write { inode, offset: 0, length: 160 << 10 });
    // The first record fits.
    hostile.is_accepted();
    let cause = hostile.ends();
    assert!(cause.contains("no room"), "{cause}");
    world.result().expect("the service goes on");
    world.is_quiet.set(true);
    let root = Credentials::root();
    let caller = Caller { credentials: &root, now: BIRTH };
    let missing = world.call(0, |client| client.lookup(caller, ROOT, b"nothing"));
    assert_eq!(missing.map(|found| found.inode), Err(Errno::NOENT));
}

/// Blocks that others need are held for a client that does not read a newer root: not for long.
#[test]
fn a_client_that_does_not_advance_is_ended() {
    let mut plan = Plan::new(1, 9, Mix::ALL);
    (plan.pool, plan.log, plan.times.answer) = (4 << 20, 1 << 20, 20_000_000);
    let world = World::new(plan);
    world.is_quiet.set(true);
    let root = Credentials::root();
    let caller = Caller { credentials: &root, now: BIRTH };
    let file = file(&world);
    let mode = sietch_fs::file_system::OpenMode { read: true, write: true, truncate: false };
    let handle = world.call(0, |client| client.open(caller, file, mode)).expect("opened");
    let _hostile = Hostile::new(&world);
    let at = sietch_fs::file_system::WriteAt::Offset(0);
    // Each write replaces the blocks of the one before.
    for round in 0..40 {
        let data = vec![round; 200 << 10];
        world.call(0, |client| client.write(caller, handle, at, &data)).expect("there is room");
        world.service(|core| core.digest(World::number(0)).map(drop));
    }
    let core = world.core.borrow();
    let cause = core.ended(HOSTILE).expect("it was ended");
    assert!(cause.contains("advance"), "{cause}");
    drop(core);
    world.result().expect("the other goes on");
}

/// Releases that name the end of a log which is not there, of inodes that nothing waits for.
#[test]
fn releases_that_never_pass_on_do_not_pile_up() {
    let world = world(10);
    let hostile = Hostile::new(&world);
    let before = world.core.borrow().table_len();
    let position = hostile.writer.next_position() + 64_000;
    for inode in (1 << 40..).map(InodeNumber).take(20_000) {
        let core = || world.core.borrow_mut();
        if core().request_lease(HOSTILE, inode, Mode::Exclusive).is_err() {
            break;
        }
        let Some(sietch_fs::client::Message::Granted(grant)) = core().message(HOSTILE) else { break };
        let serial = grant.serial;
        let release = Release { inode, serial, shares: false, position, is_referenced: false };
        core().release_lease(HOSTILE, release).expect("no fault");
        world.service(|core| core.step().map(drop));
    }
    let after = world.core.borrow().table_len();
    assert!(after.0 < before.0 + 100, "{after:?} entries, and {before:?} before");
    assert!(world.core.borrow().ended(HOSTILE).is_some());
    // One release is enough, if it is digested.
    others_go_on(world);
}

/// Random records, for none of which it has the lease, and random messages: others always go on.
#[test]
fn hostile_records_and_releases_harm_no_other_client() {
    let budget = Budget { seeds: 60, seconds: 5 };
    seeds::run(
        "it shared::hostile::hostile_records_and_releases_harm_no_other_client",
        &[],
        budget,
        |seed| {
            let world = world(seed);
            let victim = file(&world);
            let mut hostile = Hostile::new(&world);
            for _ in 0..20 {
                if !world.core.borrow().is_served(HOSTILE) {
                    break;
                }
                let random = world.random.borrow_mut().below(10);
                let any = InodeNumber(1 + world.random.borrow_mut().below(20));
                let core = || world.core.borrow_mut();
                let position = world.random.borrow_mut().below(100) * 64;
                match random {
                    0 => hostile.append(&Change::Write { inode: any, offset: 0, length: 64 }),
                    1 => hostile.append(&Change::Unlink { inode: victim, place: place(ROOT, "victim") }),
                    2 => drop(hostile.create("hostile", ROOT, Kind::File)),
                    3 | 4 => drop(core().request_lease(HOSTILE, any, Mode::Shared)),
                    5 => core().cancel_lease(HOSTILE, any).expect("no fault"),
                    6 => core().unreferenced(HOSTILE, any),
                    7 => {
                        let serial = world.random.borrow_mut().below(60);
                        let (shares, is_referenced) = (world.chance(300), world.chance(500));
                        let release = Release { inode: any, serial, shares, position, is_referenced };
                        core().release_lease(HOSTILE, release).expect("no fault");
                    }
                    8 => {
                        core().request_room(HOSTILE, position).expect("no fault");
                        core().return_room(HOSTILE, position * 2).expect("no fault");
                    }
                    _ => world.service(|core| core.digest(HOSTILE).map(drop)),
                }
                let index = world.random.borrow_mut().index(2);
                world.run_one(index);
            }
            // It is quarantined, or dies at last.
            let died = world.core.borrow_mut().died(HOSTILE);
            died.expect("the client ends");
            for _ in 0..40 {
                let index = world.random.borrow_mut().index(2);
                world.run_one(index);
            }
            if let Err(cause) = world.result() {
                panic!("{cause}");
            }
        },
    );
}

/// A log whose client never stops: when its memory is read, there are more records. It stops after
/// `rings` times its length, so that a service that reads on for ever is seen to do so.
struct Endless {
    memory: Memory,
    writer: RefCell<LogWriter<Memory>>,
    inode: InodeNumber,
    rings: u64,
    has_begun: Rc<Cell<bool>>,
}

impl Endless {
    /// Appends a record where the log is read next to its end.
    fn append(&self, place: usize) {
        let mut writer = self.writer.borrow_mut();
        let (end, ring) = (writer.next_position(), self.memory.len() as u64);
        let ahead = (end + ring - place as u64 % ring) % ring;
        if self.has_begun.get() && end < self.rings * ring && ahead < 512 {
            writer.reclaim(end);
            let attributes = NewAttributes { mode: Some(0o640), ..NewAttributes::default() };
            let change = Change::SetAttributes { inode: self.inode, attributes };
            writer.append(BIRTH, &change, &[]).expect("room in the log");
        }
    }
}

impl Medium for Endless {
    fn len(&self) -> usize {
        self.memory.len()
    }

    fn load(&self, place: usize, out: &mut [u8]) {
        self.append(place);
        self.memory.load(place, out);
    }

    fn store(&mut self, place: usize, bytes: &[u8]) {
        self.memory.store(place, bytes);
    }

    fn fence(&mut self) {
        self.memory.fence();
    }

    fn description(&self) -> &'static str {
        "a log that never ends"
    }
}

/// A client that goes on after it ended, or that names a position far ahead, keeps the service for
/// one length of its log at most.
#[test]
fn a_client_that_never_stops_to_append_does_not_keep_the_service() {
    const RINGS: u64 = 20;
    let media = Media::new(8 << 20, 1 << 20);
    media.format(KEY);
    let mut core = SharedDigest::new(media.digest(), Times::default());
    core.digest_mut().set_batch_records(16);
    let memory = Memory::new(32 << 10);
    let ring = memory.len() as u64;
    let epoch = core.digest_mut().log_state(HOSTILE.0).expect("memory").epoch + 1;
    let identity = LogIdentity { log: HOSTILE.0, epoch, seed: SEED };
    let writer = LogWriter::new(memory.clone(), identity, Durability::Operation).expect("a log");
    let has_begun = Rc::new(Cell::new(false));
    let log = Endless {
        memory,
        writer: RefCell::new(writer),
        inode: ROOT,
        rings: RINGS,
        has_begun: Rc::clone(&has_begun),
    };
    assert_eq!(core.join(HOSTILE, log, SEED).expect("a new epoch").epoch, epoch);
    core.request_lease(HOSTILE, ROOT, Mode::Exclusive).expect("a request");
    has_begun.set(true);
    core.logged(HOSTILE, 64);
    core.died(HOSTILE).expect("memory");
    let end = core.digest_mut().log_state(HOSTILE.0).expect("memory").position;
    assert!((1..=ring + 16 * 128).contains(&end), "it was digested up to {end}, a ring is {ring}");
}

/// The service does not wait until a log is digested up to a position that it cannot have reached.
#[test]
fn a_release_further_than_a_log_can_reach_ends_its_client_at_once() {
    let world = world(12);
    let victim = file(&world);
    let hostile = Hostile::new(&world);
    let serial = hostile.acquire(victim);
    let far = hostile.writer.next_position() + hostile.writer.capacity() + 64;
    for position in [far, u64::MAX] {
        let release = Release { inode: victim, serial, shares: false, position, is_referenced: false };
        world.core.borrow_mut().release_lease(HOSTILE, release).expect("a release");
        let core = world.core.borrow();
        let cause = core.ended(HOSTILE).expect("the client was ended");
        assert!(cause.contains("cannot have reached"), "{cause}");
    }
    others_go_on(world);
}

/// A client dies with many files open that have no name. They are freed by few commits: each client
/// waits meanwhile.
#[test]
fn files_without_a_name_are_freed_by_few_commits() {
    const FILES: u64 = 2000;
    let media = Media::new(32 << 20, 1 << 20);
    media.format(KEY);
    let mut core = SharedDigest::new(media.digest(), Times::default());
    let memory = Memory::new(1 << 20);
    let state = core.join(HOSTILE, memory.clone(), SEED).expect("a new epoch");
    let identity = LogIdentity { log: HOSTILE.0, epoch: state.epoch, seed: SEED };
    let mut writer = LogWriter::new(memory, identity, Durability::Operation).expect("a log");
    core.request_room(HOSTILE, FILES).expect("a request");
    assert!(core.budget(HOSTILE) >= FILES);
    let numbers = core.inode_numbers(HOSTILE, FILES).expect("numbers");
    for inode in numbers {
        let (kind, mode, target) = (Kind::File, 0o600, &[][..]);
        let inode = InodeNumber(inode);
        let change = Change::Create { inode, place: None, kind, mode, uid: 0, gid: 0, device: 0, target };
        writer.append(BIRTH, &change, &[]).expect("room in the log");
    }
    core.logged(HOSTILE, writer.next_position());
    while core.digest(HOSTILE).expect("room").more {}
    let before = core.digest_mut().root();
    core.died(HOSTILE).expect("memory");
    let after = core.digest_mut().root();
    assert_eq!((before.counters.inodes, after.counters.inodes), (FILES + 1, 1));
    let commits = after.generation - before.generation;
    assert!(commits < 30, "{commits} commits");
}
