//! TCP, UDP, timers and storage complete in one loop that sleeps whenever it can: nothing waits for
//! anything but its own device.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use sietch::disk::{AreaQueue, Buffer, MemoryQueue, open_area};
use sietch::net::Config;
use sietch::nic::shm::{Endpoint, EndpointFds, LinkLayout, create_pair};
use sietch::nic::{Frame, NicQueue, Offloads, TransmitError, Untrusted};
use sietch::persist::{FormatOptions, Log, Options};
use sietch::{Doorbell, Net, Runtime, Spin, VnicQueue};

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

fn address(port: u16) -> SocketAddr {
    (SERVER, port).into()
}

fn open(fds: EndpointFds, host: u8) -> VnicQueue {
    let mac = [2, 0, 0, 0, 0, host];
    Endpoint::open(fds, LinkLayout::for_mtu(1500), mac, 1500).expect("it is new").into()
}

fn config(host: u8) -> Config {
    Config::new(Ipv4Addr::new(10, 0, 0, host), 24, [host; 16])
}

/// Storage with a doorbell where the machine has one to give: io_uring over a file of its own,
/// which has no name any more.
fn storage(name: &str) -> AreaQueue {
    const BYTES: usize = 4 << 20;
    let path = std::env::temp_dir().join(format!("sietch-one-loop-{name}-{}", std::process::id()));
    let file = std::fs::File::options().create(true).truncate(true).read(true).write(true).open(&path);
    let file = file.expect("there is a place for files");
    std::fs::remove_file(&path).expect("it was just made");
    file.set_len(BYTES as u64).expect("there is room");
    // A file system in memory may refuse direct I/O.
    open_area(OwnedFd::from(file), BYTES as u64)
        .unwrap_or_else(|_| AreaQueue::Memory(MemoryQueue::new(BYTES)))
}

/// Sends back received bytes, over TCP and UDP.
fn echo(net: &Net) {
    let mut listener = net.listen(7, 16).expect("the port is free");
    let mut socket = net.bind(7).expect("the port is free");
    let spawner = net.clone();
    net.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            spawner.spawn(async move {
                while let Ok(Some(buffer)) = stream.read_zero_copy().await {
                    let (first, second) = buffer.slices();
                    let bytes = [first, second].concat();
                    if stream.write_all(&bytes).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    net.spawn(async move {
        while let Ok(datagram) = socket.receive().await {
            if socket.send_to(&datagram.payload, datagram.remote).await.is_err() {
                break;
            }
        }
    });
}

/// Uses everything at a time, each in a task of its own.
async fn everything(net: Net) {
    const ROUNDS: usize = 50;
    let mut area = storage("log");
    Log::format(&mut area, FormatOptions::new(7)).expect("it fits");
    let (log, _) = Log::open(area, Options::default(), &mut |_| Ok(())).expect("it was just formatted");
    let log = net.log(log).expect("descriptors are left");
    let disk = net.disk(storage("disk")).expect("descriptors are left");
    let handle = net.clone();
    let tcp = net.spawn(async move {
        let mut stream = handle.connect(address(7)).await.expect("it listens");
        for round in 0..ROUNDS {
            let sent = vec![round as u8; 3000];
            stream.write_all(&sent).await.expect("it is open");
            let mut received = vec![0; sent.len()];
            stream.read_exact(&mut received).await.expect("it echoes");
            assert_eq!(received, sent);
        }
    });
    let mut socket = net.bind(5000).expect("the port is free");
    let udp = net.spawn(async move {
        for round in 0..ROUNDS {
            socket.send_to(&[round as u8; 64], address(7)).await.expect("it is on the link");
            assert_eq!(socket.receive().await.expect("it is bound").payload, [round as u8; 64]);
        }
    });
    let handle = net.clone();
    let timer = net.spawn(async move {
        let mut ticks = handle.interval(Duration::from_millis(1));
        for _ in 0..ROUNDS {
            ticks.tick().await;
        }
    });
    let blocks = net.spawn(async move {
        let mut buffer = Buffer::new(4096);
        for round in 0..ROUNDS {
            buffer.fill(round as u8);
            let written;
            (written, buffer) = disk.write(round as u64 * 4096, 4096, buffer, true).await;
            written.expect("it is inside");
            buffer.fill(0);
            let read;
            (read, buffer) = disk.read(round as u64 * 4096, 4096, buffer).await;
            read.expect("it is inside");
            assert!(buffer.iter().all(|byte| *byte == round as u8));
        }
    });
    let records = net.spawn(async move {
        for round in 0..ROUNDS {
            let sequence = log.append(&[round as u8; 100]).await.expect("there is room");
            assert!(log.with(|log| log.durable() >= sequence));
        }
    });
    for task in [tcp, udp, timer, blocks, records] {
        task.await.expect("the task is not aborted");
    }
}

#[test]
fn sockets_timers_and_storage_complete_in_one_loop_that_sleeps() {
    let pair = create_pair(LinkLayout::for_mtu(1500), 1).expect("memory and descriptors are left");
    let (near, far) = (pair.near, pair.far);
    let server = std::thread::spawn(move || {
        let runtime = Runtime::new(open(far, 2), &config(2)).expect("descriptors are left");
        runtime.with_spin(Spin::up_to(0)).run(async |net| {
            echo(&net);
            std::future::pending::<()>().await;
        })
    });
    // Without spinning every pause is a sleep: if a notification is lost, the test hangs.
    let runtime = Runtime::new(open(near, 1), &config(1)).expect("descriptors are left");
    runtime.with_spin(Spin::up_to(0)).run(everything).expect("the link is whole");
    pair.revocation.revoke().expect("the regions are there");
    assert!(server.join().expect("it does not panic").is_err(), "a revoked link ends the loop");
}

/// A queue that counts how often it is polled.
struct Watched {
    queue: VnicQueue,
    receives: Arc<AtomicU64>,
}

impl NicQueue for Watched {
    fn mac(&self) -> [u8; 6] {
        self.queue.mac()
    }
    fn mtu(&self) -> usize {
        self.queue.mtu()
    }
    fn receive(&mut self, out: &mut Vec<Frame>, limit: usize) -> usize {
        self.receives.fetch_add(1, Ordering::Relaxed);
        self.queue.receive(out, limit)
    }
    fn bytes(&self, frame: &Frame) -> &[u8] {
        self.queue.bytes(frame)
    }
    fn tail(&self, frame: &Frame) -> Untrusted<'_> {
        self.queue.tail(frame)
    }
    fn bytes_mut(&mut self, frame: &mut Frame) -> &mut [u8] {
        self.queue.bytes_mut(frame)
    }
    fn allocate(&mut self, length: usize) -> Option<Frame> {
        self.queue.allocate(length)
    }
    fn offloads(&self) -> Offloads {
        self.queue.offloads()
    }
    fn release(&mut self, frame: Frame) {
        self.queue.release(frame);
    }
    fn transmit(&mut self, frame: Frame) -> Result<(), TransmitError> {
        self.queue.transmit(frame)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        self.queue.flush()
    }
    fn free_buffers(&self) -> usize {
        self.queue.free_buffers()
    }
}

impl Doorbell for Watched {
    fn doorbell(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.queue.doorbell()
    }
    fn arm(&mut self) -> bool {
        self.queue.arm()
    }
    fn disarm(&mut self) {
        self.queue.disarm();
    }
}

#[test]
fn a_server_with_ten_silent_connections_sleeps_until_one_speaks() {
    let pair = create_pair(LinkLayout::for_mtu(1500), 1).expect("memory and descriptors are left");
    let (near, far) = (pair.near, pair.far);
    let receives = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&receives);
    let server = std::thread::spawn(move || {
        let queue = Watched { queue: open(far, 2), receives: counter };
        let runtime = Runtime::new(queue, &config(2)).expect("descriptors are left");
        runtime.run(async |net| {
            echo(&net);
            std::future::pending::<()>().await;
        })
    });
    let (ask, asked) = channel::<()>();
    let (answer, answered) = channel();
    let client = std::thread::spawn(move || {
        let runtime = Runtime::new(open(near, 1), &config(1)).expect("descriptors are left");
        let conversation = runtime.run(async move |net| {
            let mut streams = Vec::new();
            for _ in 0..10 {
                let mut stream = net.connect(address(7)).await.expect("it listens");
                stream.write_all(b"x").await.expect("it is open");
                stream.read_exact(&mut [0]).await.expect("it echoes");
                streams.push(stream);
            }
            // The last delayed acknowledgement leaves meanwhile, on both sides.
            net.sleep(Duration::from_millis(100)).await;
            answer.send(()).expect("the test listens");
            // It blocks this side's loop while the test checks the other.
            asked.recv().expect("the test asks");
            streams[3].write_all(b"y").await.expect("it is open");
            streams[3].read_exact(&mut [0]).await.expect("the server wakes");
            answer.send(()).expect("the test listens");
        });
        conversation.expect("the link is whole");
    });
    answered.recv().expect("all connect");
    let before = receives.load(Ordering::Relaxed);
    // This waits for nothing. It gives a loop that does not sleep the time to show it: such a loop
    // polls a million times a second.
    std::thread::sleep(Duration::from_millis(200));
    let idle = receives.load(Ordering::Relaxed) - before;
    assert!(idle <= 1000, "an idle server polled its queue {idle} times");
    ask.send(()).expect("the client waits");
    answered.recv().expect("the server wakes");
    client.join().expect("it does not panic");
    pair.revocation.revoke().expect("the regions are there");
    assert!(server.join().expect("it does not panic").is_err());
}
