//! nginx with a master and two workers that share a listener: small and large files (sendfile),
//! keep-alive connections, reload under load.

use std::path::Path;

use rustix::process::Signal;

use crate::combinations;
use crate::process::{Process, children};
use crate::testbed::{Sides, Testbed, assert_same_files, pattern};

combinations!(load, needs ["nginx", "curl", "wrk"], in CI [Sides::BOTH, Sides::SERVER]);

/// Bytes of the large file.
const LARGE: usize = 100 << 20;

/// Connections of the load.
const CONNECTIONS: u32 = 40;

fn configuration(testbed: &Testbed) -> String {
    let folder = testbed.path("");
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

fn load(testbed: &Testbed) {
    testbed.write("www/small.txt", "small\n");
    let large = testbed.write("www/large.bin", pattern(LARGE));
    let file = testbed.write("nginx.conf", configuration(testbed));
    let server = testbed.serve("nginx", &["-c", &file, "-e", &testbed.path("error.log")], 8080);
    workers(testbed, &server, &[]);
    fetch(testbed, Path::new(&large));
    proxied(testbed, Path::new(&large));
    wrk(testbed, &server);
    server.signal(Signal::QUIT);
    server.succeed();
    let errors = std::fs::read_to_string(testbed.path("error.log")).unwrap();
    assert!(
        !errors.contains("[alert]") && !errors.contains("[crit]") && !errors.contains("[emerg]"),
        "{errors}"
    );
}

/// Waits for two workers, none of them one of `old`.
fn workers(testbed: &Testbed, server: &Process, old: &[i32]) -> Vec<i32> {
    testbed.wait_for("two new workers", || {
        let now = children(server.pid());
        (now.len() == 2 && now.iter().all(|pid| !old.contains(pid))).then_some(now)
    })
}

fn fetch(testbed: &Testbed, large: &Path) {
    let small = url("small.txt");
    let written =
        ["-sS", "--fail", "-w", "%{num_connects} %{http_code}\n", "-o", "1", &small, "-o", "2", &small];
    assert_eq!(testbed.client_output("curl", &written), "1 200\n0 200\n", "a connection is used twice");
    assert_eq!(testbed.client_output("curl", &["-sS", "-o", "3", "-w", "%{http_code}", &url("none")]), "404");
    for _ in 0..testbed.size(1, 10) {
        let code = testbed.client_output(
            "curl",
            &["-sS", "--fail", "-o", "large.out", "-w", "%{http_code}", &url("large.bin")],
        );
        assert_eq!(code, "200");
        assert_same_files(large, &testbed.folder.join("large.out"));
    }
    // Ranges, several at once, over connections of their own.
    let command = testbed.client_command(
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
    testbed.start(command, "curl").succeed();
    let all = std::fs::read(large).unwrap();
    for part in ["part.1", "part.2"] {
        assert!(std::fs::read(testbed.path(part)).unwrap() == all[1_000_000..2_000_000], "{part}");
    }
    // A client that disconnects in the middle does not disturb the server.
    let stopped = testbed.start(
        testbed
            .client_command("curl", &["-sS", "--limit-rate", "1m", "-o", "stopped.out", &url("large.bin")]),
        "stopped",
    );
    testbed.wait_for("its first bytes", || {
        std::fs::metadata(testbed.path("stopped.out")).is_ok_and(|file| file.len() > 0).then_some(())
    });
    stopped.signal(Signal::KILL);
    let _ = stopped.finish();
}

/// A server that is its own client.
fn proxied(testbed: &Testbed, large: &Path) {
    let through = url("through/large.bin");
    testbed.client("curl", &["-sS", "--fail", "-o", "through.out", &through]);
    assert_same_files(large, &testbed.folder.join("through.out"));
}

/// Load while the workers are replaced three times: every request is answered or its connection
/// closed; none is refused, and none is left without an end.
fn wrk(testbed: &Testbed, server: &Process) {
    let (connections, seconds) = (CONNECTIONS.to_string(), testbed.size("2", "20"));
    let arguments = ["-t", "2", "-c", &connections, "-d", seconds, "--timeout", "10", &url("small.txt")];
    let running = testbed.start(testbed.client_command("wrk", &arguments), "wrk");
    let mut old = children(server.pid());
    for _ in 0..3 {
        server.signal(Signal::HUP);
        old = workers(testbed, server, &old);
    }
    let printed = running.succeed().text();
    let requests = printed.lines().find(|line| line.contains("requests in")).expect(&printed);
    let requests: u64 = requests.split_whitespace().next().unwrap().parse().unwrap();
    assert!(requests > 100 && !printed.contains("Non-2xx"), "{printed}");
    if let Some(errors) = printed.lines().find(|line| line.contains("Socket errors")) {
        let counts: Vec<u32> =
            errors.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect();
        // A worker that ends closes keep-alive connections, on which the next request may be in
        // flight: on the kernel too.
        let most = 2 * 3 * CONNECTIONS;
        assert!(matches!(counts[..], [0, read, write, 0] if read + write <= most), "{printed}");
    }
    let quiet = testbed.client_output("wrk", &["-t", "2", "-c", &connections, "-d", "1", &url("small.txt")]);
    assert!(
        quiet.contains("requests in") && !quiet.contains("errors") && !quiet.contains("Non-2xx"),
        "{quiet}"
    );
}
