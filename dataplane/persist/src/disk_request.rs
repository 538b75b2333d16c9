//! One request to the disk at a time, for opening, formatting and following: waits for it, and says
//! what it was for if it fails.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use sietch_disk::{Buffer, Completion, DiskQueue, Operation, SubmitError};

use crate::error::Failure;

/// How often a second is waited for one read before the disk counts as broken: longer than any
/// reset of a disk.
const PATIENCE: usize = 120;

pub(crate) fn failure(action: &'static str, offset: u64, source: io::Error) -> Failure {
    Failure { action, offset, source: Arc::new(source) }
}

/// Waits until `disk` has a completion.
pub(crate) fn wait_for<D: DiskQueue>(
    disk: &mut D,
    action: &'static str,
    offset: u64,
    out: &mut Vec<Completion>,
) -> Result<(), Failure> {
    for _ in 0..PATIENCE {
        disk.wait(Duration::from_secs(1)).map_err(|e| failure(action, offset, e))?;
        if disk.complete(out) > 0 {
            return Ok(());
        }
    }
    Err(failure(action, offset, io::ErrorKind::TimedOut.into()))
}

pub(crate) fn refused(action: &'static str, offset: u64, error: &SubmitError) -> Failure {
    let message = match error {
        SubmitError::Full(_) => "the disk queue has requests of another user in flight",
        SubmitError::OutOfRange(_) => "the disk queue refused a request inside its area",
    };
    failure(action, offset, io::Error::other(message))
}

/// Does one request and waits for it.
pub(crate) fn execute<D: DiskQueue>(
    disk: &mut D,
    action: &'static str,
    offset: u64,
    operation: Operation,
) -> Result<Option<Buffer>, Failure> {
    disk.submit(0, operation).map_err(|e| refused(action, offset, &e))?;
    let mut completions = Vec::new();
    wait_for(disk, action, offset, &mut completions)?;
    let completion = completions.pop().ok_or_else(|| failure(action, offset, io::ErrorKind::Other.into()))?;
    completion.result.map_err(|e| failure(action, offset, e))?;
    Ok(completion.buffer)
}
