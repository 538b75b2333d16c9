//! A VNIC that the service core serves to an unmodified program: redis-server on it, redis-cli and
//! redis-benchmark on the kernel's side.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use crate::testbed::{PATIENCE, Testbed, has, in_own_network, signal, text, wait_for};

const ADDRESS: &str = "10.85.0.2";
const PORT: &str = "6380";

/// Dropping this ends it.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn testbed(name: &str) -> Testbed {
    let testbed = Testbed::new(name);
    testbed.configure(&format!(
        "{}\n[[vnic]]\nname = \"web\"\nuid = 0\naddress = \"{ADDRESS}/24\"\nhost_address = \"10.85.0.1\"\n\
         tcp_ports = [\"{PORT}\", \"30000-40000\"]\nserved = true\n",
        testbed.configuration().split("[[vsa]]").next().unwrap_or_default().to_owned()
            + "[[vsa]]"
            + testbed.configuration().split("[[vsa]]").nth(1).unwrap_or_default()
    ));
    testbed
}

fn serve(testbed: &Testbed) -> Server {
    let mut command =
        testbed.sietch(&["run", "--vnic", "web", "--", "redis-server", "--port", PORT, "--save", ""]);
    command.args(["--protected-mode", "no"]).stdout(Stdio::null()).stderr(Stdio::inherit());
    Server(command.spawn().expect("start sietch run"))
}

fn query(words: &[&str]) -> Option<String> {
    let output = Command::new("redis-cli").args(["-h", ADDRESS, "-p", PORT]).args(words).output().ok()?;
    output
        .status
        .success()
        .then(|| text(&output.stdout).trim().to_owned())
        .filter(|printed| !printed.contains("refused"))
}

#[test]
fn an_unmodified_server_serves_on_a_vnic() {
    let name = "an_unmodified_server_serves_on_a_vnic";
    if !has(name, "redis-cli") || !has(name, "redis-server") {
        return;
    }
    in_own_network(name, || {
        let testbed = testbed("served");
        let up = testbed.up(&["--net", "af_xdp"]);
        let server = serve(&testbed);
        wait_for("redis on the VNIC", || query(&["ping"]).filter(|printed| printed == "PONG"));
        assert_eq!(query(&["set", "key", "value"]).as_deref(), Some("OK"));
        let large = "x".repeat(300_000);
        assert_eq!(query(&["set", "large", &large[..100_000]]).as_deref(), Some("OK"));
        assert_eq!(query(&["get", "large"]).map(|printed| printed.len()), Some(100_000));
        let load = Command::new("redis-benchmark")
            .args(["-h", ADDRESS, "-p", PORT, "-n", "20000", "-c", "50", "-t", "set,get,lrange_100", "-q"])
            .output()
            .expect("start redis-benchmark");
        assert!(load.status.success() && !text(&load.stdout).contains("rror"), "{load:?}");
        eprintln!("{}", text(&load.stdout).replace('\r', "\n"));
        // The service core reports its counters.
        let top = text(&testbed.run(&["top", "--once", "--json"]).stdout);
        assert!(top.contains("\"vnic\":\"web\"") && top.contains("\"threads\":{\"0\""), "{top}");
        // Another program cannot have the port. A killed program frees it, and its peers are reset.
        let mut client = Command::new("redis-cli")
            .args(["-h", ADDRESS, "-p", PORT, "blpop", "nothing", "0"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("start redis-cli");
        wait_for("a client that waits", || {
            query(&["client", "list"]).filter(|printed| printed.contains("blpop"))
        });
        signal(i64::from(server.0.id()), Signal::KILL);
        drop(server);
        assert!(!client.wait().expect("it ends").success() || query(&["ping"]).is_none());
        let again = serve(&testbed);
        wait_for("redis on the VNIC again", || query(&["ping"]).filter(|printed| printed == "PONG"));
        // Revoked: the program's connections end, and the program continues.
        let revoked = testbed.run(&["revoke", "web"]);
        assert!(revoked.status.success(), "{revoked:?}");
        wait_for("the VNIC to be removed", || query(&["ping"]).is_none().then_some(()));
        drop(again);
        up.stop();
    });
}

/// A program on the VNIC, and its output.
struct Program {
    child: Server,
    printed: BufReader<ChildStdout>,
}

impl Program {
    fn start(testbed: &Testbed, what: &str) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/acceptance/scripts/vnic.py");
        let mut command = testbed.sietch(&["run", "--vnic", "web", "--", "python3", script, what]);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("start sietch run");
        let printed = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child: Server(child), printed }
    }

    /// Its next line; empty at the end.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.printed.read_line(&mut line).expect("it speaks UTF-8");
        line.trim().to_owned()
    }

    fn all(mut self) -> String {
        let mut printed = String::new();
        self.printed.read_to_string(&mut printed).expect("it speaks UTF-8");
        assert!(self.child.0.wait().expect("it ends").success(), "{printed}");
        printed
    }
}

/// A client on the kernel's side.
fn client() -> TcpStream {
    let stream = wait_for("the program on the VNIC", || TcpStream::connect((ADDRESS, 6380)).ok());
    stream.set_read_timeout(Some(PATIENCE)).expect("a time");
    stream
}

fn echoed(stream: &mut TcpStream, question: &[u8]) -> String {
    stream.write_all(question).expect("it is open");
    let mut bytes = [0; 100];
    let length = stream.read(&mut bytes).expect("an answer");
    text(&bytes[..length])
}

#[test]
fn a_programs_sockets_on_a_vnic_are_names_copies_and_options_as_linux_has_them() {
    let name = "a_programs_sockets_on_a_vnic_are_names_copies_and_options_as_linux_has_them";
    if !has(name, "python3") {
        return;
    }
    in_own_network(name, || {
        let testbed = testbed("served-sockets");
        let up = testbed.up(&["--net", "af_xdp"]);
        assert_eq!(Program::start(&testbed, "names").all(), "EADDRINUSE\nbound 6380\nEADDRINUSE\n");
        // fork, exec and SCM_RIGHTS: with a connection to the network, and with one between two
        // sockets of the VNIC.
        let mut program = Program::start(&testbed, "server");
        assert_eq!(program.line(), "listening");
        let mut stream = client();
        for who in ["fork", "exec", "message", "here"] {
            assert_eq!(echoed(&mut stream, b"?"), format!("{who}:?"));
        }
        assert_eq!(program.all(), "own fork:?\nown exec:?\nown message:?\nown here:?\ndone\n");
        // Options.
        let program = Program::start(&testbed, "options");
        let mut stream = client();
        stream.write_all(b"seven..").expect("it is open");
        assert_eq!(program.all(), "state 1 segment True\nreceived 7 dctcp\nclosed\n");
        let end = stream.read(&mut [0; 10]).expect_err("SO_LINGER");
        assert_eq!(end.kind(), std::io::ErrorKind::ConnectionReset);
        up.stop();
    });
}

#[test]
fn an_application_of_a_vnic_is_listed_and_revoked_alone() {
    let name = "an_application_of_a_vnic_is_listed_and_revoked_alone";
    if !has(name, "python3") {
        return;
    }
    in_own_network(name, || {
        let testbed = testbed("served-revoked");
        let up = testbed.up(&["--net", "af_xdp"]);
        let mut program = Program::start(&testbed, "serve");
        assert_eq!(program.line(), "listening");
        let mut stream = client();
        assert_eq!(echoed(&mut stream, b"hello"), "hello");
        let listed = text(&testbed.run(&["sockets", "--json"]).stdout);
        let listed: serde_json::Value = serde_json::from_str(&listed).expect("JSON");
        // The store is an application of the host.
        let applications = listed["applications"].as_array().expect("a list");
        let [application] = applications.iter().filter(|one| one["vnic"] == "web").collect::<Vec<_>>()[..]
        else {
            panic!("not one of the VNIC: {listed}");
        };
        assert_eq!(application["accepted"], 1, "{listed}");
        let id = application["id"].as_str().expect("an id");
        let revoked = testbed.run(&["revoke", id]);
        assert!(text(&revoked.stdout).contains("1 listeners closed, 1 connections reset"), "{revoked:?}");
        assert_eq!(stream.read(&mut [0; 10]).expect_err("reset").kind(), std::io::ErrorKind::ConnectionReset);
        // It does not come back; another program may have the name.
        assert!(program.all().contains("ECONNRESET\n"));
        let mut other = Program::start(&testbed, "serve");
        assert_eq!(other.line(), "listening");
        assert_eq!(echoed(&mut client(), b"hello"), "hello");
        up.stop();
    });
}

#[test]
fn a_service_that_is_replaced_resets_its_vnics_connections_and_listeners_come_back() {
    let name = "a_service_that_is_replaced_resets_its_vnics_connections_and_listeners_come_back";
    if !has(name, "python3") {
        return;
    }
    in_own_network(name, || {
        let testbed = testbed("served-replaced");
        let up = testbed.up(&["--net", "af_xdp"]);
        let mut program = Program::start(&testbed, "serve");
        assert_eq!(program.line(), "listening");
        let mut stream = client();
        assert_eq!(echoed(&mut stream, b"hello"), "hello");
        let successor = testbed
            .sietch(&["service", "--succeed", "--run-as", "61871:61871"])
            .spawn()
            .expect("start sietch service");
        let successor = Server(successor);
        // Both sides are reset at once: no timeout, no request without an answer.
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a time");
        assert_eq!(stream.read(&mut [0; 10]).expect_err("reset").kind(), std::io::ErrorKind::ConnectionReset);
        assert_eq!(program.line(), "ECONNRESET");
        assert_eq!(echoed(&mut client(), b"again"), "again");
        drop(program);
        drop(successor);
        drop(up);
    });
}
