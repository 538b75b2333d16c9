//! A queue that reads an area through the daemon, for areas that no descriptor reaches alone:
//! memory, and extents of a volume.

use std::io;
use std::time::Duration;

use sietch::disk::{BLOCK, Completion, DiskQueue, Operation, Priority, SubmitError};
use sietch_protocol::Connection;
use sietch_protocol::message::MAX_PIECE;

/// Reads one request after the other.
pub(super) struct PieceQueue {
    connection: Connection,
    area: String,
    capacity: u64,
    done: Vec<Completion>,
}

impl PieceQueue {
    /// Over the area of that path and size.
    pub(super) fn new(connection: Connection, area: String, size: u64) -> Self {
        Self { connection, area, capacity: size - size % BLOCK as u64, done: Vec::new() }
    }

    fn read(&mut self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mut at = 0;
        while at < out.len() {
            let length = (out.len() - at).min(MAX_PIECE as usize);
            let piece = self.connection.read_vsa_at(&self.area, offset + at as u64, length as u32);
            let piece = piece.map_err(io::Error::other)?;
            if piece.is_empty() || piece.len() > length {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            out[at..at + piece.len()].copy_from_slice(&piece);
            at += piece.len();
        }
        Ok(())
    }
}

impl DiskQueue for PieceQueue {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn block_size(&self) -> usize {
        BLOCK
    }

    fn depth(&self) -> usize {
        1
    }

    fn submit_with(&mut self, token: u64, mut operation: Operation, _: Priority) -> Result<(), SubmitError> {
        if !operation.is_within(self.capacity, BLOCK) {
            return Err(SubmitError::OutOfRange(operation));
        }
        let result = match &mut operation {
            Operation::Read { offset, length, buffer } => self.read(*offset, &mut buffer[..*length]),
            Operation::ReadVectored { offset, parts } => {
                let mut at = *offset;
                parts.iter_mut().try_for_each(|part| {
                    let outcome = self.read(at, &mut part.buffer[..part.length]);
                    at += part.length as u64;
                    outcome
                })
            }
            _ => Err(io::ErrorKind::PermissionDenied.into()),
        };
        self.done.push(Completion::of(token, operation, result));
        Ok(())
    }

    fn notify(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn complete(&mut self, out: &mut Vec<Completion>) -> usize {
        let count = self.done.len();
        out.append(&mut self.done);
        count
    }

    fn wait(&mut self, _: Duration) -> io::Result<()> {
        Ok(())
    }

    fn in_flight(&self) -> usize {
        self.done.len()
    }
}
