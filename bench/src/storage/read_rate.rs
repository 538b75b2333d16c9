//! The read rate of the disk itself: direct reads of an area, several in flight. Their bytes are
//! not examined.

use std::time::{Duration, Instant};

use sietch_disk::{Buffer, DiskQueue, Operation};

use super::subject::log_failed;
use crate::error::Error;

/// Bytes of a read.
const CHUNK: usize = 1 << 20;

/// Reads in flight: a disk only queues further ones.
const DEPTH: usize = 8;

/// Reads the first `bytes` of an area and returns the bytes a second.
pub(super) fn measure<D: DiskQueue>(disk: &mut D, bytes: u64) -> Result<f64, Error> {
    let mut spare: Vec<Buffer> = (0..DEPTH.min(disk.depth())).map(|_| Buffer::new(CHUNK)).collect();
    let mut offsets = (0..bytes / CHUNK as u64).map(|chunk| chunk * CHUNK as u64).peekable();
    let (mut completions, mut read) = (Vec::new(), 0_u64);
    let begin = Instant::now();
    loop {
        while offsets.peek().is_some()
            && let Some(buffer) = spare.pop()
            && let Some(offset) = offsets.next()
        {
            let request = Operation::Read { offset, length: CHUNK, buffer };
            disk.submit(offset, request).map_err(|_| log_failed("the disk queue is full"))?;
        }
        if disk.in_flight() == 0 {
            break;
        }
        disk.wait(Duration::from_secs(1)).map_err(log_failed)?;
        disk.complete(&mut completions);
        for completion in completions.drain(..) {
            completion.result.map_err(log_failed)?;
            read += CHUNK as u64;
            spare.extend(completion.buffer);
        }
    }
    Ok(read as f64 / begin.elapsed().as_secs_f64())
}
