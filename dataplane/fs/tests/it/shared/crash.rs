//! Power loss with several logs.
//!
//! Every operation that returned is there afterwards, of every client, and the logs are replayed in
//! any order, some records of one at a time. [`sietch_fs::lease::Replay`] refuses records of two
//! logs that change the same inode: there must be none.

use sietch_fs_oracle::program::generate::Mix;
use sietch_fs_oracle::program::operation::User;
use sietch_sim::seeds::{self, Budget};
use sietch_structures::Random;

use super::world::{Plan, World};

const MIX: Mix = Mix { users: &[User::Root], blind: 2, has_huge_offsets: false, ..Mix::ALL };
const NAMES: Mix = Mix { names: 80, content: 20, attributes: 5, xattrs: 5, ..MIX };

/// Runs operations until the power fails, or all were made.
fn run(world: &World, operations: usize) {
    for _ in 0..operations {
        if world.has_stopped() {
            return;
        }
        let index = world.random.borrow_mut().index(world.slots.len());
        world.run_one(index);
        if world.chance(30) {
            world.die(index);
        }
    }
}

fn plan(seed: u64, mix: Mix) -> Plan {
    let plan = Plan::new(2 + (seed % 2) as usize, seed, mix);
    Plan { pool: 4 << 20, log: 256 << 10, ..plan }
}

/// Boundaries of the pool and of each log, after a run in which nothing fails.
fn boundaries(seed: u64, mix: Mix, operations: usize) -> Vec<(u64, u64)> {
    let world = World::new(plan(seed, mix));
    let before = world.boundaries();
    run(&world, operations);
    world.result().expect("the world goes on");
    before.into_iter().zip(world.boundaries()).collect()
}

fn check(name: &str, mix: Mix) {
    seeds::run(name, &[], Budget { seeds: 60, seconds: 5 }, |seed| {
        let operations = 50;
        let all = boundaries(seed, mix, operations);
        let mut dice = Random::new(seed);
        let tries = if seeds::is_soak() { 200 } else { 12 };
        for _ in 0..tries {
            let memory = dice.index(all.len());
            let (first, last) = all[memory];
            if first == last {
                continue;
            }
            let at = dice.between(first + 1, last);
            let world = World::new(plan(seed, mix));
            world.power_off_at(memory, at);
            run(&world, operations);
            world.result().expect("the world goes on");
            let found = world.recover(&mut dice);
            found.unwrap_or_else(|cause| panic!("power fails at {at} of memory {memory}: {cause}"));
            seeds::explored(1);
        }
    });
}

#[test]
fn power_loss_loses_no_operation_of_any_client() {
    check("it shared::crash::power_loss_loses_no_operation_of_any_client", MIX);
}

#[test]
fn power_loss_while_names_change_loses_no_operation_of_any_client() {
    check("it shared::crash::power_loss_while_names_change_loses_no_operation_of_any_client", NAMES);
}
