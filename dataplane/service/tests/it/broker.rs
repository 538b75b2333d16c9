//! An area behind a broker is a disk queue like any other: the suite of all back ends, with the
//! broker on a thread.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command as Program;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use sietch_disk::broker::{BrokerHost, BrokerLayout, BrokerPair, BrokerQueue, create_pair};
use sietch_disk::conformance::{Bench, CAPACITY};
use sietch_disk::{Buffer, DiskQueue, MemoryQueue, Operation, conformance};
use sietch_service::Snapshot;
use sietch_service::broker::{Broker, Command, Event, EventSink, Span, run};

/// Bytes of a volume with room around the area.
const VOLUME: usize = 4 * CAPACITY;
/// Its first half is behind its second.
const EXTENTS: [Span; 2] = [
    Span { start: 2 * CAPACITY as u64, length: CAPACITY as u64 / 2 },
    Span { start: CAPACITY as u64 / 2, length: CAPACITY as u64 / 2 },
];

/// A broker over memory that runs until its bench is dropped.
struct InMemory {
    stop: Arc<AtomicBool>,
    orders: Sender<(u64, BrokerHost)>,
    thread: Option<JoinHandle<()>>,
    grants: u64,
}

impl InMemory {
    fn new() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (orders, attach) = channel::<(u64, BrokerHost)>();
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut broker = Broker::default();
            assert!(broker.add_volume("raw", MemoryQueue::new(VOLUME)).is_ok());
            while !stopped.load(Ordering::Relaxed) {
                for (id, host) in attach.try_iter() {
                    broker.attach(id, "raw", &EXTENTS, host).expect("room");
                }
                if !broker.poll() {
                    // Its applications sleep on their doorbells; this thread does not.
                    std::thread::yield_now();
                }
                for host in broker.hosts_mut() {
                    host.poll_hang_up();
                }
            }
        });
        Self { stop, orders, thread: Some(thread), grants: 0 }
    }
}

impl Drop for InMemory {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the broker does not panic");
        }
    }
}

impl Bench for InMemory {
    fn open(&mut self) -> Box<dyn DiskQueue> {
        self.grants += 1;
        let layout = BrokerLayout::usual(512);
        let BrokerPair { application, host } = create_pair(layout, self.grants).expect("memory");
        let host = BrokerHost::open(host, layout, 1000).expect("fresh memory");
        self.orders.send((self.grants, host)).expect("the broker runs");
        Box::new(BrokerQueue::open(application, layout, CAPACITY as u64).expect("fresh memory"))
    }

    fn reopen(&mut self) -> Option<Box<dyn DiskQueue>> {
        Some(self.open())
    }
}

conformance!(over_memory, Ok(InMemory::new()));

/// The loop of the service core over a file, or over a loop device over it.
struct OverFile {
    folder: PathBuf,
    device: Option<PathBuf>,
    commands: Sender<Command>,
    doorbell: OwnedFd,
    events: std::sync::mpsc::Receiver<Event>,
    thread: Option<JoinHandle<std::io::Result<()>>>,
    block: u32,
    grant: u64,
}

impl OverFile {
    fn new() -> Result<Self, String> {
        Self::under(&std::env::temp_dir(), false)
    }

    /// A volume on a block device of its own.
    fn on_device() -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("root, for a loop device".into());
        }
        Self::under(&std::env::temp_dir(), true)
    }

    fn under(parent: &Path, on_device: bool) -> Result<Self, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = parent.join(format!("sietch-broker-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).map_err(|cause| format!("a folder: {cause}"))?;
        let path = folder.join("volume");
        std::fs::write(&path, vec![0; VOLUME]).map_err(|cause| format!("a file: {cause}"))?;
        let device = on_device.then(|| loop_device(&path)).transpose()?;
        let volume = device.as_deref().unwrap_or(&path);
        let open = || std::fs::File::options().read(true).write(true).open(volume);
        let probe = sietch_disk::open_area(open().expect("just made").into(), VOLUME as u64);
        let block = probe.expect("a regular file").block_size() as u32;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let (doorbell, event_doorbell) =
            (eventfd(0, flags).expect("an eventfd"), eventfd(0, flags).expect("an eventfd"));
        let (commands, orders) = channel();
        let (sender, events) = channel();
        let own = doorbell.try_clone().expect("a descriptor");
        let thread = std::thread::spawn(move || {
            run(&orders, &own, &EventSink { events: sender, doorbell: event_doorbell }, &Snapshot::default())
        });
        let bench = Self {
            folder,
            device: device.clone(),
            commands,
            doorbell,
            events,
            thread: Some(thread),
            block,
            grant: 0,
        };
        let (reply, answer) = channel();
        let file = open().expect("just made").into();
        bench.send(Command::Volume { name: "raw".to_owned(), file, capacity: VOLUME as u64, reply });
        answer.recv().expect("it answers").expect("a regular file");
        Ok(bench)
    }

    fn send(&self, command: Command) {
        self.commands.send(command).expect("the loop runs");
        rustix::io::write(&self.doorbell, &1_u64.to_ne_bytes()).expect("the eventfd is open");
    }
}

impl Bench for OverFile {
    fn open(&mut self) -> Box<dyn DiskQueue> {
        self.grant += 1;
        let layout = BrokerLayout::usual(self.block);
        let BrokerPair { application, host } = create_pair(layout, self.grant).expect("memory");
        let (reply, answer) = channel();
        let (id, volume, extents) = (self.grant, "raw".to_owned(), EXTENTS.to_vec());
        self.send(Command::Attach { id, volume, extents, fds: host, layout, uid: 1000, reply });
        answer.recv().expect("it answers").expect("room");
        Box::new(BrokerQueue::open(application, layout, CAPACITY as u64).expect("fresh memory"))
    }

    fn reopen(&mut self) -> Option<Box<dyn DiskQueue>> {
        // The previous queue was dropped, which the doorbell reports to the broker.
        assert_eq!(self.events.recv(), Ok(Event::Detached(self.grant)));
        Some(self.open())
    }
}

impl Drop for OverFile {
    fn drop(&mut self) {
        self.send(Command::Stop);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the loop does not panic").expect("the file works");
        }
        if let Some(device) = &self.device {
            let _ = Program::new("losetup").arg("--detach").arg(device).status();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Makes a loop device over `path`.
fn loop_device(path: &Path) -> Result<PathBuf, String> {
    let made = Program::new("losetup").args(["--find", "--show", "--direct-io=on"]).arg(path).output();
    let made = made.map_err(|cause| format!("losetup: {cause}"))?;
    if !made.status.success() {
        return Err(format!("a loop device: {}", String::from_utf8_lossy(&made.stderr).trim()));
    }
    Ok(PathBuf::from(String::from_utf8_lossy(&made.stdout).trim()))
}

conformance!(over_a_file, OverFile::new());
conformance!(over_a_device, OverFile::on_device());

mod hostile {
    use proptest::prelude::*;
    use sietch_disk::broker::layout::{
        APPLICATION_NEED_WAKEUP, COMPLETION_CONSUMER, COMPLETION_PRODUCER, MAX_PIECE, SUBMISSION_CONSUMER,
    };
    use sietch_disk::{Buffer, Operation};
    use sietch_ring::Mapping;

    use super::*;

    proptest! {
        /// A broker that writes anything into the shared memory costs its application the queue at
        /// worst: every request that was taken comes back once, with its buffer, and nothing
        /// panics.
        #[test]
        fn a_broker_that_scribbles_costs_the_queue_at_worst(
            writes in prop::collection::vec((0..6_u8, any::<u32>(), any::<u32>()), 1..100)
        ) {
            let layout = BrokerLayout { slots: 8, data: MAX_PIECE as u32, block: 512 };
            let BrokerPair { application, host } = create_pair(layout, 1).expect("memory");
            let memory = Mapping::of_file(&host.memory, 0, layout.bytes()).expect("a mapping");
            let mut queue = BrokerQueue::open(application, layout, 1 << 20).expect("fresh memory");
            let word = |at: usize| memory.word(at & !3).expect("inside");
            let add = |at: usize, count: u32| {
                word(at).store(word(at).load(Ordering::Relaxed).wrapping_add(count), Ordering::Release);
            };
            let (mut token, mut taken, mut done) = (0, 0, Vec::new());
            for (what, place, value) in writes {
                match what {
                    0 => word(place as usize % layout.bytes()).store(value, Ordering::Release),
                    1 => word(place as usize % 0x400).store(value, Ordering::Release),
                    2 => add(SUBMISSION_CONSUMER, value % 3),
                    3 => {
                        // A completion of something, with a status of any kind.
                        let index = word(COMPLETION_PRODUCER).load(Ordering::Relaxed);
                        let slot = layout.completions() + (index % 8) as usize * 16;
                        word(slot).store(place % 10, Ordering::Release);
                        word(slot + 4).store(place / 10 % 3, Ordering::Release);
                        word(slot + 8).store(if value % 2 == 0 { 0 } else { value }, Ordering::Release);
                        add(COMPLETION_PRODUCER, 1);
                    }
                    4 => add(COMPLETION_CONSUMER, value % 2),
                    _ => word(APPLICATION_NEED_WAKEUP).store(value, Ordering::Release),
                }
                let length = 512 + place as usize % 400 * 512;
                let operation = match value % 3 {
                    0 => Operation::Flush,
                    1 => Operation::Read { offset: 0, length, buffer: Buffer::new(length) },
                    _ => Operation::Write { offset: 512, length, buffer: Buffer::new(length), durable: true },
                };
                if queue.submit(token, operation).is_ok() {
                    token += 1;
                }
                queue.notify().expect("it cannot fail");
                taken += queue.complete(&mut done);
                prop_assert_eq!(queue.in_flight() + taken, token as usize);
            }
            drop(host);
            while queue.in_flight() > 0 {
                queue.wait(std::time::Duration::from_secs(1)).expect("it cannot fail");
                queue.complete(&mut done);
            }
            let mut tokens: Vec<u64> = done.iter().map(|done| done.token).collect();
            tokens.sort_unstable();
            prop_assert_eq!(tokens, (0..token).collect::<Vec<_>>());
        }
    }
}

/// Nanoseconds that each of some durable writes of 4 KiB took.
fn time(queue: &mut dyn DiskQueue, count: usize) -> Vec<u64> {
    let (mut buffer, mut done) = (Some(Buffer::new(4096)), Vec::new());
    (0..count)
        .map(|number| {
            let start = Instant::now();
            let buffer_now = buffer.take().expect("it came back");
            let offset = (number % 8 * 4096) as u64;
            let write = Operation::Write { offset, length: 4096, buffer: buffer_now, durable: true };
            queue.submit(1, write).expect("an idle queue");
            while queue.complete(&mut done) == 0 {
                queue.wait(Duration::from_secs(1)).expect("a device that works");
            }
            let took = start.elapsed();
            let completion = done.remove(0);
            completion.result.expect("a device that works");
            buffer = completion.buffer;
            took.as_nanos() as u64
        })
        .collect()
}

/// A rough measure of what the broker costs: durable writes of 4 KiB, alternately through the
/// broker and straight through io_uring to another file.
#[test]
#[ignore = "a measurement, not a test"]
fn cost_of_a_durable_write() {
    for parent in [std::env::temp_dir(), PathBuf::from("/dev/shm")] {
        let Ok(mut bench) = OverFile::under(&parent, false) else { continue };
        let mut brokered = bench.open();
        let path = bench.folder.join("direct");
        std::fs::write(&path, vec![0; CAPACITY]).expect("room");
        let file = std::fs::File::options().read(true).write(true).open(&path).expect("just made");
        let mut direct = sietch_disk::open_area(file.into(), CAPACITY as u64).expect("a regular file");
        let (mut straight, mut through) = (Vec::new(), Vec::new());
        for _ in 0..20 {
            straight.extend(time(&mut direct, 50));
            through.extend(time(&mut *brokered, 50));
        }
        straight.sort_unstable();
        through.sort_unstable();
        let half = straight.len() / 2;
        eprintln!(
            "{}: {}: p50 {} us straight, {} us through the broker ({:.2}x)",
            parent.display(),
            direct.description(),
            straight[half] / 1000,
            through[half] / 1000,
            through[half] as f64 / straight[half] as f64
        );
        drop(brokered);
    }
}
