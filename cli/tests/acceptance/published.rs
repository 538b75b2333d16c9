//! `sietch run --vnic NAME --publish`: an unmodified server on a VNIC is reached through a port of
//! the host as well, and reaches the host itself.

use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;

use crate::testbed::{Testbed, Up, has, in_own_network, signal, text, wait_for};

const ADDRESS: &str = "10.85.0.2";
const PORT: &str = "6380";
const HOST_PORT: &str = "7380";

/// Dropping this ends it.
struct Program(Child);

impl Program {
    fn kill(mut self) {
        signal(i64::from(self.0.id()), Signal::KILL);
        self.0.wait().expect("it is a child");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// With a VNIC `web` that the service core serves.
fn up(testbed: &Testbed) -> Up {
    let text = testbed.configuration();
    let (before, after) = text.split_once("[[vsa]]").expect("it has an area");
    testbed.configure(&format!(
        "{before}[[vsa]]{after}\n[[vnic]]\nname = \"web\"\nuid = 0\naddress = \"{ADDRESS}/24\"\n\
         host_address = \"10.85.0.1\"\ntcp_ports = [\"{PORT}\", \"30000-40000\"]\nserved = true\n"
    ));
    testbed.up(&["--net", "af_xdp"])
}

fn start(testbed: &Testbed, options: &[&str], program: &[&str]) -> Program {
    let mut command = testbed.sietch(&[&["run"], options, &["--"], program].concat());
    Program(command.stdout(Stdio::null()).stderr(Stdio::inherit()).spawn().expect("start sietch run"))
}

/// redis-server on the VNIC, published at some ports.
fn serve(testbed: &Testbed, published: &[&str]) -> Program {
    let mut options = vec!["--vnic", "web"];
    published.iter().for_each(|ports| options.extend(["--publish", ports]));
    let program = ["redis-server", "--port", PORT, "--save", "", "--protected-mode", "no"];
    start(testbed, &options, &program)
}

/// The output of redis-cli, on the kernel's sockets, for a server's name.
fn query(host: &str, port: &str, words: &[&str]) -> Option<String> {
    let output = Command::new("redis-cli").args(["-h", host, "-p", port]).args(words).output().ok()?;
    let printed = text(&output.stdout).trim().to_owned();
    (output.status.success() && !printed.contains("refused")).then_some(printed)
}

fn pong(host: &str, port: &str) -> Option<()> {
    query(host, port, &["ping"]).filter(|printed| printed == "PONG").map(drop)
}

fn sockets(testbed: &Testbed) -> serde_json::Value {
    let output = testbed.run(&["sockets", "--json"]);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Published ports as they are listed: the host's name, and its destination.
fn published(testbed: &Testbed) -> Vec<(String, String)> {
    let listing = sockets(testbed);
    let all = listing["listeners"].as_array().expect("a list").iter();
    all.filter_map(|found| Some((found["name"].as_str()?.to_owned(), found["leads_to"].as_str()?.to_owned())))
        .collect()
}

#[test]
fn a_port_of_the_host_leads_to_a_program_on_a_vnic() {
    let name = "a_port_of_the_host_leads_to_a_program_on_a_vnic";
    if !has(name, "redis-cli") || !has(name, "redis-server") {
        return;
    }
    in_own_network(name, || {
        let testbed = Testbed::new("published");
        let up = up(&testbed);
        let ports = [format!("{HOST_PORT}:{PORT}"), format!("[::1]:{HOST_PORT}:{PORT}")];
        let ports: Vec<&str> = ports.iter().map(String::as_str).collect();
        let server = serve(&testbed, &ports);
        wait_for("redis on the VNIC", || pong(ADDRESS, PORT));
        // Through the host's port, in both families: it is one and the same server.
        wait_for("redis at the host's port", || pong("127.0.0.1", HOST_PORT));
        assert_eq!(query("::1", HOST_PORT, &["set", "key", "value"]).as_deref(), Some("OK"));
        assert_eq!(query(ADDRESS, PORT, &["get", "key"]).as_deref(), Some("value"));
        let load = Command::new("redis-benchmark")
            .args(["-h", "127.0.0.1", "-p", HOST_PORT, "-n", "20000", "-c", "50", "-t", "set,get", "-q"])
            .output()
            .expect("start redis-benchmark");
        assert!(load.status.success() && !text(&load.stdout).contains("rror"), "{load:?}");
        let listed = published(&testbed);
        assert_eq!(listed.len(), 2, "{listed:?}");
        assert!(listed.iter().all(|(_, to)| to.starts_with("web ") && to.ends_with(":6380")), "{listed:?}");

        // A client under Sietch, on the host's addresses, connects over shared memory.
        let client =
            start(&testbed, &[], &["redis-cli", "-h", "127.0.0.1", "-p", HOST_PORT, "blpop", "nothing", "0"]);
        wait_for("a client that waits", || {
            query("127.0.0.1", HOST_PORT, &["client", "list"]).filter(|printed| printed.contains("blpop"))
        });
        assert_eq!(sockets(&testbed)["connections"].as_array().map(Vec::len), Some(1));
        drop(client);

        // When it is killed, its ports are free at once; a restarted server has them again.
        let names: Vec<SocketAddr> =
            ["127.0.0.1", "[::1]"].map(|host| format!("{host}:{HOST_PORT}").parse().expect("a name")).into();
        server.kill();
        wait_for("the ports to be free", || {
            names.iter().all(|name| TcpListener::bind(name).is_ok()).then_some(())
        });
        assert!(published(&testbed).is_empty());
        let server = serve(&testbed, &ports);
        wait_for("redis at the host's port again", || pong("127.0.0.1", HOST_PORT));
        // Another program that requests it gets an error in words.
        let second = testbed.run(&["run", "--vnic", "web", "--publish", ports[0], "--", "true"]);
        assert_eq!(second.status.code(), Some(125), "{second:?}");
        assert!(text(&second.stderr).contains("in use"), "{second:?}");
        server.kill();
        up.stop();
    });
}

#[test]
fn a_program_on_a_vnic_reaches_listeners_of_the_host() {
    let name = "a_program_on_a_vnic_reaches_listeners_of_the_host";
    if !has(name, "redis-cli") || !has(name, "redis-server") {
        return;
    }
    in_own_network(name, || {
        let testbed = Testbed::new("published-out");
        let up = up(&testbed);
        let mut server = Command::new("redis-server");
        server.args(["--port", "7390", "--bind", "0.0.0.0", "--save", "", "--protected-mode", "no"]);
        let _kernel = Program(server.stdout(Stdio::null()).spawn().expect("start redis-server"));
        wait_for("redis of the kernel", || pong("127.0.0.1", "7390"));
        let _own = start(&testbed, &[], &["redis-server", "--port", "7391", "--save", ""]);
        wait_for("redis on the host's addresses", || pong("127.0.0.1", "7391"));
        // The host's loopback stays the host's. The host's address in the VNIC's network is reached
        // through the VNIC.
        for (host, port) in [("127.0.0.1", "7390"), ("127.0.0.1", "7391"), ("10.85.0.1", "7390")] {
            let output =
                testbed.run(&["run", "--vnic", "web", "--", "redis-cli", "-h", host, "-p", port, "ping"]);
            assert_eq!(text(&output.stdout).trim(), "PONG", "{host} {port}: {output:?}");
        }
        let peers = query("127.0.0.1", "7390", &["client", "list"]).expect("it answers");
        assert!(!peers.contains(ADDRESS), "no peer is left: {peers}");
        up.stop();
    });
}

#[test]
fn a_published_port_comes_back_with_the_service() {
    let name = "a_published_port_comes_back_with_the_service";
    if !has(name, "redis-cli") || !has(name, "redis-server") {
        return;
    }
    in_own_network(name, || {
        let testbed = Testbed::new("published-again");
        let up = up(&testbed);
        let server = serve(&testbed, &[&format!("{HOST_PORT}:{PORT}")]);
        wait_for("redis at the host's port", || pong("127.0.0.1", HOST_PORT));
        signal(service_core(up.pid()), Signal::KILL);
        wait_for("redis at the host's port again", || pong("127.0.0.1", HOST_PORT));
        wait_for("redis on the VNIC again", || pong(ADDRESS, PORT));
        server.kill();
        up.stop();
    });
}

/// The process that serves sockets, a child of `up`.
fn service_core(up: i64) -> i64 {
    let children = std::fs::read_to_string(format!("/proc/{up}/task/{up}/children")).expect("it runs");
    let is_core = |pid: &&str| {
        let words = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words.split('\0').any(|word| word == "service")
    };
    children.split_whitespace().find(is_core).and_then(|pid| pid.parse().ok()).expect("it has a service core")
}
