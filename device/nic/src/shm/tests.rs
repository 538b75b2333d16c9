use std::collections::VecDeque;
use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::Ordering;
use std::time::Duration;

use proptest::prelude::*;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::net::SendFlags;
use sietch_protocol::socket_service::send_message;
use std::os::fd::{AsFd as _, AsRawFd};

use super::layout::{CONSUMER, NEED_WAKEUP_WORD, PRODUCER, REVOKED, RING, descriptor};
use super::{Endpoint, LinkLayout, OpenError, Pair, Revocation, create_pair};
use crate::queue::{Frame, NicQueue};
use sietch_ring::Mapping;
use sietch_ring::split_ownership::NEWEST;

const MAC_A: [u8; 6] = [2, 0, 0, 0, 0, 1];
const MAC_B: [u8; 6] = [2, 0, 0, 0, 0, 2];
const SMALL: LinkLayout = LinkLayout { slots: 16, data: 1 << 16 };

fn ends(layout: LinkLayout, mtu: usize) -> (Endpoint, Endpoint, Revocation) {
    let Pair { near, far, revocation } = create_pair(layout, 7).expect("memory for a link");
    let a = Endpoint::open(near, layout, MAC_A, mtu).expect("a fresh grant");
    let b = Endpoint::open(far, layout, MAC_B, mtu).expect("a fresh grant");
    (a, b, revocation)
}

/// A frame that differs from others of its length.
fn content(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 256 + seed * 31) as u8).collect()
}

fn whole(queue: &Endpoint, frame: &Frame) -> Vec<u8> {
    [queue.bytes(frame).to_vec(), queue.tail(frame).to_vec()].concat()
}

fn send(queue: &mut Endpoint, bytes: &[u8]) -> bool {
    let Some(mut frame) = queue.allocate(bytes.len()) else { return false };
    queue.bytes_mut(&mut frame).copy_from_slice(bytes);
    queue.transmit(frame).expect("an allocated frame has a slot");
    true
}

#[test]
fn a_frame_arrives_after_flush_and_can_be_turned_around() {
    let (mut a, mut b, _revocation) = ends(SMALL, 9000);
    let mut frames = Vec::new();
    for length in [14, 60, 2048, 2049, 9014] {
        let sent = content(length, length);
        assert!(send(&mut a, &sent));
        assert_eq!(b.receive(&mut frames, 8), 0);
        a.flush().expect("the link is whole");
        assert_eq!(b.receive(&mut frames, 8), 1);
        let mut frame = frames.pop().expect("it arrived");
        assert_eq!((whole(&b, &frame), frame.tail_len() > 0), (sent.clone(), length > 2048));
        b.bytes_mut(&mut frame)[0] ^= 0xff;
        b.transmit(frame).expect("there is room");
        b.flush().expect("the link is whole");
        assert_eq!(a.receive(&mut frames, 8), 1);
        let back = frames.pop().expect("it came back");
        let mut expected = sent;
        expected[0] ^= 0xff;
        assert_eq!(whole(&a, &back), expected);
        a.release(back);
    }
    // All came back but the slots whose consumption was not polled yet.
    assert!(a.free_buffers() >= 16 && b.free_buffers() >= 16);
}

#[derive(Clone, Debug)]
enum Step {
    Allocate(usize),
    Transmit(usize),
    Discard(usize),
    Flush,
    Receive(usize),
    Release(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let length = prop_oneof![14..200_usize, 14..9014_usize];
    prop_oneof![
        4 => length.prop_map(Step::Allocate),
        4 => any::<usize>().prop_map(Step::Transmit),
        1 => any::<usize>().prop_map(Step::Discard),
        2 => Just(Step::Flush),
        3 => (1..6_usize).prop_map(Step::Receive),
        4 => any::<usize>().prop_map(Step::Release),
    ]
}

proptest! {
    /// Frames allocated, discarded, sent and released in any order: what was sent arrives, once,
    /// whole, in the order of sending.
    #[test]
    fn sent_frames_arrive_whole_and_in_order(steps in prop::collection::vec(step(), 0..400)) {
        let (mut a, mut b, _revocation) = ends(SMALL, 9000);
        let (mut open, mut sent, mut looked_at) = (Vec::new(), VecDeque::new(), Vec::new());
        let mut frames = Vec::new();
        let mut flushed = 0;
        for (seed, step) in steps.into_iter().enumerate() {
            match step {
                Step::Allocate(length) => {
                    if let Some(mut frame) = a.allocate(length) {
                        let bytes = content(seed, length);
                        a.bytes_mut(&mut frame).copy_from_slice(&bytes);
                        open.push((frame, bytes));
                    }
                }
                Step::Transmit(which) if !open.is_empty() => {
                    let (frame, bytes) = open.remove(which % open.len());
                    a.transmit(frame).expect("an allocated frame has a slot");
                    sent.push_back(bytes);
                }
                Step::Discard(which) if !open.is_empty() => {
                    let (frame, _) = open.remove(which % open.len());
                    a.release(frame);
                }
                Step::Flush => {
                    a.flush().expect("the link is whole");
                    flushed = sent.len();
                }
                Step::Receive(limit) => {
                    let count = b.receive(&mut frames, limit);
                    prop_assert!(count <= limit && count <= flushed);
                    flushed -= count;
                    for frame in frames.drain(..) {
                        let bytes = sent.pop_front().expect("no more than was sent");
                        prop_assert_eq!(whole(&b, &frame), bytes.clone());
                        looked_at.push((frame, bytes));
                    }
                }
                Step::Release(which) if !looked_at.is_empty() => {
                    let (frame, bytes) = looked_at.remove(which % looked_at.len());
                    // Nothing wrote over it while it was held.
                    prop_assert_eq!(whole(&b, &frame), bytes);
                    b.release(frame);
                }
                _ => {}
            }
        }
        // In the end everything comes back.
        open.into_iter().for_each(|(frame, _)| a.release(frame));
        looked_at.into_iter().for_each(|(frame, _)| b.release(frame));
        a.flush().expect("the link is whole");
        while b.receive(&mut frames, 16) > 0 {
            for frame in frames.drain(..) {
                prop_assert_eq!(Some(whole(&b, &frame)), sent.pop_front());
                b.release(frame);
            }
        }
        prop_assert!(sent.is_empty());
        a.reclaim_for_test();
        prop_assert_eq!((a.free_buffers(), b.free_buffers()), (32, 32));
        for _ in 0..40 {
            prop_assert!(send(&mut a, &[1; 9014]));
            a.flush().expect("the link is whole");
            prop_assert_eq!(b.receive(&mut frames, 1), 1);
            b.release(frames.remove(0));
        }
        prop_assert_eq!(a.counters().ring_violations + b.counters().invalid_descriptors, 0);
    }

    /// A peer that writes anything anywhere in its region costs the link at worst: no panic, no
    /// endless work, no stray access.
    #[test]
    fn a_peer_that_scribbles_harms_only_the_link(
        writes in prop::collection::vec((0..6_u8, any::<u32>(), any::<u64>()), 1..200)
    ) {
        let Pair { near, far, revocation: _revocation } = create_pair(SMALL, 7).expect("memory for a link");
        let own = far.own.try_clone().expect("a descriptor");
        let theirs = Mapping::of_file(&own, 0, SMALL.region_bytes()).expect("a mapping");
        let mut a = Endpoint::open(near, SMALL, MAC_A, 9000).expect("a fresh grant");
        let word = |offset: usize| theirs.word(offset).expect("inside");
        let mut frames = Vec::new();
        for (what, place, value) in writes {
            match what {
                0 => word(PRODUCER).store(word(PRODUCER).load(Ordering::Relaxed).wrapping_add(place % 20), Ordering::Release),
                1 => word(CONSUMER).store(word(CONSUMER).load(Ordering::Relaxed).wrapping_add(place % 3), Ordering::Release),
                2 => word(NEED_WAKEUP_WORD).store(value as u32, Ordering::Release),
                3 => word((place as usize % SMALL.region_bytes()) & !3).store(value as u32, Ordering::Release),
                4 => word(PRODUCER).store(value as u32, Ordering::Release),
                _ => {
                    // A descriptor near the bounds, in a slot or as the newest, of whatever index.
                    let at = if place % 17 == 16 { PRODUCER + NEWEST } else { RING + (place as usize % 16) * 8 };
                    let wrong = descriptor(value as u32 % (1 << 17), (value >> 32) as u32 % 10_000);
                    let wrong = wrong | u64::from(word(PRODUCER).load(Ordering::Relaxed).wrapping_sub(place % 3)) << 48;
                    word(at).store(wrong as u32, Ordering::Release);
                    word(at + 4).store((wrong >> 32) as u32, Ordering::Release);
                }
            }
            prop_assert!(a.receive(&mut frames, 64) <= 16);
            for frame in frames.drain(..) {
                prop_assert_eq!(whole(&a, &frame).len(), frame.len());
                if place % 2 == 0 {
                    if let Err(full) = a.transmit(frame) { a.release(full.into_frame()) }
                } else {
                    a.release(frame);
                }
            }
            send(&mut a, &[5; 300]);
            let _ = a.flush();
            a.arm();
            a.disarm();
            prop_assert!(a.free_buffers() <= 32);
        }
    }
}

#[test]
fn frames_kept_for_long_do_not_hold_others_up() {
    let (mut a, mut b, _revocation) = ends(SMALL, 1500);
    let kept = a.allocate(1000).expect("a fresh link");
    let mut frames = Vec::new();
    for round in 0..10 {
        assert!(send(&mut a, &content(round, 100)));
        a.flush().expect("the link is whole");
        assert_eq!(b.receive(&mut frames, 4), 1, "round {round}");
        frames.drain(..).for_each(|frame| b.release(frame));
    }
    a.release(kept);
}

#[test]
fn a_peer_that_takes_nothing_only_makes_the_sender_wait() {
    let (mut a, mut b, _revocation) = ends(SMALL, 1500);
    let sent = (0..100).filter(|_| send(&mut a, &[1; 60])).count();
    assert_eq!(sent, 16);
    a.flush().expect("a full link is no error");
    assert!(a.counters().tx_backpressure > 0);
    let mut frames = Vec::new();
    assert_eq!(b.receive(&mut frames, 4), 4);
    assert_eq!((0..100).filter(|_| send(&mut a, &[1; 60])).count(), 4);
    frames.drain(..).for_each(|frame| b.release(frame));
}

#[test]
fn revocation_ends_both_sides_while_they_work() {
    let (mut a, mut b, revocation) = ends(SMALL, 1500);
    assert!(send(&mut a, &[1; 60]));
    a.flush().expect("the link is whole");
    assert!(a.is_alive() && b.is_alive());
    revocation.revoke().expect("both regions can be written");
    assert_eq!(b.receive(&mut Vec::new(), 4), 0);
    assert!(a.flush().is_err() && b.flush().is_err() && !a.is_alive());
    assert!(b.arm(), "no sleep on a link that is over");
    revocation.revoke().expect("it may be repeated");
}

#[test]
fn a_peer_that_dies_is_noticed() {
    let (mut a, b, _) = ends(SMALL, 1500);
    assert!(a.is_alive());
    drop(b);
    let mut entries = [PollFd::new(&a, PollFlags::IN)];
    assert_eq!(poll(&mut entries, None), Ok(1));
    assert!(entries[0].revents().contains(PollFlags::HUP));
    assert!(!a.is_alive());
}

#[test]
fn a_grant_opens_once_and_only_as_its_own_kind() {
    let Pair { near, far, revocation } = create_pair(SMALL, 7).expect("memory for a link");
    let copy = |fds: &super::EndpointFds| {
        let of = [fds.own.as_fd(), fds.peer.as_fd(), fds.doorbell.as_fd()];
        super::EndpointFds::received(of.map(|fd| fd.try_clone_to_owned().expect("a descriptor")), 0)
    };
    let open = |fds, layout| Endpoint::open(fds, layout, MAC_A, 1500);
    let larger = LinkLayout { data: 1 << 17, ..SMALL };
    assert!(matches!(open(copy(&near), larger), Err(OpenError::Size { .. })));
    let other = LinkLayout { slots: 32, ..SMALL };
    assert!(matches!(open(copy(&near), other), Err(OpenError::Header("layout"))));
    let mut mixed = copy(&near);
    mixed.peer = near.own.try_clone().expect("a descriptor");
    assert!(matches!(open(mixed, SMALL), Err(OpenError::Header("side"))));
    let unrelated = create_pair(SMALL, 8).expect("memory for a link");
    let mut mixed = copy(&near);
    mixed.peer = unrelated.far.own;
    assert!(matches!(open(mixed, SMALL), Err(OpenError::Header("generation"))));
    assert!(Endpoint::open(copy(&far), SMALL, MAC_B, 40_000).is_err(), "four such frames do not fit");
    let mut first = open(copy(&near), SMALL).expect("a fresh grant");
    assert!(send(&mut first, &[1; 60]));
    first.flush().expect("the link is whole");
    assert!(matches!(open(near, SMALL), Err(OpenError::Used)));
    drop((far, revocation));
}

#[test]
fn the_peers_region_cannot_be_written() {
    let Pair { near, .. } = create_pair(SMALL, 7).expect("memory for a link");
    // Not mapped, not written, not opened anew by a user other than its maker.
    assert!(Mapping::of_file(&near.peer, 0, SMALL.region_bytes()).is_err());
    assert!(rustix::io::pwrite(&near.peer, &[1], REVOKED as u64).is_err());
    assert!(rustix::fs::ftruncate(&near.own, 0).is_err());
    if !rustix::process::getuid().is_root() {
        eprintln!("SKIPPED the_peers_region_cannot_be_written: needs root to become another user");
        return;
    }
    std::thread::spawn(move || {
        // SAFETY: changes the file system identity of this thread alone, which ends with the test.
        unsafe { libc::setfsuid(65_534) };
        let path = format!("/proc/thread-self/fd/{}", near.peer.as_raw_fd());
        assert!(rustix::fs::open(path, OFlags::RDWR, Mode::empty()).is_err());
    })
    .join()
    .expect("no other process opens the region");
}

/// Two threads, each with its own mappings as two processes have them; the receiver sleeps whenever
/// there is nothing.
#[test]
fn a_sleeper_is_woken_for_every_frame() {
    let (mut a, mut b, _revocation) = ends(SMALL, 1500);
    const FRAMES: usize = 20_000;
    let receiver = std::thread::spawn(move || {
        let (mut frames, mut seen) = (Vec::new(), 0);
        while seen < FRAMES {
            if b.receive(&mut frames, 8) == 0 {
                if !b.arm() {
                    let mut entries = [PollFd::new(&b, PollFlags::IN)];
                    let _ = poll(&mut entries, None);
                }
                b.disarm();
            }
            for frame in frames.drain(..) {
                assert_eq!(b.bytes(&frame), content(seen, 20 + seen % 300));
                b.release(frame);
                seen += 1;
            }
        }
        b.counters()
    });
    for number in 0..FRAMES {
        let bytes = content(number, 20 + number % 300);
        while !send(&mut a, &bytes) {
            std::thread::yield_now();
        }
        a.flush().expect("the receiver is open");
    }
    let counters = receiver.join().expect("every frame arrived whole");
    assert_eq!((counters.rx_frames, counters.invalid_descriptors), (FRAMES as u64, 0));
}

/// A descriptor whose other end notices when the last copy is closed.
fn watched() -> (std::io::PipeReader, std::io::PipeWriter) {
    let (reader, writer) = std::io::pipe().expect("descriptors");
    rustix::io::ioctl_fionbio(&reader, true).expect("a pipe");
    (reader, writer)
}

fn is_closed(reader: &std::io::PipeReader) -> bool {
    rustix::io::read(reader, &mut [0; 1]) == Ok(0)
}

#[test]
fn a_doorbell_passes_no_descriptors_in_either_direction() {
    let Pair { near, far, revocation } = create_pair(SMALL, 7).expect("memory for a link");
    if !sietch_ring::socket_pair::refuses_descriptors(&near.doorbell) {
        return eprintln!(
            "SKIPPED a_doorbell_passes_no_descriptors_in_either_direction: needs Linux 6.16, to refuse them"
        );
    }
    for end in [&near.doorbell, &far.doorbell] {
        let sent = send_message(end.as_fd(), &[0], &[end.as_fd()], SendFlags::DONTWAIT);
        assert_eq!(sent, Err(rustix::io::Errno::PERM));
    }
    drop(revocation);
}

#[test]
fn a_peer_that_sends_a_descriptor_ends_the_link_and_the_descriptor_is_not_taken() {
    let Pair { far, revocation, .. } = create_pair(SMALL, 7).expect("memory for a link");
    // As a kernel before 6.16 makes them.
    let (hostile, doorbell) = std::os::unix::net::UnixStream::pair().expect("descriptors");
    let far = super::EndpointFds::received([far.own, far.peer, doorbell.into()], 1000);
    let mut endpoint = Endpoint::open(far, SMALL, MAC_B, 1500).expect("a fresh grant");
    let (reader, writer) = watched();
    send_message(hostile.as_fd(), &[0], &[writer.as_fd()], SendFlags::DONTWAIT).expect("room");
    drop(writer);
    endpoint.arm();
    endpoint.disarm();
    assert!(!endpoint.is_alive(), "nothing that an honest peer does");
    assert!(!is_closed(&reader), "the reader of the doorbell would have to close it");
    // A thread that may hang closes the doorbell, and with it what is queued there.
    drop((endpoint, revocation));
    while !is_closed(&reader) {
        std::thread::yield_now();
    }
}

/// A socket whose last close waits for an hour, and its peer, whose close ends that.
fn lingering() -> (TcpStream, TcpStream) {
    let listening = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let mut one = TcpStream::connect(listening.local_addr().expect("bound")).expect("a listener");
    let (other, _) = listening.accept().expect("it has connected");
    one.set_nonblocking(true).expect("a socket");
    while one.write(&[0; 65536]).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&one, Some(Duration::from_secs(3600))).expect("a socket");
    one.set_nonblocking(false).expect("a socket");
    (one, other)
}

#[test]
fn an_end_that_is_not_used_is_closed_by_a_thread_that_may_hang() {
    let ends = [false, true].map(|opens| {
        let Pair { far, .. } = create_pair(SMALL, 7).expect("memory for a link");
        // As a kernel before 6.16 makes them.
        let (hostile, doorbell) = std::os::unix::net::UnixStream::pair().expect("descriptors");
        let (lingers, peer) = lingering();
        send_message(hostile.as_fd(), &[0], &[lingers.as_fd()], SendFlags::DONTWAIT).expect("room");
        drop(lingers);
        let far = super::EndpointFds::received([far.own, far.peer, doorbell.into()], 1000);
        (opens, far, peer)
    });
    let (done, all) = std::sync::mpsc::channel();
    let mut peers = Vec::new();
    for (opens, far, peer) in ends {
        let done = done.clone();
        peers.push(peer);
        std::thread::spawn(move || {
            let larger = LinkLayout { data: 1 << 17, ..SMALL };
            if opens {
                assert!(matches!(Endpoint::open(far, larger, MAC_B, 1500), Err(OpenError::Size { .. })));
            } else {
                drop(far);
            }
            done.send(()).expect("the test waits");
        });
    }
    for _ in 0..2 {
        all.recv_timeout(Duration::from_secs(20)).expect("no close waits in the thread that has the end");
    }
    drop(peers);
}
