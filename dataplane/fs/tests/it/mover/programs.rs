//! Random programs on files with data, compared with the oracle's model while data move.

use sietch_fs::file_system::{Allocation, AttributeChange, OpenMode, WriteAt};
use sietch_fs::inode::Kind;
use sietch_fs::mover::{Moves, Settings};
use sietch_fs::name::NameKey;
use sietch_fs_oracle::Model;
use sietch_fs_oracle::program::compare::step;
use sietch_fs_oracle::program::operation::{Fill, HandleSlot, InodeSlot, Name, Operation, User, text};
use sietch_fs_oracle::program::run::State;
use sietch_fs_oracle::program::tree::tree;
use sietch_sim::seeds::{self, Budget};
use sietch_structures::Random;

use super::driver::{Driver, mark, three};
use crate::setup::{BIRTH, check_whole};

const KEY: NameKey = NameKey([7; 16]);
const BLOCK: u64 = 4096;
/// Files that a program has at a time.
const FILES: u8 = 3;
const USER: User = User::Root;

fn create(file: u8) -> [Operation; 2] {
    let inode = InodeSlot(file + 1);
    let mode = OpenMode { read: true, write: true, truncate: false };
    [
        Operation::Create {
            user: USER,
            directory: InodeSlot(0),
            name: Name(file),
            kind: Kind::File,
            mode: 0o600,
            target: 0,
            into: inode,
        },
        Operation::Open { user: USER, inode, mode, into: HandleSlot(file) },
    ]
}

/// A program on files of about `blocks` blocks.
pub(super) fn data_program(seed: u64, length: usize, blocks: u64) -> Vec<Operation> {
    let mut random = Random::new(seed ^ 0xda7a);
    let mut program: Vec<Operation> = (0..FILES).flat_map(create).collect();
    while program.len() < length {
        let file = random.below(u64::from(FILES)) as u8;
        let handle = HandleSlot(file);
        let start = match random.below(3) {
            0 => random.below(blocks * BLOCK),
            _ => random.below(blocks) * BLOCK,
        };
        let most = *random.pick(&[1, 2, blocks / 4, blocks * 2 / 3]) * BLOCK;
        let count = random.between(1, most);
        match random.below(100) {
            0..60 => {
                let data = Fill { fill: random.below(256) as u8, length: count as u32 };
                let at = if random.chance(300) { WriteAt::End } else { WriteAt::Offset(start) };
                program.push(Operation::Write { user: USER, handle, at, data });
            }
            60..70 => program.push(Operation::Read { handle, offset: start, length: count as u32 }),
            70..80 => {
                let allocation = *random.pick(&[Allocation::Punch, Allocation::Zero, Allocation::Reserve]);
                let range = start..start + count;
                program.push(Operation::Allocate { user: USER, handle, range, allocation });
            }
            80..90 => {
                let change = AttributeChange { size: Some(start), ..AttributeChange::default() };
                let inode = InodeSlot(file + 1);
                program.push(Operation::SetAttributes { user: USER, inode, handle: None, change });
            }
            _ => {
                program.push(Operation::Unlink { user: USER, directory: InodeSlot(0), name: Name(file) });
                program.push(Operation::Close { handle });
                program.push(Operation::Forget { inode: InodeSlot(file + 1) });
                program.extend(create(file));
            }
        }
    }
    program
}

/// Marks for the three media: data leave each of them soon, or late.
pub(super) const MARKS: [[(u16, u16, u16); 3]; 4] = [
    [(0, 1, 950), (100, 300, 950), (700, 850, 950)],
    [(150, 250, 300), (20, 60, 100), (5, 900, 950)],
    [(600, 700, 990), (0, 1, 2), (700, 850, 950)],
    [(100, 180, 200), (700, 850, 900), (10, 20, 30)],
];

/// Runs a program on both; what differs, or what was moved.
fn differs(program: &[Operation], seed: u64) -> Result<Moves, String> {
    let media = three(4 << 20, 2 << 20, 4 << 20, 8 << 20);
    media.format(KEY);
    let mut client = media.open()?;
    let mut model = Model::with_root(KEY, 0o755, BIRTH);
    let mut random = Random::new(seed);
    client.service().set_batch_records([1, 5, 1000][random.index(3)]);
    let mut driver = Driver::new(&media, &mut client, Settings { rate: 1 << 40, ..Settings::default() });
    let (digests, most) = (*random.pick(&[100, 500, 1000]), *random.pick(&[3, 10, 40]));
    let (mut one, mut two) = (State::new(), State::new());
    for (number, operation) in program.iter().enumerate() {
        if random.chance(100) {
            mark(&mut client, &MARKS[random.index(MARKS.len())]);
        }
        if random.chance(digests) {
            driver.digest(&mut client).map_err(|error| format!("step {number}: the digest: {error}"))?;
        }
        driver.now += random.below(1 << 32);
        for _ in 0..random.below(most) {
            driver.step(&mut client).map_err(|fault| format!("step {number}: the mover: {fault}"))?;
        }
        if random.chance(50) {
            driver.mover.abandon(client.service().owner());
        }
        if let Some(found) = step(&mut model, &mut client, (&mut one, &mut two), operation) {
            let faults = client.service().faults();
            return Err(format!("step {number}, {operation:?}: {found}\nfaults: {faults:?}"));
        }
    }
    one.release_all(&mut model);
    two.release_all(&mut client);
    driver.digest(&mut client).map_err(|error| format!("the last digest: {error}"))?;
    let moves = driver.settle(&mut client);
    let faults = [client.service().faults(), &driver.mover.take_faults()].concat();
    if !faults.is_empty() {
        return Err(format!("faults: {faults:?}"));
    }
    match (tree(&mut model), tree(&mut client)) {
        (Ok(one), Ok(two)) => {
            if let Some(found) = one.difference(&two) {
                return Err(format!("at the end: {found}"));
            }
        }
        (one, two) => return Err(format!("a tree cannot be read: {:?}, {:?}", one.err(), two.err())),
    }
    check_whole(client)?;
    Ok(moves)
}

#[test]
fn files_are_the_same_while_their_data_move() {
    use std::sync::Mutex;
    let all = Mutex::new(Moves::default());
    let name = "it mover::programs::files_are_the_same_while_their_data_move";
    seeds::run(name, &[], Budget { seeds: 150, seconds: 5 }, |seed| {
        let program = data_program(seed, 150, 130);
        let moves = differs(&program, seed)
            .unwrap_or_else(|found| panic!("seed {seed}: {}\n{found}", text(&program)));
        let mut all = all.lock().expect("no panic");
        all.runs += moves.runs;
        all.demoted += moves.demoted;
        all.promoted += moves.promoted;
        all.wasted += moves.wasted;
    });
    let all = all.into_inner().expect("no panic");
    println!("{all:?}");
    assert!(all.demoted > 100 && all.wasted > 0, "too little moved: {all:?}");
}
