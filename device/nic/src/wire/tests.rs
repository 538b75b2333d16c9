use std::collections::VecDeque;

use proptest::prelude::*;

use super::{Medium, WireQueue, pair, tapped, tapped_with};
use crate::queue::{Frame, NicQueue};

const MAC_A: [u8; 6] = [2, 0, 0, 0, 0, 1];
const MAC_B: [u8; 6] = [2, 0, 0, 0, 0, 2];
const MTU: usize = 1500;

fn send(queue: &mut WireQueue, bytes: &[u8]) {
    let mut frame = queue.allocate(bytes.len()).expect("the test sends fewer frames than there are buffers");
    queue.bytes_mut(&mut frame).copy_from_slice(bytes);
    queue.transmit(frame).expect("the test sends fewer frames than there are buffers");
}

fn receive_one(queue: &mut WireQueue) -> Option<Vec<u8>> {
    let mut frames = Vec::new();
    queue.receive(&mut frames, 1);
    let frame = frames.pop()?;
    let bytes = queue.bytes(&frame).to_vec();
    queue.release(frame);
    Some(bytes)
}

#[test]
fn nothing_leaves_before_flush() {
    let (mut a, mut b) = pair(MAC_A, MAC_B, MTU, 4);
    send(&mut a, b"one");
    assert_eq!(receive_one(&mut b), None);
    a.flush().expect("the wire is whole");
    assert_eq!(receive_one(&mut b).as_deref(), Some(&b"one"[..]));
    assert_eq!((a.free_buffers(), b.free_buffers()), (4, 4));
}

#[test]
fn the_tap_decides_which_frames_arrive() {
    let (mut queue, tap) = tapped(MAC_A, MTU, 4);
    send(&mut queue, b"first");
    send(&mut queue, b"second");
    queue.flush().expect("the wire is whole");
    let first = tap.take_transmitted().expect("two frames were flushed");
    let second = tap.take_transmitted().expect("two frames were flushed");
    assert_eq!(tap.take_transmitted(), None);
    // Reordered and repeated.
    for frame in [&second, &first, &first] {
        assert!(tap.deliver(frame));
    }
    let arrived: Vec<_> = std::iter::from_fn(|| receive_one(&mut queue)).collect();
    assert_eq!(arrived, [b"second".to_vec(), b"first".to_vec(), b"first".to_vec()]);
}

#[test]
fn an_overlong_frame_is_dropped() {
    let (mut queue, tap) = tapped(MAC_A, MTU, 4);
    assert!(!tap.deliver(&[0; MTU + 15]));
    assert!(tap.deliver(&[7; MTU + 14]));
    assert_eq!(receive_one(&mut queue).map(|bytes| bytes.len()), Some(MTU + 14));
}

#[test]
fn a_full_device_keeps_frames_queued() {
    let (mut queue, tap) = tapped(MAC_A, MTU, 4);
    tap.limit_transmitted(1);
    send(&mut queue, b"one");
    send(&mut queue, b"two");
    queue.flush().expect("a full device is no error");
    assert_eq!((tap.transmitted(), queue.free_buffers()), (1, 3));
    assert_eq!(tap.take_transmitted().as_deref(), Some(&b"one"[..]));
    queue.flush().expect("a full device is no error");
    assert_eq!(tap.take_transmitted().as_deref(), Some(&b"two"[..]));
    assert_eq!(queue.free_buffers(), 4);
}

#[test]
fn a_long_frame_has_a_tail_on_shared_memory_and_may_be_turned_around() {
    let (mut queue, tap) = tapped_with(MAC_A, MTU, 4, Medium::SHARED_MEMORY);
    let sent: Vec<u8> = (0..1000_u32).map(|byte| byte as u8).collect();
    assert!(tap.deliver(&sent) && tap.deliver(&sent[..256]));
    let mut frames = Vec::new();
    queue.receive(&mut frames, 4);
    let (short, mut long) = (frames.pop().expect("two arrived"), frames.pop().expect("two arrived"));
    assert_eq!((short.head_len(), short.tail_len(), long.head_len(), long.tail_len()), (256, 0, 256, 744));
    assert_eq!(queue.bytes(&long), &sent[..256]);
    assert_eq!(queue.tail(&long).to_vec(), &sent[256..]);
    assert!(queue.tail(&short).is_empty() && queue.offloads().checksums);
    queue.bytes_mut(&mut long)[0] = 99;
    long.truncate(500);
    queue.transmit(long).expect("there is room");
    queue.release(short);
    queue.flush().expect("the wire is whole");
    let turned = tap.take_transmitted().expect("one frame was flushed");
    assert_eq!((turned[0], &turned[1..]), (99, &sent[1..500]));
}

#[test]
fn a_cut_wire_fails_flush() {
    let (mut queue, tap) = tapped(MAC_A, MTU, 4);
    tap.cut();
    let error = queue.flush().expect_err("the wire is cut");
    assert_eq!(error.raw_os_error(), Some(libc::ENETDOWN));
}

#[test]
fn exhausted_receiver_leaves_frames_on_the_wire() {
    let (mut queue, tap) = tapped(MAC_A, MTU, 2);
    let held: Vec<Frame> = std::iter::from_fn(|| queue.allocate(60)).collect();
    assert_eq!(held.len(), 2);
    assert!(tap.deliver(b"waits"));
    assert_eq!(receive_one(&mut queue), None);
    held.into_iter().for_each(|frame| queue.release(frame));
    assert_eq!(receive_one(&mut queue).as_deref(), Some(&b"waits"[..]));
}

#[derive(Clone, Debug)]
enum Step {
    Send(Vec<u8>),
    Flush,
    Receive(usize),
}

proptest! {
    #[test]
    fn frames_arrive_in_order_and_buffers_come_back(
        steps in prop::collection::vec(
            prop_oneof![
                prop::collection::vec(any::<u8>(), 0..64).prop_map(Step::Send),
                Just(Step::Flush),
                (0..5_usize).prop_map(Step::Receive),
            ],
            0..100,
        )
    ) {
        let (mut a, mut b) = pair(MAC_A, MAC_B, MTU, 8);
        let mut queued = VecDeque::new();
        for step in steps {
            match step {
                Step::Send(bytes) => {
                    if let Some(mut frame) = a.allocate(bytes.len()) {
                        a.bytes_mut(&mut frame).copy_from_slice(&bytes);
                        prop_assert!(a.transmit(frame).is_ok());
                        queued.push_back(bytes);
                    }
                }
                Step::Flush => a.flush().expect("the wire is whole"),
                Step::Receive(limit) => {
                    let mut frames = Vec::new();
                    prop_assert_eq!(b.receive(&mut frames, limit), frames.len());
                    prop_assert!(frames.len() <= limit);
                    for frame in frames {
                        let expected = queued.pop_front();
                        prop_assert_eq!(Some(b.bytes(&frame)), expected.as_deref());
                        b.release(frame);
                    }
                }
            }
        }
        // Drain: a flush after each receive brings the rest across.
        for _ in 0..16 {
            a.flush().expect("the wire is whole");
            while let Some(bytes) = receive_one(&mut b) {
                prop_assert_eq!(Some(bytes), queued.pop_front());
            }
        }
        prop_assert!(queued.is_empty());
        prop_assert_eq!((a.free_buffers(), b.free_buffers()), (8, 8));
    }
}
