mod growing;
mod locks;

use std::collections::VecDeque;
use std::os::fd::AsFd as _;

use proptest::prelude::*;

use super::layout::{Common, moved, tail};
use super::*;
use crate::sync::Ordering;

/// Regions from 4 KiB to 64 KiB: small enough that a test sees every move.
const SMALL: RegionSizes = RegionSizes { smallest: 12, largest: 16 };

fn pair(region_sizes: RegionSizes) -> [Endpoint; 2] {
    let memory = Memory::create(region_sizes, [Names::default(); 2]).expect("memfds");
    let [first, second] = &memory.private;
    [first, second]
        .map(|private| Endpoint::attach(memory.common.as_fd(), private.as_fd()).expect("its own memory"))
}

fn write(end: &Endpoint, bytes: &[u8]) -> usize {
    end.send().expect("no handler").write(bytes)
}

fn read(end: &Endpoint, most: usize) -> Vec<u8> {
    let mut out = vec![0; most];
    let count = end.receive().expect("no handler").read(&mut out);
    out.truncate(count);
    out
}

#[test]
fn names_and_both_directions() {
    let names = Names { local: [1; 28], peer: [2; 28], local_length: 16, peer_length: 28 };
    let memory = Memory::create(RegionSizes::default(), [names, Names::default()]).expect("memfds");
    let first = Endpoint::attach(memory.common.as_fd(), memory.private[0].as_fd()).expect("attach");
    let second = Endpoint::attach(memory.common.as_fd(), memory.private[1].as_fd()).expect("attach");
    assert_eq!(first.names(), names);
    assert_eq!(write(&first, b"question"), 8);
    assert_eq!(second.readable(), 8);
    assert_eq!(read(&second, 4), b"ques");
    assert_eq!(write(&second, b"answer"), 6);
    assert_eq!(read(&first, 100), b"answer");
    assert_eq!(read(&second, 100), b"tion");
    assert!(!second.ended());
    first.finish();
    assert!(second.ended());
}

#[test]
fn two_threads_pass_bytes_in_order_through_all_regions() {
    // Miri takes milliseconds for a message; a move to each region is in either number.
    const BYTES: usize = if cfg!(miri) { 200_000 } else { 20_000_000 };
    let [producer, consumer] = pair(SMALL);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let message: Vec<u8> = (0..=250).cycle().take(251 * 40).collect();
            let mut sent = 0;
            while sent < BYTES {
                let from = sent % 251;
                let length = (BYTES - sent).min(message.len() - from);
                match write(&producer, &message[from..from + length]) {
                    0 => std::thread::yield_now(),
                    some => sent += some,
                }
            }
        });
        let mut received = 0;
        while received < BYTES {
            let bytes = read(&consumer, 5000);
            for (at, byte) in bytes.iter().enumerate() {
                assert_eq!(usize::from(*byte), (received + at) % 251, "byte {}", received + at);
            }
            received += bytes.len();
            if bytes.is_empty() {
                std::thread::yield_now();
            }
        }
    });
    assert!(consumer.receive().expect("no handler").available() == 0 && !consumer.private().has(flag::RESET));
}

/// A file that no seal protects.
#[cfg(not(miri))]
fn loose(length: usize) -> std::os::fd::OwnedFd {
    let file = rustix::fs::memfd_create("loose", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd");
    rustix::fs::ftruncate(&file, length as u64).expect("truncate");
    file
}

#[cfg(miri)]
fn loose(_: usize) -> std::os::fd::OwnedFd {
    std::fs::File::open("/dev/null").expect("a file").into()
}

#[test]
fn memory_of_another_kind_is_refused() {
    let memory = Memory::create(SMALL, [Names::default(); 2]).expect("memfds");
    let other = Memory::create(RegionSizes::default(), [Names::default(); 2]).expect("memfds");
    let attach = |common, private| Endpoint::attach(common, private).map(|_| ());
    let wrong = attach(other.common.as_fd(), memory.private[0].as_fd());
    assert!(matches!(wrong, Err(AttachError::Version)), "{wrong:?}");
    let wrong = attach(memory.common.as_fd(), memory.common.as_fd());
    assert!(matches!(wrong, Err(AttachError::Version)), "{wrong:?}");
    let loose = loose(layout::PRIVATE);
    let wrong = attach(memory.common.as_fd(), loose.as_fd());
    assert!(matches!(wrong, Err(AttachError::NotSealed)), "{wrong:?}");
    assert!(Memory::create(RegionSizes { smallest: 20, largest: 14 }, [Names::default(); 2]).is_err());
}

#[derive(Clone, Debug)]
enum Operation {
    Write(usize),
    Read(usize),
    Peek(usize, usize),
    /// Straight into the ring.
    Fill(usize),
    Limit(u32),
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        4 => (0..40_000_usize).prop_map(Operation::Write),
        4 => (0..40_000_usize).prop_map(Operation::Read),
        1 => (0..9_000_usize, 0..9_000_usize).prop_map(|(skip, length)| Operation::Peek(skip, length)),
        2 => (0..9_000_usize).prop_map(Operation::Fill),
        1 => prop_oneof![Just(0), 12..17_u32].prop_map(Operation::Limit),
    ]
}

proptest! {
    #[test]
    #[cfg_attr(miri, ignore = "megabytes take minutes")]
    fn bytes_arrive_in_order_in_every_state_of_the_ring(operations in prop::collection::vec(operation(), 1..200)) {
        let [producer, consumer] = pair(SMALL);
        let mut oracle: VecDeque<u8> = VecDeque::new();
        let mut next = 0_u8;
        let mut make = |count: usize| -> Vec<u8> {
            (0..count).map(|_| { next = next.wrapping_mul(5).wrapping_add(13); next }).collect()
        };
        for operation in operations {
            match operation {
                Operation::Write(count) => {
                    let bytes = make(count);
                    let written = write(&producer, &bytes);
                    // Bytes that did not fit are made anew: what counts is what went in.
                    oracle.extend(&bytes[..written]);
                    prop_assert!(written == count || producer.writable() == 0);
                }
                Operation::Fill(count) => {
                    let mut send = producer.send().expect("no handler");
                    let mut left = count;
                    for (to, room) in send.space() {
                        let bytes = make(room.min(left));
                        // SAFETY: the space was just given out for so many bytes.
                        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
                        left -= bytes.len();
                        oracle.extend(&bytes);
                    }
                    send.stage(count - left);
                }
                Operation::Read(most) => {
                    let expected: Vec<u8> = oracle.drain(..most.min(oracle.len())).collect();
                    prop_assert_eq!(read(&consumer, most), expected);
                }
                Operation::Peek(skip, length) => {
                    let mut out = vec![0; length];
                    let receive = consumer.receive().expect("no handler");
                    // SAFETY: a vector of that length.
                    let copied = unsafe { receive.copy_to(out.as_mut_ptr(), length, skip) }.expect("a vector");
                    let expected: Vec<u8> = oracle.iter().skip(skip).take(length).copied().collect();
                    prop_assert_eq!(&out[..copied], &expected[..]);
                }
                Operation::Limit(log2) => producer.private().send_limit.store(log2, Ordering::Relaxed),
            }
            prop_assert_eq!(consumer.readable(), oracle.len());
            prop_assert!(!consumer.private().has(flag::RESET) && !producer.private().has(flag::RESET));
        }
        prop_assert_eq!(read(&consumer, 1 << 20), Vec::from(oracle));
    }

    /// The other end writes what it likes into the common memory: whatever is called, nothing
    /// panics, faults or loops, and the end is given up.
    #[test]
    fn a_scribbling_peer_ends_its_own_connection_only(
        scribbles in prop::collection::vec((0..9_usize, any::<u64>(), any::<bool>()), 1..60),
    ) {
        let [mine, theirs] = pair(SMALL);
        for (word, value, small) in scribbles {
            let value = if small { value % 70_000 } else { value };
            let direction = |n: usize| &common(&theirs).directions[n];
            match word {
                0 => direction(1).producer.tail.store(tail::word(value, value & 15), Ordering::Release),
                1 => direction(1).producer.tail.store(value, Ordering::Release),
                2 => direction(1).moves.left[value as usize % 32].store(value, Ordering::Release),
                3 => {
                    let word = moved::word(value % 5000, (value % 30) as u8);
                    direction(1).moves.left[12 + value as usize % 5].store(word, Ordering::Release);
                }
                4 => direction(0).consumer.head.store(value, Ordering::Release),
                5 => direction(0).producer.tail.store(value, Ordering::Release),
                6 => direction(0).moves.left[value as usize % 32].store(value, Ordering::Release),
                7 => direction(0).waiters.data.store(value, Ordering::Release),
                _ => direction(1).waiters.room.store(value, Ordering::Release),
            }
            let _ = write(&mine, &[7; 3000]);
            mine.notify_with([mine.data_notification()], || true);
            let _ = mine.drain(0, |_| Some(Taken { bytes: value as u32, left: value as u32 % 3 }));
            let _ = (mine.readable(), mine.writable(), mine.is_writable(), mine.ended(), mine.may_be_hung_up());
            prop_assert!(read(&mine, 100_000).len() <= 3 << SMALL.largest);
            // A reader that reads on while something can be read reaches an end, with its reason.
            let mut iterations = 0;
            while mine.readable() != 0 {
                iterations += 1;
                prop_assert!(iterations < 40, "{} bytes that cannot be read", mine.readable());
                prop_assert!(!read(&mine, 100_000).is_empty() || mine.private().has(flag::RESET));
            }
            mine.notify_with([mine.room_notification()], || true);
        }
    }
}

/// What a hostile peer sees.
fn common(end: &Endpoint) -> &Common {
    end.common()
}

#[test]
fn two_threads_move_megabytes_through_a_small_ring() {
    let [producer, consumer] = pair(SMALL);
    const TOTAL: usize = 8 << 20;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let block: Vec<u8> = (0..5003_usize).map(|at| at as u8).collect();
            let mut sent = 0;
            while sent < TOTAL {
                let at = sent % block.len();
                let most = (TOTAL - sent).min(block.len() - at);
                let now = write(&producer, &block[at..at + most]);
                if now == 0 {
                    std::thread::yield_now();
                }
                sent += now;
            }
            producer.finish();
        });
        let mut seen = 0;
        while !consumer.ended() {
            let bytes = read(&consumer, 7001);
            for (at, byte) in bytes.iter().enumerate() {
                assert_eq!(*byte, ((seen + at) % 5003) as u8);
            }
            seen += bytes.len();
            if bytes.is_empty() {
                std::thread::yield_now();
            }
        }
        assert_eq!(seen, TOTAL);
    });
}

#[test]
fn a_hang_up_is_a_reset_if_and_only_if_something_was_left_unread() {
    let [mine, theirs] = pair(SMALL);
    write(&mine, b"read");
    assert_eq!(read(&theirs, 10), b"read");
    theirs.closing();
    assert!(mine.may_be_hung_up());
    // Sent after the close: it was lost, and that is no reset yet.
    write(&mine, b"late");
    assert_eq!(mine.hung_up(), Hangup::Finished);
    assert!(mine.ended());

    let [mine, theirs] = pair(SMALL);
    write(&mine, b"unread");
    write(&theirs, b"last words");
    theirs.closing();
    assert_eq!(mine.hung_up(), Hangup::Reset);
    assert_eq!(read(&mine, 100), b"last words", "what had come is still there");

    // Killed: no hint.
    let [mine, theirs] = pair(SMALL);
    write(&mine, b"unread");
    assert_eq!(mine.hung_up(), Hangup::Reset);
    drop(theirs);

    // A parent that closes its copy, and a child that reads on and dies later.
    let [mine, theirs] = pair(SMALL);
    write(&mine, b"for the child");
    theirs.closing();
    assert!(mine.may_be_hung_up());
    mine.still_there(mine.hint());
    assert!(!mine.may_be_hung_up());
    assert_eq!(read(&theirs, 100), b"for the child");
    theirs.closing();
    assert!(mine.may_be_hung_up(), "the second of two that close leaves the same tail");
    mine.still_there(mine.hint());
    assert_eq!(mine.hung_up(), Hangup::Finished);

    let [mine, theirs] = pair(SMALL);
    theirs.abort_on_close(true);
    theirs.closing();
    assert_eq!(mine.hung_up(), Hangup::Reset);
}

#[test]
fn a_watcher_s_edges_are_those_of_linux() {
    let [mine, theirs] = pair(SMALL);
    let before = mine.snapshot();
    mine.private().set(flag::NONBLOCKING | flag::RESET_REPORTED);
    write(&mine, b"own bytes");
    assert_eq!((mine.snapshot(), mine.spaces()), (before, 0));
    write(&theirs, b"x");
    assert_eq!(mine.snapshot(), Edge { arrived: 1, ..before });
    theirs.finish();
    let ended = mine.snapshot();
    assert_ne!(ended.changes, before.changes);
    read(&theirs, 100);
    theirs.closing();
    assert_eq!(mine.hung_up(), Hangup::Finished);
    let closed = mine.snapshot();
    assert_eq!((closed.arrived, closed.changes), (ended.arrived, ended.changes), "says nothing new");
    assert_eq!([ended, closed].map(|edge| edge.is_closing()), [false, true]);
    assert_eq!([before, ended, closed].map(|edge| edge.is_finished()), [false, true, true]);
    mine.private().wake_watchers();
    assert_ne!(mine.snapshot().changes, ended.changes);

    let [mine, theirs] = pair(SMALL);
    while write(&mine, &[0; 4096]) != 0 {}
    assert!(mine.note_full());
    assert!(!mine.note_full());
    assert_eq!(mine.spaces(), 0);
    while !read(&theirs, 4096).is_empty() {}
    assert_eq!(mine.spaces(), 1);
    assert!(!mine.is_short_of_room());
    assert_eq!(mine.spaces(), 1, "once, until there is none again");
}

#[test]
fn a_waiter_is_notified_once_for_each_request_and_only_for_its_own_event() {
    let [mine, theirs] = pair(SMALL);
    write(&mine, b"nothing waits");
    assert!(!mine.data_notification().is_needed());
    theirs.arm(Want::Room);
    assert!(!mine.data_notification().is_needed());
    let request = theirs.arm(Want::Data) as u32;
    assert_eq!(theirs.waiting(), 2);
    assert!(mine.data_notification().is_needed());
    assert!(
        mine.data_notification().is_needed(),
        "a notifier that is killed before the byte is written has answered nothing"
    );
    assert!(!theirs.is_answered(Want::Data, request));
    mine.notify_with([mine.data_notification()], || true);
    assert!(theirs.is_answered(Want::Data, request));
    assert_eq!((theirs.waiting(), theirs.undrained()), (2, 1), "a waiter is counted until it has returned");
    assert!(!mine.data_notification().is_needed(), "one byte a request");
    let request = theirs.arm_again(Want::Data) as u32;
    assert!(!theirs.is_answered(Want::Data, request));
    assert!(mine.data_notification().is_needed());
    theirs.disarm(Want::Data);
    assert!(!mine.data_notification().is_needed());
    assert!(mine.room_notification().is_needed(), "the ring is empty: room for a quarter and more");
    mine.arm(Want::Data);
    mine.disarm(Want::Data);
    assert!(!theirs.data_notification().is_needed());
}

#[test]
fn the_last_byte_stays_in_the_doorbell_as_long_as_others_wait() {
    let [mine, theirs] = pair(SMALL);
    let left = |own| {
        let mut left = None;
        let emptied = mine.drain(own, |leave| {
            left = Some(leave);
            None
        });
        (emptied, left)
    };
    assert_eq!(left(0), (true, Some(false)));
    mine.arm(Want::Data);
    assert_eq!(left(0), (false, Some(true)));
    assert_eq!(left(1), (true, Some(false)));
    mine.request_for_others(Want::Room);
    assert_eq!(left(1), (false, Some(true)));
    theirs.notify_with([theirs.room_notification()], || true);
    mine.withdraw_request(Want::Room);
    assert_eq!(left(1), (true, Some(false)));
    // One drainer at a time; a thread that has ended drains nothing.
    let within = |_| {
        assert_eq!(left(1), (false, None));
        None
    };
    assert!(mine.drain(1, within));
    let ended = || {
        let _held = mine.receive().expect("free");
        mine.private().receiving.lock.load(Ordering::Relaxed)
    };
    let ended = std::thread::scope(|scope| scope.spawn(ended).join().expect("the thread only reads its id"));
    // A thread that was joined may still be on its way out of the kernel.
    while is_running(ended & ((1 << 22) - 1)) {
        std::thread::yield_now();
    }
    mine.private().doorbell.draining.store(ended, Ordering::Relaxed);
    assert_eq!(left(1), (false, None));
    assert_eq!(left(1), (true, Some(false)));
    mine.private().doorbell.draining.store(ended, Ordering::Relaxed);
    mine.arm_again(Want::Data);
    assert!(!mine.is_draining());
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no files with holes")]
fn holes_that_the_other_makes_are_zeros_and_end_its_own_connection_only() {
    use rustix::fs::FallocateFlags;
    for whole in [false, true] {
        let memory = Memory::create(SMALL, [Names::default(); 2]).expect("memfds");
        let [mine, theirs] = [0, 1].map(|end: usize| {
            Endpoint::attach(memory.common.as_fd(), memory.private[end].as_fd()).expect("its own memory")
        });
        assert_eq!(write(&theirs, &[7; 3000]), 3000);
        assert_eq!(read(&mine, 100), [7; 100]);
        let from = if whole { 0 } else { super::layout::HEADER as u64 };
        let flags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);
        rustix::fs::fallocate(&memory.common, flags, from, SMALL.common() as u64 - from).expect("no seal");
        if whole {
            // Its tail went back.
            assert_eq!(read(&mine, 5000), []);
            assert!(mine.private().has(flag::RESET));
        } else {
            assert_eq!(read(&mine, 5000), [0; 2900]);
            assert_eq!(write(&theirs, &[8; 10]), 10);
            assert_eq!(read(&mine, 5000), [8; 10]);
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "thousands of polls take minutes")]
fn a_waiter_gives_up_on_a_drainer_that_comes_to_no_end() {
    use std::sync::atomic::AtomicBool;
    let [mine, theirs] = pair(SMALL);
    let word = &mine.private().doorbell.draining;
    // Runs as long as this test, and is none of its threads.
    let foreign = std::process::id() | holder() & !((1 << 22) - 1);
    let (over, (said, answers)) = (AtomicBool::new(false), std::sync::mpsc::channel());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                word.store(foreign, Ordering::Relaxed);
            }
        });
        scope.spawn(|| {
            for _ in 0..20 {
                mine.arm(Want::Data);
                mine.disarm(Want::Data);
            }
            said.send(()).expect("it listens");
        });
        // Two minutes each, where every try has a budget of its own.
        let answer = answers.recv_timeout(std::time::Duration::from_secs(60));
        over.store(true, Ordering::Relaxed);
        assert!(answer.is_ok(), "a waiter waits for a drainer still");
    });
    word.store(foreign, Ordering::Relaxed);
    let request = mine.arm(Want::Data) as u32;
    assert!(mine.longest_sleep().is_some(), "it may take the byte that is the waiter's");
    assert!(theirs.data_notification().is_needed());
    theirs.notify_with([theirs.data_notification()], || true);
    assert!(mine.is_answered(Want::Data, request));
    for _ in 0..2000 {
        mine.arm_again(Want::Data);
    }
    assert!(mine.is_draining(), "it may be stopped for a moment");
    // One that is stopped for good does not keep the doorbell; the next one has its time again.
    let long_ago = |since: u64| (since >> 32).wrapping_sub(30_000) << 32 | since & u64::from(u32::MAX);
    mine.stuck.store(long_ago(mine.stuck.load(Ordering::Relaxed)), Ordering::Relaxed);
    mine.arm_again(Want::Data);
    assert!(!mine.is_draining());
    word.store(foreign, Ordering::Relaxed);
    mine.arm_again(Want::Data);
    assert!(mine.is_draining());
    word.store(0, Ordering::Relaxed);
    mine.arm_again(Want::Data);
    assert!(!mine.is_draining());
    assert_eq!(mine.longest_sleep(), None);
}

#[test]
fn a_doorbell_that_could_not_be_drained_is_full_still() {
    let [mine, theirs] = pair(SMALL);
    for _ in 0..3 {
        mine.arm(Want::Data);
        theirs.notify_with([theirs.data_notification()], || true);
        mine.disarm(Want::Data);
    }
    let before = mine.drained();
    assert!(mine.drain(0, |_| None));
    assert_eq!((mine.undrained(), mine.notified_since(before)), (3, 3));
    let taken = |bytes, left| mine.drain(0, |_| Some(Taken { bytes, left }));
    assert!(taken(2, 0));
    assert_eq!(mine.undrained(), 1, "the third is about to be written");
    assert!(taken(0, 0));
    assert_eq!(mine.undrained(), 1);
    assert!(taken(1, 0));
    assert_eq!((mine.undrained(), mine.notified_since(before)), (0, 3));
}

#[test]
#[cfg_attr(miri, ignore = "it polls until a time, for minutes")]
fn held_back_bytes_come_with_later_ones_or_when_they_are_due() {
    let [mine, theirs] = pair(RegionSizes::default());
    let hold = |bytes: &[u8]| {
        let mut send = mine.send().expect("no handler");
        // SAFETY: a slice.
        assert_eq!(unsafe { send.copy_from(bytes.as_ptr(), bytes.len()) }, Ok(bytes.len()));
        send.cork();
    };
    let began = std::time::Instant::now();
    hold(b"first ");
    theirs.arm(Want::Data);
    assert!(mine.data_notification().is_needed(), "a sleeper must learn until when");
    theirs.disarm(Want::Data);
    while theirs.readable() == 0 {
        let left = theirs.corked_for();
        assert!(left.is_none_or(|left| left <= cork::LONGEST * 1_000_000), "{left:?}");
        std::thread::yield_now();
    }
    assert!(began.elapsed().as_millis() + 10 >= u128::from(cork::LONGEST), "{:?}", began.elapsed());
    assert_eq!((read(&theirs, 100), theirs.corked_for()), (b"first ".to_vec(), None));
    // The producer continues behind what its consumer has taken, and takes its head for true.
    hold(b"second ");
    write(&mine, b"third");
    assert_eq!((read(&theirs, 100), theirs.corked_for()), (b"second third".to_vec(), None));
    // More than a segment is not held, the rest is; the end takes it along.
    let much = vec![7; SEGMENT as usize + 10];
    hold(&much);
    assert!(theirs.readable() > 0);
    mine.finish();
    assert_eq!((read(&theirs, much.len() + 1).len(), theirs.ended()), (much.len(), true));
    assert_eq!(theirs.hung_up(), Hangup::Finished);
    assert_eq!(mine.hung_up(), Hangup::Finished);
}

#[test]
fn urgent_data_end_a_read_and_nonsense_about_them_harms_only_its_writer() {
    let [mine, theirs] = pair(SMALL);
    let urgent = |bytes: &[u8]| {
        let mut send = mine.send().expect("no handler");
        // SAFETY: a slice.
        assert_eq!(unsafe { send.copy_from(bytes.as_ptr(), bytes.len()) }, Ok(bytes.len()));
        send.mark_urgent();
    };
    urgent(b"abc");
    write(&mine, b"de");
    assert_eq!((theirs.readable(), theirs.waiting_bytes(), theirs.is_at_mark()), (2, 2, false));
    assert_eq!(
        (theirs.take_urgent(true), theirs.take_urgent(false), theirs.take_urgent(false)),
        (Some(b'c'), Some(b'c'), None)
    );
    assert_eq!((read(&theirs, 9), theirs.is_at_mark()), (b"ab".to_vec(), true));
    assert_eq!((read(&theirs, 9), theirs.is_at_mark()), (b"de".to_vec(), false));
    // Urgent bytes that would be read next give way to later ones.
    for byte in [b"1", b"2", b"3"] {
        urgent(byte);
    }
    assert_eq!((theirs.readable(), theirs.has_urgent(), theirs.is_at_mark()), (0, true, true));
    assert_eq!((theirs.take_urgent(false), read(&theirs, 9)), (Some(b'3'), Vec::new()));
    let producer = &mine.outbound().producer;
    for word in [0, 1, 7, 8, 9, 1000, u64::MAX] {
        for passed in [0, 3, 8, 9, u64::MAX] {
            write(&mine, b"x");
            producer.urgent.store(word, Ordering::Relaxed);
            producer.urgent_passed[0].store(passed.min(word), Ordering::Relaxed);
            producer.urgent_passed[1].store(passed, Ordering::Relaxed);
            assert!(theirs.readable() <= 36 && theirs.waiting_bytes() <= 36);
            let _ = (theirs.take_urgent(false), theirs.is_at_mark(), read(&theirs, 9));
        }
    }
    let _ = (read(&theirs, 99), read(&theirs, 99));
    assert!(!theirs.private().has(flag::RESET));
    assert_eq!(read(&theirs, 99), b"");
    write(&mine, b"still");
    assert_eq!(read(&theirs, 9), b"still");
}

#[test]
#[cfg_attr(miri, ignore = "it polls until a time, for minutes")]
fn a_user_timeout_resets_the_connection_of_a_peer_that_leaves_much_unread() {
    let [mine, theirs] = pair(RegionSizes::default());
    let private = mine.private();
    private.options[option::USER_TIMEOUT].store(option::SET | 1, Ordering::Relaxed);
    write(&mine, &[1; 65_537]);
    assert_eq!(mine.user_timeout_left(), None, "not announced");
    private.set(flag::USER_TIMEOUT);
    assert_eq!(mine.user_timeout_left(), Some(1_000_000));
    // The peer reads, so little that as much as before is too much.
    write(&mine, &[2; 10]);
    read(&theirs, 5);
    assert_eq!(mine.user_timeout_left(), Some(1_000_000));
    read(&theirs, 6);
    assert_eq!((mine.user_timeout_left(), mine.is_stalled()), (None, false));
    write(&mine, &[3; 10]);
    while mine.user_timeout_left() != Some(0) {
        assert_eq!(private.take_error(), 0);
    }
    let error = rustix::io::Errno::TIMEDOUT.raw_os_error().cast_unsigned();
    assert_eq!((private.take_error(), private.has(flag::RESET)), (error, true));
    assert!(theirs.is_reset_by_peer());
    assert_eq!(read(&theirs, 100_000).len(), 65_546);
    assert_eq!(mine.user_timeout_left(), None);
}

#[test]
fn nonsense_about_held_back_bytes_harms_only_its_writer() {
    let [mine, theirs] = pair(SMALL);
    write(&mine, b"true");
    for word in [u64::MAX, 1, 5, 1 << 40, (1 << 40) - 1, 1 << 63] {
        mine.outbound().producer.held.store(word, Ordering::Relaxed);
        let readable = theirs.readable();
        assert!(readable <= 2 << SMALL.largest, "{readable}");
        assert!(theirs.corked_for().is_none_or(|left| left <= cork::LONGEST * 1_000_000));
    }
    let [mine, theirs] = pair(SMALL);
    mine.send().expect("no handler").cork();
    assert_eq!((theirs.corked_for(), theirs.readable()), (None, 0), "nothing is held of nothing");
    // A consumer that takes what was never staged.
    write(&mine, b"true");
    mine.outbound().consumer.head.store(1000, Ordering::Relaxed);
    write(&mine, &[0; 100_000]);
    assert_eq!(mine.hung_up(), Hangup::Reset);
}

#[test]
fn a_move_begun_by_a_killed_process_is_completed_by_the_next_to_write() {
    let [mine, theirs] = pair(SMALL);
    let first: Vec<u8> = (0..4096_u32).map(|byte| byte as u8).collect();
    assert_eq!(write(&mine, &first), first.len());
    // The region is full; this is as far as it came.
    mine.private().sending.held.store(4096, Ordering::Relaxed);
    mine.private().sending.left[12].store(moved::word(4096, 13), Ordering::Relaxed);
    write(&mine, b"and more");
    assert_eq!(read(&theirs, 4096), first);
    assert_eq!(read(&theirs, 100), b"and more");
    assert!(!theirs.private().has(flag::RESET));
}

#[test]
fn a_move_begun_by_a_killed_process_is_completed_by_the_next_to_publish_a_flag() {
    let [mine, theirs] = pair(SMALL);
    write(&mine, &[1; 4096]);
    let word = moved::word(4096, 13);
    mine.private().sending.held.store(4096, Ordering::Relaxed);
    mine.private().sending.left[12].store(word, Ordering::Relaxed);
    mine.outbound().moves.left[12].store(word, Ordering::Relaxed);
    mine.abort_on_close(false);
    assert_eq!(read(&theirs, 4096).len(), 4096);
    write(&mine, b"and more");
    assert_eq!(read(&theirs, 100), b"and more");
}

#[test]
fn a_reader_that_was_killed_between_two_regions_leaves_the_next_where_it_was() {
    let [mine, theirs] = pair(SMALL);
    write(&mine, &[1; 4096]);
    write(&mine, b"and more");
    // It has read the first region to its end, and has not come to the second.
    theirs.private().receiving.head.store(4096, Ordering::Relaxed);
    assert_eq!(theirs.readable(), 8);
    assert_eq!(read(&theirs, 100), b"and more");
    write(&mine, b"still");
    assert_eq!(read(&theirs, 100), b"still");
}

#[test]
fn a_close_beside_a_send_changes_no_position_and_is_seen() {
    let [mine, theirs] = pair(SMALL);
    let held = mine.send().expect("free");
    let mark = mine.private().sending.lock.load(Ordering::Relaxed) >> 22 << 22;
    drop(held);
    write(&mine, b"first ");
    let mut send = mine.send().expect("free");
    // SAFETY: a slice.
    assert_eq!(unsafe { send.copy_from(b"held ".as_ptr(), 5) }, Ok(5));
    send.cork();
    // Another process is at it, for long.
    let lock = &mine.private().sending.lock;
    lock.store(std::process::id() | mark, Ordering::Relaxed);
    mine.closing();
    assert_eq!(mine.private().sending.tail.load(Ordering::Relaxed), 6, "that is its affair");
    assert!(theirs.is_closing());
    assert_eq!(read(&theirs, 100), b"first held ", "nothing more is to be waited for");
    lock.store(0, Ordering::Relaxed);
    write(&mine, b"last");
    assert_eq!(read(&theirs, 100), b"last");
    assert!(!mine.private().has(flag::RESET) && !theirs.private().has(flag::RESET));
}

#[test]
fn bytes_held_back_from_a_peer_that_closed_having_read_everything_are_no_reset() {
    let [mine, theirs] = pair(SMALL);
    write(&mine, b"read");
    assert_eq!(read(&theirs, 100), b"read");
    let mut send = mine.send().expect("free");
    // SAFETY: a slice.
    assert_eq!(unsafe { send.copy_from(b"held".as_ptr(), 4) }, Ok(4));
    send.cork();
    theirs.closing();
    assert_eq!(mine.hung_up(), Hangup::Finished);
}

#[test]
fn a_byte_is_counted_before_it_is_written_and_a_request_is_answered_after() {
    let [mine, theirs] = pair(SMALL);
    let request = mine.arm(Want::Data) as u32;
    let state = || (mine.undrained(), mine.is_answered(Want::Data, request));
    for written in [false, true] {
        let due = [theirs.data_notification(), theirs.room_notification()];
        let within = || {
            assert_eq!(state(), (1, false));
            written
        };
        assert_eq!(theirs.notify_with(due, within), written);
        assert_eq!(state(), (u32::from(written), written));
    }
    assert!(!theirs.notify_with([theirs.data_notification()], || unreachable!("nothing is due")));
}
