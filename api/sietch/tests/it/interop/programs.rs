//! Programs that people use, unmodified: nc, curl, iperf3, and Python for the options that few use.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;

use super::kernel::connect;
use super::meeting::{Conditions, Family, PATIENCE, meet};
use super::pattern::Pattern;
use super::services::{self, LARGE_FILE};

/// Whether `program` is installed; reports that `test` is skipped if not.
fn has(test: &str, program: &str) -> bool {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).is_file()));
    if !found {
        eprintln!("SKIPPED {test}: needs {program}");
    }
    found
}

/// A program that is killed when it takes too long.
fn program(line: &str) -> Command {
    let mut command = Command::new("timeout");
    command.arg(PATIENCE.as_secs().to_string()).args(line.split_whitespace()).stdin(Stdio::null());
    command
}

fn run(line: &str) -> Output {
    let output = program(line).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{line}: {}: {said}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout)
    );
    output
}

/// A folder that is removed in the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("sietch-interop-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("make a folder");
        Self(folder)
    }

    /// A file with so many bytes of the pattern.
    fn file(&self, name: &str, bytes: usize) -> PathBuf {
        let mut all = vec![0; bytes];
        Pattern(3).fill(0, &mut all);
        let path = self.0.join(name);
        std::fs::write(&path, all).expect("write a file");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn open(path: &Path) -> Stdio {
    std::fs::File::open(path).expect("it is there").into()
}

#[test]
fn netcat_closes_its_side_and_receives_the_rest() {
    netcat("netcat_closes_its_side_and_receives_the_rest", Family::V4);
}

#[test]
fn netcat_closes_its_side_and_receives_the_rest_over_ipv6() {
    netcat("netcat_closes_its_side_and_receives_the_rest_over_ipv6", Family::V6);
}

fn netcat(name: &'static str, family: Family) {
    if !has(name, "nc") || !has(name, "timeout") {
        return;
    }
    meet(
        name,
        &Conditions::over(family),
        move |net| services::all(net, family),
        move || {
            let folder = Folder::new(name);
            let file = folder.file("five", 5_000_000);
            let mut client = program(&format!("nc -N {} {}", family.sietch(), services::ECHO));
            let output = client.stdin(open(&file)).output().expect("it starts");
            assert!(output.status.success(), "{output:?}");
            assert_eq!(output.stdout.len(), 5_000_000);
            Pattern(3).check(0, &output.stdout);
        },
    );
}

#[test]
fn netcat_as_a_server() {
    netcat_server("netcat_as_a_server", Family::V4);
}

#[test]
fn netcat_as_a_server_over_ipv6() {
    netcat_server("netcat_as_a_server_over_ipv6", Family::V6);
}

fn netcat_server(name: &'static str, family: Family) {
    if !has(name, "nc") || !has(name, "timeout") {
        return;
    }
    let folder = Folder::new(name);
    let file = folder.file("three", 3_000_000);
    meet(
        name,
        &Conditions::over(family),
        move |net| async move {
            let mut stream = services::connect(&net, family, 7200).await;
            let (mut buffer, mut got) = (vec![0; 64 << 10], 0);
            loop {
                match stream.read(&mut buffer).await.expect("netcat sends all") {
                    0 => break,
                    count => {
                        Pattern(3).check(got, &buffer[..count]);
                        got += count as u64;
                    }
                }
            }
            assert_eq!(got, 3_000_000);
            stream.write_all(b"done").await.expect("this side is open");
        },
        move || {
            let mut server = program(&format!("nc -N -l {} 7200", family.kernel()));
            let output = server.stdin(open(&file)).output().expect("it starts");
            assert!(output.status.success(), "{output:?}");
            assert_eq!(output.stdout, b"done");
        },
    );
}

#[test]
fn curl_and_the_http_example() {
    curl("curl_and_the_http_example", Family::V4);
}

#[test]
fn curl_and_the_http_example_over_ipv6() {
    curl("curl_and_the_http_example_over_ipv6", Family::V6);
}

fn curl(name: &'static str, family: Family) {
    if !has(name, "curl") || !has(name, "timeout") {
        return;
    }
    meet(
        name,
        &Conditions::over(family),
        move |net| services::all(net, family),
        move || {
            let (page, large) =
                (format!("http://{}/", family.host()), format!("http://{}/large", family.host()));
            assert_eq!(run(&format!("curl -g -sS {page}")).stdout, b"welcome\n");
            // Ten of them over one connection.
            let ten = format!("{page} ").repeat(10);
            let output = run(&format!("curl -g -sS -v {ten}"));
            assert_eq!(output.stdout, b"welcome\n".repeat(10));
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(said.matches("Re-using existing connection").count(), 9, "{said}");
            let output = run(&format!("curl -g -sS {large}"));
            assert_eq!(output.stdout.len() as u64, LARGE_FILE);
            Pattern(3).check(0, &output.stdout);
            let head = run(&format!("curl -g -sS -I {large} {page}"));
            let head = String::from_utf8_lossy(&head.stdout).into_owned();
            assert_eq!(head.matches("200 OK").count(), 2, "{head}");
            assert!(head.contains("Content-Length: 8000000"), "{head}");
            let missing = run(&format!("curl -g -sS -o /dev/null -w %{{http_code}} {page}nothing"));
            assert_eq!(missing.stdout, b"404");
            // Old and new ways to say that the connection ends.
            assert_eq!(run(&format!("curl -g -sS --http1.0 {page}")).stdout, b"welcome\n");
            assert_eq!(run(&format!("curl -g -sS -H Connection:close {page}")).stdout, b"welcome\n");
            // A client that reads slowly, and one that disconnects in the middle.
            let slow = run(&format!("curl -g -sS --limit-rate 20M {large}"));
            assert_eq!(slow.stdout.len() as u64, LARGE_FILE);
            let ended =
                program(&format!("curl -g -sS --max-filesize 1000 {large}")).output().expect("it starts");
            assert!(!ended.status.success(), "{ended:?}");
            assert_eq!(run(&format!("curl -g -sS {page}")).stdout, b"welcome\n");
            // curl no longer pipelines: a hundred requests in one write, and all answers in their
            // order.
            let mut stream = connect(services::HTTP, &Conditions::over(family)).expect("Sietch accepts");
            let requests: String = (0..100)
                .map(|number| {
                    format!("GET /{} HTTP/1.1\r\nHost: s\r\n\r\n", if number % 2 == 0 { "" } else { "no" })
                })
                .collect();
            stream.write_all(requests.as_bytes()).expect("the connection is open");
            stream.write_all(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n").expect("the connection is open");
            let mut all = String::new();
            stream.read_to_string(&mut all).expect("Sietch closes in the end");
            let answers: Vec<&str> = all.split("HTTP/1.1 ").skip(1).map(|answer| &answer[..3]).collect();
            assert_eq!(answers, [["200", "404"].repeat(50), vec!["200"]].concat());
        },
    );
}

#[test]
fn iperf_both_ways_through_a_forwarder() {
    iperf("iperf_both_ways_through_a_forwarder", Family::V4);
}

#[test]
fn iperf_both_ways_through_a_forwarder_over_ipv6() {
    iperf("iperf_both_ways_through_a_forwarder_over_ipv6", Family::V6);
}

fn iperf(name: &'static str, family: Family) {
    if !has(name, "iperf3") || !has(name, "timeout") {
        return;
    }
    meet(
        name,
        &Conditions::over(family),
        move |net| services::all(net, family),
        move || {
            let server = program(&format!("iperf3 -s -B {} -p {}", family.kernel(), services::FORWARDER))
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .expect("it starts");
            let end = Ended(server);
            let all = ["-C cubic --bidir", "-C cubic -R", "-C bbr --bidir -P 2", "-C reno -M 700 -l 100 -N"];
            // Once is enough for what has nothing to do with addresses.
            let some = if family == Family::V4 { &all[..] } else { &all[..1] };
            for options in some {
                let line =
                    format!("iperf3 -c {} -p {} -J -t 1 {options}", family.sietch(), services::FORWARDER);
                // The server may not listen yet, or still clear up after the last one.
                let early = ["busy", "refused", "reset", "closed unexpectedly"];
                let said = (0..100).find_map(|_| {
                    let output = program(&line).output().expect("it starts");
                    let said: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
                    let error = said["error"].as_str().unwrap_or_default().to_owned();
                    if early.iter().any(|word| error.contains(word)) {
                        thread::sleep(std::time::Duration::from_millis(50));
                        return None;
                    }
                    assert!(output.status.success() && error.is_empty(), "{line}: {error}");
                    Some(said)
                });
                let said = said.unwrap_or_else(|| panic!("{line}: no server"));
                let received = said["end"]["sum_received"]["bytes"].as_u64().expect("a count");
                eprintln!("{name} {options}: {} Mbit/s", received * 8 / 1_000_000);
                assert!(received > 1_000_000, "{options}: {received} bytes");
            }
            drop(end);
        },
    );
}

/// A program that is ended with the test.
struct Ended(std::process::Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // A TERM, so that `timeout` ends its child as well.
        let process = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process(process, rustix::process::Signal::TERM);
        let _ = self.0.wait();
    }
}

#[test]
fn python_with_options_that_few_use() {
    python("python_with_options_that_few_use", Family::V4);
}

#[test]
fn python_with_options_that_few_use_over_ipv6() {
    python("python_with_options_that_few_use_over_ipv6", Family::V6);
}

fn python(name: &'static str, family: Family) {
    if !has(name, "python3") || !has(name, "timeout") {
        return;
    }
    let outcome = meet(
        name,
        &Conditions::over(family),
        move |net| services::all(net, family),
        move || {
            let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/interop/options.py");
            run(&format!("python3 {script} {} {}", family.sietch(), services::ECHO));
        },
    );
    let Some(outcome) = outcome else { return };
    assert_eq!(outcome.metrics.malformed, 0, "{:?}", outcome.metrics);
}
