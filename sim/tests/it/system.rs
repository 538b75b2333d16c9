//! The whole store over a whole network. Engine, link, loop, log and disk are simulated around the
//! code that runs in production.
//!
//! 1. Clients get the right answers, byte by byte, whatever the link does.
//! 2. The server loses power or its process, again and again. Clients reconnect and find everything
//!    that was acknowledged.
//! 3. Clients that misbehave get an answer, have bounded cost, and disturb no other client.
//! 4. When all clients have left, nothing of them remains.

mod service;

use service::client::{Client, Role};
use service::{Down, SECOND, World};
use sietch_sim::seeds::{self, Budget};
use sietch_sim::{LinkConfig, Random};

/// The time at which links become good and the server stops failing.
const QUIET_AT: u64 = 40 * SECOND;
/// The time after it within which all work must be done.
const PATIENCE: u64 = 1500 * SECOND;

fn faults(random: &mut Random) -> LinkConfig {
    let mut link = LinkConfig::swarm(random);
    // Bounded round trips: a seed must finish in its time.
    for path in [&mut link.there, &mut link.back] {
        path.delay = path.delay.min(5_000_000);
        path.jitter = path.jitter.min(5_000_000);
        path.hold = path.hold.min(20_000_000);
    }
    link
}

fn whole_system(seed: u64, crashes: u64) -> u64 {
    let mut random = Random::new(seed);
    let faults = faults(&mut random);
    let clients = (0..random.between(1, 8) as usize)
        .map(|number| {
            let commands = random.between(20, 150) as u32;
            let role = match random.below(10) {
                0 => Role::Malformed,
                1 => Role::HalfCloser,
                2 => Role::SlowReader,
                3 => Role::Abandoner,
                _ => Role::Worker { commands },
            };
            Client::new(number, role, SECOND + random.below(10 * SECOND))
        })
        .collect();
    let mut world = World::new(faults, clients, random);
    for _ in 0..crashes {
        let until = world.now + world.random.below(QUIET_AT / (crashes + 1));
        world.run(until, |_| false);
        let how = *world.random.pick(&[Down::Power, Down::Killed]);
        if world.random.chance(300) {
            // The disk dies a little before the server does.
            let soon = world.media.boundaries() + world.random.between(1, 10);
            world.media.power_off_at(soon);
            let until = world.now + world.random.below(SECOND);
            world.run(until, |_| false);
            world.stop(Down::Power);
        } else {
            world.stop(how);
        }
        let until = world.now + world.random.below(2 * SECOND);
        world.run(until, |_| false);
        world.start();
    }
    world.run(QUIET_AT, |_| false);
    world.link.heal();
    finish(&mut world);
    if crashes > 0 {
        // Once more without writers: everything is acknowledged, so everything must be there.
        world.stop(Down::Power);
        world.start();
        for client in &mut world.clients {
            client.come_back(&mut world.engine, world.now);
        }
        finish(&mut world);
    }
    part(&mut world);
    world.trace
}

fn finish(world: &mut World) {
    let until = world.now + PATIENCE;
    let done = world.run(until, |world| world.clients.iter().all(Client::is_done));
    assert!(done, "not done: {:#?}", world.describe());
}

/// All clients leave, and nothing remains.
fn part(world: &mut World) {
    for client in &mut world.clients {
        client.leave(&mut world.engine);
    }
    let until = world.now + PATIENCE;
    let is_empty = |world: &World| {
        world.engine.population() == (0, 0, 0, 0)
            && world.server.as_ref().is_some_and(|server| {
                let engine = server.vnic().map(|vnic| vnic.engine().population());
                server.shard().is_some_and(|shard| shard.clients() == 0) && engine == Some((0, 0, 0, 0))
            })
    };
    let empty = world.run(until, is_empty);
    let left = world.server.as_ref().map(|server| {
        (server.shard().map(|shard| shard.clients()), server.vnic().map(|vnic| vnic.engine().population()))
    });
    assert!(empty, "left behind: {left:?}, {:?}", world.engine.population());
}

#[test]
fn a_bad_link_changes_no_answer() {
    seeds::run("it system::a_bad_link", &[259_394_525_935], Budget { seeds: 2000, seconds: 12 }, |seed| {
        whole_system(seed, 0);
    });
}

#[test]
fn answered_commands_survive_crashes() {
    seeds::run(
        "it system::what_was_answered",
        &[259_394_543_178],
        Budget { seeds: 2000, seconds: 18 },
        |seed| {
            whole_system(seed, 1 + seed % 4);
        },
    );
}

#[test]
fn a_seed_is_a_history() {
    for seed in 1..4 {
        assert_eq!(whole_system(seed, 2), whole_system(seed, 2), "seed {seed} had two histories");
    }
}
