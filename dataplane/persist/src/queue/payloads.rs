//! Payloads of a queue that are in the area alone, and those on their way from there
//! (`super::stored`).

use std::collections::VecDeque;

use sietch_disk::DiskQueue;

use super::record::Sent;
use crate::layout::RecordLocation;
use crate::log::{Cursor, Log, Sequence};
use crate::typed::TYPE_HEADER;

/// Where the payload begins in its record.
pub(super) const PAYLOAD: usize = TYPE_HEADER + size_of::<Sent>();

/// A payload on its way from the area.
pub(super) struct Reading {
    pub(super) id: Sequence,
    pub(super) spot: RecordLocation,
    pub(super) length: usize,
    pub(super) cursor: Cursor,
}

/// What a queue reads.
#[derive(Default)]
pub(super) struct Stored {
    /// Bytes of payloads in memory, where that is bounded.
    pub(super) window: Option<usize>,
    /// Sent, and in memory until they are written.
    pub(super) fresh: VecDeque<Sequence>,
    /// Delivered: the first to be dropped from memory.
    pub(super) out: VecDeque<Sequence>,
    pub(super) loads: VecDeque<Reading>,
    pub(super) copies: VecDeque<Reading>,
    /// Copied into the snapshot: entries, where they were, and where they are.
    pub(super) moved: Vec<(Sequence, RecordLocation, RecordLocation)>,
    /// The snapshot is complete, and takes effect when the log is done with it.
    pub(super) switching: bool,
}

impl Stored {
    pub(super) fn new(window: Option<usize>) -> Self {
        Self { window, ..Self::default() }
    }

    /// Whether memory is a window on the entries.
    pub(super) fn is_window(&self) -> bool {
        self.window.is_some()
    }

    pub(super) fn sent(&mut self, id: Sequence) {
        if self.window.is_some() {
            self.fresh.push_back(id);
        }
    }

    pub(super) fn delivered(&mut self, id: Sequence) {
        if self.window.is_some() {
            self.out.push_back(id);
        }
    }
}

pub(super) fn reading<D: DiskQueue>(
    log: &Log<D>,
    id: Sequence,
    spot: RecordLocation,
    length: usize,
) -> Reading {
    Reading { id, spot, length, cursor: log.cursor_at(spot, PAYLOAD + length) }
}
