//! Clients under `sietch run` reach the store of `sietch up` through memory, and all others through
//! the kernel or the VNIC. The script `scripts/memory.py` is the client, and states its path.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::process::Signal;

use crate::client::{Client, Reply};
use crate::testbed::{Testbed, Up, has, in_own_network, signal, text, ticks, wait_for};

/// A program of a test, and its output. Dropping this ends it.
struct Program {
    child: Child,
    printed: BufReader<ChildStdout>,
}

impl Program {
    /// The script, under `sietch run` or not.
    fn start(testbed: &Testbed, sietch: bool, words: &[&str]) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/acceptance/scripts/memory.py");
        let (port, path) = (testbed.port.to_string(), if sietch { "memory" } else { "kernel" });
        let mut command = if sietch { run(testbed, &["python3"]) } else { Command::new("python3") };
        command.args([script, &port, words[0], path]).args(&words[1..]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start a client");
        let printed = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, printed }
    }

    /// Its next line; empty at the end.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.printed.read_line(&mut line).expect("it speaks UTF-8");
        line.trim().to_owned()
    }

    /// Has it continue.
    fn go_on(&mut self) {
        self.child.stdin.take().expect("a pipe").write_all(b"\n").expect("it runs");
    }

    /// The rest of its output, once it has ended well.
    fn all(mut self) -> String {
        let mut printed = String::new();
        self.printed.read_to_string(&mut printed).expect("it speaks UTF-8");
        assert!(self.child.wait().expect("it ends").success(), "{printed}");
        printed
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A program under `sietch run`, with the library that was built for this test.
fn run(testbed: &Testbed, program: &[&str]) -> Command {
    let library = Path::new(env!("CARGO_BIN_EXE_sietch")).with_file_name("deps").join("libsietch_posix.so");
    let mut command = testbed.sietch(&[&["run", "--always", "--"], program].concat());
    command.env("SIETCH_PRELOAD", library);
    command
}

/// Starts `sietch up`, and waits until the service has the store's listener.
fn up(testbed: &Testbed, more: &[&str]) -> Up {
    let up = testbed.up(&[&["--durability", "none"], more].concat());
    registered(testbed);
    up
}

fn registered(testbed: &Testbed) {
    wait_for("the store's listener", || {
        let listeners = sockets(testbed)?["listeners"].as_array()?.clone();
        listeners.iter().any(|one| one["name"] == testbed.kernel().to_string()).then_some(())
    });
}

fn sockets(testbed: &Testbed) -> Option<serde_json::Value> {
    serde_json::from_slice(&testbed.run(&["sockets", "--json"]).stdout).ok()
}

fn stat(testbed: &Testbed, name: &str) -> u64 {
    let stat: serde_json::Value =
        serde_json::from_slice(&testbed.run(&["stat", "--json"]).stdout).expect("JSON");
    let groups = stat["groups"].as_array().expect("groups");
    let found = groups.iter().find_map(|group| group["values"][name].as_u64());
    found.unwrap_or_else(|| panic!("{name} is not in {stat}"))
}

/// Runs a test with a store on loopback.
fn test(name: &'static str, test: fn(&Testbed)) {
    if has(name, "python3") {
        in_own_network(name, move || {
            // The name is part of the paths of sockets, which are short.
            let testbed = Testbed::new("memory");
            test(&testbed);
        });
    }
}

#[test]
fn unmodified_clients_come_through_memory() {
    test("unmodified_clients_come_through_memory", |testbed| {
        if !has("unmodified_clients_come_through_memory", "redis-cli") {
            return;
        }
        let up = up(testbed, &["--net", "linux"]);
        let port = testbed.port.to_string();
        let list = ["-p", &port, "client", "list"];
        let shown = |mut command: Command| text(&command.output().expect("start redis-cli").stdout);
        let inside = shown(run(testbed, &[&["redis-cli"][..], &list].concat()));
        assert!(inside.contains("path=memory") && !inside.contains("path=kernel"), "{inside}");
        let outside = shown({
            let mut command = Command::new("redis-cli");
            command.args(list);
            command
        });
        assert!(outside.contains("path=kernel") && !outside.contains("path=memory"), "{outside}");

        // Both kinds at the same time, as each command shows them.
        let mut clients = [true, true, false].map(|sietch| Program::start(testbed, sietch, &["hold"]));
        clients.iter_mut().for_each(|client| assert_eq!(client.line(), "held"));
        wait_for("the counters", || (stat(testbed, "memory_clients") == 2).then_some(()));
        assert_eq!((stat(testbed, "kernel_clients"), stat(testbed, "memory_listeners")), (1, 1));
        let connections = sockets(testbed).expect("the service answers")["connections"].clone();
        let to_the_store = |one: &&serde_json::Value| one["peer"] == testbed.kernel().to_string();
        assert_eq!(connections.as_array().expect("a list").iter().filter(to_the_store).count(), 2);
        drop(clients);
        wait_for("their ends", || (stat(testbed, "memory_clients") == 0).then_some(()));
        up.stop();
    });
}

#[test]
fn memory_serves_what_kernel_sockets_serve() {
    test("memory_serves_what_kernel_sockets_serve", |testbed| {
        let several = &["--net", "linux", "--shards", "3"][..];
        for options in [&["--net", "linux"][..], &["--net", "linux", "--without-io-uring"], several] {
            let up = up(testbed, options);
            let all = "addresses\npipelines\nlarge_values\nsessions\nends\nlimits\n";
            for sietch in [true, false] {
                assert_eq!(Program::start(testbed, sietch, &["features"]).all(), all);
            }
            up.stop();
        }
    });
}

#[test]
fn two_thousand_clients_through_memory() {
    test("two_thousand_clients_through_memory", |testbed| {
        let up = up(testbed, &["--net", "linux"]);
        assert_eq!(Program::start(testbed, true, &["many", "2000"]).all(), "all right\n");
        wait_for("their ends", || (stat(testbed, "memory_clients") == 0).then_some(()));
        up.stop();
    });
}

#[test]
fn clients_outlive_the_socket_service() {
    test("clients_outlive_the_socket_service", |testbed| {
        let up = up(testbed, &["--net", "linux"]);
        let mut steady = [true, false].map(|sietch| Program::start(testbed, sietch, &["steady"]));
        steady.iter_mut().for_each(|client| assert_eq!(client.line(), "steady"));
        for _ in 0..3 {
            let core = testbed.status()["daemon"]["service"].as_i64().expect("a service core");
            // A stopped service keeps no client of the kernel waiting.
            signal(core, Signal::STOP);
            let mut client = Client::connect(testbed.kernel()).expect("the store accepts");
            assert_eq!(client.request("PING").expect("an answer"), Reply::Simple(b"PONG".to_vec()));
            signal(core, Signal::KILL);
            assert!(crate::client::answers(testbed.kernel()));
            wait_for("another service core", || {
                let now = testbed.try_status()?["daemon"]["service"].as_i64()?;
                (now != core).then_some(())
            });
            registered(testbed);
            assert_eq!(Program::start(testbed, true, &["hold"]).line(), "held");
        }
        for mut client in steady {
            client.go_on();
            assert!(client.all().contains("all right"));
        }
        up.stop();
    });
}

#[test]
fn a_revoked_store_goes_on_serving_clients_of_the_kernel() {
    test("a_revoked_store_goes_on_serving_clients_of_the_kernel", |testbed| {
        for options in [&["--net", "linux"][..], &["--net", "linux", "--without-io-uring"]] {
            let up = up(testbed, options);
            let mut memory = Program::start(testbed, true, &["hold"]);
            let mut kernel = Program::start(testbed, false, &["steady"]);
            assert_eq!((memory.line(), kernel.line()), ("held".into(), "steady".into()));
            let listing = sockets(testbed).expect("the service answers");
            let name = testbed.kernel().to_string();
            let listeners = listing["listeners"].as_array().expect("a list");
            let listener = listeners.iter().find(|one| one["name"] == name).expect("the store's");
            let revoked = testbed.run(&["revoke", listener["application"].as_str().expect("a number")]);
            assert!(text(&revoked.stdout).contains("1 listeners closed, 1 connections reset"), "{revoked:?}");
            memory.go_on();
            assert_eq!(memory.line(), "reset");
            // New clients come through the kernel, under `sietch run` too.
            wait_for("the new listener", || crate::client::answers(testbed.kernel()).then_some(()));
            wait_for("the counters", || (stat(testbed, "memory_listeners") == 0).then_some(()));
            let port = testbed.port.to_string();
            let list = run(testbed, &["redis-cli", "-p", &port, "client", "list"]).output();
            let list = text(&list.expect("start redis-cli").stdout);
            assert!(list.contains("path=kernel") && !list.contains("path=memory"), "{list}");
            kernel.go_on();
            assert!(kernel.all().contains("all right"));
            up.stop();
        }
    });
}

#[test]
fn a_revoked_store_without_descriptors_is_reachable_once_it_has_some() {
    test("a_revoked_store_without_descriptors_is_reachable_once_it_has_some", |testbed| {
        let up = up(testbed, &["--net", "linux"]);
        let store = testbed.pids()[2];
        let about = std::fs::metadata(format!("/proc/{store}")).expect("it runs");
        // Only the store's own user may change its limit.
        let limit = |descriptors: u64| {
            let (user, group) = (format!("--reuid={}", about.uid()), format!("--regid={}", about.gid()));
            let (limit, pid) = (format!("--nofile={descriptors}:"), format!("--pid={store}"));
            let words = [&user, &group, "--clear-groups", "prlimit", &limit, &pid];
            assert!(Command::new("setpriv").args(words).status().expect("util-linux").success());
        };
        let listing = sockets(testbed).expect("the service answers");
        let name = testbed.kernel().to_string();
        let listeners = listing["listeners"].as_array().expect("a list");
        let listener = listeners.iter().find(|one| one["name"] == name).expect("the store's");
        limit(3);
        let application = listener["application"].as_str().expect("a number");
        assert!(testbed.run(&["revoke", application]).status.success());
        let refused = || testbed.log("kv.log").contains("is not served").then_some(());
        wait_for("the first attempt", refused);
        assert!(!crate::client::answers(testbed.kernel()));
        limit(1024);
        wait_for("the next attempt", || crate::client::answers(testbed.kernel()).then_some(()));
        up.stop();
    });
}

#[test]
fn garbage_in_shared_memory_ends_its_own_connection_alone() {
    test("garbage_in_shared_memory_ends_its_own_connection_alone", |testbed| {
        let up = up(testbed, &["--net", "linux"]);
        let store = testbed.pids()[2];
        let mut steady = [true, false].map(|sietch| Program::start(testbed, sietch, &["steady"]));
        steady.iter_mut().for_each(|client| assert_eq!(client.line(), "steady"));
        let rounds = crate::number("SIETCH_KILLS", 60).to_string();
        assert_eq!(Program::start(testbed, true, &["scribble", &rounds]).all(), "scribbled\n");
        for mut client in steady {
            client.go_on();
            assert!(client.all().contains("all right"));
        }
        wait_for("all ends", || (stat(testbed, "clients") == 0).then_some(()));
        assert_eq!(testbed.pids()[2], store, "the store was not restarted");
        up.stop();
    });
}

#[test]
fn a_store_with_silent_clients_in_memory_is_idle() {
    test("a_store_with_silent_clients_in_memory_is_idle", |testbed| {
        let up = up(testbed, &["--net", "linux"]);
        assert_eq!(Program::start(testbed, true, &["many", "50"]).all(), "all right\n");
        let mut silent = [true, true, false].map(|sietch| Program::start(testbed, sietch, &["hold"]));
        silent.iter_mut().for_each(|client| assert_eq!(client.line(), "held"));
        let seconds = crate::number("SIETCH_IDLE_SECONDS", 6);
        let store = testbed.pids()[2];
        let before = ticks(store);
        std::thread::sleep(std::time::Duration::from_secs(seconds));
        let used = ticks(store) - before;
        let all = seconds * rustix::param::clock_ticks_per_second();
        assert!(used <= 1.max(all / 100), "{used} of {all} clock ticks of one core");
        // They are served still.
        silent[0].go_on();
        assert_eq!(silent[0].line(), "answered");
        drop(silent);
        up.stop();
    });
}

#[test]
fn shutdown_answers_and_ends_clients_in_memory() {
    test("shutdown_answers_and_ends_clients_in_memory", |testbed| {
        let up = testbed.up(&["--net", "linux"]);
        registered(testbed);
        let mut held = Program::start(testbed, true, &["hold"]);
        assert_eq!(held.line(), "held");
        let (port, store) = (testbed.port.to_string(), testbed.pids()[2]);
        let ended = run(testbed, &["redis-cli", "-p", &port, "shutdown"]).output().expect("start redis-cli");
        assert!(ended.status.success(), "{ended:?}");
        held.go_on();
        assert_eq!(held.line(), "reset");
        // `sietch up` starts it again, with the durable write, and the port is free for it.
        wait_for("another store", || {
            let pid = testbed.try_status()?["instance"]["store"].as_i64()?;
            (pid != store && crate::client::answers(testbed.kernel())).then_some(())
        });
        registered(testbed);
        let found = Client::connect(testbed.kernel()).and_then(|mut client| client.request("GET held"));
        assert_eq!(found.expect("an answer").number(), 1);
        assert_eq!(Program::start(testbed, true, &["hold"]).line(), "held");
        up.stop();
    });
}
