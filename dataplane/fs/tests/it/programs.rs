//! Random programs of operations, compared with the oracle's model, while the log is digested now
//! and then and the file system is closed and opened.

use sietch_fs::name::NameKey;
use sietch_fs_oracle::Model;
use sietch_fs_oracle::program::compare::step;
use sietch_fs_oracle::program::generate::{Mix, generate};
use sietch_fs_oracle::program::minimise::minimise;
use sietch_fs_oracle::program::operation::{Operation, text};
use sietch_fs_oracle::program::run::State;
use sietch_structures::Random;

use crate::setup::{BIRTH, FileSystem, Media};

const KEY: NameKey = NameKey([7; 16]);

/// How often the log is digested between operations, in percent.
const DIGESTS: [u32; 4] = [0, 5, 30, 100];

fn open() -> (Media, FileSystem) {
    let media = Media::new(8 << 20, 4 << 20);
    media.format(KEY);
    let file_system = media.open().expect("a file system");
    (media, file_system)
}

/// Runs `program` on both; what differs.
fn differs(program: &[Operation], seed: u64) -> Option<String> {
    let (_media, mut client) = open();
    let mut model = Model::with_root(KEY, 0o755, BIRTH);
    let mut random = Random::new(seed);
    let digests = DIGESTS[random.index(DIGESTS.len())];
    // Small batches end between any two records.
    client.service().set_batch_records([1, 2, 5, 1000][random.index(4)]);
    let (mut one, mut two) = (State::new(), State::new());
    for (number, operation) in program.iter().enumerate() {
        if random.chance(digests) {
            if let Err(error) = client.service().digest() {
                return Some(format!("step {number}: the digest: {error}"));
            }
            client.advance();
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
    (!faults.is_empty()).then(|| format!("faults: {faults:?}"))
}

fn check(seeds: std::ops::Range<u64>, length: usize, mix: &Mix) {
    for seed in seeds {
        let whole = generate(seed, length, mix);
        if differs(&whole, seed).is_some() {
            let least = minimise(&whole, &mut |program| differs(program, seed).is_some());
            let found = differs(&least, seed).expect("it differed");
            panic!("seed {seed}: {}\n{found}", text(&least));
        }
    }
}

#[test]
fn random_programs_behave_as_the_model() {
    check(0..150, 120, &Mix::ALL);
}

#[test]
fn random_programs_of_data_behave_as_the_model() {
    check(1000..1150, 120, &Mix::DATA);
}

#[test]
fn random_programs_of_names_behave_as_the_model() {
    check(2000..2150, 120, &Mix::NAMES);
}
