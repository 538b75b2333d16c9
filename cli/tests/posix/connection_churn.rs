//! Short-lived connections, many in series and in parallel: the service's descriptors are bounded
//! by the open connections, and are closed at once.

use rustix::process::{Pid, Signal, kill_process};

use crate::process::children;
use crate::testbed::{self, Sides, Testbed};

fn both(needs: &[&str], load: fn(&Testbed)) {
    testbed::run(module_path!(), needs, Sides::BOTH, &[Sides::BOTH], load);
}

/// Descriptors that the service may have during the load: three for each open connection, and for
/// each that ended in the last milliseconds, at tens of thousands a second.
const MOST: usize = 3 * 40 + 3 * 1000;

#[test]
fn a_connection_for_each_request() {
    both(&["nginx", "ab"], |testbed| {
        testbed.write("www/small.txt", "small\n");
        let folder = testbed.path("");
        let text = format!(
            "user nobody nogroup; daemon off; worker_processes 2; pid {folder}nginx.pid;\n\
             error_log {folder}error.log warn;\nevents {{ worker_connections 512; }}\n\
             http {{ access_log off; keepalive_timeout 0; client_body_temp_path {folder}body;\n\
             proxy_temp_path {folder}proxy; fastcgi_temp_path {folder}fastcgi;\n\
             uwsgi_temp_path {folder}uwsgi; scgi_temp_path {folder}scgi;\n\
             server {{ listen 127.0.0.1:8080 backlog=1024; root {folder}www; }} }}\n"
        );
        let file = testbed.write("nginx.conf", text);
        let server = testbed.serve("nginx", &["-c", &file, "-e", &testbed.path("error.log")], 8080);
        let requests = testbed.size("5000", "200000");
        let url = "http://127.0.0.1:8080/small.txt";
        let load =
            testbed.start(testbed.client_command("ab", &["-q", "-c", "40", "-n", requests, url]), "ab");
        let mut most = 0;
        let answered = || load.printed().contains("Complete requests");
        testbed.wait_for("the load", || {
            most = most.max(testbed.service_descriptors());
            answered().then_some(())
        });
        let printed = load.succeed().text();
        let number = |name: &str| {
            let line = printed.lines().find(|line| line.starts_with(name)).expect(&printed);
            line.split_whitespace().last().expect("a number").to_owned()
        };
        assert_eq!((number("Complete requests:"), number("Failed requests:")), (requests.into(), "0".into()));
        assert!(most < MOST, "{most} descriptors at once");
        // Only the listener: its pair, and the kernel's socket.
        testbed.wait_for("the descriptors", || (testbed.service_descriptors() <= 2).then_some(()));
        // Both sides are killed during the load: neither closes its connections cleanly, and
        // neither reacts to the other's end.
        let load =
            testbed.start(testbed.client_command("ab", &["-q", "-c", "40", "-n", "1000000", url]), "ab");
        testbed.wait_for("the second load", || (testbed.connections() > 10).then_some(()));
        let workers = children(server.pid()).into_iter().filter_map(Pid::from_raw);
        for pid in std::iter::once(load.pid()).chain(std::iter::once(server.pid())).chain(workers) {
            // Some have already ended with the death of others.
            let _ = kill_process(pid, Signal::KILL);
        }
        testbed.wait_for("all descriptors", || (testbed.service_descriptors() == 0).then_some(()));
    });
}
