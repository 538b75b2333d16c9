//! Random programs against a model.
//!
//! 1. A program is a list of requests of all kinds over the first [`SPAN`] blocks, with any
//!    priority.
//! 2. As many are in flight as the queue takes. Overlapping requests of which one changes something
//!    may finish in any order, so before such a one is submitted everything in flight is waited
//!    for. What a request does is then known when it is submitted.
//! 3. Every read must bring what the model held, and at the end the whole area must be the model.

use std::cell::RefCell;
use std::ops::Range;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::{Bench, CAPACITY, contents, expect_contents, filled, part, settle};
use crate::{Buffer, Completion, DiskQueue, Operation, Part, Priority, SubmitError};

/// Blocks of the area that programs work on: few, so that requests meet.
const SPAN: usize = 128;

/// Programs tried over each queue.
const PROGRAMS: u32 = 32;

#[derive(Clone, Debug)]
enum Kind {
    Read,
    Write { byte: u8, durable: bool },
    Discard,
    Flush,
}

#[derive(Clone, Debug)]
struct Step {
    kind: Kind,
    block: usize,
    /// Blocks of each part; one is a plain request.
    lengths: Vec<usize>,
    priority: Priority,
}

fn step() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![
        3 => Just(Kind::Read),
        5 => (any::<u8>(), any::<bool>()).prop_map(|(byte, durable)| Kind::Write { byte, durable }),
        1 => Just(Kind::Discard),
        1 => Just(Kind::Flush),
    ];
    let priority = prop_oneof![Just(Priority::Latency), Just(Priority::Throughput), Just(Priority::Bulk)];
    let lengths = prop_oneof![
        2 => (1..6usize).prop_map(|blocks| vec![blocks]),
        1 => proptest::collection::vec(1..3usize, 2..6),
    ];
    (kind, 0..SPAN, lengths, priority).prop_map(|(kind, block, lengths, priority)| Step {
        kind,
        block,
        lengths,
        priority,
    })
}

struct InFlight {
    range: Range<usize>,
    changes: bool,
    /// What a read must bring.
    expected: Option<Vec<u8>>,
}

struct Run<'a> {
    queue: &'a mut dyn DiskQueue,
    model: &'a mut Vec<u8>,
    flying: Vec<Option<InFlight>>,
}

impl Run<'_> {
    fn finish(&mut self, done: Vec<Completion>) {
        for Completion { token, result, buffer, parts } in done {
            let request = usize::try_from(token).ok().and_then(|token| self.flying.get_mut(token)?.take());
            assert!(request.is_some(), "token {token} comes twice, or was never given");
            assert!(result.is_ok(), "{result:?}");
            let Some(expected) = request.and_then(|request| request.expected) else { continue };
            let found: Vec<u8> = match buffer {
                Some(buffer) => buffer[..expected.len()].to_vec(),
                None => parts.iter().flat_map(|part| &part.buffer[..part.length]).copied().collect(),
            };
            assert!(found == expected, "a read brought something else");
        }
    }

    /// The request that a step requests here, and what it means to the model.
    fn operation(&mut self, step: &Step) -> (Operation, InFlight) {
        let block = self.queue.block_size();
        let blocks = SPAN.min(CAPACITY / block);
        let start = step.block % blocks;
        let mut left = blocks - start;
        let clip = |blocks: &usize| {
            let taken = (*blocks).min(left);
            left -= taken;
            Some(taken * block).filter(|length| *length > 0)
        };
        let lengths: Vec<usize> = step.lengths.iter().filter_map(clip).collect();
        let total: usize = lengths.iter().sum();
        let (at, offset) = (start * block, (start * block) as u64);
        let range = at..at + total;
        let mut meaning = InFlight { range: range.clone(), changes: false, expected: None };
        let operation = match (&step.kind, &lengths[..]) {
            (Kind::Flush, _) => {
                meaning.range = 0..0;
                Operation::Flush
            }
            (Kind::Discard, _) => {
                meaning.changes = true;
                self.model[range].fill(0);
                Operation::Discard { offset, length: total as u64 }
            }
            (Kind::Read, lengths) => {
                meaning.expected = Some(self.model[range].to_vec());
                match lengths {
                    [length] => Operation::Read { offset, length: *length, buffer: Buffer::new(*length) },
                    _ => Operation::ReadVectored {
                        offset,
                        parts: lengths.iter().map(|length| part(*length, 0xee)).collect(),
                    },
                }
            }
            (Kind::Write { byte, durable }, lengths) => {
                meaning.changes = true;
                let mut at = at;
                let mut parts: Vec<Part> = Vec::new();
                for (index, length) in lengths.iter().enumerate() {
                    let byte = byte.wrapping_add(index as u8);
                    self.model[at..at + length].fill(byte);
                    parts.push(Part { buffer: filled(*length, byte), length: *length });
                    at += length;
                }
                match (parts.len(), parts.pop()) {
                    (1, Some(Part { buffer, length })) => {
                        Operation::Write { offset, length, buffer, durable: *durable }
                    }
                    (_, last) => {
                        parts.extend(last);
                        Operation::WriteVectored { offset, parts, durable: *durable }
                    }
                }
            }
        };
        (operation, meaning)
    }

    fn step(&mut self, step: &Step) {
        let (mut operation, meaning) = self.operation(step);
        let meets = self.flying.iter().flatten().any(|other| {
            (other.changes || meaning.changes)
                && other.range.start < meaning.range.end
                && meaning.range.start < other.range.end
        });
        if meets {
            let done = settle(self.queue);
            self.finish(done);
        }
        self.flying.push(Some(meaning));
        let token = self.flying.len() as u64 - 1;
        while let Err(refused) = self.queue.submit_with(token, operation, step.priority) {
            let SubmitError::Full(back) = refused else { panic!("refused {refused:?}") };
            operation = back;
            let done = settle(self.queue);
            self.finish(done);
        }
    }
}

/// See the module's account. The area is not made anew between programs: each begins with what the
/// one before left.
pub fn random_programs_behave_as_the_model(bench: &mut dyn Bench) {
    let queue = RefCell::new(bench.open());
    let config = Config { failure_persistence: None, ..Config::with_cases(PROGRAMS) };
    let outcome = TestRunner::new(config).run(&proptest::collection::vec(step(), 1..40), |program| {
        let queue = &mut **queue.borrow_mut();
        // A failed program before this one may have left something behind.
        settle(queue);
        let mut model = contents(queue);
        let mut run = Run { queue, model: &mut model, flying: Vec::new() };
        for step in &program {
            run.step(step);
        }
        let done = settle(run.queue);
        run.finish(done);
        assert!(run.flying.iter().all(Option::is_none), "a request never finished");
        expect_contents(queue, &model);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}
