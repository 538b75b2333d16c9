//! smoltcp, an independent TCP, on a simulated queue.

use std::net::Ipv4Addr;

use sietch_nic::wire::WireQueue;
use sietch_nic::{Frame, NicQueue};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp::{Socket, SocketBuffer};
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpCidr};

use super::conversation::piece;

/// A queue as smoltcp sees a device.
struct Port {
    queue: WireQueue,
    arrived: Vec<Frame>,
}

struct Arrived(Vec<u8>);
struct Leaving<'a>(&'a mut WireQueue);

impl RxToken for Arrived {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(&self.0)
    }
}

impl TxToken for Leaving<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, write: F) -> R {
        let mut bytes = vec![0; length];
        let result = write(&mut bytes);
        if let Some(mut frame) = self.0.allocate(length) {
            self.0.bytes_mut(&mut frame).copy_from_slice(&bytes);
            if let Err(full) = self.0.transmit(frame) {
                // As a device without room does.
                self.0.release(full.into_frame());
            }
        }
        result
    }
}

impl Device for Port {
    type RxToken<'a> = Arrived;
    type TxToken<'a> = Leaving<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Arrived, Leaving<'_>)> {
        if self.arrived.is_empty() {
            self.queue.receive(&mut self.arrived, 1);
        }
        let frame = self.arrived.pop()?;
        let bytes = self.queue.bytes(&frame).to_vec();
        self.queue.release(frame);
        Some((Arrived(bytes), Leaving(&mut self.queue)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Leaving<'_>> {
        Some(Leaving(&mut self.queue))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = self.queue.mtu() + 14;
        capabilities
    }
}

/// A host with one connection.
pub(super) struct SmoltcpHost {
    interface: Interface,
    port: Port,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
    /// Bytes that it sends before it closes its side.
    pub total: u64,
    pub sent: u64,
    pub received: u64,
}

fn instant(now: u64) -> Instant {
    Instant::from_micros((now / 1000) as i64)
}

impl SmoltcpHost {
    pub(super) fn new(queue: WireQueue, address: Ipv4Addr, total: u64) -> Self {
        let mac = HardwareAddress::Ethernet(EthernetAddress(queue.mac()));
        let mut port = Port { queue, arrived: Vec::new() };
        let mut interface = Interface::new(Config::new(mac), &mut port, instant(0));
        interface.update_ip_addrs(|addresses| {
            addresses.push(IpCidr::new(address.into(), 24)).expect("there is room for one");
        });
        let buffer = || SocketBuffer::new(vec![0; 65_536]);
        let mut sockets = SocketSet::new(Vec::new());
        let handle = sockets.add(Socket::new(buffer(), buffer()));
        Self { interface, port, sockets, handle, total, sent: 0, received: 0 }
    }

    pub(super) fn listen(&mut self, port: u16) {
        self.sockets.get_mut::<Socket>(self.handle).listen(port).expect("the port is free");
    }

    pub(super) fn connect(&mut self, remote: (Ipv4Addr, u16)) {
        let socket = self.sockets.get_mut::<Socket>(self.handle);
        socket.connect(self.interface.context(), remote, 40_000).expect("it is closed yet");
    }

    /// One iteration: frames, then the application, then frames again. `opener`: whether it opened
    /// the connection.
    pub(super) fn work(&mut self, now: u64, opener: bool) {
        self.interface.poll(instant(now), &mut self.port, &mut self.sockets);
        let socket = self.sockets.get_mut::<Socket>(self.handle);
        let mut bytes = [0; 4096];
        while let Ok(length @ 1..) = socket.recv_slice(&mut bytes) {
            let expected = piece(0, !opener, self.received, length);
            assert!(bytes[..length] == *expected, "wrong bytes after {}", self.received);
            self.received += length as u64;
        }
        while self.sent < self.total && socket.can_send() {
            let length = (self.total - self.sent).min(4096) as usize;
            let data = piece(0, opener, self.sent, length);
            self.sent += socket.send_slice(&data).expect("it can send") as u64;
        }
        if self.sent == self.total && socket.may_send() {
            socket.close();
        }
        self.interface.poll(instant(now), &mut self.port, &mut self.sockets);
        self.port.queue.flush().expect("the wire is not cut");
    }

    pub(super) fn next_deadline(&mut self, now: u64) -> Option<u64> {
        let at = self.interface.poll_at(instant(now), &self.sockets)?;
        // smoltcp counts in microseconds.
        Some((at.total_micros() as u64 * 1000).max(now + 1000))
    }
}
