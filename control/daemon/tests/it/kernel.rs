//! Real veths, sockets and programs, in a network namespace of the test's own. Needs root.

use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::scene::{self, Daemon, PATIENCE, Scene};
use rustix::thread::UnshareFlags;
use sietch_protocol::Target;

/// A user without any privilege.
const UNPRIVILEGED: u32 = 65534;

/// Runs `test` on a thread with a network namespace of its own, which ends with it.
fn in_own_network(name: &str, test: impl FnOnce() + Send + 'static) {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED {name}: needs root");
        return;
    }
    let run = move || {
        // SAFETY: only this thread leaves the namespace, and it shares no other state with the rest
        // by that.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }.expect("a network namespace");
        ip(&["link", "set", "lo", "up"]);
        test();
    };
    if let Err(panic) = std::thread::spawn(run).join() {
        std::panic::resume_unwind(panic);
    }
}

fn ip(arguments: &[&str]) -> String {
    let output = scene::starting(|| Command::new("ip").args(arguments).output()).expect("iproute2");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("{out}{err}")
}

/// The daemon's thread inherits the namespace of the thread that starts it.
fn start(scene: &Scene) -> Daemon {
    let end = Instant::now() + PATIENCE;
    loop {
        let daemon = scene.start_with(|options, _| sietch_daemon::run_async(options));
        if daemon.started {
            return daemon;
        }
        // A program that another test is just starting has the lock of a crashed daemon until it is
        // that program.
        let why = format!("{:?}", daemon.ended());
        assert!(why.contains("AlreadyRunning") && Instant::now() < end, "the daemon did not start: {why}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn offloads() -> String {
    let output = scene::starting(|| Command::new("ethtool").args(["-k", "wire"]).output()).expect("ethtool");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn links() -> String {
    ip(&["-o", "link"])
}

#[test]
fn an_unprivileged_process_gets_a_vnic_that_ends_with_it() {
    in_own_network("an_unprivileged_process_gets_a_vnic_that_ends_with_it", || {
        let scene = Scene::new("vnic", UNPRIVILEGED);
        let daemon = start(&scene);
        let mut application = scene.application(Some(UNPRIVILEGED));
        assert!(application.command("capabilities", "CAPABILITIES").ends_with("0000000000000000"));
        let granted = application.command("vnic", "GRANT");
        assert!(!granted.contains("refused"), "{granted}");
        assert!(application.command("status", "STATUS").contains("no administrator"));
        let shown = links();
        assert!(
            shown.contains("sv-kv@") && !shown.contains("sv-kv-a"),
            "the other end is elsewhere: {shown}"
        );
        assert!(ip(&["route"]).contains("10.83.0.2 dev sv-kv"), "{}", ip(&["route"]));
        assert!(ip(&["neigh"]).contains("PERMANENT"), "{}", ip(&["neigh"]));
        assert!(!ip(&["-6", "addr", "show", "sv-kv"]).contains("inet6"));
        let problem = || scene.status().vnics[0].problem.clone();
        assert!(problem().expect("it is not bound").contains("has not mapped the rings"));
        assert_eq!(application.command("open", "OPENED"), "Ok(())");
        assert_eq!(problem(), None);
        assert!(application.command("bind", "BOUND").contains("bound already"));
        scene.wait_for("the grant that could not be bound to end", |status| status.vnics[0].holder.is_none());
        assert!(!links().contains("sv-kv"), "{}", links());
        assert!(!application.command("vnic", "GRANT").contains("refused"));
        application.kill();
        scene.wait_for("the VNIC to end", |status| status.vnics[0].holder.is_none());
        assert!(!links().contains("sv-kv"), "{}", links());
        scene.connect().shutdown().unwrap();
        daemon.ended().unwrap();
    });
}

/// A TCP segment that the VNIC `kv` may send: `change` forges it.
fn segment(vnic: &sietch::Vnic, change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut frame = Vec::new();
    frame.extend(vnic.description.gateway_mac.unwrap().0);
    frame.extend(vnic.description.mac.0);
    frame.extend([8, 0]);
    frame.extend([0x45, 0, 0, 40, 0, 1, 0x40, 0, 64, 6, 0, 0, 10, 83, 0, 2, 10, 83, 0, 1]);
    frame.extend(6379_u16.to_be_bytes());
    frame.extend(1234_u16.to_be_bytes());
    frame.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, 4, 0, 0, 0, 0, 0, 0]);
    change(&mut frame);
    frame
}

/// Sends a frame as often as a queue takes it, which need not be once.
fn send(queue: &mut sietch::VnicQueue, bytes: &[u8]) {
    use sietch::nic::NicQueue as _;
    if let Some(mut frame) = queue.allocate(bytes.len()) {
        queue.bytes_mut(&mut frame).copy_from_slice(bytes);
        // A queue whose VNIC has ended says so, or not.
        let _ = queue.transmit(frame);
        let _ = queue.flush();
    }
}

/// Frames of the VNIC `kv` that the host has got.
fn sent(scene: &Scene) -> u64 {
    let groups = scene.connect().stat().unwrap();
    let vnic = groups.iter().find(|group| group.source == "vnic kv").expect("its counters");
    vnic.metrics.iter().find(|metric| metric.name == "transmitted.frames").unwrap().value
}

#[test]
fn forged_frames_and_those_of_a_revoked_holder_reach_no_host() {
    in_own_network("forged_frames_and_those_of_a_revoked_holder_reach_no_host", || {
        let scene = Scene::own("forged");
        let daemon = start(&scene);
        let connect = || sietch::Client::connect(&scene.socket(), "forger").unwrap();
        let mut first = connect();
        let mut old = first.acquire_vnic("kv").unwrap();
        let honest = segment(&old, |_| {});
        let forged = [
            ("another source address", segment(&old, |frame| frame[29] = 3)),
            ("another MAC", segment(&old, |frame| frame[11] ^= 1)),
            ("another port", segment(&old, |frame| frame[35] ^= 1)),
            ("a VLAN tag", segment(&old, |frame| drop(frame.splice(12..12, [0x81, 0, 0, 5])))),
            ("a header longer than the packet", segment(&old, |frame| frame[14] = 0x4f)),
            ("IPv6", segment(&old, |frame| (frame[12], frame[13], frame[14]) = (0x86, 0xdd, 0x60))),
            (
                "an answer to ARP for the host",
                segment(&old, |frame| {
                    let own: Vec<u8> = frame[6..12].to_vec();
                    frame.splice(12.., [8, 6, 0, 1, 8, 0, 6, 4, 0, 2]);
                    frame.extend(own);
                    frame.extend([10, 83, 0, 1, 0, 0, 0, 0, 0, 0, 10, 83, 0, 1]);
                    frame.resize(60, 0);
                }),
            ),
        ];
        let arrive = |count: u64| {
            let end = Instant::now() + PATIENCE;
            while sent(&scene) < count {
                assert!(Instant::now() < end, "an honest frame does not arrive");
            }
        };
        for (number, (what, frame)) in (0..).zip(&forged) {
            send(&mut old.queue, frame);
            send(&mut old.queue, &honest);
            arrive(number + 1);
            assert_eq!(sent(&scene), number + 1, "{what} has passed");
        }

        scene.connect().revoke(Target::Name("kv".to_owned())).unwrap();
        scene.connect().restore("kv").unwrap();
        let mut second = connect();
        let mut new = second.acquire_vnic("kv").unwrap();
        for _ in 0..8 {
            send(&mut old.queue, &honest);
        }
        send(&mut new.queue, &honest);
        arrive(1);
        assert_eq!(sent(&scene), 1, "the revoked queue sends through its successor's device");
        assert_ne!(old.description.generation, new.description.generation);
        drop((old, first));
        send(&mut new.queue, &honest);
        arrive(2);
        drop((new, second));
        scene.connect().shutdown().unwrap();
        daemon.ended().unwrap();
    });
}

/// Calls `work` with the bytes of all free buffers of a queue, and returns how many there are.
fn all_buffers(queue: &mut sietch::VnicQueue, mut work: impl FnMut(&mut [u8])) -> usize {
    use sietch::nic::NicQueue as _;
    let length = queue.mtu() + 14;
    let mut frames: Vec<_> = std::iter::from_fn(|| queue.allocate(length)).collect();
    frames.iter_mut().for_each(|frame| work(queue.bytes_mut(frame)));
    let count = frames.len();
    frames.into_iter().for_each(|frame| queue.release(frame));
    count
}

#[test]
fn buffers_of_a_vnic_hold_nothing_of_its_earlier_holders() {
    in_own_network("buffers_of_a_vnic_hold_nothing_of_its_earlier_holders", || {
        const SECRET: u8 = 0x5e;
        let scene = Scene::own("buffers");
        let daemon = start(&scene);
        let connect = || sietch::Client::connect(&scene.socket(), "holder").unwrap();
        let is_zeros = |bytes: &mut [u8]| assert!(bytes.iter().all(|byte| *byte == 0));
        let (mut first, mut second, mut third) = (connect(), connect(), connect());
        let mut released = first.acquire_vnic("kv").unwrap();
        let count = all_buffers(&mut released.queue, |bytes| bytes.fill(SECRET));
        assert!(count > 16, "{count} buffers");
        let grant = released.grant.clone();
        drop(released);
        first.release(&grant).unwrap();
        let mut revoked = second.acquire_vnic("kv").unwrap();
        assert_eq!(all_buffers(&mut revoked.queue, is_zeros), count);

        // A revoked holder has its memory still, and writes to it.
        all_buffers(&mut revoked.queue, |bytes| bytes.fill(SECRET));
        scene.connect().revoke(Target::Name("kv".to_owned())).unwrap();
        scene.connect().restore("kv").unwrap();
        let mut new = third.acquire_vnic("kv").unwrap();
        all_buffers(&mut revoked.queue, |bytes| bytes.fill(SECRET));
        assert_eq!(all_buffers(&mut new.queue, is_zeros), count);
        drop((revoked, second, new, third));
        scene.connect().shutdown().unwrap();
        daemon.ended().unwrap();
    });
}

#[test]
fn a_successor_adopts_a_vnic_in_use_revokes_it_and_removes_orphans() {
    in_own_network("a_successor_adopts_a_vnic_in_use_revokes_it_and_removes_orphans", || {
        let scene = Scene::new("adopt", UNPRIVILEGED);
        let daemon = start(&scene);
        let mut application = scene.application(Some(UNPRIVILEGED));
        let held = application.command("vnic", "GRANT");
        assert_eq!(application.command("open", "OPENED"), "Ok(())");
        // The program receives and counts the frames of this attempt, whatever user runs the
        // daemon.
        let address = "10.83.0.2:6379".parse().unwrap();
        let attempt = TcpStream::connect_timeout(&address, Duration::from_millis(50));
        assert!(attempt.is_err(), "the application answers nothing");
        daemon.crash();
        assert!(links().contains("sv-kv@"), "a crash leaves what is in use");
        let data = scene.data().canonicalize().unwrap();
        let alias = ip(&["-d", "link", "show", "sv-kv"]);
        let alias =
            alias.lines().find_map(|line| line.trim().strip_prefix("alias ")).expect("an alias").to_owned();
        let orphan = format!("{}/orphan", alias.rsplit_once('/').unwrap().0);
        ip(&["link", "add", "sv-orphan", "type", "veth", "peer", "name", "sv-orphan-a"]);
        ip(&["link", "set", "sv-orphan", "alias", &orphan]);
        ip(&["link", "add", "sv-foreign", "type", "veth", "peer", "name", "sv-foreign-a"]);
        let daemon = start(&scene);
        assert!(!links().contains("sv-orphan"), "{} in {}", links(), data.display());
        assert!(links().contains("sv-foreign"), "a foreign interface is not removed");
        let holder = scene.status().vnics[0].holder.clone().expect("adopted");
        assert_eq!(scene.status().vnics[0].problem, None, "the successor watches the rings as well");
        assert_eq!(format!("{} {}", holder.grant, holder.generation), held);
        let groups = scene.connect().stat().unwrap();
        let vnic = groups.iter().find(|group| group.source == "vnic kv").expect("its counters");
        let frames = vnic.metrics.iter().find(|metric| metric.name == "received.frames").unwrap();
        assert!(frames.value > 0, "the counters of the programs outlive the daemon");
        scene.connect().revoke(Target::Grant(holder.grant)).unwrap();
        assert!(!links().contains("sv-kv"), "{}", links());
        scene.connect().shutdown().unwrap();
        daemon.ended().unwrap();
    });
}

#[test]
fn a_holder_that_makes_the_kernel_walk_is_killed_and_stays_revoked() {
    in_own_network("a_holder_that_makes_the_kernel_walk_is_killed_and_stays_revoked", || {
        for successor in [false, true] {
            let scene = Scene::new("walk", UNPRIVILEGED);
            let mut daemon = start(&scene);
            let mut application = scene.application(Some(UNPRIVILEGED));
            let granted = application.command("vnic", "GRANT");
            assert!(!granted.contains("refused"), "{granted}");
            assert_eq!(application.command("open", "OPENED"), "Ok(())");
            if successor {
                daemon.crash();
                daemon = start(&scene);
            }
            application.send_command("scribble");
            scene.wait_for("the VNIC to be revoked", |status| status.vnics[0].revoked);
            application.wait_for_end();
            let status = scene.wait_for("the VNIC to end", |status| status.vnics[0].holder.is_none());
            let warned = status.warnings.iter().any(|line| line.contains("fill ring claims"));
            assert!(warned, "{:?}", status.warnings);
            assert!(!links().contains("sv-kv"), "{}", links());
            scene.connect().shutdown().unwrap();
            daemon.ended().unwrap();
        }
    });
}

#[test]
fn a_successor_refuses_a_holder_that_hides_its_socket() {
    in_own_network("a_successor_refuses_a_holder_that_hides_its_socket", || {
        let scene = Scene::new("hidden", UNPRIVILEGED);
        let daemon = start(&scene);
        let mut application = scene.application(Some(UNPRIVILEGED));
        application.command("vnic", "GRANT");
        assert_eq!(application.command("open", "OPENED"), "Ok(())");
        assert_eq!(application.command("hide", "HID"), "");
        daemon.crash();
        let daemon = start(&scene);
        assert!(scene.status().vnics[0].holder.is_none(), "its rings could not be watched");
        assert!(!links().contains("sv-kv"), "{}", links());
        scene.connect().shutdown().unwrap();
        daemon.ended().unwrap();
    });
}

#[test]
fn status_reports_a_missing_interface() {
    in_own_network("status_reports_a_missing_interface", || {
        let scene = Scene::new("missing", UNPRIVILEGED);
        let daemon = start(&scene);
        let mut application = scene.application(Some(UNPRIVILEGED));
        application.command("vnic", "GRANT");
        assert_eq!(application.command("open", "OPENED"), "Ok(())");
        ip(&["link", "del", "sv-kv"]);
        let problem = scene.status().vnics[0].problem.clone().expect("nothing passes any more");
        assert!(problem.contains("sv-kv is missing"), "{problem}");
        scene.connect().shutdown().unwrap();
        daemon.ended().unwrap();
    });
}

fn with_ipv6() -> String {
    format!(
        "[[vnic]]\nname = \"kv\"\nuid = {UNPRIVILEGED}\naddress = \"10.83.0.2/24\"\nhost_address = \"10.83.0.1\"\n\
         address6 = \"fd83::2/64\"\nhost_address6 = \"fd83::1\"\ntcp_ports = [\"6379\"]\n\
         peers = [\"0.0.0.0/0\", \"fd83::/64\"]\n\n[[vsa]]\nname = \"kv\"\nuid = {UNPRIVILEGED}\nsize = \"1MiB\"\n"
    )
}

#[test]
fn a_vnic_has_ipv6_if_the_configuration_says_so_and_keeps_it_over_a_crash() {
    in_own_network("a_vnic_has_ipv6_if_the_configuration_says_so_and_keeps_it_over_a_crash", || {
        let scene = Scene::new("six", UNPRIVILEGED);
        scene.configure(&with_ipv6());
        let daemon = start(&scene);
        let mut application = scene.application(Some(UNPRIVILEGED));
        let granted = application.command("vnic", "GRANT");
        assert!(!granted.contains("refused"), "{granted}");
        let addresses = ip(&["-6", "-o", "addr", "show", "dev", "sv-kv"]);
        assert!(addresses.contains("fd83::1/128") && addresses.lines().count() == 1, "{addresses}");
        assert!(!addresses.contains("tentative"), "{addresses}");
        let route = ip(&["-6", "route", "get", "fd83::2"]);
        assert!(route.contains("dev sv-kv") && route.contains("src fd83::1"), "{route}");
        assert!(ip(&["-6", "neigh"]).contains("fd83::2 dev sv-kv"), "{}", ip(&["-6", "neigh"]));
        let shown = scene.status().vnics[0].address6.expect("an IPv6 address").to_string();
        assert_eq!(shown, "fd83::2/64");
        daemon.crash();
        let daemon = start(&scene);
        assert!(scene.status().vnics[0].holder.is_some(), "adopted");
        assert!(ip(&["-6", "route", "get", "fd83::2"]).contains("dev sv-kv"));
        let group = |scene: &Scene| {
            let groups = scene.connect().stat().unwrap();
            let vnic = groups.into_iter().find(|group| group.source == "vnic kv").expect("its counters");
            vnic.metrics.into_iter().find(|metric| metric.name == "received.frames").unwrap().value
        };
        let before = group(&scene);
        let attempt =
            TcpStream::connect_timeout(&"[fd83::2]:6379".parse().unwrap(), Duration::from_millis(50));
        assert!(attempt.is_err(), "the application answers nothing");
        let end = Instant::now() + PATIENCE;
        while group(&scene) == before {
            assert!(Instant::now() < end, "the filter passes granted traffic");
        }
        scene.connect().shutdown().unwrap();
        daemon.ended().unwrap();
        assert!(!links().contains("sv-kv"), "{}", links());
    });
}

#[test]
fn a_foreign_veth_is_not_touched() {
    in_own_network("a_foreign_veth_is_not_touched", || {
        let scene = Scene::new("foreign", UNPRIVILEGED);
        let _daemon = start(&scene);
        ip(&["link", "add", "sv-kv", "type", "veth", "peer", "name", "theirs"]);
        let mut application = scene.application(Some(UNPRIVILEGED));
        let refused = application.command("vnic", "GRANT");
        assert!(refused.contains("did not make") && refused.contains("ip link del sv-kv"), "{refused}");
        assert!(links().contains("theirs"));
        assert!(scene.status().vnics[0].holder.is_none());
    });
}

#[test]
fn a_vnic_joins_an_uplink() {
    in_own_network("a_vnic_joins_an_uplink", || {
        let scene = Scene::new("uplink", UNPRIVILEGED);
        scene.configure(&with_ipv6());
        ip(&["link", "add", "wire", "type", "veth", "peer", "name", "far"]);
        ip(&["link", "set", "wire", "up"]);
        ip(&["link", "set", "far", "up"]);
        let daemon = scene.start_with(|mut options, _| {
            options.uplink = Some("wire".to_owned());
            sietch_daemon::run_async(options)
        });
        let mut application = scene.application(Some(UNPRIVILEGED));
        let granted = application.command("vnic", "GRANT");
        assert!(!granted.contains("refused"), "{granted}");
        assert!(ip(&["link", "show", "wire"]).contains("xdp"));
        // XDP does not see tags that the device removes.
        assert!(offloads().contains("rx-vlan-offload: off"), "{}", offloads());
        assert!(!ip(&["route"]).contains("10.83.0.2"), "behind an uplink the host has no route of its own");
        assert!(!ip(&["-6", "route"]).contains("fd83::2") && !ip(&["-6", "addr"]).contains("fd83::1"));
        // Switches that snoop learn that the address is requested here.
        let groups = || ip(&["-6", "maddr", "show", "dev", "wire"]);
        assert!(groups().contains("ff02::1:ff00:2"), "{}", groups());
        scene.connect().shutdown().unwrap();
        daemon.ended().unwrap();
        assert!(!links().contains("sv-kv") && !ip(&["link", "show", "wire"]).contains("xdp"));
        assert!(!groups().contains("ff02::1:ff00:2"), "{}", groups());
        assert!(offloads().contains("rx-vlan-offload: on"), "as it was: {}", offloads());
    });
}

/// The IPv4 addresses for which the program on `wire` has a VNIC.
fn served() -> Vec<String> {
    let index = rustix::net::netdevice::name_to_index(
        rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None).unwrap(),
        "wire",
    );
    let uplink = sietch_nic::xdp::Uplink::adopt(index.unwrap()).unwrap();
    uplink.vnics().unwrap().into_iter().map(|(address, _)| address.to_string()).collect()
}

#[test]
fn a_successor_adds_only_live_vnics_to_the_uplink() {
    in_own_network("a_successor_adds_only_live_vnics_to_the_uplink", || {
        let scene = Scene::new("uplink-again", UNPRIVILEGED);
        scene.configure(&with_ipv6());
        ip(&["link", "add", "wire", "type", "veth", "peer", "name", "far"]);
        ip(&["link", "set", "wire", "up"]);
        ip(&["link", "set", "far", "up"]);
        let begin = || {
            scene.start_with(|mut options, _| {
                options.uplink = Some("wire".to_owned());
                sietch_daemon::run_async(options)
            })
        };
        let daemon = begin();
        let mut application = scene.application(Some(UNPRIVILEGED));
        assert!(!application.command("vnic", "GRANT").contains("refused"));
        assert_eq!(application.command("open", "OPENED"), "Ok(())");
        assert_eq!(served(), ["10.83.0.2"]);
        // The program is detached while no daemon runs: a new one gets the adopted VNICs.
        daemon.crash();
        ip(&["link", "set", "dev", "wire", "xdp", "off"]);
        let daemon = begin();
        assert!(scene.status().vnics[0].holder.is_some(), "adopted");
        assert_eq!(served(), ["10.83.0.2"]);
        // The application ends while no daemon runs: the program forgets it.
        daemon.crash();
        application.kill();
        assert_eq!(served(), ["10.83.0.2"], "it outlives both");
        let daemon = begin();
        assert_eq!(served(), [""; 0]);
        let tags = || {
            let all = offloads();
            let of = |name: &str| all.lines().any(|line| line.trim() == format!("{name}: on"));
            [of("rx-vlan-offload"), of("rx-vlan-stag-hw-parse")]
        };
        // XDP does not see tags that the device removes, nor those of 802.1ad.
        assert_eq!(tags(), [false; 2]);
        scene.connect().shutdown().unwrap();
        daemon.ended().unwrap();
        assert_eq!(tags(), [true; 2], "as before the first of three daemons");
        // A setting that another program has switched off remains off.
        ip(&["link", "del", "wire"]);
        ip(&["link", "add", "wire", "type", "veth", "peer", "name", "far"]);
        let mut ethtool = Command::new("ethtool");
        let off = scene::starting(|| ethtool.args(["-K", "wire", "rx-vlan-offload", "off"]).status());
        assert!(off.unwrap().success());
        let daemon = begin();
        assert_eq!(tags(), [false; 2]);
        scene.connect().shutdown().unwrap();
        daemon.ended().unwrap();
        assert_eq!(tags(), [false, true]);
    });
}

#[test]
fn a_holder_that_is_revoked_can_no_longer_write_its_area() {
    in_own_network("a_holder_that_is_revoked_can_no_longer_write_its_area", || {
        let scene = Scene::new("vsa", UNPRIVILEGED);
        let _daemon = start(&scene);
        let mut application = scene.application(Some(UNPRIVILEGED));
        let granted = application.command("vsa", "GRANT");
        assert!(!granted.contains("refused"), "{granted}");
        assert_eq!(application.command("write", "WROTE"), "Ok(4096)");
        let lines = scene.connect().revoke(Target::Name("kv".into())).unwrap();
        let wrote = application.command("write", "WROTE");
        if lines.iter().any(|line| line.contains("immutable")) {
            assert!(wrote.contains("Err"), "{wrote}: {lines:?}");
        } else {
            assert!(lines.iter().any(|line| line.contains("can still write")), "{lines:?}");
        }
    });
}
