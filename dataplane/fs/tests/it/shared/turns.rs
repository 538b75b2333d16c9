//! Operations of several clients, and of several users of each client, that wait at the same time.
//! Each tries its operation again and again, in any order, until it is done: all must get done,
//! with the results of the model.

use rustix::io::Errno;
use sietch_fs::FileSystem as _;
use sietch_fs::access::{Caller, Credentials};
use sietch_fs::file_system::{AttributeChange, NewInode, RenameMode};
use sietch_fs::inode::{InodeNumber, Kind};
use sietch_fs_oracle::program::generate::Mix;
use sietch_sim::seeds::{self, Budget};
use sietch_structures::Random;

use super::dual::Dual;
use super::world::{Plan, World};
use crate::setup::BIRTH;

const ROOT: InodeNumber = InodeNumber::ROOT;
const NAMES: [&str; 3] = ["a", "b", "c"];
/// Tries of an operation, at most: its client waits for three others, each with some leases.
const TRIES: u64 = 20_000;
/// What a try takes.
const TRY: u64 = 20_000;

/// An operation in one call. Directories are by their place in the test's list.
#[derive(Clone, Copy, Debug)]
enum Call {
    Create(usize, usize, Kind),
    Unlink(usize, usize),
    RemoveDirectory(usize, usize),
    Rename((usize, usize), (usize, usize), RenameMode),
    Lookup(usize, usize),
    SetMode(usize, u16),
}

impl Call {
    fn draw(random: &mut Random, directories: usize) -> Self {
        let mut place = || (random.index(directories), random.index(NAMES.len()));
        let (one, two) = (place(), place());
        match random.below(10) {
            0 => Self::Create(one.0, one.1, Kind::File),
            1 => Self::Create(one.0, one.1, Kind::Directory),
            2 => Self::Unlink(one.0, one.1),
            3 => Self::RemoveDirectory(one.0, one.1),
            4 | 5 => Self::Rename(one, two, RenameMode::Replace),
            6 => Self::Rename(one, two, RenameMode::Exchange),
            7 => Self::Lookup(one.0, one.1),
            _ => Self::SetMode(one.0, 0o700 + random.below(64) as u16),
        }
    }

    /// Tries it; whether it is done.
    fn run(self, world: &World, index: usize, directories: &[InodeNumber]) -> bool {
        let root = Credentials::root();
        let caller = Caller { credentials: &root, now: BIRTH };
        let mut dual = Dual::new(world, index);
        let name = |number: usize| NAMES[number].as_bytes();
        let result = match self {
            Self::Create(directory, number, kind) => {
                let new = NewInode { kind, mode: 0o755, device: 0, target: &[] };
                dual.create(caller, directories[directory], name(number), &new).map(drop)
            }
            Self::Unlink(directory, number) => dual.unlink(caller, directories[directory], name(number)),
            Self::RemoveDirectory(directory, number) => {
                dual.remove_directory(caller, directories[directory], name(number))
            }
            Self::Rename(from, to, mode) => {
                let from = (directories[from.0], name(from.1));
                dual.rename(caller, from, (directories[to.0], name(to.1)), mode)
            }
            Self::Lookup(directory, number) => {
                dual.lookup(caller, directories[directory], name(number)).map(drop)
            }
            Self::SetMode(directory, mode) => {
                let change = AttributeChange { mode: Some(mode), ..AttributeChange::default() };
                dual.set_attributes(caller, directories[directory], None, &change).map(drop)
            }
        };
        !matches!(result, Err(Errno::AGAIN))
    }
}

/// Directories in the root directory, and one in each of those.
fn directories(world: &World) -> Vec<InodeNumber> {
    let root = Credentials::root();
    let caller = Caller { credentials: &root, now: BIRTH };
    let new = NewInode { kind: Kind::Directory, mode: 0o755, device: 0, target: &[] };
    let mut all = vec![ROOT];
    world.is_quiet.set(true);
    for (index, name) in ["one", "two"].iter().enumerate() {
        let mut dual = Dual::new(world, index);
        let outer = dual.create(caller, ROOT, name.as_bytes(), &new).expect("a directory").inode;
        let inner = dual.create(caller, outer, b"inner", &new).expect("a directory").inode;
        all.extend([outer, inner]);
    }
    all
}

fn run(seed: u64) -> Result<(), String> {
    let clients = 2 + (seed % 3) as usize;
    let mut plan = Plan::new(clients, seed, Mix::ALL);
    // Some hold a lease for many operations, some for one.
    plan.times.hold = [1_000_000, TRY, 0][(seed % 3) as usize];
    // More than a client has places for, too.
    plan.users = [None, Some(1), Some(2), Some(5), Some(40)][(seed % 5) as usize];
    let world = World::new(plan);
    let slots = world.slots.len();
    let directories = directories(&world);
    world.is_in_turns.set(true);
    let mut random = Random::new(seed);
    let mut draw = || Call::draw(&mut random, directories.len());
    let mut calls: Vec<(Call, u64)> = (0..slots).map(|_| (draw(), 0)).collect();
    let mut done = 0;
    while done < 200 && !world.has_stopped() {
        let index = world.random.borrow_mut().index(slots);
        let (call, tries) = &mut calls[index];
        *tries += 1;
        if *tries > TRIES {
            let leases = world.core.borrow().leases();
            return Err(format!("seed {seed}: user {index} never gets to {call:?}: {leases}"));
        }
        if call.run(&world, index, &directories) {
            world.note(|| format!("{index} {call:?} after {tries} tries"));
            calls[index] = (draw(), 0);
            done += 1;
        }
        world.pass(TRY);
        if world.chance(500) {
            world.service(|core| core.step().map(drop));
        }
    }
    seeds::explored(done);
    world.is_in_turns.set(false);
    for index in 0..slots {
        world.give_up(index);
        world.note(|| format!("{index} abandons"));
    }
    for index in 0..clients {
        world.compare(index);
    }
    world.result()?;
    world.finish()
}

#[test]
fn clients_and_users_that_all_wait_at_once_get_on() {
    let budget = Budget { seeds: 150, seconds: 5 };
    seeds::run("it shared::turns::clients_and_users_that_all_wait_at_once_get_on", &[], budget, |seed| {
        if let Err(cause) = run(seed) {
            panic!("{cause}");
        }
    });
}
