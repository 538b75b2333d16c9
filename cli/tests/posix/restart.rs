//! The socket service is killed and started again. Every listener of every process is registered
//! again, without a connection to it. Established connections survive, and new ones use shared
//! memory.
//!
//! The bytes over the kernel while there is no service are counted with all others at the end. They
//! must be next to nothing.

use rustix::process::Signal;

use crate::process::{Process, children};
use crate::testbed::{self, Sides, Testbed, assert_same_files, pattern};

/// Both at once, and with an interval in which there is no service.
const GAPS: [bool; 3] = [false, true, true];

fn both(needs: &[&str], load: fn(&Testbed)) {
    testbed::run(module_path!(), needs, Sides::BOTH, &[Sides::BOTH], load);
}

/// Waits until exactly these listeners exist.
fn wait_for_listeners(testbed: &Testbed, wanted: &[&str]) {
    testbed.wait_for(&format!("{wanted:?}, not {:?}", testbed.listeners()), || {
        (testbed.listeners() == wanted).then_some(())
    });
}

#[test]
fn redis_has_both_its_listeners_again() {
    both(&["redis-server", "redis-cli"], |testbed| {
        let arguments = ["--port", "6379", "--bind", "0.0.0.0", "::", "--protected-mode", "no", "--save", ""];
        let mut server = testbed.serve("redis-server", &arguments, 6379);
        let all = ["0.0.0.0:6379", "[::]:6379"];
        wait_for_listeners(testbed, &all);
        let words = ["-p", "6379", "subscribe", "news"];
        let subscriber = testbed.start(testbed.client_command("redis-cli", &words), "subscribe");
        testbed.wait_for("a subscriber", || subscriber.printed().contains("subscribe").then_some(()));
        for (round, gap) in GAPS.into_iter().enumerate() {
            testbed.kill_service();
            if gap {
                // The listeners are on the kernel meanwhile.
                for host in ["127.0.0.1", "::1"] {
                    let command = testbed.kernel_command("redis-cli", &["-h", host, "-p", "6379", "ping"]);
                    assert_eq!(testbed.start(command, "ping").succeed().text().trim_end(), "PONG");
                }
            }
            testbed.start_service();
            wait_for_listeners(testbed, &all);
            let printed =
                testbed.client_output("redis-cli", &["-h", "::1", "-p", "6379", "publish", "news", "again"]);
            assert_eq!(printed.trim_end(), "1");
            testbed.wait_for("the news", || {
                (subscriber.printed().matches("again").count() == round + 1).then_some(())
            });
            server.must_run();
        }
        subscriber.signal(Signal::KILL);
    });
}

fn nginx(testbed: &Testbed) -> Process {
    testbed.write("www/small.txt", "small\n");
    testbed.write("www/large.bin", pattern(20 << 20));
    let folder = testbed.path("");
    // A port that the workers may not bind.
    let text = format!(
        "user nobody nogroup; daemon off; worker_processes 2; pid {folder}nginx.pid;\n\
         error_log {folder}error.log warn;\nevents {{ worker_connections 512; }}\n\
         http {{ access_log off; sendfile on; keepalive_timeout 600; keepalive_requests 1000000;\n\
         client_body_temp_path {folder}body; proxy_temp_path {folder}proxy; fastcgi_temp_path {folder}fastcgi;\n\
         uwsgi_temp_path {folder}uwsgi; scgi_temp_path {folder}scgi;\n\
         server {{ listen 127.0.0.1:80; listen [::1]:80; root {folder}www; }} }}\n"
    );
    let file = testbed.write("nginx.conf", text);
    testbed.serve("nginx", &["-c", &file, "-e", &testbed.path("error.log")], 80)
}

#[test]
fn workers_of_nginx_have_their_listeners_again_and_downloads_go_on() {
    both(&["nginx", "curl", "wrk"], |testbed| {
        let server = nginx(testbed);
        let workers = |old: &[i32]| {
            testbed.wait_for("two workers", || {
                let now = children(server.pid());
                (now.len() == 2 && now.iter().all(|pid| !old.contains(pid))).then_some(now)
            })
        };
        let mut now = workers(&[]);
        // One of each worker for each name; those of workers that a master has forked since belong
        // to the master.
        let all = ["127.0.0.1:80", "127.0.0.1:80", "[::1]:80", "[::1]:80"];
        let shared = ["127.0.0.1:80", "[::1]:80"];
        wait_for_listeners(testbed, &shared);
        for gap in GAPS {
            let large = "http://127.0.0.1/large.bin";
            let slow = ["-sS", "--fail", "--limit-rate", "10m", "-o", "large.out", large];
            let download = testbed.start(testbed.client_command("curl", &slow), "download");
            let load = ["-t", "2", "-c", "20", "-d", "2", "--timeout", "10", "http://127.0.0.1/small.txt"];
            let busy = testbed.start(testbed.client_command("wrk", &load), "wrk");
            let file = testbed.path("large.out");
            // A client that connects while there is no service uses the kernel.
            testbed.wait_for("the download and the load", || (testbed.connections() == 21).then_some(()));
            testbed.wait_for("its first bytes", || {
                std::fs::metadata(&file).is_ok_and(|file| file.len() > 0).then_some(())
            });
            testbed.kill_service();
            if gap {
                let command = testbed.kernel_command("curl", &["-sS", "--fail", "http://[::1]/small.txt"]);
                assert_eq!(testbed.start(command, "curl").succeed().text(), "small\n");
            }
            testbed.start_service();
            wait_for_listeners(testbed, &all);
            assert_eq!(
                testbed.client_output("curl", &["-sS", "--fail", "http://[::1]/small.txt"]),
                "small\n"
            );
            download.succeed();
            assert_same_files(testbed.path("www/large.bin").as_ref(), file.as_ref());
            std::fs::remove_file(&file).unwrap();
            let printed = busy.succeed().text();
            assert!(printed.contains("requests in") && !printed.contains("Socket errors"), "{printed}");
            // New workers have the listeners from the master, which has had no contact with the new
            // service.
            server.signal(Signal::HUP);
            now = workers(&now);
            wait_for_listeners(testbed, &shared);
            assert_eq!(
                testbed.client_output("curl", &["-sS", "--fail", "http://127.0.0.1/small.txt"]),
                "small\n"
            );
        }
        server.signal(Signal::QUIT);
        server.succeed();
        testbed.wait_for("the port", || testbed.listeners().is_empty().then_some(()));
        let errors = std::fs::read_to_string(testbed.path("error.log")).unwrap();
        assert!(!errors.contains("[alert]") && !errors.contains("[crit]"), "{errors}");
    });
}

#[test]
fn a_program_that_sleeps_in_accept_is_reached_again() {
    both(&["python3", "nc"], |testbed| {
        let script = testbed.write("echo.py", include_str!("scripts/echo.py"));
        let mut server = testbed.serve("python3", &[&script, "8004"], 8004);
        let word = testbed.write("word", "word");
        let query = || testbed.client_reading("nc", &["-N", "127.0.0.1", "8004"], word.as_ref()).text();
        assert_eq!(query(), "word");
        for gap in GAPS {
            testbed.kill_service();
            if gap {
                let mut command = testbed.kernel_command("nc", &["-N", "127.0.0.1", "8004"]);
                command.stdin(std::fs::File::open(&word).unwrap());
                assert_eq!(testbed.start(command, "nc").succeed().text(), "word");
            }
            testbed.start_service();
            wait_for_listeners(testbed, &["127.0.0.1:8004"]);
            assert_eq!(query(), "word");
            server.must_run();
        }
    });
}

#[test]
fn a_fork_keeps_the_connections_that_wait_at_a_listener_without_a_service() {
    both(&["python3"], |testbed| {
        let script = testbed.write("waiting.py", include_str!("scripts/waiting.py"));
        for (port, is_back) in [(8005_u16, false), (8006, true)] {
            let go = testbed.path(&format!("go.{port}"));
            let server = testbed.serve("python3", &[&script, &port.to_string(), &go], port);
            testbed.wait_for("connections", || server.printed().contains("waiting").then_some(()));
            testbed.kill_service();
            if is_back {
                testbed.start_service();
            }
            testbed.write(&format!("go.{port}"), "");
            testbed.wait_for("answers", || server.printed().contains("served").then_some(()));
            if is_back {
                wait_for_listeners(testbed, &[&format!("127.0.0.1:{port}")]);
            } else {
                testbed.start_service();
            }
            server.signal(Signal::KILL);
            server.finish();
        }
    });
}
