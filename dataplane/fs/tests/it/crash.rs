//! Power loss at every store and every fence, in the log and in the pool.
//!
//! 1. A program runs, and the log is digested between some of its operations, chosen by a seed.
//! 2. The power fails at one boundary: a store or fence of the log's memory, or of the pool's.
//!    Words that no fence followed are old or new at random.
//! 3. The file system is opened, which digests what the log has. Its tree must be the one that the
//!    model has after all acknowledged operations, or with the one in flight. In half of the cases
//!    the power fails again while it is opened.
//! 4. The check must find nothing in the pool.
//! 5. Nothing may be lost of the room: after everything was removed, as many blocks are free as in
//!    an empty file system.

use sietch_fs::FileSystem as _;
use sietch_fs::inode::{SET_GID, SET_UID};
use sietch_fs::name::NameKey;
use sietch_fs_oracle::Model;
use sietch_fs_oracle::program::compare::prefixes;
use sietch_fs_oracle::program::exhaustive::{sequences, setup};
use sietch_fs_oracle::program::generate::{Mix, generate};
use sietch_fs_oracle::program::operation::{Operation, User, text};
use sietch_fs_oracle::program::run::{State, apply};
use sietch_fs_oracle::program::tree::{Tree, tree};
use sietch_sim::seeds::{self, Budget};
use sietch_structures::Random;

use crate::setup::{BIRTH, Media, check_whole};

const KEY: NameKey = NameKey([7; 16]);
const POOL: usize = 3 << 20;
const LOG: usize = 256 << 10;
/// A log that is full after some writes.
const SMALL_LOG: usize = 64 << 10;

/// Where the power fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Boundary {
    Never,
    Log(u64),
    Pool(u64),
}

/// What a run of the program did.
struct Run {
    media: Media,
    /// Operations that were acknowledged.
    acknowledged: usize,
    /// Boundaries that were passed in the log and in the pool.
    boundaries: (u64, u64),
    /// Those that were passed before the program began.
    before: (u64, u64),
}

/// A program, and between which of its operations the log is digested.
struct Case<'a> {
    program: &'a [Operation],
    /// Operations that are not a part of the test: the power never fails in them.
    setup: usize,
    seed: u64,
    /// Bytes of the log. Where they are few, operations wait for a digest.
    log: usize,
    ignores_fences: bool,
}

impl Case<'_> {
    fn run(&self, fails: Boundary) -> Result<Run, String> {
        let media = Media::new(POOL, self.log);
        media.format(KEY);
        let mut client = media.open()?;
        let mut random = Random::new(self.seed);
        let digests = [0, 200, 600][random.index(3)];
        let mut state = State::new();
        let mut run = Run { media: media.clone(), acknowledged: 0, boundaries: (0, 0), before: (0, 0) };
        let is_off = || media.pool.is_off();
        for (step, operation) in self.program.iter().enumerate() {
            if step == self.setup {
                run.before = (media.log.boundaries(), media.pool.boundaries());
                match fails {
                    Boundary::Never => {}
                    Boundary::Log(at) => media.log.power_off_at(at),
                    Boundary::Pool(at) => media.pool.power_off_at(at),
                }
                if self.ignores_fences {
                    media.log.ignore_fences();
                    media.pool.ignore_fences();
                }
            }
            apply(&mut client, &mut state, operation);
            if is_off() {
                return Ok(run);
            }
            run.acknowledged = step + 1;
            if random.chance(digests) || step + 1 == self.program.len() {
                let digested = client.service().digest();
                if is_off() {
                    return Ok(run);
                }
                digested.map_err(|error| error.to_string())?;
                client.advance();
            }
        }
        run.boundaries = (media.log.boundaries(), media.pool.boundaries());
        Ok(run)
    }

    /// Runs, fails, and judges what is there afterwards.
    fn check(&self, fails: Boundary, trees: &[Tree]) -> Result<(), String> {
        let run = self.run(fails)?;
        let mut dice = Random::new(self.seed ^ 0x5eed);
        let media = &run.media;
        media.crash(&mut dice);
        if dice.chance(500) {
            let at = media.pool.boundaries() + 1 + dice.below(40);
            media.pool.power_off_at(at);
            // It fails half-way, or the power fails later.
            drop(media.open());
            media.crash(&mut dice);
        }
        let mut client = media.open()?;
        let found = tree(&mut client).map_err(|errno| format!("the tree cannot be read: {errno}"))?;
        let faults = client.service().faults().to_vec();
        let allowed = run.acknowledged..=(run.acknowledged + 1).min(self.program.len());
        let closest = trees[run.acknowledged].difference(&found);
        let before = &trees[run.acknowledged];
        // A change of content takes set-ID bits away by a record of its own, before the change.
        let has_less_rights =
            || without_set_id(before, before).difference(&without_set_id(&found, before)).is_none();
        if !trees[allowed].iter().any(|tree| tree.difference(&found).is_none()) && !has_less_rights() {
            return Err(format!(
                "{} operations were acknowledged; faults {faults:?}; expected and found {}",
                run.acknowledged,
                closest.unwrap_or_default()
            ));
        }
        check_whole(client)
    }

    /// Every boundary, or `most` of them by the seed; the states that were checked.
    fn check_all(&self, most: usize) -> Result<usize, String> {
        let mut model = Model::with_root(KEY, 0o755, BIRTH);
        let trees = prefixes(&mut model, self.program).map_err(|step| format!("the model at {step}"))?;
        let whole = self.run(Boundary::Never)?;
        let log = (whole.before.0 + 1..=whole.boundaries.0).map(Boundary::Log);
        let pool = (whole.before.1 + 1..=whole.boundaries.1).map(Boundary::Pool);
        let mut boundaries: Vec<Boundary> = log.chain(pool).collect();
        let mut dice = Random::new(self.seed);
        while boundaries.len() > most {
            boundaries.swap_remove(dice.index(boundaries.len()));
        }
        for fails in &boundaries {
            self.check(*fails, &trees).map_err(|found| {
                format!("seed {}, power fails at {fails:?}: {found}\n{}", self.seed, text(self.program))
            })?;
        }
        Ok(boundaries.len())
    }
}

/// The tree without the set-ID bits of the files that have some in `before`, and their ctime.
fn without_set_id(tree: &Tree, before: &Tree) -> Tree {
    let mut tree = tree.clone();
    for (path, leaf) in &before.leaves {
        if leaf.attributes.mode & (SET_UID | SET_GID) != 0
            && let Some(leaf) = tree.leaves.get_mut(path)
        {
            leaf.attributes.mode &= !(SET_UID | SET_GID);
            leaf.attributes.ctime = BIRTH;
        }
    }
    tree
}

#[test]
fn power_loss_in_every_sequence_of_one_operation() {
    let setup = setup();
    for (number, sequence) in sequences(1).enumerate() {
        let program = [setup.clone(), sequence].concat();
        let case = Case {
            program: &program,
            setup: setup.len(),
            seed: number as u64,
            log: LOG,
            ignores_fences: false,
        };
        case.check_all(usize::MAX).expect("no operation is lost");
    }
}

#[test]
fn power_loss_in_sequences_of_two_operations() {
    let setup = setup();
    let all: Vec<_> = sequences(2).collect();
    let budget = Budget { seeds: if seeds::is_soak() { all.len() as u64 * 100 } else { 200 }, seconds: 10 };
    seeds::run("it crash::power_loss_in_sequences_of_two_operations", &[], budget, |seed| {
        let sequence = all[Random::new(seed).index(all.len())].clone();
        let program = [setup.clone(), sequence].concat();
        let case = Case { program: &program, setup: setup.len(), seed, log: LOG, ignores_fences: false };
        let most = if seeds::is_soak() { usize::MAX } else { 6 };
        seeds::explored(case.check_all(most).expect("no operation is lost") as u64);
    });
}

#[test]
fn power_loss_in_random_programs() {
    let mix = Mix { users: &[User::Root], blind: 2, has_huge_offsets: false, ..Mix::ALL };
    seeds::run("it crash::power_loss_in_random_programs", &[], Budget { seeds: 20, seconds: 5 }, |seed| {
        let program = generate(seed, 40, &mix);
        let case = Case { program: &program, setup: 0, seed, log: LOG, ignores_fences: false };
        let most = if seeds::is_soak() { usize::MAX } else { 30 };
        seeds::explored(case.check_all(most).expect("no operation is lost") as u64);
    });
}

/// Operations wait for digests, and the log's space is used again: the power fails there too.
#[test]
fn power_loss_while_an_operation_waits_for_room_in_the_log() {
    let mix = Mix { users: &[User::Root], blind: 2, has_huge_offsets: false, ..Mix::DATA };
    let budget = Budget { seeds: 20, seconds: 5 };
    seeds::run("power_loss_while_an_operation_waits_for_room_in_the_log", &[], budget, |seed| {
        let program = generate(seed, 60, &mix);
        let case = Case { program: &program, setup: 0, seed, log: SMALL_LOG, ignores_fences: false };
        let most = if seeds::is_soak() { usize::MAX } else { 30 };
        seeds::explored(case.check_all(most).expect("no operation is lost") as u64);
    });
}

/// The tests above notice that fences do nothing.
#[test]
fn without_fences_operations_are_lost() {
    let setup = setup();
    let lost = sequences(1).enumerate().any(|(number, sequence)| {
        let program = [setup.clone(), sequence].concat();
        let case = Case {
            program: &program,
            setup: setup.len(),
            seed: number as u64,
            log: LOG,
            ignores_fences: true,
        };
        case.check_all(usize::MAX).is_err()
    });
    assert!(lost, "no crash showed that fences were ignored");
}

/// Removes everything below a directory.
fn clear(client: &mut crate::setup::FileSystem, directory: sietch_fs::inode::InodeNumber) {
    use sietch_fs::access::{Caller, Credentials};
    use sietch_fs::file_system::OpenMode;
    use sietch_fs::inode::Kind;
    use sietch_fs::name::Cookie;
    let root = Credentials::root();
    let caller = Caller { credentials: &root, now: BIRTH };
    let handle = client
        .open(caller, directory, OpenMode { read: true, ..OpenMode::default() })
        .expect("a directory can be opened");
    let mut entries = Vec::new();
    let mut take = |entry| {
        entries.push(entry);
        true
    };
    client.read_directory(handle, Cookie(0), &mut take).expect("a directory can be read");
    for entry in entries {
        if entry.kind == Kind::Directory {
            clear(client, entry.inode);
            client.remove_directory(caller, directory, &entry.name).expect("an empty directory goes");
        } else {
            client.unlink(caller, directory, &entry.name).expect("a name goes");
        }
    }
    client.close(handle);
}

#[test]
fn no_room_is_lost() {
    use sietch_fs::inode::InodeNumber;
    let mix = Mix { users: &[User::Root], has_huge_offsets: false, ..Mix::ALL };
    for seed in 0..10 {
        let program = generate(seed, 60, &mix);
        let case = Case { program: &program, setup: 0, seed, log: LOG, ignores_fences: false };
        let whole = case.run(Boundary::Never).expect("a run");
        let fails = Boundary::Pool(1 + Random::new(seed).below(whole.boundaries.1));
        let run = case.run(fails).expect("a run");
        run.media.crash(&mut Random::new(seed));
        let mut client = run.media.open().expect("a file system");
        clear(&mut client, InodeNumber::ROOT);
        drop(client);
        let mut left = run.media.open().expect("a file system");
        let empty = Media::new(POOL, LOG);
        empty.format(KEY);
        let mut fresh = empty.open().expect("a file system");
        assert_eq!(left.usage().inodes, fresh.usage().inodes, "seed {seed}");
        assert_eq!(left.usage().free, fresh.usage().free, "seed {seed}");
    }
}
