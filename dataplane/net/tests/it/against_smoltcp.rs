//! The engine against smoltcp, an independent implementation, across a wire with loss, in virtual
//! time.

use std::collections::VecDeque;

use crate::harness::{Host, MILLISECOND, SECOND, SERVER_PORT};
use sietch_net::{EventKind, FlowId};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp::{Socket, SocketBuffer};
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpCidr, Ipv4Address};

const TOTAL: usize = 200_000;

#[derive(Default)]
struct Wire {
    arrived: VecDeque<Vec<u8>>,
    leaving: VecDeque<Vec<u8>>,
}

struct Arrived(Vec<u8>);
struct Leaving<'a>(&'a mut VecDeque<Vec<u8>>);

impl RxToken for Arrived {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(&self.0)
    }
}

impl TxToken for Leaving<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, write: F) -> R {
        let mut frame = vec![0; length];
        let result = write(&mut frame);
        self.0.push_back(frame);
        result
    }
}

impl Device for Wire {
    type RxToken<'a> = Arrived;
    type TxToken<'a> = Leaving<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Arrived, Leaving<'_>)> {
        self.arrived.pop_front().map(|frame| (Arrived(frame), Leaving(&mut self.leaving)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Leaving<'_>> {
        Some(Leaving(&mut self.leaving))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = 1514;
        capabilities
    }
}

struct Other {
    interface: Interface,
    wire: Wire,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
    sent: usize,
    got: Vec<u8>,
}

fn byte(index: usize, salt: usize) -> u8 {
    (index * salt + index / 241) as u8
}

impl Other {
    fn new() -> Self {
        let mut wire = Wire::default();
        let address = HardwareAddress::Ethernet(EthernetAddress([2, 0, 0, 0, 0, 3]));
        let mut interface = Interface::new(Config::new(address), &mut wire, Instant::from_micros(0));
        interface.update_ip_addrs(|addresses| {
            addresses
                .push(IpCidr::new(Ipv4Address::new(10, 0, 0, 3).into(), 24))
                .expect("there is room for one");
        });
        let buffer = || SocketBuffer::new(vec![0; 65_536]);
        let mut sockets = SocketSet::new(Vec::new());
        let handle = sockets.add(Socket::new(buffer(), buffer()));
        Self { interface, wire, sockets, handle, sent: 0, got: Vec::new() }
    }

    fn socket(&mut self) -> &mut Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    fn work(&mut self, now: u64) {
        let now = Instant::from_micros((now / 1000) as i64);
        self.interface.poll(now, &mut self.wire, &mut self.sockets);
        let socket = self.sockets.get_mut::<Socket>(self.handle);
        let mut buffer = [0; 4096];
        while let Ok(length) = socket.recv_slice(&mut buffer) {
            if length == 0 {
                break;
            }
            self.got.extend_from_slice(&buffer[..length]);
        }
        while self.sent < TOTAL && socket.can_send() {
            let data: Vec<u8> =
                (self.sent..TOTAL.min(self.sent + 4096)).map(|index| byte(index, 3)).collect();
            self.sent += socket.send_slice(&data).expect("it can send");
            if self.sent == TOTAL {
                socket.close();
            }
        }
        self.interface.poll(now, &mut self.wire, &mut self.sockets);
    }
}

/// Both sides send at once, until each has all of the other's; `lose` frames of a thousand are
/// lost.
fn transfer(engine_connects: bool, seed: u64, lose: u64) {
    let (mut host, mut other) = (Host::new(2, |_| {}), Other::new());
    let mut now = SECOND;
    let mut flow = FlowId::NONE;
    if engine_connects {
        other.socket().listen(SERVER_PORT).expect("the port is free");
        flow = host
            .engine
            .connect(std::net::SocketAddrV4::new([10, 0, 0, 3].into(), SERVER_PORT), now)
            .expect("there is a route");
    } else {
        host.engine.listen(SERVER_PORT, 8).expect("the port is free");
        let Other { interface, sockets, handle, .. } = &mut other;
        let remote = (Ipv4Address::new(10, 0, 0, 2), SERVER_PORT);
        sockets
            .get_mut::<Socket>(*handle)
            .connect(interface.context(), remote, 4000)
            .expect("it is closed yet");
    }
    let mut random = seed;
    let mut lost = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 20) % 1000 < lose
    };
    let (mut sent, mut got) = (0, Vec::new());
    while now < 2000 * SECOND && (got.len() < TOTAL || other.got.len() < TOTAL) {
        other.work(now);
        host.poll(now);
        if flow == FlowId::NONE {
            flow = host.accepted().first().copied().unwrap_or(flow);
        }
        got.extend(host.read_all(flow));
        if !engine_connects || host.saw(flow, EventKind::Connected) {
            let data: Vec<u8> = (sent..TOTAL.min(sent + 8192)).map(|index| byte(index, 7)).collect();
            sent += host.engine.send(flow, &data);
            if sent == TOTAL {
                host.engine.shutdown_send(flow);
            }
        }
        host.poll(now);
        while let Some(frame) = host.tap.take_transmitted() {
            if !lost() {
                other.wire.arrived.push_back(frame);
            }
        }
        while let Some(frame) = other.wire.leaving.pop_front() {
            if !lost() {
                host.tap.deliver(&frame);
            }
        }
        now += if other.wire.arrived.is_empty() { MILLISECOND } else { 50_000 };
    }
    assert_eq!((got.len(), other.got.len()), (TOTAL, TOTAL), "seed {seed}");
    assert!(got.iter().enumerate().all(|(index, got)| *got == byte(index, 3)), "seed {seed}");
    assert!(other.got.iter().enumerate().all(|(index, got)| *got == byte(index, 7)), "seed {seed}");
}

#[test]
fn exchanges_data_with_smoltcp_that_connects() {
    transfer(false, 1, 0);
    for seed in 1..8 {
        transfer(false, seed * 0x9e37_79b9, 20);
    }
}

#[test]
fn exchanges_data_with_smoltcp_that_listens() {
    transfer(true, 1, 0);
    for seed in 1..8 {
        transfer(true, seed * 0x9e37_79b9, 20);
    }
}
