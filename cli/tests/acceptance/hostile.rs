//! A hostile program that holds a grant: what it sends, which memory it overwrites, how it stops
//! and dies.
//!
//! 1. The attacker ([`attacker`]) is a process without capabilities that holds the VNIC `rogue`.
//!    Meanwhile an ordinary client uses the store of the same daemon over another VNIC: it must see
//!    no error.
//! 2. The host watches every interface with a packet socket ([`capture`]). Forged frames carry a
//!    mark in their payload, honest ones another: honest ones show that the watch works.
//! 3. The rate is what a kernel socket receives, counted in frame bytes from the first to the last
//!    datagram.
//! 4. At the end the attacker is killed with full queues. Its veth and its grant are removed, and
//!    the daemon has as many descriptors as before.

pub(crate) mod attacker;
mod capture;
mod frames;

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::UdpSocket;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::client::{Stop, answers, load};
use crate::testbed::{ROGUE_USER, Testbed, descriptors, in_own_network, ip, signal, wait_for};
use capture::Capture;

/// The destination of the attacker's datagrams.
const HOST: &str = "10.84.1.1:9999";

/// The attacker's granted rate, in bytes a second: 8 Mbit/s. The token bucket of 128 KiB fills in
/// 131 ms at this rate. An attacker that waits for a processor for less than that loses no tokens,
/// so a busy machine does not lower the received rate.
const RATE: f64 = 1e6;

/// The length of the measurement of the rate.
const FLOOD: Duration = Duration::from_secs(2);

/// The attacker's process; killed with the test.
struct Attacker {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Attacker {
    fn start(testbed: &Testbed) -> Option<Self> {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--ignored", "--exact", "attacker_process", "--nocapture", "--test-threads=1"])
            .env(attacker::SOCKET, testbed.socket())
            .current_dir("/")
            .uid(ROGUE_USER)
            .gid(ROGUE_USER)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().ok()?;
        let lines = BufReader::new(child.stdout.take().unwrap());
        let mut attacker = Self { child, lines };
        attacker.expect("HOLDING");
        Some(attacker)
    }

    fn pid(&self) -> i64 {
        i64::from(self.child.id())
    }

    /// The rest of the next line that has `word`.
    fn expect(&mut self, word: &str) -> String {
        self.next(word).unwrap_or_else(|| panic!("the attacker ended before {word}"))
    }

    /// The same; none if the attacker has ended.
    fn next(&mut self, word: &str) -> Option<String> {
        loop {
            let mut line = String::new();
            if self.lines.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            if let Some((_, rest)) = line.split_once(word) {
                return Some(rest.trim().to_owned());
            }
        }
    }

    fn order(&mut self, what: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{what}").unwrap();
    }

    fn run(&mut self, what: &str) -> String {
        self.order(what);
        self.expect("DONE")
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The attacker's datagrams that the host's own socket receives.
fn listen() -> UdpSocket {
    let socket = UdpSocket::bind(HOST).expect("the attacker's gateway is the host");
    let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 8 << 20);
    socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    socket
}

fn forged_frames_stay_where_they_are(attacker: &mut Attacker) {
    let capture = Capture::start();
    let socket = listen();
    let printed = attacker.run("forge");
    let mut seen = capture.stop();
    assert!(seen.honest6 > 0 && seen.honest > seen.honest6, "the watch sees nothing: {printed}");
    assert!(
        seen.forged.is_empty(),
        "{} forged frames got out: {:02x?}",
        seen.forged.len(),
        seen.forged.pop()
    );
    let mut buffer = [0; 2048];
    while let Ok((length, from)) = socket.recv_from(&mut buffer) {
        assert_eq!(from.to_string(), format!("{}:7000", frames::ADDRESS));
        assert!(!frames::is_forged(&buffer[..length]), "{:02x?}", &buffer[..length]);
    }
}

/// Receives while the attacker sends many times its granted rate.
fn the_rate_holds(attacker: &mut Attacker) {
    // More than the granted rate never arrives. Less arrives if the attacker waited for a processor
    // until its bucket was full: then the test floods again.
    let ratio = (0..4).map(|_| share_of_the_rate(attacker)).find(|ratio| *ratio >= 0.9);
    assert!(ratio.is_some(), "four floods in a row got less than nine tenths of the granted rate through");
}

/// A flood: returns the received share of the granted rate.
fn share_of_the_rate(attacker: &mut Attacker) -> f64 {
    let socket = listen();
    attacker.order(&format!("flood {}", (FLOOD + Duration::from_millis(500)).as_millis()));
    let mut buffer = [0; 2048];
    let mut first = None;
    let mut bytes = 0;
    let mut elapsed = Duration::ZERO;
    while let Ok(length) = socket.recv(&mut buffer) {
        let now = Instant::now();
        // The first burst of the token bucket is over when the measurement starts.
        let start = *first.get_or_insert(now + Duration::from_millis(200));
        if now >= start {
            elapsed = now - start;
            bytes += length + frames::HEADERS;
        }
    }
    let sent: f64 = attacker.expect("DONE").parse().expect("bytes");
    let ratio = bytes as f64 / elapsed.as_secs_f64() / RATE;
    eprintln!(
        "{:.1} Mbit/s tried, {:.4} of the granted rate received over {elapsed:?}",
        sent * 8e-6 / (FLOOD.as_secs_f64() + 0.5),
        ratio
    );
    assert!(elapsed >= FLOOD, "the flood ended after {elapsed:?}");
    assert!(sent > 5.0 * RATE * elapsed.as_secs_f64(), "the attacker was too slow to show anything: {sent}");
    assert!(ratio <= 1.1, "{ratio} of the granted rate");
    ratio
}

/// Overwritten rings and invalid descriptors: no forged frame leaves, whatever is sent. A producer
/// word that would make the kernel walk for long ends the attacker and revokes its VNIC.
fn scribbling_hurts_only_the_scribbler(testbed: &Testbed, mut attacker: Attacker) {
    let capture = Capture::start();
    let bait = UdpSocket::bind("10.84.1.1:0").unwrap();
    attacker.order("scribble 2000");
    let deadline = Instant::now() + Duration::from_secs(2);
    while Instant::now() < deadline {
        // Arriving frames make the kernel read the attacker's rings.
        let _ = bait.send_to(&[0; 200], (frames::ADDRESS, 7001));
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(attacker.next("DONE"), None, "it is killed");
    let seen = capture.stop();
    assert!(seen.forged.is_empty(), "{} forged frames got out", seen.forged.len());
    drop(attacker);
    wait_for("the grant to end", || (holder(testbed).is_null() && veths() == 0).then_some(()));
    let vnic = testbed.status()["daemon"]["vnics"][1].clone();
    assert!(vnic["revoked"] == true, "{vnic}");
    let output = testbed.run(&["restore", "rogue"]);
    assert!(output.status.success(), "{output:?}");
}

fn veths() -> usize {
    ip(&["-o", "link"]).matches("sv-rogue").count()
}

fn holder(testbed: &Testbed) -> serde_json::Value {
    testbed.status()["daemon"]["vnics"][1]["holder"].clone()
}

fn attack(testbed: &Testbed, daemon: i64) {
    let before = descriptors(daemon);
    let Some(mut attacker) = Attacker::start(testbed) else { panic!("the attacker could not be started") };
    assert!(veths() > 0 && !holder(testbed).is_null(), "{}", testbed.status());
    forged_frames_stay_where_they_are(&mut attacker);
    the_rate_holds(&mut attacker);
    scribbling_hurts_only_the_scribbler(testbed, attacker);

    let Some(mut attacker) = Attacker::start(testbed) else { panic!("it is allowed again") };
    // Stopped with full queues, while the host continues to send to it.
    attacker.run("fill");
    signal(attacker.pid(), Signal::STOP);
    let sender = UdpSocket::bind("10.84.1.1:0").unwrap();
    for _ in 0..20_000 {
        let _ = sender.send_to(&[0; 1000], (frames::ADDRESS, 7001));
    }
    assert!(answers(testbed.vnic()) && answers(testbed.vnic6()) && answers(testbed.kernel()));
    assert!(!holder(testbed).is_null(), "stopped is not dead");

    signal(attacker.pid(), Signal::KILL);
    drop(attacker);
    wait_for("the grant to end", || (holder(testbed).is_null() && veths() == 0).then_some(()));
    wait_for("the descriptors", || (descriptors(daemon) <= before).then_some(()));
}

#[test]
fn a_hostile_application_harms_only_itself() {
    let name = "a_hostile_application_harms_only_itself";
    in_own_network(name, move || {
        let testbed = Testbed::new("hostile");
        let reachable = testbed.sietch(&["--version"]).uid(ROGUE_USER).gid(ROGUE_USER).output().is_ok();
        if !reachable {
            eprintln!("SKIPPED {name}: needs a target folder that an ordinary user can read");
            return;
        }
        let up = testbed.up(&[]);
        let pids = testbed.pids();
        let stop = Stop::default();
        std::thread::scope(|scope| {
            let guard = stop.guard();
            let client = scope.spawn(|| load(testbed.vnic(), "neighbour", &stop));
            // A second run, beside everything that the first may have left behind.
            for _ in 0..2 {
                attack(&testbed, pids[0]);
            }
            drop(guard);
            let seen = client.join().expect("the neighbour saw an error");
            eprintln!("the neighbour's {} replies took {:?} at most", seen.replies, seen.longest);
            assert!(seen.replies > 0);
        });
        assert_eq!(testbed.pids(), pids, "something was restarted");
        up.stop();
        assert_eq!(ip(&["-o", "link"]).lines().count(), 1, "{}", ip(&["-o", "link"]));
    });
}
