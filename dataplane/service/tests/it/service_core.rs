//! A service core on a thread, two endpoints of shared memory on it, through commands alone.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::mpsc::channel;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use sietch_nic::NicQueue;
use sietch_nic::shm::{Endpoint, LinkLayout, Pair, create_pair};
use sietch_nic::xdp::VnicSpec;
use sietch_service::Snapshot;
use sietch_service::switch::{Command, run};

const MTU: usize = 9000;

fn spec(last: u8) -> VnicSpec {
    VnicSpec {
        mac: [2, 0, 0, 0, 0, last],
        address: Ipv4Addr::new(10, 0, 0, last),
        address6: None,
        tcp_ports: Vec::new(),
        udp_ports: vec![7000..=7000],
        peers: Vec::new(),
        peers6: Vec::new(),
        rate: None,
        burst: 0,
        uplink: None,
        host_mac: [2, 0, 0, 0, 0xff, last],
        generation: 1,
    }
}

fn datagram(length: usize) -> Vec<u8> {
    let mut frame = vec![9; length];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
    let total = ((length - 14) as u16).to_be_bytes();
    frame[14..24].copy_from_slice(&[0x45, 0, total[0], total[1], 0, 0, 0x40, 0, 64, 17]);
    frame[26..38].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2, 0x1b, 0x58, 0x1b, 0x58]);
    frame
}

/// Sleeps until a frame comes, as an application does.
fn receive(endpoint: &mut Endpoint) -> Vec<u8> {
    let mut frames = Vec::new();
    while endpoint.receive(&mut frames, 1) == 0 {
        if !endpoint.arm() {
            let _ = poll(&mut [PollFd::new(&*endpoint, PollFlags::IN)], None);
        }
        endpoint.disarm();
    }
    let frame = frames.remove(0);
    let bytes = [endpoint.bytes(&frame).to_vec(), endpoint.tail(&frame).to_vec()].concat();
    endpoint.release(frame);
    bytes
}

#[test]
fn frames_pass_between_applications_while_ports_come_and_go() {
    let (sender, commands) = channel();
    let (removed, ended) = channel();
    let flags = EventfdFlags::NONBLOCK.union(EventfdFlags::CLOEXEC);
    let doorbell = eventfd(0, flags).expect("an eventfd");
    let own = doorbell.try_clone().expect("a descriptor");
    let snapshot = Arc::new(Snapshot::default());
    let shown = Arc::clone(&snapshot);
    let core = std::thread::spawn(move || run(&commands, &doorbell, &removed, &shown));
    let send = |command| {
        sender.send(command).expect("the core runs");
        rustix::io::write(&own, &1_u64.to_ne_bytes()).expect("the eventfd is open");
    };
    let layout = LinkLayout::for_mtu(MTU);
    let add = |last: u8| {
        let Pair { near, far, revocation } = create_pair(layout, 1).expect("memory for a link");
        let (reply, answer) = channel();
        send(Command::Add { id: u64::from(last), spec: spec(last), fds: near, layout, mtu: MTU, reply });
        answer.recv().expect("the core answers").expect("its own MAC and address");
        (Endpoint::open(far, layout, spec(last).mac, MTU).expect("a fresh grant"), revocation)
    };
    let (mut one, _first) = add(1);
    let (mut two, second) = add(2);
    for length in [60, 1500, 9014, 60] {
        let frame = datagram(length);
        let mut copy = one.allocate(length).expect("a fresh link");
        one.bytes_mut(&mut copy).copy_from_slice(&frame);
        one.transmit(copy).expect("an allocated frame has a slot");
        one.flush().expect("the core runs");
        assert_eq!(receive(&mut two), frame);
    }
    let (reply, report) = channel();
    send(Command::Report(reply));
    let report = report.recv().expect("the core answers");
    assert_eq!((report.len(), report[0].counters.sent_frames, report[1].counters.received_frames), (2, 4, 4));
    // The core sleeps, or is about to: it published its counters before.
    while snapshot.read() != report {
        std::thread::yield_now();
    }
    // Revoked by the control plane: the core removes it, and reports that.
    second.revoke().expect("both regions can be written");
    assert_eq!(ended.recv(), Ok(2));
    assert!(!two.is_alive());
    // The core notices an application that ends without a command.
    drop(one);
    assert_eq!(ended.recv(), Ok(1));
    send(Command::Stop);
    core.join().expect("no panic").expect("poll does not fail");
}
