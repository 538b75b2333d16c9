//! Random programs of several clients: what each sees is what it would see if all operations were
//! made one after the other on the model.

use sietch_fs_oracle::program::generate::Mix;
use sietch_fs_oracle::program::operation::User;
use sietch_sim::seeds::{self, Budget};

use super::world::{Plan, World};

/// Runs `operations` of random clients.
fn run(world: &World, operations: usize, deaths: u32) {
    for _ in 0..operations {
        if world.has_stopped() {
            return;
        }
        let index = world.random.borrow_mut().index(world.slots.len());
        world.run_one(index);
        if world.chance(100) {
            world.service(|core| core.digest(world.client_of(index)).map(drop));
        }
        if world.chance(20) {
            world.compare(index);
        }
        if world.chance(deaths) {
            let index = world.random.borrow_mut().index(world.slots.len());
            world.die(index);
        }
    }
}

/// Seeds in which the lease of an inode went with the operation that kept the inode, before that
/// was counted.
const KEPT: &[u64] = &[942_085_259_945];

fn check(name: &str, mix: Mix, deaths: u32) {
    seeds::run(name, KEPT, Budget { seeds: 100, seconds: 5 }, |seed| {
        let clients = 2 + (seed % 3) as usize;
        let mut plan = Plan::new(clients, seed, mix);
        if seed % 5 == 0 {
            plan.most = 8 >> (seed % 3);
        }
        let world = World::new(plan);
        run(&world, 120, deaths);
        for index in 0..clients {
            world.compare(index);
        }
        seeds::explored(world.calls.get().0);
        if let Err(cause) = world.result().and_then(|()| world.finish()) {
            panic!("{cause}");
        }
    });
}

#[test]
fn random_programs_of_several_clients_behave_as_the_model() {
    check("it shared::programs::random_programs_of_several_clients_behave_as_the_model", Mix::ALL, 0);
}

#[test]
fn random_programs_of_names_of_several_clients_behave_as_the_model() {
    let name = "it shared::programs::random_programs_of_names_of_several_clients_behave_as_the_model";
    check(name, Mix::NAMES, 0);
}

#[test]
fn random_programs_of_data_of_several_clients_behave_as_the_model() {
    let name = "it shared::programs::random_programs_of_data_of_several_clients_behave_as_the_model";
    check(name, Mix::DATA, 0);
}

/// Users of the same client wait for leases at the same time, and some give up.
fn check_users(name: &str, mix: Mix) {
    seeds::run(name, &[], Budget { seeds: 100, seconds: 5 }, |seed| {
        let mut plan = Plan::new(2 + (seed % 2) as usize, seed, mix);
        plan.users = Some(1 + (seed % 4) as usize);
        if seed % 5 == 0 {
            plan.most = 8 >> (seed % 3);
        }
        let world = World::new(plan);
        run(&world, 150, 0);
        for index in 0..plan.clients {
            world.compare(index);
        }
        seeds::explored(world.calls.get().0);
        if let Err(cause) = world.result().and_then(|()| world.finish()) {
            panic!("{cause}");
        }
    });
}

#[test]
fn random_programs_of_several_users_of_each_client_behave_as_the_model() {
    let name = "it shared::programs::random_programs_of_several_users_of_each_client_behave_as_the_model";
    check_users(name, Mix::ALL);
}

#[test]
fn random_programs_of_names_of_several_users_of_each_client_behave_as_the_model() {
    let name =
        "it shared::programs::random_programs_of_names_of_several_users_of_each_client_behave_as_the_model";
    check_users(name, Mix::NAMES);
}

/// A client that had stopped answers what it was asked meanwhile: it may be about to be ended.
fn goes_on(world: &World, index: usize) {
    world.slots[index].is_silent.set(false);
    world.advance(index);
}

/// Processes that die at any store of their log, and some that stop for ever.
fn check_deaths(name: &str, mix: Mix) {
    seeds::run(name, &[], Budget { seeds: 100, seconds: 5 }, |seed| {
        let clients = 2 + (seed % 3) as usize;
        let mut plan = Plan::new(clients, seed, mix);
        plan.dies_alone = true;
        plan.times.answer = 20 * plan.times.hold;
        let world = World::new(plan);
        for _ in 0..150 {
            let index = world.random.borrow_mut().index(clients);
            let event = world.random.borrow_mut().below(30);
            match event {
                0 | 1 => {
                    let store = 1 + world.random.borrow_mut().below(20);
                    world.dies_at(index, store);
                }
                2 => world.slots[index].is_silent.set(true),
                _ => {}
            }
            world.run_one(index);
            let are_silent = world.slots.iter().all(|slot| slot.is_silent.get());
            for index in 0..clients {
                world.replace(index);
                if are_silent && world.core.borrow().is_served(World::number(index)) {
                    goes_on(&world, index);
                }
            }
        }
        for index in 0..clients {
            goes_on(&world, index);
        }
        for index in 0..clients {
            world.compare(index);
        }
        seeds::explored(world.calls.get().0);
        if let Err(cause) = world.result().and_then(|()| world.finish()) {
            panic!("{cause}");
        }
    });
}

#[test]
fn clients_that_die_in_an_operation_or_stop_harm_no_other() {
    let mix = Mix { users: &[User::Root], ..Mix::ALL };
    check_deaths("it shared::programs::clients_that_die_in_an_operation_or_stop_harm_no_other", mix);
}

/// Seeds in which a lease came to a client that had given up its request, after the inode was
/// removed: nothing freed the inode.
const LEFT: &[u64] = &[942_283_949_349];

/// Logs that are full after some operations: they wait for digests.
#[test]
fn random_programs_on_small_logs_behave_as_the_model() {
    let name = "it shared::programs::random_programs_on_small_logs_behave_as_the_model";
    seeds::run(name, LEFT, Budget { seeds: 100, seconds: 5 }, |seed| {
        let mix = Mix { has_huge_offsets: false, ..Mix::DATA };
        let plan = Plan::new(3, seed, mix);
        let world = World::new(Plan { pool: 4 << 20, log: 64 << 10, ..plan });
        run(&world, 200, 10);
        seeds::explored(world.calls.get().0);
        if let Err(cause) = world.result().and_then(|()| world.finish()) {
            panic!("{cause}");
        }
    });
}

#[test]
fn clients_that_die_lose_nothing_and_leave_nothing() {
    check("it shared::programs::clients_that_die_lose_nothing_and_leave_nothing", Mix::ALL, 40);
}
