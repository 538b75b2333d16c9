//! The rules of the contract, one by one.

use std::time::Duration;

use super::{
    Bench, CAPACITY, contents, execute, expect_contents, filled, part, settle, submit, succeed, write,
};
use crate::queue::MAX_PARTS;
use crate::{BLOCK, Buffer, Operation, Part, Priority, SubmitError};

/// Geometry makes sense, the area is zeroed, and nothing is in flight.
pub fn a_new_queue_is_idle(bench: &mut dyn Bench) {
    let mut queue = bench.open();
    assert_eq!(queue.capacity(), CAPACITY as u64);
    let block = queue.block_size();
    assert!(block.is_power_of_two() && block <= BLOCK, "blocks of {block} bytes");
    assert!(queue.depth() >= 1);
    assert_eq!(queue.in_flight(), 0);
    assert_eq!(queue.complete(&mut Vec::new()), 0);
    assert!(queue.notify().is_ok());
    expect_contents(&mut *queue, &vec![0; CAPACITY]);
}

/// Each block alone, several in flight, first and last included.
pub fn reads_return_the_written_bytes(bench: &mut dyn Bench) {
    let mut queue = bench.open();
    let block = queue.block_size().max(512);
    let mut expected = vec![0; CAPACITY];
    for (index, chunk) in expected.chunks_mut(block).enumerate().filter(|(index, _)| index % 3 != 1) {
        if queue.in_flight() == queue.depth() {
            settle(&mut *queue).into_iter().for_each(|done| assert!(done.result.is_ok()));
        }
        chunk.fill(index as u8 + 1);
        submit(&mut *queue, index as u64, write(index * block, block, index as u8 + 1), Priority::Latency);
    }
    settle(&mut *queue).into_iter().for_each(|done| assert!(done.result.is_ok()));
    expect_contents(&mut *queue, &expected);
    // No request uses the rest of a buffer that is longer than its request.
    let last = (CAPACITY - block) as u64;
    let read = Operation::Read { offset: last, length: block, buffer: filled(2 * BLOCK, 0xee) };
    let buffer = succeed(&mut *queue, read).buffer.unwrap_or_else(|| Buffer::new(0));
    assert_eq!(buffer[..block], expected[last as usize..]);
    assert!(buffer[block..].iter().all(|byte| *byte == 0xee), "a read wrote past its length");
}

/// A queue that copies without a request copies what a read would return, and nothing else.
pub fn a_copy_at_once_is_what_a_read_returns(bench: &mut dyn Bench) {
    let mut queue = bench.open();
    let expected = filled(BLOCK, 7);
    succeed(&mut *queue, write(BLOCK, BLOCK, 7));
    let mut out = vec![0xee; BLOCK];
    let copies = queue.read_now(BLOCK as u64, &mut out);
    assert_eq!(out, if copies { expected.to_vec() } else { vec![0xee; BLOCK] });
    // A write that was submitted before comes first.
    submit(&mut *queue, 1, write(BLOCK, BLOCK, 8), Priority::Latency);
    let mut out = vec![0xee; BLOCK];
    if queue.read_now(BLOCK as u64, &mut out) {
        assert_eq!(out, filled(BLOCK, 8).to_vec());
    }
    settle(&mut *queue).into_iter().for_each(|done| assert!(done.result.is_ok()));
    for offset in [CAPACITY as u64 - 1, CAPACITY as u64, u64::MAX] {
        assert!(!queue.read_now(offset, &mut out), "{offset} is outside");
    }
}

/// Tokens are the submitter's, even odd ones and the same twice; the very buffers come back.
pub fn completions_bring_tokens_and_buffers_back(bench: &mut dyn Bench) {
    let mut queue = bench.open();
    let tokens = [0, u64::MAX, 1 << 63, 5, 5, u64::from(u32::MAX) + 1];
    let mut sent = Vec::new();
    for (index, token) in tokens.into_iter().take(queue.depth()).enumerate() {
        let buffer = filled(BLOCK, index as u8);
        sent.push((token, buffer.as_ptr().addr()));
        let operation = if index % 2 == 0 {
            Operation::Write { offset: (index * BLOCK) as u64, length: BLOCK, buffer, durable: index == 2 }
        } else {
            Operation::Read { offset: (index * BLOCK) as u64, length: BLOCK, buffer }
        };
        submit(&mut *queue, token, operation, Priority::Latency);
    }
    assert_eq!(queue.in_flight(), sent.len());
    let done = settle(&mut *queue);
    let mut came: Vec<(u64, usize)> = done
        .iter()
        .map(|done| {
            assert!(done.result.is_ok() && done.parts.is_empty());
            (done.token, done.buffer.as_ref().map_or(0, |buffer| buffer.as_ptr().addr()))
        })
        .collect();
    sent.sort_unstable();
    came.sort_unstable();
    assert_eq!(came, sent);
    let parts = vec![part(BLOCK, 1), part(2 * BLOCK, 2)];
    let places: Vec<usize> = parts.iter().map(|part| part.buffer.as_ptr().addr()).collect();
    let done = succeed(&mut *queue, Operation::WriteVectored { offset: 0, parts, durable: false });
    assert!(done.buffer.is_none());
    assert_eq!(done.parts.iter().map(|part| part.buffer.as_ptr().addr()).collect::<Vec<_>>(), places);
    let done = succeed(&mut *queue, Operation::Flush);
    assert!(done.buffer.is_none() && done.parts.is_empty());
}

/// A loop that notifies and polls, and never waits, gets everything.
pub fn polling_alone_brings_completions(bench: &mut dyn Bench) {
    let mut queue = bench.open();
    let count = queue.depth().min(8);
    for index in 0..count {
        submit(&mut *queue, index as u64, write(index * BLOCK, BLOCK, 3), Priority::Latency);
    }
    let ringing = queue.notify();
    assert!(ringing.is_ok(), "{ringing:?}");
    let mut done = Vec::new();
    let mut taken = 0;
    while done.len() < count {
        taken += queue.complete(&mut done);
        assert_eq!(taken, done.len(), "complete() miscounts");
        assert_eq!(queue.in_flight(), count - done.len());
        std::thread::yield_now();
    }
    assert!(done.iter().all(|done| done.result.is_ok()));
    assert_eq!(queue.complete(&mut done), 0);
}

/// Nothing in flight: no wait. A wait of no time does not block, and enough of them finish.
pub fn waiting_for_nothing_returns(bench: &mut dyn Bench) {
    let mut queue = bench.open();
    assert!(queue.wait(Duration::from_secs(1 << 20)).is_ok());
    submit(&mut *queue, 1, write(0, BLOCK, 1), Priority::Latency);
    let mut done = Vec::new();
    while done.is_empty() {
        assert!(queue.wait(Duration::ZERO).is_ok());
        queue.complete(&mut done);
        std::thread::yield_now();
    }
    assert!(queue.wait(Duration::from_secs(1 << 20)).is_ok());
    // A completion that was not taken is no reason to wait either.
    submit(&mut *queue, 2, write(0, BLOCK, 1), Priority::Latency);
    for _ in 0..3 {
        assert!(queue.wait(Duration::from_secs(60)).is_ok());
    }
    assert_eq!(settle(&mut *queue).len(), 1);
}

/// The depth is kept exactly; what does not fit comes back whole, and later there is room.
pub fn a_full_queue_hands_the_request_back(bench: &mut dyn Bench) {
    let mut queue = bench.open();
    let depth = queue.depth() as u64;
    for round in 0..2 {
        for token in 0..depth {
            let at = token as usize % (CAPACITY / BLOCK) * BLOCK;
            submit(&mut *queue, token, write(at, BLOCK, token as u8), Priority::Latency);
        }
        let beyond = write(0, BLOCK, 0x77);
        let back = queue.submit(99, beyond);
        let Err(SubmitError::Full(Operation::Write { buffer, length: BLOCK, .. })) = back else {
            panic!("took more than its depth in round {round}: {back:?}");
        };
        assert!(buffer.iter().all(|byte| *byte == 0x77));
        assert!(matches!(queue.submit(99, Operation::Flush), Err(SubmitError::Full(Operation::Flush))));
        let refused = Operation::ReadVectored { offset: 0, parts: vec![part(BLOCK, 0)] };
        let back = queue.submit(99, refused);
        assert!(
            matches!(back, Err(SubmitError::Full(Operation::ReadVectored { parts, .. })) if parts.len() == 1)
        );
        let mut tokens: Vec<u64> = settle(&mut *queue)
            .into_iter()
            .map(|done| {
                assert!(done.result.is_ok());
                done.token
            })
            .collect();
        tokens.sort_unstable();
        assert_eq!(tokens, (0..depth).collect::<Vec<_>>());
    }
    succeed(&mut *queue, Operation::Flush);
}

/// Parts are one range in their order, and neighbours are not touched.
pub fn vectored_requests_move_one_range(bench: &mut dyn Bench) {
    let mut queue = bench.open();
    let block = queue.block_size();
    let lengths = [block, 3 * block, block, 2 * block];
    let offset = 5 * block;
    let mut expected = vec![0; CAPACITY];
    let mut at = offset;
    for (index, length) in lengths.iter().enumerate() {
        expected[at..at + length].fill(index as u8 + 1);
        at += length;
    }
    let parts = lengths.iter().enumerate().map(|(index, length)| Part {
        // Longer than what of it is written.
        buffer: filled(*length + BLOCK, index as u8 + 1),
        length: *length,
    });
    let write = Operation::WriteVectored { offset: offset as u64, parts: parts.collect(), durable: true };
    succeed(&mut *queue, write);
    expect_contents(&mut *queue, &expected);
    let parts = lengths.iter().map(|length| Part { buffer: filled(*length + BLOCK, 0xee), length: *length });
    let read = Operation::ReadVectored { offset: offset as u64, parts: parts.collect() };
    for (index, part) in succeed(&mut *queue, read).parts.iter().enumerate() {
        assert_eq!(part.length, lengths[index]);
        assert!(part.buffer[..part.length].iter().all(|byte| *byte == index as u8 + 1), "part {index}");
        assert!(part.buffer[part.length..].iter().all(|byte| *byte == 0xee), "past part {index}");
    }
}

/// One part; as many as there may be; the last block; then a plain request again.
pub fn vectors_have_edges(bench: &mut dyn Bench) {
    let mut queue = bench.open();
    let block = queue.block_size();
    let most = (CAPACITY / block).min(MAX_PARTS);
    let parts = (0..most).map(|index| part(block, index as u8)).collect();
    let done = succeed(&mut *queue, Operation::WriteVectored { offset: 0, parts, durable: false });
    assert_eq!(done.parts.len(), most);
    let mut expected = vec![0; CAPACITY];
    expected.chunks_mut(block).take(most).enumerate().for_each(|(index, chunk)| chunk.fill(index as u8));
    expect_contents(&mut *queue, &expected);
    let parts = (0..most).map(|_| part(block, 0xee)).collect();
    let done = succeed(&mut *queue, Operation::ReadVectored { offset: 0, parts });
    assert!(
        done.parts.iter().enumerate().all(|(i, part)| part.buffer[..block] == expected[i * block..][..block])
    );
    let last = CAPACITY - block;
    let one = Operation::WriteVectored { offset: last as u64, parts: vec![part(block, 0xaa)], durable: true };
    succeed(&mut *queue, one);
    expected[last..].fill(0xaa);
    succeed(&mut *queue, write(0, block, 0xbb));
    expected[..block].fill(0xbb);
    expect_contents(&mut *queue, &expected);
}

/// Zeros, exactly there, until something is written.
pub fn a_discarded_range_reads_as_zeros(bench: &mut dyn Bench) {
    let mut queue = bench.open();
    let block = queue.block_size();
    succeed(&mut *queue, write(0, CAPACITY, 7));
    let mut expected = vec![7; CAPACITY];
    let (from, to) = (3 * block, CAPACITY - 5 * block);
    let discard = Operation::Discard { offset: from as u64, length: (to - from) as u64 };
    let done = succeed(&mut *queue, discard);
    assert!(done.buffer.is_none() && done.parts.is_empty());
    expected[from..to].fill(0);
    expect_contents(&mut *queue, &expected);
    succeed(&mut *queue, Operation::Flush);
    succeed(&mut *queue, write(from, block, 8));
    expected[from..from + block].fill(8);
    expect_contents(&mut *queue, &expected);
    // One block, what is zero already, and all of it.
    for (offset, length) in [(0, block), (to - block, block), (0, CAPACITY)] {
        succeed(&mut *queue, Operation::Discard { offset: offset as u64, length: length as u64 });
        expected[offset..offset + length].fill(0);
        expect_contents(&mut *queue, &expected);
    }
    assert_eq!(queue.capacity(), CAPACITY as u64);
    succeed(&mut *queue, write(CAPACITY - block, block, 9));
}

/// What is outside the area, crooked, empty or too long is refused with its buffers, and does
/// nothing.
pub fn bad_requests_come_back_whole(bench: &mut dyn Bench) {
    let mut queue = bench.open();
    let queue = &mut *queue;
    let (block, capacity) = (queue.block_size() as u64, queue.capacity());
    let long = 2 * BLOCK as u64;
    let plain = [
        (capacity, block),
        (capacity - block, 2 * block),
        (u64::MAX - block + 1, block),
        (u64::MAX / block * block, block),
        (block / 2, block),
        (0, block / 2),
        (0, 0),
        (0, long + block),
        (1, block),
    ];
    for (offset, length) in plain {
        let read = Operation::Read { offset, length: length as usize, buffer: filled(BLOCK * 2, 3) };
        let refused = queue.submit(1, read);
        let Err(SubmitError::OutOfRange(Operation::Read { buffer, .. })) = refused else {
            panic!("took a read of {length} at {offset}");
        };
        let write = Operation::Write { offset, length: length as usize, buffer, durable: true };
        let refused = queue.submit(1, write);
        assert!(
            matches!(refused, Err(SubmitError::OutOfRange(Operation::Write { .. }))),
            "{length} at {offset}"
        );
    }
    let huge = Operation::Write {
        offset: 0,
        length: usize::MAX / 4096 * 4096,
        buffer: filled(BLOCK, 3),
        durable: false,
    };
    assert!(matches!(queue.submit(1, huge), Err(SubmitError::OutOfRange(_))));
    for (offset, parts) in bad_vectors(block as usize, capacity) {
        let count = parts.len();
        let refused = queue.submit(1, Operation::ReadVectored { offset, parts });
        let Err(SubmitError::OutOfRange(Operation::ReadVectored { parts, .. })) = refused else {
            panic!("took a read into {count} parts at {offset}");
        };
        assert_eq!(parts.len(), count);
        let refused = queue.submit(1, Operation::WriteVectored { offset, parts, durable: false });
        assert!(matches!(refused, Err(SubmitError::OutOfRange(_))), "{count} parts at {offset}");
    }
    let discards = [
        (0, 0),
        (0, block / 2),
        (block / 2, block),
        (0, capacity + block),
        (capacity, block),
        (block, u64::MAX - block + 1),
        (u64::MAX - block + 1, block),
    ];
    for (offset, length) in discards {
        let refused = queue.submit(1, Operation::Discard { offset, length });
        assert!(matches!(refused, Err(SubmitError::OutOfRange(_))), "a discard of {length} at {offset}");
    }
    assert_eq!(queue.in_flight(), 0);
    assert!(contents(queue).iter().all(|byte| *byte == 0), "a refused request did something");
}

/// Vectors that no queue may take.
fn bad_vectors(block: usize, capacity: u64) -> Vec<(u64, Vec<Part>)> {
    let part = |length: usize| Part { buffer: filled(2 * BLOCK, 5), length };
    let end = capacity - block as u64;
    vec![
        (0, vec![]),
        (0, vec![part(0)]),
        (0, vec![part(block), part(0)]),
        (0, vec![part(block), part(block / 2), part(block / 2)]),
        (0, vec![part(block), part(2 * BLOCK + block)]),
        (0, vec![part(block), part(usize::MAX / BLOCK * BLOCK), part(BLOCK)]),
        (end, vec![part(block), part(block)]),
        (u64::MAX - block as u64 + 1, vec![part(block)]),
        (block as u64 / 2, vec![part(block)]),
        (0, (0..=MAX_PARTS).map(|_| Part { buffer: Buffer::new(0), length: 0 }).collect()),
        (0, (0..=MAX_PARTS).map(|_| Part { buffer: Buffer::new(block), length: block }).collect()),
    ]
}

/// Every kind of request with every priority, all in flight together.
pub fn priorities_change_nothing_that_is_read(bench: &mut dyn Bench) {
    let mut queue = bench.open();
    let mut expected = vec![0; CAPACITY];
    for (index, priority) in [Priority::Bulk, Priority::Throughput, Priority::Latency].into_iter().enumerate()
    {
        let at = index * 4 * BLOCK;
        assert!(execute(&mut *queue, write(at, BLOCK, 1), priority).result.is_ok());
        let parts = vec![part(BLOCK, 2), part(BLOCK, 3)];
        let vectored = Operation::WriteVectored { offset: (at + BLOCK) as u64, parts, durable: index == 1 };
        let discard = Operation::Discard { offset: at as u64, length: BLOCK as u64 };
        let read = Operation::ReadVectored { offset: (at + 3 * BLOCK) as u64, parts: vec![part(BLOCK, 4)] };
        for (token, operation) in [vectored, discard, read, Operation::Flush].into_iter().enumerate() {
            if queue.in_flight() == queue.depth() {
                settle(&mut *queue).into_iter().for_each(|done| assert!(done.result.is_ok()));
            }
            submit(&mut *queue, token as u64, operation, priority);
        }
        settle(&mut *queue)
            .into_iter()
            .for_each(|done| assert!(done.result.is_ok(), "{priority:?}: {done:?}"));
        expected[at + BLOCK..at + 2 * BLOCK].fill(2);
        expected[at + 2 * BLOCK..at + 3 * BLOCK].fill(3);
    }
    expect_contents(&mut *queue, &expected);
}

/// Durable writes, and writes and discards that a flush followed.
pub fn promised_writes_survive_a_loss_of_power(bench: &mut dyn Bench) {
    let mut queue = bench.open();
    let volatile = |at: usize, byte| Operation::Write {
        offset: at as u64,
        length: BLOCK,
        buffer: filled(BLOCK, byte),
        durable: false,
    };
    succeed(&mut *queue, write(0, 4 * BLOCK, 1));
    let parts = vec![part(BLOCK, 2), part(BLOCK, 3)];
    succeed(&mut *queue, Operation::WriteVectored { offset: 4 * BLOCK as u64, parts, durable: true });
    succeed(&mut *queue, volatile(6 * BLOCK, 4));
    succeed(&mut *queue, Operation::Discard { offset: BLOCK as u64, length: BLOCK as u64 });
    let parts = vec![part(BLOCK, 5)];
    succeed(&mut *queue, Operation::WriteVectored { offset: 7 * BLOCK as u64, parts, durable: false });
    succeed(&mut *queue, Operation::Flush);
    // Promised nothing: may be there or not, and is not checked.
    succeed(&mut *queue, volatile(9 * BLOCK, 6));
    succeed(&mut *queue, Operation::Discard { offset: 10 * BLOCK as u64, length: BLOCK as u64 });
    drop(queue);
    let Some(mut queue) = bench.lose_power() else { return };
    let found = contents(&mut *queue);
    let blocks: Vec<u8> = found.chunks(BLOCK).take(8).map(|block| block[BLOCK - 1]).collect();
    assert_eq!(blocks, [1, 0, 1, 1, 2, 3, 4, 5]);
}

/// A queue that is dropped and opened again has the same area.
pub fn completed_writes_are_there_for_the_next_queue(bench: &mut dyn Bench) {
    let mut queue = bench.open();
    succeed(&mut *queue, write(0, CAPACITY, 1));
    succeed(&mut *queue, Operation::Discard { offset: 0, length: BLOCK as u64 });
    succeed(&mut *queue, Operation::Flush);
    drop(queue);
    let Some(mut queue) = bench.reopen() else { return };
    let mut expected = vec![1; CAPACITY];
    expected[..BLOCK].fill(0);
    expect_contents(&mut *queue, &expected);
}

/// Buffers of a queue that was dropped with requests in flight are not written to any more. The
/// requests that it had passed to the device land whole or not at all, block by block.
pub fn a_dropped_queue_leaves_its_buffers_alone(bench: &mut dyn Bench) {
    let mut queue = bench.open();
    succeed(&mut *queue, write(0, CAPACITY, 1));
    let count = queue.depth().min(CAPACITY / BLOCK);
    for index in 0..count {
        let offset = (index * BLOCK) as u64;
        let operation = match index % 4 {
            0 => Operation::Read { offset, length: BLOCK, buffer: Buffer::new(BLOCK) },
            1 => Operation::ReadVectored { offset, parts: vec![part(BLOCK, 0)] },
            2 => write(index * BLOCK, BLOCK, 2),
            _ => Operation::WriteVectored { offset, parts: vec![part(BLOCK, 2)], durable: false },
        };
        submit(&mut *queue, index as u64, operation, Priority::Latency);
        // The device is never notified of the last ones.
        if index + 2 == count {
            assert!(queue.notify().is_ok());
        }
    }
    drop(queue);
    // The allocator hands the same memory out again.
    let fresh: Vec<Buffer> = (0..4 * count).map(|_| filled(BLOCK, 0x5a)).collect();
    let next = bench.reopen();
    let found = next.map(|mut queue| contents(&mut *queue));
    assert!(
        fresh.iter().all(|buffer| buffer.iter().all(|byte| *byte == 0x5a)),
        "a freed buffer was written to"
    );
    for (index, block) in found.iter().flat_map(|found| found.chunks(BLOCK)).enumerate() {
        let allowed: &[u8] = if index < count && index % 4 >= 2 { &[1, 2] } else { &[1] };
        assert!(allowed.contains(&block[0]), "block {index} holds {}", block[0]);
        assert!(block.iter().all(|byte| *byte == block[0]), "block {index} is torn");
    }
}

/// The error is that request's alone, and its buffer comes back.
pub fn a_failed_write_is_reported_and_the_queue_goes_on(bench: &mut dyn Bench) {
    let mut queue = bench.open();
    for vectored in [false, true] {
        if !bench.fail_next_write() {
            return;
        }
        let operation = if vectored {
            Operation::WriteVectored { offset: 0, parts: vec![part(BLOCK, 1)], durable: true }
        } else {
            write(0, BLOCK, 1)
        };
        let done = execute(&mut *queue, operation, Priority::Latency);
        assert!(done.result.is_err(), "the fault went unnoticed");
        assert_eq!((done.buffer.is_some(), done.parts.len()), (!vectored, usize::from(vectored)));
        assert_eq!(queue.in_flight(), 0);
        succeed(&mut *queue, write(BLOCK, BLOCK, 2));
        succeed(&mut *queue, Operation::Flush);
    }
}
