//! Random programs of operations, compared with the oracle's model, while the log is digested now
//! and then and the file system is closed and opened. Then the check must find nothing.

use sietch_fs::name::NameKey;
use sietch_fs_oracle::Model;
use sietch_fs_oracle::program::compare::step;
use sietch_fs_oracle::program::generate::{Mix, generate};
use sietch_fs_oracle::program::minimise::minimise;
use sietch_fs_oracle::program::operation::{Operation, text};
use sietch_fs_oracle::program::run::State;
use sietch_fs_oracle::program::tree::tree;
use sietch_sim::seeds::{self, Budget};
use sietch_structures::Random;

use crate::setup::{BIRTH, FileSystem, Media, check_whole};

const KEY: NameKey = NameKey([7; 16]);

/// How often the log is digested between operations, per mille.
const DIGESTS: [u32; 4] = [0, 50, 300, 1000];

fn open() -> (Media, FileSystem) {
    let media = Media::new(8 << 20, 4 << 20);
    media.format(KEY);
    let file_system = media.open().expect("a file system");
    (media, file_system)
}

/// Runs `program` on both; what differs.
fn differs(program: &[Operation], seed: u64) -> Option<String> {
    let (media, mut client) = open();
    let mut model = Model::with_root(KEY, 0o755, BIRTH);
    let mut random = Random::new(seed);
    let digests = DIGESTS[random.index(DIGESTS.len())];
    // Small batches end between any two records.
    client.service().set_batch_records([1, 2, 5, 1000][random.index(4)]);
    // And so do steps of the client's overlay.
    client.drop_by([64, 192, 1024, 1 << 20][random.index(4)]);
    let (mut one, mut two) = (State::new(), State::new());
    for (number, operation) in program.iter().enumerate() {
        if random.chance(digests) {
            if let Err(error) = client.service().digest() {
                return Some(format!("step {number}: the digest: {error}"));
            }
            // The rest is dropped by the operations that follow.
            if random.chance(500) {
                client.advance_by_step();
            } else {
                client.advance();
            }
        }
        let found = step(&mut model, &mut client, (&mut one, &mut two), operation);
        if let Some(found) = found {
            return Some(format!(
                "step {number}, {operation:?}: {found}\nfaults: {:?}",
                client.service().faults()
            ));
        }
    }
    let faults = client.service().faults();
    if !faults.is_empty() {
        return Some(format!("faults: {faults:?}"));
    }
    // Files without names, and half-removed ones, are there when a process is killed.
    if random.chance(300) {
        return check_whole(client).err();
    }
    one.release_all(&mut model);
    two.release_all(&mut client);
    drop(client);
    let mut again = match media.open() {
        Ok(again) => again,
        Err(error) => return Some(format!("it does not open again: {error}")),
    };
    match (tree(&mut model), tree(&mut again)) {
        (Ok(one), Ok(two)) => {
            if let Some(found) = one.difference(&two) {
                return Some(format!("after it was opened again: {found}"));
            }
        }
        (one, two) => return Some(format!("a tree cannot be read: {:?}, {:?}", one.err(), two.err())),
    }
    check_whole(again).err()
}

fn check(name: &str, mix: &Mix) {
    seeds::run(name, &[], Budget { seeds: 150, seconds: 5 }, |seed| {
        let whole = generate(seed, 120, mix);
        if differs(&whole, seed).is_some() {
            let least = minimise(&whole, &mut |program| differs(program, seed).is_some());
            let found = differs(&least, seed).expect("it differed");
            panic!("seed {seed}: {}\n{found}", text(&least));
        }
    });
}

#[test]
fn random_programs_behave_as_the_model() {
    check("it programs::random_programs_behave_as_the_model", &Mix::ALL);
}

#[test]
fn random_programs_of_data_behave_as_the_model() {
    check("it programs::random_programs_of_data_behave_as_the_model", &Mix::DATA);
}

#[test]
fn random_programs_of_names_behave_as_the_model() {
    check("it programs::random_programs_of_names_behave_as_the_model", &Mix::NAMES);
}
