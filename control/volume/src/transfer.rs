//! Executes one request after another over a queue: metadata is small and rare. Zeroing keeps
//! several requests in flight.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use sietch_disk::{Buffer, Completion, DiskQueue, Operation};

use crate::error::Failure;
use crate::layout::Extent;
use crate::limits::BLOCK;

/// How long one poll waits for completions. A device that hangs is waited for, as by any file
/// system.
const PATIENCE: Duration = Duration::from_secs(1);

/// Bytes of one zeroing write: a disk's full bandwidth.
const CHUNK: u64 = 4 << 20;

/// Zeroing writes in flight: two keep a disk busy, four cover its hiccups.
const IN_FLIGHT: usize = 4;

pub(crate) fn failure(action: &'static str, offset: u64, source: io::Error) -> Failure {
    Failure { action, offset, source: Arc::new(source) }
}

/// Submits one request to an idle queue, waits for it, and returns its buffer.
pub(crate) fn execute<D: DiskQueue>(
    disk: &mut D,
    action: &'static str,
    offset: u64,
    operation: Operation,
) -> Result<Option<Buffer>, Failure> {
    let refused = || failure(action, offset, io::Error::other("the queue refuses the request"));
    disk.submit(0, operation).map_err(|_| refused())?;
    let mut completions = Vec::new();
    loop {
        disk.wait(PATIENCE).map_err(|error| failure(action, offset, error))?;
        disk.complete(&mut completions);
        if let Some(Completion { result, buffer, .. }) = completions.pop() {
            return result.map(|()| buffer).map_err(|error| failure(action, offset, error));
        }
    }
}

/// Writes `bytes`, whole blocks, at `offset`.
pub(crate) fn write<D: DiskQueue>(
    disk: &mut D,
    action: &'static str,
    offset: u64,
    bytes: &[u8],
    durable: bool,
) -> Result<(), Failure> {
    let mut buffer = Buffer::new(bytes.len());
    buffer[..bytes.len()].copy_from_slice(bytes);
    let operation = Operation::Write { offset, length: bytes.len(), buffer, durable };
    execute(disk, action, offset, operation).map(|_| ())
}

/// Reads `length` bytes, whole blocks, from `offset`.
pub(crate) fn read<D: DiskQueue>(disk: &mut D, offset: u64, length: usize) -> Result<Buffer, Failure> {
    let (action, buffer) = ("reading", Buffer::new(length));
    let read = execute(disk, action, offset, Operation::Read { offset, length, buffer })?;
    read.ok_or_else(|| failure(action, offset, io::Error::other("the queue kept the buffer")))
}

/// Makes everything that has completed durable.
pub(crate) fn flush<D: DiskQueue>(disk: &mut D) -> Result<(), Failure> {
    execute(disk, "flushing", 0, Operation::Flush).map(|_| ())
}

/// Writes zeros over `extents` and flushes them. The queue must be idle; it may be another one over
/// the same device than the metadata's.
///
/// # Errors
/// The first request that failed. What was zeroed by then is.
pub fn zero<D: DiskQueue>(disk: &mut D, extents: &[Extent]) -> Result<(), Failure> {
    let action = "zeroing";
    let mut chunks = extents.iter().flat_map(|extent| {
        let (start, end) = (extent.start * BLOCK, (extent.start + extent.blocks) * BLOCK);
        (start..end).step_by(CHUNK as usize).map(move |at| (at, (end - at).min(CHUNK)))
    });
    let mut spare: Vec<Buffer> = Vec::new();
    let (mut made, mut left) = (0, true);
    let mut completions: Vec<Completion> = Vec::new();
    let mut first: Option<Failure> = None;
    while left || disk.in_flight() > 0 {
        while left && first.is_none() && disk.in_flight() < IN_FLIGHT.min(disk.depth()) {
            let Some((offset, length)) = chunks.next() else {
                left = false;
                break;
            };
            let buffer = spare.pop().unwrap_or_else(|| {
                made += 1;
                // It is not larger than the largest piece: a small area needs no large buffers.
                Buffer::new(
                    extents.iter().map(|e| e.blocks * BLOCK).max().unwrap_or(BLOCK).min(CHUNK) as usize
                )
            });
            debug_assert!(made <= IN_FLIGHT);
            let operation = Operation::Write { offset, length: length as usize, buffer, durable: false };
            if disk.submit(offset, operation).is_err() {
                first = Some(failure(action, offset, io::Error::other("the queue refuses the request")));
            }
        }
        left &= first.is_none();
        if disk.in_flight() == 0 {
            break;
        }
        disk.wait(PATIENCE).map_err(|error| failure(action, 0, error))?;
        disk.complete(&mut completions);
        for completion in completions.drain(..) {
            if let Err(error) = completion.result {
                first.get_or_insert_with(|| failure(action, completion.token, error));
            }
            spare.extend(completion.buffer);
        }
    }
    match first {
        Some(failure) => Err(failure),
        None => flush(disk),
    }
}
