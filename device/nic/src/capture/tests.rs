use super::*;
use crate::NicQueue as _;
use crate::wire;
use proptest::prelude::*;

fn joined(data: u32, snap: u32) -> (Reader, Tap) {
    let reader = Reader::create(data, snap).expect("a ring");
    let tap = Tap::open(&reader).expect("the same ring");
    (reader, tap)
}

fn write(tap: &mut Tap, frame: &[u8], time: u64) {
    let word = |offset: u32| {
        let rest = &frame[offset as usize..];
        let mut word = [0; 4];
        let length = rest.len().min(4);
        word[..length].copy_from_slice(&rest[..length]);
        u32::from_ne_bytes(word)
    };
    tap.stage(Direction::Received, time, u32::try_from(frame.len()).expect("short"), word);
    tap.publish();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// What is read is what was written, in order, cut at the snap length, across the end of the
    /// ring; what found no room is counted.
    #[test]
    fn frames_come_out_as_they_went_in(
        steps in prop::collection::vec((prop::bool::weighted(0.6), 1_usize..9000), 1..200),
        snap in 14_u32..9000,
    ) {
        let (mut reader, mut tap) = joined(1 << 16, snap);
        let mut expected = std::collections::VecDeque::new();
        let (mut lost, mut bytes) = (0, Vec::new());
        for (number, (write_one, length)) in steps.into_iter().enumerate() {
            if write_one {
                let frame: Vec<u8> = (0..length).map(|at| (at * 7 + number) as u8).collect();
                let dropped = tap.dropped;
                write(&mut tap, &frame, number as u64 * 5_000_000_000);
                if tap.dropped == dropped {
                    expected.push_back((frame, number as u64 * 5_000_000_000));
                } else {
                    lost += 1;
                }
            } else {
                let captured = reader.next(&mut bytes).expect("an honest ring");
                prop_assert_eq!(captured.is_some(), !expected.is_empty());
                if let (Some(captured), Some((frame, time))) = (captured, expected.pop_front()) {
                    prop_assert_eq!(&bytes[..], &frame[..frame.len().min(snap as usize)]);
                    prop_assert_eq!((captured.time, captured.original as usize), (time, frame.len()));
                }
            }
        }
        prop_assert_eq!(reader.dropped(), lost);
    }

    /// Nothing that either side writes makes the other leave the ring, panic, or continue for ever.
    #[test]
    fn nonsense_ends_a_capture_and_nothing_else(
        words in prop::collection::vec((0_usize..0x1400, any::<u32>()), 1..40),
    ) {
        let (mut reader, mut tap) = joined(1 << 16, 2000);
        write(&mut tap, &[1; 100], 1);
        for (offset, value) in words {
            reader.ring.store(offset & !3, value, Ordering::Relaxed);
        }
        write(&mut tap, &[2; 1000], 2);
        let mut bytes = Vec::new();
        for _ in 0..4 {
            if reader.next(&mut bytes).is_err() {
                break;
            }
            prop_assert!(bytes.len() <= 2000);
        }
        let _ = Tap::open(&reader);
    }
}

#[test]
fn a_queue_is_tapped_both_ways_and_a_frame_that_comes_back_is_seen_once() {
    let (near, mut far) = wire::pair([2; 6], [4; 6], 1500, 4);
    let mut near = crate::capture::Tapped::new(near);
    let (mut reader, tap) = joined(1 << 16, MAX_SNAP);
    *near.slot() = Some(Box::new(tap));
    let mut sent = 0;
    while let Some(mut frame) = near.allocate(64) {
        near.bytes_mut(&mut frame).fill(sent);
        near.transmit(frame).expect("room");
        sent += 1;
    }
    near.flush().expect("a wire");
    let mut bytes = Vec::new();
    for number in 0..sent {
        let captured = reader.next(&mut bytes).expect("a ring").expect("a frame");
        assert_eq!((captured.direction, captured.original), (Direction::Sent, 64));
        assert_eq!(bytes, [number; 64]);
        assert!(captured.time > 1_500_000_000_000_000_000);
    }
    let mut frame = far.allocate(99).expect("a frame");
    far.bytes_mut(&mut frame).fill(9);
    far.transmit(frame).expect("room");
    far.flush().expect("a wire");
    let mut arrived = Vec::new();
    assert_eq!(near.receive(&mut arrived, 8), 1);
    arrived.into_iter().for_each(|frame| near.release(frame));
    let captured = reader.next(&mut bytes).expect("a ring").expect("a frame");
    assert_eq!((captured.direction, &bytes[..]), (Direction::Received, &[9; 99][..]));
    // Taken away, it costs nothing and sees nothing.
    *near.slot() = None;
    assert!(reader.next(&mut bytes).expect("a ring").is_none());
}

#[test]
fn the_tail_of_a_large_frame_is_captured_too() {
    use crate::shm::{Endpoint, LinkLayout, create_pair};
    let layout = LinkLayout::for_mtu(9000);
    let pair = create_pair(layout, 1).expect("a link");
    let mut near = Endpoint::open(pair.near, layout, [2; 6], 9000).expect("near");
    let far = Endpoint::open(pair.far, layout, [4; 6], 9000).expect("far");
    let mut far = Tapped::new(far);
    let (mut reader, tap) = joined(1 << 16, MAX_SNAP);
    *far.slot() = Some(Box::new(tap));
    let whole: Vec<u8> = (0..8999_u32).map(|at| (at * 13) as u8).collect();
    let mut frame = near.allocate(whole.len()).expect("room");
    near.bytes_mut(&mut frame).copy_from_slice(&whole);
    near.transmit(frame).expect("room");
    near.flush().expect("a link");
    let mut arrived = Vec::new();
    assert_eq!(far.receive(&mut arrived, 8), 1);
    let mut bytes = Vec::new();
    reader.next(&mut bytes).expect("a ring").expect("a frame");
    assert!(bytes == whole, "head and tail are one frame");
    arrived.into_iter().for_each(|frame| far.release(frame));
}

#[test]
fn memory_that_is_no_ring_is_refused() {
    let plain = rustix::fs::memfd_create("x", MemfdFlags::ALLOW_SEALING).expect("memfd");
    ftruncate(&plain, 1 << 20).expect("size");
    assert!(matches!(Tap::open(&plain), Err(CaptureError::Wrong("seal: it could be cut short"))));
    fcntl_add_seals(&plain, SealFlags::SHRINK).expect("seal");
    assert!(matches!(Tap::open(&plain), Err(CaptureError::Wrong("magic"))));
    assert!(Reader::create(100_000, 64).is_err() && Reader::create(1 << 30, 64).is_err());
    let (pipe, _writer) = rustix::pipe::pipe().expect("pipe");
    assert!(Tap::open(&pipe).is_err());
}
