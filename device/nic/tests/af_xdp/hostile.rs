//! Another thread of the application's process scribbles over the rings that the process shares
//! with the kernel.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::time::Instant;

use rustix::net::sockopt::xdp_mmap_offsets;
use rustix::net::xdp::{
    XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING, XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING,
};
use sietch_nic::NicQueue;
use sietch_nic::af_xdp::{Granted, RingWatch, XskLayout};
use sietch_ring::Mapping;
use sietch_structures::XorShift64;

use crate::namespace::{KERNEL_END, QUEUE_ADDRESS, QUEUE_END, ifindex, ip, with_veth};
use crate::station::{ECHO_PORT, MTU, echo, granted, granted_of, kernel_socket, open, transmit, wait};

/// How far a producer word that the kernel reads is put ahead. The kernel walks every entry that
/// such a word claims, so this bounds the time of the test, not what the queue survives.
const KERNEL_WALK: u32 = 1 << 16;

/// A second mapping of a socket's rings.
struct Scribbler {
    /// With the offsets of the producer and consumer words and of the first slot, the bytes in a
    /// slot, the slots, and whether the kernel reads the producer word.
    rings: Vec<(Mapping, [usize; 3], usize, u32, bool)>,
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
        ]
        .into_iter()
        .map(|(offset, page, slots, width, kernel_reads)| {
            let length = offset.desc as usize + slots as usize * width;
            let mapping = Mapping::of_file(socket, page, length).expect("a ring of that size");
            let places = [offset.producer, offset.consumer, offset.desc].map(|place| place as usize);
            (mapping, places, width, slots, kernel_reads)
        })
        .collect();
        Self { rings, state: XorShift64::new(0x9e37_79b9_7f4a_7c15) }
    }

    /// A fixed sequence, so that a failure repeats.
    fn random(&mut self) -> u32 {
        (self.state.word() >> 16) as u32
    }

    /// One wild word in one ring: an index, or part of a descriptor.
    fn scribble(&mut self) {
        let (ring, what, value) = (self.random() as usize % 4, self.random() % 3, self.random());
        let slot = self.random();
        let (mapping, [producer, consumer, slots], width, count, kernel_reads) = &self.rings[ring];
        let word = |offset| mapping.word(offset).expect("the kernel's own offset");
        match what {
            0 if *kernel_reads => {
                word(*producer).fetch_add(value % KERNEL_WALK, Ordering::Relaxed);
            }
            0 => word(*producer).store(value, Ordering::Relaxed),
            1 => word(*consumer).store(value, Ordering::Relaxed),
            _ => {
                let offset = slots + (slot % count) as usize * width + (value as usize % (width / 4)) * 4;
                word(offset).store(value, Ordering::Relaxed);
            }
        }
    }
}

#[test]
fn scribbled_rings_neither_panic_nor_loop() {
    with_veth("scribbled_rings_neither_panic_nor_loop", || {
        let (granted, _redirect) = granted();
        scribble(granted, MTU, &[4], 5_000);
    });
}

#[test]
fn scribbled_rings_of_large_frames_neither_panic_nor_loop() {
    let name = "scribbled_rings_of_large_frames_neither_panic_nor_loop";
    with_veth(name, || {
        for end in [QUEUE_END, KERNEL_END] {
            ip(&format!("link set {end} mtu 65535"));
        }
        // Rings so small that a wild word seldom misses what is read next.
        let usual = XskLayout::for_mtu(ifindex(QUEUE_END), 0, 65_535).expect("an MTU of IP");
        match granted_of(XskLayout { fill: 1024, receive: 1024, ..usual }) {
            Ok((granted, _redirect)) => scribble(granted, 65_535, &[4, 60_000, 5_000, 12_000], 2_000),
            Err(error) => {
                eprintln!("SKIPPED {name}: needs Linux 6.6 for AF_XDP in several buffers ({error})")
            }
        }
    });
}

/// Lets baits of these sizes come and go while wild words are written into all rings.
fn scribble(granted: Granted, mtu: usize, sizes: &[usize], rounds: usize) {
    let socket = granted.socket.try_clone().expect("a descriptor to spare");
    let layout = granted.layout;
    let mut scribbler = Scribbler::over(socket.as_fd(), layout);
    let mut queue = open(granted, mtu).expect("a fresh grant");
    let peer = kernel_socket();
    let bait = vec![7; 65_507];
    let mut frames = Vec::new();
    for round in 0..rounds {
        let bait = &bait[..sizes[round % sizes.len()]];
        // What a full socket buffer does not take is no bait.
        let _ = peer.send_to(bait, (QUEUE_ADDRESS, ECHO_PORT));
        scribbler.scribble();
        let taken = queue.receive(&mut frames, 64);
        assert!(taken <= 64 && taken == frames.len());
        for frame in frames.drain(..) {
            // Every frame that is returned can be read, whatever its descriptor said.
            let whole = queue.bytes(&frame).len() + queue.tail(&frame).to_vec().len();
            assert!(whole == frame.len() && whole <= mtu + 14);
            queue.release(frame);
        }
        scribbler.scribble();
        transmit(&mut queue, 9, bait);
        scribbler.scribble();
        queue.flush().expect("the interface is up");
        assert!(queue.free_buffers() <= layout.chunks as usize);
    }
    let counters = queue.counters();
    assert!(counters.ring_violations > 0, "{counters:?}");
    assert!(counters.invalid_descriptors > 0, "{counters:?}");
}

#[test]
fn a_producer_word_too_far_ahead_is_seen_and_the_walk_ended() {
    with_veth("a_producer_word_too_far_ahead_is_seen_and_the_walk_ended", || {
        for ring in [0, 3] {
            let (granted, redirect) = granted();
            let socket = granted.socket.try_clone().expect("a descriptor to spare");
            let layout = granted.layout;
            let scribbler = Scribbler::over(socket.as_fd(), layout);
            let watch = RingWatch::over(&socket, &layout).expect("the rings of a socket that is not bound");
            let mut queue = open(granted, MTU).expect("a fresh grant");
            assert_eq!(watch.overrun(), None, "an honest holder, its fill ring full");
            let (mapping, [producer, consumer, slots], width, count, _) = &scribbler.rings[ring];
            let word = |offset| mapping.word(offset).expect("the kernel's own offset");
            for slot in 0..*count as usize * width / 4 {
                // Beyond the UMEM; no options.
                let value = if slot * 4 % width < 8 { u32::MAX } else { 0 };
                word(slots + slot * 4).store(value, Ordering::Relaxed);
            }
            let last = word(*consumer).load(Ordering::Relaxed).wrapping_sub(1);
            word(*producer).store(last, Ordering::Relaxed);
            let (name, claimed) = watch.overrun().expect("it claims every number there is");
            assert_eq!((name == "fill", claimed), (ring == 0, u32::MAX));
            watch.repair();
            assert_eq!(watch.overrun(), None);
            // Each entry is one that the kernel takes: the next frame ends its walk at the first.
            let address = |slot: usize| word(slots + slot * width).load(Ordering::Relaxed);
            let all = (0..*count as usize).map(address);
            assert!(all.max().expect("slots") < layout.chunks * layout.chunk_size);
            let before = queue.device_drops().expect("the socket is open").tx_invalid;
            rustix::net::send(&socket, &[], rustix::net::SendFlags::DONTWAIT)
                .expect("nothing to send is sent");
            assert_eq!(queue.device_drops().expect("the socket is open").tx_invalid, before);
            queue.receive(&mut Vec::new(), 64);
            drop((queue, redirect, watch, socket));
            drop(scribbler);
        }
    });
}

#[test]
fn a_watch_never_takes_an_honest_holder_for_another() {
    with_veth("a_watch_never_takes_an_honest_holder_for_another", || {
        let (granted, _redirect) = granted();
        let watch = RingWatch::over(&granted.socket, &granted.layout).expect("not bound yet");
        let mut queue = open(granted, MTU).expect("a fresh grant");
        let peer = kernel_socket();
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    assert_eq!(watch.overrun(), None);
                }
            });
            let (mut answered, mut frames, mut answer) = (0, Vec::new(), [0; 64]);
            while answered < 2_000 && !watcher.is_finished() {
                peer.send_to(b"who are you", (QUEUE_ADDRESS, ECHO_PORT)).expect("the route is up");
                assert!(wait(&queue), "no frame arrives");
                answered += echo(&mut queue, &mut frames);
                peer.recv(&mut answer).expect("an echo");
            }
            over.store(true, Ordering::Relaxed);
        });
    });
}

/// What a wild fill or transmit ring costs the kernel: `-- --ignored --nocapture`. See
/// docs/spec/vnic.md.
#[test]
#[ignore = "a measurement, not a test"]
fn kernel_time_for_a_wild_producer_word() {
    with_veth("kernel_time_for_a_wild_producer_word", || {
        let (granted, _redirect) = granted();
        let socket = granted.socket.try_clone().expect("a descriptor to spare");
        let layout = granted.layout;
        let scribbler = Scribbler::over(socket.as_fd(), layout);
        let mut queue = open(granted, MTU).expect("a fresh grant");
        let peer = kernel_socket();
        for (ring, name) in [(0, "fill"), (3, "transmit")] {
            let (mapping, [producer, _, slots], width, count, _) = &scribbler.rings[ring];
            let word = |offset| mapping.word(offset).expect("the kernel's own offset");
            for slot in 0..*count as usize * width / 4 {
                // Beyond the UMEM; no options.
                let value = if slot * 4 % width < 8 { u32::MAX } else { 0 };
                word(slots + slot * 4).store(value, Ordering::Relaxed);
            }
            let claimed = 1_u32 << 26;
            let start = Instant::now();
            word(*producer).fetch_add(claimed, Ordering::Relaxed);
            if ring == 0 {
                peer.send_to(b"bait", (QUEUE_ADDRESS, ECHO_PORT)).expect("the route is up");
            } else {
                let sent = rustix::net::send(&socket, &[], rustix::net::SendFlags::DONTWAIT);
                eprintln!("sendto: {sent:?}");
            }
            let took = start.elapsed();
            let drops = queue.device_drops().expect("the socket is open");
            eprintln!("{name}: {claimed} invalid entries took {took:?}; {drops:?}");
        }
        queue.receive(&mut Vec::new(), 64);
    });
}
