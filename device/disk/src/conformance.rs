//! What every disk queue must do, as tests that run over any of them (docs/spec/vsic.md).
//!
//! 1. A back end joins with one line in a test of its crate, which depends on this one with the
//!    feature `conformance`:
//!
//!    ```ignore
//!    sietch_disk::conformance!(memory, Ok(|| MemoryQueue::new(CAPACITY)));
//!    ```
//!
//!    The expression makes a [`Bench`], or says why there is none here; then the tests say that
//!    they were skipped. It is evaluated for each test. A closure that opens a queue over a new
//!    area of [`CAPACITY`] zeros is a bench.
//! 2. A bench that can do more (open the area again, take the power away, make a write fail) says
//!    so by its other methods. Then the tests that need it run. Where it cannot, they end early.
//! 3. Each test is one rule of the contract ([`cases`]); [`programs`] compares random programs with
//!    a model.

pub mod cases;
pub mod programs;

use std::time::Duration;

use crate::{Buffer, Completion, DiskQueue, Operation, Part, Priority};

/// Bytes in the area of a bench.
pub const CAPACITY: usize = 64 << 10;

/// Waits without anything done after which a queue counts as stuck.
const PATIENCE: usize = 100;

/// One back end under test, with an area of its own.
pub trait Bench {
    /// A queue over the area: [`CAPACITY`] bytes of zeros. Called once, first.
    fn open(&mut self) -> Box<dyn DiskQueue>;

    /// A queue over the same area, as the one before left it, which has been dropped. `None`: the
    /// area went with its queue.
    fn reopen(&mut self) -> Option<Box<dyn DiskQueue>> {
        None
    }

    /// The power fails and comes back; what was not promised to survive is lost. Returns a queue
    /// over the rest.
    fn lose_power(&mut self) -> Option<Box<dyn DiskQueue>> {
        None
    }

    /// Makes the next write of the open queue fail with `EIO`. Returns whether it could.
    fn fail_next_write(&mut self) -> bool {
        false
    }
}

impl<Q: DiskQueue + 'static, F: FnMut() -> Q> Bench for F {
    fn open(&mut self) -> Box<dyn DiskQueue> {
        Box::new(self())
    }
}

/// Runs one case over the bench, or says that it was skipped.
pub fn run<B: Bench>(name: &str, bench: Result<B, String>, case: fn(&mut dyn Bench)) {
    match bench {
        Ok(mut bench) => case(&mut bench),
        Err(reason) => eprintln!("SKIPPED {name}: needs {reason}"),
    }
}

/// Makes a module `$name` with the whole suite over `$bench`, a `Result<impl Bench, String>` that
/// is made anew for each test.
#[macro_export]
macro_rules! conformance {
    ($name:ident, $bench:expr) => {
        mod $name {
            #[allow(unused_imports, reason = "the bench may need none")]
            use super::*;
            $crate::conformance!(@tests $name, $bench, cases:
                a_new_queue_is_idle,
                reads_return_the_written_bytes,
                completions_bring_tokens_and_buffers_back,
                a_copy_at_once_is_what_a_read_returns,
                polling_alone_brings_completions,
                waiting_for_nothing_returns,
                a_full_queue_hands_the_request_back,
                vectored_requests_move_one_range,
                vectors_have_edges,
                a_discarded_range_reads_as_zeros,
                bad_requests_come_back_whole,
                priorities_change_nothing_that_is_read,
                promised_writes_survive_a_loss_of_power,
                completed_writes_are_there_for_the_next_queue,
                a_dropped_queue_leaves_its_buffers_alone,
                a_failed_write_is_reported_and_the_queue_goes_on,
            );
            $crate::conformance!(@tests $name, $bench, programs: random_programs_behave_as_the_model,);
        }
    };
    (@tests $name:ident, $bench:expr, $module:ident: $($case:ident,)+) => {
        $(#[test]
        fn $case() {
            let name = concat!(stringify!($name), "::", stringify!($case));
            $crate::conformance::run(name, $bench, $crate::conformance::$module::$case);
        })+
    };
}

/// A buffer of `length` bytes, all `byte`.
pub(crate) fn filled(length: usize, byte: u8) -> Buffer {
    let mut buffer = Buffer::new(length);
    buffer.fill(byte);
    buffer
}

/// A part of `length` bytes, all `byte`.
pub(crate) fn part(length: usize, byte: u8) -> Part {
    Part { buffer: filled(length, byte), length }
}

/// A durable write of `length` bytes, all `byte`.
pub(crate) fn write(offset: usize, length: usize, byte: u8) -> Operation {
    Operation::Write { offset: offset as u64, length, buffer: filled(length, byte), durable: true }
}

/// Does one request on an idle queue.
pub(crate) fn execute(queue: &mut dyn DiskQueue, operation: Operation, priority: Priority) -> Completion {
    const TOKEN: u64 = 7;
    submit(queue, TOKEN, operation, priority);
    let mut done = settle(queue);
    assert_eq!(done.len(), 1, "completions of one request");
    let completion = done.remove(0);
    assert_eq!(completion.token, TOKEN);
    completion
}

/// Does one request on an idle queue, which must succeed.
pub(crate) fn succeed(queue: &mut dyn DiskQueue, operation: Operation) -> Completion {
    let done = execute(queue, operation, Priority::Latency);
    assert!(done.result.is_ok(), "a request inside the area failed: {:?}", done.result);
    done
}

/// Submits where there must be room.
pub(crate) fn submit(queue: &mut dyn DiskQueue, token: u64, operation: Operation, priority: Priority) {
    let refused = queue.submit_with(token, operation, priority).err();
    assert!(refused.is_none(), "refused: {refused:?}");
}

/// Waits until nothing is in flight; what has finished.
pub(crate) fn settle(queue: &mut dyn DiskQueue) -> Vec<Completion> {
    let mut done = Vec::new();
    let mut idle = 0;
    while queue.in_flight() > 0 {
        let waited = queue.wait(Duration::from_secs(1));
        assert!(waited.is_ok(), "the queue is broken: {waited:?}");
        let taken = queue.complete(&mut done);
        idle = if taken > 0 { 0 } else { idle + 1 };
        assert!(idle < PATIENCE, "{} requests never finish", queue.in_flight());
    }
    done
}

/// All that the area holds.
pub(crate) fn contents(queue: &mut dyn DiskQueue) -> Vec<u8> {
    let read = Operation::Read { offset: 0, length: CAPACITY, buffer: Buffer::new(CAPACITY) };
    let buffer = succeed(queue, read).buffer;
    assert!(buffer.is_some(), "a read keeps its buffer");
    buffer.map_or_else(Vec::new, |buffer| buffer.to_vec())
}

/// Fails if the area does not hold `expected`, naming the first byte that is wrong.
pub(crate) fn expect_contents(queue: &mut dyn DiskQueue, expected: &[u8]) {
    let found = contents(queue);
    let wrong = found.iter().zip(expected).position(|(found, expected)| found != expected);
    assert_eq!(wrong.map(|at| (at, found[at], expected[at])), None, "(byte, found, expected)");
}
