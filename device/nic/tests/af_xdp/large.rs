//! Frames that no chunk holds, there and back.

use std::net::UdpSocket;

use sietch_nic::NicQueue;
use sietch_nic::af_xdp::{MAX_SINGLE_MTU, Queue, XskLayout};

use crate::namespace::{KERNEL_END, QUEUE_ADDRESS, QUEUE_END, ip, with_veth};
use crate::redirect::Redirect;
use crate::station::{ECHO_PORT, HEADERS, echo, kernel_socket, opened_with, transmit, wait};

/// IP and UDP headers.
const PACKET_HEADERS: usize = HEADERS - 14;

/// A queue for frames of `mtu` bytes, or `None` on a kernel that has no such.
fn large(name: &str, mtu: usize) -> Option<(Queue, Redirect)> {
    for end in [QUEUE_END, KERNEL_END] {
        ip(&format!("link set {end} mtu {mtu}"));
    }
    match opened_with(mtu) {
        Ok(opened) => Some(opened),
        Err(error) => {
            eprintln!("SKIPPED {name}: needs Linux 6.6 for AF_XDP in several buffers ({error})");
            None
        }
    }
}

/// Bytes of which no two pieces are alike.
fn payload(length: usize) -> Vec<u8> {
    (0..length as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

fn arrives(queue: &mut Queue, length: usize) -> Vec<u8> {
    let mut frames = Vec::new();
    loop {
        assert!(wait(queue), "the datagram of {length} bytes arrives");
        queue.receive(&mut frames, 1);
        let Some(frame) = frames.pop() else { continue };
        let bytes = [queue.bytes(&frame).to_vec(), queue.tail(&frame).to_vec()].concat();
        assert_eq!(bytes.len(), frame.len());
        queue.release(frame);
        if bytes.len() == HEADERS + length {
            return bytes;
        }
    }
}

fn datagram(socket: &UdpSocket) -> Vec<u8> {
    let mut back = vec![0; 70_000];
    let got = socket.recv(&mut back).expect("the answer arrives");
    back.truncate(got);
    back
}

/// Payloads whose frames end at, before and after the ends of chunks and of what a chunk receives.
fn lengths(mtu: usize) -> impl Iterator<Item = usize> {
    let edges = (1..=18).flat_map(|count| [count * 3840, count * 4096]);
    edges
        .flat_map(|edge| [edge - HEADERS - 1, edge - HEADERS, edge - HEADERS + 1])
        .filter(move |length| length + PACKET_HEADERS <= mtu)
        .chain([0, 1, 100, mtu - PACKET_HEADERS])
}

#[test]
fn large_frames_arrive_and_leave_with_the_same_bytes() {
    let name = "large_frames_arrive_and_leave_with_the_same_bytes";
    with_veth(name, || {
        for mtu in [65_535, 9000, MAX_SINGLE_MTU + 1] {
            let Some((mut queue, _redirect)) = large(name, mtu) else { return };
            let free = queue.free_buffers();
            let socket = kernel_socket();
            let port = socket.local_addr().expect("a bound socket").port();
            for length in lengths(mtu) {
                let sent = payload(length);
                socket.send_to(&sent, (QUEUE_ADDRESS, ECHO_PORT)).expect("the route is up");
                assert!(arrives(&mut queue, length)[HEADERS..] == sent, "{length} bytes to us");
                assert!(transmit(&mut queue, port, &sent), "there are buffers");
                queue.flush().expect("the interface is up");
                assert!(datagram(&socket) == sent, "{length} bytes from us");
            }
            let mut frames = Vec::new();
            while queue.free_buffers() < free {
                queue.receive(&mut frames, 64);
                frames.drain(..).for_each(|frame| queue.release(frame));
            }
            let counters = queue.counters();
            assert_eq!(
                (counters.invalid_descriptors, counters.rx_oversize, counters.ring_violations),
                (0, 0, 0)
            );
            assert_eq!(counters.rx_frames, counters.tx_frames);
        }
    });
}

#[test]
fn a_large_frame_is_sent_back_as_it_came() {
    let name = "a_large_frame_is_sent_back_as_it_came";
    with_veth(name, || {
        let Some((mut queue, _redirect)) = large(name, 65_535) else { return };
        let free = queue.free_buffers();
        let socket = kernel_socket();
        let mut frames = Vec::new();
        for round in 0..20 {
            for length in [60_000, 18, 4000, 3798, 3799, 65_507] {
                let sent = payload(length + usize::from(length == 18) * round);
                socket.send_to(&sent, (QUEUE_ADDRESS, ECHO_PORT)).expect("the route is up");
                while echo(&mut queue, &mut frames) == 0 {
                    assert!(wait(&queue), "the datagram of {length} bytes arrives");
                }
                assert!(datagram(&socket) == sent, "{length} bytes");
            }
        }
        while queue.free_buffers() < free {
            queue.receive(&mut frames, 64);
        }
        assert_eq!(queue.counters().invalid_descriptors, 0);
    });
}

#[test]
fn bytes_cut_off_a_large_frame_are_not_sent() {
    let name = "bytes_cut_off_a_large_frame_are_not_sent";
    with_veth(name, || {
        let Some((mut queue, _redirect)) = large(name, 65_535) else { return };
        let free = queue.free_buffers();
        let socket = kernel_socket();
        for left in [13, 14, 500, 3840, 3841, 20_000] {
            socket.send_to(&payload(50_000), (QUEUE_ADDRESS, ECHO_PORT)).expect("the route is up");
            let mut frames = Vec::new();
            while frames.is_empty() {
                assert!(wait(&queue), "the datagram arrives");
                queue.receive(&mut frames, 1);
            }
            let mut frame = frames.remove(0);
            assert_eq!(frame.len(), HEADERS + 50_000);
            frame.truncate(left);
            assert_eq!(queue.bytes(&frame).len() + queue.tail(&frame).len(), left);
            queue.transmit(frame).expect("the ring is empty");
            let sent = queue.counters().tx_bytes;
            queue.flush().expect("the interface is up");
            let expected = if left < 14 { 0 } else { left as u64 };
            assert_eq!(queue.counters().tx_bytes - sent, expected);
            while queue.free_buffers() < free {
                queue.receive(&mut frames, 64);
                frames.drain(..).for_each(|frame| queue.release(frame));
            }
        }
    });
}

#[test]
fn more_large_frames_than_there_are_runs_wait() {
    let name = "more_large_frames_than_there_are_runs_wait";
    with_veth(name, || {
        let Some((mut queue, _redirect)) = large(name, 65_535) else { return };
        let (XskLayout { runs, .. }, free) = (queue.layout(), queue.free_buffers());
        let sent = payload(60_000);
        for _ in 0..3 {
            let mut queued = 0;
            while transmit(&mut queue, 9, &sent) {
                queued += 1;
            }
            assert_eq!(queued, runs);
            // Small ones have their own buffers.
            assert!(transmit(&mut queue, 9, b"small"));
            let mut frames = Vec::new();
            while !transmit(&mut queue, 9, &sent) {
                queue.flush().expect("a full device is no error");
                queue.receive(&mut frames, 64);
                frames.drain(..).for_each(|frame| queue.release(frame));
            }
            while queue.free_buffers() < free {
                queue.flush().expect("the interface is up");
                queue.receive(&mut frames, 64);
                frames.drain(..).for_each(|frame| queue.release(frame));
            }
        }
    });
}
