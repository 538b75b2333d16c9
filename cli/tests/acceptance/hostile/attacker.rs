//! The hostile application: it gets its VNIC like any other application, and then misuses it.
//!
//! It executes lines of its standard input: `forge`, `flood MILLISECONDS`, `scribble MILLISECONDS`,
//! `fill`; and answers each with `DONE` when it has finished.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::net::SendFlags;
use rustix::net::sockopt::xdp_mmap_offsets;
use rustix::net::xdp::{
    XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING, XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING,
};
use sietch::Client;
use sietch::nic::NicQueue as _;
use sietch::nic::af_xdp::{Granted, Queue, XskLayout};
use sietch_protocol::{QueueLayout, VnicDescriptors};
use sietch_ring::Mapping;
use sietch_structures::XorShift64;

use super::frames::{self, Link};

/// The variable that names the daemon's socket.
pub(crate) const SOCKET: &str = "SIETCH_ATTACKER_SOCKET";

/// How far a producer word is moved ahead. The kernel walks every entry that such a word claims
/// (docs/spec/vnic.md), so this bounds the time of the test, not what the kernel survives.
const KERNEL_WALK: u32 = 1 << 16;

/// Bytes of payload of a flood's datagrams.
const FLOOD: usize = 1400;

/// Executes the lines of the standard input.
pub(crate) fn run() {
    let Some(socket) = std::env::var_os(SOCKET).map(PathBuf::from) else { return };
    let mut client = Client::connect(&socket, "attacker").expect("the daemon listens");
    let parts = client.acquire_vnic_descriptors("rogue").expect("the grant is ours");
    assert!(client.acquire_vnic_descriptors("kv").is_err(), "another user's VNIC was granted");
    assert!(client.acquire_vsa_descriptors("store").is_err(), "another user's area was granted");
    let own = parts.description.mac.0;
    let host = parts.description.gateway_mac.expect("without an uplink the gateway is the host's end").0;
    let (QueueLayout::AfXdp(shape), VnicDescriptors::AfXdp { socket, umem }) =
        (parts.description.layout, parts.descriptors)
    else {
        panic!("the VNIC is not one of a veth pair");
    };
    let layout = sietch::socket_layout(shape);
    let second = socket.try_clone().expect("a descriptor to spare");
    let granted = Granted { socket, umem, layout };
    let queue = Queue::open(granted, own, 1500).expect("a fresh grant");
    client.bind_vnic(&parts.grant).expect("the rings are mapped");
    let mut attacker = Attacker { queue, socket: second, layout, link: Link { own, host } };
    println!("HOLDING");
    for line in std::io::stdin().lines() {
        let line = line.expect("the test speaks text");
        let (word, number) = line.split_once(' ').unwrap_or((&line, "0"));
        let time = Duration::from_millis(number.parse().expect("milliseconds"));
        match word {
            "forge" => attacker.forge(),
            "flood" => attacker.flood(time),
            "scribble" => attacker.scribble(time),
            "fill" => attacker.fill(),
            other => panic!("{other} is no order"),
        }
    }
}

struct Attacker {
    queue: Queue,
    socket: OwnedFd,
    layout: XskLayout,
    link: Link,
}

impl Attacker {
    /// Queues one frame. False if there is no room.
    fn send(&mut self, bytes: &[u8]) -> bool {
        let Some(mut frame) = self.queue.allocate(bytes.len()) else { return false };
        self.queue.bytes_mut(&mut frame).copy_from_slice(bytes);
        match self.queue.transmit(frame) {
            Ok(()) => true,
            Err(error) => {
                self.queue.release(error.into_frame());
                false
            }
        }
    }

    /// Submits the queued frames and reclaims the sent ones.
    fn exchange(&mut self) {
        self.queue.flush().expect("the VNIC is up");
        let mut arrived = Vec::new();
        self.queue.receive(&mut arrived, 256);
        arrived.into_iter().for_each(|frame| self.queue.release(frame));
    }

    /// Every forgery, between honest frames, so that a forgery in the same batch hides nothing.
    fn forge(&mut self) {
        let forged = frames::forged(self.link);
        let honest = [frames::honest(self.link, 64), frames::honest6(self.link)];
        for round in 0..20 {
            for frame in &forged {
                assert!(self.send(frame) && self.send(&honest[round % 2]), "the queue is full");
                self.exchange();
            }
        }
        println!("DONE {} forgeries", 20 * forged.len());
    }

    /// Frames as fast as the kernel takes them.
    fn flood(&mut self, time: Duration) {
        let frame = frames::honest(self.link, FLOOD);
        let end = Instant::now() + time;
        let mut bytes = 0;
        while Instant::now() < end {
            for _ in 0..64 {
                bytes += if self.send(&frame) { frame.len() } else { 0 };
            }
            self.exchange();
        }
        println!("DONE {bytes}");
    }

    /// Random words in all rings and forgeries in all buffers; then the kernel is made to send
    /// them.
    fn scribble(&mut self, time: Duration) {
        let forged = frames::forged(self.link);
        // Every buffer that this library can reach holds a forgery.
        while forged.iter().all(|frame| self.send(frame)) {}
        self.exchange();
        let mut scribbler = Scribbler::over(self.socket.as_fd(), self.layout);
        let end = Instant::now() + time;
        let mut words = 0;
        while Instant::now() < end {
            for _ in 0..16 {
                scribbler.scribble();
                words += 1;
            }
            let _ = rustix::net::send(&self.socket, &[], SendFlags::DONTWAIT);
            // At this rate the kernel's walks stay far below the capacity of a core.
            std::thread::sleep(Duration::from_millis(1));
            // Our own library must survive it as well.
            let mut arrived = Vec::new();
            self.queue.receive(&mut arrived, 64);
            arrived.into_iter().for_each(|frame| self.queue.release(frame));
        }
        println!("DONE {words} words");
    }

    /// Fills every queue and leaves it full.
    fn fill(&mut self) {
        let frame = frames::honest(self.link, FLOOD);
        while self.send(&frame) {}
        println!("DONE");
    }
}

/// One ring, mapped a second time.
struct Ring {
    mapping: Mapping,
    producer: usize,
    consumer: usize,
    slots: usize,
    width: usize,
    count: u32,
    /// Whether the kernel reads the producer word.
    kernel_reads: bool,
}

/// Writes random words into the rings, without the library's knowledge.
struct Scribbler {
    rings: Vec<Ring>,
    state: XorShift64,
}

impl Scribbler {
    fn over(socket: BorrowedFd<'_>, layout: XskLayout) -> Self {
        let offsets = xdp_mmap_offsets(socket).expect("an AF_XDP socket");
        let rings = [
            (&offsets.fr, XDP_UMEM_PGOFF_FILL_RING, layout.fill, 8, true),
            (&offsets.cr, XDP_UMEM_PGOFF_COMPLETION_RING, layout.completion, 8, false),
            (&offsets.rx, XDP_PGOFF_RX_RING, layout.receive, 16, false),
            (&offsets.tx, XDP_PGOFF_TX_RING, layout.transmit, 16, true),
        ];
        let rings = rings.into_iter().map(|(offset, page, count, width, kernel_reads)| {
            let [producer, consumer, slots] =
                [offset.producer, offset.consumer, offset.desc].map(|place| usize::try_from(place).unwrap());
            let length = slots + usize::try_from(count).unwrap() * width;
            let mapping = Mapping::of_file(socket, page, length).expect("a ring of that size");
            Ring { mapping, producer, consumer, slots, width, count, kernel_reads }
        });
        Self { rings: rings.collect(), state: XorShift64::new(0x9e37_79b9_7f4a_7c15) }
    }

    /// A fixed sequence, so that a failure repeats.
    fn random(&mut self) -> u32 {
        u32::try_from(self.state.word() >> 32).unwrap()
    }

    /// One random word in one ring: an index, or part of a descriptor.
    fn scribble(&mut self) {
        let [ring, what, value, slot] = [(); 4].map(|()| self.random());
        let ring = &self.rings[usize::try_from(ring % 4).unwrap()];
        let word = |offset| ring.mapping.word(offset).expect("the kernel's own offset");
        match what % 4 {
            0 if ring.kernel_reads => {
                word(ring.producer).fetch_add(value % KERNEL_WALK, Ordering::Relaxed);
            }
            0 => word(ring.producer).store(value, Ordering::Relaxed),
            1 => word(ring.consumer).store(value, Ordering::Relaxed),
            kind => {
                let slot = usize::try_from(slot % ring.count).unwrap() * ring.width;
                let part = usize::try_from(value).unwrap() % (ring.width / 4) * 4;
                // Half of them name something that exists.
                let value = if kind == 2 { value } else { value % (8 << 20) };
                word(ring.slots + slot + part).store(value, Ordering::Relaxed);
            }
        }
    }
}
