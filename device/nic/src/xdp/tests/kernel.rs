//! The filters as the kernel runs them: its verifier, its maps, its compiler, through
//! `BPF_PROG_TEST_RUN`.

use std::ops::Range;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::frames;
use super::machine::{Socket, in_namespace};
use super::oracle;
use crate::xdp::frame::{DROP, Direction, PASS, REDIRECT};
use crate::xdp::kernel::Program;
use crate::xdp::{Buffers, DirectionCounters, Reason, Uplink, VnicPrograms, VnicSpec, XdpError, pass};

/// The loopback interface: something that a device map takes.
const LOOPBACK: u32 = 1;
/// The kernel runs no frame without an Ethernet header.
const SHORTEST: usize = 14;

struct Loaded {
    programs: VnicPrograms,
    spec: VnicSpec,
    _socket: Socket,
}

impl Loaded {
    fn new(spec: VnicSpec) -> Self {
        Self::with(spec, Buffers::One)
    }

    fn with(spec: VnicSpec, buffers: Buffers) -> Self {
        let socket = Socket::new();
        let programs = VnicPrograms::load(&spec, 1, 2, 0, buffers).unwrap();
        programs.set_socket(socket.fd()).unwrap();
        Self { programs, spec, _socket: socket }
    }

    fn program(&self, direction: Direction) -> &Program {
        match direction {
            Direction::Receive => self.programs.receive_program(),
            Direction::Transmit => self.programs.transmit_program(),
        }
    }

    fn counters(&self, direction: Direction) -> DirectionCounters {
        let counters = self.programs.counters().unwrap();
        match direction {
            Direction::Receive => counters.received,
            Direction::Transmit => counters.transmitted,
        }
    }

    /// The kernel's verdict on a frame, and the reason it counted.
    fn run(&self, direction: Direction, frame: &[u8]) -> Result<i32, Reason> {
        let before = self.counters(direction);
        let run = self.program(direction).test_run(frame, 1).unwrap();
        let after = self.counters(direction);
        let reasons: Vec<_> = Reason::ALL
            .into_iter()
            .filter(|&reason| after.dropped(reason) != before.dropped(reason))
            .collect();
        match reasons[..] {
            [] => {
                assert_eq!(after.passed.frames, before.passed.frames + 1);
                assert_eq!(after.passed.bytes, before.passed.bytes + frame.len() as u64);
                Ok(run.verdict as i32)
            }
            [reason] => {
                assert_eq!(run.verdict as i32, DROP);
                assert_eq!(after.passed, before.passed);
                Err(reason)
            }
            _ => panic!("counted twice: {reasons:?}"),
        }
    }

    /// Transmits `frame` until the token bucket drops it, and asserts the burst and the rate on the
    /// way. Returns the bytes that passed, and an interval that contains the drop: at that time
    /// the bucket held less than a frame.
    ///
    /// Each run has one frame and takes microseconds. The kernel waits for an RCU grace period
    /// before and after a run of several frames (`bpf_dispatcher_change_prog`). Each may take tens
    /// of milliseconds, in which a full bucket gains nothing.
    fn transmit_until_dropped(&self, frame: &[u8]) -> (f64, Range<Instant>) {
        let (rate, burst) = (self.spec.rate.unwrap() as f64, self.spec.burst as f64);
        let begin = Instant::now();
        let mut passed = 0.0;
        loop {
            let before = Instant::now();
            let run = self.program(Direction::Transmit).test_run(frame, 1).unwrap();
            let after = Instant::now();
            if run.verdict as i32 == DROP {
                return (passed, before..after);
            }
            passed += frame.len() as f64;
            let granted = burst + rate * (after - begin).as_secs_f64();
            assert!(passed <= granted, "{passed} bytes of {granted}");
        }
    }

    fn check(&self, direction: Direction, frame: &[u8]) {
        let expected = match direction {
            Direction::Receive => oracle::receive(&self.spec, frame),
            Direction::Transmit => oracle::transmit(&self.spec, frame),
        };
        let verdict = self.run(direction, frame);
        assert_eq!(verdict, expected, "{direction:?} {frame:02x?}");
    }
}

const BOTH: [Direction; 2] = [Direction::Receive, Direction::Transmit];

#[test]
fn the_kernel_agrees_on_legal_and_hostile_frames() {
    in_namespace("the_kernel_agrees_on_legal_and_hostile_frames", || {
        let loaded = Loaded::new(frames::spec());
        for direction in BOTH {
            for frame in frames::legal(direction) {
                let verdict = loaded.run(direction, &frame);
                assert!(verdict.is_ok(), "{direction:?} {frame:02x?}: {verdict:?}");
                for length in SHORTEST..=128 {
                    let mut cut = frame.clone();
                    cut.resize(length, 0);
                    loaded.check(direction, &cut);
                }
            }
            for (what, frame, reason) in frames::hostile(direction) {
                let verdict = loaded.run(direction, &frame);
                assert_eq!(verdict, Err(reason), "{direction:?}: {what}");
            }
        }
    });
}

#[test]
fn the_kernel_agrees_on_ipv6() {
    in_namespace("the_kernel_agrees_on_ipv6", || {
        let loaded = Loaded::new(frames::ipv6::spec6());
        for direction in BOTH {
            for frame in frames::ipv6::legal(direction) {
                let verdict = loaded.run(direction, &frame);
                assert!(verdict.is_ok(), "{direction:?} {frame:02x?}: {verdict:?}");
                for length in SHORTEST..=128 {
                    let mut cut = frame.clone();
                    cut.resize(length, 0);
                    loaded.check(direction, &cut);
                }
            }
            for (what, frame, reason) in frames::ipv6::hostile(direction) {
                assert_eq!(loaded.run(direction, &frame), Err(reason), "{direction:?}: {what}");
            }
        }
    });
}

#[test]
fn the_kernel_agrees_with_the_oracle_on_damaged_frames() {
    in_namespace("the_kernel_agrees_with_the_oracle_on_damaged_frames", || {
        for spec in frames::rules(LOOPBACK) {
            let loaded = Loaded::new(spec);
            let frames = (frames::damaged(Direction::Receive), frames::damaged(Direction::Transmit));
            let mut runner = TestRunner::new(Config { cases: 2_000, ..Config::default() });
            let long = |frame: &Vec<u8>| frame.len() >= SHORTEST;
            let result = runner.run(&frames, |(received, sent)| {
                prop_assume!(long(&received) && long(&sent));
                loaded.check(Direction::Receive, &received);
                loaded.check(Direction::Transmit, &sent);
                Ok(())
            });
            result.unwrap();
        }
    });
}

#[test]
fn every_port_is_granted_or_refused_exactly() {
    in_namespace("every_port_is_granted_or_refused_exactly", || {
        let loaded = Loaded::new(VnicSpec {
            tcp_ports: vec![0..=0, 63..=64, 1_000..=1_000, 65_472..=65_535],
            udp_ports: vec![1..=62, 32_768..=60_999],
            ..frames::spec()
        });
        for direction in BOTH {
            for (protocol, ranges) in [(6, &loaded.spec.tcp_ports), (17, &loaded.spec.udp_ports)] {
                let counted = loaded.counters(direction).passed.frames;
                for port in 0..=u16::MAX {
                    let frame = frames::talk(direction, protocol, port, 0);
                    let run = loaded.program(direction).test_run(&frame, 1).unwrap();
                    let granted = ranges.iter().any(|range| range.contains(&port));
                    assert_eq!(run.verdict as i32 != DROP, granted, "{protocol} {port}");
                }
                let granted: usize = ranges.iter().map(|range| range.len()).sum();
                let passed = loaded.counters(direction).passed.frames - counted;
                assert_eq!(passed, granted as u64);
            }
        }
    });
}

#[test]
fn rules_change_without_a_reload() {
    in_namespace("rules_change_without_a_reload", || {
        let mut loaded = Loaded::new(frames::spec());
        let before = loaded.programs.receive_program().info().unwrap().id;
        let tcp = frames::talk(Direction::Transmit, 6, 6379, 0);
        assert_eq!(loaded.run(Direction::Transmit, &tcp), Ok(PASS));
        // Replaces a full peer list by another full one, then by a short one, then by none.
        let full = |base: u8| -> Vec<_> {
            (0..1_024_u32)
                .map(|n| {
                    let address = (u32::from(base) << 24) + (n << 8);
                    crate::xdp::Ipv4Prefix::new(address.into(), 24).unwrap()
                })
                .collect()
        };
        for (peers, expected) in [
            (full(11), Err(Reason::Peer)),
            (full(12), Err(Reason::Peer)),
            (frames::prefixes(), Ok(PASS)),
            (full(11), Err(Reason::Peer)),
            (Vec::new(), Ok(PASS)),
        ] {
            loaded.spec.peers = peers;
            loaded.programs.update(&loaded.spec).unwrap();
            assert_eq!(loaded.run(Direction::Transmit, &tcp), expected);
        }
        loaded.spec.tcp_ports = vec![80..=80];
        loaded.spec.uplink = Some(LOOPBACK);
        loaded.spec.host_mac = frames::OTHER_MAC;
        loaded.programs.update(&loaded.spec).unwrap();
        assert_eq!(loaded.run(Direction::Transmit, &tcp), Err(Reason::Port));
        let web = frames::talk(Direction::Transmit, 6, 80, 0);
        assert_eq!(loaded.run(Direction::Transmit, &web), Ok(REDIRECT));
        loaded.spec.mac = frames::OTHER_MAC;
        loaded.spec.host_mac = frames::HOST_MAC;
        loaded.programs.update(&loaded.spec).unwrap();
        assert_eq!(loaded.run(Direction::Transmit, &web), Err(Reason::SourceMac));
        assert_eq!(loaded.programs.receive_program().info().unwrap().id, before);
    });
}

#[test]
fn revocation_is_one_word_and_survives_an_update() {
    in_namespace("revocation_is_one_word_and_survives_an_update", || {
        let mut loaded = Loaded::new(frames::spec());
        loaded.programs.set_enabled(false).unwrap();
        loaded.programs.update(&loaded.spec).unwrap();
        for direction in BOTH {
            for frame in frames::legal(direction) {
                let verdict = loaded.run(direction, &frame);
                assert_eq!(verdict, Err(Reason::Disabled));
            }
        }
        loaded.programs.set_enabled(true).unwrap();
        for direction in BOTH {
            for frame in frames::legal(direction) {
                assert!(loaded.run(direction, &frame).is_ok());
            }
        }
    });
}

#[test]
fn frames_without_a_socket_are_counted_as_such() {
    in_namespace("frames_without_a_socket_are_counted_as_such", || {
        let socket = Socket::new();
        let programs = VnicPrograms::load(&frames::spec(), 1, 2, 0, Buffers::One).unwrap();
        let loaded = Loaded { programs, spec: frames::spec(), _socket: socket };
        let frame = frames::talk(Direction::Receive, 6, 6379, 0);
        assert_eq!(loaded.run(Direction::Receive, &frame), Err(Reason::Target));
    });
}

#[test]
fn frames_in_several_buffers_are_judged_as_a_whole() {
    in_namespace("frames_in_several_buffers_are_judged_as_a_whole", || {
        let loaded = Loaded::with(frames::spec(), Buffers::Several);
        for direction in [Direction::Receive, Direction::Transmit] {
            for frame in frames::legal(direction) {
                assert!(loaded.run(direction, &frame).is_ok());
            }
            for (what, frame, reason) in frames::hostile(direction) {
                if frame.len() >= SHORTEST {
                    assert_eq!(loaded.run(direction, &frame), Err(reason), "{what}");
                }
            }
            let before = loaded.counters(direction).passed;
            // A packet of 60000 bytes, of which the program sees a page.
            let mut large = frames::talk(direction, 17, 53, 0);
            large.resize(14 + 60_000, 7);
            let header = &mut large[14..34];
            header[2..4].copy_from_slice(&60_000_u16.to_be_bytes());
            assert!(loaded.run(direction, &large).is_ok());
            let after = loaded.counters(direction).passed;
            assert_eq!((after.frames, after.bytes - before.bytes), (before.frames + 1, 60_014));
            // The header claims a byte more than there is.
            large.truncate(14 + 59_999);
            assert_eq!(loaded.run(direction, &large), Err(Reason::Header));
        }
        let small = VnicSpec { rate: Some(1_000_000), burst: 65_536, ..frames::spec() };
        let refused = VnicPrograms::load(&small, 1, 2, 0, Buffers::Several);
        assert!(matches!(refused, Err(XdpError::Rules(_))), "such a bucket would hold no large frame");
    });
}

/// The bounds hold under any load: one interval is inside the two drops, the other around them. A
/// test that is kept off the CPU only makes the bounds wider.
#[test]
fn the_rate_holds() {
    const DURATION: Duration = Duration::from_millis(500);
    const LENGTH: f64 = 1514.0;
    in_namespace("the_rate_holds", || {
        for rate in [2_000_000_u32, 10_000_000] {
            let loaded =
                Loaded::new(VnicSpec { rate: Some(rate.into()), burst: rate.into(), ..frames::spec() });
            let (rate, burst) = (f64::from(rate), f64::from(rate));
            let mut frame = frames::talk(Direction::Transmit, 17, 53, 0);
            frame.resize(LENGTH as usize, 0);
            let (at_once, first) = loaded.transmit_until_dropped(&frame);
            assert!(at_once > burst - LENGTH, "{at_once} bytes of a full bucket");
            let (mut gained, mut drops, mut last) = (0.0, 1, first.clone());
            while last.start - first.end < DURATION {
                let (passed, dropped) = loaded.transmit_until_dropped(&frame);
                (gained, drops, last) = (gained + passed, drops + 1, dropped);
            }
            // At each of the two drops the bucket held less than a frame. A bucket that became full
            // between them gained less than the rate, but at least a burst.
            let least = (rate * (last.start - first.end).as_secs_f64()).min(burst) - LENGTH;
            let most = rate * (last.end - first.start).as_secs_f64() + LENGTH;
            assert!(least < gained && gained < most, "{gained} bytes are not within {least}..{most}");
            let counters = loaded.counters(Direction::Transmit);
            assert_eq!(counters.passed.bytes as f64, at_once + gained);
            assert_eq!(counters.dropped(Reason::Rate).frames, drops);
        }
    });
}

#[test]
fn a_lower_rate_takes_hold_of_a_full_bucket() {
    const FRAMES: u32 = 500_000;
    const RATE: u32 = 1_000_000;
    const BURST: u32 = 5_000;
    const WINDOW: Duration = Duration::from_millis(5);
    in_namespace("a_lower_rate_takes_hold_of_a_full_bucket", || {
        let rate = u64::from(2 * RATE);
        let mut loaded = Loaded::new(VnicSpec { rate: Some(rate), burst: 1_000_000_000, ..frames::spec() });
        let mut frame = frames::talk(Direction::Transmit, 17, 53, 0);
        frame.resize(1_000, 0);
        loaded.program(Direction::Transmit).test_run(&frame, FRAMES).unwrap();
        assert_eq!(loaded.counters(Direction::Transmit).passed.frames, u64::from(FRAMES));
        // The debt under the old rules is 250 s, far beyond the new window: it must neither grant a
        // burst nor last for long.
        loaded.spec.rate = Some(RATE.into());
        loaded.spec.burst = BURST.into();
        loaded.programs.update(&loaded.spec).unwrap();
        let emptied = Instant::now();
        assert_eq!(loaded.run(Direction::Transmit, &frame), Err(Reason::Rate));
        let (passed, dropped) = loaded.transmit_until_dropped(&frame);
        let most = f64::from(RATE) * (dropped.end - emptied).as_secs_f64();
        assert!(passed <= most, "{passed} bytes of {most} after the bucket was emptied");
        // The bucket fills within the window.
        std::thread::sleep(WINDOW);
        let (passed, _) = loaded.transmit_until_dropped(&frame);
        assert!(passed >= f64::from(BURST), "{passed} bytes of a full bucket");
    });
}

#[test]
fn the_uplink_serves_many_vnics() {
    in_namespace("the_uplink_serves_many_vnics", || {
        let mut uplink = Uplink::load(LOOPBACK).unwrap();
        let run = |uplink: &Uplink, frame: &[u8]| uplink.program().test_run(frame, 1).unwrap().verdict as i32;
        let frame = frames::talk(Direction::Receive, 6, 6379, 0);
        assert_eq!(run(&uplink, &frame), PASS);
        for n in 0..=255 {
            let address = [10, 77, 0, n].into();
            let mac = [2, 0, 0, 0, 0, n];
            uplink.add(address, mac, LOOPBACK).unwrap();
        }
        assert_eq!(uplink.vnics().unwrap().len(), 256);
        // The test's VNIC has MAC ...:01 and address ....2: another VNIC's MAC must not do.
        assert_eq!(run(&uplink, &frame), PASS);
        uplink.add(frames::ADDRESS, frames::MAC, LOOPBACK).unwrap();
        assert_eq!(run(&uplink, &frame), REDIRECT);
        assert!(uplink.remove(frames::ADDRESS).unwrap());
        assert!(!uplink.remove(frames::ADDRESS).unwrap());
        assert_eq!(run(&uplink, &frame), PASS);
        let counters = uplink.counters().unwrap();
        assert_eq!(counters.redirected.frames, 1);
        assert_eq!(counters.host.frames, 3);
        assert_eq!(counters.lost.frames, 0);
    });
}

#[test]
fn rules_that_cannot_be_enforced_are_refused() {
    let refused = |change: &dyn Fn(&mut VnicSpec)| {
        let mut spec = frames::spec();
        change(&mut spec);
        assert!(matches!(spec.validate(), Err(XdpError::Rules(_))), "{spec:?}");
    };
    refused(&|spec| spec.mac = [1, 0, 0, 0, 0, 1]);
    refused(&|spec| spec.host_mac = [0; 6]);
    refused(&|spec| spec.address = [224, 0, 0, 1].into());
    refused(&|spec| spec.address = [0, 0, 0, 0].into());
    #[allow(clippy::reversed_empty_ranges)]
    refused(&|spec| spec.tcp_ports = vec![9..=8]);
    refused(&|spec| spec.peers = vec![frames::prefixes()[0]; 1_025]);
    refused(&|spec| spec.uplink = Some(0));
    refused(&|spec| (spec.rate, spec.burst) = (Some(999), 10_000));
    refused(&|spec| (spec.rate, spec.burst) = (Some(u64::MAX), 10_000));
    refused(&|spec| (spec.rate, spec.burst) = (Some(1_000_000), 1_500));
    refused(&|spec| (spec.rate, spec.burst) = (Some(1_000), u64::MAX));
    frames::spec().validate().unwrap();
}

/// Instructions and time a frame. `cargo test -p sietch-nic cost_of -- --ignored --nocapture`, on
/// an idle machine.
#[test]
#[ignore = "a measurement"]
fn cost_of_each_program() {
    const RUNS: u32 = 2_000_000;
    in_namespace("cost_of_each_program", || {
        let rated = VnicSpec {
            peers: frames::prefixes(),
            rate: Some(1_000_000_000_000),
            burst: 1_000_000_000,
            ..frames::spec()
        };
        let plain = Loaded::new(frames::spec());
        let full = Loaded::new(rated);
        let mut uplink = Uplink::load(LOOPBACK).unwrap();
        uplink.add(frames::ADDRESS, frames::MAC, LOOPBACK).unwrap();
        let nothing = Program::load(pass::NAME, &pass::assemble().unwrap(), Buffers::One).unwrap();
        let rx = frames::talk(Direction::Receive, 6, 6379, 0);
        let tx = frames::talk(Direction::Transmit, 6, 6379, 0);
        let arp = frames::legal(Direction::Transmit).pop().unwrap();
        let stray = &frames::hostile(Direction::Transmit)[0].1;
        eprintln!(
            "slots: rx {}, tx {}, uplink {}",
            super::interpreted::receive_program().len() / 8,
            super::interpreted::transmit_program().len() / 8,
            super::interpreted::uplink_program().len() / 8
        );
        for (what, program, frame) in [
            ("pass (the harness)", &nothing, &rx),
            ("rx TCP", plain.program(Direction::Receive), &rx),
            ("rx TCP, peer list", full.program(Direction::Receive), &rx),
            ("tx TCP", plain.program(Direction::Transmit), &tx),
            ("tx TCP, peer list and rate", full.program(Direction::Transmit), &tx),
            ("tx ARP", plain.program(Direction::Transmit), &arp),
            ("tx TCP, foreign port", plain.program(Direction::Transmit), stray),
            ("uplink to a VNIC", uplink.program(), &rx),
            ("uplink to the host", uplink.program(), &tx),
        ] {
            let run = program.test_run(frame, RUNS).unwrap();
            eprintln!("{what:28} {:4} ns, verdict {}", run.nanoseconds, run.verdict);
        }
    });
}
