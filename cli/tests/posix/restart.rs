//! The socket service is killed and started again: every listener of every process is there again
//! without anybody connecting to it, established connections live on, and new ones go by memory.
//!
//! What goes over the kernel while there is no service is counted with everything else at the end,
//! and is next to nothing.

use rustix::process::Signal;

use crate::place::{self, Place, Sides, pattern, same};
use crate::process::{Process, children};

/// Both at once, and with a time in between in which there is no service.
const GAPS: [bool; 3] = [false, true, true];

fn both(needs: &[&str], load: fn(&Place)) {
    place::run(module_path!(), needs, Sides::BOTH, &[Sides::BOTH], load);
}

/// Waits until there are these listeners, and no others.
fn back(place: &Place, wanted: &[&str]) {
    place.wait_for(&format!("{wanted:?}, not {:?}", place.listeners()), || {
        (place.listeners() == wanted).then_some(())
    });
}

#[test]
fn redis_has_both_its_listeners_again() {
    both(&["redis-server", "redis-cli"], |place| {
        let arguments = ["--port", "6379", "--bind", "0.0.0.0", "::", "--protected-mode", "no", "--save", ""];
        let mut server = place.serve("redis-server", &arguments, 6379);
        let all = ["0.0.0.0:6379", "[::]:6379"];
        back(place, &all);
        let words = ["-p", "6379", "subscribe", "news"];
        let subscriber = place.start(place.client_command("redis-cli", &words), "subscribe");
        place.wait_for("a subscriber", || subscriber.printed().contains("subscribe").then_some(()));
        for (round, gap) in GAPS.into_iter().enumerate() {
            place.kill_service();
            if gap {
                // The listeners are the kernel's meanwhile.
                for host in ["127.0.0.1", "::1"] {
                    let command = place.bystander("redis-cli", &["-h", host, "-p", "6379", "ping"]);
                    assert_eq!(place.start(command, "ping").succeed().text().trim_end(), "PONG");
                }
            }
            place.start_service();
            back(place, &all);
            let said = place.ask("redis-cli", &["-h", "::1", "-p", "6379", "publish", "news", "again"]);
            assert_eq!(said.trim_end(), "1");
            place.wait_for("the news", || {
                (subscriber.printed().matches("again").count() == round + 1).then_some(())
            });
            server.must_run();
        }
        subscriber.signal(Signal::KILL);
    });
}

fn nginx(place: &Place) -> Process {
    place.write("www/small.txt", "small\n");
    place.write("www/large.bin", pattern(20 << 20));
    let folder = place.path("");
    // A port that the workers may not bind.
    let text = format!(
        "user nobody nogroup; daemon off; worker_processes 2; pid {folder}nginx.pid;\n\
         error_log {folder}error.log warn;\nevents {{ worker_connections 512; }}\n\
         http {{ access_log off; sendfile on; keepalive_timeout 600; keepalive_requests 1000000;\n\
         client_body_temp_path {folder}body; proxy_temp_path {folder}proxy; fastcgi_temp_path {folder}fastcgi;\n\
         uwsgi_temp_path {folder}uwsgi; scgi_temp_path {folder}scgi;\n\
         server {{ listen 127.0.0.1:80; listen [::1]:80; root {folder}www; }} }}\n"
    );
    let file = place.write("nginx.conf", text);
    place.serve("nginx", &["-c", &file, "-e", &place.path("error.log")], 80)
}

#[test]
fn workers_of_nginx_have_their_listeners_again_and_downloads_go_on() {
    both(&["nginx", "curl", "wrk"], |place| {
        let server = nginx(place);
        let workers = |old: &[i32]| {
            place.wait_for("two workers", || {
                let now = children(server.pid());
                (now.len() == 2 && now.iter().all(|pid| !old.contains(pid))).then_some(now)
            })
        };
        let mut now = workers(&[]);
        // One of each worker for each name; those of workers that a master has forked since are the
        // master's.
        let all = ["127.0.0.1:80", "127.0.0.1:80", "[::1]:80", "[::1]:80"];
        let shared = ["127.0.0.1:80", "[::1]:80"];
        back(place, &shared);
        for gap in GAPS {
            let large = "http://127.0.0.1/large.bin";
            let slow = ["-sS", "--fail", "--limit-rate", "10m", "-o", "large.out", large];
            let download = place.start(place.client_command("curl", &slow), "download");
            let load = ["-t", "2", "-c", "20", "-d", "2", "--timeout", "10", "http://127.0.0.1/small.txt"];
            let busy = place.start(place.client_command("wrk", &load), "wrk");
            let file = place.path("large.out");
            // Who connects while there is no service goes to the kernel.
            place.wait_for("the download and the load", || (place.connections() == 21).then_some(()));
            place.wait_for("its first bytes", || {
                std::fs::metadata(&file).is_ok_and(|file| file.len() > 0).then_some(())
            });
            place.kill_service();
            if gap {
                let command = place.bystander("curl", &["-sS", "--fail", "http://[::1]/small.txt"]);
                assert_eq!(place.start(command, "curl").succeed().text(), "small\n");
            }
            place.start_service();
            back(place, &all);
            assert_eq!(place.ask("curl", &["-sS", "--fail", "http://[::1]/small.txt"]), "small\n");
            download.succeed();
            same(place.path("www/large.bin").as_ref(), file.as_ref());
            std::fs::remove_file(&file).unwrap();
            let said = busy.succeed().text();
            assert!(said.contains("requests in") && !said.contains("Socket errors"), "{said}");
            // New workers have the listeners from the master, who has never heard of the new
            // service.
            server.signal(Signal::HUP);
            now = workers(&now);
            back(place, &shared);
            assert_eq!(place.ask("curl", &["-sS", "--fail", "http://127.0.0.1/small.txt"]), "small\n");
        }
        server.signal(Signal::QUIT);
        server.succeed();
        place.wait_for("the port", || place.listeners().is_empty().then_some(()));
        let errors = std::fs::read_to_string(place.path("error.log")).unwrap();
        assert!(!errors.contains("[alert]") && !errors.contains("[crit]"), "{errors}");
    });
}

#[test]
fn a_program_that_sleeps_in_accept_is_found_again() {
    both(&["python3", "nc"], |place| {
        let script = place.write("echo.py", include_str!("scripts/echo.py"));
        let mut server = place.serve("python3", &[&script, "8004"], 8004);
        let word = place.write("word", "word");
        let ask = || place.feed("nc", &["-N", "127.0.0.1", "8004"], word.as_ref()).text();
        assert_eq!(ask(), "word");
        for gap in GAPS {
            place.kill_service();
            if gap {
                let mut command = place.bystander("nc", &["-N", "127.0.0.1", "8004"]);
                command.stdin(std::fs::File::open(&word).unwrap());
                assert_eq!(place.start(command, "nc").succeed().text(), "word");
            }
            place.start_service();
            back(place, &["127.0.0.1:8004"]);
            assert_eq!(ask(), "word");
            server.must_run();
        }
    });
}
