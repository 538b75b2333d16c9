//! A program that links Sietch serves unmodified programs: the example `stream_rpc_server`, with
//! clients under `sietch run`, clients of the kernel, and clients that link Sietch.
//!
//! The server is this test program, started again for one test ([`server_process`]).

use std::net::SocketAddr;
use std::process::Command;

use rustix::process::Signal;
use sietch::Runtime;

use crate::process::Process;
use crate::testbed::{self, Sides, Testbed};

#[path = "../../../api/sietch/examples/stream_rpc_server.rs"]
mod stream_rpc_server;

/// Names the address that [`server_process`] serves.
const SERVE: &str = "SIETCH_TEST_SERVE";
/// Names the address to which [`client_process`] connects.
const CONNECT: &str = "SIETCH_TEST_CONNECT";

const ADDRESS: &str = "127.0.0.1:7000";
const LISTENER: [&str; 1] = [ADDRESS];

fn address(variable: &str) -> Option<SocketAddr> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap())
}

#[test]
#[ignore = "a server for the tests of this file, which start it"]
fn server_process() {
    let Some(address) = address(SERVE) else { return };
    let runtime = Runtime::without_device().unwrap();
    let served = runtime.run(async move |net| {
        // Until it is revoked. Its connections stay open here: they are to be reset, not closed.
        let ended = stream_rpc_server::serve(net, address).await;
        println!("ended: {}", ended.unwrap_err());
        std::future::pending::<()>().await;
    });
    served.unwrap();
}

#[test]
#[ignore = "a client for the tests of this file, which start it"]
fn client_process() {
    let Some(address) = address(CONNECT) else { return };
    let calls = async move |net: sietch::Net| {
        let streams = net.streams(sietch::socket_service()?)?;
        let mut stream = streams.connect(address).await?;
        let mut sent = 0;
        // More than the first region of a ring holds, so that both sides change it.
        for length in (0..20_000).step_by(371) {
            let call = format!("echo {}\n", "x".repeat(length));
            stream.write_all(call.as_bytes()).await?;
            let mut answer = vec![0; length + 1];
            stream.read_exact(&mut answer).await?;
            assert!(answer[..length].iter().all(|byte| *byte == b'x') && answer[length] == b'\n');
            sent += call.len();
        }
        stream.write_all(b"path\n").await?;
        let mut path = [0; 7];
        stream.read_exact(&mut path).await?;
        stream.shutdown().await?;
        assert_eq!(stream.read(&mut [0; 10]).await?, 0, "the server has closed too");
        std::io::Result::Ok((sent, path))
    };
    let (sent, path) = Runtime::without_device().unwrap().run(calls).unwrap().unwrap();
    println!("{sent} {}", String::from_utf8_lossy(&path));
}

/// This program as another process, with one of its tests as the main function.
fn again(testbed: &Testbed, test: &str, variable: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([&format!("streams::{test}"), "--exact", "--ignored", "--nocapture"]);
    command.env(variable, ADDRESS).env("SIETCH_SOCKETS", testbed.path("run/sockets.sock"));
    command.current_dir(&testbed.folder);
    command
}

/// Starts the server, and waits until the service has its listener.
fn serve(testbed: &Testbed) -> Process {
    let mut server = testbed.start(again(testbed, "server_process", SERVE), "server");
    testbed.listening(&mut server, 7000);
    registered(testbed);
    server
}

fn registered(testbed: &Testbed) {
    testbed.wait_for("the listener", || (testbed.listeners() == LISTENER).then_some(()));
}

fn run(load: fn(&Testbed)) {
    testbed::run(module_path!(), &["python3"], Sides::BOTH, &[Sides::BOTH], load);
}

/// The answers to calls of one client, under Sietch or not.
fn ask(testbed: &Testbed, sietch: bool, calls: &[&str]) -> Vec<String> {
    let script = testbed.write("rpc.py", include_str!("scripts/rpc.py"));
    let arguments = [&[script.as_str(), "7000", "ask"], calls].concat();
    let command = if sietch {
        testbed.client_command("python3", &arguments)
    } else {
        testbed.kernel_command("python3", &arguments)
    };
    testbed.start(command, "ask").succeed().text().lines().map(str::to_owned).collect()
}

#[test]
fn clients_under_sietch_come_through_memory_and_others_through_the_kernel() {
    run(|testbed| {
        let _server = serve(testbed);
        let calls = ["echo one two", "add 1 2 -5", "path", "add x", "nothing"];
        let answers = |path: &str| {
            ["one two", "-2", path, "error: not a number", "error: no such call"].map(str::to_owned)
        };
        assert_eq!(ask(testbed, true, &calls), answers("memory"));
        assert_eq!(ask(testbed, false, &calls), answers("kernel"));
        let linked = testbed.start(again(testbed, "client_process", CONNECT), "linked").succeed().text();
        assert!(linked.contains(" memory"), "{linked}");
        testbed.wait_for("the service to see the ends", || (testbed.connections() == 0).then_some(()));
    });
}

#[test]
fn an_idle_server_sleeps_and_wakes_for_either_kind_of_client() {
    run(|testbed| {
        let server = serve(testbed);
        let script = testbed.write("rpc.py", include_str!("scripts/rpc.py"));
        let held = |command| testbed.start(command, "hold");
        let clients = [
            held(testbed.client_command("python3", &[&script, "7000", "hold"])),
            held(testbed.kernel_command("python3", &[&script, "7000", "hold"])),
        ];
        for client in &clients {
            testbed.wait_for("a client", || client.printed().contains("held").then_some(()));
        }
        // With two open connections and nothing to do no thread of it runs.
        let switches = || -> u64 {
            let tasks = std::fs::read_dir(format!("/proc/{}/task", server.pid().as_raw_nonzero())).unwrap();
            let count = |task: std::path::PathBuf| {
                let status = std::fs::read_to_string(task.join("status")).unwrap_or_default();
                let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
                line.and_then(|count| count.trim().parse::<u64>().ok()).unwrap_or(0)
            };
            tasks.flatten().map(|task| count(task.path())).sum()
        };
        testbed.wait_for("a server that sleeps", || {
            let before = switches();
            std::thread::sleep(std::time::Duration::from_millis(300));
            (switches() == before).then_some(())
        });
        for client in &clients {
            client.signal(Signal::USR1);
        }
        for client in clients {
            let finished = client.succeed();
            assert!(finished.text().contains("answered"), "{}", finished.text());
        }
    });
}

#[test]
fn a_killed_client_is_an_end_and_its_connection_is_closed() {
    run(|testbed| {
        let _server = serve(testbed);
        let script = testbed.write("rpc.py", include_str!("scripts/rpc.py"));
        for sietch in [true, false] {
            let arguments = [script.as_str(), "7000", "hold"];
            let client = testbed.start(
                if sietch {
                    testbed.client_command("python3", &arguments)
                } else {
                    testbed.kernel_command("python3", &arguments)
                },
                "killed",
            );
            testbed.wait_for("a client", || client.printed().contains("held").then_some(()));
            assert_eq!(ask(testbed, true, &["open"]), ["2"]);
            client.signal(Signal::KILL);
            client.finish();
            testbed
                .wait_for("one connection less", || (ask(testbed, true, &["open"]) == ["1"]).then_some(()));
        }
    });
}

#[test]
fn a_listener_outlives_the_service() {
    run(|testbed| {
        let _server = serve(testbed);
        let script = testbed.write("rpc.py", include_str!("scripts/rpc.py"));
        let held = testbed.start(testbed.client_command("python3", &[&script, "7000", "hold"]), "hold");
        testbed.wait_for("a client", || held.printed().contains("held").then_some(()));
        for _ in 0..3 {
            testbed.kill_service();
            // Without a service every client is the kernel's, and does not wait for one.
            assert_eq!(ask(testbed, false, &["path", "echo still here"]), ["kernel", "still here"]);
            testbed.start_service();
            registered(testbed);
            assert_eq!(ask(testbed, true, &["path"]), ["memory"]);
        }
        // The connection from before has not noticed.
        held.signal(Signal::USR1);
        assert!(held.succeed().text().contains("answered"));
    });
}

#[test]
fn a_revoked_server_loses_its_connections_and_its_listener() {
    run(|testbed| {
        let server = serve(testbed);
        let script = testbed.write("rpc.py", include_str!("scripts/rpc.py"));
        let client =
            testbed.start(testbed.client_command("python3", &[&script, "7000", "until-reset"]), "reset");
        testbed.wait_for("a client", || client.printed().contains("held").then_some(()));
        let sockets = testbed.sockets();
        let listener = &sockets["listeners"].as_array().expect("a list")[0];
        let application = listener["application"].as_str().expect("a number").to_owned();
        testbed.revoke(&application);
        assert!(client.succeed().text().contains("reset"));
        testbed
            .wait_for("the end of the listener", || server.printed().contains("was revoked").then_some(()));
    });
}

#[test]
fn any_sizes_and_any_ends_leave_no_connection_and_no_wrong_byte() {
    run(|testbed| {
        let server = serve(testbed);
        let script = testbed.write("rpc.py", include_str!("scripts/rpc.py"));
        let rounds = testbed.size("60", "3000");
        let clients: Vec<_> = ["1", "2", "3"]
            .map(|seed| {
                let arguments = [script.as_str(), "7000", "torture", seed, rounds];
                testbed.start(testbed.client_command("python3", &arguments), "torture")
            })
            .into_iter()
            .collect();
        for client in clients {
            client.succeed();
        }
        testbed.wait_for("all ends", || (ask(testbed, true, &["open"]) == ["1"]).then_some(()));
        testbed.wait_for("the service to see the ends", || (testbed.connections() == 0).then_some(()));
        let descriptors = std::fs::read_dir(format!("/proc/{}/fd", server.pid().as_raw_nonzero())).unwrap();
        let left = descriptors.count();
        assert!(left < 40, "{left} descriptors are open in the server");
    });
}
