//! The store over IPv6: ordinary programs reach it by its address, through the kernel's own
//! neighbour discovery.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use crate::client::answers;
use crate::testbed::{PATIENCE, Testbed, VNIC6, has, in_own_network, ip, signal, text, wait_for};

/// The output of `program` for `input`.
fn printed(program: &str, arguments: &[&str], input: &str) -> String {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it was there before");
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    text(&output.stdout) + &text(&output.stderr)
}

#[test]
fn ordinary_programs_reach_the_store_over_ipv6() {
    let name = "ordinary_programs_reach_the_store_over_ipv6";
    in_own_network(name, move || {
        let testbed = Testbed::new("six");
        let up = testbed.up(&[]);
        assert!(up.banner.contains(&testbed.vnic6().to_string()), "{}", up.banner);
        let port = testbed.port.to_string();
        if has(name, "redis-cli") {
            let cli =
                |words: &[&str]| printed("redis-cli", &[&["-h", VNIC6, "-p", &port], words].concat(), "");
            assert_eq!(cli(&["SET", "spice", "flows"]), "OK\n");
            assert_eq!(cli(&["GET", "spice"]), "\"flows\"\n".replace('"', ""));
            let large = "x".repeat(200_000);
            assert_eq!(cli(&["SET", "large", &large[..100_000]]), "OK\n");
            assert_eq!(cli(&["STRLEN", "large"]), "100000\n");
        }
        if has(name, "curl") {
            let url = format!("telnet://[{VNIC6}]:{port}");
            assert!(printed("curl", &["-s", "-m", "20", &url], "PING\r\nQUIT\r\n").contains("+PONG"));
        }
        if Command::new("nc").arg("-h").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok() {
            let answer = printed("nc", &["-6", "-w", "5", VNIC6, &port], "PING\r\nQUIT\r\n");
            assert!(answer.starts_with("+PONG"), "{answer}");
        }
        // An echo request crosses both filters; a packet to another port does not, silently.
        if has(name, "ping") {
            let ping = printed("ping", &["-6", "-c", "1", "-W", "10", VNIC6], "");
            assert!(ping.contains("1 received"), "{ping}");
        }
        let mut stream = TcpStream::connect_timeout(&testbed.vnic6(), PATIENCE).expect("the store listens");
        // The daemon is killed and restarted: the connection continues, and the address is still
        // there.
        let [daemon, ..] = testbed.pids();
        signal(daemon, rustix::process::Signal::KILL);
        wait_for("another daemon", || {
            testbed.try_status().filter(|status| status["daemon"]["pid"] != daemon)
        });
        stream.write_all(b"PING\r\n").expect("it is open");
        let mut reply = [0; 7];
        stream.read_exact(&mut reply).expect("it answers");
        assert_eq!(&reply, b"+PONG\r\n");
        assert!(answers(testbed.vnic6()));
        up.stop();
        assert!(!ip(&["-6", "addr"]).contains("fd84"), "{}", ip(&["-6", "addr"]));
    });
}
