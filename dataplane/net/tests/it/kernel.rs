//! The engine against the Linux kernel's TCP, across a wire that loses, repeats and reorders. Needs
//! root; skips itself otherwise.

#[path = "tap/mod.rs"]
mod tap;
#[path = "veth/mod.rs"]
mod veth;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use sietch_net::{CloseReason, Config, Engine, Event, EventKind, FlowId};
use sietch_nic::NicQueue;
use sietch_sim::lossy::Rates;
use tap::{Damage, Tap};
use veth::Veth;
use veth::pair::{Plan, enter_namespace};

const KERNEL: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const ENGINE: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
const PORT: u16 = 7000;
const BAD: Damage = Damage { lose: 10, duplicate: 10, reorder: 10 };
/// A transfer that takes longer hangs: the slowest seen took a tenth of it.
const PATIENCE: Duration = Duration::from_secs(300);

/// A queue that can be waited for.
trait Wire: NicQueue {
    fn wait(&self, milliseconds: i32);
}

impl Wire for Tap {
    fn wait(&self, milliseconds: i32) {
        Tap::wait(self, milliseconds);
    }
}

impl Wire for Veth {
    fn wait(&self, milliseconds: i32) {
        Veth::wait(self, milliseconds);
    }
}

/// Runs `test` on a thread in a namespace of its own with a TAP queue, or says that it cannot.
fn with_tap(name: &str, damage: Damage, test: impl FnOnce(Tap) + Send + 'static) {
    let name = name.to_owned();
    let thread = std::thread::spawn(move || {
        if !enter_namespace() {
            eprintln!("SKIPPED {name}: needs root (CAP_SYS_ADMIN) for a network namespace of its own");
            return;
        }
        match Tap::new(KERNEL.octets(), damage, 0x5eed_1234_5678_9abc) {
            Ok(tap) => test(tap),
            Err(error) => eprintln!("SKIPPED {name}: needs /dev/net/tun and root ({error})"),
        }
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Byte `index` of the stream that flows in the direction with this `salt`.
fn byte(index: usize, salt: usize) -> u8 {
    (index.wrapping_mul(0x9e37_79b1).wrapping_add(salt) >> 11) as u8
}

fn fill(buffer: &mut [u8], from: usize, salt: usize) {
    for (offset, to) in buffer.iter_mut().enumerate() {
        *to = byte(from + offset, salt);
    }
}

fn check(buffer: &[u8], from: usize, salt: usize) {
    let wrong = buffer.iter().enumerate().find(|(offset, got)| **got != byte(from + offset, salt));
    assert!(wrong.is_none(), "byte {} of direction {salt} is wrong", from + wrong.map_or(0, |entry| entry.0));
}

/// The kernel's side: writes and reads `total` bytes each way at once, and half-closes.
fn kernel_side(stream: TcpStream, total: usize) {
    let mut writing = stream.try_clone().expect("a socket can be cloned");
    let writer = std::thread::spawn(move || {
        let (mut buffer, mut sent) = (vec![0; 64 << 10], 0);
        while sent < total {
            let length = buffer.len().min(total - sent);
            fill(&mut buffer[..length], sent, 1);
            writing.write_all(&buffer[..length]).expect("the engine takes it");
            sent += length;
        }
        writing.shutdown(Shutdown::Write).expect("the connection is open");
    });
    let (mut reading, mut buffer, mut got) = (stream, vec![0; 64 << 10], 0);
    loop {
        let length = reading.read(&mut buffer).expect("the engine sends it");
        if length == 0 {
            break;
        }
        check(&buffer[..length], got, 2);
        got += length;
    }
    assert_eq!(got, total);
    writer.join().expect("the writer did not panic");
}

/// The engine's side of one flow.
struct Transfer {
    flow: FlowId,
    total: usize,
    sent: usize,
    got: usize,
    buffer: Vec<u8>,
}

impl Transfer {
    fn work(&mut self, engine: &mut Engine) {
        let (first, second) = engine.received(self.flow);
        check(first, self.got, 1);
        check(second, self.got + first.len(), 1);
        let length = first.len() + second.len();
        self.got += length;
        engine.consume(self.flow, length);
        while self.sent < self.total {
            let length = engine.send_space(self.flow).min(self.buffer.len()).min(self.total - self.sent);
            fill(&mut self.buffer[..length], self.sent, 2);
            let taken = engine.send(self.flow, &self.buffer[..length]);
            self.sent += taken;
            if self.sent == self.total {
                engine.shutdown_send(self.flow);
            }
            if taken == 0 {
                break;
            }
        }
    }
}

/// Drives the engine until its flow has closed.
fn drive(tap: &mut impl Wire, engine: &mut Engine, total: usize) -> CloseReason {
    let start = Instant::now();
    let (mut events, mut transfer) = (Vec::<Event>::new(), None::<Transfer>);
    loop {
        assert!(
            start.elapsed() < PATIENCE,
            "hangs: {:?}",
            transfer.map(|it| (it.sent, it.got, engine.flow_info(it.flow)))
        );
        let now = start.elapsed().as_nanos() as u64 + 1;
        let (_, mut more) = engine.receive(tap, now);
        engine.take_events(&mut events);
        for event in events.drain(..) {
            match event.kind {
                EventKind::Accepted { .. } | EventKind::Connected => {
                    transfer = Some(Transfer {
                        flow: event.flow,
                        total,
                        sent: 0,
                        got: 0,
                        buffer: vec![0; 64 << 10],
                    });
                }
                EventKind::Closed(reason) => {
                    let transfer = transfer.expect("it was open");
                    assert_eq!((transfer.sent, transfer.got), (total, total));
                    engine.emit(tap, now).expect("the tap stays");
                    return reason;
                }
                _ => {}
            }
        }
        if let Some(transfer) = &mut transfer {
            transfer.work(engine);
        }
        more |= engine.emit(tap, now).expect("the tap stays").more;
        if !more {
            let wait =
                engine.next_deadline().map_or(100, |at| at.saturating_sub(now).div_ceil(1_000_000).min(100));
            tap.wait(wait as i32);
        }
    }
}

fn engine_on(tap: &impl NicQueue) -> Engine {
    Engine::new(&Config::new(ENGINE, 24, *b"sixteen secrets!"), tap.mac(), tap.mtu())
}

fn serve(tap: &mut impl Wire, total: usize) {
    let mut engine = engine_on(tap);
    engine.listen(PORT, 16).expect("the port is free");
    let kernel = std::thread::spawn(move || {
        let stream = TcpStream::connect(SocketAddr::from((ENGINE, PORT))).expect("the engine accepts");
        kernel_side(stream, total);
    });
    assert_eq!(drive(tap, &mut engine, total), CloseReason::Normal);
    // The engine continues until the kernel's side has its last acknowledgement.
    let start = Instant::now();
    while !kernel.is_finished() && start.elapsed() < PATIENCE {
        engine.poll(tap, 300_000_000_000 + start.elapsed().as_nanos() as u64).expect("the tap stays");
        tap.wait(5);
    }
    kernel.join().expect("the kernel's side is content");
    assert_eq!(engine.metrics().bad_checksum, 0);
}

#[test]
fn megabytes_both_ways_across_a_bad_wire() {
    with_tap("megabytes_both_ways_across_a_bad_wire", BAD, |mut tap| serve(&mut tap, 10_000_000));
}

#[test]
fn a_hundred_megabytes_both_ways_across_a_veth_behind_its_filters() {
    const NAME: &str = "a_hundred_megabytes_both_ways_across_a_veth_behind_its_filters";
    let thread = std::thread::spawn(|| {
        if !enter_namespace() {
            eprintln!("SKIPPED {NAME}: needs root (CAP_SYS_ADMIN) for a network namespace of its own");
            return;
        }
        let rates = Rates { loss: 10, duplication: 10, reordering: 10 };
        let plan = Plan {
            host: KERNEL,
            address: ENGINE,
            ipv6: None,
            ports: PORT..=PORT,
            mtu: 1500,
            unfinished: false,
        };
        let mut veth = match Veth::new(&plan, rates, 0x5eed) {
            Ok(veth) => veth,
            Err(error) => {
                eprintln!("SKIPPED {NAME}: needs root, the `ip` command and AF_XDP ({error})");
                return;
            }
        };
        let free = veth.free_buffers();
        serve(&mut veth, 100_000_000);
        let done = veth.done();
        assert!(done.lost > 500 && done.duplicated > 500 && done.reordered > 500, "{done:?}");
        assert_eq!(veth.refused(), [], "the filter drops frames that the engine may send");
        assert!(veth.free_buffers() <= free);
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn the_engine_connects_to_the_kernel() {
    with_tap("the_engine_connects_to_the_kernel", BAD, |mut tap| {
        let mut engine = engine_on(&tap);
        let listener = TcpListener::bind(SocketAddr::from((KERNEL, PORT))).expect("the address is there");
        let total = 5_000_000;
        let kernel = std::thread::spawn(move || {
            let (stream, _) = listener.accept().expect("the engine connects");
            kernel_side(stream, total);
        });
        engine.connect(SocketAddrV4::new(KERNEL, PORT), 1).expect("there is a route");
        assert_eq!(drive(&mut tap, &mut engine, total), CloseReason::Normal);
        let start = Instant::now();
        while !kernel.is_finished() && start.elapsed() < PATIENCE {
            engine
                .poll(&mut tap, 300_000_000_000 + start.elapsed().as_nanos() as u64)
                .expect("the tap stays");
            tap.wait(5);
        }
        kernel.join().expect("the kernel's side is content");
    });
}

#[test]
fn a_port_without_a_listener_refuses_the_kernel() {
    with_tap(
        "a_port_without_a_listener_refuses_the_kernel",
        Damage { lose: 0, duplicate: 0, reorder: 0 },
        |mut tap| {
            let mut engine = engine_on(&tap);
            let kernel =
                std::thread::spawn(|| TcpStream::connect(SocketAddr::from((ENGINE, 81))).map(|_| ()));
            let start = Instant::now();
            while !kernel.is_finished() && start.elapsed() < PATIENCE {
                engine.poll(&mut tap, start.elapsed().as_nanos() as u64 + 1).expect("the tap stays");
                tap.wait(5);
            }
            let error = kernel.join().expect("no panic").expect_err("no listener");
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
        },
    );
}
