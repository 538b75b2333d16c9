//! nginx with a master and two workers that share a listener: small and large files (sendfile),
//! connections that stay, reload under load.

use std::path::Path;

use rustix::process::Signal;

use crate::combinations;
use crate::place::{Place, Sides, pattern, same};
use crate::process::{Process, children};

combinations!(load, needs ["nginx", "curl", "wrk"], in CI [Sides::BOTH, Sides::SERVER]);

/// Bytes of the large file.
const LARGE: usize = 100 << 20;

/// Connections of the load.
const CONNECTIONS: u32 = 40;

fn configuration(place: &Place) -> String {
    let folder = place.path("");
    format!(
        "user nobody nogroup; daemon off; master_process on; worker_processes 2; pid {folder}nginx.pid;\n\
         error_log {folder}error.log warn;\nevents {{ worker_connections 512; }}\n\
         http {{ access_log off; sendfile on; tcp_nopush on; keepalive_timeout 60; keepalive_requests 1000000;\n\
         client_body_temp_path {folder}body; proxy_temp_path {folder}proxy; fastcgi_temp_path {folder}fastcgi;\n\
         uwsgi_temp_path {folder}uwsgi; scgi_temp_path {folder}scgi;\n\
         server {{ listen 127.0.0.1:8080 backlog=1024; root {folder}www;\n\
         location /inner/ {{ alias {folder}www/; }}\n\
         location /through/ {{ proxy_pass http://127.0.0.1:8080/inner/; proxy_buffering on; }} }} }}\n"
    )
}

fn url(path: &str) -> String {
    format!("http://127.0.0.1:8080/{path}")
}

fn load(place: &Place) {
    place.write("www/small.txt", "small\n");
    let large = place.write("www/large.bin", pattern(LARGE));
    let file = place.write("nginx.conf", configuration(place));
    let server = place.serve("nginx", &["-c", &file, "-e", &place.path("error.log")], 8080);
    workers(place, &server, &[]);
    fetch(place, Path::new(&large));
    proxied(place, Path::new(&large));
    wrk(place, &server);
    server.signal(Signal::QUIT);
    server.succeed();
    let errors = std::fs::read_to_string(place.path("error.log")).unwrap();
    assert!(
        !errors.contains("[alert]") && !errors.contains("[crit]") && !errors.contains("[emerg]"),
        "{errors}"
    );
}

/// Waits for two workers, none of them one of `old`.
fn workers(place: &Place, server: &Process, old: &[i32]) -> Vec<i32> {
    place.wait_for("two new workers", || {
        let now = children(server.pid());
        (now.len() == 2 && now.iter().all(|pid| !old.contains(pid))).then_some(now)
    })
}

fn fetch(place: &Place, large: &Path) {
    let small = url("small.txt");
    let written =
        ["-sS", "--fail", "-w", "%{num_connects} %{http_code}\n", "-o", "1", &small, "-o", "2", &small];
    assert_eq!(place.ask("curl", &written), "1 200\n0 200\n", "a connection is used twice");
    assert_eq!(place.ask("curl", &["-sS", "-o", "3", "-w", "%{http_code}", &url("none")]), "404");
    for _ in 0..place.size(1, 10) {
        let code =
            place.ask("curl", &["-sS", "--fail", "-o", "large.out", "-w", "%{http_code}", &url("large.bin")]);
        assert_eq!(code, "200");
        same(large, &place.folder.join("large.out"));
    }
    // Parts, several at once, over connections of their own.
    let command = place.client_command(
        "curl",
        &[
            "-sS",
            "--fail",
            "-Z",
            "-r",
            "1000000-1999999",
            "-o",
            "part.1",
            &url("large.bin"),
            "-o",
            "part.2",
            &url("large.bin"),
        ],
    );
    place.start(command, "curl").succeed();
    let all = std::fs::read(large).unwrap();
    for part in ["part.1", "part.2"] {
        assert!(std::fs::read(place.path(part)).unwrap() == all[1_000_000..2_000_000], "{part}");
    }
    // One that goes away in the middle does not disturb the server.
    let stopped = place.start(
        place.client_command("curl", &["-sS", "--limit-rate", "1m", "-o", "stopped.out", &url("large.bin")]),
        "stopped",
    );
    place.wait_for("its first bytes", || {
        std::fs::metadata(place.path("stopped.out")).is_ok_and(|file| file.len() > 0).then_some(())
    });
    stopped.signal(Signal::KILL);
    let _ = stopped.finish();
}

/// A server that is its own client.
fn proxied(place: &Place, large: &Path) {
    let through = url("through/large.bin");
    place.client("curl", &["-sS", "--fail", "-o", "through.out", &through]);
    same(large, &place.folder.join("through.out"));
}

/// Load while the workers are replaced three times: every request is answered or its connection
/// closed, none refused and none forgotten.
fn wrk(place: &Place, server: &Process) {
    let (connections, seconds) = (CONNECTIONS.to_string(), place.size("2", "20"));
    let arguments = ["-t", "2", "-c", &connections, "-d", seconds, "--timeout", "10", &url("small.txt")];
    let running = place.start(place.client_command("wrk", &arguments), "wrk");
    let mut old = children(server.pid());
    for _ in 0..3 {
        server.signal(Signal::HUP);
        old = workers(place, server, &old);
    }
    let said = running.succeed().text();
    let requests = said.lines().find(|line| line.contains("requests in")).expect(&said);
    let requests: u64 = requests.split_whitespace().next().unwrap().parse().unwrap();
    assert!(requests > 100 && !said.contains("Non-2xx"), "{said}");
    if let Some(errors) = said.lines().find(|line| line.contains("Socket errors")) {
        let counts: Vec<u32> =
            errors.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect();
        // A worker that ends closes what waits for a next request, which may be on its way: on the
        // kernel too.
        let most = 2 * 3 * CONNECTIONS;
        assert!(matches!(counts[..], [0, read, write, 0] if read + write <= most), "{said}");
    }
    let quiet = place.ask("wrk", &["-t", "2", "-c", &connections, "-d", "1", &url("small.txt")]);
    assert!(
        quiet.contains("requests in") && !quiet.contains("errors") && !quiet.contains("Non-2xx"),
        "{quiet}"
    );
}
