//! Programs that die, and many connections, under the whole command. The service survives, a redis
//! beside them serves every other client correctly, and all resources are released.
//! `dataplane/service/tests/it/sockets_hostile.rs` has harder tests of the service alone.

use rustix::process::{Signal, kill_process};
use sietch_structures::XorShift64;

use crate::process::Process;
use crate::testbed::{self, Sides, Testbed};

fn both(needs: &[&str], load: fn(&Testbed)) {
    testbed::run(module_path!(), needs, Sides::BOTH, &[Sides::BOTH], load);
}

/// A redis, and a client that sends it requests all the time and checks every reply.
struct Bystander {
    server: Process,
    client: Process,
}

impl Bystander {
    fn start(testbed: &Testbed) -> Self {
        // The redis disconnects a client that never reads its replies, instead of buffering them
        // for ever.
        let limit = ["--client-output-buffer-limit", "normal 8mb 0 0"];
        let arguments = ["--port", "6379", "--bind", "127.0.0.1", "--save", "", "--loglevel", "warning"];
        let arguments = [&arguments[..], &limit].concat();
        let server = testbed.serve("redis-server", &arguments, 6379);
        let script = testbed.write("steady.py", include_str!("scripts/steady.py"));
        let client = testbed.start(testbed.client_command("python3", &[&script, "6379"]), "steady");
        let bystander = Self { server, client };
        bystander.assert_undisturbed(testbed);
        bystander
    }

    /// Rounds of the client so far, in hundreds.
    fn rounds(&self) -> usize {
        self.client.printed().lines().count()
    }

    /// Checks that a new client is served, and that the old one continues.
    fn assert_undisturbed(&self, testbed: &Testbed) {
        let before = self.rounds();
        testbed.wait_for("the bystander", || (self.rounds() > before).then_some(()));
        assert_eq!(testbed.client_output("redis-cli", &["-p", "6379", "ping"]).trim_end(), "PONG");
    }

    fn end(mut self) {
        self.server.must_run();
        self.client.signal(Signal::TERM);
        let printed = self.client.succeed().text();
        let last = printed.lines().last().expect("it prints the outcome");
        assert!(last.starts_with("all right"), "{last}");
        println!("the bystander: {last}");
    }
}

/// Listeners that the service allows one application; further ones are on the kernel.
const LISTENERS: usize = 1000;

/// Another program still gets a port if there is one, otherwise a proper error.
const LISTENS: &str = "
import errno, socket
try:
    listener = socket.create_server(('127.0.0.1', 0))
    client = socket.create_connection(listener.getsockname())
    client.send(b'x')
    assert listener.accept()[0].recv(1) == b'x'
except OSError as cause:
    assert cause.errno in (errno.EADDRINUSE, errno.EADDRNOTAVAIL), cause
";

/// Starts a hostile program that uses the bystander's server, and waits until it is active.
fn hostile(testbed: &Testbed, mode: &str, seed: usize) -> Process {
    let script = testbed.write("hostile.py", include_str!("scripts/hostile.py"));
    let words = [script.as_str(), mode, "6379", &seed.to_string()];
    let mut process = testbed.start(testbed.client_command("python3", &words), mode);
    testbed.wait_for("a hostile program", || {
        process.must_run();
        process.printed().contains("ready").then_some(())
    });
    process
}

/// Pages and tables that the service may keep for ended programs, in KiB: allocators return memory
/// when they like.
const KEPT: usize = 32 << 10;

/// The service's descriptors for the bystander alone.
fn returns(testbed: &Testbed) {
    // Its long-lived connection, and a short-lived one.
    testbed.wait_for("what the others had", || (testbed.connections() <= 2).then_some(()));
    // Three for each, and two for the listener.
    testbed
        .wait_for("the others' descriptors", || (testbed.service_descriptors() <= 3 * 2 + 2).then_some(()));
    assert_eq!(testbed.listeners(), ["127.0.0.1:6379"]);
}

#[test]
fn hostile_programs_and_full_queues_harm_no_other_program() {
    both(&["redis-server", "redis-cli", "python3"], |testbed| {
        let bystander = Bystander::start(testbed);
        let value = testbed.write("large", vec![b'x'; 100_000]);
        testbed.client_reading("redis-cli", &["-p", "6379", "-x", "set", "large"], value.as_ref());
        returns(testbed);
        let mut before = None;
        for seed in 0..testbed.size(3, 100) {
            let all = ["full", "scribble", "nonsense"].map(|mode| hostile(testbed, mode, seed));
            bystander.assert_undisturbed(testbed);
            // Stopped at an arbitrary point, with all queues as they are, and killed while stopped.
            all.iter().for_each(|one| one.signal(Signal::STOP));
            bystander.assert_undisturbed(testbed);
            all.iter().for_each(|one| one.signal(Signal::KILL));
            all.into_iter().for_each(|one| drop(one.finish()));
            bystander.assert_undisturbed(testbed);
            returns(testbed);
            // Later rounds need no more than the first round.
            let memory = testbed.service_memory();
            let first = *before.get_or_insert(memory);
            assert!(memory < first + KEPT, "{first} KiB, and after round {seed} {memory} KiB");
        }
        bystander.end();
    });
}

#[test]
fn a_program_that_exhausts_the_service_leaves_kernel_sockets_to_others_and_releases_everything() {
    both(&["redis-server", "redis-cli", "python3"], |testbed| {
        let bystander = Bystander::start(testbed);
        let wanted = testbed.size(3000, 40_000);
        if wanted > testbed.most_connections() {
            testbed.expect_full_service();
        }
        for _ in 0..testbed.size(1, 5) {
            let hog = hostile(testbed, "ports", wanted);
            let printed = hog.printed();
            println!("it has listeners, connections, and bound ports: {printed}");
            // The limit of an application, and the limit of the service; each of four binds as many
            // as its own descriptor limit allows.
            let most = 3 * testbed.most_connections();
            assert!(
                testbed.service_descriptors() >= (3 * wanted + 2 * LISTENERS).min(most) * 9 / 10,
                "{printed}"
            );
            bystander.assert_undisturbed(testbed);
            let listener = testbed.start(testbed.client_command("python3", &["-c", LISTENS]), "listens");
            listener.succeed();
            hog.signal(Signal::KILL);
            hog.finish();
            bystander.assert_undisturbed(testbed);
            returns(testbed);
        }
        bystander.end();
    });
}

#[test]
fn programs_killed_at_random_points_leave_nothing_behind() {
    both(&["redis-server", "redis-cli", "redis-benchmark"], |testbed| {
        let bystander = Bystander::start(testbed);
        let mut random = XorShift64::new(0x9e37_79b9_7f4a_7c15);
        for _ in 0..testbed.size(15, 1000) {
            let words = ["-p", "6379", "-c", "20", "-n", "10000000", "-q", "-t", "set"];
            let load = testbed.start(testbed.client_command("redis-benchmark", &words), "benchmark");
            // Between its first instruction and its full load.
            let wanted = (random.word() % 22) as usize;
            testbed.wait_for("a point", || (wanted == 0 || testbed.connections() >= wanted).then_some(()));
            load.signal(Signal::KILL);
            load.finish();
        }
        bystander.assert_undisturbed(testbed);
        returns(testbed);
        bystander.end();
    });
}

#[test]
fn the_peer_of_a_killed_program_sees_the_same_end_as_on_the_kernel() {
    both(&["python3"], |testbed| {
        let script = testbed.write("deaths.py", include_str!("scripts/deaths.py"));
        let of_kernel =
            testbed.start(testbed.kernel_command("python3", &[&script, "7000"]), "kernel").succeed().text();
        let of_sietch = testbed.client_output("python3", &[&script, "7000"]);
        assert_eq!(of_sietch, of_kernel);
        assert_eq!(of_kernel.lines().count(), 2 * 6 + 3, "{of_kernel}");
    });
}

#[test]
fn thousands_of_connections_between_two_programs() {
    both(&["python3"], |testbed| {
        let script = testbed.write("many.py", include_str!("scripts/many.py"));
        // If the service may have fewer descriptors than root gives it, as many as it can serve.
        let count = testbed.size(2000, 10_000).min(testbed.most_connections());
        let number = &count.to_string();
        let _server = testbed.serve("python3", &[&script, "serve", "7002", number], 7002);
        let mut command = testbed.client_command("python3", &[&script, "load", "7002", number]);
        command.stdin(std::process::Stdio::piped());
        let load = testbed.start(command, "load");
        testbed.wait_for("all of them", || load.printed().contains("all right").then_some(()));
        // Lists end at some thousands; each connection has three descriptors.
        assert!(testbed.service_descriptors() >= 3 * count, "all of them are ours");
        println!("{count} connections: the service has {} KiB in memory", testbed.service_memory());
        // The end of its standard input ends it.
        kill_process(load.pid(), Signal::KILL).expect("it waits");
        load.finish();
        testbed.wait_for("their ends", || (testbed.connections() == 0).then_some(()));
    });
}
