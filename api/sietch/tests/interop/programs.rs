//! Programs that people use, unmodified: nc, curl, iperf3, and Python for the options that few use.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;

use crate::kernel::connect;
use crate::meeting::{Conditions, KERNEL, PATIENCE, SIETCH, meet};
use crate::pattern::Pattern;
use crate::services::{self, LARGE_FILE};

/// Whether `program` is here; says that `test` is skipped if not.
fn has(test: &str, program: &str) -> bool {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).is_file()));
    if !found {
        eprintln!("SKIPPED {test}: needs {program}");
    }
    found
}

/// A program that is ended when it takes too long.
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
fn netcat_closes_its_side_and_hears_the_rest() {
    const NAME: &str = "netcat_closes_its_side_and_hears_the_rest";
    if !has(NAME, "nc") || !has(NAME, "timeout") {
        return;
    }
    meet(NAME, &Conditions::default(), services::all, || {
        let folder = Folder::new("nc");
        let file = folder.file("five", 5_000_000);
        let mut client = program(&format!("nc -N {SIETCH} {}", services::ECHO));
        let output = client.stdin(open(&file)).output().expect("it starts");
        assert!(output.status.success(), "{output:?}");
        assert_eq!(output.stdout.len(), 5_000_000);
        Pattern(3).check(0, &output.stdout);
    });
}

#[test]
fn netcat_as_a_server() {
    const NAME: &str = "netcat_as_a_server";
    if !has(NAME, "nc") || !has(NAME, "timeout") {
        return;
    }
    let folder = Folder::new("nc-server");
    let file = folder.file("three", 3_000_000);
    meet(
        NAME,
        &Conditions::default(),
        |net| async move {
            let mut stream = services::connect(&net, 7200).await;
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
            let mut server = program("nc -N -l 10.9.0.1 7200");
            let output = server.stdin(open(&file)).output().expect("it starts");
            assert!(output.status.success(), "{output:?}");
            assert_eq!(output.stdout, b"done");
        },
    );
}

#[test]
fn curl_and_the_http_example() {
    const NAME: &str = "curl_and_the_http_example";
    if !has(NAME, "curl") || !has(NAME, "timeout") {
        return;
    }
    meet(NAME, &Conditions::default(), services::all, || {
        let (page, large) = (format!("http://{SIETCH}/"), format!("http://{SIETCH}/large"));
        assert_eq!(run(&format!("curl -sS {page}")).stdout, b"welcome\n");
        // Ten of them over one connection.
        let ten = format!("{page} ").repeat(10);
        let output = run(&format!("curl -sS -v {ten}"));
        assert_eq!(output.stdout, b"welcome\n".repeat(10));
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(said.matches("Re-using existing connection").count(), 9, "{said}");
        let output = run(&format!("curl -sS {large}"));
        assert_eq!(output.stdout.len() as u64, LARGE_FILE);
        Pattern(3).check(0, &output.stdout);
        let head = run(&format!("curl -sS -I {large} {page}"));
        let head = String::from_utf8_lossy(&head.stdout).into_owned();
        assert_eq!(head.matches("200 OK").count(), 2, "{head}");
        assert!(head.contains("Content-Length: 8000000"), "{head}");
        let missing = run(&format!("curl -sS -o /dev/null -w %{{http_code}} {page}nothing"));
        assert_eq!(missing.stdout, b"404");
        // Old and new ways to say that the connection ends.
        assert_eq!(run(&format!("curl -sS --http1.0 {page}")).stdout, b"welcome\n");
        assert_eq!(run(&format!("curl -sS -H Connection:close {page}")).stdout, b"welcome\n");
        // A client that reads slowly, and one that goes away in the middle.
        let slow = run(&format!("curl -sS --limit-rate 20M {large}"));
        assert_eq!(slow.stdout.len() as u64, LARGE_FILE);
        let gone = program(&format!("curl -sS --max-filesize 1000 {large}")).output().expect("it starts");
        assert!(!gone.status.success(), "{gone:?}");
        assert_eq!(run(&format!("curl -sS {page}")).stdout, b"welcome\n");
        // curl no longer pipelines: a hundred requests in one write, and all answers in their order.
        let mut stream = connect(services::HTTP, &Conditions::default()).expect("Sietch accepts");
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
    });
}

#[test]
fn iperf_both_ways_through_a_forwarder() {
    const NAME: &str = "iperf_both_ways_through_a_forwarder";
    if !has(NAME, "iperf3") || !has(NAME, "timeout") {
        return;
    }
    meet(NAME, &Conditions::default(), services::all, || {
        let server = program(&format!("iperf3 -s -B {KERNEL} -p {}", services::FORWARDER))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        let end = Ended(server);
        for options in ["-C cubic", "-C cubic -R", "-C bbr --bidir -P 2", "-C reno -M 700 -l 100 -N"] {
            let line = format!("iperf3 -c {SIETCH} -p {} -J -t 1 {options}", services::FORWARDER);
            // The server may not listen yet, or not again.
            let output = (0..100).find_map(|_| {
                let output = program(&line).output().expect("it starts");
                if !output.status.success() {
                    thread::sleep(std::time::Duration::from_millis(50));
                }
                output.status.success().then_some(output)
            });
            let output = output.unwrap_or_else(|| panic!("{line} fails: {:?}", program(&line).output()));
            let said: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
            let received = said["end"]["sum_received"]["bytes"].as_u64().expect("a count");
            eprintln!("{NAME} {options}: {} Mbit/s", received * 8 / 1_000_000);
            assert!(received > 1_000_000, "{options}: {received} bytes");
        }
        drop(end);
    });
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
    const NAME: &str = "python_with_options_that_few_use";
    if !has(NAME, "python3") || !has(NAME, "timeout") {
        return;
    }
    let outcome = meet(NAME, &Conditions::default(), services::all, || {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/interop/options.py");
        run(&format!("python3 {script} {SIETCH} {}", services::ECHO));
    });
    let Some(outcome) = outcome else { return };
    assert_eq!(outcome.metrics.malformed, 0, "{:?}", outcome.metrics);
}
