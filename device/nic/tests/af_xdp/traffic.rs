//! Frames there and back, and where the buffers are afterwards.

use std::time::{Duration, Instant};

use sietch_nic::NicQueue;
use sietch_nic::af_xdp::Queue;

use crate::namespace::{KERNEL_END, KERNEL_MAC, QUEUE_ADDRESS, QUEUE_END, QUEUE_MAC, ip, with_veth};
use crate::station::{ECHO_PORT, HEADERS, MTU, echo, kernel_socket, opened, transmit, wait};

/// Waits until the kernel has returned every buffer, and returns how many are free.
fn settled(queue: &mut Queue, expected: usize) -> usize {
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut frames = Vec::new();
    while queue.free_buffers() != expected && Instant::now() < deadline {
        queue.receive(&mut frames, 256);
        frames.drain(..).for_each(|frame| queue.release(frame));
        queue.flush().expect("the interface is up");
    }
    queue.free_buffers()
}

#[test]
fn a_kernel_socket_gets_its_datagrams_back() {
    with_veth("a_kernel_socket_gets_its_datagrams_back", || {
        let (mut queue, _redirect) = opened();
        let socket = kernel_socket();
        let mut frames = Vec::new();
        for length in [0, 1, 18, 100, 1000, MTU - 28] {
            let sent: Vec<u8> = (0..length).map(|byte| byte as u8).collect();
            socket.send_to(&sent, (QUEUE_ADDRESS, ECHO_PORT)).expect("the route is up");
            while echo(&mut queue, &mut frames) == 0 {
                assert!(wait(&queue), "the datagram of {length} bytes arrives");
            }
            let mut back = [0; 2000];
            let (got, from) = socket.recv_from(&mut back).expect("the answer arrives");
            assert_eq!((&back[..got], from.ip()), (&sent[..], QUEUE_ADDRESS.into()));
        }
        let counters = queue.counters();
        assert_eq!((counters.rx_frames, counters.tx_frames), (6, 6));
        assert_eq!(counters.tx_bytes, (6 * HEADERS + 1 + 18 + 100 + 1000 + MTU - 28) as u64);
        assert_eq!((counters.invalid_descriptors, counters.ring_violations), (0, 0));
    });
}

#[test]
fn a_hundred_thousand_frames_leak_no_buffer() {
    with_veth("a_hundred_thousand_frames_leak_no_buffer", || {
        const BATCH: usize = 64;
        let (mut queue, _redirect) = opened();
        let free = queue.free_buffers();
        let socket = kernel_socket();
        let mut frames = Vec::new();
        let mut answer = [0; 64];
        for _ in 0..100_000_usize.div_ceil(BATCH) {
            for _ in 0..BATCH {
                socket.send_to(b"there and back", (QUEUE_ADDRESS, ECHO_PORT)).expect("the route is up");
            }
            let mut answered = 0;
            while answered < BATCH {
                assert!(wait(&queue), "{answered} of {BATCH} datagrams have arrived");
                answered += echo(&mut queue, &mut frames);
            }
            for _ in 0..BATCH {
                assert_eq!(socket.recv(&mut answer).expect("every answer arrives"), 14);
            }
        }
        assert_eq!(settled(&mut queue, free), free);
        let drops = queue.device_drops().expect("the socket is open");
        assert_eq!(drops, sietch_nic::af_xdp::DeviceDrops::default());
    });
}

#[test]
fn a_burst_deeper_than_the_pool_is_refused_and_recovers() {
    with_veth("a_burst_deeper_than_the_pool_is_refused_and_recovers", || {
        let (mut queue, _redirect) = opened();
        let free = queue.free_buffers();
        let mut queued = 0;
        while transmit(&mut queue, 9, b"burst") {
            queued += 1;
        }
        assert!(queued <= free, "{queued} frames from {free} buffers");
        assert!(queued >= free.min(queue.layout().transmit as usize), "the whole ring can be used");
        queue.flush().expect("a full device is no error");
        assert_eq!(settled(&mut queue, free), free);
        assert!(transmit(&mut queue, 9, b"again"));
    });
}

#[test]
fn frames_wait_while_the_interface_is_down() {
    with_veth("frames_wait_while_the_interface_is_down", || {
        let (mut queue, _redirect) = opened();
        let socket = kernel_socket();
        let port = socket.local_addr().expect("a bound socket").port();
        assert!(queue.is_alive());
        ip(&format!("link set {QUEUE_END} down"));
        assert!(!queue.is_alive());
        assert!(transmit(&mut queue, port, b"patient"));
        let error = queue.flush().expect_err("the interface is down");
        assert_eq!(error.raw_os_error(), Some(libc::ENETDOWN));
        ip(&format!("link set {QUEUE_END} up"));
        assert!(queue.is_alive());
        queue.flush().expect("the interface is up again");
        let mut bytes = [0; 64];
        let got = socket.recv(&mut bytes).expect("the frame was kept");
        assert_eq!(&bytes[..got], b"patient");
    });
}

#[test]
fn a_deleted_interface_ends_the_queue() {
    with_veth("a_deleted_interface_ends_the_queue", || {
        let (mut queue, _redirect) = opened();
        assert!(queue.is_alive());
        ip(&format!("link del {KERNEL_END}"));
        assert!(!queue.is_alive());
        for _ in 0..3 {
            transmit(&mut queue, 9, b"nowhere");
            let error = queue.flush().expect_err("the interface is deleted");
            assert!(matches!(error.raw_os_error(), Some(libc::ENXIO | libc::ENETDOWN)), "{error}");
        }
        assert_eq!(queue.receive(&mut Vec::new(), 64), 0);
    });
}

#[test]
fn frames_shorter_than_a_header_do_not_leave() {
    with_veth("frames_shorter_than_a_header_do_not_leave", || {
        let (mut queue, _redirect) = opened();
        let free = queue.free_buffers();
        for length in [0, 1, 13] {
            let mut frame = queue.allocate(length).expect("a fresh pool");
            queue.bytes_mut(&mut frame).fill(0);
            queue.transmit(frame).expect("a fresh ring");
        }
        queue.flush().expect("nothing to send");
        assert_eq!((queue.free_buffers(), queue.counters().tx_runts, queue.counters().kicks), (free, 3, 0));
    });
}

/// `cargo test -p sietch-nic --release --test af_xdp transmit_rate -- --ignored --nocapture`
#[test]
#[ignore = "a measurement, not a test"]
fn transmit_rate() {
    with_veth("transmit_rate", || {
        const BATCH: usize = 64;
        const FRAMES: usize = 2_000_000;
        for length in [60, MTU + 14] {
            let (mut queue, _redirect) = opened();
            let start = Instant::now();
            let mut frames = Vec::new();
            let mut sent = 0;
            while sent < FRAMES {
                for _ in 0..BATCH {
                    let Some(mut frame) = queue.allocate(length) else { break };
                    let bytes = queue.bytes_mut(&mut frame);
                    bytes[..6].copy_from_slice(&KERNEL_MAC);
                    bytes[6..12].copy_from_slice(&QUEUE_MAC);
                    // A type for local experiments: the peer's stack drops it at once.
                    bytes[12..14].copy_from_slice(&0x88b5_u16.to_be_bytes());
                    queue.transmit(frame).expect("the ring is deeper than a batch");
                    sent += 1;
                }
                queue.flush().expect("the interface is up");
                queue.receive(&mut frames, BATCH);
                frames.drain(..).for_each(|frame| queue.release(frame));
            }
            let seconds = start.elapsed().as_secs_f64();
            let counters = queue.counters();
            eprintln!(
                "{} B frames: {:.0} frames/s, {:.1} frames a kick, {} flushes met backpressure",
                length,
                counters.tx_frames as f64 / seconds,
                counters.tx_frames as f64 / counters.kicks as f64,
                counters.tx_backpressure,
            );
        }
    });
}
