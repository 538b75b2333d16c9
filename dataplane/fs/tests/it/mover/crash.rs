//! Power loss at every store and fence of every medium while data move.
//!
//! As `crash.rs`, with steps of the mover between the operations. Its jobs go on while operations
//! are done and digested, so that extents change under it.

use std::sync::atomic::{AtomicU64, Ordering};

use sietch_fs::mover::{Moves, Settings};
use sietch_fs::name::NameKey;
use sietch_fs_oracle::Model;
use sietch_fs_oracle::program::compare::prefixes;
use sietch_fs_oracle::program::operation::{Operation, text};
use sietch_fs_oracle::program::run::{State, apply};
use sietch_fs_oracle::program::tree::{Tree, tree};
use sietch_sim::seeds::{self, Budget};
use sietch_structures::Random;

use super::driver::{Driver, mark, three};
use super::programs::{MARKS, data_program};
use crate::setup::{BIRTH, Media, check_whole};

const KEY: NameKey = NameKey([7; 16]);

struct Run {
    media: Media,
    acknowledged: usize,
    /// Boundaries of each medium, the log first.
    boundaries: Vec<u64>,
    moves: Moves,
}

/// Where the power fails: at which boundary of which medium.
type Fails = Option<(usize, u64)>;

fn memories(media: &Media) -> Vec<sietch_sim::Memory> {
    let others = media.others.iter().map(|(_, memory, _)| memory.clone());
    [media.log.clone(), media.pool.clone()].into_iter().chain(others).collect()
}

fn run(program: &[Operation], seed: u64, fails: Fails) -> Result<Run, String> {
    let media = three(3 << 20, 1 << 20, 2 << 20, 1 << 20);
    media.format(KEY);
    let mut client = media.open()?;
    let mut random = Random::new(seed);
    // Everything leaves the home, and half of the next one; or a part.
    mark(&mut client, &MARKS[random.index(MARKS.len())]);
    if random.chance(300) {
        client.service().owner().pool().set_leaving(random.between(1, 2) as usize);
    }
    let mut driver =
        Driver::new(&media, &mut client, Settings { rate: u64::MAX >> 20, ..Settings::default() });
    if let Some((medium, boundary)) = fails {
        memories(&media)[medium].power_off_at(boundary);
    }
    let mut state = State::new();
    let mut run =
        Run { media: media.clone(), acknowledged: 0, boundaries: Vec::new(), moves: Moves::default() };
    let (digests, steps) = (*random.pick(&[200, 600]), random.between(1, 12));
    for (step, operation) in program.iter().enumerate() {
        apply(&mut client, &mut state, operation);
        if media.pool.is_off() {
            return Ok(run);
        }
        run.acknowledged = step + 1;
        let is_last = step + 1 == program.len();
        if random.chance(digests) || is_last {
            let digested = driver.digest(&mut client);
            if media.pool.is_off() {
                return Ok(run);
            }
            digested.map_err(|error| error.to_string())?;
        }
        driver.now += random.below(1_000_000_000);
        for _ in 0..if is_last { 60 } else { random.below(steps) } {
            let stepped = driver.step(&mut client);
            if media.pool.is_off() {
                return Ok(run);
            }
            stepped.map_err(|fault| format!("the mover: {fault}"))?;
        }
        let faults = driver.mover.take_faults();
        if !faults.is_empty() {
            return Err(format!("the mover: {faults:?}"));
        }
    }
    run.boundaries = memories(&media).iter().map(sietch_sim::Memory::boundaries).collect();
    run.moves = driver.mover.moves().clone();
    Ok(run)
}

fn check(program: &[Operation], seed: u64, fails: Fails, trees: &[Tree]) -> Result<(), String> {
    let run = run(program, seed, fails)?;
    let mut dice = Random::new(seed ^ 0x5eed ^ fails.map_or(0, |(_, at)| at << 8));
    run.media.crash(&mut dice);
    let mut client = run.media.open()?;
    let found = tree(&mut client)
        .map_err(|errno| format!("the tree cannot be read: {errno}: {:?}", client.service().faults()))?;
    let allowed = run.acknowledged..=(run.acknowledged + 1).min(program.len());
    if !trees[allowed].iter().any(|tree| tree.difference(&found).is_none()) {
        let closest = trees[run.acknowledged].difference(&found).unwrap_or_default();
        return Err(format!(
            "{} operations were acknowledged; expected and found {closest}",
            run.acknowledged
        ));
    }
    check_whole(client)
}

#[test]
fn power_loss_while_data_move_leaves_the_old_or_the_new() {
    let name = "it mover::crash::power_loss_while_data_move_leaves_the_old_or_the_new";
    let demoted = AtomicU64::new(0);
    seeds::run(name, &[], Budget { seeds: 40, seconds: 5 }, |seed| {
        let program = data_program(seed, 30, 24);
        let mut model = Model::with_root(KEY, 0o755, BIRTH);
        let trees = prefixes(&mut model, &program).expect("a program of the model");
        let whole = run(&program, seed, None).expect("no power is lost");
        demoted.fetch_add(whole.moves.demoted, Ordering::Relaxed);
        let mut boundaries: Vec<(usize, u64)> = Vec::new();
        for (medium, count) in whole.boundaries.iter().enumerate() {
            boundaries.extend((1..=*count).map(|boundary| (medium, boundary)));
        }
        let mut dice = Random::new(seed);
        let most = if seeds::is_soak() { usize::MAX } else { 60 };
        while boundaries.len() > most {
            let at = dice.index(boundaries.len());
            // The slow media have few boundaries, and what is new happens there.
            if boundaries[at].0 < 2 || dice.chance(100) {
                boundaries.swap_remove(at);
            }
        }
        for fails in &boundaries {
            check(&program, seed, Some(*fails), &trees).unwrap_or_else(|found| {
                panic!("seed {seed}, power fails at {fails:?}: {found}\n{}", text(&program))
            });
        }
        seeds::explored(boundaries.len() as u64);
    });
    assert!(demoted.into_inner() > 0, "nothing moved");
}
