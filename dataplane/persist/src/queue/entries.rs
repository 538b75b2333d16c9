//! The entries of a queue, as replaying its records makes them.
//!
//! 1. An entry is ready, or leased, or delayed. Each state has a set, so the next event is found at
//!    once.
//! 2. Its payload is in memory, or only in the area. In the area its place is known, and while the
//!    entry is ready it is in the set of payloads to be read.

use std::collections::{BTreeMap, BTreeSet};

use super::record::{Change, read};
use crate::layout::RecordLocation;
use crate::log::Sequence;
use crate::scan::Applied;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Ready,
    /// Leased to a consumer until then.
    Leased {
        consumer: u64,
        until: u64,
    },
    /// Released, to be ready again then.
    Delayed {
        until: u64,
    },
}

pub(super) struct Entry {
    /// `None`: it is in the area alone.
    pub payload: Option<Box<[u8]>>,
    pub length: usize,
    pub spot: RecordLocation,
    pub deliveries: u32,
    pub state: State,
}

/// See the module's account.
#[derive(Default)]
pub(super) struct Entries {
    pub by_id: BTreeMap<Sequence, Entry>,
    pub ready: BTreeSet<Sequence>,
    /// Ready, and their payloads are in the area alone.
    pub far: BTreeSet<Sequence>,
    /// When leases and delays end.
    pub deadlines: BTreeSet<(u64, Sequence)>,
    /// Bytes of all payloads, and of those in memory.
    pub bytes: usize,
    pub held: usize,
}

impl Entries {
    /// A new entry, ready. Its payload is held if `keep`.
    pub(super) fn insert(
        &mut self,
        id: Sequence,
        deliveries: u32,
        payload: &[u8],
        spot: RecordLocation,
        keep: bool,
    ) {
        self.remove(id);
        let length = payload.len();
        self.bytes += length;
        self.held += if keep { length } else { 0 };
        let payload = keep.then(|| payload.into());
        if payload.is_none() {
            self.far.insert(id);
        }
        self.by_id.insert(id, Entry { payload, length, spot, deliveries, state: State::Ready });
        self.ready.insert(id);
    }

    pub(super) fn remove(&mut self, id: Sequence) {
        if let Some(entry) = self.by_id.remove(&id) {
            self.bytes -= entry.length;
            self.held -= entry.payload.map_or(0, |payload| payload.len());
            self.leave(id, entry.state);
        }
    }

    /// Takes an entry out of the sets that its state has put it in.
    fn leave(&mut self, id: Sequence, state: State) {
        match state {
            State::Ready => {
                self.ready.remove(&id);
                self.far.remove(&id);
            }
            State::Leased { until, .. } | State::Delayed { until } => {
                self.deadlines.remove(&(until, id));
            }
        }
    }

    pub(super) fn change(&mut self, id: Sequence, to: State) {
        let Some(entry) = self.by_id.get_mut(&id) else { return };
        let from = std::mem::replace(&mut entry.state, to);
        let far = entry.payload.is_none();
        self.leave(id, from);
        match to {
            State::Ready => {
                self.ready.insert(id);
                if far {
                    self.far.insert(id);
                }
            }
            State::Leased { until, .. } | State::Delayed { until } => {
                self.deadlines.insert((until, id));
            }
        }
    }

    /// Drops a payload that is in the area from memory.
    pub(super) fn release_payload(&mut self, id: Sequence) {
        if let Some(entry) = self.by_id.get_mut(&id)
            && let Some(payload) = entry.payload.take()
        {
            self.held -= payload.len();
            if entry.state == State::Ready {
                self.far.insert(id);
            }
        }
    }

    /// Takes a payload that was read.
    pub(super) fn restore_payload(&mut self, id: Sequence, payload: &[u8]) {
        if let Some(entry) = self.by_id.get_mut(&id)
            && entry.payload.is_none()
        {
            self.held += payload.len();
            entry.payload = Some(payload.into());
            self.far.remove(&id);
        }
    }

    /// Where an entry is.
    pub(super) fn spot(&self, id: Sequence) -> Option<RecordLocation> {
        self.by_id.get(&id).map(|entry| entry.spot)
    }

    /// `window`: bytes of payloads that are held; `None`: all are.
    pub(super) fn replay(
        &mut self,
        sequence: Option<Sequence>,
        payload: &[u8],
        spot: RecordLocation,
        window: Option<usize>,
    ) -> Applied {
        match read(payload)? {
            Change::Sent(sent, payload) => {
                let id = sequence.unwrap_or(sent.id.get());
                // The oldest are held: they are delivered first.
                let fits = |window| self.far.is_empty() && self.held + payload.len() <= window;
                let keep = window.is_none_or(fits);
                self.insert(id, sent.deliveries.get(), payload, spot, keep);
            }
            Change::DeliveryCount(list) => {
                for delivered in list {
                    if let Some(entry) = self.by_id.get_mut(&delivered.id.get()) {
                        entry.deliveries = entry.deliveries.max(delivered.deliveries.get());
                    }
                }
            }
            Change::Acknowledged(list) => {
                for id in list {
                    self.remove(id.get());
                }
            }
        }
        Ok(())
    }
}
